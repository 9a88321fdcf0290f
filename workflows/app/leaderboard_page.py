"""The leaderboard, `/leaderboard?suite=NAME`: the table in three views, a comparison and a chart.

Everything is computed from the board as it is at that moment; the table's own search and filters work in the
browser. Models are compared by their label, org/name@sha, which the server looks up on the board again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.errors import HubmergeError
from workflows.app.board_chart import score_chart
from workflows.app.board_panels import COMPARED, comparison, refused_panel, suite_title, summary
from workflows.app.board_table import MAX_ROWS, VIEWS, columns, table
from workflows.app.format import el, join
from workflows.app.panels import header, notice, problems_panel
from workflows.app.service import BoardSource

OVERALL = "Overall"
_GUIDE = (
    ("Score", "percent of the prompts answered right; ± is half of Wilson's 95 % interval."),
    ("Rank", "1 + the number of models whose interval lies wholly above. Models that overlap share a rank."),
    (
        "Skills kept",
        "a skill is a task at which a parent is above the base beyond chance. Kept of it is (merge − base) ÷ (best "
        "parent − base), with its 95 % interval; it counts as kept from one half, where the merge, too, is above the "
        "base beyond chance. Told once every parent is scored. Best first: those that keep skills of several parents, "
        "by the number of skills kept, then by the mean.",
    ),
    ("Synergy", "domains in which the merge is above every parent; within chance where a difference's interval has 0."),
    ("Failed, flagged", "listed without a rank. A flag passes on to everything that was merged from the model."),
)


def leaderboard_page(demo: Any, source: BoardSource) -> None:
    """Build the page in the current Blocks context."""
    gr.HTML(header("Leaderboard", "What merges keep of their parents, measured."), js_on_load=None)
    with gr.Row(elem_classes="hm-board-bar"):
        suite = gr.Dropdown([], label="Suite", elem_id="suite", interactive=True, scale=2, min_width=180)
        view = gr.Radio(VIEWS, value=VIEWS[0], label="View", elem_id="view", scale=2, min_width=220)
        merges = gr.Checkbox(False, label="Merges only", elem_id="merges-only", scale=1, min_width=130)
    told = gr.HTML(el("p", "Loading …", cls="hm-dim"), js_on_load=None, elem_id="board-summary")
    rows = gr.Dataframe(
        [],
        headers=["Rank", "Model"],
        datatype=["number", "html"],
        interactive=False,
        show_search="filter",
        pinned_columns=2,
        max_height=560,
        wrap=False,
        buttons=["fullscreen"],
        show_label=False,
        latex_delimiters=[],
        elem_id="board",
    )
    with gr.Accordion("How to read this", open=False, elem_id="guide"):
        gr.HTML(el("dl", *(join(el("dt", t), el("dd", d)) for t, d in _GUIDE), cls="hm-guide"), js_on_load=None)
    with gr.Column(elem_classes="hm-card"):
        gr.HTML(el("h3", "Compare models"), js_on_load=None, elem_classes="hm-card-title")
        chosen = gr.Dropdown(
            [], multiselect=True, max_choices=COMPARED[1], label="Models", elem_id="chosen", interactive=True
        )
        compared = gr.HTML(comparison((), _NO_SUITE), js_on_load=None, elem_id="compared")
    with gr.Column(elem_classes="hm-card"):
        gr.HTML(el("h3", "Score against density"), js_on_load=None, elem_classes="hm-card-title")
        domain = gr.Dropdown([OVERALL], value=OVERALL, label="Score", elem_id="chart-domain", interactive=True)
        chart = gr.HTML("", js_on_load=None, elem_id="chart")
    left_out = gr.Accordion("Left out", open=False, visible=False, elem_id="left-out")
    with left_out:
        refused = gr.HTML("", js_on_load=None, elem_id="refused")

    quiet = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 4}
    shown = [told, rows, chosen, compared, domain, chart, left_out, refused]
    demo.load(_opening(source), None, [suite, *shown], **quiet)
    suite.input(_showing(source), [suite, view, merges], shown, **quiet)
    gr.on([view.input, merges.input], _tabling(source), [suite, view, merges], [told, rows], **quiet)
    chosen.change(_comparing(source), [suite, chosen], [compared], **quiet)
    domain.input(_charting(source), [suite, domain], [chart], **quiet)


_NO_SUITE = SuiteBoard("", "", "test", (), (), ())


def _opening(source: BoardSource) -> Callable[..., Any]:
    show = _showing(source)

    def opening(request: gr.Request) -> list[Any]:
        asked = str(request.query_params.get("suite") or "")[:200]
        try:
            suites = source.board().suites
        except HubmergeError:
            suites = ()
        names = [s.suite for s in suites]
        name = asked if asked in names else names[0] if names else None
        choices = [(suite_title(s), s.suite) for s in suites]
        return [gr.update(choices=choices, value=name), *show(name, VIEWS[0], False)]

    return opening


def _showing(source: BoardSource) -> Callable[..., list[Any]]:
    """Everything below the choice of the suite."""

    def show(name: str | None, view: str, merges_only: bool) -> list[Any]:
        try:
            board = source.board()
        except HubmergeError as error:
            return [problems_panel(error, "The leaderboard cannot be shown"), *[gr.skip()] * 7]
        suite = _suite(board, name)
        left_out = gr.update(visible=bool(board.refused), label=f"Left out: {len(board.refused)}")
        tail = [left_out, refused_panel(board.refused)]
        if suite is None:
            hint = notice("info", "No results yet", el("p", "A model that was evaluated appears here."))
            return [hint, gr.update(visible=False), *[gr.skip()] * 4, *tail]
        domains = [OVERALL, *(d for d in suite.domains if len(suite.domains) > 1)]
        return [
            *_table(suite, view, merges_only, source.url),
            gr.update(choices=[_label(r) for r in suite.rows if r.status == "done"][:MAX_ROWS], value=[]),
            comparison((), suite),
            gr.update(choices=domains, value=OVERALL),
            score_chart(suite),
            *tail,
        ]

    return show


def _table(suite: SuiteBoard, view: str, merges_only: bool, url: str) -> list[Any]:
    view = view if view in VIEWS else VIEWS[0]
    chosen = columns(suite, view)
    value = table(suite, view, merges_only=merges_only)
    cut = len(suite.rows) > MAX_ROWS
    more = el("p", f"The first {MAX_ROWS:,} are shown; the CSV has all.", cls="hm-dim") if cut else None
    update = gr.update(
        value=value,
        headers=value["headers"],
        datatype=[c.datatype for c in chosen],
        column_widths=[f"{c.width}px" for c in chosen],
        visible=True,
    )
    return [join(summary(suite, url), more), update]


def _tabling(source: BoardSource) -> Callable[..., Any]:
    def retable(name: str | None, view: str, merges_only: bool) -> list[Any]:
        try:
            suite = _suite(source.board(), name)
        except HubmergeError as error:
            return [problems_panel(error, "The leaderboard cannot be shown"), gr.skip()]
        return [gr.skip(), gr.skip()] if suite is None else _table(suite, view, merges_only, source.url)

    return retable


def _comparing(source: BoardSource) -> Callable[..., Any]:
    def compare(name: str | None, labels: Sequence[str] | None) -> Any:
        try:
            suite = _suite(source.board(), name)
        except HubmergeError as error:
            return problems_panel(error)
        wanted = list(labels or ())[: COMPARED[1]]
        by_label = {_label(r): r for r in suite.rows} if suite else {}
        return comparison([by_label[x] for x in wanted if x in by_label], suite or _NO_SUITE)

    return compare


def _charting(source: BoardSource) -> Callable[..., Any]:
    def redraw(name: str | None, domain: str | None) -> Any:
        try:
            suite = _suite(source.board(), name)
        except HubmergeError as error:
            return problems_panel(error)
        known = domain if suite and domain in suite.domains else None
        return score_chart(suite or _NO_SUITE, known)

    return redraw


def _suite(board: Board, name: str | None) -> SuiteBoard | None:
    return board.suite(name) if name else None


def _label(row: Row) -> str:
    return f"{row.model}@{row.sha[:7]}"
