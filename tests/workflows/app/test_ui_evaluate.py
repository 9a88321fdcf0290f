"""Asking for an evaluation on its page: what it says of each outcome, and the queue below."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pages_fake import CATALOGUE, HOSTILE, FakeService

from hubmerge.errors import RecipeError
from workflows.app.evaluate_page import answer_panel, of_address, queue_panel
from workflows.app.model_page import _shown
from workflows.app.submission import one_model
from workflows.values import EvaluationAnswer, EvaluationQueue, QueuedEvaluation, Visitor

SHA = "a" * 40


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
def test_every_outcome_says_what_it_means_and_leads_on(
    answer: tuple[str, str, int | None], told: str, leads: str
) -> None:
    outcome, job, place = answer
    shown = answer_panel(EvaluationAnswer(outcome, "org/m", SHA, "math", job, place))
    assert told in shown
    assert (f'href="{leads}"' in shown, "href" in shown) == (bool(leads), bool(leads))


def test_the_queue_says_what_runs_and_what_waits_in_which_order() -> None:
    runs = QueuedEvaluation("org/now", SHA, "math", "j1", "2026-01-31T14:05", None, "generate")
    waits = QueuedEvaluation(HOSTILE, SHA, "other", "j2", "2026-01-31T14:06", 1, "")
    shown = queue_panel(EvaluationQueue((runs,), (waits,), 3), {"math": "Mathematics"})
    assert shown.index("org/now") < shown.index("Waiting") < shown.index("number 1")
    assert "Mathematics" in shown
    assert "And 2 more." in shown
    assert "<img" not in shown
    assert "Nothing waits." in queue_panel(EvaluationQueue((), (), 0), {})


def test_the_page_of_a_model_that_is_to_be_measured_says_so() -> None:
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


def test_an_address_with_questions_that_are_not_asked_here_says_so_and_keeps_its_model() -> None:
    suites = {"math": "Mathematics", "tool": "Function calling"}
    assert of_address({"model": " a/b ", "suite": "tool"}, suites) == ("a/b", "tool", [])
    assert of_address({}, suites) == ("", "", [])
    told = ["There are no questions “maths”. This site has math, tool."]
    assert of_address({"model": "a/b", "suite": "maths"}, suites) == ("a/b", "", told)


def test_several_models_are_refused_where_one_is_measured() -> None:
    with pytest.raises(RecipeError, match="several models"):
        one_model("a/b, c/d", "http://127.0.0.1:9")
