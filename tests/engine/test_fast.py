"""The fast pass gives the definition's bits, for every method, dtype, rounding and number of agents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hubmerge.counter_rng import Key, make_key
from hubmerge.dtypes import decode, encode
from hubmerge.engine import definition, fast
from hubmerge.engine.counting import BLOCK, activity, count_inputs, fold_inputs
from hubmerge.methods import get_method, registry
from hubmerge.methods.base import Scope, Threshold
from hubmerge.recipe.recipe import MAX_AGENTS
from hubmerge.statistics.statistics import zero_tally

SIZES = [1, 63, BLOCK - 1, BLOCK, 3 * BLOCK + 65]


def chunk_of(agents: int, n: int, dtypes: tuple[str, ...], start: int = 0) -> definition.ChunkInputs:
    rng = np.random.default_rng([agents, n])
    base = (rng.normal(size=n) * 0.02).astype(np.float32)
    base[: n // 50] = -0.0
    values = [base]
    for k in range(agents):
        moved = rng.random(n) < 0.1 + 0.8 * k / agents
        values.append(np.where(moved, base * np.float32(1 + 2.0**-7) + np.float32(1e-4), base).astype(np.float32))
    raws = tuple(encode(v, d, "nearest", None) for v, d in zip(values, dtypes, strict=True))
    keys = tuple(make_key(5, "uniform", str(k)) for k in range(agents))
    sensitivities = tuple(rng.random(n).astype(np.float32) for _ in range(agents))
    return definition.ChunkInputs(raws, dtypes, start, keys, sensitivities)


def for_method(chunk: definition.ChunkInputs, method: str) -> definition.ChunkInputs:
    """Only the extras that the method declares."""
    extras = get_method(method).extras
    return replace(
        chunk,
        uniform_keys=chunk.uniform_keys if "uniform" in extras else (),
        sensitivities=chunk.sensitivities if "sensitivity" in extras else (),
    )


def rule_of(method_name: str, chunk: definition.ChunkInputs, rounding: str) -> definition.Rule:
    method = get_method(method_name)
    parameters = method.parse_parameters({})
    values = [decode(r, d) for r, d in zip(chunk.raws, chunk.dtypes, strict=True)]
    deltas = [v - values[0] for v in values[1:]]
    weights = [1.0 + 0.25 * k for k in range(len(deltas))]
    counted = count_inputs(values[0], values[1:], deltas, activity(deltas, 1e-5))
    tally = fold_inputs(zero_tally(len(deltas)), counted)
    scope = Scope(
        parameters, weights, tally.overlaps, tally.overlaps, tuple(0.001 + 0.001 * k for k in range(len(deltas)))
    )
    return definition.Rule(
        kernel=method.kernel,
        extras=method.extras,
        per_agent=tuple(tuple(np.float32(v) for v in row) for row in method.per_agent(scope)),
        constants=tuple(np.float32(v) for v in method.constants(scope)),
        epsilon=1e-5,
        rounding=rounding,
        both_roundings=True,
    )


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


@pytest.mark.parametrize("method", list(registry()))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("agents", [2, 3, 9])
@pytest.mark.parametrize(
    ("stored", "output"),
    [
        *(("BF16", "BF16"), ("F32", "F32"), ("F16", "BF16"), ("mixed", "BF16"), ("BF16", "F32")),
        *(("F16", "F16"), ("F32", "F16"), ("mixed", "F16")),
    ],
)
def test_both_passes_agree_bit_for_bit(method: str, rounding: str, agents: int, stored: str, output: str) -> None:
    dtypes = tuple(["F32", "BF16", "F16"][k % 3] if stored == "mixed" else stored for k in range(agents + 1))
    for n in SIZES:
        chunk = for_method(chunk_of(agents, n, dtypes, start=7 * BLOCK), method)
        found = assert_alike(chunk, rule_of(method, chunk, rounding), output, make_key(3, "rounding", method))
        probed = fast.probe_chunk(chunk, 1e-5)
        assert found.inputs is not None
        assert probed.tally.to_json() == definition.probe_chunk(chunk, 1e-5).tally.to_json()
        assert probed.sums.tobytes() == found.inputs.sums.tobytes()
        met = fast.count_overlaps(chunk, 1e-5)
        assert met.tolist() == definition.count_overlaps(chunk, 1e-5).tolist() == probed.tally.by_overlap.tolist()


@pytest.mark.parametrize("dtypes", [("BF16",) * 3, ("F16",) * 3, ("F32",) * 3, ("F32", "BF16", "F16")])
def test_elements_need_not_lie_side_by_side(dtypes: tuple[str, ...]) -> None:
    chunk = chunk_of(2, 2 * 5000, dtypes)
    gaps = definition.ChunkInputs(tuple(raw[::2] for raw in chunk.raws), dtypes, 0)
    close = replace(gaps, raws=tuple(np.ascontiguousarray(raw) for raw in gaps.raws))
    rule = rule_of("ram", close, "nearest")
    assert assert_alike(gaps, rule, "BF16").bits() == assert_alike(close, rule, "BF16").bits()
    threshold = Threshold("delta", "tensor", lambda n: 1)
    counts = [fast.count_magnitudes(c, (), threshold, 1e-5) for c in (gaps, close)]
    np.testing.assert_array_equal(*counts)


@pytest.mark.parametrize("method", ["ram", "ties", "sar"])
def test_as_many_agents_as_a_recipe_takes_are_merged_alike(method: str) -> None:
    chunk = for_method(chunk_of(MAX_AGENTS, BLOCK + 65, ("BF16",) * (MAX_AGENTS + 1)), method)
    assert_alike(chunk, rule_of(method, chunk, "nearest"), "BF16")


def test_nan_and_infinity_are_counted_alike_and_stay_what_they_are() -> None:
    chunk = for_method(chunk_of(2, 5000, ("F32", "F32", "F32")), "linear")
    clean = rule_of("linear", chunk, "nearest")
    chunk.raws[0][3], chunk.raws[1][4], chunk.raws[2][4999] = np.nan, np.inf, -np.inf
    for rounding in ("nearest", "stochastic"):
        rule, key = replace(clean, rounding=rounding), make_key(0, "x")
        slow, quick = (module.merge_chunk(chunk, rule, "BF16", key, with_inputs=True) for module in (definition, fast))
        assert quick.raw.tobytes() == slow.raw.tobytes()
        assert quick.inputs is not None
        assert quick.inputs.tally.nonfinite.tolist() == [1, 1, 1]
        assert quick.result.tally.nonfinite == slow.result.tally.nonfinite == 3


@pytest.mark.parametrize("exponents", [(-140, -60), (-120, 60), (-24, 24), (100, 110), (-30, 0), (-45, 30, -8, 0, -60)])
@pytest.mark.parametrize("with_nan", [False, True])
def test_sums_of_very_small_and_very_large_updates_are_alike(exponents: tuple[int, ...], with_nan: bool) -> None:
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
        rule = replace(rule_of("ram_plus", chunk_of(len(exponents), n, dtypes), "nearest"), epsilon=0.0)
        for output in ("BF16", "F32"):
            slow = definition.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
            quick = fast.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
            assert quick.raw.tobytes() == slow.raw.tobytes()
            assert quick.inputs is not None
            assert slow.inputs is not None
            np.testing.assert_array_equal(quick.inputs.sums, slow.inputs.sums)  # NaN where both have one
            np.testing.assert_array_equal(quick.result.sums, slow.result.sums)
            if not with_nan:
                assert quick.inputs.tally.to_json() == slow.inputs.tally.to_json()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_values_at_the_edges_of_16_bits_are_rounded_alike(dtype: str, rounding: str) -> None:
    """Beyond the largest, below the smallest, halfway between two, zeros of both signs, and every pattern of F16."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    patterns = patterns[np.isfinite(patterns)]
    edges = [65504, 65519.99, 65520, 1e5, 3e38, 2.0**-24, 2.0**-25, 2.0**-26, 1e-30, 1e-45, 0.0, 1 + 2.0**-11]
    halfway = (patterns[:-1] + patterns[1:]) / 2
    values = np.concatenate([patterns, halfway, np.array([*edges, *(-v for v in map(np.float32, edges))], np.float32)])
    chunk = definition.ChunkInputs((np.zeros_like(values), values, values), ("F32",) * 3, 0)
    assert_alike(chunk, rule_of("linear", chunk_of(2, 5000, ("F32",) * 3), rounding), dtype)
