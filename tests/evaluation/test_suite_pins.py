"""Datasets are pinned in the suites' file, by commit or by content; what is not pinned is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from hubmerge.cli.main import main
from hubmerge.errors import EvaluationError, SourceChangedError
from hubmerge.evaluation import suites
from hubmerge.evaluation.pins import PINS, DatasetPin, own_pins, read_pins, write_pins
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.suites import SUITES, pin
from hubmerge.evaluation.tasks import get_task
from hubmerge.hub.client import Hub

COMMIT, CONTENT = "a1" * 20, "b2" * 32
BEFORE = PINS.read_text()
OWN = ("hubmerge/bfcl-v4", "zoo/facts", "zoo/held-out")


@pytest.fixture
def copied(hub: Hub) -> str:
    """The zoo's questions in another dataset, whose main branch then moves on."""
    api = HfApi(hub.endpoint, token=hub.token)
    api.create_repo("ada/moving", repo_type="dataset", exist_ok=True)
    for name in ("math", "tool", "mem"):
        api.upload_file(
            path_or_fileobj=b'{"prompt": "1+1=", "answer": "2"}\n',
            path_in_repo=f"{name}.jsonl",
            repo_id="ada/moving",
            repo_type="dataset",
        )
    return "ada/moving"


def test_the_data_that_the_package_brings_along_are_those_of_their_pins(hub: Hub) -> None:
    assert tuple(own_pins()) == OWN
    for name in ("zoo", "tool"):
        suite = pin(name, hub)
        assert suite.unpinned == ()
        assert len(suite.tasks) == len(SUITES[name].tasks)


def test_other_data_under_a_pinned_name_are_refused(hub: Hub) -> None:
    pins = {"zoo/held-out": DatasetPin(content=CONTENT)}
    with pytest.raises(EvaluationError, match="other data than its suite is made of") as refused:
        pin("zoo", hub, pins=pins)
    assert refused.value.problems[0].expected == CONTENT


def test_a_change_of_the_card_s_configs_is_other_content_and_a_word_in_it_is_not(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Hub.repo_state

    def edited(self: Hub, repo_id: str, revision: str | None = None) -> Any:
        found = state(self, repo_id, revision)
        return type(found)(**{**vars(found), "card": {**found.card, **change}})

    monkeypatch.setattr(Hub, "repo_state", edited)
    change: dict[str, Any] = {"license": "mit"}
    assert pin("zoo", hub).unpinned == ()
    change = {"configs": []}
    with pytest.raises(EvaluationError, match="other data"):
        pin("zoo", hub)


def test_a_revision_is_read_although_main_has_moved_on(hub: Hub, copied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = {name: _of(get_task(name), copied) for name in ("zoo_math", "zoo_tool", "zoo_mem")}
    monkeypatch.setattr(suites, "registry", lambda: moved)
    first = hub.datasets.head(copied)
    pins = {copied: DatasetPin(revision=first, hub=hub.endpoint)}
    before = pin("zoo", hub, pins=pins)
    api = HfApi(hub.endpoint, token=hub.token)
    api.upload_file(path_or_fileobj=b"{}\n", path_in_repo="math.jsonl", repo_id=copied, repo_type="dataset")
    after, unpinned = pin("zoo", hub, pins=pins), pin("zoo", hub, pins={})
    assert {t.revision for t in after.tasks} == {first}
    assert (after.version, after.unpinned) == (before.version, ())
    assert {t.revision for t in unpinned.tasks} == {hub.datasets.head(copied)} != {first}
    assert unpinned.version != after.version
    assert unpinned.unpinned == (copied,)
    elsewhere = {copied: DatasetPin(revision=first)}  # a commit of another Hub says nothing of this one
    assert pin("zoo", hub, pins=elsewhere).unpinned == (copied,)


def test_a_revision_that_is_gone_is_refused(hub: Hub) -> None:
    pins = {"zoo/held-out": DatasetPin(revision=COMMIT, hub=hub.endpoint)}
    with pytest.raises(SourceChangedError, match="no longer there"):
        pin("zoo", hub, pins=pins)


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
def test_a_pin_that_is_no_full_commit_is_refused_by_its_place(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(text)
    with pytest.raises(EvaluationError, match="the file of pins cannot be read") as refused:
        read_pins(path)
    assert reason in str(refused.value)


def test_pins_that_are_written_are_read_again_below_the_same_words(tmp_path: Path) -> None:
    pins = {
        "a/b": DatasetPin(revision="1" * 40),
        "c/d": DatasetPin(revision="1e10" + "0" * 36, hub="http://hub"),
        "e/f": DatasetPin(content="0" * 64),
    }
    write_pins(tmp_path / "pins.yaml", pins)
    assert read_pins(tmp_path / "pins.yaml") == pins
    assert (tmp_path / "pins.yaml").read_text().splitlines()[:4] == PINS.read_text().splitlines()[:4]


def test_the_command_pins_what_is_not_pinned_and_keeps_the_rest(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_file_that_cannot_be_written_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert main(["suites", "zoo", "--pin", "--file", str(tmp_path / "none" / "pins.yaml")]) == 1
    error = capsys.readouterr().err
    assert "the file of pins cannot be written" in error
    assert "clone" in error


def test_an_evaluation_says_which_of_its_datasets_are_not_pinned(
    scripted: Callable[..., EvaluationResult], hub: Hub, notes: Any
) -> None:
    scripted("answers", observer=notes)
    assert [m for m in notes.warnings if "names none" in m] == []
    scripted("answers", observer=notes, suite=pin("zoo", hub, limit=4, pins={}))
    [said] = [m for m in notes.warnings if "names none" in m]
    assert said.startswith("zoo/held-out: read at the commit that main has now")


def _of(task: Any, repo: str) -> Any:
    from dataclasses import replace

    return replace(task, rows=replace(task.rows, repo=repo, subset=None))
