"""The Watchers page: rules, what each did and why it skipped, and the form of a rule; strangers' text stays text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from pages_fake import HOSTILE, FakeService
from pages_session import Site, serving, untouched
from test_ui_merge import in_blocks

from hubmerge.errors import HubmergeError, HubUnavailableError, PermissionDeniedError, RuleError
from hubmerge.settings import Settings
from workflows.app.lanes import Lanes
from workflows.app.watcher_form import address_of, build_form, fill, proposed, read_address, rule_of, where_it_belongs
from workflows.app.watchers_page import trial_panel, watchers_panel
from workflows.values import Trial, Visitor, WatcherEvent, WatcherView
from workflows.watchers.rules import load_rules, rule_data, rule_from_data

ENDPOINT = "http://127.0.0.1:9"
FILLED = "/watchers?rule={base: zoo/base, agents: {authors: [zoo]}}"
SHA = "0123456789abcdef" * 2 + "01234567"


def left_out(time: str, subject: str, code: str, text: str) -> WatcherEvent:
    return WatcherEvent("skipped", f"{time}:00+00:00", subject, SHA, code, text)


ZOO = WatcherView(
    name="zoo-watch",
    owner="ada",
    about="Merges all fine-tunes of zoo/base by zoo, with RAM+, once there are 2 and again with each new one.",
    rule="name: zoo-watch\nowner: ada\nbase: zoo/base\n",
    target="ada/zoo-watch-{set}",
    suite="zoo",
    budget=4,
    used_today=2,
    polled="2030-01-02T10:05:00+00:00",
    next_look="2030-01-02T10:10:00+00:00",
    waiting="the day's budget of 4 is used up; it goes on tomorrow (UTC)",
    events=(
        WatcherEvent(
            "merged",
            "2030-01-02T10:04:00+00:00",
            "ada/zoo-watch-282948d5ec",
            agents=(f"zoo/math-agent@{SHA}", f"zoo/mem-agent@{SHA}", f"zoo/tool-agent@{SHA}"),
            job_id="a" * 64,
            job_state="running",
        ),
        left_out("2030-01-02T09:00", "set 1b2c3d4e5f", "budget", "the day's budget is used"),
        left_out("2030-01-01T09:00", "zoo/wide-agent", "E_INCOMPATIBLE", "another hidden_size: expected 64, got 128"),
        left_out("2030-01-01T08:00", "zoo/other", "license", "its license is not stated"),
        replace(left_out("2030-01-01T07:00", "ada/zoo-watch-1", "E_TARGET_EXISTS", "taken"), kind="refused", sha=""),
        WatcherEvent(
            "merged",
            "2029-12-31T10:00:00+00:00",
            "ada/zoo-watch-9f8e7d6c5b",
            agents=(f"zoo/math-agent@{SHA}", f"zoo/tool-agent@{SHA}"),
            job_id="b" * 64,
            job_state="done",
        ),
    ),
)
FRESH = replace(ZOO, name="zoo-trio", events=(), waiting="", polled=None, used_today=0, suite=None)
AWAY = replace(FRESH, name="zoo-away", problem=HubUnavailableError("the Hub cannot be reached").as_dict())
ODD = RuleError("a rule has no such key: colour", where="mine.yaml → colour", got=HOSTILE)
BROKEN = WatcherView("mine.yaml", problem=ODD.as_dict())

TRIAL = Trial(
    about=ZOO.about,
    rule=ZOO.rule,
    target="ada/zoo-watch-282948d5ec",
    agents=ZOO.events[0].agents,
    left_out=tuple(replace(e, time="") for e in ZOO.events[2:4]),
)


class Source:
    """Keeps the promises of workflows.app.watchers_source.WatcherSource, with `views` in the test's hands."""

    endpoint = ENDPOINT

    def __init__(self, views: Sequence[WatcherView] = (ZOO, FRESH, AWAY, BROKEN)) -> None:
        self.views = list(views)
        self.error: HubmergeError | None = None
        self.trial = TRIAL
        self.tried: list[tuple[Mapping[str, Any], str | None]] = []
        self.acted: list[tuple[str, str, str]] = []

    def watchers(self, visitor: Visitor | None) -> list[WatcherView]:
        if self.error is not None:
            raise self.error
        name = visitor.name if visitor else None
        return [replace(v, own=v.owner == name) for v in self.views if not v.private or v.owner == name]

    def try_watcher(self, rule: Mapping[str, Any], visitor: Visitor | None) -> Trial:
        self.tried.append((rule, visitor.name if visitor else None))
        if self.error is not None:
            raise self.error
        return self.trial

    def pause_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("pause", name, visitor, paused=True)

    def resume_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("resume", name, visitor, paused=False)

    def run_watcher(self, name: str, visitor: Visitor) -> WatcherView:
        return self._act("run", name, visitor)

    def _act(self, action: str, name: str, visitor: Visitor, **changes: Any) -> WatcherView:
        view = next((v for v in self.views if v.name == name), None)
        if view is None or view.owner != visitor.name:
            raise PermissionDeniedError("a watcher of somebody else")
        self.acted.append((action, name, visitor.name))
        self.views = [replace(v, **changes) if v is view else v for v in self.views]
        return replace(view, **changes)


def test_a_rule_is_told_in_words_with_what_it_merged_and_when_it_looks() -> None:
    text = str(watchers_panel([ZOO], ENDPOINT))
    done = f'href="{ENDPOINT}/ada/zoo-watch-9f8e7d6c5b"'
    for told in ("Merges all fine-tunes of zoo/base", f'href="job?id={"a" * 64}"', done, "2 of 4 merges", "Watching"):
        assert told in text
    assert f'href="{ENDPOINT}/ada/zoo-watch-282948d5ec"' not in text  # its merge is not done
    assert ("2030-01-02 10:05 UTC" in text, "2030-01-02 10:10 UTC" in text) == (True, True)


def test_reasons_are_counted_in_words_and_codes_stand_in_the_fold() -> None:
    above, fold, folded = str(watchers_panel([ZOO], ENDPOINT)).partition("<details")
    assert fold
    assert "not of the base&#39;s architecture or shapes" in above
    assert "under another license" in above
    assert "E_INCOMPATIBLE" not in above
    assert SHA not in above
    assert "E_INCOMPATIBLE" in folded
    assert "another hidden_size" in folded
    assert f'href="{ENDPOINT}/zoo/wide-agent/tree/{SHA}"' in folded
    assert ZOO.rule in folded


def test_a_paused_rule_says_when_it_goes_on_and_where_a_restart_ends_the_pause_how_to_stop_for_good() -> None:
    paused, said = replace(ZOO, paused=True, next_look=None), "when it restarts, the pause is forgotten"
    text = str(watchers_panel([paused], ENDPOINT))
    assert [told in text for told in ("Paused", "when it is resumed", "Watching", said)] == [True, True, False, False]
    forgotten = watchers_panel([replace(paused, forgets=True)], ENDPOINT)
    assert (said in forgotten, "take its file away" in forgotten) == (True, True)
    assert said not in watchers_panel([replace(ZOO, forgets=True)], ENDPOINT)


def test_only_a_space_without_a_volume_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Settings(space_id="ada/hubmerge", data_dir=tmp_path / "data")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == Path("/"))
    assert space.forgets
    assert not space.model_copy(update={"space_id": None}).forgets
    monkeypatch.setattr(Path, "is_mount", lambda path: path in (Path("/"), tmp_path))
    assert not space.forgets


def test_an_empty_list_says_how_to_begin() -> None:
    assert "No watcher runs here yet" in watchers_panel([], "https://hub.example")
    assert "make demo" not in watchers_panel([], "https://hub.example")
    here = watchers_panel([], "http://127.0.0.1:7861")
    for command in ("hubmerge demo --watch", "make demo ARGS=--watch"):  # installed, and from a checkout
        assert f"<code>{command}</code>" in here


def test_a_trial_tells_what_it_would_merge_and_what_it_would_leave_out() -> None:
    text = str(trial_panel(TRIAL, ENDPOINT))
    assert "Would merge these 3 now" in text
    assert "ada/zoo-watch-282948d5ec" in text
    assert "Would leave out: 2" in text
    assert "which has merged nothing yet" in text
    assert "which has merged nothing yet" not in trial_panel(replace(TRIAL, anew=False), ENDPOINT)
    nothing = str(trial_panel(replace(TRIAL, target="", agents=(), left_out=(), waiting="1 of 2 agents"), ENDPOINT))
    assert "Would merge nothing now" in nothing
    assert "1 of 2 agents." in nothing
    shut = replace(TRIAL, problem=RuleError("taken", where="target").as_dict())
    assert "but cannot" in str(trial_panel(shut, ENDPOINT))


def test_strangers_text_stays_text() -> None:
    events = tuple(
        replace(e, subject=HOSTILE, code=HOSTILE, text=HOSTILE, agents=(HOSTILE,), job_state=HOSTILE, time=HOSTILE)
        for e in ZOO.events
    )
    told = {"name": HOSTILE, "owner": HOSTILE, "about": HOSTILE, "rule": HOSTILE, "waiting": HOSTILE}
    view = replace(ZOO, **told, events=events)
    trial = Trial(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, events, BROKEN.problem)
    text = str(watchers_panel([view, BROKEN], ENDPOINT)) + str(trial_panel(trial, ENDPOINT))
    assert "<img" not in text
    assert "&lt;img" in text
    script = replace(ZOO.events[0], job_id=None, subject="javascript:alert(1)")
    assert (
        "javascript:alert" not in str(watchers_panel([replace(ZOO, events=(script,))], ENDPOINT)).partition("href")[2]
    )


@pytest.fixture(scope="module")
def served(gradio_oauth: None) -> Iterator[Site]:
    with serving(watchers=Source()) as site:
        yield site


@pytest.fixture
def site(served: Site, open_page: Any) -> Site:
    served.watchers.__init__()
    return replace(served, open_page=open_page)


@pytest.mark.browser
def test_the_page_in_a_browser(site: Site) -> None:
    page = site.open("/watchers")
    page.locator("#watchers article[data-rule='zoo-watch']").wait_for()
    page.locator("#wizard #try").wait_for()
    shown = page.locator("#watchers").inner_text()
    for told in ("under another license", "the day's budget", "This rule does not run", "merged nothing so"):
        assert told in shown
    assert "E_INCOMPATIBLE" not in shown
    page.locator("#watchers article[data-rule='zoo-watch'] summary").first.click()
    assert "E_INCOMPATIBLE" in page.locator("#watchers").inner_text()
    merge = page.locator("#watchers a").filter(has_text="ada/zoo-watch-282948d5ec")
    assert merge.get_attribute("href") == f"job?id={'a' * 64}"
    assert HOSTILE in shown
    untouched(page)
    assert page.locator("#watchers button").count() == 0  # for its owner alone


@pytest.mark.browser
def test_a_failure_of_the_source_is_told(site: Site) -> None:
    site.watchers.error = HubUnavailableError("the job database is locked")
    site.open("/watchers").locator("#watchers .hm-code").filter(has_text="E_HUB").wait_for()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_owner_pauses_and_resumes_a_watcher_and_lets_it_look(site: Site, width: int) -> None:
    page = site.open("/watchers", "ada", width)
    rule = page.locator("article[data-rule='zoo-watch']")
    rule.get_by_role("button", name="Look now").wait_for()
    heights = rule.locator(".hm-acts button").evaluate_all("all => all.map((one) => one.offsetHeight)")
    assert len(set(heights)) == 1
    rule.get_by_role("button", name="Pause").click()
    told = page.locator("#said").get_by_text("Paused: it starts nothing more")
    told.wait_for()
    page.wait_for_timeout(300)
    top = told.bounding_box()["y"]
    assert 0 < top < 900  # in sight, wherever the button was
    rule.locator(".hm-badge").get_by_text("Paused").wait_for()
    rule.get_by_role("button", name="Resume").focus()
    page.keyboard.press("Enter")
    rule.locator(".hm-badge").get_by_text("Watching").wait_for()
    rule.get_by_role("button", name="Look now").click()
    page.locator("#said").get_by_text("It looks within seconds").wait_for()
    assert site.watchers.acted == [(action, "zoo-watch", "ada") for action in ("pause", "resume", "run")]


@pytest.mark.browser
def test_a_visitor_makes_a_rule_tries_it_and_copies_it_and_the_address_holds_it(site: Site) -> None:
    page = site.open("/watchers?rule={base: zoo/base}", "bob")
    page.locator("#trial").get_by_text("the rule matches everything").wait_for()
    assert page.locator("#try").is_disabled()
    page.locator("#watch-authors textarea, #watch-authors input").fill("zoo, ada")
    page.locator("#trial").get_by_text("Merges all fine-tunes of zoo/base by zoo or ada").wait_for()
    page.wait_for_function("location.search.includes('%22zoo%22,%22ada%22')")
    assert "owner: bob" in page.locator("#rule textarea").input_value()
    page.locator("#try").click()
    page.locator("#trial").get_by_text("Would merge these 3 now").wait_for()
    [(rule, who)] = site.watchers.tried
    assert (rule["agents"], rule["owner"], who) == ({"authors": ["zoo", "ada"]}, "bob", "bob")
    again = site.open(page.url)
    again.locator("#trial").get_by_text("by zoo or ada").wait_for()
    again.locator("#try").click()
    again.locator("#trial").get_by_text("Would merge these 3 now").wait_for()
    assert site.watchers.tried[-1][1] is None  # nobody is signed in
    page.get_by_label("These, by name").check()
    page.locator("#watch-named").wait_for()
    page.locator("#trial").get_by_text("Not a rule so far").wait_for()


@pytest.mark.browser
def test_a_number_out_of_range_is_told_beside_the_form_and_leaves_no_rule_to_copy(site: Site) -> None:
    page = site.open(FILLED)
    page.locator("#trial").get_by_text("Merges all fine-tunes").wait_for()
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 500 else None)
    for number, expected in (("-1", "at least 1"), ("0", "at least 1"), ("99999", "at most 100")):
        page.locator("#watch-budget input").fill(number)
        told = page.locator("#trial .hm-problems").filter(has_text=number)
        told.filter(has_text=expected).wait_for()
        assert told.locator(".hm-code").inner_text() == "E_RULE"
        assert page.locator("#rule textarea").count() == 0
        assert page.locator("#try").is_disabled()
    page.locator("#watch-budget input").fill("1.5")
    page.locator("#trial").get_by_text("this must be a whole number").wait_for()
    page.locator("#watch-budget input").fill("4")
    page.locator("#trial").get_by_text("Merges all fine-tunes").wait_for()
    assert "budget: 4" in page.locator("#rule textarea").input_value()
    assert failed == []


@pytest.mark.browser
def test_a_rule_that_runs_opens_in_the_form(site: Site) -> None:
    site.watchers.views[0] = replace(ZOO, rule=ZOO.rule + "agents: {authors: [zoo]}\nrecipe: {method: ties}\n")
    page = site.open("/watchers?watcher=zoo-watch")
    page.locator("#trial").get_by_text("Merges all fine-tunes of zoo/base by zoo, with TIES").wait_for()


@pytest.mark.browser
def test_a_trial_that_is_not_possible_says_why(site: Site) -> None:
    page = site.open(FILLED)
    page.locator("#watchers article").first.wait_for()
    page.locator("#trial").get_by_text("Merges all fine-tunes").wait_for()
    site.watchers.error = HubUnavailableError("the Hub cannot be reached")
    page.locator("#try").click()
    page.locator("#trial .hm-code").filter(has_text="E_HUB").wait_for()


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
def test_a_rule_is_the_same_after_the_form_and_after_an_address(data: dict[str, Any]) -> None:
    rule = rule_from_data(data)
    assert rule_from_data(rule_of(held(data))) == rule
    [(key, text)] = parse_qsl(address_of(rule_of(held(data))))
    assert key == "rule"
    assert rule_from_data(rule_of(held(read_address(text)))) == rule


def test_a_rule_s_suite_is_chosen_by_its_title_and_may_be_none_or_a_new_one() -> None:
    form = in_blocks(lambda: build_form(FakeService(), Lanes()))
    [suite] = [c for c in form if c.elem_id == "watch-suite"]
    assert suite.choices == [("Nothing", ""), ("Mathematics", "math"), ("Function calling", "tool")]
    assert (suite.value, suite.allow_custom_value) == ("", True)


def test_what_is_left_open_gets_a_proposal() -> None:
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
def test_what_an_address_says_wrongly_never_breaks_the_form(text: str) -> None:
    rule_of(held(read_address(text)))


@pytest.mark.parametrize(
    ("box", "number", "told"),
    [
        ("watch-budget", -1, "budget: expected at least 1, got -1"),
        ("watch-budget", 0, "budget: expected at least 1, got 0"),
        ("watch-budget", 99999, "budget: expected at most 100, got 99999"),
        ("watch-budget", 1.5, "whole number in the rule → budget: got 1.5"),
        ("watch-best", 1, "best: expected at least 2, got 1"),
        ("watch-best", 33, "best: expected at most 32, got 33"),
    ],
)
def test_a_number_out_of_range_reaches_the_rule_s_check_which_says_what_it_must_be(
    box: str, number: float, told: str
) -> None:
    form = in_blocks(lambda: build_form(FakeService(), Lanes()))
    values = held({"base": "zoo/base", "agents": {"authors": ["zoo"]}, "join": {"best": 3}, "suite": "zoo"})
    [k] = [k for k, component in enumerate(form) if component.elem_id == box]
    values[k] = form[k].preprocess(number)  # which gradio calls before the page's own code
    with pytest.raises(RuleError) as refused:
        rule_from_data(proposed(rule_of(values)))
    assert told in str(refused.value)
    assert refused.value.code == "E_RULE"


def test_an_empty_number_is_the_usual_one() -> None:
    values = held({"base": "zoo/base", "join": {"best": 5}, "budget": 9})
    rule = rule_of([None if value in (5, 9) else value for value in values])
    assert (rule["join"], rule["budget"]) == ({"best": 3}, 3)


@pytest.mark.parametrize("text", ["[", "- a list", "just text"])
def test_more_of_a_rule_that_is_no_table_is_refused_by_name(text: str) -> None:
    with pytest.raises(RuleError, match="More of the rule"):
        rule_of([*held({"base": "zoo/base"})[:-1], text])


def test_a_rule_that_is_too_long_for_an_address_has_none() -> None:
    assert address_of({"base": "zoo/base", "agents": {"exclude": [f"zoo/agent-{n}" for n in range(900)]}}) == ""


def test_the_place_of_a_rule_names_its_file_and_its_owner() -> None:
    text = str(where_it_belongs("zoo-watch", "<ada>"))
    assert "zoo-watch.yaml" in text
    assert "&lt;ada&gt;" in text
