"""The null sink: the hashes and figures of a written merge, and nothing on the disk."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from line import threads_left
from stream_helpers import NOWHERE, plan_of, write_family

from hubmerge.cli.main import main
from hubmerge.cli.terminal import Terminal
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer
from hubmerge.engine.uncached import UncachedFile
from hubmerge.errors import DiskError
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.output.finished import load_report
from hubmerge.recipe.file import load_recipe

QUIET: Observer = Terminal(as_json=False)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_family(tmp_path / "family")
    path = tmp_path / "recipe.yaml"
    path.write_text(plan_of(tmp_path / "family", "ram_plus").recipe.to_yaml())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    return path


def test_its_report_is_that_of_a_written_merge_and_no_shard_is_written_even_for_a_moment(
    recipe, tmp_path, capsys, monkeypatch
):
    assert main(["merge", str(recipe), "--out", str(tmp_path / "out"), "--license", "apache-2.0"]) == 0
    written = json.loads((tmp_path / "out" / "hubmerge.json").read_text())
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == written["files"][0]["size"]
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    monkeypatch.setattr(UncachedFile, "__init__", Mock(side_effect=AssertionError("a shard's file is made")))
    assert main(["merge", str(recipe), "--null-sink", "--license", "apache-2.0"]) == 0
    told = capsys.readouterr()
    measured = json.loads(told.out)
    assert measured["environment"]["disk_high_water_bytes"] < 50_000
    assert measured["environment"]["sink"] == "null" != written["environment"].get("sink")
    for own in ("environment", "created"):
        del measured[own], written[own]
    assert measured == written
    assert "nothing of it is kept" in told.err
    assert sorted(tmp_path.rglob("*")) == before
    assert threads_left() == []


def test_the_output_needs_no_disk(recipe, tmp_path):
    prepared = prepare(load_recipe(recipe), NOWHERE, Request(license="apache-2.0", allow_local=True))
    options = StreamOptions(threads=1, cache=tmp_path / "c", disk_budget=1000)
    with pytest.raises(DiskError):
        merge_to_folder(prepared, NOWHERE, tmp_path / "a", options, QUIET)
    folder = tmp_path / "b"
    merge_to_folder(prepared, NOWHERE, folder, replace(options, sink="null"), QUIET)
    assert load_report(folder).files[0].size > 1000
    assert list(folder.glob("*.safetensors")) == []


def test_what_would_keep_something_and_several_processes_are_refused(recipe, refused, monkeypatch):
    monkeypatch.chdir(recipe.parent)
    before = sorted(recipe.parent.rglob("*"))
    assert "--resume" in refused("merge", recipe, "--resume", "--null-sink")
    with pytest.raises(SystemExit):
        main(["merge", str(recipe), "--out", "somewhere", "--null-sink"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for command in (("merge", "--null-sink"), ("run", "--to", "me/x", "--evaluate", "smoke")):
        assert "run by one process" in refused(command[0], recipe, *command[1:])
    assert sorted(recipe.parent.rglob("*")) == before
