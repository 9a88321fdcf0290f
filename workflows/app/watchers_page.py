"""Watchers, `/watchers`: what one is, every rule with what it did and why it left models out, and a form for another.

The owner of a rule pauses it, resumes it and lets it look at once; the source checks on the server who that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import HubmergeError
from hubmerge.plain_yaml import dump_plain_yaml, load_plain_yaml
from hubmerge.settings import Settings
from workflows.app.format import el, join
from workflows.app.frame import code_box
from workflows.app.home_page import example_models
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_form import DEFAULT_METHOD
from workflows.app.panels import header, notice, problems_panel
from workflows.app.service import Service, Visitor, WatcherSource
from workflows.app.session import require_visitor, visitor_of
from workflows.app.typed_names import names_in
from workflows.app.watcher_form import (
    BEST,
    NAMED,
    address_of,
    build_form,
    fill,
    proposed,
    read_address,
    rule_of,
    where_it_belongs,
)
from workflows.app.watchers_panels import PURPOSE, trial_panel, watchers_panel
from workflows.watchers.kinds import registry
from workflows.watchers.rules import rule_data, rule_from_data

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
.hm-acts { display: flex; flex-wrap: wrap; gap: .5rem; margin: .7rem 0; }
.hm-acts button { margin: 0 !important; padding: .35rem .9rem; border: 1px solid var(--hm-busy);
  border-radius: var(--radius-md); color: var(--hm-busy); background: none; font-size: .9rem; font-weight: 550;
  cursor: pointer; }
.hm-acts button:hover { background: var(--background-fill-secondary); }
.hm-acts button:focus-visible { outline: 2px solid var(--hm-busy); outline-offset: 2px; }
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
_UNTRIED = el("p", "Try it to see what it would merge now, and what it would leave out.", cls="hm-dim")
_TRYING = """() => '<p role="status">Looking at the Hub …</p>'"""
# A browser may refuse storage inside a frame; then only the address remembers.
_KEEP = """(address) => {
  if (!address) return;
  try { localStorage.setItem("hubmerge-watcher", address); } catch { }
  window.history.replaceState(null, "", window.location.pathname + "?" + address);
}"""
_CHANGED = """() => { const hm = (window.hm ??= {});
  clearTimeout(hm.timer);
  hm.timer = setTimeout(() => document.querySelector("#write-rule").click(), 100); }"""
# signing in brings back only the first part of an address
_KEPT = """() => { try {
  const kept = localStorage.getItem("hubmerge-watcher") || "";
  const [whole, now] = [kept, location.search.slice(1)].map(decodeURIComponent);
  return [now && whole.startsWith(now + "&") ? kept : ""];
} catch { return [""]; } }"""
_PRESSED = """element.addEventListener("click", (event) => {
  const { act, rule } = event.target.closest("button[data-act]")?.dataset ?? {};
  if (act) trigger("click", { act, rule });
});"""
_QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def watchers_page(demo: Any, service: Service, lanes: Lanes, settings: Settings, source: WatcherSource | None) -> None:
    """Build the page in the current Blocks context; without a source it only says what a watcher is."""
    gr.HTML(header("Watchers", PURPOSE), js_on_load=None)
    first = watchers_panel([], "") if source is None else _LOADING
    card = {"js_on_load": None, "padding": True, "elem_classes": "hm-card", "css_template": CSS}
    listing = gr.HTML(first, elem_id="watchers", **{**card, "js_on_load": _PRESSED})
    if source is None:
        return
    said = gr.HTML("", js_on_load=None, elem_id="said")
    _wizard(demo, service, lanes, settings, source, card)
    demo.load(_listing(source), None, [listing], queue=False, **_QUIET)
    gr.Timer(POLL_S).tick(_listing(source), None, [listing], queue=False, **_QUIET)
    listing.click(_acting(source), None, [said], queue=False, **_QUIET).then(
        _listing(source), None, [listing], queue=False, **_QUIET
    )


def _wizard(
    demo: Any, service: Service, lanes: Lanes, settings: Settings, source: WatcherSource, card: dict[str, Any]
) -> None:
    """The form of a rule, with its YAML and a trial beside it. Everybody may use it: it changes nothing."""
    base, *agents = example_models(settings)
    example = f"watchers?{address_of({'base': base, 'join': {'fixed': agents}, 'recipe': {'method': DEFAULT_METHOD}})}"
    about = el(
        "div",
        el("h2", "Make a watcher"),
        el("p", "Say what it merges, try it on the Hub, and copy its rule. Nothing here is changed. ", cls="hm-dim"),
        cls="hm-wizard-title",
    )
    empty = el("p", "Choose a base to begin, or ", el("a", "open an example", href=example), ".", cls="hm-empty")
    with gr.Column(elem_classes="hm-wizard", elem_id="wizard"):
        gr.HTML(about, js_on_load=None)
        with gr.Row(elem_classes="hm-columns"):
            with gr.Column(scale=3, min_width=320):
                form = build_form(service, lanes)
            with gr.Column(scale=2, min_width=320, elem_classes="hm-side"):
                attempt = gr.Button("Try it now", variant="primary", interactive=False, elem_id="try")
                outcome = gr.HTML(empty, elem_id="trial", **card)
                text = code_box(label="The rule", elem_id="rule", visible=False)
                place = gr.HTML("", js_on_load=None, elem_id="place")
    address, kept = gr.Textbox(value="", visible=False), gr.Textbox(value="", visible=False)
    inputs = list(form.inputs)
    written = [text, outcome, attempt, place, address]
    events = {"queue": False, "trigger_mode": "always_last", **_QUIET}
    form.which.change(_which_shown, [form.which], form.shown, queue=False, trigger_mode="multiple", **_QUIET)
    trying = lanes.asking(_trying(source, service), problems_panel)
    attempt.click(None, None, outcome, js=_TRYING, queue=False, **_QUIET).then(
        trying, inputs, [outcome], **ASKING, **_QUIET
    )
    demo.load(_opening(source), [kept], inputs, js=_KEPT, queue=False, **_QUIET)  # which changes what it fills
    writing = _writing(service, empty), [text, *inputs], written
    # an address fills many boxes at once, and gradio would ask for each, all at the same time
    gr.on([box.change for box in inputs], None, None, None, js=_CHANGED, queue=False, **_QUIET)
    changed = gr.Button("Write the rule", visible="hidden", elem_id="write-rule")
    changed.click(*writing, **events).then(None, [address], None, js=_KEEP, queue=False, **_QUIET)


def _which_shown(which: str) -> list[Any]:
    return [gr.update(visible=which == NAMED), gr.update(visible=which == BEST)]


def _opening(source: WatcherSource) -> Callable[..., Any]:
    def opening(
        request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, kept: str | None
    ) -> list[Any]:
        visitor = visitor_of(profile, token)
        rule: dict[str, Any] = {}
        if name := request.query_params.get("watcher"):
            rule = _known(source, str(name), visitor)
        elif query := str(kept or "") or str(request.url.query):
            rule = read_address(query)
        if visitor is not None:
            rule = {"owner": visitor.name, **rule}
        # what the rule does not say keeps what was typed meanwhile
        return [gr.skip() if told == plain else told for told, plain in zip(fill(rule), fill({}), strict=True)]

    return opening


def _known(source: WatcherSource, name: str, visitor: Visitor | None) -> dict[str, Any]:
    """The data of a rule that the visitor may see; nothing where there is none."""
    try:
        found = next((v.rule for v in source.watchers(visitor) if v.name == name and v.rule), "")
    except HubmergeError:  # the list says it
        return {}
    data = load_plain_yaml(found) if found else {}
    return data if isinstance(data, dict) else {}


def _writing(service: Service, empty: Markup) -> Callable[..., Any]:
    def write(shown: str | None, *values: Any) -> list[Any]:
        hidden = gr.update(value="", visible=False)
        if not values[0]:
            return [hidden, empty, gr.update(interactive=False), "", ""]
        try:
            data = _data(service, values)
            rule = rule_from_data(proposed(data))
        except HubmergeError as error:
            return [hidden, problems_panel(error, "Not a rule so far"), gr.update(interactive=False), "", ""]
        text = dump_plain_yaml(rule_data(rule))
        if text == shown:  # a late answer takes away no trial's result
            return [gr.skip()] * 5
        about = join(el("p", registry()[rule.watch]().about(rule)), _UNTRIED)
        where = where_it_belongs(rule.name, rule.owner)
        return [gr.update(value=text, visible=True), about, gr.update(interactive=True), where, address_of(data)]

    return write


def _trying(source: WatcherSource, service: Service) -> Callable[..., Any]:
    def attempt(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None, *values: Any) -> Any:
        try:
            return trial_panel(
                source.try_watcher(proposed(_data(service, values)), visitor_of(profile, token)), source.endpoint
            )
        except HubmergeError as error:
            return problems_panel(error)

    return attempt


def _data(service: Service, values: Sequence[Any]) -> dict[str, Any]:
    """The form's rule, with models by name where an address was pasted."""
    base, which, named, *rest = values
    first = next(iter(names_in([base or ""], service.endpoint)), "")
    return rule_of([first, which, names_in(named or (), service.endpoint), *rest])


def _listing(source: WatcherSource) -> Callable[..., Any]:
    def show(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> Markup:
        try:
            return watchers_panel(source.watchers(visitor_of(profile, token)), source.endpoint)
        except HubmergeError as error:
            return problems_panel(error, "The watchers cannot be listed")

    return show


def _acting(source: WatcherSource) -> Callable[..., Any]:
    acts = {
        "pause": (
            source.pause_watcher,
            "Paused: it starts nothing more until it is resumed. To stop it for good, take its file away.",
        ),
        "resume": (source.resume_watcher, "Resumed: it looks at its next time."),
        "run": (source.run_watcher, "It looks within seconds; the list shows what it finds."),
    }

    def acted(pressed: gr.EventData, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> Any:
        asked = pressed._data if isinstance(pressed._data, dict) else {}  # a stranger's request may hold anything
        rule = str(asked.get("rule", ""))[:200]
        if (known := acts.get(str(asked.get("act", "")))) is None:
            return gr.skip()
        act, done = known
        try:
            act(rule, require_visitor(profile, token, "change a watcher"))
        except HubmergeError as error:
            return problems_panel(error)
        return notice("good", rule, el("p", done))

    return acted
