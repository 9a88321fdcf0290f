"""The form of the merge page: its components, the recipe that they hold, and how a recipe fills them.

The form holds every method's parameters at once, in groups of which it shows one, and the weights of as many agents as
a recipe may have. So values survive a change of the method, and the server keeps nothing between two events.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import gradio as gr

from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.plan.licenses import KNOWN
from hubmerge.recipe.recipe import MAX_AGENTS, MAX_RECIPE_BYTES
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml
from workflows.app import forms
from workflows.app.frame import AS_IT_IS, choice_box, html, number_box, radio_box, text_box, titled
from workflows.app.panels import method_choices, method_panel
from workflows.app.search import model_box

DEFAULT_METHOD = "ram_plus"
DTYPES = (("as in the base", ""), "bfloat16", "float16", "float32")
ROUNDINGS = (("by the method", ""), "nearest", "stochastic")
SIMPLE = ("base", "agents", "method", "parameters", "dtype", "rounding", "seed", "ignore")  # what has its own fields
OTHER = "other"
# the first line is the title
PICKED: Mapping[str, str] = {
    "ram_plus": "RAM+ (recommended)\n"
    "Keeps what only one agent learned, a little strengthened, and averages what several learned.",
    "ram": "RAM\nKeeps what only one agent learned as it is, and averages what several learned.",
    "sar": "SAR\nWhere agents disagree, the one to which it matters more decides. Needs questions with answers.",
    OTHER: "Another method\nTIES, DARE, task arithmetic, plain averaging and more.",
}
VISIBILITIES = ("automatic", "public", "private")
_MORE = "tokenizer: base\nparameters: {lambda: [0.5, 1.0]}\nagents:\n  org/agent: {weight: [0, 1]}"
LICENSES = (("as the parents demand", ""), *KNOWN, "other")


@dataclass(frozen=True)
class MergeForm:
    """The components; `recipe_inputs` is the order in which handlers get them and `recipe_of` reads them."""

    base: Any
    agents: Any
    suggested: Any  # agents that were trained from the base, to tick
    offered: Any  # hidden: those that `suggested` shows
    weighted: Any  # hidden: the agents to which the weights belong, in order
    weights: tuple[Any, ...]
    pick: Any  # the methods that most need, or all others
    method: Any
    about: Any
    groups: tuple[Any, ...]  # one per method, in the registry's order
    parameters: tuple[Any, ...]  # of all methods
    calibration: forms.CalibrationForm
    dtype: Any
    rounding: Any
    seed: Any
    ignore: Any
    more: Any  # YAML: what a recipe can say beyond the fields
    suite: Any
    namespace: Any
    name: Any
    visibility: Any
    license: Any
    folds: tuple[Any, ...]  # of the weights, the method's settings, the calibration's rows, and what is advanced

    @property
    def recipe_inputs(self) -> list[Any]:
        return [
            *(self.base, self.agents, *self.weights, self.method, *self.parameters),
            *(self.dtype, self.rounding, self.seed, self.ignore, self.more, *self.calibration.inputs),
        ]

    @property
    def filled(self) -> list[Any]:
        """The components that `fill` gives values for; `folds` follow them."""
        return [*self.recipe_inputs, self.weighted]

    @property
    def of_method(self) -> list[Any]:
        """The components that `show_method` makes updates for."""
        return [self.about, *self.groups, self.calibration.card]

    @property
    def kept(self) -> list[Any]:
        """The part of the form that the browser keeps."""
        return [*self.recipe_inputs, *self.target_inputs]

    @property
    def target_inputs(self) -> list[Any]:
        return [self.suite, self.namespace, self.name, self.visibility, self.license]


def build_form(suites: Mapping[str, str]) -> MergeForm:
    """Make the components inside the current Blocks context. `suites`: name → title, the usual one first."""
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h1 class='hm-unseen'>Merge</h1><h2>1 · Models</h2>", elem_classes="hm-card-title")
        about = "The model that every agent was trained from. Search, or paste its name or address."
        base = model_box("base", "Base", about)
        about = "Two or more. Search, or paste names or addresses, also several at once."
        agents = model_box("agents", "Agents", about, several=True)
        suggested = gr.CheckboxGroup(
            choices=[],
            value=[],
            label="Trained from this base",
            info="Agents whose cards name the chosen base appear here, to tick.",
            interactive=True,
            elem_id="suggested",
            elem_classes=AS_IT_IS,
        )
        offered = gr.JSON(value=[], visible=False)
        weighted = gr.JSON(value=[], visible=False)
        with gr.Accordion("Weights", open=False, elem_id="weights") as weights_fold, gr.Row(elem_classes=AS_IT_IS):
            weights = tuple(
                gr.Number(value=1.0, label=f"Agent {k + 1}", step=0.1, min_width=150, visible=False, interactive=True)
                for k in range(MAX_AGENTS)
            )
    groups, parameters = [], []
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h2>2 · Method</h2>", elem_classes="hm-card-title")
        pick = radio_box("pick", "How the agents are combined", titled(PICKED), DEFAULT_METHOD)
        # unmounted it would not tell of its changes
        method = choice_box("method", "Method", method_choices(), DEFAULT_METHOD, visible="hidden")
        with gr.Accordion("How it works, and its settings", open=False, elem_id="settings") as settings_fold:
            described = html(method_panel(registry()[DEFAULT_METHOD]), "about-method")
            for m in registry().values():
                with gr.Row(visible=m.name == DEFAULT_METHOD, elem_id=f"parameters-{m.name}") as group:
                    parameters += [forms.component_of(field) for field in forms.fields_of(m)]
                groups.append(group)
    calibration = forms.build_calibration()
    with gr.Group(elem_classes="hm-card"):
        gr.HTML("<h2>3 · Publish</h2>", elem_classes="hm-card-title")
        with gr.Row():
            about = "You, or an organisation of yours."
            namespace = choice_box("namespace", "Owner", (), None, about, interactive=True, scale=1, min_width=150)
            name = text_box("target-name", "Name", "The model is published under this name.", "my-merge", 96, scale=2)
        with gr.Row():
            about, wide = "Automatic: private if a parent is gated or private.", {"scale": 3, "min_width": 250}
            visibility = radio_box("visibility", "Visibility", VISIBILITIES, VISIBILITIES[0], about, **wide)
            about = "The parents leave it open, so it is yours to choose."
            sizes = {"scale": 2, "min_width": 200}
            license_choice = choice_box("license", "License", LICENSES, "", about, visible=False, **sizes)
        about = "A public merge and its parents are measured with it; a private one is not."
        usual = next(iter(suites), None)
        suite = choice_box("suite", "Evaluate with", titled(suites), usual, about, visible=bool(suites))
    with gr.Accordion("Advanced", open=False, elem_classes="hm-card", elem_id="advanced") as advanced:
        with gr.Row():
            dtype = choice_box("dtype", "Output dtype", DTYPES, "", min_width=150)
            rounding = choice_box("rounding", "Rounding", ROUNDINGS, "", min_width=150)
            seed = number_box("seed", "Seed", 0, min_width=120)
        about = "Tensors that are not merged, by name, with * for anything: left out of agents, kept from the base."
        ignore = text_box("ignore", "Ignore", about, "v_head.*, *.rotary_emb.inv_freq", 9000)
        about = "What has no field here: a tokenizer, or what differs between layers or agents."
        more = text_box("more", "More of the recipe, as YAML", about, _MORE, MAX_RECIPE_BYTES, lines=4)
    return MergeForm(
        *(base, agents, suggested, offered, weighted, weights),
        *(pick, method, described, tuple(groups), tuple(parameters), calibration),
        *(dtype, rounding, seed, ignore, more, suite, namespace, name, visibility, license_choice),
        (weights_fold, settings_fold, calibration.fold, advanced),
    )


# A method and its entry in the short list follow each other in the browser, since an answer of the server would come
# after the next click and undo it. The list of all methods is seen where it is needed.
SHOW_PICK = f"""(method) => {{ const listed = {json.dumps(list(PICKED))}.includes(method);
  return [listed ? method : "{OTHER}", {{__type__: "update", visible: listed ? "hidden" : true}}]; }}"""
PICK_METHOD = f"""(pick) => pick === "{OTHER}" ? {{__type__: "update", visible: true}}
  : {{__type__: "update", value: pick, visible: "hidden"}}"""


def recipe_of(values: Sequence[Any]) -> dict[str, Any]:
    """The recipe, as users write it, that `recipe_inputs` hold; RecipeError only for what is no YAML, or said twice."""
    rest = iter(values)
    base, agents = next(rest), [str(name).strip() for name in next(rest) or ()]
    weights = list(islice(rest, MAX_AGENTS))
    method = next(rest)
    parameters: dict[str, Any] = {}
    for m in registry().values():
        fields = forms.fields_of(m)
        held = list(islice(rest, len(fields)))
        if m.name == method:
            parameters = forms.parameters_of(fields, held)
    dtype, rounding, seed, ignore, more, *calibration = rest
    recipe: dict[str, Any] = {"base": str(base or "").strip(), "agents": agents, "method": str(method or "")}
    ignored = str(ignore or "").replace(",", " ").split()
    stated = {"parameters": parameters, "dtype": dtype, "rounding": rounding, "ignore": ignored}
    recipe |= {key: value for key, value in stated.items() if value}
    specs = forms.given(*calibration) if forms.uses_calibration(recipe["method"]) else {}
    if forms.EVERYONE in specs:
        recipe["calibration"] = specs[forms.EVERYONE]
    recipe |= {} if seed is None else {"seed": seed}
    beyond = read_more(more, recipe)
    if strangers := [str(name) for name in beyond.get("agents", {}) if name not in agents]:
        raise _no_more("no agent of the form", ", ".join(agents), ", ".join(strangers))
    if own_parameters := beyond.pop("parameters", {}):
        recipe["parameters"] = {**parameters, **own_parameters}
    own = beyond.pop("agents", {})
    for name in specs.keys() & set(agents):
        own[name] = {"calibration": specs[name], **own.get(name, {})}
    recipe["agents"] = []
    for name, weight in zip_longest(agents, weights[: len(agents)]):  # too many are told, not left out
        settings = {**({} if weight is None or weight == 1 else {"weight": weight}), **own.get(name, {})}
        recipe["agents"].append({"model": name, **settings} if settings else name)
    return {**recipe, "seed": recipe.get("seed", 0), **beyond}


def read_more(text: Any, taken: Container[str]) -> dict[str, Any]:
    """The settings that YAML adds to the fields, none of which is `taken`, except `parameters` and `agents`."""
    if len(str(text or "")) > MAX_RECIPE_BYTES:
        raise _no_more("too long for a recipe", f"at most {MAX_RECIPE_BYTES:,} characters", f"{len(str(text)):,}")
    try:
        more = load_plain_yaml(str(text)) if str(text or "").strip() else {}
    except ValueError as error:
        raise _no_more("no YAML", "key: value", str(error)) from None
    if not isinstance(more, dict):
        raise _no_more("no mapping", "key: value", type(more).__name__)
    if twice := sorted(key for key in more if key in taken and key not in ("parameters", "agents")):
        raise _no_more("the form has a field for it", "what has no field", ", ".join(twice))
    parameters, own = more.get("parameters", {}), more.get("agents", {})
    if not isinstance(parameters, dict):
        raise _no_more("parameters is no mapping", "parameters: {name: value}", type(parameters).__name__)
    if not isinstance(own, dict) or not all(isinstance(settings, dict) for settings in own.values()):
        raise _no_more("agents is no mapping of mappings", "agents: {org/name: {weight: …}}", str(own))
    return more


def _no_more(what: str, expected: str, got: str) -> RecipeError:
    where = "more of the recipe"
    return RecipeError(what, where=where, expected=expected[:200], got=got[:200], next_step="Change it under Advanced.")


def fillable(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe; RecipeError where an agent stands in it twice, since the form knows agents by their names."""
    names = [_name_of(agent) for agent in recipe.get("agents") or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RecipeError(
            "an agent is there twice, and the form holds each once",
            where="the recipe",
            got=", ".join(twice)[:200],
            next_step="Give it once, with the sum of its weights, or use the API.",
        )
    return recipe


def fill(recipe: Mapping[str, Any]) -> list[Any]:
    """Updates for `MergeForm.filled` and `folds`; a recipe that is only half there fills what it has.

    What it says beyond the fields goes into the box of YAML. A fold opens where something in it is not as usual.
    """
    agents = list(recipe.get("agents") or ())
    names = [_name_of(agent) for agent in agents]
    own = {_name_of(agent): dict(agent) for agent in agents if isinstance(agent, Mapping)}
    weights, data = {}, {}
    for name, settings in own.items():
        settings.pop("model", None)
        if isinstance(settings.get("weight"), int | float):
            weights[name] = float(settings.pop("weight"))
        if isinstance(settings.get("calibration"), Mapping):
            data[name] = settings.pop("calibration")
    base = str(recipe.get("base") or "") or None
    method, stated = str(recipe.get("method") or ""), recipe.get("parameters")
    parameters = dict(stated) if isinstance(stated, Mapping) else {}
    updates = [
        gr.update(value=base, choices=[base] if base else []),
        gr.update(value=names, choices=names),
        *weight_updates(names, weights),
        gr.update(value=method) if method in registry() else gr.skip(),
    ]
    beyond: dict[str, Any] = {}
    for m in registry().values():
        fields = forms.fields_of(m)
        if m.name == method:
            kinds, defaults = {f.name: f.kind for f in fields}, {f.name: f.default for f in fields}
            beyond = {k: v for k, v in parameters.items() if k not in kinds or not forms.holds(kinds[k], v)}
            # the form leaves out what is as usual, where it may not be left out beside a preset
            beyond |= {k: v for k, v in forms.unusual(m, parameters).items() if k in kinds and v == defaults[k]}
            updates += [gr.update(value=value) for value in forms.values_of(fields, without(parameters, beyond))]
        else:
            updates += [gr.skip()] * len(fields)
    for key, known in (("dtype", DTYPES), ("rounding", ROUNDINGS)):
        value = recipe.get(key)
        updates.append(gr.update(value=value if value in known else ""))
    seed, ignore = recipe.get("seed", 0), recipe.get("ignore")
    held = forms.holds("integer", seed)
    updates.append(gr.update(value=seed if held else None))
    updates.append(gr.update(value=", ".join(map(str, ignore)) if isinstance(ignore, list | tuple) else ""))
    more = {
        **without(recipe, (*SIMPLE, "calibration")),
        **({} if held else {"seed": seed}),
        **({"parameters": beyond} if beyond else {}),
        **({"agents": left} if (left := {name: s for name, s in own.items() if s}) else {}),
    }
    updates.append(dump_plain_yaml(more) if more else "")
    advanced = any(recipe.get(key) for key in ("dtype", "rounding", "seed", "ignore")) or bool(more)
    weighed, rows = any(weight != 1 for weight in weights.values()), forms.unusual_rows(recipe.get("calibration"))
    chosen = registry().get(method)
    settings = forms.unusual(chosen, parameters) if chosen else parameters
    folds = [gr.update(open=True) if inside else gr.skip() for inside in (weighed, settings, rows, advanced)]
    return [*updates, *forms.fill_calibration(recipe.get("calibration"), data), names, *folds]


def without(values: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _name_of(agent: Any) -> str:
    return str(agent.get("model", "")) if isinstance(agent, Mapping) else str(agent)


def weight_updates(names: Sequence[str], weights: Mapping[str, float]) -> list[Any]:
    """One number per agent, labelled with it, as far as there are any; the others are hidden."""
    labels = {name: name if len(name) <= 60 else "…" + name[-59:] for name in names}
    shown = [gr.update(label=labels[name], value=weights.get(name, 1.0), visible=True) for name in names[:MAX_AGENTS]]
    return [*shown, *(gr.update(value=1.0, visible=False) for _ in range(MAX_AGENTS - len(names)))]


def reweight(names: Sequence[str] | None, before: Sequence[str] | None, *weights: Any) -> list[Any]:
    """After the agents changed: each keeps its weight, a new one has 1."""
    known = {n: w for n, w in zip(before or (), weights, strict=False) if isinstance(w, int | float)}
    now = [str(n) for n in names or ()]
    return [now, *weight_updates(now, known)]


def show_method(name: str) -> list[Any]:
    """The method's description, which group of parameters is visible, and whether calibration data is asked for."""
    methods = registry()
    about = method_panel(methods[name]) if name in methods else ""
    groups = [gr.update(visible=m.name == name and bool(forms.fields_of(m))) for m in methods.values()]
    return [about, *groups, gr.update(visible=forms.uses_calibration(name))]
