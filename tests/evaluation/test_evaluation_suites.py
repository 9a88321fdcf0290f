"""Suites name tasks that exist, their version changes with what is asked, and their datasets are pinned in a file."""

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets_by_hand import publish
from huggingface_hub import HfApi

from hubmerge.cli.main import main
from hubmerge.errors import EvaluationError, SourceChangedError, SourceNotFoundError
from hubmerge.evaluation import suites
from hubmerge.evaluation.pins import PINS, DatasetPin, content_digest, dataset_digest, own_pins, read_pins, write_pins
from hubmerge.evaluation.suites import SUITES, PinnedSuite, Suite, pin
from hubmerge.evaluation.tasks import bfcl, registry
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


def test_the_version_changes_with_what_is_asked_and_with_nothing_else(monkeypatch):
    suite, task, hub = SUITES["zoo"], registry()["zoo_math"], CountingHub()
    base = pinned("zoo", hub)
    assert hub.asked == ["zoo/held-out"]  # once for its three tasks
    other_commit = pinned("zoo", CountingHub({"zoo/held-out": "b" * 40}))
    assert other_commit.version == base.version
    assert {t.revision for t in other_commit.tasks} == {"b" * 40}
    others = [
        pinned(limit=499),
        pinned(split="dev"),
        pinned(replace(suite, max_model_len=4096)),
        pinned(replace(suite, tasks=suite.tasks[:2])),
        pinned(dtype="float32"),
        pinned("zoo", CountingHub(data="2")),
        *(
            replace(base, tasks=(replace(base.tasks[0], task=replace(task, **change)), *base.tasks[1:]))
            for change in ({"version": 2}, {"few_shot": 1})
        ),
    ]
    versions = {suite.version for suite in (base, *others)}
    assert len(versions) == len(others) + 1
    monkeypatch.setattr(suites, "RULES", suites.RULES + 1)
    assert pinned().version not in versions


def test_the_versions_of_the_suites_for_the_same_data_are_those_that_published_results_name():
    assert {name: pinned(name).version for name in SUITES} == {
        "zoo": "ba413385be04",
        "math": "1ac0ebac07a7",
        "instruction": "293dc7a626f2",
        "code": "7e4a96792bfd",
        "tool": "e68a5467d5ff",
        "memory": "e6443564a0ab",
        "memory_short": "fa826c6825aa",
        "search": "afa88c6e84ae",
    }


CARD: dict[str, Any] = {
    "configs": [
        {"config_name": "main", "data_files": [{"split": s, "path": f"main/{s}-*"} for s in ("train", "test")]},
        {"config_name": "other", "data_files": "other/*.parquet"},
    ],
    "dataset_info": [{"config_name": "main", "features": [{"name": "question", "dtype": "string"}], "dataset_size": 1}],
}
FILES = ("docs/notes.md", "main/train-0.parquet", "main/test-0.parquet", "main/test-1.parquet", "other/a.parquet")


def digest_of(*changed: str, card: Mapping[str, Any] = CARD, subset: str = "main", splits: str = "test") -> str:
    """`changed`: the files that have another content."""
    tree = {p: TreeFile(p, 1, "o" * 40, "2" if p in changed else "1") for p in FILES}
    return content_digest(Rows("a/b", subset), set(splits.split()), card, tree)


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ({}, {"main/test-0.parquet", "main/test-1.parquet"}),
        ({"splits": "test train"}, {"main/train-0.parquet", "main/test-0.parquet", "main/test-1.parquet"}),
        ({"subset": "other"}, {"other/a.parquet"}),
        *(  # without a word on its files every file that is no document is content
            ({"card": {"configs": configs}}, set(FILES) - {"docs/notes.md"})
            for configs in (
                *(None, [{"config_name": "main", "data_files": "gone/*"}], [{"data_files": {}}]),
                [{"config_name": "main", "data_files": [{"split": ["test"], "path": "main/*"}]}],
            )
        ),
    ],
)
def test_exactly_the_files_of_the_splits_that_are_read_make_a_content(asked, read):
    assert {path for path in FILES if digest_of(path, **asked) != digest_of(**asked)} == read


def test_how_rows_are_parsed_is_content_and_what_a_card_says_besides_is_not():
    sized = {**CARD, "license": "mit", "dataset_info": [{**CARD["dataset_info"][0], "dataset_size": 2}]}
    assert digest_of(card=sized) == digest_of()
    cast = {**CARD, "dataset_info": [{**CARD["dataset_info"][0], "features": [{"name": "question", "dtype": "int8"}]}]}
    assert digest_of(card=cast) != digest_of()


def test_the_dev_split_keeps_only_tasks_that_have_rows_to_choose_by():
    assert [(t.name, t.split) for t in pinned("math", split="dev").tasks] == [("gsm8k", "train")]
    assert [t.split for t in pinned("zoo", split="dev").tasks] == ["validation"] * 3
    with pytest.raises(EvaluationError, match="no rows to choose by"):
        pinned("instruction", split="dev")
    with pytest.raises(EvaluationError, match="there is no such split in zoo: expected test or dev, got train"):
        pinned("zoo", split="train")
    with pytest.raises(EvaluationError, match="a limit of no rows"):
        pinned(limit=0)
    assert all(task.rows.dev_split != task.rows.split for task in registry().values())


# --- pins ---------------------------------------------------------------------------------------------------

COMMIT, CONTENT = "a1" * 20, "b2" * 32
BEFORE = PINS.read_text()


def test_the_data_that_the_package_brings_along_are_those_of_their_pins(hub):
    assert tuple(own_pins()) == ("hubmerge/bfcl-v4", "zoo/facts", "zoo/held-out")
    for name in ("zoo", "tool"):
        assert pin(name, hub).unpinned == ()


def test_a_missing_dataset_a_revision_that_is_gone_and_other_data_under_a_pinned_name_are_refused(hub):
    with pytest.raises(SourceNotFoundError):
        pin("instruction", Hub(hub.endpoint))
    with pytest.raises(SourceChangedError, match="no longer there"):
        pin("zoo", hub, pins={"zoo/held-out": DatasetPin(revision=COMMIT, hub=hub.endpoint)})
    pins = {"zoo/held-out": DatasetPin(content=CONTENT)}
    with pytest.raises(EvaluationError, match="other data than its suite is made of") as refused:
        pin("zoo", hub, pins=pins)
    assert refused.value.problems[0].expected == CONTENT


def test_a_change_of_the_card_s_configs_is_other_content_and_a_word_in_it_is_not():
    data = TreeFile("data.parquet", 1, "o" * 40, "1")
    tree = {data.path: data}
    pinned = dataset_digest(CARD, tree)
    assert dataset_digest({**CARD, "license": "mit"}, {**tree, "README.md": replace(data, path="README.md")}) == pinned
    assert dataset_digest({**CARD, "configs": []}, tree) != pinned
    assert dataset_digest(CARD, {data.path: replace(data, sha256="2")}) != pinned


def test_a_revision_is_read_although_main_has_moved_on(hub, name, monkeypatch):
    repo, api = name, HfApi(hub.endpoint, token=hub.token)
    tasks = {f"zoo_{domain}": registry()[f"zoo_{domain}"] for domain in ("math", "tool", "mem")}
    moved = {n: replace(t, rows=replace(t.rows, repo=repo, subset=None)) for n, t in tasks.items()}
    monkeypatch.setattr(suites, "registry", lambda: moved)
    first = publish(api, repo, {"math.jsonl": b'{"prompt": "1+1=", "answer": "2"}\n'})
    pins = {repo: DatasetPin(revision=first, hub=hub.endpoint)}
    before = pin("zoo", hub, pins=pins)
    publish(api, repo, {"math.jsonl": b"{}\n"})
    after, unpinned = pin("zoo", hub, pins=pins), pin("zoo", hub, pins={})
    assert {t.revision for t in after.tasks} == {first}
    assert (after.version, after.unpinned) == (before.version, ())
    assert {t.revision for t in unpinned.tasks} == {hub.datasets.head(repo)} != {first}
    assert unpinned.version != after.version
    assert unpinned.unpinned == (repo,)
    elsewhere = {repo: DatasetPin(revision=first)}  # a commit of another Hub says nothing of this one
    assert pin("zoo", hub, pins=elsewhere).unpinned == (repo,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("datasets: {a/b: {revision: main}}", "datasets.a/b.revision"),
        (f"datasets: {{a/b: {{revision: {COMMIT[:12]}}}}}", "datasets.a/b.revision"),
        (f"datasets: {{a/b: {{revision: {COMMIT.upper()}}}}}", "datasets.a/b.revision"),
        (f"datasets: {{a/b: {{content: {COMMIT}}}}}", "datasets.a/b.content"),
        ("datasets: {a/b: {}}", "a revision or a content"),
        (f"datasets: {{a/b: {{revisoin: {COMMIT}}}}}", "revisoin"),
        (f"datasets: {{../b: {{revision: {COMMIT}}}}}", "is no dataset's id"),
        ("datasets: [", "line"),
        ("{}", "datasets"),
    ],
)
def test_a_pin_that_is_no_full_commit_is_refused_by_its_place(text, reason, tmp_path):
    path = tmp_path / "pins.yaml"
    path.write_text(text)
    with pytest.raises(EvaluationError, match="the file of pins cannot be read") as refused:
        read_pins(path)
    assert reason in str(refused.value)


def test_the_command_pins_what_is_not_pinned_and_keeps_the_rest(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    path = tmp_path / "pins.yaml"
    write_pins(path, {"zoo/facts": DatasetPin(content=CONTENT), "google/IFEval": DatasetPin(revision=COMMIT)})
    command = ["suites", "zoo", "tool", "instruction", "--file", str(path)]
    assert main(command) == 0
    assert "zoo/held-out  not pinned: read at the head of main" in capsys.readouterr().out
    assert main([*command, "--pin", "--json"]) == 0
    listed = {d["dataset"]: d["pin"] for s in json.loads(capsys.readouterr().out)["suites"] for d in s["datasets"]}
    heads = {repo: hub.datasets.head(repo) for repo in ("zoo/held-out", "hubmerge/bfcl-v4")}
    assert listed == {
        **{repo: {"revision": sha, "hub": hub.endpoint} for repo, sha in heads.items()},
        "google/IFEval": {"revision": COMMIT, "hub": "https://huggingface.co"},
    }
    assert read_pins(path)["zoo/facts"].content == CONTENT
    assert {t.revision for t in pin("zoo", hub, pins=read_pins(path)).tasks} == {heads["zoo/held-out"]}
    assert PINS.read_text() == BEFORE


def test_an_evaluation_names_its_unpinned_datasets(scripted, hub, notes):
    scripted("answers", observer=notes)
    assert [m for m in notes.warnings if "names none" in m] == []
    scripted("answers", observer=notes, suite=pin("zoo", hub, limit=4, pins={}))
    [said] = [m for m in notes.warnings if "names none" in m]
    assert said.startswith("zoo/held-out: read at the commit that main has now")


def test_an_unknown_suite_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(EvaluationError, match=r"zoo, math, instruction.*moth"):
        pinned("moth")


def test_a_limit_is_every_task_s():
    assert [t.limit for t in pinned(limit=20).tasks] == [20] * 3


def test_written_pins_are_read_again_also_after_a_full_disk(tmp_path, monkeypatch):
    pins = {
        "a/b": DatasetPin(revision="1" * 40),
        "c/d": DatasetPin(revision="1e10" + "0" * 36, hub="http://hub"),
        "e/f": DatasetPin(content="0" * 64),
    }
    write_pins(tmp_path / "pins.yaml", pins)
    assert read_pins(tmp_path / "pins.yaml") == pins
    assert (tmp_path / "pins.yaml").read_text().splitlines()[:4] == PINS.read_text().splitlines()[:4]

    def torn(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"datasets:")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(EvaluationError, match="cannot be written"):
        write_pins(tmp_path / "pins.yaml", {})
    assert read_pins(tmp_path / "pins.yaml") == pins
    assert [path.name for path in tmp_path.iterdir()] == ["pins.yaml"]


def test_a_file_that_cannot_be_written_or_read_is_named(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert main(["suites", "zoo", "--pin", "--file", str(tmp_path / "none" / "pins.yaml")]) == 1
    error = capsys.readouterr().err
    assert "the file of pins cannot be written" in error
    assert "clone" in error
    assert main(["suites", "zoo", "--file", str(tmp_path / "pin.yaml")]) == 1
    assert "the file of pins cannot be read" in capsys.readouterr().err


def test_the_suite_of_tools_needs_what_parses_java_and_javascript():
    needed = {name for task in bfcl.TASKS for name in task.needs}
    assert needed == {"tree_sitter", "tree_sitter_java", "tree_sitter_javascript"}
