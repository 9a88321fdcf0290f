"""A job's page, `/job?id=ID`: state, stages, progress, statistics, outcome, recipe and the way to cancel.

Everything shown is read from the service, and a merge's verdict from the board, at every tick, so a reload or a restart
of the app brings the same page back. The timer stops once the job has ended and its scores are there, or when the job
cannot be shown at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from hubmerge.plain_yaml import dump_plain_yaml
from workflows.app.format import el, join, link, moment
from workflows.app.frame import code_box
from workflows.app.job_panels import job_panel
from workflows.app.job_steps import is_under_way
from workflows.app.lanes import ASKING, Lanes
from workflows.app.model_panels import published_row, verdict_panel
from workflows.app.panels import notice, problems_panel
from workflows.app.service import BoardSource, JobView, Service, Visitor
from workflows.app.session import require_visitor, visitor_of, writer_of

POLL_S = 2.0
BOARD_LAG_S = 60.0  # the board is looked at anew every half a minute


def job_page(demo: Any, service: Service, lanes: Lanes, board: BoardSource | None) -> None:
    """Build the page in the current Blocks context."""
    job_id = gr.Textbox(value="", visible=False)
    head = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="job", elem_classes="hm-card")
    with gr.Row(elem_classes="hm-actions"):
        cancel = gr.Button("Cancel this job", variant="stop", size="sm", visible=False, elem_id="cancel", scale=0)
        retry = gr.Button("Try it again", variant="primary", size="sm", visible=False, elem_id="retry", scale=0)
    answer = gr.HTML("", js_on_load=None, elem_id="answer")
    warnings = gr.HTML("", js_on_load=None, elem_id="job-warnings")
    statistics = gr.HTML("", js_on_load=None, visible=False, elem_id="statistics", elem_classes="hm-card")
    recipe_card = gr.Accordion("Recipe", open=False, visible=False, elem_classes="hm-card", elem_id="recipe-card")
    with recipe_card:
        recipe = code_box(label="As YAML", elem_id="recipe")
    timer = gr.Timer(POLL_S, active=False)

    shown = [head, warnings, statistics, cancel, retry, timer]
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    demo.load(_opening(service, board), None, [job_id, recipe, recipe_card, *shown], queue=False, **quiet)
    timer.tick(_ticking(service, board), [job_id], shown, queue=False, **quiet)
    retrying = lanes.asking(_retrying(service), _not_tried)
    cancel.click(_cancelling(service), [job_id], [answer, *shown], concurrency_limit=4, api_visibility="private")
    retry.click(retrying, [job_id], [answer, *shown], **ASKING, api_visibility="private")


def _opening(service: Service, board: BoardSource | None) -> Callable[..., Any]:
    def opening(request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        job_id = str(request.query_params.get("id") or "")[:200]
        nothing = [gr.skip(), gr.update(visible=False)]
        if not job_id:
            hint = notice("info", "No job is named", el("p", "Open one from ", link("activity", "your jobs"), "."))
            return ["", *nothing, *_stopped(hint)]
        visitor = visitor_of(profile, token)
        try:
            view = service.job(job_id, visitor)
        except HubmergeError as error:
            return [job_id, *nothing, *_refused(error)]
        if not view.recipe:  # an evaluation
            return [job_id, *nothing, *_shown(view, visitor, service.endpoint, board)]
        text = dump_plain_yaml(dict(view.recipe))
        return [job_id, text, gr.update(visible=True), *_shown(view, visitor, service.endpoint, board)]

    return opening


def _ticking(service: Service, board: BoardSource | None) -> Callable[..., Any]:
    def tick(job_id: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        if not job_id:
            return [*[gr.skip()] * 5, gr.update(active=False)]
        visitor = visitor_of(profile, token)
        try:
            return _shown(service.job(job_id, visitor), visitor, service.endpoint, board)
        except HubmergeError as error:
            return [gr.skip()] * 6 if error.retryable else _refused(error)

    return tick


def _cancelling(service: Service) -> Callable[..., Any]:
    def cancel(job_id: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        try:
            visitor = require_visitor(profile, token, "cancel a job")
            return ["", *_shown(service.cancel(job_id, visitor), visitor, service.endpoint)]
        except HubmergeError as error:
            return [problems_panel(error, "It was not cancelled"), *[gr.skip()] * 6]

    return cancel


def _retrying(service: Service) -> Callable[..., Any]:
    def retry(job_id: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        try:
            visitor = writer_of(service, profile, token, "try a job again")
            return ["", *_shown(service.retry(job_id, visitor), visitor, service.endpoint)]
        except HubmergeError as error:
            return _not_tried(error)

    return retry


def _not_tried(error: HubmergeError) -> list[Any]:
    return [problems_panel(error, "It was not tried again"), *[gr.skip()] * 6]


def _awaits_verdict(view: JobView) -> bool:
    """Whether the last score is so new that the board may not have it yet."""
    if any(scoring.state != "done" for scoring in view.evaluations):
        return False
    ends = [end for scoring in view.evaluations if (end := moment(scoring.finished))]
    return bool(ends) and (datetime.now(UTC) - max(ends)).total_seconds() < BOARD_LAG_S


def _shown(view: JobView, visitor: Visitor | None, endpoint: str, board: BoardSource | None = None) -> list[Any]:
    row = published_row(view, board)
    verdict = verdict_panel(row) if row else None
    if verdict is not None:  # the board has every parent, also one whose evaluation was no job here
        settled = (replace(s, state="done") if s.state == "waiting" else s for s in view.evaluations)
        view = replace(view, evaluations=tuple(settled))
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
    return [message, "", *[gr.update(visible=False)] * 3, gr.update(active=False)]
