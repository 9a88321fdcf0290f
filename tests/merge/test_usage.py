"""What a merge took is told for all of its runs and processes, on its card and at the end of the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import recipe_dict, write_parents
from merge_helpers import Job, Killed

from hubmerge import merge as line
from hubmerge.cli.main import main
from hubmerge.engine import usage
from hubmerge.engine.usage import Meter, Usage, facts, in_words, spent, together, total
from hubmerge.output.card import fetch_facts
from hubmerge.plan.disk import DiskGauge
from hubmerge.sources.shard_cache import Fetched, ShardCache


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Fetched]:
    """What the cache of every run did."""
    seen: list[Fetched] = []

    def make(*arguments: Any, **more: Any) -> ShardCache:
        cache = ShardCache(*arguments, **more)
        seen.append(cache.fetched)
        return cache

    monkeypatch.setattr(line, "ShardCache", make)
    return seen


def noted(job: Job) -> int:
    """The bytes of the last note in the journal."""
    lines = [json.loads(text) for text in (job.out / ".hubmerge" / "journal.jsonl").read_text().splitlines()]
    return int([one for one in lines if one["event"] == "usage"][-1]["fetched"]["bytes"])


def break_off(job: Job, error: type[BaseException], after: int) -> None:
    left = [after]

    def stop(stage: str) -> None:
        left[0] -= stage == "merge"
        if left[0] < 0:
            raise error

    job.watcher.seen = stop
    with pytest.raises(error):
        job.to_hub()
    job.watcher.seen = lambda stage: None


def test_what_a_killed_run_had_fetched_is_added_up(
    job: Job, fetched: list[Fetched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "NOTING_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "__exit__", lambda *arguments: None)  # a kill says nothing any more
        break_off(job, Killed, 5)
    first = noted(job)
    assert first > 0
    job.to_hub()
    fetch = job.report()["environment"]["fetch"]
    assert fetch["bytes"] == first + fetched[1].bytes
    assert fetch["runs"] == 2
    assert fetch["high_water_bytes"] >= max(fetched[1].high_water_bytes, 1)


def test_a_run_that_ends_with_an_error_says_to_the_byte_what_it_had_fetched(
    job: Job, fetched: list[Fetched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "NOTING_S", 1e9)
    for _ in range(2):
        break_off(job, Killed, 2)
    job.to_hub()
    environment = job.report()["environment"]
    assert environment["fetch"]["bytes"] == sum(one.bytes for one in fetched)
    assert environment["fetch"]["shards"] == sum(one.shards for one in fetched)
    assert environment["fetch"]["runs"] == 3


def test_the_time_of_a_run_that_was_killed_counts_although_nothing_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_parents(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_dict(folders[0], folders[1:], "ram")))
    command = ["merge", str(recipe), "--license", "mit", "--device", "cpu", "--out", str(tmp_path / "out")]
    now, took = Meter.now, [100.0]

    def killed(*arguments: Any, **more: Any) -> None:
        raise Killed

    monkeypatch.setattr(Meter, "now", lambda meter: replace(now(meter), seconds=took[0]))
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "note", lambda meter: None)  # what stands beside the last line of a shard counts
        patch.setattr("hubmerge.merge.make_report", killed)
        with pytest.raises(Killed):
            main(command)
    took[0] = 20.5
    assert main([*command, "--resume"]) == 0
    environment = json.loads((tmp_path / "out" / "hubmerge.json").read_text())["environment"]
    assert (environment["seconds"], environment["runs"]) == (120.5, 2)
    assert facts(environment)["runs"] == 2
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| Time | 2 min 00 s in 2 runs |" in card
    assert "| Runs |" not in card


def test_the_time_of_a_run_is_that_of_its_first_process() -> None:
    nothing: dict[str, int] = {}
    runs = [Usage(0, nothing, 1, 1, 30.0), Usage(1, nothing, 1, 1, 31.0), Usage(0, nothing, 1, 1, 45.5)]
    assert spent(runs) == {"seconds": 75.5, "runs": 2}
    assert spent(runs[:2]) == {"seconds": 30.0}
    assert [Usage.from_json(usage.to_json()) for usage in runs] == runs


def test_a_meter_counts_from_when_its_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: 70.0))
    assert Meter(0, Fetched(), DiskGauge([]), [], 40.5).now().seconds == 29.5


class Noted:
    """The part of `Journal` that a meter uses."""

    def __init__(self) -> None:
        self.metered: Any = None
        self.bytes: list[int] = []

    def note_usage(self, usage: Usage) -> None:
        self.bytes.append(usage.fetched["bytes"])


def test_what_was_fetched_is_noted_every_few_seconds_where_there_is_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no line is written, e.g. of a shard that takes minutes."""
    now, journal, fetched = [0.0], Noted(), Fetched()
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = Meter(0, fetched, DiskGauge([]), [journal])  # type: ignore[list-item]
    for seconds, so_far, noted in ((2.9, 5, []), (3.0, 6, [6]), (5.9, 7, [6]), (6.0, 8, [6, 8]), (9.0, 8, [6, 8])):
        now[0], fetched.bytes = seconds, so_far
        meter.tick()
        assert journal.bytes == noted


def test_processes_add_up_what_they_fetched_and_the_largest_counts_of_memory_and_disk() -> None:
    one = Usage(0, {"bytes": 5, "shards": 1, "high_water_bytes": 4, "hits": 0, "ranged_shards": 1}, 100, 60)
    two = Usage(1, {"bytes": 7, "shards": 2, "high_water_bytes": 3, "hits": 4, "ranged_shards": 0}, 80, 70)
    both = total([one, two], 2, 50)
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
    again = total([one, one, two], 2, 50)["fetch"]
    assert again["runs"] == 2
    assert dict(fetch_facts(again))["Fetched"].startswith("17 B in 2 runs, 4 shards whole")
    assert "fetch" not in total([one], 1, None)


def test_a_merge_ends_with_a_line_of_what_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write_parents(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_dict(folders[0], folders[1:], "ram")))
    command = ["merge", str(recipe), "--license", "mit", "--device", "cpu", "--out"]
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
    assert (line["fetched_bytes"], line["fetched_shards"], line["fetched_hits"], line["runs"]) == (0, 0, 0, 1)


def test_a_sweep_ends_with_a_line_of_what_all_its_variants_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = write_parents(tmp_path)
    models = {key: value for key, value in recipe_dict(folders[0], folders[1:], "ram").items() if key != "method"}
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(json.dumps({**models, "sweep": [{"method": ["ram", "linear"]}]}))
    command = ["sweep", str(sweep), "--license", "mit", "--device", "cpu", "--resume", "--out", str(tmp_path / "out")]
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
