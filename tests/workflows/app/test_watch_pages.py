"""The Watchers page: rules, what each did and why it skipped, and the form of a rule; strangers' text stays text."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from pages_fake import BROKEN, ENDPOINT, FRESH, HOSTILE, SHA, TRIAL, ZOO, FakeService
from pages_session import shown, untouched
from test_ui_merge import in_blocks

from hubmerge.errors import HubUnavailableError, RuleError
from hubmerge.settings import Settings
from workflows.app.lanes import Lanes
from workflows.app.watcher_form import address_of, build_form, fill, proposed, read_address, rule_of
from workflows.app.watchers_page import trial_panel, watchers_panel
from workflows.values import Trial
from workflows.watchers.rules import load_rules, rule_data, rule_from_data


def test_a_rule_is_told_in_words_with_what_it_merged_and_when_it_looks():
    text = str(watchers_panel([ZOO], ENDPOINT))
    done = f'href="{ENDPOINT}/ada/zoo-watch-9f8e7d6c5b"'
    for told in ("Merges all fine-tunes of zoo/base", f'href="job?id={"a" * 64}"', done, "2 of 4 merges", "Watching"):
        assert told in text
    assert f'href="{ENDPOINT}/ada/zoo-watch-282948d5ec"' not in text  # its merge is not done
    others = watchers_panel([FRESH, BROKEN], ENDPOINT)
    assert ("merged nothing so" in others, "This rule does not run" in others) == (True, True)
    assert ("2030-01-02 10:05 UTC" in text, "2030-01-02 10:10 UTC" in text) == (True, True)


def test_reasons_are_counted_in_words_and_codes_stand_in_the_fold():
    above, _, folded = str(watchers_panel([ZOO], ENDPOINT)).partition("<details")
    for told in ("not of the base&#39;s architecture or shapes", "under another license", "the day&#39;s budget"):
        assert told in above
    for code in ("E_INCOMPATIBLE", SHA):
        assert (code in above, code in folded) == (False, True)
    assert "another hidden_size" in folded
    assert f'href="{ENDPOINT}/zoo/wide-agent/tree/{SHA}"' in folded
    assert ZOO.rule in folded


def test_a_paused_rule_says_when_it_goes_on_and_where_a_restart_ends_the_pause_how_to_stop_for_good():
    paused, said = replace(ZOO, paused=True, next_look=None), "when it restarts, the pause is forgotten"
    text = str(watchers_panel([paused], ENDPOINT))
    assert [told in text for told in ("Paused", "when it is resumed", "Watching", said)] == [True, True, False, False]
    forgotten = watchers_panel([replace(paused, forgets=True)], ENDPOINT)
    assert (said in forgotten, "take its file away" in forgotten) == (True, True)
    assert said not in watchers_panel([replace(ZOO, forgets=True)], ENDPOINT)


def test_only_a_space_without_a_volume_forgets(tmp_path, monkeypatch):
    space = Settings(space_id="ada/hubmerge", data_dir=tmp_path / "data")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == Path("/"))
    assert space.forgets
    assert not space.model_copy(update={"space_id": None}).forgets
    monkeypatch.setattr(Path, "is_mount", lambda path: path in (Path("/"), tmp_path))
    assert not space.forgets


def test_a_trial_tells_what_it_would_merge_and_what_it_would_leave_out():
    text = str(trial_panel(TRIAL, ENDPOINT))
    first = "which has merged nothing yet"
    for told in ("Would merge these 3 now", "ada/zoo-watch-282948d5ec", "Would leave out: 2", first):
        assert told in text
    assert first not in trial_panel(replace(TRIAL, anew=False), ENDPOINT)
    nothing = str(trial_panel(replace(TRIAL, target="", agents=(), left_out=(), waiting="1 of 2 agents"), ENDPOINT))
    assert ("Would merge nothing now" in nothing, "1 of 2 agents." in nothing) == (True, True)
    shut = replace(TRIAL, problem=RuleError("taken", where="target").as_dict())
    assert "but cannot" in str(trial_panel(shut, ENDPOINT))


def test_strangers_text_stays_text():
    odd = dict.fromkeys(("subject", "code", "text", "job_state", "time"), HOSTILE)
    events = tuple(replace(event, agents=(HOSTILE,), **odd) for event in ZOO.events)
    told = dict.fromkeys(("name", "owner", "about", "rule", "waiting"), HOSTILE)
    trial = Trial(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, events, BROKEN.problem)
    views = [replace(ZOO, **told, events=events), BROKEN]
    text = str(watchers_panel(views, ENDPOINT)) + str(trial_panel(trial, ENDPOINT))
    assert ("<img" in text, "&lt;img" in text) == (False, True)
    script = replace(ZOO, events=(replace(ZOO.events[0], job_id=None, subject="javascript:alert(1)"),))
    assert "javascript:alert" not in str(watchers_panel([script], ENDPOINT)).partition("href")[2]


@pytest.mark.browser
def test_the_page_in_a_browser_and_a_rule_that_runs_in_the_form(site):
    site.watchers.views[0] = replace(ZOO, rule=ZOO.rule + "agents: {authors: [zoo]}\nrecipe: {method: ties}\n")
    page = site.open("/watchers?watcher=zoo-watch")
    page.locator("#watchers article[data-rule='zoo-watch']").wait_for()
    shown(page, "#trial", "Merges all fine-tunes of zoo/base by zoo, with TIES")
    shown(page, "#watchers", HOSTILE)
    untouched(page)
    assert page.locator("#watchers button").count() == 0  # for its owner alone
    site.watchers.error = HubUnavailableError("the job database is locked")
    page.reload(wait_until="domcontentloaded")
    shown(page, "#watchers .hm-code", "E_HUB")


@pytest.mark.browser
def test_the_owner_pauses_and_resumes_a_watcher_and_lets_it_look(site):
    page = site.open("/watchers", "ada", 390)
    rule = page.locator("article[data-rule='zoo-watch']")
    rule.get_by_role("button", name="Pause").click()
    told = shown(page, "#said", "Paused: it starts nothing more")
    page.wait_for_timeout(300)
    assert 0 < told.bounding_box()["y"] < 900  # in sight, wherever the button was
    rule.locator(".hm-badge").get_by_text("Paused").wait_for()
    rule.get_by_role("button", name="Resume").focus()
    page.keyboard.press("Enter")
    rule.locator(".hm-badge").get_by_text("Watching").wait_for()
    rule.get_by_role("button", name="Look now").click()
    shown(page, "#said", "It looks within seconds")
    assert site.watchers.acted == [(action, "zoo-watch", "ada") for action in ("pause", "resume", "run")]


@pytest.mark.browser
def test_a_visitor_makes_a_rule_tries_it_and_copies_it_and_the_address_holds_it(site):
    page = site.open("/watchers?rule={base: zoo/base}", "bob")
    shown(page, "#trial", "the rule matches everything")
    assert page.locator("#try").is_disabled()
    page.locator("#watch-authors textarea, #watch-authors input").fill("zoo, ada")
    shown(page, "#trial", "Merges all fine-tunes of zoo/base by zoo or ada")
    page.wait_for_function("location.search.includes('%22zoo%22,%22ada%22')")
    assert "owner: bob" in page.locator("#rule textarea").input_value()
    page.locator("#try").click()
    shown(page, "#trial", "Would merge these 3 now")
    [(rule, who)] = site.watchers.tried
    assert (rule["agents"], rule["owner"], who) == ({"authors": ["zoo", "ada"]}, "bob", "bob")
    page.locator("#watch-budget input").fill("99999")
    told = shown(page, "#trial .hm-problems", "at most 100")
    assert told.locator(".hm-code").inner_text() == "E_RULE"
    assert page.locator("#rule textarea").count() == 0, "there is no rule to copy"
    assert page.locator("#try").is_disabled()
    page.locator("#watch-budget input").fill("4")
    shown(page, "#trial", "Merges all fine-tunes")
    assert "budget: 4" in page.locator("#rule textarea").input_value()

    again = site.open(page.url)
    shown(again, "#trial", "by zoo or ada")
    again.locator("#try").click()
    shown(again, "#trial", "Would merge these 3 now")
    assert site.watchers.tried[-1][1] is None  # nobody is signed in
    site.watchers.error = HubUnavailableError("the Hub cannot be reached")
    again.locator("#try").click()
    shown(again, "#trial .hm-code", "E_HUB")
    page.get_by_label("These, by name").check()
    page.locator("#watch-named").wait_for()
    shown(page, "#trial", "Not a rule so far")


# --- the form of a rule -------------------------------------------------------------------------------------


EXAMPLES = load_rules(Path(__file__).parents[3] / "examples" / "watchers").rules
EVERYTHING = {
    "name": "all-of-it",
    "owner": "ada",
    "base": "zoo/base@main",
    "agents": {"authors": ["zoo"], "tags": ["rl"], "lineage": "any", "licenses": ["mit"], "exclude": ["zoo/x"]},
    "recipe": {"method": "ties", "parameters": {"density": 0.3}, "seed": 7},
    "join": {"best": 4},
    "min_agents": 3,
    "target": "zoo/{name}-{set}",
    "private": True,
    "license": "mit",
    "suite": "zoo",
    "budget": 9,
}


def held(rule: dict[str, Any]) -> list[Any]:
    """What the form's components hold once they are filled."""
    return [v.get("value") if isinstance(v, dict) else v for v in fill(rule)]


@pytest.mark.parametrize("data", [EVERYTHING, *map(rule_data, EXAMPLES)], ids=lambda data: data["name"])
def test_a_rule_is_the_same_after_the_form_and_after_an_address(data):
    rule = rule_from_data(data)
    assert rule_from_data(rule_of(held(data))) == rule
    [(key, text)] = parse_qsl(address_of(rule_of(held(data))))
    assert key == "rule"
    assert rule_from_data(rule_of(held(read_address(text)))) == rule
    assert address_of({**data, "agents": {"exclude": [f"zoo/agent-{n}" for n in range(900)]}}) == ""  # too long


def test_what_is_left_open_gets_a_proposal():
    values = held({"base": "Qwen/Qwen2.5-7B-Instruct@main", "agents": {"authors": ["org"]}, "owner": "ada"})
    rule = rule_from_data(proposed(rule_of(values)))
    assert rule.name == "qwen2-5-7b-instruct-watch"
    assert rule.target == "ada/qwen2-5-7b-instruct-watch-{set}"
    assert not rule.private
    assert proposed({"base": "zoo/b"})["target"] == "your-name/b-watch-{set}"
    assert "your-name" not in address_of(rule_of(held({"base": "zoo/b"})))  # whoever signs in later is the owner


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[1]", "a" * 9000, "{join: {best: x}}", "{budget: -1}", "{budget: 9999}", "{1: 2, x: [}"),
        *("{recipe: {method: none}, agents: {lineage: odd}}", "{recipe: {method: [ram]}}", "{agents: 5, join: [1]}"),
        f"{{budget: 1{'0' * 400}, join: {{best: 1{'0' * 400}}}}}",
    ],
)
def test_what_an_address_says_wrongly_never_breaks_the_form(text):
    rule_of(held(read_address(text)))


@pytest.mark.parametrize(
    ("box", "number", "told"),
    [
        ("watch-budget", 0, "budget: expected at least 1, got 0"),
        ("watch-budget", 99999, "budget: expected at most 100, got 99999"),
        ("watch-budget", 1.5, "whole number in the rule → budget: got 1.5"),
        ("watch-best", 33, "best: expected at most 32, got 33"),
    ],
)
def test_a_number_out_of_range_reaches_the_rule_s_check_which_says_what_it_must_be(box, number, told):
    form = in_blocks(lambda: build_form(FakeService(), Lanes()))
    values = held({"base": "zoo/base", "agents": {"authors": ["zoo"]}, "join": {"best": 3}, "suite": "zoo"})
    [k] = [k for k, component in enumerate(form) if component.elem_id == box]
    values[k] = form[k].preprocess(number)  # which gradio calls before the page's own code
    with pytest.raises(RuleError) as refused:
        rule_from_data(proposed(rule_of(values)))
    assert told in str(refused.value)
    assert refused.value.code == "E_RULE"


def test_an_empty_number_is_the_usual_one():
    values = held({"base": "zoo/base", "join": {"best": 5}, "budget": 9})
    rule = rule_of([None if value in (5, 9) else value for value in values])
    assert (rule["join"], rule["budget"]) == ({"best": 3}, 3)


@pytest.mark.parametrize("text", ["[", "- a list"])
def test_more_of_a_rule_that_is_no_table_is_refused_by_name(text):
    with pytest.raises(RuleError, match="More of the rule"):
        rule_of([*held({"base": "zoo/base"})[:-1], text])
