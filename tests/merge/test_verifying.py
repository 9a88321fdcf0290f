"""A merge that goes on first reads again what is finished: a stage of its own, which can be cancelled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from builders import recipe_dict, write_parents
from line import Killed, Line, Watcher

from hubmerge import line as line_module
from hubmerge.cli.main import main
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import CancelledError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.plan import plan as planning
from hubmerge.recipe.recipe import recipe_from_dict

SMALL = 20_000


class Told(Watcher):
    """Also what it was told of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.verified: list[tuple[int, int]] = []

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == "verify":
            assert unit == "B"
            self.verified.append((done, total))
        super().progress(stage, done, total, unit)


def ended_at(stage: str, error: BaseException) -> Watcher:
    watcher = Watcher()
    watcher.at[stage] = Mock(side_effect=error)
    return watcher


def shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("uploaded", [False, True], ids=["folder", "hub"])
def test_a_merge_that_goes_on_tells_how_much_of_the_finished_shards_it_has_verified(line: Line, uploaded: bool) -> None:
    line.watcher = ended_at("card", Killed())  # all shards are finished
    with pytest.raises(Killed):
        line.to_folder()
    there = shard_bytes(line.out)
    assert there > 1_000_000
    line.watcher = ended_at("verify", CancelledError("the job was cancelled"))
    with pytest.raises(CancelledError):
        line.to_hub() if uploaded else line.to_folder()
    assert line.watcher.stages == ["verify"]
    line.watcher = told = Told()
    if uploaded:
        line.to_hub()
        assert line.published() == line.undisturbed
    else:
        assert line.to_folder() == line.undisturbed
    assert told.stages[0] == "verify"
    assert told.stages.count("verify") == 1
    assert (told.verified[0], told.verified[-1]) == ((0, there), (there, there))


def test_a_sweep_verifies_the_shards_of_all_variants_in_one_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        line_module, "make_plan", lambda *models, **more: planning.make_plan(*models, max_shard_bytes=SMALL, **more)
    )
    folders = write_parents(tmp_path)
    recipes = [recipe_from_dict(recipe_dict(folders[0], folders[1:], method)) for method in ("ram", "linear")]
    hub = Hub("http://127.0.0.1:9")
    outs = [tmp_path / "ram", tmp_path / "linear"]

    def merge(observer: Any) -> None:
        merges = zip(prepare_variants(recipes, hub, Request(allow_local=True)), outs, strict=True)
        options = StreamOptions(threads=1, backend="eager")
        merge_to_folders([*merges], hub, replace(options, cache=tmp_path / "in"), observer)

    with pytest.raises(Killed):
        merge(ended_at("card", Killed()))
    told = Told()
    merge(told)
    both = sum(map(shard_bytes, outs))
    assert told.stages == ["verify", "merge", "card"]
    assert {total for _, total in told.verified} == {both}
    assert told.verified[-1] == (both, both)


def test_a_merge_that_begins_or_is_finished_verifies_nothing(line: Line) -> None:
    for _ in range(2):
        assert line.to_folder() == line.undisturbed
    assert "verify" not in line.watcher.stages


def test_verifying_is_told_in_json_lines(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["merge", str(recipe_file), "--device", "cpu", "--out", str(tmp_path / "out")]

    with patch.object(line_module, "make_report", side_effect=Killed), pytest.raises(Killed):
        main(command)
    capsys.readouterr()
    there = shard_bytes(tmp_path / "out")
    assert main([*command, "--resume", "--log-json"]) == 0
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert [line["stage"] for line in lines if line["type"] == "stage"] == ["resolve", "verify", "merge", "card"]
    told = [line for line in lines if line["type"] == "progress" and line["stage"] == "verify"]
    assert told[-1] == {"type": "progress", "stage": "verify", "done": there, "total": there, "unit": "B"}
