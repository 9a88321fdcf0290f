"""Compare variants: several values of a setting, or several methods, for the models of the form, each a merge.

The fields stand in the address as `also=METHOD` and `vary=SETTING:VALUE,VALUE`; the page's script keeps them there. The
variants are those of a sweep (hubmerge/recipe/sweep.py), and each becomes a job.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.datastructures import QueryParams

from hubmerge.errors import HubmergeError, RecipeError
from hubmerge.methods import registry
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.sweep import MAX_VARIANTS, Sweep
from hubmerge.text.plain_yaml import load_plain_yaml
from workflows.app.format import duration_text, el, join, link
from workflows.app.forms import fields_of, unusual
from workflows.app.frame import AT_ONCE, PRIVATE, QUIET, choice_box, html, text_box
from workflows.app.job_steps import TERMINAL
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_form import MergeForm
from workflows.app.merge_script import COUNT, SWEPT, UNNAMED
from workflows.app.panels import SIGNED_OUT, access_offer, method_choices, method_title, notice, problems_panel
from workflows.app.session import for_visitor, writer_of
from workflows.app.submission import checked_sweep, chosen_target, newest_ticket, sweep_requests
from workflows.service import Service
from workflows.values import JobView, Visitor

_SETTINGS = 2  # that may have several values at once
_NAMED = 12  # variants that are named before they are started
_LONGEST = 500  # characters of a field of values
RecipeOf = Callable[[Any], dict[str, Any]]
EMPTY = el("p", "Give a setting several values, or choose another method beside the one above.", cls="hm-dim")


@dataclass(frozen=True)
class SweepForm:
    """The components; `inputs` are the methods, then each setting with its values."""

    methods: Any
    pairs: tuple[tuple[Any, Any], ...]
    told: Any
    start: Any
    started: Any  # apart from `told`, since leaving a field for the button counts once more
    fold: Any

    @property
    def inputs(self) -> list[Any]:
        return [self.methods, *(part for pair in self.pairs for part in pair)]

    @property
    def opened(self) -> list[Any]:
        """The components that `opened_with` gives values for."""
        return [*self.inputs, self.told, self.fold]


def build_sweep(method: str) -> SweepForm:
    """Make the components inside the current Blocks context; `method` is the form's."""
    with gr.Accordion("Compare variants", open=False, elem_classes="hm-card", elem_id="sweep") as fold:
        about = "Each with its usual settings, beside the method that is chosen above."
        methods = choice_box("sweep-methods", "Other methods, too", method_choices(), [], about, multiselect=True)
        pairs = []
        for number in range(_SETTINGS):
            with gr.Row():
                label, about = "Another setting" if number else "Setting", "Of the method that is chosen above."
                settings = [("none", ""), *settings_of(method)]
                setting = choice_box(f"sweep-setting-{number}", label, settings, "", about, min_width=200)
                name, about = f"sweep-values-{number}", "Separated by commas."
                values = text_box(name, "Values to try", about, "0.2, 0.5, 0.8", _LONGEST)
            pairs.append((setting, values))
        told = html(EMPTY, "sweep-told", padding=True)
        start = gr.Button("Start all variants", interactive=False, elem_id="sweep-start")
        started = html(name="sweep-started", padding=True)
    return SweepForm(methods, tuple(pairs), told, start, started, fold)


def settings_of(method: str) -> list[tuple[str, str]]:
    """The settings of a method, in its words, that may have several values."""
    known = registry().get(method)
    return [(f"{f.name}: {f.description}"[:90], f.name) for f in fields_of(known)] if known else []


def wire_sweep(
    sweep: SweepForm,
    form: MergeForm,
    start_one: Any,
    recipe: RecipeOf,
    service: Service,
    lanes: Lanes,
    inspected: Any,
    jobs_per_user: int,
) -> None:
    """`recipe` makes one from the values of `form.recipe_inputs`; HubmergeError where there is none.

    `start_one`: the button that starts the form's merge alone; it stands back while there are variants to start.

    `inspected`: the event after which the form's models and settings are other ones, so that variants count anew.

    `jobs_per_user`: how many may wait or run at once.
    """
    count = len(sweep.inputs)

    def checked(values: Sequence[Any]) -> Sweep:
        """The sweep of the form: `count` values of the sweep, then the recipe's."""
        methods, *parts = values[:count]
        pairs = [(str(parts[k] or ""), str(parts[k + 1] or "")) for k in range(0, len(parts), 2)]
        return checked_sweep(sweep_of(recipe(values[count:]), methods or (), pairs))

    def counting(visitor: Visitor | None, namespace: str | None, *values: Any) -> list[Any]:
        methods, *parts = values[:count]
        if not methods and not any(str(text or "").strip() for text in parts[1::2]):
            return [EMPTY, *_buttons(0)]  # nothing asks for a second variant
        variants = checked(values).variants
        plan = service.inspect(variants[0][1].to_dict(), visitor)
        seconds = {}
        for _, variant in variants:
            if variant.method not in seconds:
                predicted = plan_summary(make_plan(variant, plan.base, plan.agents))["predicted_seconds"]
                seconds[variant.method] = float(predicted)
        total = sum(seconds[variant.method] for _, variant in variants)
        jobs = service.jobs(visitor) if visitor else []
        # evaluations have a limit of their own
        under_way = sum(job.kind != "evaluate" and job.state not in TERMINAL for job in jobs)
        return [
            counted_panel(
                [name for name, _ in variants],
                total,
                signed_in=bool(namespace),
                limit=jobs_per_user,
                under_way=under_way,
            ),
            *_buttons(len(variants), bool(namespace)),
        ]

    def starting(visitor: Visitor | None, *values: Any) -> Any:
        *target, license_choice = values[:5]
        jobs: list[JobView] = []
        newest = 0
        try:
            writer, wanted = writer_of(service, visitor), checked(values[5:])
            newest = newest_ticket(service, writer)
            to = chosen_target(service, writer, wanted.variants[0][1], target, license_choice)
            for request in sweep_requests(wanted, license=license_choice, visitor=writer, **to):
                jobs.append(service.submit(request, writer))
        except HubmergeError as error:
            rest = el("p", "Start again when there is room: those that are under way are found, the others are added.")
            told = problems_panel(error, signed_in=visitor is not None)
            offer = access_offer(error, visitor or SIGNED_OUT, service.endpoint)
            return join(started_panel(jobs, newest), offer, told, rest if jobs else None)
        return started_panel(jobs, newest)

    outputs = [sweep.told, sweep.start, start_one]
    counted = [form.namespace, *sweep.inputs, *form.recipe_inputs]
    settings, values = zip(*sweep.pairs, strict=True)
    changes = [box.input for box in (sweep.methods, *settings)]
    changes += [event for box in values for event in (box.submit, box.blur)]
    # one count at a time, and the last is of what stands there: an older answer must not come after a newer one
    count_again = gr.Button("Count the variants", visible="hidden", elem_id="count-variants")
    asked = lanes.asking(for_visitor(counting), lambda error: [problems_panel(error), *_buttons(0)])
    count_again.click(asked, counted, outputs, trigger_mode="always_last", **ASKING, **QUIET)
    left = gr.on(changes, None, sweep.inputs, None, js=SWEPT, queue=False, **PRIVATE)
    # another method has other settings
    methods = [form.method, *sweep.inputs]
    resettled = form.method.change(_resettled, methods, sweep.inputs[1:], trigger_mode="multiple", **AT_ONCE)
    for event in (left, resettled, inspected):
        event.then(None, None, None, js=COUNT, queue=False, **PRIVATE)
    start = lanes.asking(for_visitor(starting), problems_panel)
    held = [*form.target_inputs, *sweep.inputs, *form.recipe_inputs]
    sweep.start.click(start, held, [sweep.started], js=UNNAMED, **ASKING, **PRIVATE)


def opened_with(query: QueryParams, method: str) -> list[Any]:
    """Updates for `SweepForm.opened`: what an address says, without what cannot be; `method` is the form's."""
    listed = settings_of(method)
    known = {name for _, name in listed}
    methods: list[str] = []
    pairs: list[tuple[str, str]] = []
    wrong: list[str] = []
    for name in query.getlist("also"):
        (methods if name in registry() else wrong).append(name)
    for name, _, text in (value.partition(":") for value in query.getlist("vary")):
        if name in known and len(pairs) < _SETTINGS:
            pairs.append((name, text[:_LONGEST]))
        else:
            wrong.append(name)
    if wrong:
        what, got = "the address asks for variants of what is not there", ", ".join(wrong)[:100]
        told = problems_panel(RecipeError(what, where="the address", got=got, next_step="Choose it here."))
    elif not methods and not pairs:  # nothing that was chosen meanwhile is taken away
        return [gr.skip(), *[_choices(listed), gr.skip()] * _SETTINGS, gr.skip(), gr.skip()]
    else:
        told = el("p", "Leave a field of values to see how many variants these are.", cls="hm-dim")
    left = [*pairs, *[("", "")] * (_SETTINGS - len(pairs))]
    fields = [part for name, text in left for part in (_choices(listed, value=name), text)]
    return [methods, *fields, told, gr.update(open=bool(methods or pairs or wrong))]


def _choices(listed: Sequence[tuple[str, str]], **value: str) -> Any:
    return gr.update(choices=[("none", ""), *listed], **value)


def sweep_of(recipe: Mapping[str, Any], methods: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The sweep, as users write it, over the form's recipe; RecipeError for values that cannot be read.

    What is as usual is left out, since a variant's name has every parameter.
    """
    shared = {key: value for key, value in recipe.items() if key not in ("method", "parameters", "rounding")}
    known = registry().get(recipe["method"])
    stated = recipe.get("parameters") or {}
    stated = unusual(known, stated) if known else stated
    # a list of a sweep is a choice, so that a list over the layers is a list of one
    parameters = {k: [v] if isinstance(v, list) else v for k, v in stated.items()}
    parameters |= {name: _values(name, text) for name, text in pairs if name and text.strip()}
    own: dict[str, Any] = {"method": recipe["method"], "parameters": parameters}
    if recipe.get("rounding"):
        own["rounding"] = recipe["rounding"]
    others = [{"method": name} for name in methods if name != recipe["method"]]
    return {**shared, "sweep": [own, *others]}


def _values(name: str, text: str) -> list[Any]:
    parts = text if "[" in text or "{" in text else ", ".join(part for part in re.split(r"[,;\s]+", text) if part)
    try:
        values = load_plain_yaml(f"[{parts}]")
    except ValueError:
        values = None
    if not isinstance(values, list) or not values:
        raise RecipeError(
            "these values cannot be read",
            where=f"compare variants, {name}",
            expected="values with commas between them, such as 0.2, 0.5",
            got=text[:100],
        )
    return list(dict.fromkeys(values)) if all(isinstance(v, int | float | str | bool) for v in values) else values


def counted_panel(
    names: Sequence[str], seconds: float, *, signed_in: bool, limit: int = MAX_VARIANTS, under_way: int = 0
) -> Markup:
    """How many variants there are, their names, and how long they take one after the other.

    `limit`: the jobs that one user may have at once, of which the visitor has `under_way`.
    """
    if len(names) == 1:
        return el("p", "This is one variant alone: give a setting a second value, or choose a method.", cls="hm-dim")
    room, limited = max(0, limit - under_way), None
    if len(names) > room:
        has = f", and you have {under_way}" if under_way else ""
        these = f"only {room} of these can" if room else "none of these can"
        told = f"One user may have {limit} jobs waiting or running{has}: {these} start now, the others later."
        limited = el("p", told)
    count = f"{len(names)} variants, about {duration_text(max(1, seconds))} one after the other."
    shown = [el("li", _in_words(name)) for name in names[:_NAMED]]
    if len(names) > _NAMED:
        shown.append(el("li", f"and {len(names) - _NAMED} more"))
    return join(
        el("p", el("strong", count), f" At most {MAX_VARIANTS} variants at once."),
        limited,
        el("ul", *shown),
        el("p", "Each becomes a repo of its own, named after yours and the variant.", cls="hm-dim"),
        None if signed_in else el("p", "Sign in to start them.", cls="hm-dim"),
    )


def _in_words(variant: str) -> str:
    """The name of a variant with its method's title; ram_plus begins with ram, so that the longest is meant."""
    method = max((name for name in registry() if f"{variant}_".startswith(f"{name}_")), key=len, default="")
    settings = re.sub(r"(?<=[a-z])(?:_(?=-)|-)", " ", variant.removeprefix(method).removeprefix("_"))
    return ", ".join(filter(None, (method_title(method), settings)))


def _buttons(count: int, can_start: bool = False) -> list[Any]:
    """Updates for the button that starts all variants and for the one that starts a single merge: one stands out."""
    if count < 2:
        return [
            gr.update(value="Start all variants", variant="secondary", interactive=False),
            gr.update(value="Start merge", variant="primary"),
        ]
    return [
        gr.update(value=f"Start {count} merges", variant="primary", interactive=can_start),
        gr.update(value="Start one merge", variant="secondary"),
    ]


def _resettled(method: str, *values: Any) -> list[Any]:
    """The fields after the method changed: settings that the new one has keep their values."""
    listed = settings_of(method)
    names = {name for _, name in listed}
    _, *parts = values
    updates: list[Any] = []
    for setting in parts[::2]:
        lost = setting and setting not in names
        # what is as it was is left alone, as an address may be filling it at this moment
        updates.append(_choices(listed, value="") if lost else _choices(listed))
        updates.append("" if lost else gr.skip())
    return updates


def started_panel(jobs: Sequence[JobView], newest: int = -1) -> Markup | None:
    """The jobs of the variants, each with the way to its page; those up to the ticket `newest` existed before."""
    if not jobs:
        return None
    known = [job.ticket <= newest for job in jobs]
    items = [
        el("li", link(f"job?id={job.id}", job.target), " exists already" if found else "")
        for job, found in zip(jobs, known, strict=True)
    ]
    count = known.count(False)
    told = f"{count} merges started" if count > 1 else "One merge started" if count else "Nothing new was started"
    told_of = el("ul", *items), el("p", link("activity", "See them under Activity"))
    return notice("good" if count else "info", told, *told_of)
