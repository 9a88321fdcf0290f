"""Watchers, `/watchers`: every rule, what it merged and evaluated, and why it left models out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.errors import HubmergeError
from workflows.app.format import el, job_href, join, link, repo_link, time_text
from workflows.app.job_panels import badge
from workflows.app.panels import facts_grid, header, notice, problems_panel, section, table
from workflows.app.service import WatcherEvent, WatcherSource, WatcherView
from workflows.app.session import visitor_of

POLL_S = 10.0
CSS = """
.hm-table td { white-space: normal; overflow-wrap: anywhere; }
.hm-table td::before { flex: none; }
article + article { border-top: 1px solid var(--border-color-primary); margin-top: 1.5rem; padding-top: 1.5rem; }
.hm-title h2 { font-size: 1.2rem; margin: 0; }
.hm-cell-text { display: block; min-width: 0; }
@media (max-width: 640px) { .hm-cell-text { text-align: right; } }
"""  # gradio nests these rules in the component's own element
_PURPOSE = "Rules that merge new agents by themselves, and why they left some out."


def watchers_page(demo: Any, source: WatcherSource) -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(header("Watchers", _PURPOSE), js_on_load=None)
    loading = el("p", "Loading …", cls="hm-dim")
    listing = gr.HTML(
        loading, js_on_load=None, elem_id="watchers", padding=True, elem_classes="hm-card", css_template=CSS
    )
    timer = gr.Timer(POLL_S)
    quiet = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    demo.load(_listing(source), None, [listing], **quiet)
    timer.tick(_listing(source), None, [listing], **quiet)


def _listing(source: WatcherSource) -> Callable[..., Any]:
    def show(profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> Markup:
        try:
            return watchers_panel(source.watchers(visitor_of(profile, token)), source.endpoint)
        except HubmergeError as error:
            return problems_panel(error, "The watchers cannot be listed")

    return show


def watchers_panel(views: list[WatcherView], endpoint: str) -> Markup:
    """Every rule with its events; an overview first where there are several."""
    if not views:
        return notice("info", "No watchers yet", el("p", "A rule is a YAML file in the watchers' folder."))
    overview = _overview(views) if len(views) > 1 else None
    return join(overview, *(_rule(view, endpoint) for view in views))


def _overview(views: list[WatcherView]) -> Markup:
    rows = [
        (
            view.name,
            view.owner or "unknown",
            str(sum(event.kind == "merged" for event in view.events)),
            str(sum(event.kind != "merged" for event in view.events)),
            el("span", "cannot run" if view.problem else view.waiting or "up to date", cls="hm-cell-text"),
        )
        for view in views
    ]
    return el("article", table(("Rule", "Owner", "Merged", "Left out", "Now"), rows))


def _rule(view: WatcherView, endpoint: str) -> Markup:
    title = el("div", el("h2", view.name), el("span", f"by {view.owner}", cls="hm-dim") if view.owner else None)
    if view.problem is not None and not view.facts:  # a file that cannot be read says nothing else
        return el(
            "article",
            el("div", title, cls="hm-title"),
            problems_panel(view.problem, "This rule does not run"),
            data_rule=view.name,
        )
    facts = facts_grid(
        (
            *view.facts,
            ("Target", view.target + (" (private)" if view.private else "")),
            ("Evaluated with", view.suite or "nothing"),
            ("Today", f"{view.used_today} of {view.budget} merges"),
            ("Last look", time_text(view.polled) if view.polled else "not yet"),
        )
    )
    return el(
        "article",
        el("div", title, cls="hm-title"),
        problems_panel(view.problem, "The last look failed") if view.problem else None,
        facts,
        el("p", f"Waiting: {view.waiting}.", cls="hm-dim") if view.waiting else None,
        _events(view, endpoint),
        data_rule=view.name,
    )


def _events(view: WatcherView, endpoint: str) -> Markup:
    if not view.events:
        return el("p", "Nothing has happened yet.", cls="hm-dim hm-empty")
    rows = [
        (time_text(event.time), *(el("span", cell, cls="hm-cell-text") for cell in _cells(event, endpoint)))
        for event in view.events
    ]
    return section("What it did", table(("When", "What", "Which", "Why"), rows))


def _what(event: WatcherEvent) -> Markup:
    if event.kind == "merged":
        return badge(event.job_state or "queued")
    label, kind = ("Refused", "bad") if event.kind == "refused" else ("Left out", "dim")
    return el("span", label, cls=f"hm-badge hm-{kind}")


def _cells(event: WatcherEvent, endpoint: str) -> tuple[object, object, object]:
    if event.kind == "skipped":
        which = repo_link(endpoint, event.subject, event.sha) if "/" in event.subject else event.subject
        short = el("code", event.sha[:12], cls="hm-sha") if "/" in event.subject else None
        return _what(event), join(which, short), join(el("code", event.code, cls="hm-code"), event.text)
    which = link(job_href(event.job_id), event.subject) if event.job_id else event.subject
    agents = ", ".join(agent.partition("@")[0] for agent in event.agents)
    why = join(el("code", event.code, cls="hm-code"), event.text) if event.code else f"{len(event.agents)} agents"
    return _what(event), which, join(why, el("span", agents, cls="hm-sha"))
