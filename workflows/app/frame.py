"""What all pages share: which there are, the bar that leads to them, the sign-in, their parts and their looks.

Theme and CSS (static/): system fonts, nothing fetched from elsewhere, light and dark, phone first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.settings import Settings
from workflows.app.format import el
from workflows.app.session import for_visitor
from workflows.values import Visitor

PRIVATE: Mapping[str, Any] = {"api_visibility": "private"}  # of events, none of which is an endpoint
QUIET: Mapping[str, Any] = {**PRIVATE, "show_progress": "hidden"}
AT_ONCE: Mapping[str, Any] = {**QUIET, "queue": False}  # for what asks no Hub
# of what shows names: a browser's translation would change them, and leave those of agents that are taken out again
AS_IT_IS = "notranslate"
LOADING = el("p", "Loading …", cls="hm-dim")
TITLE = "hubmerge"
PURPOSE = "Combine RL-trained agents into one model that keeps their skills"


def _read(*names: str) -> str:
    return "".join((Path(__file__).parent / "static" / f"{name}.css").read_text("utf-8") for name in names)


FIRST_CSS = _read("first", "bar")
PLAIN_CSS = _read("plain", "bar")
CSS = _read("pages")
WATCHERS_CSS = _read("watchers")  # gradio nests these rules in the element of the component that has them


@dataclass(frozen=True)
class Page:
    """One address of the site; `path` is empty for the first page."""

    path: str
    name: str
    description: str  # one sentence, for search engines and for links that are shared
    in_bar: bool = True

    @property
    def title(self) -> str:
        return f"{self.name} · {TITLE}" if self.path else f"{TITLE}: {PURPOSE[0].lower()}{PURPOSE[1:]}"


PAGES = (
    Page("", "Home", f"{PURPOSE}. Choose models on the Hub, see whether they fit, and publish the merge with a card."),
    Page("merge", "Merge", "Choose a base and agents, see whether and how they fit, and start the merge."),
    Page("leaderboard", "Leaderboard", "What merges keep of their parents' skills, measured on held-out questions."),
    Page("activity", "Activity", "Merges, comparisons and evaluations: what waits, what runs and what is done."),
    Page(
        "watchers",
        "Watchers",
        "What merges new agents by itself: what each did, why it left some out, and a form for another.",
    ),
    Page("docs", "Docs", "The merge methods, the words of the board and the cards, and the API with calls to copy."),
    Page("diff", "Diff", "What training changed: one model beside the one that it was trained from.", in_bar=False),
    Page("evaluate", "Evaluate", "Ask for a model to be measured, and see what waits and what runs.", in_bar=False),
    Page(
        "model",
        "Model",
        "A model's scores beside its parents', what changed, its recipe and its card.",
        in_bar=False,
    ),
    Page("job", "Job", "A merge, comparison or evaluation from the queue to its result.", in_bar=False),
)


def bar(pages: Sequence[Page], path: str) -> Markup:
    """The name of the site and the links to its pages; `path` is the page that it stands on."""
    shown = (page for page in pages if page.in_bar)
    links = (el("a", p.name, href=f"./{p.path}", aria_current="page" if p.path == path else "") for p in shown)
    brand = el("a", TITLE, href="./", cls="hm-brand")
    return el("div", brand, el("nav", *links, cls="hm-nav", aria_label="Pages"), cls="hm-bar-links")


def top(demo: Any, settings: Settings, pages: Sequence[Page], path: str, *, sign_in: bool) -> None:
    """The bar and the sign-in button of one page, in the current Blocks context."""
    with gr.Row(elem_classes="hm-top"):
        html(bar(pages, path), elem_classes="hm-bar-block")
        if not sign_in:
            html(el("span", "Sign-in is not set up here.", cls="hm-dim"))
            return
        value = "Sign in to the local Hub" if settings.is_loopback else "Sign in with Hugging Face"
        logo = {"icon": None} if settings.is_loopback else {}
        button = gr.LoginButton(value, logout_value="Sign out ({})", size="sm", scale=0, elem_id="sign-in", **logo)
    # gradio's own check of the session fails on claims that hold a list, such as the user's organisations
    button.load_event_to_attach = None

    def label(visitor: Visitor | None) -> str:
        return f"Sign out ({visitor.name})" if visitor else value

    demo.load(for_visitor(label), None, [button], **AT_ONCE)


def html(content: object = "", name: str = "", *, card: bool = False, **more: Any) -> Any:
    """A block of HTML without a script."""
    return gr.HTML(
        str(content), **{"js_on_load": None, "elem_classes": "hm-card" if card else None, **more}, elem_id=name or None
    )


def text_box(name: str, label: str, info: str | None, placeholder: str, longest: int, **more: Any) -> Any:
    """A box for a text, with an example in it while it is empty."""
    about: dict[str, Any] = {"label": label, "info": info, "placeholder": placeholder, "elem_id": name or None}
    return gr.Textbox(max_length=longest, **about, **{"min_width": 200, **more})


def choice_box(name: str, label: str, choices: Iterable[Any], value: Any, info: str | None = None, **more: Any) -> Any:
    """A list to choose from, of values or of pairs of title and value."""
    return gr.Dropdown(choices=list(choices), value=value, label=label, info=info, elem_id=name, **more)


def radio_box(name: str, label: str, choices: Iterable[Any], value: Any, info: str | None = None, **more: Any) -> Any:
    """A choice of which all is in sight."""
    return gr.Radio(choices=list(choices), value=value, label=label, info=info, elem_id=name, **more)


def number_box(name: str, label: str, value: int, **more: Any) -> Any:
    """A box for a whole number. It lets every number pass: gradio would round one, and end a page's question with an
    error for one out of range; the checks say instead what is wrong."""
    return gr.Number(value=value, label=label, elem_id=name or None, **more)


def titled(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """The choices of a list, of the titles by name."""
    return [(title, name) for name, title in names.items()]


def code_box(value: str = "", *, lines: int = 3, **more: Any) -> Any:
    """Code to copy or to write. gr.Code would bring an editor of 130 KB, compressed, for colours too pale to read."""
    looks: dict[str, Any] = {"lines": lines, "max_lines": max(lines, 24), "elem_classes": "hm-code"}
    return gr.Textbox(value, buttons=["copy"], **looks, **{"interactive": False, **more})


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
        # 3 : 1 against the card, so that what is not chosen, and what has the keyboard, is seen
        input_border_color_focus="*secondary_700",
        input_border_color_focus_dark="*secondary_400",
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
