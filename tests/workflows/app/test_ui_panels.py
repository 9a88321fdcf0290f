"""The panels: numbers by hand, strangers' text escaped, and what is missing left out."""

import ast
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from job_helpers import NOWHERE, claim, new_job, service_of
from pages_fake import HOSTILE, STATISTICS, FakeService, job_view, model

from hubmerge.errors import HubUnavailableError, IncompatibleError, LoginError, Problem, RecipeError
from hubmerge.output.figures import SHARE_COLORS
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.text.markdown import short_count
from workflows.app.format import bytes_text, duration_text, el, link, percent_text, time_text, when
from workflows.app.frame import CSS
from workflows.app.job_page import job_panel
from workflows.app.job_statistics import statistics_panel
from workflows.app.job_steps import progress_panel, stage_track
from workflows.app.jobs_page import _listing as activity
from workflows.app.jobs_page import job_list
from workflows.app.panels import _OF_A_TERMINAL, license_panel, on_the_web, plan_panel, problems_panel, warnings_panel
from workflows.app.session import signed_in
from workflows.app.signin import sign_in_link
from workflows.values import JobView, LogLine, Scoring, Visitor

RECIPE = {"base": "zoo/base", "agents": ["zoo/math-agent", "secret/gated-agent"], "method": "ram"}


HUB = "https://hub.example"


def head_of(state: str = "queued", **changes: Any) -> str:
    """The first part of a job's page: header, stages, progress and outcome."""
    return str(job_panel(job_view(state=state, **changes), HUB)[0])


def stages(panel: object) -> dict[str, str]:
    """Stage → its class."""
    items = str(panel).split("<li ")[1:]
    return {i.split('data-stage="')[1].split('"')[0]: i.split('class="hm-')[1].split('"')[0] for i in items}


def test_text_and_attributes_are_escaped():
    assert el("p", HOSTILE).startswith("<p>&lt;img src=x onerror=&#34;")
    assert el("p", "\u202e0.2-ehcapa") == "<p>\\u202e0.2-ehcapa</p>"  # which would read as another license
    assert el("p", "x", title='"><script>') == '<p title="&#34;&gt;&lt;script&gt;">x</p>'


def test_a_link_leads_only_to_this_site_or_the_web():
    for href in ("javascript:alert(1)", "data:text/html,x", "//evil.example/x"):
        assert link(href, "text") == "text"


def test_numbers_are_shown_with_three_digits_and_their_unit():
    sizes = ["0 B", "999 B", "1.00 kB", "65.7 kB", "1.00 MB", "15.0 GB"]
    assert [bytes_text(n) for n in (0, 999, 1000, 65_664, 999_600, 14_960_000_000)] == sizes
    assert [short_count(n) for n in (7, 1_543_714_304, 494_032_768)] == ["7", "1.54 B", "494 M"]
    assert [duration_text(s) for s in (0.4, 65, 3725)] == ["0 s", "1 min 5 s", "1 h 2 min"]
    assert [percent_text(p) for p in (0, 0.0001, 0.1234, 0.9999, 1)] == ["0.0%", "< 0.1%", "12.3%", "> 99.9%", "100.0%"]
    assert time_text("2026-01-31T15:05:00+01:00") == "2026-01-31 14:05 UTC"
    assert time_text("soon") == "unknown"


def test_a_time_is_told_by_its_distance_and_exactly_on_hovering_or_as_a_date():
    for seconds, said in (
        (-20, "in less than a minute"),
        (-250, "in 4 minutes"),
        (20, "just now"),
        (70, "1 minute ago"),
        (3599, "59 minutes ago"),
        (7300, "2 hours ago"),
        (86_400 * 29.5, "29 days ago"),
    ):
        then = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
        told = str(when(then))
        assert f">{said}</time>" in told
        assert f'title="{time_text(then)}"' in told
    assert ">2026-01-31</time>" in str(when("2026-01-31T15:05:00+01:00"))
    assert str(when("<b>")) == "unknown"


def test_who_has_nothing_to_change_is_not_told_to_change_something():
    away = [Problem("E_HUB", "the Hub answered with an error", name, next_step="Try again later.") for name in "ab"]
    panel = problems_panel(HubUnavailableError("away", problems=away))
    assert "<strong>Not now</strong>" in panel
    assert "This may pass; try the same again later." in panel
    assert "must change first" not in panel
    assert "<strong>One thing must change first</strong>" in problems_panel(IncompatibleError("no"))


def test_a_plan_tells_sizes_licenses_and_access():
    panel = plan_panel(FakeService().inspect(RECIPE, None), HUB)
    # 512·64 + 64 elements of two bytes, in three models
    assert "32.8 K in 2 tensors" in panel
    assert "197 kB" in panel  # 3 · 65,728 bytes to download
    assert f"https://hub.example/zoo/base/tree/{'a' * 40}" in panel
    assert "License: your choice is needed" in panel  # TRL's "license"
    assert "Gated or private: secret/gated-agent." in panel
    agreed = license_panel([model("a/b", "a", license="mit"), model("a/c", "b", license="apache-2.0")])
    assert "<strong>apache-2.0</strong>" in agreed


@pytest.mark.parametrize(
    ("state", "stage", "passed", "kind"),
    [("failed", "download", 2, "broken"), ("queued", "resolve", 0, "current"), ("done", "publish", 7, "")],
)
def test_the_stages_of_a_job_are_marked_as_passed_as_where_it_stands_and_as_ahead(state, stage, passed, kind):
    marked = stages(stage_track(job_view(state=state, stage=stage)))
    assert list(marked) == ["queued", "resolve", "download", "probe", "merge", "card", "publish"]
    assert list(marked.values()) == (["passed"] * passed + [kind] + ["ahead"] * 7)[:7]


def test_only_methods_with_statistics_measure_and_only_a_resumed_job_verifies():
    recipe = recipe_from_dict({**RECIPE, "method": "linear"}).to_dict()
    assert "probe" not in stages(stage_track(job_view(recipe=recipe)))
    progress = {"stage": "verify", "done": 25e9, "total": 100e9, "unit": "B", "per_second": 5e9}
    view = job_view(state="running", stage="verify", progress=progress)
    marked = stages(stage_track(view))
    assert [name for name in marked if marked[name] == "current"] == ["verify"]
    assert marked["download"] == "ahead"
    assert "25.0 GB of 100 GB · 5.00 GB/s · about 15 s left" in job_panel(view, HUB)[0]
    assert "Check 25.0%" in job_list([view])


def test_progress_counts_things_with_one_unit_and_tells_no_speed_of_a_fraction():
    progress = {"stage": "compile", "done": 1, "total": 3, "unit": "parts", "per_second": 0.034}
    head = head_of("running", stage="compile", progress=progress)
    assert "<span>1 of 3 parts · about 59 s left in this step</span>" in head  # 2 / 0.034 = 58.8
    assert "It compiles what every merge on this machine needs, once; later merges skip this." in head
    progress = {"stage": "generate", "done": 1500, "total": 3000, "unit": "prompts", "per_second": 25.0}
    head = head_of("running", stage="merge", progress=progress)
    assert "1.50 K of 3.00 K prompts · 25 prompts/s · about 1 min 0 s left in this step" in head


def test_statistics_are_shown_to_scale_as_soon_as_they_are_known():
    panel = job_panel(job_view(state="running", stage="merge", statistics=STATISTICS), HUB)[2]
    assert "494 M parameters counted so far" in panel
    assert "21.4%" in panel  # math-agent's density
    assert "nothing unique" in panel  # mem-agent shares everything
    columns = re.findall(r'data-label="([^"]* agents?)"', panel)  # which phones show, and no title
    assert columns == ["no agent", "1 agent", "2 agents", "3 agents"]
    widths = {name: float(width) for name, width in re.findall(r'hm-part hm-(\w+)" style="width:([\d.]+)%', panel)}
    assert widths == {name: pytest.approx(100 * share) for name, share in STATISTICS["shares"].items()}
    assert "none: 62.0%" in panel  # what a screen reader says of the bar
    assert job_panel(job_view(state="running"), "")[2] == ""
    for values in ({}, {"elements": 5, "agents": [{}], "shares": {"private": "x"}}):  # half there
        job_panel(job_view(state="running", statistics=values, progress={"done": "x", "total": None}), "")


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, 10**400, [3, None, [1]], {"x": [1]}], ids=lambda v: str(v)[:9])
def test_a_job_s_page_and_line_show_whatever_its_record_holds(store, value):
    """The store takes any JSON as what a job is about and what came of it."""
    service, ann = service_of(NOWHERE, store, suite="zoo"), Visitor("ann", "t", ("ann",))
    recipe = {"base": f"zoo/base@{'b' * 40}", "agents": ["zoo/a"], "method": "ram_plus", "parameters": {"r": 0.1}}
    whole = {"recipe": recipe, "target": "ann/x", "warnings": [], "predicted_s": 9.0, "suite": "zoo", "license": "mit"}
    ended = {"repo": "ann/x", "commit": "a" * 40, "run": {"seconds": 3.0, "fetch": {}}}
    records: list[tuple[str, Any, Any]] = [("merge", {**whole, key: value}, ended) for key in whole]
    records += [("merge", {**whole, "recipe": {**recipe, key: value}}, ended) for key in recipe]
    records += [("merge", whole, {**ended, key: value}) for key in ended]
    records += [("merge", whole, {**ended, "run": {"seconds": value, "fetch": value}})]
    records += [("evaluate", {"model": value, "suite": value}, {"scores": told}) for told in (value, {"math": value})]
    records += [("diff", {"base": value}, {"x": value})]
    for number, (kind, payload, result) in enumerate(records):
        job = new_job(str(number), kind=kind, payload=payload)
        store.submit(job)
        for state in ("queued", "running", "done"):
            if state == "running":
                fence = claim(store).fence
                progress = {"done": 1, "total": value or 1e300, "per_second": 1e-300, "unit": "B"}
                store.set_progress(job.id, fence, "merge", progress)
            elif state == "done":
                store.finish(job.id, fence, result)
            view = service.job(job.id, ann)
            assert "data-state=" in job_list([view])
            assert "hm-stages" in job_panel(view, HUB)[0]


def test_text_of_strangers_stays_text_in_every_field_of_a_job():
    statistics = {**STATISTICS, "agents": [{"agent": HOSTILE, "density": 0.1}], "pairs": [{"agents": [HOSTILE]}]}
    problem = {"code": HOSTILE, "what": HOSTILE, "where": HOSTILE, "got": HOSTILE, "next_step": HOSTILE}
    texts = {"user": HOSTILE, "state": HOSTILE, "stage": HOSTILE, "target": HOSTILE, "created": HOSTILE}
    view = job_view(
        **{**texts, "recipe": {"method": HOSTILE}, "statistics": statistics, "warnings": (HOSTILE,), "started": HOSTILE}
    )
    failed = job_view(**{**texts, "state": "failed"}, error={"problems": [problem], "message": HOSTILE})
    run = {"seconds": HOSTILE, "peak_rss_bytes": HOSTILE, HOSTILE: HOSTILE, "fetch": {"bytes": HOSTILE}}
    result = {"repo": HOSTILE, "url": HOSTILE, "commit": HOSTILE, "run": run}
    done = job_view(**{**texts, "state": "done"}, result=result)
    odd = job_view(**{**texts, "state": "done"}, result={**result, "run": HOSTILE})
    for shown in (view, failed, done, odd):
        html = "".join(job_panel(shown, HUB)) + job_list([shown])
        assert "<img" not in html
        assert 'href="javascript' not in html


def test_a_finished_merge_says_what_it_took_of_disk_and_network():
    fetch = {"bytes": 346_200_000, "shards": 20, "hits": 12, "high_water_bytes": 68_000_000, "budget_bytes": 72_000_000}
    run = {"seconds": 75.0, "peak_rss_bytes": 281_000_000, "disk_high_water_bytes": 122_000_000, "fetch": fetch}
    head = head_of("done", result={"repo": "ada/merged", "commit": "a" * 40, "run": {**run, "resumed": True}})
    for text in ("281 MB", "122 MB", "346 MB, 20 shards whole", "1 min 15 s, the last run of a resumed merge"):
        assert text in head
    assert "Disk at its peak" not in head_of("done", result={"repo": "ada/merged"})


def test_an_evaluation_shows_its_suite_its_own_stages_and_its_scores():
    view = job_view(
        kind="evaluate", suite="zoo", target="zoo/base", recipe={}, state="done", stage="publish",
        result={"scores": {"math": 0.302, "bad": "<b>x</b>"}},
    )  # fmt: skip
    head, _, _ = job_panel(view, HUB)
    for told in ("Evaluation", "30.2", "Answer", "model?model=zoo/base"):
        assert told in head
    assert "<b>x</b>" not in head
    assert "The evaluation failed" in head_of("failed", kind="evaluate", recipe={}, error={"message": "no"})
    assert "Evaluation: zoo" in job_list([view])


def test_a_job_says_until_when_it_is_signed_in_and_that_it_needs_login_after_that():
    past, future = "2026-01-31T14:05:00+00:00", "2999-01-31T14:05:00+00:00"
    waiting = head_of(signed_in_until=future)
    assert "Signed in until</dt><dd>2999-01-31 14:05 UTC" in waiting
    assert "Needs login" not in waiting
    ended = job_view(signed_in_until=past)
    shown = job_panel(ended, HUB)[0]
    assert "Needs login" in shown
    assert f'href="merge?job={ended.id}"' in shown
    assert "Needs login" in job_list([ended])
    expired = {"code": "E_LOGIN", "message": "needs login: its sign-in has expired"}
    assert "Needs login" in head_of("failed", error=expired)
    assert "Needs login" not in head_of("running", signed_in_until=past)  # it holds its token, and the Hub will say


def test_a_job_that_is_tried_again_says_what_went_wrong_and_not_that_it_runs():
    problem = {"code": "E_HUB", "what": "the Hub cannot be reached", "where": f"zoo/base@{'a' * 40}"}
    began = "2026-01-31T14:05:00+00:00"
    error = {"code": "E_HUB", "message": "", "problems": [problem], "retryable": True}
    head = head_of("queued", attempt=2, started=began, error=error)
    assert f"zoo/base@{'a' * 12}: the Hub cannot be reached" in head
    assert "tried again by itself" in head
    assert "Running for" not in head
    assert "Waiting for its turn" in head_of("queued")


def test_a_job_draws_a_bar_for_each_layer_and_agent():
    layers = {"0": [0.1, 0.2, 0.4], "1": [0.3, 0.0, 0.4], "2": ["x", 7, float("nan")]}
    shown = str(statistics_panel(job_view(state="running", statistics={**STATISTICS, "layers": layers})))
    assert shown.count('class="hm-layer-bars"') == 3
    assert shown.count('<i style="height:100.0%"') == 2  # 0.4 is the most
    assert "10.0% to 30.0%" in shown
    for none in ({"0": [0.1, 0.2, 0.4]}, [], {"0": 3, "1": None}):
        assert "hm-layer-bars" not in str(statistics_panel(job_view(statistics={**STATISTICS, "layers": none})))


def test_the_shares_have_the_same_colours_in_the_app_and_in_the_card():
    for name, color in SHARE_COLORS.items():
        assert f"--hm-{name}: {color}" in CSS


BEGUN = datetime(2026, 1, 31, 14, 5, tzinfo=UTC)
HALF_A_GIGABYTE = {"done": 100e6, "total": 500e6, "unit": "B", "per_second": 10e6, "at": BEGUN.isoformat()}


def left_of(view: JobView, seconds: float) -> str:
    """What is said of its progress so many seconds after it began."""
    return str(progress_panel(view, BEGUN + timedelta(seconds=seconds)))


def test_what_is_left_of_a_step_goes_down_between_two_reports():
    view = job_view(state="running", stage="merge", progress=HALF_A_GIGABYTE)
    assert "about 40 s left" in left_of(view, 0)
    assert "about 25 s left" in left_of(view, 15)
    assert "almost done" in left_of(view, 39.5)
    assert "almost done" not in left_of(view, 90)  # a fifth of it is done, and nothing tells more
    assert "left in this step" not in left_of(view, 90)


def test_a_step_that_tells_no_progress_says_how_long_it_usually_takes():
    log = (LogLine(BEGUN.isoformat(), "stage", stage="compile"),)
    view = job_view(state="running", stage="compile", progress={"done": 0, "total": 1}, log=log, typical_s=17.0)
    assert "5 s so far; it usually takes about 17 s" in left_of(view, 5)
    assert "0.0%" not in left_of(view, 5)


def test_what_is_left_of_the_whole_job_is_the_step_and_what_followed_it_or_is_predicted_to_follow():
    view = job_view(state="running", stage="merge", progress=HALF_A_GIGABYTE, after_s=33.0)
    assert "About 2 min left until it is published." in left_of(view, 0)  # 40 s and 33 s
    assert "About 35 s left until it is published." in left_of(view, 38)
    assert "left until" not in left_of(replace(view, after_s=None), 0)  # the first job of all
    log = (LogLine(BEGUN.isoformat(), "stage", stage="download"),)
    first = job_view(state="running", stage="download", log=log, typical_s=10.0, after_s=3.0, predicted_s=600.0)
    assert "About 11 min left" in left_of(first, 4)  # a larger model than those of earlier jobs
    assert "left until" not in left_of(first, 11)  # longer than it usually takes
    assert "About 10 s left" in left_of(replace(first, stage="merge"), 4)


def test_a_job_that_waits_says_its_place_and_when_it_starts():
    said = left_of(job_view(queue_position=3, typical_s=125.0), 0)
    assert "2 jobs are ahead of it. It starts in about 2 min 5 s, going by earlier jobs." in said
    assert "It is next." in left_of(job_view(queue_position=1), 0)


def test_the_log_tells_steps_attempts_and_warnings_in_words_and_escapes_them():
    told: list[tuple[int, str, dict[str, Any]]] = [
        (1, "claimed", {"attempt": 1}),
        (2, "stage", {"stage": "resolve"}),
        (3, "warning", {"text": HOSTILE}),
        (67, "stage", {"stage": "merge"}),
        (70, "claimed", {"attempt": 2}),
    ]
    log = tuple(LogLine((BEGUN + timedelta(seconds=s)).isoformat(), kind, **more) for s, kind, more in told)
    head = head_of("running", log=log)
    assert "It reads which files the models have" in head
    assert ">1 min 5 s<" in head  # reading, the warning within it included
    assert "It began again, attempt 2." in head
    assert "<img" not in head
    begun = f"{BEGUN + timedelta(seconds=1):%H:%M:%S}</time>"
    assert f">{begun}" in head
    overnight = (*log, LogLine((BEGUN + timedelta(days=1)).isoformat(), "done"))
    assert f">{BEGUN:%Y-%m-%d} {begun}" in head_of("running", log=overnight)


SCORINGS = (
    Scoring("ada/three-in-one", "a" * 40, "merge", "2" * 64, "done"),
    Scoring("zoo/base", "b" * 40, "base", "3" * 64, "running"),
    Scoring("zoo/math-agent", "c" * 40, "agent"),
)


def test_a_published_merge_leads_to_its_page_the_hub_the_board_and_its_evaluations():
    result = {"repo": "ada/three-in-one", "commit": "a" * 40}
    view = job_view(state="done", stage="commit", result=result, evaluations=SCORINGS)
    head, _, _ = job_panel(view, HUB)
    of_hub, of_board = "https://hub.example/ada/three-in-one", "leaderboard?"
    jobs = (f"job?id={'2' * 64}", f"job?id={'3' * 64}")
    for address in (f"model?model=ada/three-in-one&amp;sha={'a' * 40}", of_hub, of_board, "merge?agent=ada/", *jobs):
        assert f'href="{address}' in head
    assert of_board not in head_of("done", result=result)  # of a merge that is not evaluated
    assert "will be asked for within minutes" in head
    marked = stages(stage_track(view))
    assert (marked["publish"], marked["evaluated"], marked["parents"]) == ("passed", "passed", "current")


def test_an_evaluation_that_waits_says_its_place():
    agent = replace(SCORINGS[2], job="4" * 64, state="queued", place=1)
    view = job_view(state="done", result={"repo": "a/b"}, evaluations=(*SCORINGS[:2], agent))
    assert "number 1 in the queue" in job_panel(view, HUB)[0]


def test_the_list_groups_evaluations_below_their_merge_and_offers_the_owner_alone_to_go_on():
    merge = job_view(state="done", result={"repo": "ada/three-in-one"}, evaluations=SCORINGS)
    evaluation = job_view("2" * 64, kind="evaluate", state="done", recipe={}, suite="zoo")
    failed = job_view("4" * 64, state="failed", error={"problems": [{"what": "a tensor is missing"}]})
    listed = str(job_list([merge, evaluation, failed], "ada"))
    for told in ("Published", "a tensor is missing", "1 of 3 evaluated", "try again"):  # not done before its scores
        assert told in listed
    assert listed.count("<tr>") == 1 + 2
    assert "try again" not in str(job_list([failed], "bob"))


def test_who_sees_a_merge_that_failed_or_was_cancelled_can_use_its_recipe_again():
    for state in ("failed", "cancelled"):
        assert f'href="merge?job={"1" * 64}"' in head_of(state)
    assert "repo that was made" in head_of("cancelled")
    comparison = head_of("cancelled", kind="diff", recipe={})
    assert ("recipe" in comparison, "repo that was made" in comparison) == (False, False)


def test_code_in_a_message_is_shown_as_code_and_no_page_shows_its_backticks():
    error = RecipeError("no `base`", expected="`a`", got="`<b>` and a lone `", next_step="Use `weight`.")
    panel = str(problems_panel(error))
    code = ("no <code>base</code>", "<code>a</code>", "<code>&lt;b&gt;</code> and a lone `", "Use <code>weight</code>")
    for shown in (*code, "E_RECIPE"):
        assert shown in panel
    told = "`ignore`: 'lm_head*' matches no tensor"
    assert "<code>ignore</code>: &#39;lm_head*&#39; matches no tensor" in str(warnings_panel([told]))
    assert "<code>ignore</code>" in head_of("running", log=(LogLine(BEGUN.isoformat(), "warning", text=told),))


def test_who_is_not_signed_in_is_told_to_sign_in_on_a_page_and_as_a_program_to_send_a_token():
    with pytest.raises(LoginError) as refused:
        signed_in(None, "start a merge")
    assert "a program sends its token (Client(…, oauth_token=…))." in str(refused.value)
    panel = str(problems_panel(refused.value))
    assert f'<a href="{sign_in_link()}">Sign in with the Hub and try again.</a>' in panel
    assert "program" not in panel


def _next_steps() -> dict[str, str]:
    """Every text that a `next_step=` of the library and the app can be, each with where it stands."""
    root = Path(__file__).resolve().parents[3]
    found = {}
    for folder in ("hubmerge", "workflows"):
        for path in (root / folder).rglob("*.py"):
            if "cli" in path.parts:
                continue  # a terminal's own
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "next_step":
                    for part in ast.walk(node.value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            found[part.value] = path.name
    return found


def test_no_page_speaks_of_options_commands_or_variables():
    steps = _next_steps()
    assert len(steps) > 100
    spoken = {step for step in steps if _OF_A_TERMINAL.search(step)}
    assert any("--license" in step for step in spoken)
    for step in steps:
        assert not _OF_A_TERMINAL.search(on_the_web(step)), steps[step]
        assert (on_the_web(step) == step) == (step not in spoken)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("Read the terms and state a license with --license.", "Read the parents' terms and choose a license."),
        ("Choose another name. Or raise --disk-budget.", "Choose another name."),
        ("Raise --disk-budget.", ""),
        ("Try again later.", "Try again later."),
    ],
)
def test_a_next_step_is_one_that_a_visitor_can_take(step, said):
    assert on_the_web(step) == said


@pytest.mark.parametrize(("jobs", "older"), [(3, False), (25, False), (26, True)])
def test_older_ones_stand_only_where_there_are_any(jobs, older):
    service = FakeService()
    service.put([job_view(f"{n:064d}", ticket=n) for n in range(1, jobs + 1)])
    for asked, visitor in (({"show": "all"}, None), ({"show": "mine"}, Visitor("ada", "token-of-ada"))):
        listed, _ = activity(service, None, asked, visitor)
        assert ("Older ones" in listed) == older
        if older:
            [before] = re.findall(r"before=(\d+)", listed)
            last, _ = activity(service, None, {**asked, "before": before}, visitor)
            assert "Older ones" not in last
