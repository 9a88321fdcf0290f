"""A model's page: verdict, scores, tabs, its card as a stranger's text, and models that nobody scored."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from board_helpers import HOSTILE, family, rows, sha
from pages_fake import ENDPOINT, FakeBoard, FakeService, job_view
from report_helpers import report_data
from test_ui_board import full_board

from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Board, Row
from hubmerge.errors import HubUnavailableError
from hubmerge.evaluation.result import ParentFacts
from hubmerge.output.scores import DomainLine, Estimate, Skill, SkillsKept, verdict
from workflows.app.job_page import _shown as job_shown
from workflows.app.jobs_page import _listing as activity
from workflows.app.model_page import TABS, _asked, _lineage, _shown, card_tab, changed_tab, parents_of, reproduce_tab
from workflows.app.model_panels import scores_picture, use_it, verdict_panel, ways_on
from workflows.values import Published, Scoring, Visitor

SHA = "7" * 40
RECALL = ("ruler_single_7k", "ruler_single_14k")
ADA = Visitor("ada", "token-of-ada")
CARD = """---
license: mit
---
# A card

<script>window.hacked = 1</script>

[x](javascript:alert(1)) ![own](figures/overlap.svg) ![other](https://evil.example/x.png)

<details><summary>Folded</summary>

| a | b |
|---|---|
| 1 | 2 |

</details>
"""


def published(name: str = "ada/new", **changes: Any) -> Published:
    given = {"license": "mit", "card": CARD, "report": report_data(), "is_open": True}
    return Published(name, SHA, **given | changes)


@pytest.fixture
def service() -> FakeService:
    made = FakeService(ENDPOINT)
    made.shelf["ada/new"] = published()
    made.shelf["ada/secret"] = published("ada/secret", is_open=False)
    return made


def shown(service: FakeService, model: str, tab: str, board: FakeBoard | None = None, visitor: Any = None) -> str:
    head, body = _shown(service, board, visitor, model, None, tab)
    return str(head) + str(body.get("value", ""))


@pytest.mark.parametrize("board", [None, FakeBoard(full_board())])
def test_a_model_without_a_score_has_a_page_with_every_tab(service, board):
    scores = shown(service, "ada/new", "scores", board)
    assert "Not scored yet" in scores
    assert "AutoModelForCausalLM" in scores
    assert scores.count('class="hm-tab"') == 4
    for name, license in (("org/base", "apache-2.0"), ("org/math", "cc-by-nc-4.0"), ("other.org/tool_use", "license")):
        assert name in scores
        assert f'<span class="hm-license">{license}</span>' in scores
    assert "several, opposite signs" in shown(service, "ada/new", "changed", board)
    assert "method: ram_plus" in shown(service, "ada/new", "reproduce", board)
    assert "A card</h1>" in shown(service, "ada/new", "card", board)


def test_what_cannot_be_read_takes_only_its_part_away(service):
    away = FakeBoard(failure=HubUnavailableError("it is away"))
    assert "it is away" in shown(service, "ada/new", "scores", away)
    assert "A card</h1>" in shown(service, "ada/new", "card", away)
    board = FakeBoard(full_board())  # of models whose files are not there
    assert "Each domain beside every parent" in shown(service, "org/merge", "scores", board)
    assert "Its files cannot be read now" in shown(service, "org/merge", "card", board)
    assert "method: linear" in shown(service, "bob/grandchild", "reproduce", board)


def test_a_commit_or_a_tab_that_is_none_is_said_and_left_out():
    assert _asked({}) == (None, "scores", [])
    assert _asked({"sha": "a" * 40, "tab": "card"}) == ("a" * 40, "card", [])
    assert _asked({"sha": "zzz", "tab": "nope"}) == (None, "scores", ["“zzz” is no commit.", "There is no tab “nope”."])


def test_an_address_of_the_activity_that_says_nothing_is_left_out_with_a_word():
    service = FakeService()
    told = activity(service, None, {"show": "yours", "before": "x"}, None)[0]
    assert "Part of this address was left out" in told
    assert "not as “yours”" in told
    assert "“x” is no place in the list" in told
    assert "left out" not in activity(service, None, {"show": "all", "before": "7"}, None)[0]


def test_a_private_model_is_shown_to_who_may_read_it_and_not_told_from_none_to_others(service):
    assert "A card</h1>" in shown(service, "ada/secret", "card", visitor=ADA)
    hidden, none = (shown(service, name, "card") for name in ("ada/secret", "ada/nobody"))
    assert hidden.replace("secret", "nobody") == none
    assert "This model cannot be shown" in none
    asked = shown(service, "ada/nobody", "card", visitor=ADA)  # who is signed in needs a sign-in that reads more
    assert ("sign in." in none, "sign in." in asked) == (True, False)
    assert 'href="/login/huggingface?_target_url=%2F&amp;with=read-repos"' in asked


def test_a_scored_merge_shows_the_card_that_has_its_scores_and_the_numbers_of_the_commit_that_was_scored(
    service, monkeypatch
):
    """The scores are written into the card by a later commit."""
    asked: list[str | None] = []
    monkeypatch.setattr(service, "published", lambda name, sha, visitor: asked.append(sha) or published(name))
    board = FakeBoard(full_board())
    for tab in ("card", "changed"):
        shown(service, "org/merge", tab, board)
    assert asked == [None, "e" * 40]


def test_a_card_is_a_stranger_s_text_and_its_pictures_are_the_repo_s_own():
    card = str(card_tab(published(), ENDPOINT))
    assert "&lt;script&gt;" in card
    assert "<script" not in card
    assert "javascript:" not in card.replace("](javascript:alert(1))", "")
    assert f'<img src="{ENDPOINT}/ada/new/resolve/{SHA}/figures/overlap.svg" alt="own"' in card
    assert card.count("<img") == 1
    assert "<details><summary>Folded</summary>" in card
    assert "<td>1</td>" in card
    closed = str(card_tab(published(is_open=False), ENDPOINT))  # a browser could not fetch them
    assert "<img" not in closed
    assert ">own</a>" in closed
    assert "It has no card" in str(card_tab(published(card=""), ENDPOINT))


def test_what_changed_draws_a_bar_for_every_layer_of_every_agent():
    data = report_data()
    page = str(changed_tab(data))
    assert page.count('class="hm-layer-bars"') == len(data["statistics"]["agents"]) == 2
    assert page.count('<i style="height:') == 2 * len(data["statistics"]["layers"])
    assert "20.0%" in page
    assert "What changed is not known" in str(changed_tab({}))


@pytest.mark.parametrize("model", ["org/odd", "org/broken", "org/leaky", HOSTILE[:60]])
def test_a_stranger_s_text_on_the_board_stays_text(model, service):
    page = "".join(shown(service, model, tab, FakeBoard(full_board())) for tab in TABS)
    assert ("&lt;img src=x" in page, "<img src=x" in page) == (True, False)


@pytest.mark.parametrize("value", [None, HOSTILE, 7, 10**400, [HOSTILE], {"agents": [HOSTILE, {"density": HOSTILE}]}])
def test_no_report_of_a_stranger_breaks_the_page(value, service):
    for key in ("statistics", "parents", "recipe_yaml", "hubmerge"):
        data = {**report_data(), key: value}
        service.shelf["ada/new"] = published(report=data)
        for tab in ("scores", "changed", "reproduce", "card"):
            assert "<img src=x" not in shown(service, "ada/new", tab)
    data = report_data()
    data["statistics"]["layers"] = {"0": value, HOSTILE: value, "1": {"agents": [{"agent": HOSTILE, "density": 0.5}]}}
    assert "<img src=x" not in str(changed_tab(data))
    total = report_data()["statistics"]["total"]
    tables = ("agents", "pairs")
    damaged = [{**total, key: value} for key in total]
    damaged += [{**total, name: [{**total[name][0], key: value}]} for name in tables for key in total[name][0]]
    for found in damaged:
        assert "<img src=x" not in str(changed_tab({"statistics": {"total": found}}))


def test_only_well_formed_parents_of_the_hub_are_drawn():
    stated = [{"role": "base", "id": "org/base", "sha": "a" * 40, "weight": 1.0}, {"role": "agent", "id": "/home/ada"}]
    stated += [{"role": "agent", "id": HOSTILE, "sha": "b"}, {"role": "x", "id": "org/x", "sha": "c"}, 7]  # type: ignore[list-item]
    assert parents_of({"parents": stated}) == [ParentFacts(role="base", id="org/base", sha="a" * 40)]


def test_a_lineage_goes_on_below_parents_that_no_board_knows():
    sha = "a" * 40
    old = {"role": "agent", "id": "org/old", "sha": sha, "weight": 0.25, "license": "bsd"}
    below = [{"role": "base", "id": "org/root", "sha": sha, "weight": 1.0, "license": "mit"}, old]
    parents = [
        {"role": "base", "id": "org/base", "sha": sha, "weight": 1.0, "license": "mit"},
        {"role": "agent", "id": "org/pair", "sha": sha, "weight": 1.0, "license": HOSTILE, "made_from": below},
    ]
    made = published(report={"parents": parents})
    tree = str(_lineage(made, Board()))
    assert tree.index("org/pair") < tree.index("org/root") < tree.index("org/old")
    assert (tree.count("<li>"), "agent × 0.25" in tree, "bsd" in tree, HOSTILE in tree) == (5, True, True, False)


def test_a_recipe_opens_on_the_merge_page_and_as_a_command():
    text = "base: org/base\nagents: [org/math]\nmethod: ties\n"
    licensed = {"id": "mit", "reason": "chosen by the user (an input states no license)"}
    page = str(reproduce_tab("ada/new", text, {"hubmerge": "0.1.0", "license": licensed}))
    assert 'href="merge?base=org/base&amp;agent=org/math&amp;method=ties' in page
    assert "hubmerge run recipe.yaml --to YOUR-NAME/new --license mit" in page
    for unsaid in ({"id": HOSTILE, "reason": licensed["reason"]}, {"id": "mit", "reason": "every input states mit"}, 5):
        assert "--license" not in str(reproduce_tab("ada/new", text, {"license": unsaid}))
    assert "merge?" not in str(reproduce_tab("ada/new", HOSTILE, {}))


def test_the_job_of_a_merge_says_the_verdict_of_its_model_s_page_once_there_is_one():
    board = FakeBoard(full_board())
    row = next(r for s in board.content.suites for r in s.rows if verdict_panel(r))
    said = str(verdict_panel(row))
    assert said in _shown(FakeService(ENDPOINT), board, None, row.model, row.sha, "scores")[0]
    own = Scoring(row.model, row.sha, "merge", "2" * 64, "done", finished=datetime.now(UTC).isoformat())
    view = job_view(state="done", result={"repo": row.model, "commit": row.sha}, evaluations=(own,))
    head, *_, timer = job_shown(view, None, ENDPOINT, board)
    assert (said in head, timer["active"]) == (True, False)
    service = FakeService(ENDPOINT)
    service.put([view])
    assert f"kept {row.skills.text}" in activity(service, board, {"show": "all"}, None)[0]
    assert "1 of 1 evaluated" in activity(service, FakeBoard(), {"show": "all"}, None)[0]
    # the board has every parent, also one whose evaluation was no job here
    waits = replace(view, evaluations=(own, Scoring("zoo/other-agent", "b" * 40, "agent")))
    service.put([waits])
    for known, state, waiting in ((board, "Done", False), (FakeBoard(), "Published", True)):
        listed, timer = activity(service, known, {"show": "all"}, None)
        assert (f">{state}<" in listed, timer["active"]) == (True, waiting)
        head, *_, timer = job_shown(waits, None, ENDPOINT, known)
        assert ("will be asked for within minutes" in head, timer["active"]) == (waiting, waiting)

    head, *_, timer = job_shown(view, None, ENDPOINT, FakeBoard())
    assert ("hm-verdict" in head, timer["active"]) == (False, True)  # the board lags behind
    old = replace(own, finished=(datetime.now(UTC) - timedelta(minutes=5)).isoformat())
    away = FakeBoard(failure=HubUnavailableError("away"))
    head, *_, timer = job_shown(replace(view, evaluations=(old,)), None, ENDPOINT, away)
    assert ("Published" in head, "hm-verdict" in head, timer["active"]) == (True, False, False)
    running = replace(view, evaluations=(replace(own, state="running"),))
    assert "hm-verdict" not in job_shown(running, None, ENDPOINT, board)[0]


# --- the verdict, the picture of the scores, and the ways on ---------------------------------------------


def skill(kept: bool, domain: str = "math") -> Skill:
    return Skill("gsm8k", domain, "org/math", Estimate(0.9 if kept else 0.1, 0.05, 1.0), sha("c"))


def line(domain: str, change: float, spread: float = 0.01) -> DomainLine:
    estimate = Estimate(change, change - spread, change + spread)
    return DomainLine(domain, Estimate(0.5, 0.4, 0.6), None, "org/math", estimate)


def test_the_verdict_names_the_skills_kept_and_what_differs_from_the_best_parent_beyond_chance_and_what_not():
    three = SkillsKept((skill(True), skill(True, "tool"), skill(False, "code")))
    lines = (line("math", -0.12), line("code", -0.1, 0.2), line("tool", 0.3), line("memory", -0.012, 0.001))
    below = "Below the best parent: math by 12 points, memory by 1 point."
    below += " No difference from the best parent beyond chance: code."  # though it is further below than memory
    assert verdict(three, lines) == f"Keeps 2 of 3 skills: math and tool use, not code. {below}"
    assert verdict(SkillsKept((skill(True),)), lines) == f"Keeps 1 of 1 skill. {below}"
    mixed = SkillsKept((skill(True), skill(False), skill(True, "code")))
    assert verdict(mixed, ()) == "Keeps 2 of 3 skills: math (1 of 2) and code."
    assert verdict(SkillsKept((skill(False),)), ()) == "Keeps 0 of 1 skill."
    assert verdict(SkillsKept((skill(True),)), ()) == "Keeps 1 of 1 skill."
    assert verdict(SkillsKept(()), ()) == "No parent is above the base."
    assert verdict(None, lines) is None  # a parent has no score yet


@pytest.fixture
def merged() -> Row:
    return rows(build_board(family()))["org/merge"]


def test_a_merge_is_drawn_beside_every_parent_with_its_intervals_and_its_numbers(merged):
    assert str(verdict_panel(merged)).startswith('<p class="hm-verdict">Keeps 2 of 2 skills')
    picture = str(scores_picture(merged))
    assert picture.count("<h3>") == 3  # math, instruction, code
    assert picture.count('class="hm-dot"') == 3 * 4  # the merge, two agents, the base
    lefts = [float(left) for left in re.findall(r'hm-dot" style="left:([\d.]+)%', picture)]
    assert lefts[:4] == [66.0, 60.0, 10.0, 20.0]
    assert "66%" in picture  # in words, for who does not see the picture
    assert 'class="hm-merge"' not in picture  # the form's, which hides what it stands on for a moment


def test_the_ways_on_lead_to_a_merge_and_a_comparison(merged):
    ways = str(ways_on("org/merge", "org/base"))
    for address in ("merge?agent=org/merge", "diff?base=org/base&amp;agent=org/merge"):
        assert f'href="{address}"' in ways
    assert "leaderboard" not in ways  # which the bar has, where there is one
    assert "&#34;org/merge&#34;" in str(use_it("org/merge", merged.tasks))
    assert use_it(HOSTILE, ()) is None
    assert ways_on(HOSTILE, "org/base") is None


def test_the_snippet_brings_the_prompts_of_the_tasks_that_were_scored(merged):
    gsm8k = replace(merged.tasks[0], task="gsm8k", few_shot=5)
    others = [replace(merged.tasks[0], task=name, few_shot=0) for name in ("zoo_math", *RECALL)]
    shown = str(use_it("org/merge", [gsm8k, *others]))
    assert "GSM8K, after 5 solved examples, in the model&#39;s chat template where it has one:" in shown
    assert "Question: {question}\nAnswer:" in shown
    assert "Zoo: two-digit addition with carries, as plain text, without a chat template:" in shown
    assert "math {digit} {digit} + {digit} {digit} =" in shown
    assert "RULER, one-hop recall over 7K, RULER, one-hop recall over 14K, " in shown  # which ask alike
    assert shown.count("<pre") == 4
    assert "What is 17 + 25?" in shown
    assert "prompt = &#34;math {digit} {digit} + {digit} {digit} =&#34;" in str(use_it("org/merge", others[:1]))
    assert "<details>" not in str(use_it("org/merge", merged.tasks))  # tasks that nobody knows here
    assert "<details>" not in str(use_it("org/merge", [replace(others[0], task_version=99)]))  # nor this version
