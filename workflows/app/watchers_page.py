"""Watchers, `/watchers`: what one is, every rule with what it did and why it left models out, and a form for another.

The owner of a rule pauses it, resumes it and lets it look at once; the source checks on the server who that is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import HubmergeError
from hubmerge.settings import Settings
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml
from workflows.app import watcher_form
from workflows.app.format import el, job_href, join, link, repo_link, when
from workflows.app.frame import AT_ONCE, QUIET, WATCHERS_CSS, code_box, html
from workflows.app.home_page import example_models
from workflows.app.job_page import badge
from workflows.app.lanes import ASKING, Lanes
from workflows.app.merge_form import DEFAULT_METHOD
from workflows.app.panels import coded, facts_grid, fold, header, notice, problems_panel, snippet, table
from workflows.app.session import for_visitor, signed_in, visitor_of
from workflows.app.submission import names_in
from workflows.app.watchers_source import WatcherSource
from workflows.service import Service
from workflows.values import Trial, Visitor, WatcherEvent, WatcherView
from workflows.watchers.kinds import registry
from workflows.watchers.rules import rule_data, rule_from_data

POLL_S = 10.0
PURPOSE = "A watcher looks at the Hub every few minutes and merges new agents of a base by itself."
_LOADING = el("p", "Loading …", cls="hm-dim hm-loading")
_UNTRIED = el("p", "Try it to see what it would merge now, and what it would leave out.", cls="hm-dim")
_TRYING = """() => '<p role="status">Looking at the Hub …</p>'"""
_KEEP = """(address) => { if (address) history.replaceState(null, "", location.pathname + "?" + address); }"""
_CHANGED = """() => { const hm = (window.hm ??= {});
  clearTimeout(hm.timer);
  hm.timer = setTimeout(() => document.querySelector("#write-rule").click(), 100); }"""
_PRESSED = """element.addEventListener("click", (event) => {
  const { act, rule } = event.target.closest("button[data-act]")?.dataset ?? {};
  if (act) trigger("click", { act, rule });
});"""
_CARD: Mapping[str, Any] = {"card": True, "padding": True, "css_template": WATCHERS_CSS}


def watchers_page(demo: Any, service: Service, lanes: Lanes, settings: Settings, source: WatcherSource | None) -> None:
    """Build the page in the current Blocks context; without a source it only says what a watcher is."""
    html(header("Watchers", PURPOSE))
    if source is None:
        html(watchers_panel([], ""), "watchers", **_CARD)
        return
    listing = html(_LOADING, "watchers", **{**_CARD, "js_on_load": _PRESSED})
    said = html(name="said")
    _wizard(demo, service, lanes, settings, source)
    acts = {
        "pause": (
            source.pause_watcher,
            "Paused: it starts nothing more until it is resumed. To stop it for good, take its file away.",
        ),
        "resume": (source.resume_watcher, "Resumed: it looks at its next time."),
        "run": (source.run_watcher, "It looks within seconds; the list shows what it finds."),
    }

    def show(visitor: Visitor | None) -> Markup:
        try:
            return watchers_panel(source.watchers(visitor), source.endpoint)
        except HubmergeError as error:
            return problems_panel(error, "The watchers cannot be listed")

    def acted(pressed: gr.EventData, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> Any:
        asked = pressed._data if isinstance(pressed._data, dict) else {}  # a stranger's request may hold anything
        rule = str(asked.get("rule", ""))[:200]
        if (known := acts.get(str(asked.get("act", "")))) is None:
            return gr.skip()
        act, done = known
        try:
            act(rule, signed_in(visitor_of(profile, token), "change a watcher"))
        except HubmergeError as error:
            return problems_panel(error)
        return notice("good", rule, el("p", done))

    demo.load(for_visitor(show), None, [listing], **AT_ONCE)
    gr.Timer(POLL_S).tick(for_visitor(show), None, [listing], **AT_ONCE)
    listing.click(acted, None, [said], **AT_ONCE).then(for_visitor(show), None, [listing], **AT_ONCE)


def _wizard(demo: Any, service: Service, lanes: Lanes, settings: Settings, source: WatcherSource) -> None:
    """The form of a rule, with its YAML and a trial beside it. Everybody may use it: it changes nothing."""
    base, *agents = example_models(settings)
    rule = {"base": base, "join": {"fixed": agents}, "recipe": {"method": DEFAULT_METHOD}}
    example = f"watchers?{watcher_form.address_of(rule)}"
    words = "Say what it merges, try it, and copy its rule. To try it changes nothing on the Hub."
    about = el("div", el("h2", "Make a watcher"), el("p", words, cls="hm-dim"), cls="hm-wizard-title")
    empty = el("p", "Choose a base to begin, or ", el("a", "open an example", href=example), ".", cls="hm-empty")
    with gr.Column(elem_classes="hm-wizard", elem_id="wizard"):
        html(about)
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                inputs = watcher_form.build_form(service, lanes)
            with gr.Column(scale=2, min_width=320, elem_classes="hm-side"):
                attempt = gr.Button("Try it now", variant="primary", interactive=False, elem_id="try")
                outcome = html(empty, "trial", **_CARD)
                text = code_box(label="The rule", elem_id="rule", visible=False)
                place = html(name="place")
    address = gr.Textbox(value="", visible=False)
    _, which, agents_by_name, how_many, *_ = inputs

    def named(values: Sequence[Any]) -> dict[str, Any]:
        """The form's rule, with models by name where an address was pasted."""
        base, which, agents, *rest = values
        first = next(iter(names_in([base or ""], service.endpoint)), "")
        return watcher_form.rule_of([first, which, names_in(agents or (), service.endpoint), *rest])

    def opening(request: gr.Request, visitor: Visitor | None) -> list[Any]:
        rule: dict[str, Any] = {}
        if name := request.query_params.get("watcher"):
            with suppress(HubmergeError):  # the list says it
                found = next((v.rule for v in source.watchers(visitor) if v.name == name and v.rule), "{}")
                rule = dict(load_plain_yaml(found))
        else:
            rule = watcher_form.read_address(str(request.query_params.get("rule") or ""))
        if visitor is not None:
            rule = {"owner": visitor.name, **rule}
        # what the rule does not say keeps what was typed meanwhile
        return [
            gr.skip() if told == plain else told
            for told, plain in zip(watcher_form.fill(rule), watcher_form.fill({}), strict=True)
        ]

    def write(shown: str | None, *values: Any) -> list[Any]:
        hidden = gr.update(value="", visible=False)
        if not values[0]:
            return [hidden, empty, gr.update(interactive=False), "", ""]
        try:
            data = named(values)
            rule = rule_from_data(watcher_form.proposed(data))
        except HubmergeError as error:
            return [hidden, problems_panel(error, "Not a rule so far"), gr.update(interactive=False), "", ""]
        told = dump_plain_yaml(rule_data(rule))
        if told == shown:  # a late answer takes away no trial's result
            return [gr.skip()] * 5
        about = join(el("p", registry()[rule.watch]().about(rule)), _UNTRIED)
        where = watcher_form.where_it_belongs(rule.name, rule.owner)
        return [
            gr.update(value=told, visible=True),
            about,
            gr.update(interactive=True),
            where,
            watcher_form.address_of(data),
        ]

    def trying(visitor: Visitor | None, *values: Any) -> Markup:
        return trial_panel(source.try_watcher(watcher_form.proposed(named(values)), visitor), source.endpoint)

    def which_shown(which: str) -> list[Any]:
        return [gr.update(visible=which == watcher_form.NAMED), gr.update(visible=which == watcher_form.BEST)]

    which.change(which_shown, [which], [agents_by_name, how_many], trigger_mode="multiple", **AT_ONCE)
    attempt.click(None, None, outcome, js=_TRYING, **AT_ONCE).then(
        lanes.asking(for_visitor(trying), problems_panel), inputs, [outcome], **ASKING, **QUIET
    )
    demo.load(for_visitor(opening), None, inputs, **AT_ONCE)  # which changes what it fills
    # an address fills many boxes at once, and gradio would ask for each, all at the same time
    gr.on([box.change for box in inputs], None, None, None, js=_CHANGED, **AT_ONCE)
    changed = gr.Button("Write the rule", visible="hidden", elem_id="write-rule")
    written = [text, outcome, attempt, place, address]
    changed.click(write, [text, *inputs], written, trigger_mode="always_last", **AT_ONCE).then(
        None, [address], None, js=_KEEP, **AT_ONCE
    )


_UNTIL_A_RESTART = (
    "This Space keeps no disk: when it restarts, the pause is forgotten and the watcher looks again. "
    "To stop it for good, take its file away."
)
_REASONS = {  # of one model or set that was left out; docs/watchers.md lists the codes
    "author": "by other authors",
    "tag": "without a tag that is asked for",
    "lineage": "not trained from the base in the way that is asked for",
    "excluded": "excluded by name",
    "license": "under another license",
    "size": "too large or too small",
    "own_output": "merged here, so no agent",
    "base": "the base itself",
    "copy": "with the weights of another model",
    "no_weights": "without weights in safetensors",
    "flagged": "called contaminated or withdrawn",
    "closed": "gated or private, while the merge would be public",
    "no_score": "without a score so far",
    "not_best": "not among the best",
    "too_many": "more than one merge takes",
    "same_weights": "merged before with the same weights",
    "nothing_new": "merged before, with nothing new since",
    "budget": "waiting, since today's merges are used up",
    "E_QUOTA": "waiting, since too many jobs are under way",
    "E_INCOMPATIBLE": "not of the base's architecture or shapes",
    "E_GATED": "gated",
    "E_SOURCE": "not to be found",
    "E_HUB": "not to be read at the moment",
    "E_RECIPE": "under a license with which the rule may not merge",
    "E_TARGET_EXISTS": "whose result would have a name that is taken",
    **dict.fromkeys(("E_CORRUPT", "E_FORMAT", "E_HEADER", "E_INDEX"), "with files that cannot be read"),
}
_TO_BEGIN = (
    "For example, one merges every fine-tune of a base by two labs, once there are two of them and again with each new "
    "one, and says why it left others out.",
    "A watcher is a rule in a short file that whoever keeps this app puts beside it. The form below writes one, tries "
    "it on the Hub, and says where it belongs.",
)


def watchers_panel(views: Sequence[WatcherView], endpoint: str) -> Markup:
    """Every rule with what it did; how to begin where there is none."""
    if not views:
        installed, checkout = el("code", "hubmerge demo --watch"), el("code", "make demo ARGS=--watch")
        example = el("p", installed, ", or ", checkout, " in a checkout, starts the demo with one that merges the zoo.")
        here = example if urlsplit(endpoint).hostname == "127.0.0.1" else None
        return notice("info", "No watcher runs here yet", *(el("p", text) for text in _TO_BEGIN), here)
    return join(*(_rule(view, endpoint) for view in views))


def _rule(view: WatcherView, endpoint: str) -> Markup:
    state = ("Cannot run", "bad") if view.problem else ("Paused", "warn") if view.paused else ("Watching", "good")
    title = el(
        "div",
        el("h2", view.name),
        el("span", state[0], cls=f"hm-badge hm-{state[1]}"),
        el("span", f"by {view.owner}", cls="hm-dim") if view.owner else None,
        cls="hm-title",
    )
    if view.problem is not None and not view.about:  # a file that cannot be read says nothing else
        return el("article", title, problems_panel(view.problem, "This rule does not run"), data_rule=view.name)
    facts = (
        ("Last look", when(view.polled) if view.polled else "none so far"),
        ("Next look", "when it is resumed" if view.paused else when(view.next_look) if view.next_look else "not known"),
        ("Today", f"{view.used_today} of {view.budget} merges"),
        ("Results", "private" if view.private else "public"),
    )
    # the page's script tells the server which button was pressed, and of which rule
    shown = (("resume", "Resume"),) if view.paused else (("pause", "Pause"), ("run", "Look now"))
    buttons = (
        el("button", label, type="button", data_act=act, data_rule=view.name, aria_label=f"{label}: {view.name}")
        for act, label in shown
    )
    form = el("p", el("a", "Open it in the form", href=f"watchers?watcher={quote(view.name, safe='')}"))
    return el(
        "article",
        title,
        el("p", view.about, cls="hm-about") if view.about else None,
        problems_panel(view.problem, "It could not look") if view.problem else None,
        facts_grid(facts),
        el("p", f"Waiting: {view.waiting}.", cls="hm-dim") if view.waiting and not view.paused else None,
        el("p", _UNTIL_A_RESTART) if view.paused and view.forgets else None,
        _merges(view, endpoint),
        _left_out([event for event in view.events if event.kind != "merged"], endpoint, "What it left out"),
        el("p", *buttons, cls="hm-acts") if view.own else None,
        fold("The rule in full", snippet(view.rule) if view.rule else None, form),
        data_rule=view.name,
    )


def _merges(view: WatcherView, endpoint: str) -> Markup:
    merged = [event for event in view.events if event.kind == "merged"]
    if not merged:
        return el("p", "It has merged nothing so far.", cls="hm-dim")
    items = []
    for event in merged:
        names = ", ".join(agent.partition("@")[0] for agent in event.agents)
        done = event.job_state == "done"
        items.append(
            el(
                "li",
                badge(event.job_state or "queued"),
                link(job_href(event.job_id), event.subject) if event.job_id else event.subject,
                el("span", f"{len(event.agents)} agents: {names}", cls="hm-dim"),
                el("span", when(event.time), cls="hm-dim"),
                el("span", "On the Hub: ", repo_link(endpoint, event.subject)) if done else None,
            )
        )
    return join(el("h3", "What it merged"), el("ul", *items, cls="hm-did"))


def _left_out(events: Sequence[WatcherEvent], endpoint: str, title: str) -> Markup | None:
    """The reasons with how many they concern, then each model with its own."""
    if not events:
        return None
    counted = Counter(_REASONS.get(event.code, "not to be used") for event in events)
    reasons = [el("li", el("b", str(number)), " ", reason) for reason, number in counted.most_common()]
    timed = any(event.time for event in events)
    rows = []
    for event in events:
        why = el("span", coded(event.text), " ", el("code", event.code, cls="hm-code"), cls="hm-cell-text")
        which = el("span", event.subject)
        if event.kind == "skipped" and "/" in event.subject:
            which = repo_link(endpoint, event.subject, event.sha)
        rows.append((which, why, *([when(event.time)] if timed else [])))
    head = ("Which", "Why", *(["Since"] if timed else []))
    return join(
        el("h3", f"{title}: {len(events)}"),
        el("ul", *reasons, cls="hm-reasons"),
        fold("Each with its reason", table(head, rows)),
    )


def trial_panel(trial: Trial, endpoint: str) -> Markup:
    about = el("p", trial.about)
    if trial.target:
        agents = [el("li", repo_link(endpoint, *agent.partition("@")[::2])) for agent in trial.agents]
        told = notice(
            "bad" if trial.problem else "good",
            f"Would merge these {len(trial.agents)} now" + (", but cannot" if trial.problem else ""),
            el("ul", *agents),
            el("p", "Into ", el("b", trial.target), "."),
            el("p", "As a new watcher, which has merged nothing yet.", cls="hm-dim") if trial.anew else None,
        )
    else:
        told = notice("info", "Would merge nothing now", el("p", f"{trial.waiting[:1].upper()}{trial.waiting[1:]}."))
    problem = problems_panel(trial.problem, "Why the merge is not possible") if trial.problem else None
    left_out = _left_out(trial.left_out, endpoint, "Would leave out") or el(
        "p", "No model that it looked at is left out.", cls="hm-dim"
    )
    return join(about, told, problem, left_out)
