"""The page of a comparison, `/diff?base=ORG/NAME&agent=ORG/NAME`: what a training changed.

Reading two models takes minutes, so a comparison is a job, which a signed-in visitor may start. Everybody who may read
both models may see a finished comparison; the Hub decides that whenever the page is opened.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import HubmergeError
from hubmerge.output import diff_words as words
from hubmerge.output.diff import TOP, Diff
from hubmerge.output.diff_figure import draw
from hubmerge.plan.plan import Plan
from workflows.app.format import bytes_text, el, join, repo_link
from workflows.app.frame import PRIVATE, QUIET, html
from workflows.app.job_page import badge
from workflows.app.job_steps import TERMINAL, progress_panel, stage_track
from workflows.app.lanes import ASKING, Lanes
from workflows.app.panels import access_offer, fold, header, notice, problems_panel, section, table, warnings_panel
from workflows.app.search import model_box, suggest_models
from workflows.app.session import for_visitor, signed_in
from workflows.app.submission import MOST_CHARACTERS, checked_comparison
from workflows.service import Service
from workflows.values import Comparison, JobView, Visitor

POLL_S = 2.0
LISTED = 10  # tensors
EMPTY = el("p", "Choose a model and the one that it was trained from.", cls="hm-dim hm-empty")
_KEEP = """(base, agent) => {
  if (base && agent) {
    const readable = (name) => encodeURIComponent(name).replaceAll("%2F", "/").replaceAll("%40", "@");
    const query = `?base=${readable(base)}&agent=${readable(agent)}`;
    window.history.replaceState(null, "", window.location.pathname + query);
  }
  return [base, agent];
}"""


def diff_page(demo: Any, service: Service, lanes: Lanes) -> None:
    html(header("What did training change?", "One model beside the one that it was trained from."))
    before = "The model before: org/name, or the address of its page on the Hub."
    with gr.Group(elem_classes="hm-card hm-two"), gr.Row():
        base = model_box("diff-base", "Base", before, min_width=240)
        agent = model_box("diff-agent", "Agent", "The model after; a LoRA adapter on the base will do.", min_width=240)
    with gr.Row(elem_classes="hm-actions"):
        compare = gr.Button("Compare", variant="primary", size="sm", elem_id="compare", scale=0)
        cancel = gr.Button("Cancel", variant="stop", size="sm", visible=False, elem_id="cancel", scale=0)
    # both empty until the address is read: what one says would push the other down
    models, outcome = html(name="diff-models", card=True), html(name="diff", card=True)
    job_id = gr.Textbox(value="", visible=False)
    timer = gr.Timer(POLL_S, active=False)
    shown = [models, outcome, job_id, cancel, timer]
    for box in (base, agent):
        suggest_models(box, service, lanes)

    def of_job(job: JobView, visitor: Visitor | None) -> list[Any]:
        done = job.state == "done" and job.result
        if done:
            told = diff_panel(Diff.from_json(done))
        elif job.state == "failed":
            told = problems_panel(job.error or {}, "The comparison failed")
        elif job.state == "cancelled":
            told = notice("info", "It was cancelled", el("p", "Compare starts it again."))
        else:
            told = join(el("p", badge(job.state)), stage_track(job), progress_panel(job), warnings_panel(job.warnings))
        own = visitor is not None and visitor.name == job.user
        may_cancel = own and job.state in ("queued", "running")
        return [told, job.id, gr.update(visible=may_cancel), gr.update(active=job.state not in TERMINAL)]

    def of_comparison(found: Comparison, visitor: Visitor | None) -> list[Any]:
        both = models_panel(found.plan, service.endpoint)
        if found.job is not None:
            return [both, *of_job(found.job, visitor)]
        how = "Compare reads both, which takes seconds to minutes." if visitor else "Sign in to have them compared."
        told = notice("info", "These models fit, but they were not compared yet", el("p", how))
        return [both, *_stopped(join(told, warnings_panel(found.plan.warnings)))[1:]]

    def shut(error: HubmergeError, visitor: Visitor | None) -> list[Any]:
        """The reason why two models are not compared, and the sign-in that opens those that the Hub does not show."""
        told = problems_panel(error, signed_in=visitor is not None)
        return _stopped(join(access_offer(error, visitor, service.endpoint), told))

    def opening(request: gr.Request, visitor: Visitor | None) -> list[Any]:
        names = names_of(request.query_params)
        filled = [gr.update(value=name, choices=[name]) if name else gr.skip() for name in names]
        if "" in names:
            return [*filled, *_stopped(EMPTY)]
        try:
            found = service.comparison(*checked_comparison(*names, service.endpoint), visitor)
            return [*filled, *of_comparison(found, visitor)]
        except HubmergeError as error:
            return [*filled, *shut(error, visitor)]

    def comparing(visitor: Visitor | None, *chosen: str | None) -> list[Any]:
        names = [name or "" for name in chosen]
        try:
            both = checked_comparison(names[0], names[1], service.endpoint)
            found = service.compare(*both, visitor) if visitor else service.comparison(*both, None)
            return of_comparison(found, visitor)
        except HubmergeError as error:
            return shut(error, visitor)

    def tick(visitor: Visitor | None, job: str) -> list[Any]:
        try:
            return [gr.skip(), *of_job(service.job(job, visitor), visitor)]
        except HubmergeError as error:
            return [gr.skip()] * 5 if error.retryable else _stopped(problems_panel(error))

    def cancelling(visitor: Visitor | None, job: str) -> list[Any]:
        try:
            return [gr.skip(), *of_job(service.cancel(job, signed_in(visitor, "cancel a comparison")), visitor)]
        except HubmergeError as error:
            return [problems_panel(error, "It was not cancelled"), *[gr.skip()] * 4]

    opened = demo.load(
        lanes.asking(for_visitor(opening), lambda e: [gr.skip(), gr.skip(), *_stopped(problems_panel(e))]),
        None,
        [base, agent, *shown],
        **ASKING,
        **QUIET,
    )
    opened.then(None, [base, agent], None, js=_KEEP, **QUIET)
    asked = lanes.asking(for_visitor(comparing), lambda error: _stopped(problems_panel(error)))
    compare.click(asked, [base, agent], shown, js=_KEEP, **ASKING, **PRIVATE)
    timer.tick(for_visitor(tick), [job_id], shown, concurrency_limit=4, **QUIET)
    cancel.click(for_visitor(cancelling), [job_id], shown, concurrency_limit=4, **PRIVATE)


def names_of(query: Mapping[str, str]) -> tuple[str, str]:
    """Base and agent as an address names them; empty: it does not."""
    base, agent = (str(query.get(name) or "").strip()[:MOST_CHARACTERS] for name in ("base", "agent"))
    return base, agent


def _stopped(message: Any) -> list[Any]:
    return ["", message, "", gr.update(visible=False), gr.update(active=False)]


def models_panel(plan: Plan, endpoint: str) -> Markup:
    """The two models with their commits, and how much there is to read."""
    cells = []
    for word, model in (("Before", plan.base), ("After", plan.agents[0])):
        ref, dtypes = model.ref, sorted({t.entry.dtype for t in model.tensors.values()})
        pinned = el("span", repo_link(endpoint, ref.id, ref.sha), el("code", ref.sha[:12], cls="hm-sha"))
        cells.append((word, pinned, model.kind, ", ".join(dtypes), bytes_text(model.weight_bytes)))
    return table(("Role", "Model", "Kind", "Stored as", "Size"), cells)


def diff_panel(diff: Diff) -> Markup:
    """The changes of the training: a figure, and tables of numbers."""
    told = el("p", f"{words.compared(diff)}.", cls="hm-dim")
    if diff.nothing_changed:
        return join(notice("good", words.NOTHING_CHANGED), told, warnings_panel(diff.warnings))
    source = f"data:image/svg+xml;base64,{b64encode(draw(diff)).decode('ascii')}"
    picture = el("img", src=source, alt="What changed by layer and module type, and how large single changes are")
    tops = [_section(words.top_table(diff, by, LISTED), folded=by != TOP[0]) for by in words.TOP_TITLES]
    layers = _section(words.layer_table(diff), folded=True) if diff.layers else None
    pairs = el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in words.facts(diff)), cls="hm-pairs")
    return join(
        el("p", el("strong", words.verdict(diff))),
        told,
        warnings_panel(diff.warnings),
        el("figure", picture, cls="hm-figure", tabindex="0"),
        _section(words.module_table(diff)),
        layers,
        *tops,
        fold("The update in numbers", pairs, el("p", words.thresholds(diff), cls="hm-dim"), cls="hm-section"),
    )


def _section(content: words.Table, *, folded: bool = False) -> Markup:
    shown = table(content.head, content.rows)
    return fold(content.title, shown, cls="hm-section") if folded else section(content.title, shown)
