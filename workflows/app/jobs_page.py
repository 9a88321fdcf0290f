"""Activity, `/activity`: the visitor's own jobs, or with `?show=all` everybody's public ones, newest first, in pages.

`before` in the address names the last job of the page above. Every merge has the evaluations of it and of its parents
below it. The page refreshes while something on it is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from workflows.app.format import el, join, link
from workflows.app.job_panels import job_list
from workflows.app.job_steps import is_under_way
from workflows.app.model_panels import published_row
from workflows.app.panels import header, notice, problems_panel
from workflows.app.service import PAGE_JOBS, BoardSource, JobView, Service, Visitor
from workflows.app.session import visitor_of

POLL_S = 5.0


def jobs_page(demo: Any, service: Service, board: BoardSource | None) -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(header("Activity", "Merges, comparisons and evaluations, newest first."), js_on_load=None)
    asked = gr.JSON(value={}, visible=False)
    listing = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="jobs", elem_classes="hm-card")
    timer = gr.Timer(POLL_S, active=False)
    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    demo.load(_opening(service, board), None, [asked, listing, timer], **quiet)
    timer.tick(_ticking(service, board), [asked], [listing, timer], **quiet)


def _opening(service: Service, board: BoardSource | None) -> Callable[..., Any]:
    def opening(request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        query = request.query_params
        asked = {name: str(query[name])[:40] for name in ("show", "before") if name in query}
        return [asked, *_listing(service, board, asked, visitor_of(profile, token))]

    return opening


def _ticking(service: Service, board: BoardSource | None) -> Callable[..., Any]:
    def tick(asked: object, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        known = {str(k): str(v) for k, v in asked.items()} if isinstance(asked, dict) else {}
        return _listing(service, board, known, visitor_of(profile, token))

    return tick


def _listing(
    service: Service, board: BoardSource | None, asked: Mapping[str, str], visitor: Visitor | None
) -> list[Any]:
    everybody = asked.get("show") == "all" or (visitor is None and asked.get("show") != "mine")
    tabs = _tabs(everybody)
    if not everybody and visitor is None:
        nobody = notice("info", "Nobody is signed in", el("p", "Sign in to see your jobs."))
        return [join(tabs, nobody), gr.update(active=False)]
    try:
        views = _views(service, visitor, everybody, before_of(asked))
    except HubmergeError as error:
        return [join(tabs, problems_panel(error, "The jobs cannot be listed")), gr.update(active=error.retryable)]
    if not views:
        return [join(tabs, _nothing(everybody, asked)), gr.update(active=False)]
    mine = visitor.name if visitor else None
    try:
        # a full page may be the last one
        older = len(views) == PAGE_JOBS and bool(_views(service, visitor, everybody, views[-1].ticket))
    except HubmergeError:
        older = False
    rows = ((v.id, published_row(v, board)) for v in views)
    kept = {job: row.skills.text for job, row in rows if row and row.skills and row.skills.skills}
    listed = join(tabs, job_list(views, mine, kept), _older(views, everybody) if older else None)
    return [listed, gr.update(active=any(map(is_under_way, views)))]


def _views(service: Service, visitor: Visitor | None, everybody: bool, before: int | None) -> list[JobView]:
    if everybody or visitor is None:
        return service.public_jobs(before)
    return service.jobs(visitor, before)


def before_of(asked: Mapping[str, str]) -> int | None:
    """The ticket in the address; None where there is none, or none that a job could have."""
    text = asked.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 else None


def _tabs(everybody: bool) -> Any:
    def tab(href: str, title: str, shown: bool) -> Any:
        attributes = {"aria_current": "page"} if shown else {}
        return el("a", title, cls="hm-tab", href=href, **attributes)

    mine, public = tab("activity?show=mine", "Mine", not everybody), tab("activity?show=all", "Everybody's", everybody)
    return el("nav", mine, public, cls="hm-tabs", aria_label="Whose jobs")


def _nothing(everybody: bool, asked: Mapping[str, str]) -> Any:
    if "before" in asked:
        return notice("info", "Nothing older", el("p", link("activity" + ("?show=all" * everybody), "The newest")))
    start = el("p", link("merge", "Start a merge"), ".")
    return notice("info", "Nothing public yet" if everybody else "No jobs yet", start)


def _older(views: list[JobView], everybody: bool) -> Any:
    whose = "all" if everybody else "mine"
    return el("p", link(f"activity?show={whose}&before={views[-1].ticket}", "Older ones"), cls="hm-older")
