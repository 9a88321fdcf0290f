"""Watchers, `/watchers`: what one is, every rule with what it did and why it left models out, and a form for another.

The owner of a rule pauses it, resumes it and lets it look at once; the source checks on the server who that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from hubmerge.errors import HubmergeError
from workflows.app.format import el
from workflows.app.panels import header, notice, problems_panel
from workflows.app.service import Visitor, WatcherSource, WatcherView
from workflows.app.session import require_visitor, visitor_of
from workflows.app.watchers_panels import PURPOSE, watchers_panel

POLL_S = 10.0
CSS = """
article + article { border-top: 1px solid var(--border-color-primary); margin-top: 1.5rem; padding-top: 1.5rem; }
.hm-title { margin-bottom: .5rem; }
.hm-title h2 { font-size: 1.2rem; margin: 0; overflow-wrap: anywhere; }
.hm-about { font-size: 1.05rem; margin: 0 0 .9rem; max-width: 50rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; font-weight: 650; margin: 1rem 0 .3rem; }
.hm-did { list-style: none; margin: 0; padding: 0; }
.hm-did li { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem .8rem; margin: 0; padding: .45rem 0;
  border-bottom: 1px solid var(--border-color-primary); }
.hm-did li > * { margin: 0; overflow-wrap: anywhere; }
.hm-did a { font-weight: 550; }
.hm-reasons { margin: 0 0 .5rem; }
details { margin: .3rem 0; }
summary { cursor: pointer; }
details > :not(summary) { margin-top: .7rem; }
.hm-table td { white-space: normal; overflow-wrap: anywhere; }
.hm-table td::before { flex: none; }
.hm-cell-text { display: block; min-width: 0; }
@media (max-width: 640px) { .hm-cell-text { text-align: right; } }
"""  # gradio nests these rules in the component's own element
_LOADING = el("p", "Loading …", cls="hm-dim hm-loading")
_QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def watchers_page(demo: Any, source: WatcherSource | None) -> None:
    """Build the page in the current Blocks context; without a source it only says what a watcher is."""
    gr.HTML(header("Watchers", PURPOSE), js_on_load=None)
    first = watchers_panel([], "") if source is None else _LOADING
    card = {"js_on_load": None, "padding": True, "elem_classes": "hm-card", "css_template": CSS}
    listing = gr.HTML(first, elem_id="watchers", **card)
    if source is None:
        return
    with gr.Row(visible=False, elem_classes="hm-actions hm-own", elem_id="own") as own:
        which = gr.Dropdown(
            choices=[], label="Your watcher", elem_id="own-watcher", interactive=True, scale=0, min_width=240
        )
        buttons = {
            action: gr.Button(label, size="sm", elem_id=f"{action}-watcher", scale=0, min_width=110)
            for action, label in (("pause", "Pause"), ("resume", "Resume"), ("run", "Look now"))
        }
    said = gr.HTML("", js_on_load=None, elem_id="said")
    shown = [listing, own, which]
    demo.load(_listing(source), [which], shown, queue=False, **_QUIET)
    gr.Timer(POLL_S).tick(_listing(source), [which], shown, queue=False, **_QUIET)
    acts = {
        "pause": (source.pause_watcher, "Paused: it starts nothing more until it is resumed."),
        "resume": (source.resume_watcher, "Resumed: it looks at its next time."),
        "run": (source.run_watcher, "It looks within seconds; the list shows what it finds."),
    }
    for action, button in buttons.items():
        click = button.click(_acting(*acts[action]), [which], [said], queue=False, **_QUIET)
        click.then(_listing(source), [which], shown, queue=False, **_QUIET)


def _listing(source: WatcherSource) -> Callable[..., Any]:
    def show(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, chosen: str | None) -> list[Any]:
        try:
            views = source.watchers(visitor_of(profile, token))
        except HubmergeError as error:
            return [problems_panel(error, "The watchers cannot be listed"), gr.skip(), gr.skip()]
        names = [view.name for view in views if view.own]
        kept = chosen if chosen in names else next(iter(names), None)
        return [
            watchers_panel(views, source.endpoint),
            gr.update(visible=bool(names)),
            gr.update(choices=names, value=kept),
        ]

    return show


def _acting(act: Callable[[str, Visitor], WatcherView], done: str) -> Callable[..., Any]:
    def acted(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, name: str | None) -> Any:
        try:
            act(name or "", require_visitor(profile, token, "change a watcher"))
        except HubmergeError as error:
            return problems_panel(error)
        return notice("good", name or "", el("p", done))

    return acted
