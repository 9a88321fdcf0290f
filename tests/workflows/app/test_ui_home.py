"""Home: its figure is measured, its counts are public, and the latest merges say what they kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from board_helpers import family
from pages_fake import FakeService, job_view
from test_ui_board import FakeBoard

from hubmerge.board.leaderboard import build_board
from hubmerge.errors import HubUnavailableError
from workflows.app.home_page import MEASURED, _standing, latest_merges, skills_figure
from workflows.jobs.jobs import DatabaseBusyError

DATA = Path(__file__).resolve().parents[3] / "docs" / "data" / "zoo_evaluation.json"


def test_the_figure_shows_what_was_measured() -> None:
    measured = {entry["model"]: entry for entry in json.loads(DATA.read_text("utf-8"))}
    for task, (_, scores) in MEASURED.items():
        models = ("zoo/base", f"zoo/{task}", "linear", "ram_plus_stochastic")
        shares = [measured[m]["runner"][task] / measured[m]["total"] for m in models]
        assert scores == tuple(round(share * 100, 1) for share in shares)
    assert {entry["total"] for entry in measured.values()} == {500}
    assert "97.8%" in skills_figure()


def test_the_latest_merges_come_newest_first_each_model_once() -> None:
    board = build_board(family())
    [suite] = board.suites
    [merge] = latest_merges(board)
    newer = replace(merge, sha="9" * 40, created="2031-01-01T00:00:00+00:00")
    other = replace(merge, model="org/other", created="2030-06-01T00:00:00+00:00")
    hidden = replace(merge, model="org/old", superseded=True)
    rows = (*suite.rows, newer, other, hidden)
    found = latest_merges(replace(board, suites=(replace(suite, rows=rows),)))
    assert [(row.model, row.sha) for row in found] == [(merge.model, newer.sha), ("org/other", merge.sha)]


def test_home_tells_what_is_under_way_and_nothing_of_private_jobs() -> None:
    service = FakeService()
    assert "Nothing is running" in _standing(service, None)
    running = {"state": "running", "queue_position": None}
    service.put([job_view("1" * 64, **running), job_view("2" * 64), job_view("3" * 64, private=True)])
    service.put([job_view("4" * 64, kind="evaluate", **running)])
    told = _standing(service, None)
    assert "Now: 1 merging, 1 evaluating, 1 waiting." in told
    assert "ada" not in told


def test_home_is_of_use_while_board_or_jobs_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _standing(FakeService(), FakeBoard(failure=HubUnavailableError("away")))
    assert "Nothing is running" in told
    monkeypatch.setattr(FakeService, "under_way", Mock(side_effect=DatabaseBusyError("the job database is busy")))
    told = _standing(FakeService(), FakeBoard(build_board(family())))
    assert ("org/merge" in told, "skills:" in told, "cannot be told" in told) == (True, True, True)


@pytest.mark.browser
def test_home_leads_to_the_example_and_to_the_form(pages: Any, open_page: Any) -> None:
    page = open_page(pages.url)
    page.get_by_role("link", name="Try the example").click()
    page.wait_for_url("**/merge?base=zoo/base&**", wait_until="domcontentloaded")
    for name in ("zoo/math-agent", "zoo/tool-agent", "zoo/mem-agent"):
        page.locator("#agents").filter(has_text=name).wait_for()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Home").click()
    page.get_by_role("link", name="Choose models").click()
    page.wait_for_url("**/merge*", wait_until="domcontentloaded")
