"""Outputs and draws of the fast pass at every place of a chunk: parts, last elements, special values."""

from __future__ import annotations

import numpy as np
import pytest

from hubmerge.counter_rng import make_key, uniform
from hubmerge.dtypes import encode
from hubmerge.engine import definition, fast
from hubmerge.methods import get_method

F = np.float32
PART = 512  # of pass.c
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.39e38, -3.4e38, 1e-45, -1e-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8]


def chunk(n: int, base: str, agent: str, start: int) -> definition.ChunkInputs:
    """Values and updates of all sizes, special ones strewn in."""
    rng = np.random.default_rng([n, start])
    values = [(rng.normal(size=n) * 2.0 ** rng.integers(-20, 20, n)).astype(F) for _ in range(2)]
    values[1] = np.where(rng.random(n) < 0.3, values[0], values[0] + values[1] * F(2.0**-9))
    for value in values:
        at = rng.integers(0, n, n // 20 + 1)
        value[at] = rng.choice(np.array(SPECIAL, F), at.size)
    raws = tuple(encode(v, d, "nearest", None) for v, d in zip(values, (base, agent), strict=True))
    return definition.ChunkInputs(raws, (base, agent), start)


def rule(rounding: str, both: bool) -> definition.Rule:
    kernel = get_method("task_arithmetic").kernel
    return definition.Rule(kernel, (), ((F(0.7),),), (F(1.3),), 1e-5, rounding, both)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 15, 16, 17, PART - 1, PART, PART + 1, 2 * PART + 31, 9 * PART - 3])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("base", "agent"), [("BF16", "BF16"), ("F32", "F32"), ("F32", "BF16"), ("BF16", "F16")])
def test_bf16_outputs_are_eagers(n: int, rounding: str, both: bool, base: str, agent: str) -> None:
    inputs, key = chunk(n, base, agent, 12_345), make_key(5, "rounding", "w")
    with np.errstate(all="ignore"):
        slow = definition.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=False)
    quick = fast.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=False)
    assert quick.raw.tobytes() == slow.raw.tobytes()
    found, expected = quick.result.tally, slow.result.tally
    assert (found.changed, found.rounded, found.nonfinite) == (expected.changed, expected.rounded, expected.nonfinite)
    np.testing.assert_array_equal(quick.result.sums, slow.result.sums)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_sums_know_what_the_other_rounding_would_have_stored(rounding: str, both: bool) -> None:
    """Without special values, whose sums are NaN whatever was stored."""
    rng = np.random.default_rng(2)
    base = rng.normal(size=PART + 5).astype(F)
    raws = tuple(encode(v, "BF16", "nearest", None) for v in (base, base * F(1.02)))
    inputs, key = definition.ChunkInputs(raws, ("BF16", "BF16"), 0), make_key(5, "rounding", "w")
    slow = definition.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=False)
    quick = fast.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=False)
    assert quick.result.sums.tobytes() == slow.result.sums.tobytes()
    own, other = slow.result.sums[2], slow.result.sums[3]  # Σo·s as stored, and as the other way would store it
    assert (own.tobytes() == other.tobytes()) is not both


@pytest.mark.parametrize("start", [0, 1, 4095, 2**40 + 3])
@pytest.mark.parametrize("n", [1, 16, PART + 1, 3 * PART + 77])
def test_draws_are_those_of_the_elements(start: int, n: int) -> None:
    """DARE of an update of ones, with a probability that half of the draws lie below."""
    inputs = definition.ChunkInputs((np.zeros(n, F), np.ones(n, F)), ("F32", "F32"), start, (make_key(1, "drop", "a"),))
    scalars = ((F(1), F(0.5), F(3)),)
    dropping = definition.Rule(
        get_method("dare_linear").kernel, ("uniform",), scalars, (F(1), F(0)), 1e-5, "nearest", both_roundings=False
    )
    quick = fast.merge_chunk(inputs, dropping, "F32", make_key(0, "x"), with_inputs=False)
    kept = uniform(make_key(1, "drop", "a"), start, n) >= F(0.5)
    assert quick.raw.tobytes() == np.where(kept, F(3), F(0)).astype(F).tobytes()
