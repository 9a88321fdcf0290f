"""Models of very many tensors keep their tallies packed: in less memory, and nothing else differs."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_helpers import StopAfter, bytes_of, plan_of, run, write_family

from hubmerge.engine import first_passes
from hubmerge.statistics import statistics
from hubmerge.statistics.histogram import BINS, Histogram, HistogramSum
from hubmerge.statistics.statistics import Tally

BIN = st.tuples(st.integers(1, 2**40), st.integers(0, 2**58))


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    bins = draw(st.dictionaries(st.integers(0, 3 * BINS - 1), BIN, max_size=40))
    keys = sorted(bins)
    values = [np.array([bins[k][i] for k in keys], np.int64) for i in (0, 1)]
    return Histogram(np.array(keys, np.int64), *values)


def same(a: Histogram, b: Histogram) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a.arrays(), b.arrays(), strict=True))


@given(histograms(), histograms())
def test_a_packed_histogram_is_the_same_alone_in_sums_and_in_json(a: Histogram, b: Histogram) -> None:
    packed = a.packed()
    assert same(packed, a)
    assert all(np.array_equal(getattr(packed, f.name), getattr(a, f.name)) for f in fields(Histogram))
    assert same(packed.packed(), a)
    assert packed.to_json() == a.to_json()
    assert same(packed + b, a + b)
    assert same(b + packed, a + b)
    total = HistogramSum()
    for part in (packed, b.packed()):
        total.add(part)
    assert same(Histogram(*total.arrays()), a + b)


def test_a_usual_histogram_takes_a_fifth_of_the_memory_when_it_is_packed() -> None:
    rng = np.random.default_rng(3)
    deltas = rng.normal(size=(3, 400_000)).astype(np.float32) * np.float32(1e-3)
    counts, offsets = np.zeros((2, 3, BINS), np.int64)
    for k, patterns in enumerate(np.abs(deltas).view(np.uint32)):
        counts[k] = np.bincount(patterns >> 18, minlength=BINS)
        offsets[k] = np.bincount(patterns >> 18, weights=patterns & (2**18 - 1), minlength=BINS)
    whole = Histogram.from_dense(counts, offsets)
    tracemalloc.start()
    try:
        packed = [whole.packed() for _ in range(100)]
        taken = tracemalloc.get_traced_memory()[0] / len(packed)
    finally:
        tracemalloc.stop()
    assert taken < sum(a.nbytes for a in whole.arrays()) / 5 + 1_000  # some objects of Python


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
def test_a_merge_that_packs_its_tallies_is_the_same_also_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(first_passes, "KEEPING_S", 0.0)
    write_family(tmp_path)
    plan = plan_of(tmp_path, method, max_shard_bytes=12_000)
    plain = run(plan, tmp_path / "plain")
    monkeypatch.setattr(statistics, "PACKED_TENSORS", 0)
    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "packed", observer=StopAfter(6))
    packed = run(plan, tmp_path / "packed", resume=True)
    assert bytes_of(tmp_path / "packed", plan) == bytes_of(tmp_path / "plain", plan)

    def told(tallies: dict[str, Tally]) -> str:
        return json.dumps({name: tally.to_json() for name, tally in tallies.items()})

    assert told(dict(packed.statistics.tensors)) == told(dict(plain.statistics.tensors))
    assert packed.statistics.total.to_json() == plain.statistics.total.to_json()
    kinds = {type(tally.histogram) for tally in packed.statistics.tensors.values() if tally.elements}
    assert kinds == {type(plain.statistics.total.histogram.packed())}
