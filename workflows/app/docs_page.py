"""Docs, `/docs`: the merge methods, the words, and the API, from the registry and the pages in docs/."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import gradio as gr
from markdown_it import MarkdownIt
from markupsafe import Markup

from hubmerge.cli.methods import NOTATION, method_section
from hubmerge.methods import registry
from workflows.app.format import el, join
from workflows.app.frame import AT_ONCE, code_box, html
from workflows.app.panels import fold, header

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_TO_METHOD = re.compile(r"\]\(methods\.md(#\w+)\)")
_TO_PAGE = re.compile(r"\[([^\]]+)\]\([\w./]+\.md[^)]*\)")  # pages that the app does not show
_ANYWHERE = "http://127.0.0.1:7860"  # in docs/; the page shows the address that it was opened with instead
# the browser looks for the part that an address names before gradio has made it
_HERE = f"""(...calls) => {{ const here = new URL(".", location.href).href.slice(0, -1);
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
  return calls.map((call) => call.replaceAll("{_ANYWHERE}", here)); }}"""
_CODE = re.compile(r"((?:^    .+\n+)+)", re.MULTILINE)


def docs_page(demo: Any) -> None:
    about = "How models are merged, what the words mean, and how programs do what the pages do."
    parts = [(name, f"docs#{name.lower()}") for name in ("Methods", "Words", "Programs")]
    contents = el("p", *(el("a", name, href=href) for name, href in (*parts, ("Compare two models", "diff"))))
    html(join(header("Docs", about), el("div", contents, cls="hm-contents")))
    html(_methods(), "methods", elem_classes="hm-card hm-docs", padding=True)
    html(_words(), "words", elem_classes="hm-card hm-docs", padding=True)
    _, _, programs = _page("api.md").replace("\n## ", "\n### ").partition("\n")
    calls = []
    with gr.Column(elem_id="programs"):
        html(el("h2", "Programs and tools"))
        for text, call in _with_calls(programs):
            html(rendered(text), elem_classes="hm-docs")
            if call:
                calls.append(code_box(call, label="To copy", lines=call.count("\n") + 1))
    demo.load(None, calls, calls, js=_HERE, **AT_ONCE)


def _methods() -> Markup:
    folds = (
        fold(join(el("b", m.title), " ", el("span", m.summary, cls="hm-dim")), rendered(method_section(m)), id=name)
        for name, m in registry().items()
    )
    meaning = fold("What the letters in the formulas mean", rendered(NOTATION))
    return join(el("h2", "Methods"), *folds, meaning)


def _words() -> Markup:
    _, *groups = _page("glossary.md").split("\n## ")
    parts = (group.partition("\n") for group in groups)
    return join(el("h2", "Words"), *(fold(el("b", title), rendered(body)) for title, _, body in parts))


def rendered(text: str) -> Markup:
    """Markdown of this project's own pages as HTML; links to pages that the app does not show become their text."""
    text = _TO_PAGE.sub(r"\1", _TO_METHOD.sub(r"](docs\1)", text))
    return Markup(_MARKDOWN.render(text))  # noqa: S704  (no stranger's text, and HTML in it is escaped)


def _with_calls(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of a page, each with the code that follows it; nothing follows the last."""
    pieces = [*_CODE.split(text), ""]
    for before, code in zip(pieces[::2], pieces[1::2], strict=True):
        yield before, dedent(code).strip()


def _page(name: str) -> str:
    """A page of docs/: inside the package where a wheel was installed, beside it in a checkout."""
    root = Path(__file__).resolve().parents[2]
    inside = root / "hubmerge" / "docs"
    return ((inside if inside.is_dir() else root / "docs") / name).read_text("utf-8")
