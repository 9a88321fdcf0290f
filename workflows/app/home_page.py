"""Home, `/`: what this is for, and the ways in."""

from __future__ import annotations

import gradio as gr

from workflows.app.format import el
from workflows.app.frame import PURPOSE


def home_page() -> None:
    """Build the page in the current Blocks context."""
    ways = el("p", el("a", "Choose models", href="merge", cls="hm-button hm-first"), cls="hm-ways")
    gr.HTML(el("header", el("h1", PURPOSE), ways, cls="hm-header hm-home"), js_on_load=None)
