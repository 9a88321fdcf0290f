"""The fields that follow from a method: its parameters, derived from its pydantic model, and its calibration data.

`fields_of` reads name, type, range, default and description of every parameter, `component_of` makes the gradio
component, and `parameters_of` turns the components' values into a recipe's `parameters`. The form shows ranges, but
only the pydantic model checks them, so every surface refuses the same values in the same words. An empty field means
the default.

Calibration data has one set of fields, for every agent or for the one that is chosen above them. They are those of whom
`editing` names; what was given for others waits in `specs`. A method that weighs by sensitivities shows the card.
"""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import gradio as gr
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from hubmerge.errors import Problem, RecipeError
from hubmerge.methods import Method, registry
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.text.plain_yaml import load_plain_yaml
from workflows.app.frame import choice_box, number_box, text_box

Kind = Literal["number", "integer", "switch", "choice", "text", "yaml"]
# in words: a form shows the entity of a sign, not the sign
_LIMITS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
MAX_NUMBER = 2**53  # the largest whole number that every browser and reader of JSON takes
_HELD: Mapping[str, Any] = {"number": int | float, "integer": int, "switch": bool, "choice": str, "text": str}
_MARKDOWN = re.compile(r"([\\`*_\[\]#|~])")
EVERYONE = ""  # whose data counts for agents without data of their own
_FIELDS = ("data", "subset", "split", "revision", "prompt", "answer", "max_pairs", "max_tokens", "seed")
_OF_A_DATASET = ("data", "subset", "revision")  # of which another agent's may have others
_COLUMNS = (("prompt", "questions", "Question column"), ("answer", "answers", "Answer column"))
_DEFAULTS = {
    name: field.get_default() for name, field in CalibrationSpec.model_fields.items() if not field.is_required()
}


@dataclass(frozen=True)
class ParameterField:
    name: str  # as recipes write it
    kind: Kind
    description: str
    default: Any  # None: no value, the field starts empty
    required: bool
    bounds: str  # "0 to 1", "above 0", or "" without
    choices: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """Description, range and default in one line of Markdown that shows every character as it is."""
        parts = [self.description, self.bounds]
        if self.default is None:
            parts.append("required" if self.required else "optional")
        else:
            parts.append(f"default {_plain(self.default)}")
        return plain_markdown(" · ".join(part for part in parts if part))


def fields_of(method: Method) -> tuple[ParameterField, ...]:
    """The parameters of a method, in the order of its model."""
    found = []
    for name, info in method.parameters.model_fields.items():
        kind, choices = _kind(info.annotation)
        required, told = info.is_required(), info.description or ""
        default = None if required else info.get_default(call_default_factory=True, validated_data={})
        found.append(ParameterField(info.alias or name, kind, told, default, required, _bounds(info), choices))
    return tuple(found)


def _bounds(info: FieldInfo) -> str:
    limits = [
        (_LIMITS[type(m)], _plain(getattr(m, type(m).__name__.lower()))) for m in info.metadata if type(m) in _LIMITS
    ]
    if sorted(word for word, _ in limits) == ["at least", "at most"]:
        values = dict(limits)
        return f"{values['at least']} to {values['at most']}"
    return ", ".join(f"{word} {value}" for word, value in limits)


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not NoneType]
        # what may be a number or a list of numbers is written as YAML, like in a recipe
        return _kind(inner[0]) if len(inner) == 1 else ("yaml", ())
    if get_origin(annotation) is Literal:
        return "choice", tuple(str(value) for value in get_args(annotation))
    kinds: dict[Any, Kind] = {float: "number", int: "integer", bool: "switch", str: "text"}
    return kinds.get(annotation, "yaml"), ()


def component_of(field: ParameterField) -> Any:
    """A gradio component that holds the parameter; call it inside a Blocks context."""
    common = {"label": field.name, "info": field.hint, "interactive": True}
    match field.kind:
        case "number" | "integer":
            step: float = 1 if field.kind == "integer" else 0.1
            if field.kind == "number" and field.default:  # one click on its arrows: the default's leading digit
                step = float(10.0 ** math.floor(math.log10(abs(field.default))))
            return gr.Number(value=field.default, step=step, min_width=140, **common)
        case "switch":
            return gr.Checkbox(value=bool(field.default), **common)
        case "choice":
            return gr.Dropdown(choices=list(field.choices), value=field.default, **common)
        case _:
            value = field.default if field.kind == "text" or field.default is None else _plain(field.default)
            return gr.Textbox(value=value, max_length=2000, **common)


def parameters_of(fields: Sequence[ParameterField], values: Sequence[Any]) -> dict[str, Any]:
    """The components' values as a recipe's `parameters`; what is empty, or as usual, is left to the method, where a
    preset decides it."""
    result: dict[str, Any] = {}
    for field, value in zip(fields, values, strict=True):
        if value is None or value == "":
            continue
        if field.kind == "yaml":
            try:
                value = load_plain_yaml(str(value))
            except ValueError:
                got, wanted = repr(value)[:80], "a number or a list"
                problem = Problem(RecipeError.code, "not a YAML value", field.name, wanted, got)
                raise RecipeError("a parameter is not YAML", problems=[problem]) from None
        if value != field.default:
            result[field.name] = value
    return result


def unusual(method: Method, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that must be stated: without them they would be others."""
    usual = {field.name: field.default for field in fields_of(method)}
    stated = {key: value for key, value in parameters.items() if key not in usual or value != usual[key]}
    with suppress(ValueError):  # what is wrong is said by the check
        filled = method.parse_settings(stated)
        stated |= {key: value for key, value in parameters.items() if filled.get(key, value) != value}
    return stated


def holds(kind: Kind, value: Any) -> bool:
    """Whether a component of a kind can show a value, and give it back."""
    if value is None or kind == "yaml":
        return True
    return isinstance(value, _HELD[kind]) and not (isinstance(value, int) and abs(value) > MAX_NUMBER)


def values_of(fields: Sequence[ParameterField], parameters: Mapping[str, Any]) -> list[Any]:
    """The values that the components show for a recipe's `parameters`."""
    shown = []
    for field in fields:
        value = parameters.get(field.name, field.default)
        shown.append(_plain(value) if field.kind == "yaml" and value is not None else value)
    return shown


def _plain(value: Any) -> str:
    """A value as a recipe writes it."""
    if isinstance(value, float):
        return re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), str(value).removesuffix(".0"))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple | dict | bool) else str(value)


def plain_markdown(text: str) -> str:
    """Markdown that renders as `text` itself."""
    return _MARKDOWN.sub(r"\\\1", html.escape(text, quote=False))


@dataclass(frozen=True)
class CalibrationForm:
    """The components; `inputs` is what `given` reads."""

    card: Any
    whose: Any
    specs: Any  # hidden: by agent, what the fields do not show
    editing: Any  # hidden: whom the fields are of
    fields: tuple[Any, ...]
    fold: Any  # of the fields that few need

    @property
    def inputs(self) -> list[Any]:
        return [self.specs, self.editing, *self.fields]


def uses_calibration(method: str) -> bool:
    known = registry().get(method)
    return known is not None and "sensitivity" in known.extras


def build_calibration() -> CalibrationForm:
    """Make the components inside the current Blocks context; the card is hidden until a method asks for it."""
    specs = gr.JSON(value={}, visible=False)
    editing = gr.Textbox(value=EVERYONE, visible=False)
    with gr.Group(elem_classes="hm-card", elem_id="calibration", visible=False) as card:
        gr.HTML("<h3>Calibration data</h3>", elem_classes="hm-card-title")
        about = (
            "Questions with good answers, on which this method measures what matters to an agent. "
            "An agent without data of its own is measured on that of every agent."
        )
        whose = choice_box("calibration-for", "Data for", [("every agent", EVERYONE)], EVERYONE, about)
        with gr.Row():
            data = text_box("", "Dataset", "Its name on the Hub.", "openai/gsm8k", 400, scale=2)
            subset = text_box("", "Subset", "If it has several.", "main", 256, scale=1, min_width=110)
            split = gr.Textbox(
                _DEFAULTS["split"], label="Split", info="Which part.", max_length=256, min_width=110, scale=1
            )
        with gr.Row():
            prompt = text_box("", "Question column", None, "question", 256, min_width=150)
            answer = text_box("", "Answer column", None, "answer", 256, min_width=150)
            pairs = number_box("", "Rows", _DEFAULTS["max_pairs"], min_width=110)
        with gr.Accordion("More about the rows", open=False, elem_id="rows") as fold, gr.Row():
            revision = gr.Textbox(label="Revision", placeholder="main", max_length=255, min_width=120)
            tokens = number_box("", "Tokens per row at most", _DEFAULTS["max_tokens"], min_width=140)
            seed = number_box("", "Seed of the choice", _DEFAULTS["seed"], min_width=120)
    fields = (data, subset, split, revision, prompt, answer, pairs, tokens, seed)
    return CalibrationForm(card, whose, specs, editing, fields, fold)


def given(specs: Any, editing: Any, *fields: Any) -> dict[str, dict[str, Any]]:
    """By agent, and for `EVERYONE`, what was given; those of whom no dataset is named are left out.

    RecipeError in the form's words where a column is not named.
    """
    known = {**(specs if isinstance(specs, Mapping) else {}), str(editing or ""): _spec(fields)}
    named = {str(who): dict(spec) for who, spec in known.items() if isinstance(spec, Mapping) and spec.get("data")}
    problems = tuple(
        Problem(
            RecipeError.code,
            f"the column of the {what} is not named",
            where=f"the calibration data for {who or 'every agent'}",
            next_step=f"Fill in “{field}”.",
        )
        for who, spec in named.items()
        for column, what, field in _COLUMNS
        if not spec.get(column)
    )
    if problems:
        raise RecipeError("the calibration data is not complete", problems=problems)
    return named


def _spec(fields: Sequence[Any]) -> dict[str, Any]:
    """The fields as a recipe has them; what is empty is left to its default."""
    texts = [value.strip() if isinstance(value, str) else value for value in fields]
    return {name: value for name, value in zip(_FIELDS, texts, strict=True) if value not in (None, "")}


def _shown(spec: Mapping[str, Any]) -> list[Any]:
    values = {**_DEFAULTS, **spec}
    return [values.get(name) if values.get(name) is not None else "" for name in _FIELDS]


def turn(agents: Sequence[str] | None, whose: str | None, specs: Any, editing: Any, *fields: Any) -> list[Any]:
    """After another one was chosen, or the agents changed: updates for `whose` and `inputs`."""
    names = [str(name) for name in agents or ()]
    now = whose if whose in names else EVERYONE
    choices = gr.update(choices=[("every agent", EVERYONE), *((name, name) for name in names)], value=now)
    if now == (editing or ""):
        return [choices, *[gr.skip()] * (2 + len(_FIELDS))]
    known = {**(specs if isinstance(specs, Mapping) else {}), str(editing or ""): _spec(fields)}
    spec = known.pop(now, None) or {k: v for k, v in known.get(EVERYONE, {}).items() if k not in _OF_A_DATASET}
    return [choices, known, now, *_shown(spec)]


def unusual_rows(spec: Any) -> bool:
    """Whether calibration data says something that the form has in a fold."""
    usual = {name: _DEFAULTS[name] for name in ("revision", "max_tokens", "seed")}
    return isinstance(spec, Mapping) and any(spec.get(name, value) != value for name, value in usual.items())


def fill_calibration(everyone: Any, own: Mapping[str, Any]) -> list[Any]:
    """Updates for `inputs`: the recipe's calibration data, and that of single agents."""
    return [dict(own), EVERYONE, *_shown(everyone if isinstance(everyone, Mapping) else {})]
