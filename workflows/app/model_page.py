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
from workflows.app.board_panels import lineage_section, model_head, score_sections, statistics_section
from workflows.app.format import el, join, link
from workflows.app.panels import notice, problems_panel
from workflows.app.service import BoardSource


def model_page(demo: Any, source: BoardSource, endpoint: str) -> None:
    """Build the page in the current Blocks context."""
    head = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="model", elem_classes="hm-card")
    scores = gr.HTML("", js_on_load=None, visible=False, elem_id="model-scores", elem_classes="hm-card")
    facts = gr.HTML("", js_on_load=None, visible=False, elem_id="model-facts", elem_classes="hm-card")
    recipe_card = gr.Accordion("Recipe", open=False, visible=False, elem_classes="hm-card", elem_id="recipe-card")
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
            return [notice("info", "No result of this model", el("p", model), back), *nothing]
        row = found[0][1]
        recipe = row.facts.recipe or ""
        below = join(statistics_section(row), lineage_section(row, board))
        return [
            join(model_head(row, endpoint), back),
            gr.update(value=score_sections(found, endpoint), visible=True),
            gr.update(value=below, visible=bool(below)),
            gr.update(visible=bool(recipe)),
            recipe,
        ]

    return opening


def _found(board: Board, model: str, sha: str | None) -> list[tuple[SuiteBoard, Row]]:
    """The model's rows, all of one commit: the asked one, else the one that no newer supersedes."""
    rows = [(s, r) for s in board.suites for r in s.rows if r.model == model]
    if sha is None and rows:
        sha = max((r for _, r in rows), key=lambda r: (not r.superseded, r.created, r.sha)).sha
    return [(s, r) for s, r in rows if r.sha == sha]
