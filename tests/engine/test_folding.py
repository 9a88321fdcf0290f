"""A tensor's tally from its chunks has the bits of adding chunk after chunk, and so have totals of tensors."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import numpy as np
import pytest

from hubmerge.engine.counting import (
    BLOCK,
    Counted,
    TensorFold,
    activity,
    count_inputs,
    count_result,
    fold_inputs,
    fold_result,
)
from hubmerge.statistics.histogram import BINS, Histogram, empty_histogram
from hubmerge.statistics.statistics import Statistics, Tally, zero_result, zero_tally

K = 3


def chunks(count: int, seed: int = 0) -> list[tuple[Counted[Any], Counted[Any]]]:
    generator, made = np.random.default_rng(seed), []
    for _ in range(count):
        n = int(generator.integers(1, 3 * BLOCK))
        base = generator.standard_normal(n).astype(np.float32)
        scale = np.float32(10.0 ** generator.integers(-9, 3))  # so that chunks fill other bins
        deltas = [(generator.standard_normal(n) * (generator.random(n) < 0.5)).astype(np.float32) * scale] * K
        deltas = [d * np.float32(k + 1) for k, d in enumerate(deltas)]
        act = activity(deltas, 1e-5)
        inputs = count_inputs(base, [base + d for d in deltas], deltas, act)
        merged = base + deltas[0]
        result = count_result(base, deltas, act, deltas[0], merged, merged, merged, base)
        made.append((inputs, result))
    return made


def plain(tally: Any) -> str:
    return json.dumps(tally.to_json())


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_folding_at_once_is_folding_one_by_one(count: int) -> None:
    made = chunks(count)
    kept = [(plain(i.tally), plain(r.tally)) for i, r in made]
    inputs, result = TensorFold(zero_tally(K), fold_inputs), TensorFold(zero_result(K), fold_result)
    for counted_in, counted_out in made:
        inputs.add(counted_in)
        result.add(counted_out)
    wanted_in = reduce(fold_inputs, (i for i, _ in made), zero_tally(K))
    wanted_out = reduce(fold_result, (r for _, r in made), zero_result(K))
    assert plain(inputs.tally()) == plain(wanted_in)
    assert plain(result.tally()) == plain(wanted_out)
    assert [(plain(i.tally), plain(r.tally)) for i, r in made] == kept, "what was added is not changed"


def test_a_sum_of_tallies_is_what_plus_gives() -> None:
    tallies = [fold_inputs(zero_tally(K), i) for i, _ in chunks(12, 1)]
    kept = [plain(t) for t in tallies]
    assert plain(Tally.sum_of(tallies)) == plain(reduce(lambda a, b: a + b, tallies))
    names = [f"model.layers.{i % 3}.mlp.up.weight" if i % 4 else f"norm{i}.weight" for i in range(12)]
    statistics = Statistics(("a", "b", "c"), 1e-5, dict(zip(names, tallies, strict=True)))
    wanted = reduce(lambda a, b: a + b, statistics.tensors.values(), zero_tally(K))
    assert plain(statistics.total) == plain(wanted)
    assert list(statistics.by_module()) == sorted(statistics.by_module())
    assert sum(t.elements for t in statistics.by_module().values()) == wanted.elements
    assert [plain(t) for t in tallies] == kept


def histogram(bins: dict[int, tuple[int, int]]) -> Histogram:
    keys = np.array(sorted(bins), np.int64)
    return Histogram(keys, *(np.array([bins[k][i] for k in sorted(bins)], np.int64) for i in (0, 1)))


def as_dict(total: Histogram) -> dict[int, tuple[int, int]]:
    columns = (total.keys.tolist(), total.counts.tolist(), total.offsets.tolist())
    return {k: (c, o) for k, c, o in zip(*columns, strict=True)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({}, {5: (1, 2)}),
        ({1: (1, 1), 9: (2, 3)}, {1: (5, 5), 9: (1, 0)}),
        ({1: (1, 1), 9: (2, 3), 3 * BINS - 1: (1, 1)}, {9: (1, 4)}),
        ({1: (1, 1)}, {0: (1, 0), 1: (1, 4), BINS: (2, 2)}),
        ({1: (1, 1), 4: (1, 2)}, {2: (1, 0), 4: (3, 4), 7: (1, 1)}),
        ({7: (1 << 60, 1 << 61)}, {8: (1, 1)}),
    ],
)
def test_histograms_add_up_bin_by_bin(one: dict[int, tuple[int, int]], other: dict[int, tuple[int, int]]) -> None:
    wanted = {
        k: (one.get(k, (0, 0))[0] + other.get(k, (0, 0))[0], one.get(k, (0, 0))[1] + other.get(k, (0, 0))[1])
        for k in sorted({*one, *other})
    }
    assert as_dict(histogram(one) + histogram(other)) == wanted
    assert as_dict(histogram(other) + histogram(one)) == wanted
    assert as_dict(Histogram.sum_of([empty_histogram(), histogram(one), histogram(other)])) == wanted
