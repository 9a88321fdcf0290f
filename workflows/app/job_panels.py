"""Panels of a job: its state, the stages, progress, what the agents changed, and how it ended.

Every function is pure; the numbers come as untyped JSON from the job's record, so each is looked up with care and
left out where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from hubmerge.errors import LoginError
from hubmerge.output.card import fetch_facts, of_last_run
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
    number_of,
    percent_text,
    time_text,
    when,
)
from workflows.app.job_statistics import statistics_panel
from workflows.app.job_steps import (
    EVALUATION_STAGES,
    STAGES,
    TERMINAL,
    log_panel,
    progress_panel,
    scores_left,
    stage_of,
    stage_track,
)
from workflows.app.panels import facts_grid, method_title, notice, problems_panel, table, warnings_panel
from workflows.app.service import JobView

_STATES = {
    "queued": ("Queued", "info"),
    "running": ("Running", "busy"),
    "cancelling": ("Cancelling", "warn"),
    "done": ("Done", "good"),
    "failed": ("Failed", "bad"),
    "cancelled": ("Cancelled", "dim"),
    "needs login": ("Needs login", "warn"),
}


def needs_login(view: JobView) -> bool:
    """Whether the job waits for, or failed for want of, its owner's sign-in."""
    if view.state == "queued":
        end = moment(view.signed_in_until)
        return end is not None and end <= datetime.now(UTC)
    return view.state == "failed" and (view.error or {}).get("code") in (LoginError.code, "E_SEAL")


def _shown_state(view: JobView) -> str:
    return "needs login" if needs_login(view) else view.state


def badge(state: str) -> Markup:
    label, kind = _STATES.get(state, (state, "info"))
    return el("span", label, cls=f"hm-badge hm-{kind}", data_state=state)


def job_header(view: JobView) -> Markup:
    """Target, state and the dates of a job."""
    facts = [
        ("Started by", view.user),
        *_subject(view),
        ("Submitted", when(view.created)),
    ]
    if view.started and (elapsed := _elapsed(view)) is not None:
        facts.append(("Took" if view.state in TERMINAL else "Running for", duration_text(elapsed)))
    if view.attempt > 1:
        facts.append(("Attempt", str(view.attempt)))
    if view.signed_in_until and view.state not in TERMINAL:
        facts.append(("Signed in until", time_text(view.signed_in_until)))
    return join(el("div", el("h1", view.target), badge(_shown_state(view)), cls="hm-title"), facts_grid(facts))


def _subject(view: JobView) -> list[tuple[str, str]]:
    if view.kind == "evaluate":
        return [("What", "Evaluation"), ("Suite", view.suite)]
    if view.kind == "diff":
        return [("What", "Comparison"), ("Visibility", "private" if view.private else "public")]
    return [("Method", _method_title(view.recipe)), ("Visibility", "private" if view.private else "public")]


def _elapsed(view: JobView) -> float | None:
    start, end = moment(view.started), moment(view.finished) or datetime.now(UTC)
    return (end - start).total_seconds() if start else None


def _method_title(recipe: Mapping[str, Any]) -> str:
    return method_title(str(recipe.get("method", "unknown")))


def outcome_panel(view: JobView, endpoint: str, verdict: Markup | None = None) -> Markup | None:
    """How the job ended: the repo with its verdict, or the reason why there is none; or that it cannot begin."""
    again = _again(view)
    if view.state == "queued" and needs_login(view):
        again = link(f"merge?job={quote(view.id, safe='')}", "Sign in and start it once more")
        sentence = f"The sign-in that it would act with ended at {time_text(view.signed_in_until)}."
        return notice("warn", "It needs your login", el("p", sentence), el("p", again, ": it keeps its place."))
    if view.state == "done" and view.result and view.kind == "evaluate":
        return _recorded(view, view.result)
    if view.kind == "diff" and view.models and view.state == "done":
        return notice("good", "Compared", el("p", link(diff_href(*view.models), "What the training changed")))
    if view.state == "done" and view.result:
        repo = str(view.result.get("repo") or view.target)
        commit = str(view.result.get("commit") or "")
        return notice(
            "good",
            "Published",
            el("p", link(model_href(repo, commit), repo), cls="hm-result"),
            verdict,
            where_next(view, endpoint, repo, commit),
            scorings_panel(view),
            _run_facts(view.result.get("run")),
        )
    if view.state == "failed":
        what = {"evaluate": "evaluation", "diff": "comparison"}.get(view.kind, "merge")
        return join(problems_panel(view.error or {}, f"The {what} failed"), el("p", again) if again else None)
    if view.state == "cancelled":
        return notice("info", "Cancelled", el("p", "Nothing was published."), el("p", again) if again else None)
    return None


def _again(view: JobView) -> Markup | None:
    """The way to the form with a merge's recipe."""
    return link(f"merge?job={quote(view.id, safe='')}", "Use this recipe again") if view.recipe else None


def where_next(view: JobView, endpoint: str, repo: str, commit: str) -> Markup:
    """Where a published model can be looked at, and what can be done with it."""
    return el(
        "ul",
        el("li", link(model_href(repo, commit), "Its page: scores, what changed, recipe and card")),
        el("li", link(f"{endpoint}/{quote(repo)}", "On the Hub: card and files")),
        el("li", link(f"leaderboard?q={quote(repo, safe='')}", "On the leaderboard")),
        el("li", link(f"merge?agent={quote(repo, safe='/')}", "Merge it with others")),
        el("li", again) if (again := _again(view)) else None,
        cls="hm-next-steps",
    )


_SCORING_WORDS = {
    "waiting": "not asked for yet",
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
        name = "This merge" if scoring.role == "merge" else f"{scoring.model}, {scoring.role}"
        rows.append(el("li", f"{name}: ", shown))
    done = all(scoring.state == "done" for scoring in view.evaluations)
    title = "Evaluated, and so are its parents" if done else "Evaluation, beside its parents"
    return el("div", el("h2", title), el("ul", *rows), scores_left(view), cls="hm-scorings")


def _run_facts(run: object) -> Markup | None:
    """What the merge took of time, memory, disk and network."""
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
    return el("details", el("summary", "What the merge took"), facts_grid(facts)) if facts else None


def _recorded(view: JobView, result: Mapping[str, Any]) -> Markup:
    """The scores by domain, and where they stand now."""
    scores = result.get("scores")
    known = [(k, v) for k, v in scores.items() if isinstance(v, int | float)] if isinstance(scores, Mapping) else []
    return notice(
        "good",
        "Recorded",
        facts_grid((str(domain), percent_text(float(value))) for domain, value in known) if known else None,
        el("p", link(model_href(view.target), "The model's page, with these scores")),
    )


def job_panel(view: JobView, endpoint: str, verdict: Markup | None = None) -> tuple[Markup, Markup, Markup]:
    """The three parts of a job's page: head with progress and outcome, warnings, statistics."""
    outcome = outcome_panel(view, endpoint, verdict)
    head = join(job_header(view), stage_track(view), progress_panel(view), outcome, log_panel(view))
    return head, join(warnings_panel(view.warnings)), join(statistics_panel(view))


def job_list(views: Sequence[JobView], mine: str | None = None, kept: Mapping[str, str] | None = None) -> Markup:
    """Jobs, newest first; evaluations stand with their merge where it is among them.

    `mine`: the visitor's name. `kept`: the skills that merges kept, by their job, where they are known.
    """
    grouped = {scoring.job for v in views for scoring in v.evaluations}
    rows = [
        (
            link(job_href(v.id), v.target),
            el("span", badge(_shown_state(v)), _way_on(v, mine)),
            _what(v),
            _where(v) or _scores_cell(v, (kept or {}).get(v.id)) or "",
            v.user,
            when(v.created),
        )
        for v in views
        if v.id not in grouped
    ]
    return table(("Model", "State", "What", "Where it is", "By", "Submitted"), rows)


def _way_on(view: JobView, mine: str | None) -> Markup | None:
    """The way to what its owner may do with a job."""
    if view.user != mine or view.state not in ("queued", "running", "failed", "cancelled"):
        return None
    words = "cancel" if view.state in ("queued", "running") else "try again"
    return join(" ", link(job_href(view.id), words, cls="hm-small"))


def _scores_cell(view: JobView, kept: str | None) -> Markup | None:
    """The skills that a merge kept, or how many of its evaluations are done, unfolding to each."""
    if not view.evaluations:
        return None
    done = sum(scoring.state == "done" for scoring in view.evaluations)
    said = f"kept {kept}" if kept else f"{done} of {len(view.evaluations)} evaluated"
    return el("details", el("summary", said), scorings_panel(view))


def _what(view: JobView) -> str:
    if view.kind == "merge":
        return _method_title(view.recipe)
    return f"Evaluation: {view.suite}" if view.kind == "evaluate" else "Comparison"


def _where(view: JobView) -> str:
    if view.state == "queued":
        return "" if view.queue_position is None else f"number {view.queue_position} in the queue"
    if view.state not in ("running", "cancelling"):
        return ""
    stage = stage_of(view)
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    share = f" {percent_text(min(done / total, 1.0))}" if done is not None and total else ""
    return {**STAGES, **EVALUATION_STAGES}.get(stage, stage) + share
