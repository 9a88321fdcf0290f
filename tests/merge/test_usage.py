"""What a merge tells: what it took, for all of its processes, and what a merge that goes on has verified."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import recipe_dict, write_parents, write_sweep
from line import Killed, Watcher

from hubmerge import line as line_module
from hubmerge.cli.main import main
from hubmerge.engine.stream import StreamOptions
from hubmerge.engine.usage import in_words, together, total
from hubmerge.errors import CancelledError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.output.card import fetch_facts
from hubmerge.plan import plan as planning
from hubmerge.recipe.recipe import recipe_from_dict


def took(memory: int, disk: int, **fetch: int) -> dict[str, Any]:
    return {"peak_rss_bytes": memory, "disk_high_water_bytes": disk, "fetch": fetch}


def test_processes_and_passes_add_up_what_they_fetched_and_the_largest_counts_of_memory_and_disk():
    one = took(100, 60, bytes=5, shards=1, high_water_bytes=4, hits=0, ranged_shards=1)
    two = took(80, 70, bytes=7, shards=2, high_water_bytes=3, hits=4, ranged_shards=0)
    fetch = {"bytes": 12, "shards": 3, "high_water_bytes": 4, "hits": 4, "ranged_shards": 1}
    both = total([one, two], 50)
    assert both == took(100, 70, **fetch, budget_bytes=50, processes=2)
    assert together([one, two]) == took(100, 70, **fetch)
    fetched = together([both, both])["fetch"]
    assert (fetched["bytes"], fetched["budget_bytes"], fetched["processes"]) == (24, 50, 2)
    assert in_words({**both, "processes": 2}) == (
        "fetched 12 B (shards: 3 whole, 1 by ranges), 4 found on disk by a later pass or run, disk at most 70 B, "
        "memory at most 100 B in the largest of 2 processes"
    )
    assert dict(fetch_facts(both["fetch"]))["Inputs on disk"].startswith(
        "4 B at their peak in the largest of 2 processes"
    )
    without = {key: value for key, value in one.items() if key != "fetch"}
    assert "fetch" not in together([without, without])
    assert "processes" not in total([one], 50)["fetch"]
    assert "fetch" not in total([one], None)


def test_a_merge_ends_with_a_line_of_what_it_took(recipe_file, tmp_path, capsys):
    command = ["merge", str(recipe_file), "--device", "cpu", "--out"]
    assert main([*command, str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    first, last = told.out.splitlines()
    assert first.startswith("nothing fetched, disk at most ")
    assert last.startswith(str(tmp_path / "out"))
    assert main([*command, str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{last}, finished before\n", "what it took, it took then"
    assert main([*command, str(tmp_path / "more"), "--log-json"]) == 0
    told = capsys.readouterr()
    [line] = [one for one in map(json.loads, told.err.splitlines()) if one["type"] == "usage"]
    report = json.loads((tmp_path / "more" / "hubmerge.json").read_text())["environment"]
    assert line["peak_rss_bytes"] == report["peak_rss_bytes"] > 10_000_000
    assert line["disk_high_water_bytes"] == report["disk_high_water_bytes"] > 0
    assert (line["fetched_bytes"], line["fetched_shards"], line["fetched_hits"]) == (0, 0, 0)


def test_a_sweep_ends_with_a_line_of_what_all_its_variants_took(recipe_file, tmp_path, capsys):
    sweep = write_sweep(recipe_file, {"method": ["ram", "linear"]})
    command = ["sweep", str(sweep), "--device", "cpu", "--resume", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("nothing fetched, disk at most ")
    assert main(command) == 0
    assert "nothing fetched" not in capsys.readouterr().out, "what it took, it took then"


SMALL = 20_000


def ended_at(stage: str, error: BaseException) -> Watcher:
    watcher = Watcher()
    watcher.at[stage] = Mock(side_effect=error)
    return watcher


def shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.slow
def test_a_merge_that_goes_on_tells_how_much_of_the_finished_shards_it_has_verified(line):
    line.watcher = ended_at("card", Killed())  # all shards are finished
    with pytest.raises(Killed):
        line.to_folder()
    assert "verify" not in line.watcher.stages
    there = sum(path.stat().st_size for path in line.out.glob("*.safetensors"))
    assert there > 1_000_000
    line.watcher = ended_at("verify", CancelledError("the job was cancelled"))
    with pytest.raises(CancelledError):
        line.to_folder()
    assert line.watcher.stages == ["verify"]
    line.watcher = told = Watcher()
    line.to_hub()
    assert line.published() == line.undisturbed
    assert line.report()["environment"]["resumed"] is True
    assert told.stages[0] == "verify"
    assert told.stages.count("verify") == 1
    verified = [(done, total) for stage, done, total in told.bytes if stage == "verify"]
    assert (verified[0], verified[-1]) == ((0, there), (there, there))


@pytest.mark.slow
def test_a_sweep_verifies_the_shards_of_all_variants_in_one_stage(tmp_path, monkeypatch):
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
    told = Watcher()
    merge(told)
    both = sum(map(shard_bytes, outs))
    assert told.stages == ["verify", "merge", "card"]
    assert {total for _, _, total in told.bytes} == {both}
    assert told.bytes[-1] == ("verify", both, both)


@pytest.mark.slow
def test_a_merge_that_begins_or_is_finished_verifies_nothing(line):
    for _ in range(2):
        assert line.to_folder() == line.undisturbed
    assert "verify" not in line.watcher.stages


def test_a_resumed_merge_says_what_its_last_run_took_and_that_there_were_others(line):
    left = [5]

    def stop(stage: str) -> None:
        left[0] -= stage == "merge"
        if left[0] < 0:
            raise Killed

    line.watcher.seen = stop
    with pytest.raises(Killed):
        line.to_hub()
    line.watcher.seen = lambda stage: None
    line.to_hub()
    environment = line.report()["environment"]
    assert environment["resumed"] is True
    assert environment["fetch"]["hits"] > 0
    assert environment["seconds"] > 0
