"""What `run` says to do where its own folder is the trouble, which nobody named in the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fault_line import Line

from hubmerge.cli.main import main
from hubmerge.engine.sink import WORK, sole_owner

Run = Callable[..., str]


@pytest.fixture
def data(line: Line, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = line.folder / "data"
    monkeypatch.setenv("HF_ENDPOINT", line.process.endpoint)
    monkeypatch.setenv("HF_TOKEN", line.process.tokens["ada"])
    monkeypatch.setenv("HUBMERGE_DATA", str(data))
    return data


@pytest.fixture
def refused(line: Line, data: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command, which is refused: what it says."""
    recipe = line.folder / "recipe.yaml"
    recipe.write_text(json.dumps(line.recipe))

    def run(*more: str) -> str:
        command = ["run", str(recipe), "--to", line.target, "--license", "mit", "--device", "cpu", *more]
        assert main(command) == 1
        return capsys.readouterr().err.strip()

    return run


@pytest.fixture
def out(line: Line, data: Path) -> Path:
    """The folder in which this run works."""
    return data / "runs" / line.prepare().identity / "out"


def test_a_run_that_another_one_is_at_is_to_be_waited_for(refused: Run, out: Path) -> None:
    with sole_owner(out):
        said = refused()
    assert said == (
        f"hubmerge: E_IN_USE: another process is merging into this folder in {out}. Wait for it; nothing was touched."
    )


def test_a_data_folder_that_can_be_none_is_to_be_set_elsewhere(refused: Run, data: Path) -> None:
    data.write_text("somebody's")
    said = refused()
    assert said.startswith("hubmerge: E_DISK: ")
    assert said.endswith(" Set HUBMERGE_DATA to another folder.")


def test_a_damaged_journal_is_to_be_removed_with_its_folder(refused: Run, out: Path) -> None:
    (out / WORK).mkdir(parents=True)
    (out / WORK / "journal.jsonl").write_bytes(b"nonsense\n")
    said = refused("--log-json")
    error = json.loads(said.splitlines()[-1])
    [problem] = error["problems"]
    assert error["code"] == problem["code"] == "E_TARGET_EXISTS"
    assert problem["next_step"] == "Set HUBMERGE_DATA to another folder, or remove this one."
    assert error["message"].endswith(problem["next_step"])


def test_a_disk_that_is_full_is_to_be_changed_for_a_larger_one(
    refused: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    assert "Free some disk, set HUBMERGE_DATA to a folder on a larger one, or" in refused()


def test_a_disk_budget_that_is_too_small_is_named_as_the_command_has_it(refused: Run) -> None:
    assert refused("--disk-budget", "1e-6").endswith(" Raise --disk-budget.")


def test_what_lies_elsewhere_keeps_its_advice(
    line: Line, refused: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder of `merge` is named in the command."""
    place = tmp_path / "out"
    with sole_owner(place):
        command = ["merge", str(line.folder / "recipe.yaml"), "--license", "mit", "--out", str(place)]
        assert main(command) == 1
    assert "Wait for it, or choose another folder; nothing was touched." in capsys.readouterr().err
