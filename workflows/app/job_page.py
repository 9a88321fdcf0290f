"""A job's page, `/job?id=ID`: state, stages, progress, statistics, outcome, recipe and the way to cancel.

Everything shown is read from the service, and a merge's verdict from the board, at every tick, so a reload or a restart
of the app brings the same page back. The timer stops once the job has ended and its scores are there, or when the job
cannot be shown at all. Numbers come as untyped JSON from the job's record, so each is looked up with care and left out
where it is missing.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import gradio as gr
from markupsafe import Markup

from hubmerge.board.source import DatasetBoard
from hubmerge.errors import HubmergeError, LoginError
from hubmerge.output.card import fetch_facts, of_last_run
from hubmerge.text.plain_yaml import dump_plain_yaml
from workflows.app.format import (
    bytes_text,
    diff_href,
    duration_text,
    el,
    job_href,
    join,
    link,
    model_href,
    moment,
    percent_text,
    time_text,
    when,
)
from workflows.app.frame import AT_ONCE, LOADING, PRIVATE, code_box, html
from workflows.app.job_statistics import statistics_panel
from workflows.app.job_steps import TERMINAL, is_under_way, log_panel, progress_panel, stage_track
from workflows.app.lanes import ASKING, Lanes
from workflows.app.model_panels import published_row, verdict_panel
from workflows.app.panels import facts_grid, fold, known_already, method_title, notice, problems_panel, warnings_panel
from workflows.app.session import for_visitor, signed_in, writer_of
from workflows.service import Service
from workflows.values import JobView, Visitor, number, number_of, table_of

POLL_S = 2.0
# a link that is shared, or opened again, started nothing
_SAID_ONCE = """() => {
  history.replaceState(history.state, "", location.pathname + location.search.replace(/&known=[^&]*/, ""));
}"""
BOARD_LAG_S = 60.0  # the board is looked at anew every half a minute


def job_page(demo: Any, service: Service, lanes: Lanes, board: DatasetBoard | None) -> None:
    job_id = gr.Textbox(value="", visible=False)
    head = html(LOADING, "job", card=True)
    with gr.Row(elem_classes="hm-actions"):
        cancel = gr.Button("Cancel this job", variant="stop", size="sm", visible=False, elem_id="cancel", scale=0)
        retry = gr.Button("Try it again", variant="primary", size="sm", visible=False, elem_id="retry", scale=0)
    answer = html(name="answer")
    warnings = html(name="job-warnings")
    statistics = html(name="statistics", card=True, visible=False)
    with gr.Accordion(
        "Recipe", open=False, visible=False, elem_classes="hm-card", elem_id="recipe-card"
    ) as recipe_card:
        recipe = code_box(label="As YAML", elem_id="recipe")
    timer = gr.Timer(POLL_S, active=False)
    shown = [head, warnings, statistics, cancel, retry, timer]

    def opening(request: gr.Request, visitor: Visitor | None) -> list[Any]:
        named = str(request.query_params.get("id") or "")[:200]
        nothing = [gr.skip(), gr.update(visible=False)]
        if not named:
            hint = notice("info", "No job is named", el("p", "Open one from ", link("activity", "your jobs"), "."))
            return ["", "", *nothing, *_stopped(hint)]
        try:
            view = service.job(named, visitor)
        except HubmergeError as error:
            return [named, "", *nothing, *_refused(error)]
        if view.recipe:  # evaluations have none
            nothing = [dump_plain_yaml(dict(view.recipe)), gr.update(visible=True)]
        found = known_already() if request.query_params.get("known") else ""
        return [named, found, *nothing, *_shown(view, visitor, service.endpoint, board)]

    def tick(visitor: Visitor | None, job: str) -> list[Any]:
        try:
            return _shown(service.job(job, visitor), visitor, service.endpoint, board)
        except HubmergeError as error:
            return [gr.skip()] * 6 if error.retryable else _refused(error)

    def cancelling(visitor: Visitor | None, job: str) -> list[Any]:
        try:
            view = service.cancel(job, signed_in(visitor, "cancel a job"))
        except HubmergeError as error:
            return [problems_panel(error, "It was not cancelled"), *[gr.skip()] * 6]
        return ["", *_shown(view, visitor, service.endpoint)]

    def retrying(visitor: Visitor | None, job: str) -> list[Any]:
        view = service.retry(job, writer_of(service, visitor, "try a job again"))
        return ["", *_shown(view, visitor, service.endpoint)]

    def not_tried(error: HubmergeError) -> list[Any]:
        return [problems_panel(error, "It was not tried again"), *[gr.skip()] * 6]

    opened = demo.load(for_visitor(opening), None, [job_id, answer, recipe, recipe_card, *shown], **AT_ONCE)
    opened.then(None, None, None, js=_SAID_ONCE, **AT_ONCE)
    timer.tick(for_visitor(tick), [job_id], shown, **AT_ONCE)
    cancel.click(for_visitor(cancelling), [job_id], [answer, *shown], concurrency_limit=4, **PRIVATE)
    retry.click(lanes.asking(for_visitor(retrying), not_tried), [job_id], [answer, *shown], **ASKING, **PRIVATE)


def _awaits_verdict(view: JobView) -> bool:
    """Whether the last score is so new that the board may not have it yet."""
    if any(scoring.state != "done" for scoring in view.evaluations):
        return False
    ends = [end for scoring in view.evaluations if (end := moment(scoring.finished))]
    return bool(ends) and (datetime.now(UTC) - max(ends)).total_seconds() < BOARD_LAG_S


def _shown(view: JobView, visitor: Visitor | None, endpoint: str, board: DatasetBoard | None = None) -> list[Any]:
    row = published_row(view, board)
    verdict = verdict_panel(row) if row else None
    if verdict is not None:
        view = settled(view)
    head, warnings, statistics = job_panel(view, endpoint, verdict)
    owner = visitor is not None and visitor.name == view.user
    return [
        head,
        warnings,
        gr.update(value=statistics, visible=bool(statistics)),
        gr.update(visible=owner and view.state in ("queued", "running")),
        gr.update(visible=owner and view.state in ("failed", "cancelled")),
        gr.update(active=is_under_way(view) or (verdict is None and _awaits_verdict(view))),
    ]


def _refused(error: HubmergeError) -> list[Any]:
    hint = el("p", "A job with a private result is shown to its owner only.", cls="hm-dim")
    return _stopped(join(problems_panel(error, "This job cannot be shown"), hint))


def _stopped(message: Any) -> list[Any]:
    head = join(el("h1", "Job", cls="hm-unseen"), message)
    return [head, "", *[gr.update(visible=False)] * 3, gr.update(active=False)]


_STATES = {
    "queued": ("Queued", "info"),
    "running": ("Running", "busy"),
    "cancelling": ("Cancelling", "warn"),
    "published": ("Published", "good"),
    "done": ("Done", "good"),
    "failed": ("Failed", "bad"),
    "cancelled": ("Cancelled", "dim"),
    "needs login": ("Needs login", "warn"),
}


def settled(view: JobView) -> JobView:
    """A job whose verdict the board has: it has every parent, also one whose evaluation was no job here."""
    known = (replace(s, state="done") if s.state == "waiting" else s for s in view.evaluations)
    return replace(view, evaluations=tuple(known))


def needs_login(view: JobView) -> bool:
    """Whether the job waits for, or failed for want of, its owner's sign-in."""
    if view.state == "queued":
        end = moment(view.signed_in_until)
        return end is not None and end <= datetime.now(UTC)
    return view.state == "failed" and (view.error or {}).get("code") == LoginError.code


def shown_state(view: JobView) -> str:
    """The state as a badge has it; a merge is not done while its scores or a parent's are to come."""
    if view.state == "done" and is_under_way(view):
        return "published"
    return "needs login" if needs_login(view) else view.state


def badge(state: str) -> Markup:
    label, kind = _STATES.get(state, (state, "info"))
    return el("span", label, cls=f"hm-badge hm-{kind}", data_state=state)


def job_header(view: JobView) -> Markup:
    visibility = ("Visibility", "private" if view.private else "public")
    if view.kind == "evaluate":
        subject = [("What", "Evaluation"), ("Suite", view.suite)]
    elif view.kind == "diff":
        subject = [("What", "Comparison"), visibility]
    else:
        subject = [("Method", method_title(str(view.recipe.get("method", "unknown")))), visibility]
    facts = [("Started by", view.user), *subject, ("Submitted", when(view.created))]
    if view.state != "queued" and (begun := moment(view.started)):
        seconds = ((moment(view.finished) or datetime.now(UTC)) - begun).total_seconds()
        facts.append(("Took" if view.state in TERMINAL else "Running for", duration_text(seconds)))
    if view.attempt > 1:
        facts.append(("Attempt", str(view.attempt)))
    if view.signed_in_until and view.state not in TERMINAL:
        facts.append(("Signed in until", time_text(view.signed_in_until)))
    return join(el("div", el("h1", view.target), badge(shown_state(view)), cls="hm-title"), facts_grid(facts))


def outcome_panel(view: JobView, endpoint: str, verdict: Markup | None = None) -> Markup | None:
    """How the job ended: the repo with its verdict, or the reason why there is none; or that it cannot begin."""
    to_form = f"merge?job={quote(view.id, safe='')}"
    again = link(to_form, "Use this recipe again") if view.recipe else None
    if view.state == "queued" and needs_login(view):
        again = link(to_form, "Sign in and start it once more")
        sentence = f"The sign-in that it would act with ended at {time_text(view.signed_in_until)}."
        return notice("warn", "It needs your login", el("p", sentence), el("p", again, ": it keeps its place."))
    if view.state == "done" and view.result and view.kind == "evaluate":
        scores = table_of(view.result, "scores").items()
        known = [(str(k), percent_text(score)) for k, v in scores if (score := number(v)) is not None]
        page = el("p", link(model_href(view.target), "The model's page, with these scores"))
        return notice("good", "Recorded", facts_grid(known) if known else None, page)
    if view.kind == "diff" and len(view.models) == 2 and view.state == "done":
        return notice("good", "Compared", el("p", link(diff_href(*view.models), "What the training changed")))
    if view.state == "done" and view.result:
        repo = str(view.result.get("repo") or view.target)
        commit = str(view.result.get("commit") or "")
        ways = (
            link(model_href(repo, commit), "Its page: scores, how to use it, what changed, recipe and card"),
            link(f"{endpoint}/{quote(repo)}", "On the Hub: card and files"),
            link(f"leaderboard?q={quote(repo, safe='')}", "On the leaderboard") if view.evaluations else None,
            link(f"merge?agent={quote(repo, safe='/')}", "Merge it with others"),
            again,
        )
        return notice(
            "good",
            "Published",
            el("p", link(model_href(repo, commit), repo), cls="hm-result"),
            verdict,
            el("ul", *(el("li", way) for way in ways if way), cls="hm-next-steps"),
            scorings_panel(view),
            _run_facts(view.result.get("run")),
        )
    if view.state == "failed":
        what = {"evaluate": "evaluation", "diff": "comparison"}.get(view.kind, "merge")
        return join(problems_panel(view.error or {}, f"The {what} failed"), el("p", again) if again else None)
    if view.state == "cancelled":
        told = el("p", "Nothing was published. A repo that was made for it is empty.")
        return notice("info", "Cancelled", told if view.kind == "merge" else None, el("p", again) if again else None)
    return None


_SCORING_WORDS = {
    "waiting": "will be asked for within minutes",
    "queued": "waits for its turn",
    "running": "under way",
    "cancelling": "is being cancelled",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}


def scorings_panel(view: JobView) -> Markup | None:
    """The evaluations of a merge and of its parents, each with its job."""
    if not view.evaluations:
        return None
    rows = []
    for scoring in view.evaluations:
        words = _SCORING_WORDS.get(scoring.state, scoring.state)
        if scoring.place is not None:
            words += f", number {scoring.place} in the queue"
        shown = link(job_href(scoring.job), words) if scoring.job else words
        name = "This merge" if scoring.role == "merge" else f"{scoring.model} ({scoring.role})"
        rows.append(el("li", f"{name}: ", shown))
    done = all(scoring.state == "done" for scoring in view.evaluations)
    title = "Evaluated, and so are its parents" if done else "Evaluation, beside its parents"
    return el("div", el("h2", title), el("ul", *rows), cls="hm-scorings")


def _run_facts(run: object) -> Markup | None:
    if not isinstance(run, Mapping):
        return None
    facts: list[tuple[str, str]] = []
    if (seconds := number_of(run, "seconds")) is not None:
        took = duration_text(seconds) if seconds >= 0.5 else "under 1 s"
        facts.append(("Merged in", took + of_last_run(run)))
    for key, name in (("peak_rss_bytes", "Memory at its peak"), ("disk_high_water_bytes", "Disk at its peak")):
        if (amount := number_of(run, key)) is not None:
            facts.append((name, bytes_text(amount)))
    fetch = run.get("fetch")
    if isinstance(fetch, Mapping):
        facts += fetch_facts(fetch)
    return fold("What the merge took", facts_grid(facts)) if facts else None


def job_panel(view: JobView, endpoint: str, verdict: Markup | None = None) -> tuple[Markup, Markup, Markup]:
    """The three parts of a job's page: head with progress and outcome, warnings, statistics."""
    outcome = outcome_panel(view, endpoint, verdict)
    head = join(job_header(view), stage_track(view), progress_panel(view), outcome, log_panel(view))
    return head, join(warnings_panel(view.warnings)), join(statistics_panel(view))
