"""Theme and CSS (static/) of the pages: system fonts, nothing fetched from elsewhere, light and dark, phone first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

TITLE = "hubmerge"


def theme() -> Any:
    """gradio's default theme in the project's colours; fonts are the system's own."""
    return gr.themes.Default(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        # gradio's own are too pale to be read on white: 2.6 : 1 and 3.7 : 1
        body_text_color_subdued="*neutral_500",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        link_text_color="*secondary_700",
        link_text_color_dark="*secondary_400",
        # 3 : 1 against the card, so that what is not chosen is seen
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
        # gradio's own red is too pale on its pink
        button_cancel_background_fill="#fee2e2",
        button_cancel_background_fill_hover="#fecaca",
        button_cancel_background_fill_dark="#7f1d1d",
        button_cancel_background_fill_hover_dark="#991b1b",
        button_cancel_text_color="#991b1b",
        button_cancel_text_color_hover="#991b1b",
        button_cancel_text_color_dark="#fecaca",
        button_cancel_text_color_hover_dark="#fecaca",
    )


def _read(*names: str) -> str:
    return "".join((Path(__file__).parent / "static" / f"{name}.css").read_text("utf-8") for name in names)


FIRST_CSS = _read("first", "bar")
PLAIN_CSS = _read("plain", "bar")
CSS = _read("pages")
WATCHERS_CSS = _read("watchers")  # gradio nests these rules in the element of the component that has them
