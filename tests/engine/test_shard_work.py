"""Tensors whose own counts or order statistics a method needs are counted just before they are merged.

What a probe of the whole model would have given is what stands here, bit for bit; and what is announced to the store
is what is read.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tensor, write_model
from stream_helpers import (
    NOWHERE,
    StopAfter,
    Watching,
    bytes_of,
    family_plan,
    plan_of,
    report_of,
    run,
    tallies,
    write_family,
)
from test_sweep import assert_each_is_as_alone, run_variants

from hubmerge.engine import parallel_shards, shard_work
from hubmerge.engine.journal import Journal
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.shard_work import Output, ShardTask
from hubmerge.engine.stream import merge, probe
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, Read, TensorReader

SCOPED = {"scope": "tensor", "r": 0.5, "alpha": 9.0}
COUNT = 5000
NAMES = ("a", "b")


def scoped_plan(folder: Path, **fields: Any) -> Plan:
    return plan_of(folder, "ram_plus", parameters=SCOPED, **{"max_shard_bytes": 12_000, **fields})


def test_the_statistics_are_those_of_a_probe_and_nothing_is_probed(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_shards, "_SUMMARY_S", 0.0)
    write_family(tmp_path)
    plan, watching = scoped_plan(tmp_path), Watching()
    merged = run(plan, tmp_path / "out", observer=watching)
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        probed = probe(plan, reader, StreamOptions(4096, 2), Unobserved())
    assert {n: t.to_json() for n, t in probed.tensors.items()} | {"result": merged.total.to_json()} == tallies(merged)
    assert list(merged.statistics.tensors) == list(probed.tensors)
    assert {stage for stage, _, _ in watching.told} == {"merge"}
    assert watching.values[-1]["elements"] == plan.elements
    assert plan.passes == 2


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("ram_plus", SCOPED),
        ("ties", {"trim_scope": "tensor"}),
        ("dare_ties", {"p": 0.3, "trim_scope": "tensor"}),
        ("ram_quantile", {}),
    ],
    ids=str,
)
def test_nothing_depends_on_what_is_counted_together_nor_on_chunks_threads_or_shards_at_once(
    tmp_path, monkeypatch, method, parameters
):
    plan = family_plan(tmp_path, method, parameters=parameters, max_shard_bytes=12_000)
    first = run(plan, tmp_path / "first")
    cases = [(0, 1, 1, 1), (40_000, 8192, 3, 1), (10**9, 4096, 4, 2)]
    for number, (together, chunk, threads, parallel) in enumerate(cases):
        monkeypatch.setattr(shard_work, "GROUP_BYTES", together)
        out = tmp_path / f"out{number}"
        result = run(plan, out, chunk=chunk, threads=threads, parallel_shards=parallel)
        assert bytes_of(out, plan) == bytes_of(tmp_path / "first", plan)
        assert tallies(result) == tallies(first)


def test_the_report_says_the_scale_that_the_tensors_have_on_average(tmp_path):
    """In float32 nothing is lost to rounding, so that what was intended is what is measured."""
    write_family(tmp_path, dtype="F32")
    scales = []
    for number, parameters in enumerate((SCOPED, {**SCOPED, "scope": "model"})):
        plan = plan_of(tmp_path, "ram_plus", parameters=parameters)
        report = report_of(plan, run(plan, tmp_path / str(number)))
        scales.append([outcome.scale for outcome in report.outcomes])
        assert scales[-1] == pytest.approx([outcome.effective_scale for outcome in report.outcomes], rel=1e-5)
    assert scales[0] != pytest.approx(scales[1], rel=1e-3)


def test_in_one_pass_with_other_recipes_it_gives_what_it_gives_alone(tmp_path):
    """One whose statistics are those that are counted before, and one that is counted in the same pass."""
    write_family(tmp_path)
    others: list[tuple[str, dict[str, Any]]] = [("ram", {}), ("ties", {"trim_scope": "tensor"})]
    plans = [plan_of(tmp_path, method, parameters=own, max_shard_bytes=12_000) for method, own in others]
    plans.append(scoped_plan(tmp_path))
    assert_each_is_as_alone(plans, run_variants(plans, tmp_path / "swept"), tmp_path / "swept")


def test_what_a_sweep_had_probed_counts_when_only_a_recipe_is_left_that_needs_no_probe(tmp_path):
    """The others may have been finished before the kill; its shards were written without counting the inputs."""
    write_family(tmp_path)
    plans = [plan_of(tmp_path, "ram_plus", max_shard_bytes=12_000), scoped_plan(tmp_path)]
    alone = run(plans[1], tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        run_variants(plans, tmp_path / "swept", observer=StopAfter(16))
    own = tmp_path / "swept" / "1"
    with TensorReader(plans[1].models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        journal = Journal.open(own, plans[1])
        assert 0 < len(journal.shards) < len(plans[1].shards)
        resumed = merge(plans[1], reader, journal, own, StreamOptions(4096, 2), Unobserved())
    assert tallies(resumed) == tallies(alone)
    assert bytes_of(own, plans[1]) == bytes_of(tmp_path / "alone", plans[1])


class Noting(LocalOrFetched):
    """A store that notes what it is told."""

    def __init__(self, cache: Path) -> None:
        super().__init__(NOWHERE, cache)
        self.expected: list[list[str]] = []  # per pass
        self.consumed_elements: Counter[str] = Counter()
        self.bytes = 0

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        self.expected.append([r.name for r in reads])

    def consumed(self, name: str, elements: int) -> None:
        self.consumed_elements[name] += elements

    def read_into(self, model: Any, shard: str, offset: int, out: memoryview) -> None:
        super().read_into(model, shard, offset, out)
        self.bytes += out.nbytes

    def assert_all_was_announced(self) -> None:
        """Or it would keep and fetch for a pass that never comes."""
        consumed = Counter({n: e // COUNT for n, e in self.consumed_elements.items()})
        assert consumed == Counter(name for names in self.expected for name in names)


def ranking_plan(folder: Path, step: float, method: str, **parameters: Any) -> Plan:
    """Two agents whose updates are multiples of `step`, over a base of zeros."""
    rng = np.random.default_rng(0)
    write_model(folder / "base", {name: tensor(np.zeros(COUNT), "F32") for name in NAMES})
    for k in range(2):
        updates = {name: tensor(rng.integers(-100, 100, COUNT) * step, "F32") for name in NAMES}
        write_model(folder / f"agent{k}", updates)
    return plan_of(folder, method, agents=2, parameters=parameters)


SHORT, LONG = 2.0**-12, 1e-3  # whose multiples one counting pass tells apart, or two


@pytest.mark.parametrize(
    ("method", "parameters", "step", "readings"),
    [
        ("ram_plus", {"scope": "tensor"}, LONG, 2),
        ("ties", {"trim_scope": "tensor"}, SHORT, 2),
        ("ties", {"trim_scope": "tensor"}, LONG, 3),
        ("ties", {"trim_scope": "model"}, SHORT, 2),
        ("ram", {}, LONG, 1),
    ],
    ids=str,
)
def test_inputs_are_read_as_often_as_they_must_be_and_the_store_knows(tmp_path, method, parameters, step, readings):
    plan = ranking_plan(tmp_path, step, method, **parameters)
    store, out, watching = Noting(tmp_path / "cache"), tmp_path / "out", Watching()
    with TensorReader(plan.models, store) as reader:
        merge(plan, reader, Journal.open(out, plan), out, StreamOptions(4096, 2), watching)
    selecting = [told for told in watching.told if told[0] == "select"]
    assert selecting == sorted(selecting)
    assert selecting[-1:] == [("select", 4 * COUNT, 4 * COUNT)] * (parameters == {"trim_scope": "model"})
    assert store.bytes == readings * len(NAMES) * COUNT * 4 * 3
    store.assert_all_was_announced()
    assert plan.passes >= readings


def test_a_group_takes_so_many_bytes_of_the_same_files(tmp_path, monkeypatch):
    write_family(tmp_path, sizes={f"model.layers.{n}.weight": (4, 4096) for n in range(6)}, shards=2)
    plan = plan_of(tmp_path, "ties", parameters={"trim_scope": "tensor"})
    task = ShardTask((Output(plan, tmp_path, (), {}),), 0, None)
    each = 4 * 4096 * 2 * 4  # bytes of a tensor of four models

    def groups(most: int) -> list[int]:
        monkeypatch.setattr(shard_work, "GROUP_BYTES", most)
        found = list(task.groups())
        assert [t for group in found for t in group] == list(task.shard.tensors)
        return [len(group) for group in found]

    assert groups(each - 1) == groups(each) == [1] * 6, "a larger one is alone"
    assert groups(2 * each) == [2, 1, 2, 1]
    assert groups(10**9) == [3, 3]
    assert [t.name for t in task.readings()] == [t.name for g in task.groups() for _ in range(3) for t in g]
