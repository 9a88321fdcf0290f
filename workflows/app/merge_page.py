"""The merge page: choose models and a method, see whether and how they fit, start the merge.

`/merge` opens the form as it was left in this browser, `/merge?job=ID` with the recipe of a job, and
`/merge?base=…&agent=…&agent=…&method=…` with the models and method of the address. Signing in leaves the page, so the
browser keeps the form meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError, RecipeError
from hubmerge.methods import registry
from hubmerge.plain_yaml import dump_plain_yaml
from hubmerge.plan.licenses import KNOWN
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import MAX_RECIPE_BYTES
from hubmerge.wording import did_you_mean
from workflows.app.calibration_form import turn
from workflows.app.format import el, join, link
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_form import (
    VISIBILITIES,
    MergeForm,
    build_form,
    fill,
    fillable,
    recipe_of,
    reweight,
    show_method,
)
from workflows.app.panels import access_offer, closed_models, notice, plan_panel, problems_panel
from workflows.app.search import suggest_models
from workflows.app.service import Service
from workflows.app.session import visitor_of, writer_of
from workflows.app.submission import checked_recipe, submission

EMPTY = el("p", "Choose a base and agents, then inspect them: only headers are read.", cls="hm-dim hm-empty")
_GO = """(id) => { if (id) window.location.assign("job?id=" + encodeURIComponent(id)); }"""
# A browser may refuse storage inside a frame; the form then works without memory.
_KEEP = """(...values) => { try { localStorage.setItem("hubmerge-form", JSON.stringify(values)); } catch { } }"""
_KEPT = """() => { try { return [JSON.parse(localStorage.getItem("hubmerge-form"))]; } catch { return [null]; } }"""
# Kept first, then taken out of the address: after signing in the form must come from what was kept.
_KEEP_OPENED = f"""(...values) => {{
  ({_KEEP})(...values);
  if (window.location.search) window.history.replaceState(null, "", "merge");
}}"""


def merge_page(demo: Any, service: Service, lanes: Lanes) -> None:
    """Build the page in the current Blocks context."""
    with gr.Row(elem_classes="hm-columns"):
        with gr.Column(scale=3, min_width=320):
            form = build_form()
            with gr.Accordion("Recipe as YAML", open=False, elem_classes="hm-card", elem_id="yaml-card"):
                text = gr.Code(value="", language="yaml", label="Recipe", lines=8, interactive=True, elem_id="yaml")
                with gr.Row():
                    show = gr.Button("Show the form as YAML", size="sm", elem_id="show-yaml")
                    load = gr.Button("Load the YAML into the form", size="sm", elem_id="load-yaml")
        with gr.Column(scale=2, min_width=320, elem_classes="hm-side"):
            with gr.Row():
                inspect = gr.Button("Inspect", variant="secondary", interactive=False, elem_id="inspect")
                start = gr.Button("Start merge", variant="primary", interactive=False, elem_id="start")
            hint = gr.HTML("", js_on_load=None, elem_id="hint")
            outcome = gr.HTML(EMPTY, js_on_load=None, elem_id="outcome", elem_classes="hm-card hm-outcome")
    go = gr.Textbox(value="", visible=False)
    draft = gr.JSON(value=None, visible=False)

    _wire_form(form, service, lanes)
    private = {"api_visibility": "private"}
    inspect.click(
        lanes.asking(_inspecting(service), lambda error: [problems_panel(error), gr.skip()]),
        [form.name, form.license, *form.recipe_inputs],
        [outcome, form.name],
        **ASKING,
        **private,
    )
    start.click(
        lanes.asking(_starting(service), lambda error: [problems_panel(error), ""]),
        [*form.target_inputs, *form.recipe_inputs],
        [outcome, go],
        **ASKING,
        **private,
    ).then(None, [go], None, js=_GO, **private)
    show.click(_as_yaml, form.recipe_inputs, [text, outcome], **private)
    kept = form.kept
    load.click(_from_yaml, [text], [outcome, *form.filled], **private).then(None, kept, None, js=_KEEP, **private)
    # a text that was pasted changes the box without an input event
    gr.on(
        [*(c.input for c in kept if hasattr(c, "input")), form.name.change],
        None,
        kept,
        None,
        js=_KEEP,
        queue=False,
        **private,
    )
    opened = [hint, *form.target_inputs, outcome, *form.filled]
    opening = lanes.asking(_opening(service), lambda error: _shut_out(error, len(opened)), for_the_signed_in=True)
    # a sign of loading on every field would move them all
    loaded = demo.load(opening, [draft], opened, js=_KEPT, queue=False, show_progress="hidden", **private)
    loaded.then(None, kept, None, js=_KEEP_OPENED, **private)
    # a click before the form is filled would read it empty, so the buttons come last
    loaded.then(_ready, [form.namespace], [inspect, start], queue=False, show_progress="hidden", **private)


def _shut_out(error: HubmergeError, count: int) -> list[Any]:
    """The form as it stands, with the reason why it was not filled."""
    return [gr.skip()] * 5 + [problems_panel(error)] + [gr.skip()] * (count - 6)


def _ready(namespace: str | None) -> list[Any]:
    """Updates of the two buttons: anyone may inspect; starting takes a namespace to write to."""
    return [gr.update(interactive=True), gr.update(interactive=bool(namespace))]


def _wire_form(form: MergeForm, service: Service, lanes: Lanes) -> None:
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    for box in (form.base, form.agents):
        suggest_models(box, service, lanes)
    form.agents.change(
        reweight, [form.agents, form.weighted, *form.weights], [form.weighted, *form.weights], queue=False, **quiet
    )
    shown = [form.about, *form.groups, form.calibration.card]
    form.method.change(show_method, [form.method], shown, queue=False, **quiet)
    data = form.calibration
    turned = [form.agents, data.whose, *data.inputs], [data.whose, *data.inputs]
    turning = gr.on([data.whose.input, form.agents.change], turn, *turned, queue=False, **quiet)
    turning.then(None, form.kept, None, js=_KEEP, queue=False, **quiet)


def _inspecting(service: Service) -> Callable[..., Any]:
    def inspect(
        profile: gr.OAuthProfile | None,
        token: gr.OAuthToken | None,
        name: str,
        license_choice: str | None,
        *values: Any,
    ) -> list[Any]:
        visitor = visitor_of(profile, token)
        try:
            recipe = checked_recipe(recipe_of(values))
            plan = service.inspect(recipe.to_dict(), visitor, license_choice)
        except HubmergeError as error:
            return [join(access_offer(error, visitor, service.endpoint), problems_panel(error)), gr.skip()]
        named = gr.skip() if (name or "").strip() else gr.update(value=suggested_name(plan))
        return [plan_panel(plan, service.endpoint, license_choice), named]

    return inspect


def suggested_name(plan: Plan) -> str:
    return f"{plan.base.ref.label}-{plan.recipe.method.replace('_', '-')}"[:96]


def _starting(service: Service) -> Callable[..., Any]:
    def start(
        profile: gr.OAuthProfile | None,
        token: gr.OAuthToken | None,
        namespace: str | None,
        name: str,
        visibility: str,
        license_choice: str | None,
        *values: Any,
    ) -> list[Any]:
        try:
            visitor = writer_of(service, profile, token)
            recipe = recipe_of(values)
            private = visibility == "private"
            if visibility not in ("public", "private"):
                plan = service.inspect(checked_recipe(recipe).to_dict(), visitor, license_choice)
                private = bool(closed_models(plan.models))
            request = submission(
                recipe,
                target=f"{namespace or visitor.name}/{(name or '').strip()}",
                private=private,
                license=license_choice,
                visitor=visitor,
            )
            job = service.submit(request, visitor)
        except HubmergeError as error:
            offer = access_offer(error, visitor_of(profile, token), service.endpoint)
            return [join(offer, problems_panel(error)), ""]
        return [notice("info", "Submitted", el("p", link(f"job?id={job.id}", "Open its page"))), job.id]

    return start


def _as_yaml(*values: Any) -> list[Any]:
    try:
        return [dump_plain_yaml(recipe_of(values)), gr.skip()]
    except HubmergeError as error:
        return [gr.skip(), problems_panel(error)]


def _from_yaml(text: str) -> list[Any]:
    try:
        read = recipe_from_yaml((text or "")[: MAX_RECIPE_BYTES + 1])
        recipe = checked_recipe(fillable(read.to_dict()))
    except HubmergeError as error:
        return [problems_panel(error, "This recipe cannot be loaded"), *[gr.skip()] * (len(fill({})))]
    told = [el("p", text) for text in ("The form shows this recipe now.", *read.notes)]
    return [notice("good", "Loaded", *told), *fill(recipe.to_dict())]


def _opening(service: Service) -> Callable[..., Any]:
    def opening(
        request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, draft: Any
    ) -> list[Any]:
        namespaces: tuple[str, ...] = ()
        problem: Any = None
        if visitor_of(profile, token) is not None:
            try:
                namespaces = writer_of(service, profile, token).namespaces
            except HubmergeError as error:
                problem = problems_panel(error)
        try:
            recipe, target = _asked_for(service, request, profile, token, draft)
        except HubmergeError as error:
            recipe, target, problem = {}, {}, problems_panel(error)
        if (method := str(recipe.get("method") or "")) and method not in registry():
            problem = problems_panel(_no_such_method(method))
        signed_in = bool(namespaces)
        owner = target.get("namespace")
        return [
            "" if signed_in else el("p", "Inspecting needs no account. Sign in to start a merge.", cls="hm-dim"),
            gr.update(choices=list(namespaces), value=owner if owner in namespaces else next(iter(namespaces), None)),
            gr.skip() if not target.get("name") else str(target["name"])[:96],
            gr.update(value=target["visibility"]) if target.get("visibility") in VISIBILITIES else gr.skip(),
            gr.update(value=target["license"]) if target.get("license") in (*KNOWN, "other") else gr.skip(),
            gr.skip() if problem is None else problem,
            *(fill(recipe) if recipe else [gr.skip()] * len(fill({}))),
        ]

    return opening


def _no_such_method(name: str) -> RecipeError:
    known = ", ".join(registry())
    step = did_you_mean(name, registry()) or "Choose one in the form, which shows another."
    return RecipeError("there is no such method", where="the address", expected=known, got=name[:100], next_step=step)


def _asked_for(
    service: Service, request: Any, profile: Any, token: Any, draft: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The recipe and target to open with: the address's, else what this browser kept, else nothing."""
    query = request.query_params
    if job_id := str(query.get("job") or ""):
        visitor = visitor_of(profile, token)
        job = service.job(job_id, visitor)
        if visitor is None or visitor.name != job.user or job.state not in ("queued", "failed", "cancelled"):
            return fillable(job.recipe), {}
        namespace, _, name = job.target.partition("/")  # the same target again is the same job, which goes on
        visibility = "private" if job.private else "public"
        return fillable(job.recipe), {"namespace": namespace, "name": name, "visibility": visibility}
    if base := str(query.get("base") or ""):
        named = {"base": base, "agents": query_list(query, "agent"), "method": str(query.get("method") or "")}
        return named, {}
    if not isinstance(draft, list) or len(draft) < 4:
        return {}, {}
    try:
        recipe = recipe_of(draft[:-4])
    except (RecipeError, ValueError, StopIteration, RuntimeError, TypeError):
        return {}, {}  # kept by another version of the form
    return recipe, dict(zip(("namespace", "name", "visibility", "license"), draft[-4:], strict=True))


def query_list(query: Any, key: str) -> list[str]:
    """Every value of a key of the address."""
    if hasattr(query, "getlist"):
        return [str(value) for value in query.getlist(key)]
    return [str(query[key])] if key in query else []
