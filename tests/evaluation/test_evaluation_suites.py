"""Suites name tasks that exist, and their version changes with everything that would change what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hubmerge.errors import EvaluationError, SourceNotFoundError
from hubmerge.evaluation.suites import SUITES, PinnedSuite, Suite, SuiteTask, pin
from hubmerge.hub import Hub, RepoState
from hubmerge.tasks import BuiltinTask, registry

SHA = "a" * 40


class CountingHub:
    """Answers with made-up commits and counts what it is asked."""

    def __init__(self, revisions: Mapping[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self.revisions = revisions or {}
        self.datasets = self

    def repo_state(self, repo_id: str, revision: str | None = None) -> RepoState:
        self.asked.append(repo_id)
        return RepoState(repo_id, self.revisions.get(repo_id, SHA), {}, False, False, None, {})


def pinned(suite: str | Suite = "zoo", **arguments: object) -> PinnedSuite:
    return pin(suite, CountingHub(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda s: s.name)
def test_every_task_of_a_suite_exists_once(suite: Suite) -> None:
    names = [t.task for t in suite.tasks]
    assert len(set(names)) == len(names)
    assert set(names) <= set(registry())


def test_an_unknown_suite_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(EvaluationError, match=r"zoo, math, instruction.*moth"):
        pinned("moth")


def test_a_dataset_of_several_tasks_is_asked_for_once() -> None:
    hub = CountingHub()
    suite = pin("zoo", hub)  # type: ignore[arg-type]
    assert hub.asked == ["zoo/held-out"]
    assert [t.revision for t in suite.tasks] == [SHA] * 3


def test_the_version_is_twelve_hex_digits_and_stays_the_same() -> None:
    assert pinned().version == pinned().version
    assert len(pinned().version) == 12
    assert int(pinned().version, 16) >= 0


def test_the_version_changes_with_everything_that_changes_what_is_asked() -> None:
    suite = SUITES["zoo"]
    task = registry()["zoo_math"]
    base = pinned()
    others = [
        pinned(limit=499),
        pinned(split="dev"),
        pinned(replace(suite, max_model_len=4096)),
        pinned(replace(suite, tasks=suite.tasks[:2])),
        pinned(replace(suite, tasks=(SuiteTask("zoo_math", few_shot=1), *suite.tasks[1:]))),
        pin("zoo", CountingHub({"zoo/held-out": "b" * 40})),  # type: ignore[arg-type]
        replace(base, tasks=(replace(base.tasks[0], task=replace(task, version=2)), *base.tasks[1:])),
    ]
    versions = {suite.version for suite in (base, *others)}
    assert len(versions) == len(others) + 1


def test_a_limit_lowers_every_task_and_raises_none() -> None:
    suite = Suite("s", "", (SuiteTask("zoo_math", limit=10), SuiteTask("zoo_tool")))
    assert [t.limit for t in pinned(suite, limit=20).tasks] == [10, 20]
    with pytest.raises(EvaluationError, match="no rows"):
        pinned(suite, limit=0)


def test_the_dev_split_keeps_only_tasks_that_have_rows_to_choose_by() -> None:
    assert [(t.name, t.split) for t in pinned("math", split="dev").tasks] == [("gsm8k", "train")]
    assert [t.split for t in pinned("zoo", split="dev").tasks] == ["validation"] * 3
    with pytest.raises(EvaluationError, match="no rows to choose by"):
        pinned("instruction", split="dev")


def test_dev_rows_have_no_part_in_the_test_rows() -> None:
    for task in registry().values():
        assert task.rows.dev_split != task.rows.split


def test_a_suite_with_a_task_that_does_not_exist_is_refused() -> None:
    with pytest.raises(EvaluationError, match="zoo_astronomy"):
        pinned(Suite("s", "", (SuiteTask("zoo_astronomy"),)))


def test_a_missing_dataset_is_refused_by_the_hub(hub: Hub) -> None:
    with pytest.raises(SourceNotFoundError):
        pin("instruction", Hub(hub.endpoint))


def test_builtin_tasks_name_modules_that_the_evaluating_process_allows() -> None:
    # read as text: importing it would import lighteval
    from pathlib import Path

    import hubmerge.evaluation

    source = (Path(hubmerge.evaluation.__file__).parent / "lighteval_tasks.py").read_text(encoding="utf-8")
    for task in registry().values():
        if isinstance(task, BuiltinTask):
            assert f'"{task.module}"' in source
