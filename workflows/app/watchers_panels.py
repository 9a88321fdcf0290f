"""The watchers' page in HTML: what a watcher is, each rule in plain words, what it did, and what a trial came to.

Every function is pure and returns escaped HTML (format.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from markupsafe import Markup

from workflows.app.format import el, job_href, join, link, repo_link, when
from workflows.app.job_panels import badge
from workflows.app.panels import facts_grid, notice, problems_panel, table
from workflows.app.service import Trial, WatcherEvent, WatcherView

_UNTIL_A_RESTART = (
    "This Space keeps no disk: when it restarts, the pause is forgotten and the watcher looks again. "
    "To stop it for good, take its file away."
)
PURPOSE = "A watcher looks at the Hub every few minutes and merges new agents of a base by itself."
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
    "E_RECIPE": "under a license that leaves a choice open",
    "E_TARGET_EXISTS": "with a result's name that is taken",
    **dict.fromkeys(("E_CORRUPT", "E_FORMAT", "E_HEADER", "E_INDEX"), "with files that cannot be read"),
}
_UNKNOWN = "not to be used"


def watchers_panel(views: Sequence[WatcherView], endpoint: str) -> Markup:
    """Every rule with what it did; how to begin where there is none."""
    if not views:
        example = el(
            "p", "In the demo, ", el("code", "make demo ARGS=--watch"), " starts with one that merges the zoo."
        )
        return notice(
            "info",
            "No watcher runs here yet",
            el(
                "p",
                "For example, one merges every fine-tune of a base by two labs, once there are two of them and again "
                "with each new one, and says why it left others out.",
            ),
            el(
                "p",
                "A watcher is a rule in a short file that whoever keeps this app puts beside it. The form below writes "
                "one, tries it on the Hub, and says where it belongs.",
            ),
            example if urlsplit(endpoint).hostname == "127.0.0.1" else None,
        )
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
    if view.problem is not None and not view.facts:  # a file that cannot be read says nothing else
        return el("article", title, problems_panel(view.problem, "This rule does not run"), data_rule=view.name)
    return el(
        "article",
        title,
        el("p", view.about, cls="hm-about") if view.about else None,
        problems_panel(view.problem, "It could not look") if view.problem else None,
        facts_grid(
            (
                ("Last look", when(view.polled) if view.polled else "not yet"),
                ("Next look", _next(view)),
                ("Today", f"{view.used_today} of {view.budget} merges"),
                ("Results", "private" if view.private else "public"),
            )
        ),
        el("p", f"Waiting: {view.waiting}.", cls="hm-dim") if view.waiting and not view.paused else None,
        el("p", _UNTIL_A_RESTART) if view.paused and view.forgets else None,
        _merges(view, endpoint),
        _left_out([event for event in view.events if event.kind != "merged"], endpoint, "What it left out"),
        _acts(view),
        _in_full(view),
        data_rule=view.name,
    )


def _acts(view: WatcherView) -> Markup | None:
    """The buttons of a rule's owner; the page's script tells the server which was pressed, and of which rule."""
    if not view.own:
        return None
    shown = (("resume", "Resume"),) if view.paused else (("pause", "Pause"), ("run", "Look now"))
    buttons = (
        el("button", label, type="button", data_act=act, data_rule=view.name, aria_label=f"{label}: {view.name}")
        for act, label in shown
    )
    return el("p", *buttons, cls="hm-acts")


def _next(view: WatcherView) -> Markup | str:
    if view.paused:
        return "when it is resumed"
    return when(view.next_look) if view.next_look else "not known"


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
    counted = Counter(_REASONS.get(event.code, _UNKNOWN) for event in events)
    reasons = [el("li", el("b", str(number)), " ", reason) for reason, number in counted.most_common()]
    timed = any(event.time for event in events)
    rows = [(_which(e, endpoint), _why(e), *([when(e.time)] if timed else [])) for e in events]
    head = ("Which", "Why", *(["Since"] if timed else []))
    return join(
        el("h3", f"{title}: {len(events)}"),
        el("ul", *reasons, cls="hm-reasons"),
        el("details", el("summary", "Each with its reason"), table(head, rows)),
    )


def _which(event: WatcherEvent, endpoint: str) -> Markup:
    if event.kind == "skipped" and "/" in event.subject:
        return repo_link(endpoint, event.subject, event.sha)
    return el("span", event.subject)


def _why(event: WatcherEvent) -> Markup:
    return el("span", event.text, " ", el("code", event.code, cls="hm-code"), cls="hm-cell-text")


def _in_full(view: WatcherView) -> Markup:
    facts = (*view.facts, ("Target", view.target), ("Evaluated with", view.suite or "nothing"))
    text = el("pre", el("code", view.rule), cls="hm-snippet", tabindex="0") if view.rule else None
    form = el("p", el("a", "Open it in the form", href=f"watchers?watcher={quote(view.name, safe='')}"))
    return el("details", el("summary", "The rule in full"), facts_grid(facts), text, form)


def trial_panel(trial: Trial, endpoint: str) -> Markup:
    """What a rule would do now."""
    about = el("p", trial.about)
    if trial.target:
        agents = [el("li", repo_link(endpoint, *_pinned(agent))) for agent in trial.agents]
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
    return el("div", about, told, problem, left_out, cls="hm-trial")


def _pinned(agent: str) -> tuple[str, str]:
    name, _, sha = agent.partition("@")
    return name, sha
