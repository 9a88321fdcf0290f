"""The fast counting passes of selection against the plain ones: the same triples for every kind of chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubmerge.counter_rng import make_key
from hubmerge.engine.definition import ChunkInputs
from hubmerge.engine.fast import _bound
from hubmerge.engine.selection import Magnitudes
from hubmerge.methods.base import Threshold

ODD = [0.0, -0.0, 1e-45, -1e-40, 1.5, -3e38, np.inf, -np.inf, np.nan]


def chunk(seed: int, dtypes: tuple[str, ...], count: int) -> ChunkInputs:
    """Sparse and dense agents, a few odd values, an offset that is not the tensor's first element."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 0.02, count).astype(np.float32)
    values = [base]
    for k in range(len(dtypes) - 1):
        moved = rng.random(count) < (0.02, 0.5, 1.0)[k % 3]
        agent = base + np.where(moved, rng.normal(0, 1e-3, count), 0).astype(np.float32)
        agent[rng.integers(0, count, 3)] = rng.choice(ODD, 3)
        values.append(agent)
    raws = [
        (v.view(np.uint32) >> 16).astype(np.uint16) if d == "BF16" else v.astype(np.float16 if d == "F16" else "<f4")
        for v, d in zip(values, dtypes, strict=True)
    ]
    keys = tuple(make_key(seed, "uniform", str(k), "t") for k in range(len(dtypes) - 1))
    return ChunkInputs(tuple(raws), dtypes, 8192, uniform_keys=keys)


@pytest.mark.parametrize("dtypes", [("BF16",) * 4, ("F32",) * 3, ("BF16", "F16", "F32"), ("BF16",) * 9])
@pytest.mark.parametrize("drop", [None, 0.0, 0.7])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # float16 has no 3e38
def test_the_fast_counts_are_the_plain_ones(dtypes: tuple[str, ...], drop: float | None) -> None:
    stored = chunk(len(dtypes), dtypes, 10_000)
    threshold = Threshold("delta" if drop is None else "dropped", "model", lambda n: 1, drop or 0.0)
    plain, fused = Magnitudes(threshold, 1e-5, fast=False), Magnitudes(threshold, 1e-5)
    with np.errstate(all="ignore"):
        coarse = plain.count(stored)
        assert np.array_equal(fused.count(stored), coarse)
        assert coarse[:, 2].sum() == 10_000 * (len(dtypes) - 1)
        largest = [int(coarse[coarse[:, 0] == k, 1].max()) for k in range(len(dtypes) - 1)]
        rows = [coarse[(coarse[:, 0] == k) & (coarse[:, 1] != 0)] for k in range(len(dtypes) - 1)]
        fullest = [int(row[np.argmax(row[:, 2]), 1]) for row in rows]
        odd = [int(row[np.argmax(row[:, 2] * (row[:, 1] % 2)), 1]) for row in rows]
        for wanted in (largest, fullest, odd, [0] * len(largest), [9] * len(largest)):
            assert np.array_equal(fused.count(stored, wanted), plain.count(stored, wanted))


@pytest.mark.parametrize("dtypes", [("BF16",) * 4, ("F32",) * 3, ("BF16", "F16", "F32"), ("BF16",) * 2])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # float16 has no 3e38
def test_the_fast_counts_of_private_updates_are_the_plain_ones(dtypes: tuple[str, ...]) -> None:
    stored = chunk(len(dtypes), dtypes, 10_001)
    threshold = Threshold("private", "tensor", lambda n: 1)
    plain, fused = Magnitudes(threshold, 1e-4, fast=False), Magnitudes(threshold, 1e-4)
    with np.errstate(all="ignore"):
        coarse = plain.count(stored)
        assert np.array_equal(fused.count(stored), coarse)
        odd = coarse[coarse[:, 1] % 2 == 1]
        for wanted in (*odd[np.argsort(odd[:, 2])[-3:], 1], 0, 9, 30_000):
            assert np.array_equal(fused.count(stored, [int(wanted)]), plain.count(stored, [int(wanted)]))


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 9000), seed=st.integers(0, 2**32))
def test_no_length_loses_an_element(count: int, seed: int) -> None:
    stored = chunk(seed, ("BF16",) * 3, max(count, 1))
    counted = Magnitudes(Threshold("dropped", "tensor", lambda n: 1, 0.5), 1e-5).count(stored)
    assert [counted[counted[:, 0] == k, 2].sum() for k in range(2)] == [count, count]


@given(
    p=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.1, 0.5, 0.7, 2.0**-24, 3 * 2.0**-25, 1 - 2.0**-30])
)
def test_the_bound_of_a_draw_is_the_comparison_of_floats(p: float) -> None:
    bound = int(_bound(p))
    for k in range(max(bound - 2, 0), min(bound + 3, 2**24)):
        assert (k >= bound) == bool(np.float32(k) * np.float32(2.0**-24) >= np.float32(p))
    assert bound <= 2**24
