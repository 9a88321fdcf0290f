"""Evaluate, `/evaluate?model=ORG/NAME&suite=NAME`: ask for a model to be measured, and the public queue.

A request asks the Hub with the visitor's own sign-in. The queue refreshes while something is in it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import HubmergeError, LoginError
from workflows.app.format import el, job_href, join, link, model_href, when
from workflows.app.frame import AT_ONCE, LOADING, PRIVATE, choice_box, html, titled
from workflows.app.job_steps import EVALUATION_STAGES
from workflows.app.lanes import ASKING, Lanes
from workflows.app.panels import access_offer, header, left_out_panel, notice, problems_panel, section, table
from workflows.app.search import model_box, suggest_models
from workflows.app.session import for_visitor, writer_of
from workflows.app.submission import MOST_CHARACTERS, one_model
from workflows.service import Service
from workflows.values import EvaluationAnswer, EvaluationQueue, QueuedEvaluation, Visitor

POLL_S = 5.0
# a sign-in leads back to the address
_KEEP = """(model, suite) => {
  if (model) history.replaceState(null, "", `${location.pathname}?${new URLSearchParams({model, suite})}`);
  return [model, suite];
}"""


def evaluate_page(demo: Any, service: Service, lanes: Lanes) -> None:
    suites = service.suites
    html(header("Have a model measured", "The scores, and the answers behind them, are public."))
    left_out = html(name="left-out")
    if not suites:
        none = el("p", "This site has no leaderboard of its own.")
        html(notice("info", "Nothing is measured here", none), "evaluation", card=True)
        return
    with gr.Group(elem_classes="hm-card hm-asks"), gr.Row():
        info = "org/name, or the address of its page on the Hub."
        model = model_box("evaluate-model", "Model", info, min_width=240)
        info = "What the model is asked."
        suite = choice_box("evaluate-suite", "Questions", titled(suites), next(iter(suites)), info, min_width=240)
    with gr.Row(elem_classes="hm-actions"):
        ask = gr.Button("Ask for the evaluation", variant="primary", size="sm", elem_id="ask", scale=0)
    answer = html(name="answer")
    queue = html(LOADING, "queue", card=True)
    timer = gr.Timer(POLL_S, active=False)
    suggest_models(model, service, lanes)

    def opening(request: gr.Request) -> list[Any]:
        named, wanted, wrong = of_address(request.query_params, suites)
        filled = gr.update(value=named, choices=[named]) if named else gr.skip()
        return [left_out_panel(wrong), filled, gr.update(value=wanted) if wanted else gr.skip()]

    def listing() -> list[Any]:
        try:
            found = service.evaluation_queue()
        except HubmergeError as error:
            return [problems_panel(error, "The queue cannot be shown"), gr.update(active=error.retryable)]
        return [queue_panel(found, suites), gr.update(active=bool(found.running or found.waiting))]

    def asking(visitor: Visitor | None, model: Any, suite: Any) -> Any:
        try:
            writer = writer_of(service, visitor, "ask for an evaluation")
            name = one_model(str(model or ""), service.endpoint)
            return answer_panel(service.request_evaluation(name, str(suite or ""), writer))
        except HubmergeError as error:
            told = problems_panel(error, "It was not asked for", signed_in=visitor is not None)
            if not isinstance(error, LoginError):  # a private or gated model is not measured, whatever one may read
                return told
            return join(told, access_offer(error, visitor, service.endpoint))

    demo.load(opening, None, [left_out, model, suite], **AT_ONCE)
    demo.load(listing, None, [queue, timer], **AT_ONCE)
    timer.tick(listing, None, [queue, timer], **AT_ONCE)
    refused = partial(problems_panel, title="It was not asked for")
    asked = ask.click(
        lanes.asking(for_visitor(asking), refused), [model, suite], [answer], js=_KEEP, **ASKING, **PRIVATE
    )
    asked.then(listing, None, [queue, timer], **AT_ONCE)


def of_address(query: Mapping[str, str], suites: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """The model and the suite that an address names, and what of it is wrong and left out."""
    named, suite = query.get("model", "").strip()[:MOST_CHARACTERS], query.get("suite", "")[:64]
    if not suite or suite in suites:
        return named, suite, []
    return named, "", [f"There are no questions “{suite}”. This site has {', '.join(suites)}."]


def answer_panel(answer: EvaluationAnswer) -> Markup:
    place = f" It is number {answer.place} in the queue." if answer.place else ""
    job = el("p", link(job_href(answer.job), "Follow it")) if answer.job else None
    if answer.outcome == "queued":
        return notice("good", "Asked for", el("p", f"{answer.model} will be measured.{place}"), job)
    if answer.outcome == "under way":
        return notice("info", "Somebody has asked already", el("p", f"{answer.model} is to be measured.{place}"), job)
    if answer.outcome == "failed":
        later = "Its last evaluation failed on this machine a short while ago. Ask again in some hours."
        seen = el("p", link(job_href(answer.job), "See why")) if answer.job else None
        return notice("warn", "Not now", el("p", later), seen)
    told = el("p", f"{answer.model} has been measured, at commit {answer.sha[:12]}.")
    page = link(model_href(answer.model, answer.sha), "See its scores")
    return notice("good", "Measured already", told, el("p", page))


def queue_panel(queue: EvaluationQueue, titles: Mapping[str, str]) -> Markup:
    """What is measured now and what waits, in its order."""
    more = queue.waiting_in_all - len(queue.waiting)
    return join(
        section("Measured now", _table(queue.running, titles, "Since", "Nothing is measured just now.")),
        section("Waiting", _table(queue.waiting, titles, "Asked for", "Nothing waits.")),
        el("p", f"And {more:,} more.", cls="hm-dim") if more > 0 else None,
    )


def _table(found: tuple[QueuedEvaluation, ...], titles: Mapping[str, str], since: str, otherwise: str) -> Markup:
    rows = [
        (
            link(job_href(each.job), each.model),
            titles.get(each.suite, each.suite),
            EVALUATION_STAGES.get(each.stage, each.stage) or "Starts" if each.place is None else f"number {each.place}",
            when(each.since),
        )
        for each in found
    ]
    return table(("Model", "Measured", "Progress", since), rows) if rows else el("p", otherwise, cls="hm-dim")
