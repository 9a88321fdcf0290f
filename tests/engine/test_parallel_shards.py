"""Shards that are written at once: the bytes of those written one by one, one observer, one error, no thread left."""

import threading
from pathlib import Path
from typing import Any

import pytest
from line import threads_left
from stream_helpers import StopAfter, Watching, bytes_of, family_plan, plan_of, run, spoil, tallies, write_family

from hubmerge.engine import parallel_shards
from hubmerge.engine.backend import MOST_SHARDS, opened
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.parallel_shards import Overall, write_shards
from hubmerge.errors import CancelledError, NonFiniteError
from hubmerge.machine import resources
from hubmerge.methods import registry
from hubmerge.plan.plan import Plan

SHARD = 20_000  # bytes: the family becomes several shards


def planned(folder: Path, method: str) -> Plan:
    plan = family_plan(folder, method, max_shard_bytes=SHARD)
    assert len(plan.shards) >= 3
    return plan


@pytest.mark.parametrize("method", [name for name, m in registry().items() if "sensitivity" not in m.extras])
def test_bytes_and_statistics_do_not_depend_on_how_many_shards_are_written_at_once(tmp_path, method):
    plan = planned(tmp_path, method)
    one = run(plan, tmp_path / "one", parallel_shards=1)
    several = run(plan, tmp_path / "several", parallel_shards=2, threads=4)
    assert bytes_of(tmp_path / "several", plan) == bytes_of(tmp_path / "one", plan)
    assert [s.sha256 for s in several.shards] == [s.sha256 for s in one.shards]
    assert tallies(several) == tallies(one)
    assert threads_left() == []


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_observer_sees_one_merge_in_its_own_thread(tmp_path, monkeypatch, parallel):
    monkeypatch.setattr(parallel_shards, "_SUMMARY_S", 0.0)
    plan, seen = planned(tmp_path, "ram"), Watching()
    merged = run(plan, tmp_path / "out", observer=seen, parallel_shards=parallel)
    assert seen.threads == {threading.current_thread().name}
    assert seen.told == sorted(seen.told)
    assert seen.told[-1] == ("merge", plan.elements, plan.elements)
    elements = [values["elements"] for values in seen.values]
    assert elements == sorted(elements)
    assert elements[-1] == sum(t.elements for t in plan.tensors() if t.action == "merge")
    depths = [len(values["layers"]) for values in seen.values]
    assert depths == sorted(depths)
    assert parallel > 1 or depths[0] < depths[-1]  # a layer is told while others are still to be counted
    assert seen.values[-1]["layers"] == merged.statistics.layer_densities()


@pytest.mark.parametrize("stop_at", [0, 2])
def test_cancelling_breaks_all_shards_off_and_the_next_run_goes_on(tmp_path, stop_at):
    plan = planned(tmp_path, "ram_plus")
    run(plan, tmp_path / "whole", parallel_shards=1)
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "out", observer=StopAfter(stop_at), parallel_shards=3)
    assert threads_left() == []
    run(plan, tmp_path / "out", parallel_shards=2)
    assert bytes_of(tmp_path / "out", plan) == bytes_of(tmp_path / "whole", plan)


def test_the_error_of_one_shard_is_what_is_raised(tmp_path):
    _, agents = write_family(tmp_path)
    spoil(tmp_path, agents)
    plan = plan_of(tmp_path, "ram", max_shard_bytes=SHARD)
    for _ in range(5):
        with pytest.raises(NonFiniteError, match=r"down_proj.*agent1"):
            run(plan, tmp_path / "out", parallel_shards=len(plan.shards))
    assert threads_left() == []


def test_an_error_counts_before_those_who_noticed_it():
    noticed = threading.Event()

    def write(job: str, relay: Any) -> None:
        if job == "cause":
            noticed.wait()  # it ends later than the one that it broke off
            raise ValueError(job)
        try:
            raise CancelledError("the merge was broken off")
        finally:
            noticed.set()

    shards = write_shards(["cause", "other"], write, 2, Overall(Watching(), (), 0, 2), lambda: None)
    with pytest.raises(ValueError, match="cause"):
        list(shards)


def test_an_error_breaks_the_others_off():
    abandoned, broken_off = threading.Event(), []

    def write(job: str, relay: Any) -> None:
        if job == "cause":
            raise ValueError(job)
        assert abandoned.wait(10)
        with pytest.raises(CancelledError):
            relay.merged(1)
        broken_off.append(job)

    with pytest.raises(ValueError, match="cause"):
        list(write_shards(["cause", "other"], write, 2, Overall(Watching(), (), 0, 2), abandoned.set))
    assert broken_off == ["other"]


def test_a_warning_reaches_the_observer_in_its_own_thread():
    def write(job: str, relay: Any) -> None:
        relay.warning(job)

    heard = Watching()
    list(write_shards(["a", "b"], write, 2, Overall(heard, (), 0, 2), lambda: None))
    assert sorted(heard.messages) == ["a", "b"]
    assert heard.threads == {threading.current_thread().name}


def test_a_second_shard_needs_the_cores_for_it(tmp_path, monkeypatch):
    plans = [planned(tmp_path, "ram")]

    def at_once(cores: int, **options: Any) -> int:
        monkeypatch.setattr(resources, "cores", lambda: cores)
        with opened(plans, StreamOptions(**options), Watching()) as backend:
            return backend.shards_at_once

    assert [at_once(cores) for cores in (1, 2, 8, 11, 12, 18, 64)] == [1, 1, 1, 1, 2, 3, MOST_SHARDS]
    assert at_once(64, bursts=True) == MOST_SHARDS
    assert at_once(64, bursts=True, backend="eager") == 1, "each may hold the GPU"
