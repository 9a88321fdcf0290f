"""The fast pass gives the definition's bits: for every method, dtype, rounding and number of agents, at every place of
a chunk, and in what it counts of magnitudes."""

import platform
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_helpers import tally_of

from hubmerge.engine import definition, fast
from hubmerge.engine.counting import BLOCK
from hubmerge.methods import get_method, registry
from hubmerge.methods.base import Scope, Threshold
from hubmerge.numerics.counter_rng import Key, make_key
from hubmerge.numerics.dtypes import decode, encode
from hubmerge.recipe.recipe import MAX_AGENTS

SIZES = [1, 63, BLOCK - 1, BLOCK, 3 * BLOCK + 65]


def grid(values: np.ndarray) -> np.ndarray:
    """Multiples of 2^-20, whose sums float32 holds exactly."""
    return np.ldexp(np.round(np.ldexp(values, 20)), -20).astype(np.float32)


def chunk_of(method: str, agents: int, n: int, stored: str = "BF16", start: int = 0) -> definition.ChunkInputs:
    """With the extras that the method declares."""
    dtypes = tuple(["F32", "BF16", "F16"][k % 3] if stored == "mixed" else stored for k in range(agents + 1))
    extras = get_method(method).extras
    rng = np.random.default_rng([agents, n])
    base = grid(rng.normal(size=n) * 0.02)
    base[: n // 50] = -0.0
    values = [base]
    for k in range(agents):
        moved = rng.random(n) < 0.1 + 0.8 * k / agents
        step = grid(base * 2.0**-7 + 1e-4)  # the same for all, so that updates tie and cancel out
        sign = rng.choice(np.array([1, 1, -1, 0.5], np.float32), n)
        values.append(np.where(moved, base + sign * step, base).astype(np.float32))
    raws = tuple(encode(v, d, "nearest", None) for v, d in zip(values, dtypes, strict=True))
    keys = tuple(make_key(5, "uniform", str(k)) for k in range(agents if "uniform" in extras else 0))
    measured = range(agents if "sensitivity" in extras else 0)
    sensitivities = tuple(rng.integers(1, 5, n).astype(np.float32) / 4 for _ in measured)
    return definition.ChunkInputs(raws, dtypes, start, keys, sensitivities)


def rule_of(method_name: str, chunk: definition.ChunkInputs, rounding: str, more: float = 0.25) -> definition.Rule:
    """Each agent weighs so much `more` than the one before."""
    method = get_method(method_name)
    values = [decode(r, d) for r, d in zip(chunk.raws, chunk.dtypes, strict=True)]
    deltas = [v - values[0] for v in values[1:]]
    weights = [1.0 + more * k for k in range(len(deltas))]
    overlaps = tally_of(values[0], values[1:]).overlaps
    parameters = method.parse_parameters({})
    thresholds: tuple[float, ...] = ()
    if method.threshold(parameters) is not None:
        thresholds = tuple(float(np.sort(np.abs(d))[-1 - np.count_nonzero(d) // 2]) for d in deltas)
    scope = Scope(parameters, weights, overlaps, overlaps, thresholds)
    return definition.Rule.of(method, scope, 1e-5, rounding, both_roundings=True)  # type: ignore[arg-type]


def assert_alike(
    chunk: definition.ChunkInputs,
    rule: definition.Rule,
    output: str,
    key: Key = make_key(0, "x"),  # noqa: B008
) -> definition.ChunkOutput:
    """The fast pass gives the definition's bits; returns them."""
    slow = definition.merge_chunk(chunk, rule, output, key, with_inputs=True)
    quick = fast.merge_chunk(chunk, rule, output, key, with_inputs=True)
    assert quick.raw.dtype == slow.raw.dtype
    assert quick.bits() == slow.bits()
    return quick


DTYPES = [(stored, "BF16") for stored in ("BF16", "F16", "mixed")]
DTYPES += [*((stored, "F32") for stored in ("F32", "BF16")), *((stored, "F16") for stored in ("F16", "F32", "mixed"))]


AGENTS = (2, 3, 10)  # of two and three pass.c has code of its own, of more it takes three at a time and what is left
ROUNDINGS = ("nearest", "stochastic")


@pytest.mark.parametrize(
    ("method", "stored", "output", "agents", "rounding"),
    [  # each method with each pair of dtypes, and with each number of agents in each rounding
        (method, *dtypes, AGENTS[(m + d) % 3], ROUNDINGS[(m + d) % 2])
        for m, method in enumerate(registry())
        for d, dtypes in enumerate(DTYPES)
    ],
)
def test_both_passes_agree_bit_for_bit(method, stored, output, agents, rounding):
    for number, n in enumerate(SIZES):
        chunk = chunk_of(method, agents, n, stored, start=2**40)
        rule = rule_of(method, chunk, rounding, more=0.25 * (number % 2))  # alike in the longest, where updates tie
        found = assert_alike(chunk, rule, output, make_key(3, "rounding", method))
        probed = fast.probe_chunk(chunk, 1e-5)
        assert probed.tally.to_json() == definition.probe_chunk(chunk, 1e-5).tally.to_json()
        assert probed.sums.tobytes() == found.inputs.sums.tobytes()
        met = fast.count_overlaps(chunk, 1e-5)
        assert met.tolist() == definition.count_overlaps(chunk, 1e-5).tolist() == probed.tally.by_overlap.tolist()


def test_elements_need_not_lie_side_by_side():
    chunk = chunk_of("ram", 2, 2 * 5000, "mixed")
    gaps = replace(chunk, raws=tuple(raw[::2] for raw in chunk.raws))
    close = replace(gaps, raws=tuple(np.ascontiguousarray(raw) for raw in gaps.raws))
    rule = rule_of("ram", close, "nearest")
    assert assert_alike(gaps, rule, "BF16").bits() == assert_alike(close, rule, "BF16").bits()
    threshold = Threshold("delta", "tensor", lambda n: 1)
    counts = [fast.count_magnitudes(c, (), threshold, 1e-5) for c in (gaps, close)]
    np.testing.assert_array_equal(*counts)


@pytest.mark.parametrize("method", ["ram", "ties", "sar"])
def test_as_many_agents_as_a_recipe_takes_are_merged_alike(method):
    chunk = chunk_of(method, MAX_AGENTS, BLOCK + 65)
    assert_alike(chunk, rule_of(method, chunk, "nearest"), "BF16")


@pytest.mark.parametrize("exponents", [(-140, -60), (-120, 60), (-24, 24), (100, 110), (-30, 0), (-45, 30, -8, 0, -60)])
@pytest.mark.parametrize("with_nan", [False, True])
def test_sums_of_very_small_and_very_large_updates_are_alike(exponents, with_nan):
    rng = np.random.default_rng(4)
    n = 3 * BLOCK + 65
    base = rng.normal(size=n).astype(np.float32) * np.float32(1e-30)
    values = [base]
    for k, exponent in enumerate(exponents):
        moved = (rng.random(n) < 0.5) & (np.arange(n) >= k * BLOCK)
        values.append(np.where(moved, np.ldexp(rng.normal(size=n), exponent), base).astype(np.float32))
    if with_nan:
        values[1][BLOCK + 1], values[2][BLOCK + 2] = np.nan, -np.inf
    for stored in ("F32", "BF16"):
        dtypes = (stored,) * len(values)
        chunk = definition.ChunkInputs(tuple(encode(v, stored, "nearest", None) for v in values), dtypes, 0)
        rule = replace(rule_of("ram_plus", chunk_of("ram_plus", len(exponents), n, stored), "nearest"), epsilon=0.0)
        for output in ("BF16", "F32"):
            slow = definition.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
            quick = fast.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
            assert quick.raw.tobytes() == slow.raw.tobytes()
            np.testing.assert_array_equal(quick.inputs.sums, slow.inputs.sums)  # NaN where both have one
            np.testing.assert_array_equal(quick.result.sums, slow.result.sums)
            if not with_nan:
                assert quick.inputs.tally.to_json() == slow.inputs.tally.to_json()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_values_at_the_edges_of_16_bits_are_rounded_alike(dtype, rounding):
    """Beyond the largest, below the smallest, halfway between two, zeros of both signs, and every pattern of F16."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    patterns = halves[np.isfinite(halves)].astype(np.float32)
    edges = [65504, 65519.99, 65520, 1e5, 3e38, 2.0**-24, 2.0**-25, 2.0**-26, 1e-30, 1e-45, 0.0, 1 + 2.0**-11]
    halfway = (patterns[:-1] + patterns[1:]) / 2
    values = np.concatenate([patterns, halfway, np.array([*edges, *(-v for v in map(np.float32, edges))], np.float32)])
    chunk = definition.ChunkInputs((np.zeros_like(values), values, values), ("F32",) * 3, 0)
    assert_alike(chunk, rule_of("linear", chunk_of("linear", 2, 5000, "F32"), rounding), dtype)


def test_small_values_of_float16_are_read_where_a_thread_takes_subnormal_floats_for_zero():
    values = np.arange(1, 1024, dtype=np.uint16).view(np.float16)
    chunk = definition.ChunkInputs((values, values[::-1]), ("F16",) * 2, 0)
    flushed = torch.set_flush_denormal(True)
    try:
        assert_alike(chunk, rule("nearest", True), "F16")
    finally:
        torch.set_flush_denormal(False)
    assert flushed or platform.machine() != "x86_64"


F = np.float32
PART = 512  # of pass.c
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.39e38, -3.4e38, 1e-45, -1e-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8]


def special_chunk(n: int, base: str, agent: str, start: int) -> definition.ChunkInputs:
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


@pytest.mark.parametrize("n", [1, 15, 16, 17, PART - 1, PART, PART + 1, 9 * PART - 3])
@pytest.mark.parametrize(
    ("rounding", "both", "base", "agent"),
    [
        ("nearest", False, "BF16", "BF16"),
        ("nearest", True, "F32", "F32"),
        ("stochastic", False, "F32", "BF16"),
        ("stochastic", True, "BF16", "F16"),
    ],
)
def test_bf16_outputs_are_eagers(n, rounding, both, base, agent):
    inputs, key = special_chunk(n, base, agent, 12_345), make_key(5, "rounding", "w")
    with np.errstate(all="ignore"):
        slow = definition.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=True)
    quick = fast.merge_chunk(inputs, rule(rounding, both), "BF16", key, with_inputs=True)
    assert quick.raw.tobytes() == slow.raw.tobytes()
    assert quick.inputs.tally.nonfinite.tolist() == slow.inputs.tally.nonfinite.tolist()
    found, expected = quick.result.tally, slow.result.tally
    assert (found.changed, found.rounded, found.nonfinite) == (expected.changed, expected.rounded, expected.nonfinite)
    np.testing.assert_array_equal(quick.result.sums, slow.result.sums)


ODD = [0.0, -0.0, 1e-45, -1e-40, 1.5, -3e38, np.inf, -np.inf, np.nan]


def odd_chunk(seed: int, dtypes: tuple[str, ...], count: int) -> definition.ChunkInputs:
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
    return definition.ChunkInputs(tuple(raws), dtypes, 8192, uniform_keys=keys)


@pytest.mark.parametrize("dtypes", [("BF16",) * 4, ("F32",) * 3, ("BF16", "F16", "F32"), ("BF16",) * 9, ("BF16",) * 2])
@pytest.mark.parametrize(("of", "drop"), [("delta", 0.0), ("dropped", 0.0), ("dropped", 0.7), ("private", 0.0)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # float16 has no 3e38
def test_the_fast_counts_are_the_plain_ones(dtypes, of, drop):
    n, agents = 10_001, len(dtypes) - 1
    drops = tuple(drop / (k + 1) for k in range(agents))
    stored, threshold = odd_chunk(len(dtypes), dtypes, n), Threshold(of, "tensor", lambda n: 1, drops)
    ranked = {"threshold": threshold, "epsilon": 1e-4}
    plain, fused = (partial(by.count_magnitudes, stored, **ranked) for by in (definition, fast))
    coarse = plain(())
    assert np.array_equal(fused(()), coarse)
    assert of == "private" or coarse[:, 2].sum() == n * agents
    rows = [coarse[coarse[:, 0] == k] for k in range(1 if of == "private" else agents)]
    largest = [int(row[:, 1].max()) for row in rows]
    fullest = [int(row[np.argmax(row[:, 2] * (row[:, 1] != 0)), 1]) for row in rows]
    odd = [[int(row[np.argsort(row[:, 2] * (row[:, 1] % 2))[-k], 1]) for row in rows] for k in (1, 2, 3)]
    for wanted in (largest, fullest, *odd, *([key] * len(rows) for key in (0, 9, 30_000))):
        assert np.array_equal(fused(wanted), plain(wanted))


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 9000), seed=st.integers(0, 2**32))
def test_no_length_loses_an_element(count, seed):
    stored = odd_chunk(seed, ("BF16",) * 3, max(count, 1))
    counted = fast.count_magnitudes(stored, (), Threshold("dropped", "tensor", lambda n: 1, 0.5), 1e-5)
    assert [counted[counted[:, 0] == k, 2].sum() for k in range(2)] == [count, count]


@given(
    p=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.1, 0.5, 0.7, 2.0**-24, 3 * 2.0**-25, 1 - 2.0**-30])
)
def test_the_bound_of_a_draw_is_the_comparison_of_floats(p):
    bound = int(fast._bound(p))
    for k in range(max(bound - 2, 0), min(bound + 3, 2**24)):
        assert (k >= bound) == bool(np.float32(k) * np.float32(2.0**-24) >= np.float32(p))
    assert bound <= 2**24
