"""The page of a comparison, `/diff?base=ORG/NAME&agent=ORG/NAME`: what a training changed.

Reading two models takes minutes, so a comparison is a job, which a signed-in visitor may start. Everybody who may read
both models may see a finished comparison; the Hub decides that whenever the page is opened. Signing in leaves the page,
so the browser keeps the names meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from hubmerge.errors import HubmergeError
from hubmerge.output.diff import Diff
from hubmerge.output.diff_figure import draw
from workflows.app.diff_panels import diff_panel, job_standing, models_panel, not_compared
from workflows.app.format import el, join
from workflows.app.job_steps import TERMINAL
from workflows.app.lanes import ASKING, Lanes
from workflows.app.panels import access_offer, header, problems_panel
from workflows.app.search import suggest_models
from workflows.app.service import Comparison, JobView, Service, Visitor
from workflows.app.session import require_visitor, visitor_of
from workflows.app.submission import checked_comparison

POLL_S = 2.0
FIGURES_KEPT = 32
MOST_CHARACTERS = 400  # of a model's name and revision
EMPTY = el("p", "Choose a model and the one that it was trained from.", cls="hm-dim hm-empty")
# A browser may refuse storage inside a frame; then only the address remembers.
_KEEP = """(base, agent) => {
  if (base && agent) {
    try { localStorage.setItem("hubmerge-diff", JSON.stringify([base, agent])); } catch { }
    const readable = (name) => encodeURIComponent(name).replaceAll("%2F", "/").replaceAll("%40", "@");
    const query = `?base=${readable(base)}&agent=${readable(agent)}`;
    window.history.replaceState(null, "", window.location.pathname + query);
  }
  return [base, agent];
}"""
_KEPT = """() => { try { return [JSON.parse(localStorage.getItem("hubmerge-diff"))]; } catch { return [null]; } }"""


def diff_page(demo: Any, service: Service, lanes: Lanes) -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(
        header("What did a training change?", "One model beside the one that it was trained from."), js_on_load=None
    )
    with gr.Group(elem_classes="hm-card hm-two"), gr.Row():
        base, agent = (
            gr.Dropdown(
                choices=[], value=None, allow_custom_value=True, label=label, info=info, elem_id=name, min_width=240
            )
            for name, label, info in (
                ("diff-base", "Base", "The model before: org/name, or the address of its page on the Hub."),
                ("diff-agent", "Agent", "The model after; a LoRA adapter on the base will do."),
            )
        )
    with gr.Row(elem_classes="hm-actions"):
        compare = gr.Button("Compare", variant="primary", size="sm", elem_id="compare", scale=0)
        cancel = gr.Button("Cancel", variant="stop", size="sm", visible=False, elem_id="cancel", scale=0)
    models = gr.HTML("", js_on_load=None, elem_id="diff-models", elem_classes="hm-card")
    outcome = gr.HTML(EMPTY, js_on_load=None, elem_id="diff", elem_classes="hm-card")
    job_id = gr.Textbox(value="", visible=False)
    draft = gr.JSON(value=None, visible=False)
    timer = gr.Timer(POLL_S, active=False)

    shown = [models, outcome, job_id, cancel, timer]
    figures = _Figures()
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    for box in (base, agent):
        suggest_models(box, service, lanes)
    opening = lanes.asking(
        _opening(service, figures), lambda error: [gr.skip(), gr.skip(), *_stopped(problems_panel(error))]
    )
    opened = demo.load(opening, [draft], [base, agent, *shown], js=_KEPT, **ASKING, **quiet)
    opened.then(None, [base, agent], None, js=_KEEP, **quiet)
    comparing = lanes.asking(_comparing(service, figures), lambda error: _stopped(problems_panel(error)))
    compare.click(comparing, [base, agent], shown, js=_KEEP, **ASKING, api_visibility="private")
    timer.tick(_ticking(service, figures), [job_id], shown, concurrency_limit=4, **quiet)
    cancel.click(_cancelling(service, figures), [job_id], shown, concurrency_limit=4, api_visibility="private")


class _Figures:
    """The last figures that were drawn, since all visitors of a page want the same one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, job_id: str, diff: Diff) -> bytes:
        with self._lock:
            if job_id in self._kept:
                self._kept.move_to_end(job_id)
                return self._kept[job_id]
        drawn = draw(diff)
        with self._lock:
            self._kept[job_id] = drawn
            while len(self._kept) > FIGURES_KEPT:
                self._kept.popitem(last=False)
        return drawn


def _opening(service: Service, figures: _Figures) -> Callable[..., Any]:
    def opening(
        request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, draft: Any
    ) -> list[Any]:
        base, agent = _asked_for(request.query_params, draft)
        filled = [gr.update(value=name, choices=[name]) if name else gr.skip() for name in (base, agent)]
        if not request.query_params.get("base") or not agent:
            return [*filled, *_stopped(EMPTY)]
        visitor = visitor_of(profile, token)
        try:
            found = service.comparison(*checked_comparison(base, agent, service.endpoint), visitor)
            return [*filled, *_of_comparison(found, visitor, service, figures)]
        except HubmergeError as error:
            return [*filled, *_stopped(_shut(error, visitor, service, base, agent))]

    return opening


def _asked_for(query: Mapping[str, str], draft: Any) -> tuple[str, str]:
    """The names in the address. Signing in brings back only the first; the browser has kept the other."""
    base, agent = (str(query.get(name) or "").strip()[:MOST_CHARACTERS] for name in ("base", "agent"))
    kept = [str(name or "")[:MOST_CHARACTERS] for name in draft] if isinstance(draft, list) and len(draft) == 2 else []
    if kept and not agent and base in ("", kept[0]):
        return kept[0], kept[1]
    return base, agent


def _comparing(service: Service, figures: _Figures) -> Callable[..., Any]:
    def compare(
        profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, base: str | None, agent: str | None
    ) -> list[Any]:
        visitor = visitor_of(profile, token)
        try:
            before, after = checked_comparison(base or "", agent or "", service.endpoint)
            if visitor is None:
                found = service.comparison(before, after, None)
            else:
                found = service.compare(before, after, visitor)
            return _of_comparison(found, visitor, service, figures)
        except HubmergeError as error:
            return _stopped(_shut(error, visitor, service, base or "", agent or ""))

    return compare


def _shut(error: HubmergeError, visitor: Visitor | None, service: Service, base: str, agent: str) -> Any:
    """The reason why two models are not compared, and the sign-in that opens those that the Hub does not show."""
    back = "/diff?" + urlencode({"base": base, "agent": agent})
    return join(access_offer(error, visitor, service.endpoint, back), problems_panel(error))


def _ticking(service: Service, figures: _Figures) -> Callable[..., Any]:
    def tick(job_id: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        visitor = visitor_of(profile, token)
        try:
            return [gr.skip(), *_of_job(service.job(job_id, visitor), visitor, service, figures)]
        except HubmergeError as error:
            return [gr.skip()] * 5 if error.retryable else _stopped(problems_panel(error))

    return tick


def _cancelling(service: Service, figures: _Figures) -> Callable[..., Any]:
    def cancel(job_id: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        try:
            visitor = require_visitor(profile, token, "cancel a comparison")
            return [gr.skip(), *_of_job(service.cancel(job_id, visitor), visitor, service, figures)]
        except HubmergeError as error:
            return [problems_panel(error, "It was not cancelled"), *[gr.skip()] * 4]

    return cancel


def _of_comparison(found: Comparison, visitor: Visitor | None, service: Service, figures: _Figures) -> list[Any]:
    """Both models, with the state of their comparison."""
    models = models_panel(found.plan, service.endpoint)
    if found.job is None:
        told = not_compared(found.plan, signed_in=visitor is not None)
        return [models, *_stopped(told)[1:]]
    return [models, *_of_job(found.job, visitor, service, figures)]


def _of_job(job: JobView, visitor: Visitor | None, service: Service, figures: _Figures) -> list[Any]:
    if job.state == "done" and job.result:
        diff = Diff.from_json(job.result)
        outcome = diff_panel(diff, figures.of(job.id, diff))
    else:
        outcome = job_standing(job)
    own = visitor is not None and visitor.name == job.user
    may_cancel = own and job.state in ("queued", "running")
    return [outcome, job.id, gr.update(visible=may_cancel), gr.update(active=job.state not in TERMINAL)]


def _stopped(message: Any) -> list[Any]:
    return ["", message, "", gr.update(visible=False), gr.update(active=False)]
