"""Suggestions from the Hub while somebody chooses a model: what goes along at first, then what fits the typed text."""

from functools import partial
from typing import Any

import gradio as gr

from hubmerge.recipe.recipe import MAX_AGENTS
from workflows.app.frame import AS_IT_IS, QUIET, choice_box
from workflows.app.lanes import ASKING, Lanes
from workflows.app.session import for_visitor
from workflows.app.submission import names_in
from workflows.service import Service
from workflows.values import Visitor

_FOUND = 10
_CHOICES_KEPT = 100  # of one box
_POPULAR = ("text-generation",)


def model_box(name: str, label: str, info: str, *, several: bool = False, **more: Any) -> Any:
    """A box for the name of a model, or of several; `suggest_models` fills its list."""
    many = {"multiselect": True, "max_choices": MAX_AGENTS} if several else {}
    own = {"allow_custom_value": True, "elem_classes": AS_IT_IS}
    return choice_box(name, label, (), [] if several else None, info, **own, **many, **more)


def suggest_models(box: Any, service: Service, lanes: Lanes, *, base: Any = None) -> None:
    """Fill a dropdown's choices with what the Hub knows under the text that is typed into it.

    While nothing is typed these are models that were trained from what the box `base` holds, or popular ones.
    """
    typed, known = gr.Textbox(value="", visible=False), gr.JSON(value=[], visible=False)
    parent = gr.Textbox(value="", visible=False) if base is None else base
    # gradio repeats the first event's text when keys come faster than answers, so the field itself is read
    read = f'(c, t, k, p) => [c, document.querySelector("#{box.elem_id} input").value, k, p]'
    # suggestions are only a help; any typed name can be inspected
    searching = lanes.asking(for_visitor(partial(_search, service)), lambda _: [gr.skip(), gr.skip()])
    boxes = [box, typed, known, parent]
    gr.on(
        [box.focus, box.key_up], searching, boxes, [box, known], js=read, trigger_mode="always_last", **ASKING, **QUIET
    )


def _search(service: Service, visitor: Visitor | None, current: Any, text: str, known: Any, base: Any) -> list[Any]:
    kept = current if isinstance(current, list) else [current] if current else []
    named = names_in([str(text or "")], service.endpoint)
    wanted = named[-1][:100] if named else ""
    if wanted in kept:
        wanted = ""  # the box shows what was chosen before
    if len(wanted) >= 2:
        found = service.search(wanted, visitor, _FOUND)
    else:
        trained = (f"base_model:finetune:{str(base).partition('@')[0]}",)
        found = (base and service.search("", visitor, _FOUND, trained)) or service.search("", visitor, _FOUND, _POPULAR)
    before = [str(name) for name in known] if isinstance(known, list) else []
    # an open list that became shorter would have gradio's script look for an entry that is gone
    choices = list(dict.fromkeys([*(summary.id for summary in found), *map(str, kept), *before]))[
        : max(len(before), _CHOICES_KEPT)
    ]
    return [gr.update(choices=choices), choices]
