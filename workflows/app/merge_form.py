"""The form of the merge page: its components, the recipe that they hold, and how a recipe fills them.

The form holds every method's parameters at once, in groups of which it shows one, and the weights of as many agents as
a recipe may have. So values survive a change of the method, and the server keeps nothing between two events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import gradio as gr

from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.plan.licenses import KNOWN
from hubmerge.recipe.recipe import MAX_AGENTS
from workflows.app.forms import component_of, fields_of, parameters_of, values_of
from workflows.app.panels import method_panel

DEFAULT_METHOD = "ram_plus"
DTYPES = (("as in the base", ""), "bfloat16", "float16", "float32")
ROUNDINGS = (("by the method", ""), "nearest", "stochastic")
VISIBILITIES = ("automatic", "public", "private")
LICENSES = (("as the parents demand", ""), *KNOWN, "other")


@dataclass(frozen=True)
class MergeForm:
    """The components; `recipe_inputs` is the order in which handlers get them and `recipe_of` reads them."""

    base: Any
    agents: Any
    weighted: Any  # hidden: the agents to which the weights belong, in order
    weights: tuple[Any, ...]
    method: Any
    about: Any
    groups: tuple[Any, ...]  # one per method, in the registry's order
    parameters: tuple[Any, ...]  # of all methods
    dtype: Any
    rounding: Any
    seed: Any
    ignore: Any
    namespace: Any
    name: Any
    visibility: Any
    license: Any

    @property
    def recipe_inputs(self) -> list[Any]:
        return [
            *(self.base, self.agents, *self.weights, self.method, *self.parameters),
            *(self.dtype, self.rounding, self.seed, self.ignore),
        ]

    @property
    def filled(self) -> list[Any]:
        """The components that `fill` gives values for."""
        return [*self.recipe_inputs, self.weighted]

    @property
    def target_inputs(self) -> list[Any]:
        return [self.namespace, self.name, self.visibility, self.license]


def build_form() -> MergeForm:
    """Make the components inside the current Blocks context."""
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h3>Models</h3>", elem_classes="hm-card-title")
        base = gr.Dropdown(
            choices=[],
            value=None,
            allow_custom_value=True,
            label="Base",
            info="The model that every agent was trained from. Type to search, or write org/name@revision.",
            elem_id="base",
        )
        agents = gr.Dropdown(
            choices=[],
            value=[],
            multiselect=True,
            allow_custom_value=True,
            max_choices=MAX_AGENTS,
            label="Agents",
            info="Two or more; their order is kept.",
            elem_id="agents",
        )
        weighted = gr.JSON(value=[], visible=False)
        with gr.Accordion("Weights", open=False, elem_id="weights"), gr.Row(elem_classes="hm-weights"):
            weights = tuple(
                gr.Number(value=1.0, label=f"Agent {k + 1}", step=0.1, min_width=150, visible=False, interactive=True)
                for k in range(MAX_AGENTS)
            )
    method, about, groups, parameters = _method_card()
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h3>Result</h3>", elem_classes="hm-card-title")
        with gr.Row():
            namespace = gr.Dropdown(
                choices=[],
                value=None,
                label="Owner",
                info="You, or an organisation of yours.",
                interactive=True,
                scale=1,
                min_width=150,
                elem_id="namespace",
            )
            name = gr.Textbox(
                label="Name",
                info="A new model repo of this name.",
                placeholder="my-merge",
                max_length=96,
                scale=2,
                min_width=200,
                elem_id="target-name",
            )
        with gr.Row():
            visibility = gr.Radio(
                choices=list(VISIBILITIES),
                value=VISIBILITIES[0],
                label="Visibility",
                info="Automatic: private if a parent is gated or private.",
                scale=3,
                min_width=250,
                elem_id="visibility",
            )
            license_choice = gr.Dropdown(
                choices=list(LICENSES),
                value="",
                label="License",
                info="Yours to choose where they leave it open.",
                scale=2,
                min_width=200,
                elem_id="license",
            )
    with gr.Accordion("Advanced", open=False, elem_classes="hm-card"):
        with gr.Row():
            dtype = gr.Dropdown(choices=list(DTYPES), value="", label="Output dtype", min_width=150, elem_id="dtype")
            rounding = gr.Dropdown(
                choices=list(ROUNDINGS), value="", label="Rounding", min_width=150, elem_id="rounding"
            )
            seed = gr.Number(value=0, precision=0, label="Seed", min_width=120, elem_id="seed")
        ignore = gr.Textbox(
            label="Ignore",
            info="Tensors that are not merged, by name, with * for anything: left out of agents, kept from the base.",
            placeholder="v_head.*, *.rotary_emb.inv_freq",
            max_length=9000,
            elem_id="ignore",
        )
    return MergeForm(
        *(base, agents, weighted, weights, method, about, groups, parameters),
        *(dtype, rounding, seed, ignore, namespace, name, visibility, license_choice),
    )


def _method_card() -> tuple[Any, Any, tuple[Any, ...], tuple[Any, ...]]:
    methods = registry()
    first = DEFAULT_METHOD if DEFAULT_METHOD in methods else next(iter(methods))
    groups, parameters = [], []
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h3>Method</h3>", elem_classes="hm-card-title")
        method = gr.Dropdown(
            choices=[(m.title, m.name) for m in methods.values()], value=first, label="Method", elem_id="method"
        )
        about = gr.HTML(method_panel(methods[first]), js_on_load=None, elem_id="about-method")
        for m in methods.values():
            fields = fields_of(m)
            with gr.Row(visible=m.name == first and bool(fields), elem_id=f"parameters-{m.name}") as group:
                parameters += [component_of(field) for field in fields]
            groups.append(group)
    return method, about, tuple(groups), tuple(parameters)


def recipe_of(values: Sequence[Any]) -> dict[str, Any]:
    """The recipe, as users write it, that `recipe_inputs` hold; RecipeError only for a parameter that is no YAML."""
    rest = iter(values)
    base, agents = next(rest), list(next(rest) or ())
    weights = list(islice(rest, MAX_AGENTS))
    method = next(rest)
    parameters: dict[str, Any] = {}
    for m in registry().values():
        fields = fields_of(m)
        held = list(islice(rest, len(fields)))
        if m.name == method:
            parameters = parameters_of(fields, held)
    dtype, rounding, seed, ignore = rest
    recipe: dict[str, Any] = {
        "base": str(base or "").strip(),
        "agents": [_agent(str(name).strip(), weight) for name, weight in zip(agents, weights, strict=False)],
        "method": str(method or ""),
    }
    if parameters:
        recipe["parameters"] = parameters
    if dtype:
        recipe["dtype"] = dtype
    if rounding:
        recipe["rounding"] = rounding
    if patterns := str(ignore or "").replace(",", " ").split():
        recipe["ignore"] = patterns
    return {**recipe, "seed": 0 if seed is None else seed}


def _agent(name: str, weight: Any) -> Any:
    return name if weight is None or weight == 1 else {"model": name, "weight": weight}


def fillable(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe; RecipeError where it has parts that the form has no fields for and would drop."""
    beyond = [
        f"weight of agent {k}"
        for k, agent in enumerate(recipe.get("agents") or (), 1)
        if isinstance(agent, Mapping) and isinstance(agent.get("weight"), list)
    ]
    for k, agent in enumerate(recipe.get("agents") or (), 1):
        if not isinstance(agent, Mapping):
            continue
        own = agent.get("parameters")
        beyond += [f"{key} of agent {k}" for key in own] if isinstance(own, Mapping) else []
        beyond += [f"{key} of agent {k}" for key in ("sensitivity", "calibration") if agent.get(key)]
    given = recipe.get("parameters")
    beyond += [key for key, value in given.items() if isinstance(value, list)] if isinstance(given, Mapping) else []
    beyond += [key for key in ("calibration", "tokenizer") if recipe.get(key)]
    if beyond:
        raise RecipeError(
            "the form has no fields for all of it: it has one number for all tensors and agents, no calibration data"
            " and no tokenizer",
            where="the recipe",
            got=", ".join(beyond)[:200],
            next_step="Merge this recipe through the API, or with `hubmerge run recipe.yaml --to owner/name`.",
        )
    return recipe


def fill(recipe: Mapping[str, Any]) -> list[Any]:
    """Updates for `MergeForm.filled`; a recipe that is only half there fills what it has."""
    pairs = [_name_and_weight(agent) for agent in recipe.get("agents") or ()][:MAX_AGENTS]
    names = [name for name, _ in pairs]
    base = str(recipe.get("base") or "") or None
    method = str(recipe.get("method") or "")
    given = recipe.get("parameters")
    updates = [
        gr.update(value=base, choices=[base] if base else []),
        gr.update(value=names, choices=names),
        *weight_updates(names, dict(pairs)),
        gr.update(value=method) if method in registry() else gr.skip(),
    ]
    for m in registry().values():
        fields = fields_of(m)
        if m.name == method and isinstance(given, Mapping):
            updates += [gr.update(value=value) for value in values_of(fields, given)]
        else:
            updates += [gr.skip()] * len(fields)
    for key, known in (("dtype", DTYPES), ("rounding", ROUNDINGS)):
        value = recipe.get(key)
        updates.append(gr.update(value=value if value in known else ""))
    seed, ignore = recipe.get("seed"), recipe.get("ignore")
    updates.append(gr.update(value=seed if isinstance(seed, int) else 0))
    updates.append(gr.update(value=", ".join(map(str, ignore)) if isinstance(ignore, list | tuple) else ""))
    return [*updates, names]


def _name_and_weight(agent: Any) -> tuple[str, float]:
    if not isinstance(agent, Mapping):
        return str(agent), 1.0
    weight = agent.get("weight")
    return str(agent.get("model", "")), float(weight) if isinstance(weight, int | float) else 1.0


def weight_updates(names: Sequence[str], weights: Mapping[str, float]) -> list[Any]:
    """One number per agent, labelled with it; the others are hidden."""
    shown = [gr.update(label=_short(name), value=weights.get(name, 1.0), visible=True) for name in names]
    return [*shown, *(gr.update(value=1.0, visible=False) for _ in range(MAX_AGENTS - len(names)))]


def _short(name: str) -> str:
    return name if len(name) <= 60 else "…" + name[-59:]


def reweight(names: Sequence[str] | None, before: Sequence[str] | None, *weights: Any) -> list[Any]:
    """After the agents changed: each keeps its weight, a new one has 1."""
    known = {n: w for n, w in zip(before or (), weights, strict=False) if isinstance(w, int | float)}
    now = [str(n) for n in names or ()][:MAX_AGENTS]
    return [now, *weight_updates(now, known)]


def show_method(name: str) -> list[Any]:
    """The method's description, and which group of parameters is visible."""
    methods = registry()
    about = method_panel(methods[name]) if name in methods else ""
    return [about, *(gr.update(visible=m.name == name and bool(fields_of(m))) for m in methods.values())]
