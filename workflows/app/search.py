"""Suggestions from the Hub while somebody types a model's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from workflows.app.lanes import ASKING, Lanes
from workflows.app.service import Service
from workflows.app.session import visitor_of


def suggest_models(box: Any, service: Service, lanes: Lanes) -> None:
    """Fill a dropdown's choices with what the Hub knows under the text that is typed into it."""
    typed = gr.Textbox(value="", visible=False)
    # gradio repeats the first event's text when keys come faster than answers, so the field itself is read
    read = f'(current) => [current, document.querySelector("#{box.elem_id} input").value]'
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    searching = lanes.asking(_searching(service), lambda _: gr.skip())
    box.key_up(searching, [box, typed], [box], js=read, trigger_mode="always_last", **ASKING, **quiet)


def _searching(service: Service) -> Callable[..., Any]:
    def search(current: Any, text: str, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> Any:
        text = str(text or "").strip()
        if len(text) < 2:
            return gr.skip()
        try:
            found = [summary.id for summary in service.search(text[:100], visitor_of(profile, token))]
        except HubmergeError:
            return gr.skip()  # suggestions are only a help; any typed name can be inspected
        kept = current if isinstance(current, list) else [current] if current else []
        return gr.update(choices=list(dict.fromkeys([*found, *kept])))

    return search
