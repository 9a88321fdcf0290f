"""What a merge took is told for all of its processes, on its card and at the end of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import write_sweep
from line import Killed, Line

from hubmerge.cli.main import main
from hubmerge.engine.usage import in_words, together, total
from hubmerge.output.card import fetch_facts


def test_a_resumed_merge_says_what_its_last_run_took_and_that_there_were_others(line: Line) -> None:
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


def test_a_merge_in_one_run_does_not_say_that_it_was_resumed(line: Line) -> None:
    line.to_hub()
    assert "resumed" not in line.report()["environment"]


def test_processes_add_up_what_they_fetched_and_the_largest_counts_of_memory_and_disk() -> None:
    def took(memory: int, disk: int, **fetch: int) -> dict[str, Any]:
        return {"peak_rss_bytes": memory, "disk_high_water_bytes": disk, "fetch": fetch}

    one = took(100, 60, bytes=5, shards=1, high_water_bytes=4, hits=0, ranged_shards=1)
    two = took(80, 70, bytes=7, shards=2, high_water_bytes=3, hits=4, ranged_shards=0)
    both = total([one, two], 50)
    assert both == {
        "peak_rss_bytes": 100,
        "disk_high_water_bytes": 70,
        "fetch": {
            "bytes": 12,
            "shards": 3,
            "high_water_bytes": 4,
            "hits": 4,
            "ranged_shards": 1,
            "budget_bytes": 50,
            "processes": 2,
        },
    }
    words = in_words({**both, "processes": 2})
    assert words == (
        "fetched 12 B (shards: 3 whole, 1 by ranges), 4 found on disk by a later pass or run, disk at most 70 B, "
        "memory at most 100 B in the largest of 2 processes"
    )
    assert dict(fetch_facts(both["fetch"]))["Inputs on disk"].startswith(
        "4 B at their peak in the largest of 2 processes"
    )
    assert "processes" not in total([one], 50)["fetch"]
    assert "fetch" not in total([one], None)


def test_a_merge_ends_with_a_line_of_what_it_took(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_sweep_ends_with_a_line_of_what_all_its_variants_took(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(recipe_file, {"method": ["ram", "linear"]})
    command = ["sweep", str(sweep), "--device", "cpu", "--resume", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("nothing fetched, disk at most ")
    assert main(command) == 0
    assert "nothing fetched" not in capsys.readouterr().out, "what it took, it took then"


def test_passes_of_a_sweep_add_up_what_they_fetched_and_the_largest_counts_of_memory_and_disk() -> None:
    def ran(peak: int, **fetch: int) -> dict[str, Any]:
        return {"peak_rss_bytes": peak, "disk_high_water_bytes": 100 - peak, "processes": 1, "fetch": fetch}

    one = ran(10, bytes=5, shards=1, ranged_shards=0, hits=0, high_water_bytes=9, budget_bytes=50)
    two = ran(20, bytes=2, shards=0, ranged_shards=1, hits=3, high_water_bytes=8, budget_bytes=50)
    found = together([one, two])
    assert (found["peak_rss_bytes"], found["disk_high_water_bytes"]) == (20, 90)
    assert found["fetch"] == {
        "bytes": 7,
        "shards": 1,
        "ranged_shards": 1,
        "hits": 3,
        "high_water_bytes": 9,
        "budget_bytes": 50,
    }
    assert in_words(found).startswith("fetched 7 B (shards: 1 whole, 1 by ranges), 3 found on disk")
    without = {key: value for key, value in one.items() if key != "fetch"}
    assert "fetch" not in together([without, without])
