"""A model's page, `/model?model=ORG/NAME&sha=SHA`: scores beside its parents, statistics, lineage, recipe.

Without a commit the page shows the newest one that has a result. It looks the model up on the board; a name that is not
there is shown as text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import HubmergeError
from hubmerge.hub.names import is_hub_id
from workflows.app.board_panels import lineage_section, model_head, score_sections, statistics_section
from workflows.app.format import el, join, link, repo_link
from workflows.app.model_panels import licenses, scores_picture, use_it, verdict_panel, ways_on
from workflows.app.panels import notice, problems_panel
from workflows.app.service import BoardSource


def model_page(demo: Any, source: BoardSource, endpoint: str) -> None:
    """Build the page in the current Blocks context."""
    head = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="model", elem_classes="hm-card")
    scores = gr.HTML("", js_on_load=None, visible=False, elem_id="model-scores", elem_classes="hm-card")
    facts = gr.HTML("", js_on_load=None, visible=False, elem_id="model-facts", elem_classes="hm-card")
    recipe_card = gr.Accordion("Reproduce it", open=False, visible=False, elem_classes="hm-card", elem_id="recipe-card")
    with recipe_card:
        recipe = gr.Code(value="", language="yaml", show_label=False, interactive=False, elem_id="recipe")
    demo.load(
        _opening(source, endpoint),
        None,
        [head, scores, facts, recipe_card, recipe],
        show_progress="hidden",
        api_visibility="private",
        concurrency_limit=4,
    )


def _opening(source: BoardSource, endpoint: str) -> Callable[..., Any]:
    def opening(request: gr.Request) -> list[Any]:
        model = str(request.query_params.get("model") or "")[:300]
        sha = str(request.query_params.get("sha") or "")[:64] or None
        back = el("p", link("leaderboard", "All models"))
        nothing = [*[gr.update(visible=False)] * 3, ""]
        if not model:
            return [notice("info", "No model is named", back), *nothing]
        try:
            board = source.board()
        except HubmergeError as error:
            return [problems_panel(error, "This model cannot be shown"), *nothing]
        found = _found(board, model, sha)
        if not found:
            return [join(notice("info", "Not scored yet", el("p", model), _where(model, endpoint)), back), *nothing]
        row = found[0][1]
        recipe = row.facts.recipe or ""
        known = [r for suite in board.suites for r in suite.rows]
        made = licenses(row, known)
        stated = el("details", el("summary", "Licenses of its parents"), el("ul", made)) if made else None
        below = join(statistics_section(row), lineage_section(row, board), stated)
        first = join(scores_picture(row), use_it(row), score_sections(found, endpoint))
        return [
            join(verdict_panel(row), model_head(row, endpoint), ways_on(row)),
            gr.update(value=first, visible=True),
            gr.update(value=below, visible=bool(below)),
            gr.update(visible=bool(recipe)),
            recipe,
        ]

    return opening


def _where(model: str, endpoint: str) -> Any:
    """A model without scores is on the Hub all the same, with its card."""
    if not is_hub_id(model):
        return None
    return el("p", "If there is such a model, its card is on the Hub: ", repo_link(endpoint, model))


def _found(board: Board, model: str, sha: str | None) -> list[tuple[SuiteBoard, Row]]:
    """The model's rows, all of one commit: the asked one, else the one that no newer supersedes."""
    rows = [(s, r) for s in board.suites for r in s.rows if r.model == model]
    if sha is None and rows:
        sha = max((r for _, r in rows), key=lambda r: (not r.superseded, r.created, r.sha)).sha
    return [(s, r) for s, r in rows if r.sha == sha]
