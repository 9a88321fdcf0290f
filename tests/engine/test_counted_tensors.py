"""Tensors whose own counts a method needs are counted just before they are merged, in one pass over the model.

`ram_plus` with `scope: tensor` is such a method. What a probe of the whole model would have given is what stands here,
bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import tensor, write_model
from stream_helpers import NOWHERE, StopAfter, bytes_of, plan_of, run, write_family
from test_sweep import run_variants

from hubmerge.engine import memory, so_far
from hubmerge.engine.chunks import StreamOptions
from hubmerge.engine.journal import Journal
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import MergeResult, merge, probe
from hubmerge.errors import NonFiniteError
from hubmerge.output.report import make_report
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader

SCOPED = {"scope": "tensor", "r": 0.5, "alpha": 9.0}


def scoped_plan(folder: Path, **fields: Any) -> Plan:
    return plan_of(folder, "ram_plus", parameters=SCOPED, **{"max_shard_bytes": 12_000, **fields})


def counted(result: MergeResult) -> dict[str, Any]:
    return {name: tally.to_json() for name, tally in result.statistics.tensors.items()}


class Watching(Unobserved):
    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.totals: list[int] = []

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        self.stages[stage] += 1

    def statistics(self, values: Mapping[str, Any]) -> None:
        self.totals.append(values["elements"])


def test_the_statistics_are_those_of_a_probe_and_nothing_is_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(so_far, "_SUMMARY_S", 0.0)
    write_family(tmp_path)
    plan, watching = scoped_plan(tmp_path), Watching()
    merged = run(plan, tmp_path / "out", observer=watching)
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        probed = probe(plan, reader, StreamOptions(4096, 2), Unobserved())
    assert counted(merged) == {name: tally.to_json() for name, tally in probed.tensors.items()}
    assert list(merged.statistics.tensors) == list(probed.tensors)
    assert set(watching.stages) == {"merge"}
    assert watching.totals[-1] == plan.elements
    assert plan.passes == 2


@pytest.mark.parametrize("kept", [0, 40_000, 10**9])
def test_nothing_depends_on_chunks_threads_shards_at_once_or_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    write_family(tmp_path)
    plan = scoped_plan(tmp_path)
    first = run(plan, tmp_path / "first")
    monkeypatch.setattr(memory, "KEPT_BYTES", kept)
    for number, (chunk, threads, parallel) in enumerate([(1, 1, 1), (8192, 3, 1), (10**9, 2, 3), (4096, 4, 2)]):
        out = tmp_path / f"out{number}"
        result = run(plan, out, chunk=chunk, threads=threads, parallel=parallel)
        assert bytes_of(out, plan) == bytes_of(tmp_path / "first", plan)
        assert counted(result) == counted(first)
        assert result.total.to_json() == first.total.to_json()


@pytest.mark.parametrize("stop_at", range(12))
def test_a_merge_broken_off_anywhere_goes_on_to_the_same_bytes_and_statistics(tmp_path: Path, stop_at: int) -> None:
    write_family(tmp_path)
    plan = scoped_plan(tmp_path)
    assert len(plan.shards) > 2
    whole = run(plan, tmp_path / "whole")
    out = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run(plan, out, observer=StopAfter(stop_at))
    resumed = run(plan, out, resume=True)
    assert bytes_of(out, plan) == bytes_of(tmp_path / "whole", plan)
    assert counted(resumed) == counted(whole)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_not_a_number_names_the_tensor_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(memory, "KEPT_BYTES", kept)
    for name in ("base", "agent0", "agent1"):
        values = [1.0] * 9000
        values[8999] = float("nan") if name == "agent1" else 1.0
        write_model(tmp_path / name, {"a": tensor([1.0] * 9000), "b": tensor(values)})
    with pytest.raises(NonFiniteError, match=r"b of .*agent1"):
        run(scoped_plan(tmp_path, agents=2, max_shard_bytes=10**9), tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_the_report_says_the_scale_that_the_tensors_have_on_average(tmp_path: Path) -> None:
    """In float32 nothing is lost to rounding, so that what was intended is what is measured."""
    write_family(tmp_path, dtype="F32")
    words = {"identity": "", "target": "", "created": "", "license": {}, "environment": {}}
    scales = []
    for number, parameters in enumerate((SCOPED, {**SCOPED, "scope": "model"})):
        plan = plan_of(tmp_path, "ram_plus", parameters=parameters)
        report = make_report(plan, run(plan, tmp_path / str(number)), **words)
        scales.append([outcome.scale for outcome in report.outcomes])
        assert scales[-1] == pytest.approx([outcome.effective_scale for outcome in report.outcomes], rel=1e-5)
    assert scales[0] != pytest.approx(scales[1], rel=1e-3)


COMPANIONS = [
    ("ram", {}),  # its statistics are those that are counted before
    ("ram_plus", {}),  # whose probe counts for both
    ("ties", {"trim_scope": "tensor"}),  # counted in the same pass
    ("ties", {}),
    ("ram_plus", {"scope": "tensor", "r": 0.1}),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("method", "parameters"), COMPANIONS, ids=str)
def test_in_one_pass_with_another_recipe_it_gives_what_it_gives_alone(
    tmp_path: Path, method: str, parameters: dict[str, Any], first: bool
) -> None:
    write_family(tmp_path)
    plans = [scoped_plan(tmp_path), plan_of(tmp_path, method, parameters=parameters, max_shard_bytes=12_000)]
    plans = plans if first else plans[::-1]
    for number, (plan, result) in enumerate(zip(plans, run_variants(plans, tmp_path / "swept"), strict=True)):
        alone = run(plan, tmp_path / f"alone{number}")
        assert bytes_of(tmp_path / "swept" / str(number), plan) == bytes_of(tmp_path / f"alone{number}", plan)
        assert counted(result) == counted(alone)
        assert result.total.to_json() == alone.total.to_json()


@pytest.mark.parametrize("left", ["ram", "ram_plus"])
def test_what_a_sweep_had_probed_counts_when_only_a_recipe_is_left_that_needs_no_probe(
    tmp_path: Path, left: str
) -> None:
    """The others may have been finished before the kill; its shards were written without counting the inputs."""
    write_family(tmp_path)
    parameters = SCOPED if left == "ram_plus" else {}
    plans = [
        plan_of(tmp_path, "ram_plus", max_shard_bytes=12_000),
        plan_of(tmp_path, left, parameters=parameters, max_shard_bytes=12_000),
    ]
    alone = run(plans[1], tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        run_variants(plans, tmp_path / "swept", observer=StopAfter(16))
    own = tmp_path / "swept" / "1"
    with TensorReader(plans[1].models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        journal = Journal.open(own, plans[1], resume=True)
        assert 0 < len(journal.shards) < len(plans[1].shards)
        resumed = merge(plans[1], reader, journal, own, StreamOptions(4096, 2), Unobserved())
    assert counted(resumed) == counted(alone)
    assert bytes_of(own, plans[1]) == bytes_of(tmp_path / "alone", plans[1])
