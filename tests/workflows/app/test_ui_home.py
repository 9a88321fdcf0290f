"""Home, Docs and Evaluate without a browser: measured figures, public counts, words of docs/, and outcomes."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from board_helpers import family
from pages_fake import CATALOGUE, HOSTILE, FakeBoard, FakeService, job_view

from hubmerge.board.leaderboard import build_board
from hubmerge.errors import HubUnavailableError, RecipeError
from hubmerge.methods import registry
from workflows.app.docs_page import _methods, _page, _words, rendered
from workflows.app.evaluate_page import answer_panel, of_address, queue_panel
from workflows.app.home_page import MEASURED, _standing, latest_merges, skills_figure
from workflows.app.model_page import _shown
from workflows.app.submission import one_model
from workflows.jobs.jobs import DatabaseBusyError
from workflows.values import EvaluationAnswer, EvaluationQueue, QueuedEvaluation, Visitor

DOCS = Path(__file__).resolve().parents[3] / "docs"
DATA = DOCS / "data" / "zoo_evaluation.json"
SHA = "a" * 40


def test_the_figure_shows_what_was_measured():
    measured = {entry["model"]: entry for entry in json.loads(DATA.read_text("utf-8"))}
    for task, (_, scores) in MEASURED.items():
        models = ("zoo/base", f"zoo/{task}", "linear", "ram_plus_stochastic")
        shares = [measured[m]["runner"][task] / measured[m]["total"] for m in models]
        assert scores == tuple(round(share * 100, 1) for share in shares)
    assert "97.8%" in skills_figure()


def test_the_latest_merges_come_newest_first_each_model_once():
    board = build_board(family())
    [suite] = board.suites
    [merge] = latest_merges(board)
    newer = replace(merge, sha="9" * 40, created="2031-01-01T00:00:00+00:00")
    other = replace(merge, model="org/other", created="2030-06-01T00:00:00+00:00")
    hidden = replace(merge, model="org/old", superseded=True)
    rows = (*suite.rows, newer, other, hidden)
    found = latest_merges(replace(board, suites=(replace(suite, rows=rows),)))
    assert [(row.model, row.sha) for row in found] == [(merge.model, newer.sha), ("org/other", merge.sha)]


def test_home_tells_what_is_under_way_and_nothing_of_private_jobs():
    service = FakeService()
    assert "Nothing is running" in _standing(service, None)
    running = {"state": "running", "queue_position": None}
    service.put([job_view("1" * 64, **running), job_view("2" * 64), job_view("3" * 64, private=True)])
    service.put([job_view("4" * 64, kind="evaluate", **running)])
    told = _standing(service, None)
    assert "Now: 1 merging, 1 evaluating, 1 waiting." in told
    assert "ada" not in told


def test_home_is_of_use_while_board_or_jobs_cannot_be_had(monkeypatch):
    told = _standing(FakeService(), FakeBoard(failure=HubUnavailableError("away")))
    assert "Nothing is running" in told
    monkeypatch.setattr(FakeService, "under_way", Mock(side_effect=DatabaseBusyError("the job database is busy")))
    told = _standing(FakeService(), FakeBoard(build_board(family())))
    assert ("org/merge" in told, "skills:" in told, "cannot be told" in told) == (True, True, True)


def test_every_method_is_there_with_one_sentence_and_the_rest_folded():
    shown = str(_methods())
    for name, method in registry().items():
        assert f'<details id="{name}">' in shown or f'id="{name}"' in shown
        assert method.title in shown
    assert shown.count("<details") == len(registry()) + 1
    assert "arXiv" in shown


def test_the_words_are_those_of_the_glossary():
    shown = str(_words())
    assert _page("glossary.md") == (DOCS / "glossary.md").read_text("utf-8")
    assert shown.count("<details") == (DOCS / "glossary.md").read_text("utf-8").count("\n## ")
    assert "<strong>signal dilution</strong>" in shown
    assert '.md"' not in shown  # no link leads to a page that the app does not have
    assert 'href="docs#ram"' in shown


def test_html_in_a_page_of_docs_stays_text():
    assert "<script>" not in rendered("a <script>alert(1)</script> [x](javascript:alert(1))")


@pytest.mark.parametrize(
    ("answer", "told", "leads"),
    [
        (("queued", "job1", 1), "number 1 in the queue", "job?id=job1"),
        (("under way", "job1", 2), "Somebody has asked already", "job?id=job1"),
        (("scored", "", None), "Measured already", f"model?model=org/m&amp;sha={SHA}"),
        (("failed", "job1", None), "Ask again in some hours", "job?id=job1"),
        (("under way", "", 2), "Somebody has asked already", ""),  # a private job
    ],
)
def test_every_outcome_says_what_it_means_and_leads_on(answer, told, leads):
    outcome, job, place = answer
    shown = answer_panel(EvaluationAnswer(outcome, "org/m", SHA, "math", job, place))
    assert told in shown
    assert (f'href="{leads}"' in shown, "href" in shown) == (bool(leads), bool(leads))


def test_the_queue_says_what_runs_and_what_waits_in_which_order():
    runs = QueuedEvaluation("org/now", SHA, "math", "j1", "2026-01-31T14:05", None, "generate")
    waits = QueuedEvaluation(HOSTILE, SHA, "other", "j2", "2026-01-31T14:06", 1, "")
    shown = queue_panel(EvaluationQueue((runs,), (waits,), 3), {"math": "Mathematics"})
    assert shown.index("org/now") < shown.index("Waiting") < shown.index("number 1")
    assert ("Mathematics" in shown, "And 2 more." in shown, "<img" in shown) == (True, True, False)
    assert "Nothing waits." in queue_panel(EvaluationQueue((), (), 0), {})


def test_the_page_of_a_model_that_is_to_be_measured_says_so():
    service = FakeService()

    def scores() -> str:
        return str(_shown(service, None, None, CATALOGUE[0], None, "scores")[1]["value"])

    assert "Nobody has measured this model yet" in scores()
    asked = service.request_evaluation(CATALOGUE[0], "math", Visitor("ada", "token", ("ada",)))
    assert "It is number 1 in the queue" in scores()
    assert f'href="job?id={asked.job}"' in scores()
    service.evaluations = [replace(service.evaluations[0], place=None)]
    assert "It is being measured now" in scores()
    assert "Nobody" not in scores()
    service.evaluations, service.suites = [], {}
    assert 'href="evaluate' not in scores()  # where nothing is measured


def test_an_address_with_questions_that_are_not_asked_here_says_so_and_keeps_its_model():
    suites = {"math": "Mathematics", "tool": "Function calling"}
    assert of_address({"model": " a/b ", "suite": "tool"}, suites) == ("a/b", "tool", [])
    assert of_address({}, suites) == ("", "", [])
    told = ["There are no questions “maths”. This site has math, tool."]
    assert of_address({"model": "a/b", "suite": "maths"}, suites) == ("a/b", "", told)


def test_several_models_are_refused_where_one_is_measured():
    with pytest.raises(RecipeError, match="several models"):
        one_model("a/b, c/d", "http://127.0.0.1:9")
