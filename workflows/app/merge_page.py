"""The merge page: choose models and a method, see by itself whether and how they fit, start the merge.

The page opens with `?job=ID` with the recipe of a job, else with what the address says (merge_address.py), else empty.
The address follows the form, and with its last address the browser keeps the whole form, also while a visitor signs in
elsewhere; `opening` alone decides between them. A moment after each change the page inspects what is chosen, one
inspection at a time.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError, RecipeError
from hubmerge.plan.licenses import KNOWN
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import MAX_RECIPE_BYTES
from hubmerge.text.plain_yaml import dump_plain_yaml
from workflows.app import merge_form
from workflows.app import merge_script as script
from workflows.app.format import el, job_href, join, link
from workflows.app.forms import turn
from workflows.app.frame import AT_ONCE, PRIVATE, QUIET, code_box, html
from workflows.app.inspection import EMPTY, inspect_form, verdict
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_address import TEXTS, address_of, read_address, text_of
from workflows.app.panels import SIGNED_OUT, access_offer, coded, known_already, notice, problems_panel
from workflows.app.preview_panel import build_look, wire_look
from workflows.app.search import suggest_models
from workflows.app.session import for_visitor, writer_of
from workflows.app.submission import checked_recipe, chosen_target, names_in, newest_ticket, submission
from workflows.app.sweep_form import build_sweep, opened_with, wire_sweep
from workflows.service import Service
from workflows.values import Visitor

_TARGET = ("suite", "namespace", "name", "visibility", "license")  # MergeForm.target_inputs
_NOTHING = len(merge_form.fill({}))


def merge_page(demo: Any, service: Service, lanes: Lanes, *, sign_in: bool, jobs_per_user: int) -> None:
    """Build the page in the current Blocks context. `sign_in`: visitors can. `jobs_per_user`: that wait or run."""
    with gr.Row(elem_classes="hm-merge"):
        with gr.Column(scale=3, min_width=320, elem_classes="hm-form"):
            form = merge_form.build_form(service.suites)
            sweep = build_sweep(form.method.value)
            with gr.Accordion("Load a recipe", open=False, elem_classes="hm-card", elem_id="yaml-card"):
                text = code_box(label="Recipe", lines=8, interactive=True, elem_id="yaml")
                with gr.Row():
                    show = gr.Button("Show the form as YAML", size="sm", elem_id="show-yaml")
                    load = gr.Button("Load the YAML into the form", size="sm", interactive=False, elem_id="load-yaml")
            with gr.Row():
                over = gr.Button("Start over", size="sm", scale=0, min_width=120, elem_id="start-over")
        with gr.Column(scale=2, min_width=320, elem_classes="hm-side"):
            with gr.Row(elem_classes="hm-bar-start"):
                told = html(verdict("wait", "Choose models to begin"), "verdict")
                start = gr.Button("Start merge", variant="primary", interactive=False, elem_id="start")
                start_after = gr.Button("Sign in to start", variant="primary", visible=False, elem_id="start-after")
            said, why = (html(name=name) for name in ("said", "why"))
            accept = gr.Button("", variant="secondary", size="sm", visible=False, elem_id="accept")
            look = build_look()
            outcome = html(EMPTY, "outcome", card=True)
            with gr.Row(elem_classes="hm-copy"):
                inspect = gr.Button("Check again", size="sm", interactive=False, elem_id="inspect")
                copies = [gr.Button(f"Copy as {kind}", size="sm", elem_id=f"copy-{kind.split()[0]}") for kind in TEXTS]
            uncopied = html(name="uncopied")
            hint = html(name="hint")  # last, since it comes late
            copied = gr.Textbox(
                "", label="Copied", lines=3, max_lines=12, visible=False, buttons=["copy"], elem_id="copied"
            )
    # `asked`: the form that is inspected, as the script knows it; `checked`: what came of the last inspection
    go, address, name, asked = (gr.Textbox(value="", visible=False) for _ in range(4))
    draft, choice, checked = (gr.JSON(value=None, visible=False) for _ in range(3))

    def models(values: Any) -> tuple[str, list[str]]:
        """Base and agents by their names, where the page had no time yet to put them for an address."""
        base, agents = values[:2]
        return next(iter(names_in([base or ""], service.endpoint)), ""), names_in(agents or (), service.endpoint)

    def recipe(values: Any) -> dict[str, Any]:
        return merge_form.recipe_of([*models(values), *values[2:]])

    def inspecting(
        visitor: Visitor | None, form_asked: str, license_choice: str | None, name: str | None, *values: Any
    ) -> list[Any]:
        base, agents = models(values)
        held: Mapping[str, Any] | HubmergeError
        try:
            held = recipe(values)
        except HubmergeError as error:
            held = error
        found = inspect_form(held, base, tuple(agents), license_choice, service, visitor)
        query = "" if isinstance(held, HubmergeError) else address_of(held, name or "")
        advice, choice, offered = found.advice, found.advice.choice, list(found.advice.suggested)
        return [
            found.verdict,
            found.outcome,
            notice("warn", "Worth a look", el("p", advice.why)) if advice.why else "",
            gr.update(value=choice.words, visible=True) if choice else gr.update(visible=False),
            {"base": choice.base, "agents": list(choice.agents)} if choice else None,
            gr.update(choices=offered, value=[name for name in offered if name in agents]),
            offered,
            gr.update(visible=found.license_open),
            found.suggested_name,
            f"?{query}" if query else "",
            gr.update(interactive=found.fits),
            {"form": form_asked, "refused": found.refused, "closed": found.advice.closed},
        ]

    def not_inspected(error: HubmergeError) -> list[Any]:
        return [verdict("bad", "Not checked"), problems_panel(error), *[gr.skip()] * 9, None]

    def starting(visitor: Visitor | None, *values: Any) -> list[Any]:
        *target, license_choice = values[:5]
        try:
            held = recipe(values[5:])
            writer = writer_of(service, visitor)
            to = chosen_target(service, writer, checked_recipe(held), target, license_choice)
            newest = newest_ticket(service, writer)
            job = service.submit(submission(held, license=license_choice, visitor=writer, **to), writer)
        except HubmergeError as error:
            told = problems_panel(error, signed_in=visitor is not None)
            return [join(access_offer(error, visitor or SIGNED_OUT, service.endpoint), told), ""]
        to_page = el("p", link(job_href(job.id), "Open its page"))
        if job.ticket <= newest:
            return [known_already(to_page), f"{job.id}&known=yes"]
        return [notice("info", "Submitted", to_page), job.id]

    def as_yaml(*values: Any) -> list[Any]:
        try:
            return [dump_plain_yaml(merge_form.recipe_of(values)), gr.skip()]
        except HubmergeError as error:
            return [gr.skip(), problems_panel(error)]

    def copy(kind: str, checked: Any, *values: Any) -> list[Any]:
        _, namespace, name, visibility, license = values[:5]
        try:
            target, chosen = f"{namespace or 'me'}/{name or 'my-merge'}", recipe(values[5:])
            closed = isinstance(checked, dict) and bool(checked.get("closed"))
            private = visibility == "private" or (visibility != "public" and closed)
            written = text_of(kind, chosen, target, service.endpoint, private=private, license=license or "")
        except HubmergeError as error:
            return [gr.update(value="", visible=False), problems_panel(error, "This form cannot be copied yet")]
        return [gr.update(value=written, visible=True), ""]

    def opening(request: gr.Request, visitor: Visitor | None, kept: Any) -> list[Any]:
        query = request.query_params
        try:
            given, target, wrong = _asked_for(service, query, visitor, kept, len(form.kept))
        except HubmergeError as error:
            given, target, wrong = {}, {}, error
        title = "Part of this address cannot be used" if given else ""
        owner = target.get("namespace")
        return [
            gr.update(interactive=True),
            gr.update(interactive=True),
            problems_panel(wrong, title) if wrong else gr.skip(),
            f"?{address_of(given, target['name'])}" if given and query.get("job") else "",
            gr.update(value=target["suite"]) if target.get("suite") in service.suites else gr.skip(),
            gr.update(value=owner, choices=[owner]) if owner else gr.skip(),
            gr.skip() if not target.get("name") else str(target["name"])[:96],
            gr.update(value=target["visibility"]) if target.get("visibility") in merge_form.VISIBILITIES else gr.skip(),
            gr.update(value=target["license"]) if target.get("license") in (*KNOWN, "other") else gr.skip(),
            *(merge_form.fill(given) if given else [gr.skip()] * _NOTHING),
            *opened_with(query, str(given.get("method") or merge_form.DEFAULT_METHOD)),
        ]

    def owners(visitor: Visitor | None, owner: str | None) -> list[Any]:
        unknown = "Checking needs no account. The form is kept while you sign in."
        if not sign_in:
            unknown = "Sign-in is not set up here, so that nothing can be started. Checking needs no account."
        namespaces: tuple[str, ...] = ()
        problem: Any = gr.skip()
        if visitor is not None:
            try:
                namespaces = writer_of(service, visitor).namespaces
            except HubmergeError as error:
                problem = problems_panel(error)
        asks = sign_in and visitor is None
        return [
            el("p", unknown, cls="hm-dim") if visitor is None else "",
            gr.update(choices=list(namespaces), value=owner if owner in namespaces else next(iter(namespaces), None)),
            gr.update(visible=not asks),
            gr.update(visible=asks),
            problem,
        ]

    scripted = {"queue": False, **PRIVATE}
    startable = {"js": script.STARTABLE, **scripted}
    chosen = _wire_form(form, service, lanes)
    wire_look(look, form, chosen, lambda values: checked_recipe(recipe(values)), service, lanes)
    # one inspection at a time: the script asks for the next when this one has ended
    inspected = (
        inspect.click(None, None, told, js=script.INSPECTING, **AT_ONCE)
        .then(
            lanes.asking(for_visitor(inspecting), not_inspected),
            [asked, form.license, form.name, *form.recipe_inputs],
            [
                *(told, outcome, why, accept, choice, form.suggested, form.offered, form.license),
                *(name, address, look.button, checked),
            ],
            js=script.INSPECTED_FORM,
            **ASKING,
            **QUIET,
        )
        .then(None, [checked], None, js=script.INSPECTED, **scripted)
    )
    inspected.then(None, [checked, form.namespace], [start], **startable)
    inspected.then(None, [name, form.name, address], [form.name], js=script.CORRECT_NAME, **scripted)
    wire_sweep(sweep, form, start, recipe, service, lanes, inspected, jobs_per_user)
    accept.click(_accepted, [choice], [form.base, form.agents, why, accept], **AT_ONCE)
    whole = [*form.target_inputs, *form.recipe_inputs]
    started = (
        start.click(None, None, [said, start], js=script.STARTING, **AT_ONCE)
        .then(
            lanes.asking(for_visitor(starting), lambda error: [problems_panel(error), ""]),
            whole,
            [said, go],
            js=script.UNNAMED,
            **ASKING,
            **PRIVATE,
        )
        .then(None, [go], None, js=script.GO, **PRIVATE)
    )
    started.then(None, [checked, form.namespace], [start], **startable)
    over.click(None, None, None, js=script.START_OVER, **scripted)
    start_after.click(None, None, None, js=script.SIGN_IN, **scripted)
    show.click(as_yaml, form.recipe_inputs, [text, said], **PRIVATE)
    kept, filled = form.kept, [*form.filled, *form.folds]
    loading = load.click(_from_yaml, [text], [said, *filled], **PRIVATE)
    loading.then(None, kept, None, js=script.KEEP, **PRIVATE).then(None, None, None, js=script.SHOW_SAID, **scripted)
    for kind, button in zip(TEXTS, copies, strict=True):
        made = button.click(partial(copy, kind), [checked, *whole], [copied, uncopied], **AT_ONCE)
        made.then(None, [copied], [copied], js=script.COPIED, **scripted)
    # a text that was pasted, and a model that a button chose, change a box without an input event
    pasted = [form.name, form.ignore, form.more, *(c for c in form.calibration.inputs if isinstance(c, gr.Textbox))]
    changes = [c.change for c in (*pasted, form.base, form.agents, form.license, form.method)]
    gr.on([*(c.input for c in kept if hasattr(c, "input")), *changes], None, kept, None, js=script.KEEP, **scripted)
    # One answer fills all of the form, without a question to the Hub, so that nobody can be faster. A click before it
    # would read the form empty, so the buttons wait for it, and the one that starts for the owners.
    opened = [inspect, load, said, address, *form.target_inputs, *filled, *sweep.opened]
    loaded = demo.load(for_visitor(opening), [draft], opened, js=script.KEPT, **AT_ONCE)
    loaded.then(None, [address, *kept], None, js=script.OPENED, **scripted)
    not_owned = [gr.skip()] * 4
    owned = lanes.asking(for_visitor(owners), lambda e: [*not_owned, problems_panel(e)], for_the_signed_in=True)
    shown = loaded.then(owned, [form.namespace], [hint, form.namespace, start, start_after, said], **AT_ONCE)
    shown.then(None, [checked, form.namespace], [start], **startable)


def _wire_form(form: merge_form.MergeForm, service: Service, lanes: Lanes) -> Any:
    """The event after which other models are chosen."""
    suggest_models(form.base, service, lanes)
    suggest_models(form.agents, service, lanes, base=form.base)
    # An address or a pasted list becomes the models that it names. An answer to a change of the boxes, even one that
    # leaves them as they are, is a change again, so that the script asks once for each content. What follows from the
    # models is asked for each time: gradio repeats a whole event for a handler that waits for its last turn, and two
    # handlers that wait, as a change's do unless they say otherwise, would go round for ever.
    both = [form.base, form.agents]

    def named(base: str | None, agents: list[str] | None) -> list[Any]:
        first, *others = names_in([base or ""], service.endpoint) or [""]
        now = names_in([*(agents or ()), *others], service.endpoint)
        return [gr.skip() if first == (base or "") else gr.update(value=first), gr.skip() if now == agents else now]

    naming = gr.Button("Name the models", visible="hidden", elem_id="name-models")
    naming.click(named, both, both, **AT_ONCE)
    chosen = gr.Button("Other models", visible="hidden", elem_id="models-chosen").click
    gr.on([form.base.change, form.agents.change], None, both, None, js=script.CHOSEN, **AT_ONCE)
    # the last answer must be about the agents that stand there last; its own event, since gradio repeats the whole one
    last = {"trigger_mode": "always_last", **AT_ONCE}
    weigh = gr.Button("Weigh the models", visible="hidden", elem_id="weigh-models").click
    weights = [form.weighted, *form.weights]
    weighed = weigh(merge_form.reweight, [form.agents, *weights], weights, **last)
    offered = [form.agents, form.offered, form.suggested]
    chosen(None, offered[:2], [form.suggested], js=script.TICKED, **AT_ONCE)
    form.suggested.input(None, offered, [form.agents], js=script.WITH_TICKED, **AT_ONCE)
    form.pick.input(None, [form.pick], [form.method], js=merge_form.PICK_METHOD, **AT_ONCE)
    form.method.change(None, [form.method], [form.pick, form.method], js=merge_form.SHOW_PICK, **AT_ONCE)
    form.method.change(merge_form.show_method, [form.method], form.of_method, **last)
    data = form.calibration
    turned = [form.agents, data.whose, *data.inputs], [data.whose, *data.inputs]
    for event in (data.whose.input, weighed.then):
        event(turn, *turned, **last).then(None, form.kept, None, js=script.KEEP, **AT_ONCE)
    return chosen


def _accepted(choice: Any) -> list[Any]:
    """The form with the proposed models."""
    if not isinstance(choice, dict):
        return [gr.skip()] * 4
    agents = [str(name) for name in choice.get("agents") or ()]
    return [gr.update(value=str(choice.get("base") or "") or None), agents, "", gr.update(visible=False)]


def _from_yaml(text: str) -> list[Any]:
    try:
        read = recipe_from_yaml((text or "")[: MAX_RECIPE_BYTES + 1])
        recipe = checked_recipe(merge_form.fillable(read.to_dict()))
    except HubmergeError as error:
        return [problems_panel(error, "This recipe cannot be loaded"), *[gr.skip()] * _NOTHING]
    told = [el("p", coded(text)) for text in ("The form shows this recipe now.", *read.notes)]
    return [notice("good", "Loaded", *told), *merge_form.fill(recipe.to_dict())]


def _asked_for(
    service: Service, query: Any, visitor: Visitor | None, kept: Any, count: int
) -> tuple[Mapping[str, Any], Mapping[str, Any], HubmergeError | None]:
    """The recipe and target to open with, and what is wrong with the address.

    `kept`: the values that the browser kept for this very address; a form has `count` of them.
    """
    if job_id := str(query.get("job") or ""):
        job = service.job(job_id, visitor)
        if visitor is None or visitor.name != job.user:
            return merge_form.fillable(job.recipe), {"name": ""}, None
        namespace, _, name = job.target.partition("/")  # the same target again is the same job, which goes on
        visibility = "private" if job.private else "public"
        target = {"namespace": namespace, "name": name, "visibility": visibility, "license": job.license}
        return merge_form.fillable(job.recipe), target, None
    if isinstance(kept, list) and len(kept) == count:  # another version of the form has other fields
        with suppress(RecipeError, ValueError, StopIteration, RuntimeError, TypeError):
            target = dict(zip(_TARGET, kept[-len(_TARGET) :], strict=True))
            return merge_form.recipe_of(kept[: -len(_TARGET)]), target, None
    if all(key.startswith("__") for key in query):
        return {}, {}, None
    recipe, name, problems = read_address(query, service.endpoint)
    wrong = RecipeError("part of the address cannot be used", problems=problems) if problems else None
    return recipe, {"name": name}, wrong
