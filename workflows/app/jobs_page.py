"""Activity, `/activity`: the visitor's own jobs, or with `?show=all` everybody's public ones, newest first, in pages.

`before` in the address names the last job of the page above. Every merge has the evaluations of it and of its parents
below it. The page refreshes while something on it is under way.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import shorten
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.board.source import DatasetBoard
from hubmerge.errors import HubmergeError
from workflows.app.format import el, job_href, join, link, percent_text, when
from workflows.app.frame import AT_ONCE, LOADING, html
from workflows.app.job_page import badge, scorings_panel, settled, shown_state
from workflows.app.job_steps import EVALUATION_STAGES, STAGES, is_under_way, stage_of
from workflows.app.model_panels import published_row
from workflows.app.panels import fold, header, left_out_panel, method_title, notice, problems_panel, table, tabs
from workflows.app.session import for_visitor
from workflows.service import Service
from workflows.values import PAGE_JOBS, JobView, Visitor, number_of

POLL_S = 5.0


def jobs_page(demo: Any, service: Service, board: DatasetBoard | None) -> None:
    html(header("Activity", "Merges, comparisons and evaluations, newest first."))
    listing = html(LOADING, "jobs", card=True)
    timer = gr.Timer(POLL_S, active=False)

    def show(request: gr.Request, visitor: Visitor | None) -> list[Any]:
        query = request.query_params  # which gradio sends along with every event
        given = {name: str(query[name])[:40] for name in ("show", "before") if name in query}
        return _listing(service, board, given, visitor)

    demo.load(for_visitor(show), None, [listing, timer], **AT_ONCE)
    timer.tick(for_visitor(show), None, [listing, timer], **AT_ONCE)


def _listing(
    service: Service, board: DatasetBoard | None, asked: Mapping[str, str], visitor: Visitor | None
) -> list[Any]:
    everybody = asked.get("show") == "all" or (visitor is None and asked.get("show") != "mine")
    ways = (("Mine", "activity?show=mine", not everybody), ("Everybody's", "activity?show=all", everybody))
    wrong = []
    if asked.get("show", "mine") not in ("mine", "all"):
        wrong.append(f"Jobs can be shown as “mine” and “all”, not as “{asked['show']}”.")
    if "before" in asked and before_of(asked) is None:
        wrong.append(f"“{asked['before']}” is no place in the list.")
    above = join(left_out_panel(wrong), tabs("Whose jobs", ways))

    if not everybody and visitor is None:
        nobody = notice("info", "Nobody is signed in", el("p", "Sign in to see your jobs."))
        return [join(above, nobody), gr.update(active=False)]
    try:
        jobs = service.public_jobs if everybody or visitor is None else partial(service.jobs, visitor)
        found = jobs(before_of(asked), PAGE_JOBS + 1)
    except HubmergeError as error:
        return [join(above, problems_panel(error, "The jobs cannot be listed")), gr.update(active=error.retryable)]
    shown, more = found[:PAGE_JOBS], found[PAGE_JOBS:]
    if not shown:
        title, way = "Nothing public yet" if everybody else "No jobs yet", join(link("merge", "Start a merge"), ".")
        if "before" in asked:
            title, way = "Nothing older", link("activity" + ("?show=all" * everybody), "The newest")
        return [join(above, notice("info", title, el("p", way))), gr.update(active=False)]
    address = f"activity?show={'all' if everybody else 'mine'}&before={shown[-1].ticket}"
    older = el("p", link(address, "Older ones")) if more else None
    rows = ((v.id, published_row(v, board)) for v in shown)
    kept = {job: row.skills.text for job, row in rows if row and row.skills and row.skills.skills}
    shown = [settled(v) if v.id in kept else v for v in shown]
    listed = join(above, job_list(shown, visitor.name if visitor else None, kept), older)
    return [listed, gr.update(active=any(map(is_under_way, shown)))]


def before_of(asked: Mapping[str, str]) -> int | None:
    """The ticket in the address; None where there is none, or none that a job could have."""
    text = asked.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else None


def job_list(views: Sequence[JobView], mine: str | None = None, kept: Mapping[str, str] | None = None) -> Markup:
    """Jobs, newest first; evaluations stand with their merge where it is among them.

    `mine`: the visitor's name. `kept`: the skills that merges kept, by their job, where they are known.
    """
    grouped = {scoring.job for v in views for scoring in v.evaluations}
    ways = dict.fromkeys(("queued", "running"), "cancel") | dict.fromkeys(("failed", "cancelled"), "try again")
    rows = []
    for v in views:
        if v.id in grouped:
            continue
        way = (
            join(" ", link(job_href(v.id), ways[v.state], cls="hm-small")) if v.user == mine and v.state in ways else ""
        )
        what = f"Evaluation: {v.suite}" if v.kind == "evaluate" else "Comparison"
        if v.kind == "merge":
            what = method_title(str(v.recipe.get("method", "unknown")))
        progress: str | Markup = _where(v)
        if v.evaluations and not progress:
            done, skills = sum(scoring.state == "done" for scoring in v.evaluations), (kept or {}).get(v.id)
            said = f"kept {skills}" if skills else f"{done} of {len(v.evaluations)} evaluated"
            progress = fold(said, scorings_panel(v))
        state = el("span", badge(shown_state(v)), way)
        rows.append((link(job_href(v.id), v.target), state, what, progress, v.user, when(v.created)))
    return table(("Model", "State", "What", "Progress", "By", "Submitted"), rows)


def _where(view: JobView) -> str:
    if view.state == "queued":
        return "" if view.queue_position is None else f"number {view.queue_position} in the queue"
    if view.state == "failed":
        problem: Mapping[str, Any] = next(iter((view.error or {}).get("problems") or ()), {})
        return shorten(str(problem.get("what", "")), 100, placeholder=" …")
    if view.state not in ("running", "cancelling"):
        return ""
    stage = stage_of(view)
    done, total = number_of(view.progress, "done"), number_of(view.progress, "total")
    share = f" {percent_text(min(done / total, 1.0))}" if done is not None and total else ""
    return {**STAGES, **EVALUATION_STAGES}.get(stage, stage) + share
