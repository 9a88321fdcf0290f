"""Activity, `/activity`: the visitor's own jobs, newest first, refreshed while one of them is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from workflows.app.format import el, link
from workflows.app.job_panels import TERMINAL, job_list
from workflows.app.panels import header, notice, problems_panel
from workflows.app.service import Service
from workflows.app.session import visitor_of

POLL_S = 5.0


def jobs_page(demo: Any, service: Service) -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(header("Activity", "Every merge, comparison and evaluation of yours, newest first."), js_on_load=None)
    listing = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="jobs", elem_classes="hm-card")
    timer = gr.Timer(POLL_S, active=False)
    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    demo.load(_listing(service), None, [listing, timer], **quiet)
    timer.tick(_listing(service), None, [listing, timer], **quiet)


def _listing(service: Service) -> Callable[..., Any]:
    def show(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        visitor = visitor_of(profile, token)
        if visitor is None:
            return [
                notice("info", "Nobody is signed in", el("p", "Sign in to see your jobs.")),
                gr.update(active=False),
            ]
        try:
            views = service.jobs(visitor)
        except HubmergeError as error:
            return [problems_panel(error, "Your jobs cannot be listed"), gr.update(active=error.retryable)]
        if not views:
            start = notice("info", "No jobs yet", el("p", link("merge", "Start your first merge"), "."))
            return [start, gr.update(active=False)]
        return [job_list(views), gr.update(active=any(v.state not in TERMINAL for v in views))]

    return show
