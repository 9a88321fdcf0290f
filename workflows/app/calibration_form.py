"""The form's calibration data: one set of fields, for every agent or for the one that is chosen above them.

The fields are those of whom `editing` names; what was given for others waits in `specs`. A method that weighs by
sensitivities shows the card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from hubmerge.errors import Problem, RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.calibration import CalibrationSpec
from workflows.app.frame import choice_box, number_box, text_box

EVERYONE = ""  # whose data counts for agents without data of their own
_FIELDS = ("data", "split", "revision", "prompt", "answer", "max_pairs", "max_tokens", "seed")
_COLUMNS = (("prompt", "questions", "Question column"), ("answer", "answers", "Answer column"))
_DEFAULTS = {
    name: field.get_default() for name, field in CalibrationSpec.model_fields.items() if not field.is_required()
}


@dataclass(frozen=True)
class CalibrationForm:
    """The components; `inputs` is what `given` reads."""

    card: Any
    whose: Any
    specs: Any  # hidden: by agent, what the fields do not show
    editing: Any  # hidden: whom the fields are of
    fields: tuple[Any, ...]

    @property
    def inputs(self) -> list[Any]:
        return [self.specs, self.editing, *self.fields]


def uses_calibration(method: str) -> bool:
    known = registry().get(method)
    return known is not None and "sensitivity" in known.extras


def build_calibration(method: str) -> CalibrationForm:
    specs = gr.JSON(value={}, visible=False)
    editing = gr.Textbox(value=EVERYONE, visible=False)
    with gr.Group(elem_classes="hm-card", elem_id="calibration", visible=uses_calibration(method)) as card:
        gr.HTML("<h3>Calibration data</h3>", elem_classes="hm-card-title")
        about = (
            "Questions with good answers, on which this method measures what matters to an agent. "
            "An agent without data of its own is measured on that of every agent."
        )
        whose = choice_box("calibration-for", "Data for", [("every agent", EVERYONE)], EVERYONE, about)
        with gr.Row():
            data = text_box("", "Dataset", "Its name on the Hub.", "openai/gsm8k", 400, scale=2)
            split = gr.Textbox(
                _DEFAULTS["split"], label="Split", info="Which part.", max_length=256, min_width=110, scale=1
            )
        with gr.Row():
            prompt = text_box("", "Question column", None, "question", 256, min_width=150)
            answer = text_box("", "Answer column", None, "answer", 256, min_width=150)
            pairs = number_box("", "Rows", _DEFAULTS["max_pairs"], min_width=110)
        with gr.Accordion("More about the rows", open=False), gr.Row():
            revision = gr.Textbox(label="Revision", placeholder="main", max_length=255, min_width=120)
            tokens = number_box("", "Tokens per row at most", _DEFAULTS["max_tokens"], min_width=140)
            seed = number_box("", "Seed of the choice", _DEFAULTS["seed"], min_width=120)
    return CalibrationForm(card, whose, specs, editing, (data, split, revision, prompt, answer, pairs, tokens, seed))


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
    spec = known.pop(now, None) or {k: v for k, v in known.get(EVERYONE, {}).items() if k != "data"}
    return [choices, known, now, *_shown(spec)]


def fill_calibration(everyone: Any, own: Mapping[str, Any]) -> list[Any]:
    """Updates for `inputs`: the recipe's calibration data, and that of single agents."""
    return [dict(own), EVERYONE, *_shown(everyone if isinstance(everyone, Mapping) else {})]
