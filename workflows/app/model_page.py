"""A model's page, `/model?model=ORG/NAME&sha=SHA&tab=TAB`: scores, what changed, how to reproduce it, and its card.

Without a commit the page shows the newest one that has a result, or the model as it is on the Hub. Scores come from the
board, where there is one; the rest comes from the model's own files, which are asked for with the visitor's sign-in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import HubmergeError
from hubmerge.evaluation.result import ParentFacts
from hubmerge.hub.names import is_hub_id
from hubmerge.sources.ancestry import ancestors_in
from workflows.app.board_panels import (
    lineage_section,
    lineage_tree,
    model_head,
    score_sections,
    statistics_section,
)
from workflows.app.format import el, join, link, repo_link
from workflows.app.lanes import ASKING, Lanes
from workflows.app.model_panels import scores_picture, use_it, verdict_panel, ways_on
from workflows.app.model_tabs import TABS, card_tab, changed_tab, reproduce_tab, tab_links, unscored_tab
from workflows.app.panels import facts_grid, notice, problems_panel, section
from workflows.app.service import BoardSource, Published, Service, Visitor
from workflows.app.session import visitor_of

_SHA = re.compile(r"[0-9a-f]{40}")


def model_page(demo: Any, service: Service, lanes: Lanes, source: BoardSource | None) -> None:
    """Build the page in the current Blocks context."""
    head = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="model", elem_classes="hm-card")
    body = gr.HTML("", js_on_load=None, visible=False, elem_id="model-tab", elem_classes="hm-card")
    opening = lanes.asking(_opening(service, source), lambda error: _alone(problems_panel(error)))
    demo.load(opening, None, [head, body], show_progress="hidden", api_visibility="private", **ASKING)


def _alone(head: Markup) -> list[Any]:
    return [head, gr.update(visible=False)]


def _opening(service: Service, source: BoardSource | None) -> Callable[..., Any]:
    def opening(request: gr.Request, profile: gr.OAuthProfile | None, token: gr.OAuthToken | None) -> list[Any]:
        query = request.query_params
        model = str(query.get("model") or "")[:300]
        sha = str(query.get("sha") or "")[:64] or None
        tab = str(query.get("tab") or "")
        if not model:
            return _alone(notice("info", "No model is named", el("p", link("merge", "Choose models to merge"))))
        return _shown(service, source, visitor_of(profile, token), model, sha, tab if tab in TABS else "scores")

    return opening


def _shown(
    service: Service, source: BoardSource | None, visitor: Visitor | None, model: str, sha: str | None, tab: str
) -> list[Any]:
    board, failure = Board(), None
    try:
        board = source.board() if source is not None else board
    except HubmergeError as error:
        failure = error
    found = found_rows(board, model, sha)
    row = found[0][1] if found else None
    own: Published | HubmergeError | None = None
    if tab != "scores" or row is None:
        newest = tab == "card" and row is not None and not row.superseded  # its scores came with a later commit
        try:
            own = _published(service, model, None if newest else row.sha if row else sha, visitor)
        except HubmergeError as error:
            own = error
    if row is None and not isinstance(own, Published):
        return _alone(_missing(failure or own, model, service.endpoint))
    tabs = tab_links(model, sha, tab)
    if row is not None:
        head = join(verdict_panel(row), model_head(row, service.endpoint), ways_on(row.model, _base_of(row)))
    else:
        assert isinstance(own, Published)
        head = _head(own, service.endpoint)
    return [head, gr.update(value=join(tabs, _tab(tab, found, board, own, service.endpoint, failure)), visible=True)]


def _published(service: Service, model: str, sha: str | None, visitor: Visitor | None) -> Published | None:
    if not is_hub_id(model):
        return None
    return service.published(model, sha if sha and _SHA.fullmatch(sha) else None, visitor)


def _missing(error: HubmergeError | None, model: str, endpoint: str) -> Markup:
    if error is not None and error.retryable:
        return problems_panel(error, "This model cannot be shown now")
    hub = el("p", "On the Hub: ", repo_link(endpoint, model)) if is_hub_id(model) else None
    told = "There is no such model on the Hub, or you may not read it. If it is private and yours, sign in."
    return notice("info", "This model cannot be shown", el("p", model), el("p", told), hub)


def _tab(
    tab: str,
    found: list[tuple[SuiteBoard, Row]],
    board: Board,
    own: Published | HubmergeError | None,
    endpoint: str,
    failure: HubmergeError | None,
) -> Markup:
    row = found[0][1] if found else None
    if tab == "scores" and row is not None:
        lines = [line for _, r in found for line in r.tasks]
        return join(
            scores_picture(row),
            use_it(row.model, lines),
            score_sections(found, endpoint),
            statistics_section(row),
            lineage_section(row, board),
        )
    if tab == "reproduce" and row is not None and row.facts.recipe:
        report = own.report if isinstance(own, Published) else {}
        return reproduce_tab(row.model, row.facts.recipe, report)
    if isinstance(own, HubmergeError) or own is None:
        return problems_panel(own or {}, "Its files cannot be read now")
    if tab == "changed":
        return changed_tab(own.report)
    if tab == "reproduce":
        text = own.report.get("recipe_yaml")
        return reproduce_tab(own.id, text if isinstance(text, str) else "", own.report)
    if tab == "card":
        return card_tab(own, endpoint)
    wrong = problems_panel(failure, "The leaderboard cannot be read now") if failure else None
    return join(wrong or unscored_tab(own), _lineage(own, board))


def _base_of(row: Row) -> str | None:
    return next((p.id for p in row.facts.parents if p.role == "base"), None)


def _head(model: Published, endpoint: str) -> Markup:
    """Name and facts of a model that no evaluation knows."""
    parents = parents_of(model.report)
    kind = el("span", "Merge" if parents else "Model", cls="hm-badge hm-dim")
    facts = [("Commit", el("code", model.sha[:12])), ("License", model.license or "not stated")]
    base = next((p.id for p in parents if p.role == "base"), None)
    return join(
        el("div", el("h1", model.id), kind, cls="hm-title"),
        facts_grid(facts),
        el("p", "On the Hub: ", repo_link(endpoint, model.id, model.sha)),
        ways_on(model.id, base),
    )


def parents_of(report: Mapping[str, Any]) -> list[ParentFacts]:
    """The parents that a stranger's report names, as far as they are well-formed models of the Hub."""
    stated = report.get("parents")
    found = []
    for parent in stated[:33] if isinstance(stated, list) else ():
        if not isinstance(parent, Mapping):
            continue
        role, name, sha, weight = (parent.get(key) for key in ("role", "id", "sha", "weight"))
        if role in ("base", "agent") and isinstance(name, str) and is_hub_id(name) and isinstance(sha, str):
            known = weight if isinstance(weight, float) and abs(weight) < 1e6 else 1.0
            found.append(ParentFacts(role=role, id=name, sha=sha[:64], weight=known))
    return found


def _lineage(model: Published, board: Board) -> Markup | None:
    parents = parents_of(model.report)
    if not parents:
        return None
    stated = ancestors_in(model.report.get("parents"))
    return section("Lineage", lineage_tree(model.id, model.sha, model.license, parents, board, stated))


def found_rows(board: Board, model: str, sha: str | None) -> list[tuple[SuiteBoard, Row]]:
    """The model's rows, all of one commit: the asked one, else the one that no newer supersedes."""
    rows = [(s, r) for s in board.suites for r in s.rows if r.model == model]
    if sha is None and rows:
        sha = max((r for _, r in rows), key=lambda r: (not r.superseded, r.created, r.sha)).sha
    return [(s, r) for s, r in rows if r.sha == sha]
