"""Docs, `/docs`: the merge methods, from the registry."""

from __future__ import annotations

import gradio as gr

from hubmerge.methods import registry
from workflows.app.format import el
from workflows.app.panels import header, method_panel


def docs_page() -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(header("Docs", "The merge methods, each with its formula and papers."), js_on_load=None)
    methods = (
        el("details", el("summary", method.title), method_panel(method), cls="hm-section", id=name)
        for name, method in registry().items()
    )
    gr.HTML(el("div", *methods), js_on_load=None, elem_id="methods", elem_classes="hm-card", padding=True)
