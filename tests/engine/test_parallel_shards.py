"""Shards that are written at once: the bytes of those written one by one, one observer, one error, no thread left."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import f32, sparse_agent, tensor, write_model
from stream_helpers import StopAfter, bytes_of, plan_of, run, write_family

from hubmerge.engine import so_far
from hubmerge.engine.parallel_shards import MOST_SHARDS, Overall, shards_at_once, write_shards
from hubmerge.errors import CancelledError, NonFiniteError
from hubmerge.methods import registry
from hubmerge.plan.plan import Plan

SHARD = 20_000  # bytes: the family becomes several shards


def planned(folder: Path, method: str) -> Plan:
    plan = plan_of(folder, method, max_shard_bytes=SHARD)
    assert len(plan.shards) >= 3
    return plan


class Seen:
    """What an observer is told, and in which threads."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.elements: list[int] = []
        self.layers: list[dict[str, list[float]]] = []
        self.threads: set[str] = set()

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        assert done <= total
        self.done.append(done)
        self.threads.add(threading.current_thread().name)

    def stage(self, name: str) -> None:
        raise AssertionError(name)

    def statistics(self, values: Mapping[str, Any]) -> None:
        self.elements.append(values["elements"])
        self.layers.append(values["layers"])

    def warning(self, message: str) -> None:
        raise AssertionError(message)


def left_over() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hubmerge")]


@pytest.mark.parametrize("method", [name for name, m in registry().items() if "sensitivity" not in m.extras])
def test_bytes_and_statistics_do_not_depend_on_how_many_shards_are_written_at_once(tmp_path: Path, method: str) -> None:
    write_family(tmp_path)
    plan = planned(tmp_path, method)
    one = run(plan, tmp_path / "one", parallel=1)
    for parallel in (2, 3, 7):
        out = tmp_path / f"out{parallel}"
        several = run(plan, out, parallel=parallel, threads=4)
        assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
        assert [s.sha256 for s in several.shards] == [s.sha256 for s in one.shards]
        assert several.statistics.total.to_json() == one.statistics.total.to_json()
        assert several.total.to_json() == one.total.to_json()
    assert left_over() == []


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_observer_sees_one_merge_in_its_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    monkeypatch.setattr(so_far, "_SUMMARY_S", 0.0)
    write_family(tmp_path)
    plan = planned(tmp_path, "ram")
    seen = Seen()
    merged = run(plan, tmp_path / "out", observer=seen, parallel=parallel)
    assert seen.threads == {threading.current_thread().name}
    assert seen.done == sorted(seen.done)
    assert seen.elements == sorted(seen.elements)
    assert seen.done[-1] == plan.elements
    assert seen.elements[-1] == sum(t.elements for t in plan.tensors() if t.action == "merge")
    depths = [len(layers) for layers in seen.layers]
    assert depths == sorted(depths)
    assert parallel > 1 or depths[0] < depths[-1]  # a layer is told while others are still to be counted
    assert seen.layers[-1] == merged.statistics.layer_densities()


@pytest.mark.parametrize("stop_at", [0, 2])
def test_cancelling_breaks_all_shards_off_and_the_next_run_goes_on(tmp_path: Path, stop_at: int) -> None:
    write_family(tmp_path)
    plan = planned(tmp_path, "ram_plus")
    run(plan, tmp_path / "whole", parallel=1)
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "out", observer=StopAfter(stop_at), parallel=3)
    assert left_over() == []
    run(plan, tmp_path / "out", resume=True, parallel=2)
    assert bytes_of(tmp_path / "out", plan) == bytes_of(tmp_path / "whole", plan)


def test_the_error_of_one_shard_is_what_is_raised(tmp_path: Path) -> None:
    base, _ = write_family(tmp_path)
    agent = sparse_agent(base, 0.1, 9)
    name = "model.layers.1.mlp.down_proj.weight"
    values = f32(agent[name]).copy()
    values[4096] = np.nan
    agent[name] = tensor(values)
    write_model(tmp_path / "agent1", agent, config={"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    plan = planned(tmp_path, "ram")
    for _ in range(5):
        with pytest.raises(NonFiniteError, match=r"down_proj.*agent1"):
            run(plan, tmp_path / "out", parallel=len(plan.shards), resume=(tmp_path / "out").exists())
    assert left_over() == []


def test_an_error_counts_before_those_who_noticed_it() -> None:
    noticed = threading.Event()

    def write(job: str, relay: Any) -> None:
        if job == "cause":
            noticed.wait()  # it ends later than the one that it broke off
            raise ValueError(job)
        try:
            raise CancelledError("the merge was broken off")
        finally:
            noticed.set()

    shards = write_shards(["cause", "other"], lambda job: 1, write, 2, Overall(Seen(), (), 0, 2), lambda: None)
    with pytest.raises(ValueError, match="cause"):
        list(shards)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_warning_reaches_the_observer_in_its_own_thread(at_once: int) -> None:
    heard: list[tuple[str, str]] = []

    class Hearing(Seen):
        def warning(self, message: str) -> None:
            heard.append((message, threading.current_thread().name))

    def write(job: str, relay: Any) -> None:
        relay.warning(job)

    list(write_shards(["a", "b"], lambda job: 1, write, at_once, Overall(Hearing(), (), 0, 2), lambda: None))
    assert sorted(heard) == [(job, threading.current_thread().name) for job in ("a", "b")]


def test_a_second_shard_needs_the_cores_for_it() -> None:
    assert [shards_at_once(cores) for cores in (1, 2, 8, 11, 12, 18, 64)] == [1, 1, 1, 1, 2, 3, MOST_SHARDS]
