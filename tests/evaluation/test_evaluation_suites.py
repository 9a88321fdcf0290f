"""Suites name tasks that exist, and their version changes with everything that would change what is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub import HfApi

from hubmerge.errors import EvaluationError, SourceNotFoundError
from hubmerge.evaluation.dataset_content import content_digest
from hubmerge.evaluation.suites import SUITES, PinnedSuite, Suite, SuiteTask, pin
from hubmerge.evaluation.tasks import registry
from hubmerge.evaluation.tasks.base import Rows
from hubmerge.hub.client import Hub, RepoState, TreeFile

SHA = "a" * 40


class CountingHub:
    """Answers with made-up commits and counts what it is asked."""

    endpoint = "http://hub"

    def __init__(self, revisions: Mapping[str, str] | None = None, data: str = "1") -> None:
        self.asked: list[str] = []
        self.revisions = revisions or {}
        self.data = data
        self.datasets = self

    def repo_state(self, repo_id: str, revision: str | None = None) -> RepoState:
        self.asked.append(repo_id)
        return RepoState(repo_id, self.revisions.get(repo_id, SHA), {}, False, False, None, {})

    def tree(self, repo_id: str, sha: str) -> Mapping[str, TreeFile]:
        return {"data.parquet": TreeFile("data.parquet", 10, sha, self.data)}


def pinned(suite: str | Suite = "zoo", hub: CountingHub | None = None, **arguments: object) -> PinnedSuite:
    """Where nothing says what the datasets must be."""
    return pin(suite, hub or CountingHub(), pins={}, **arguments)  # type: ignore[arg-type]


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
    suite = pinned("zoo", hub)
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
        pinned(dtype="float32"),
        pinned("zoo", CountingHub(data="2")),
        replace(base, tasks=(replace(base.tasks[0], task=replace(task, version=2)), *base.tasks[1:])),
    ]
    versions = {suite.version for suite in (base, *others)}
    assert len(versions) == len(others) + 1


def test_a_commit_that_changes_no_data_changes_the_pin_and_not_the_version() -> None:
    other = pinned("zoo", CountingHub({"zoo/held-out": "b" * 40}))
    assert other.version == pinned().version
    assert {t.revision for t in other.tasks} == {"b" * 40}


CARD: dict[str, Any] = {
    "configs": [
        {"config_name": "main", "data_files": [{"split": s, "path": f"main/{s}-*"} for s in ("train", "test")]},
        {"config_name": "other", "data_files": "other/*.parquet"},
    ],
    "dataset_info": [{"config_name": "main", "features": [{"name": "question", "dtype": "string"}], "dataset_size": 1}],
}
FILES = ("README.md", "main/train-0.parquet", "main/test-0.parquet", "main/test-1.parquet", "other/a.parquet")


def digest_of(*, card: Mapping[str, Any] = CARD, rows: Rows | None = None, splits: str = "test", **changed: str) -> str:
    """`changed`: file → another content, its name with _ for what an argument cannot have."""
    known = {re.sub(r"\W", "_", path): path for path in FILES}
    assert set(changed) <= set(known)
    tree = {p: TreeFile(p, 1, "o" * 40, changed.get(re.sub(r"\W", "_", p), "1")) for p in FILES}
    return content_digest(rows or Rows("a/b", "main"), splits.split(), card, tree)


def test_exactly_the_files_of_the_splits_that_are_read_make_a_content() -> None:
    same = digest_of()
    assert same == digest_of(README_md="2", main_train_0_parquet="2", other_a_parquet="2")
    assert same != digest_of(main_test_1_parquet="2")
    examples = "test train"
    assert digest_of(splits=examples) != digest_of(splits=examples, main_train_0_parquet="2")
    other = Rows("a/b", "other")
    assert digest_of(rows=other) == digest_of(rows=other, main_test_0_parquet="2")
    assert digest_of(rows=other) != digest_of(rows=other, other_a_parquet="2")
    named = Rows("a/b", data_files={"test": "other/a.parquet"})
    assert digest_of(rows=named) == digest_of(rows=named, main_test_0_parquet="2")
    assert digest_of(rows=named) != digest_of(rows=named, other_a_parquet="2")


def test_how_rows_are_parsed_is_content_and_what_a_card_says_besides_is_not() -> None:
    sized = {**CARD, "license": "mit", "dataset_info": [{**CARD["dataset_info"][0], "dataset_size": 2}]}
    assert digest_of(card=sized) == digest_of()
    cast = {**CARD, "dataset_info": [{**CARD["dataset_info"][0], "features": [{"name": "question", "dtype": "int8"}]}]}
    assert digest_of(card=cast) != digest_of()


@pytest.mark.parametrize("configs", [None, 3, [{"config_name": "main", "data_files": "gone/*"}], [{"data_files": {}}]])
def test_without_a_word_on_its_files_every_file_that_is_no_document_is_content(configs: Any) -> None:
    card = {"configs": configs}
    for path in ("main_train_0_parquet", "main_test_0_parquet", "other_a_parquet"):
        assert digest_of(card=card) != digest_of(card=card, **{path: "2"})
    assert digest_of(card=card) == digest_of(card=card, README_md="2")


def test_a_dataset_s_card_may_change_on_the_hub_without_another_version(hub: Hub) -> None:
    """Through the real client, on a repo as `datasets` pushes it."""
    api = HfApi(hub.endpoint, token=hub.token)
    api.create_repo("ada/questions", repo_type="dataset")
    task = replace(registry()["zoo_math"], name="q", rows=Rows("ada/questions"))

    def put(path: str, content: str) -> str:
        api.upload_file(
            path_or_fileobj=content.encode(), path_in_repo=path, repo_id="ada/questions", repo_type="dataset"
        )
        state = hub.datasets.repo_state("ada/questions")
        return content_digest(task.rows, ["test"], state.card, hub.datasets.tree("ada/questions", state.sha))

    card = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: test\n    path: test.jsonl\n---\n"
    put("README.md", card)
    first = put("test.jsonl", '{"a": 1}\n')
    assert put("README.md", card + "A word more.") == first
    assert put("train.jsonl", '{"a": 3}\n') == first
    assert put("test.jsonl", '{"a": 2}\n') != first


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


def test_a_missing_dataset_is_refused_by_the_hub(hub: Hub) -> None:
    with pytest.raises(SourceNotFoundError):
        pin("instruction", Hub(hub.endpoint))
