"""Statistics against counts made by hand and by naive loops, and their independence of chunking."""

import math
from pathlib import Path

import numpy as np
import pytest
from stream_helpers import tally_of

from hubmerge.engine.counting import (
    BLOCK,
    LANES,
    RELATIVE_ERROR,
    Counted,
    Read,
    activity,
    added_in_order,
    block_scales,
    block_sums,
    folded,
    result_counts,
)
from hubmerge.statistics.statistics import SCHEMA, ResultTally, Statistics, zero_result
from hubmerge.statistics.summary import summarize


def random_inputs(seed: int, n: int, k: int = 3) -> tuple[np.ndarray, list[np.ndarray]]:
    generator = np.random.default_rng(seed)
    base = generator.normal(size=n).astype(np.float32)
    agents = [
        base + np.where(generator.random(n) < 0.3, generator.normal(size=n) * 1e-3, 0).astype(np.float32)
        for _ in range(k)
    ]
    return base, agents


def test_counts_of_a_few_elements_are_those_counted_by_hand():
    base = np.zeros(5, dtype=np.float32)
    a = np.array([0, 1, 1, 1, -1], dtype=np.float32)
    b = np.array([0, 0, 1, -1, -1], dtype=np.float32)
    tally = tally_of(base, [a, b], BLOCK)
    assert tally.elements == 5
    assert tally.changed.tolist() == [4, 3]
    assert tally.identical.tolist() == [1, 2]
    assert tally.overlap.tolist() == [1, 1, 3]
    assert tally.overlaps.unique.tolist() == [1, 0]
    assert tally.overlaps.shared.tolist() == [3, 3]
    assert tally.pair_active[0, 1] == 3
    assert tally.pair_agree[0, 1] == 2
    assert tally.conflict == 1
    assert tally.shares == {"several": 0.6, "conflict": 0.2, "overlap": 0.4, "private": 0.2, "unchanged": 0.2}
    assert tally.overlaps.rho == (3.0, math.inf)
    assert tally.jaccard(0, 1) == 3 / 4
    assert tally.cosine(0, 1) == pytest.approx((1 - 1 + 1) / math.sqrt(4 * 3))
    assert tally.sign_agreement(0, 1) == 2 / 3
    assert [tally.magnitudes(k).l1 for k in range(2)] == [4.0, 3.0]
    assert tally.max_abs.tolist() == [1.0, 1.0]


def assert_sum(found: float, terms: list[float]) -> None:
    """Within the stated error of the exact sum."""
    assert abs(found - math.fsum(terms)) <= RELATIVE_ERROR * math.fsum(map(abs, terms))


@pytest.mark.parametrize("exponents", [(0, 0, 0), (-140, -60, -20), (-120, 0, 60), (62, 62, 62), (-24, 23, 24)])
def test_sums_equal_exact_sums_within_the_stated_error_at_any_magnitude(exponents):
    rng = np.random.default_rng(1)
    base = np.zeros(20_000, np.float32)
    agents = [np.ldexp(rng.normal(size=len(base)), e).astype(np.float32) for e in exponents]
    agents[0][: 2 * BLOCK] = 0  # blocks without an update
    tally = tally_of(base, agents, BLOCK)
    wide = [[float(x) for x in agent] for agent in agents]
    for a in range(3):
        assert_sum(tally.moments[0, a], wide[a])
        assert_sum(tally.moments[1, a], [x**3 for x in wide[a]])
        assert_sum(tally.moments[2, a], [x**4 for x in wide[a]])
        assert tally.magnitudes(a).l1 == pytest.approx(math.fsum(map(abs, wide[a])), rel=1e-12)
        for b in range(3):
            assert_sum(tally.dot[a, b], [x * y for x, y in zip(wide[a], wide[b], strict=True)])


def counted_result(
    base: np.ndarray,
    deltas: list[np.ndarray],
    merged: np.ndarray,
    stored: np.ndarray,
    other: np.ndarray | None = None,
    epsilon: float = 1e-5,
) -> Counted[ResultTally]:
    """Of an output that is stored so, and would be `other` under the other rounding."""
    rows = np.stack(deltas)
    other = stored if other is None else other
    counts = result_counts(base, rows, activity(rows, epsilon), merged, stored, stored, other, base)
    return Read(np.concatenate(counts), len(base)).result(len(deltas))


@pytest.mark.parametrize("exponents", [(0, 0), (-120, -20), (-50, 50), (55, 55)])
def test_sums_of_regions_are_exact_within_the_stated_error_at_any_magnitude(exponents):
    rng = np.random.default_rng(2)
    base = np.zeros(10_000, np.float32)
    deltas = [np.ldexp(rng.normal(size=len(base)), e).astype(np.float32) for e in exponents]
    for k in range(2):
        deltas[k][rng.random(len(base)) < 0.4] = 0
    act = activity(np.stack(deltas), 0.0)
    merged = (deltas[0] + deltas[1]).astype(np.float32)
    stored = (merged * np.float32(1.01)).astype(np.float32)
    other = (merged * np.float32(0.99)).astype(np.float32)
    found = folded(zero_result(2), [counted_result(base, deltas, merged, stored, other, 0.0)])
    for k in range(2):
        alone, shared = act.masks[k] & (act.count == 1), act.masks[k] & (act.count == 2)
        for name, factor, where in (
            ("unique_norm", deltas[k], alone), ("unique_kept", merged, alone), ("unique_stored", stored, alone),
            ("unique_other", other, alone), ("shared_norm", deltas[k], shared), ("shared_kept", merged, shared),
        ):  # fmt: skip
            terms = [float(x) * float(y) for x, y in zip(deltas[k][where], factor[where], strict=True)]
            assert_sum(getattr(found, name)[k], terms)


def test_block_sums_pad_with_zeros_and_keep_order():
    values = np.arange(BLOCK + 3, dtype=np.float32)
    assert block_sums(values).tolist() == [BLOCK * (BLOCK - 1) / 2, 3 * BLOCK + 3]
    assert block_sums(np.zeros(0, np.float32)).tolist() == []
    # 2²⁴ swallows a 1 that is added to it alone: only this order of additions loses these and no others
    values = np.zeros(BLOCK, np.float32)
    values[0], values[LANES], values[2 * LANES], values[32] = 2**24, 1, 1, 1
    assert block_sums(values).tolist() == [2**24]
    values[3 * LANES] = 1
    assert block_sums(values).tolist() == [2**24 + 4]


def test_blocks_are_scaled_by_powers_of_two_where_powers_would_leave_float32():
    largest = np.array([0, 1.0, 2.0**24, 2.0**-24, 1.5 * 2.0**-25, 2.0**25, 2.0**-149, 3e38, np.inf], np.float32)
    scales = block_scales(largest.view(np.uint32))
    assert scales.tolist() == [1, 1, 2.0**-24, 1, 2.0**25, 2.0**-25, 2.0**127, 2.0**-126, 2.0**-126]


def result_of(delta_factor: float) -> ResultTally:
    base = np.zeros(4, dtype=np.float32)
    a = np.array([1.0, 2.0, 0.0, 0.0], dtype=np.float32)
    b = np.array([0.0, 2.0, 4.0, 0.0], dtype=np.float32)
    delta = np.array([1.0, 2.0, 4.0, 0.0], dtype=np.float32) * np.float32(delta_factor)
    return folded(zero_result(2), [counted_result(base, [a, b], delta, delta)])


def test_signal_kept_is_one_over_k_where_a_unique_update_is_averaged():
    assert result_of(0.5).kept_unique == (0.5, 0.5)
    assert result_of(1.0).kept_unique == (1.0, 1.0)
    assert result_of(1.0).kept_shared == (1.0, 1.0)
    assert result_of(1.2).effective_scale == pytest.approx((1.2, 1.2))
    assert zero_result(2).effective_scale == (None, None), "of an empty region"


def test_grouping_by_layer_and_module_loses_nothing():
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight",
             "model.norm.weight"]  # fmt: skip
    base, agents = random_inputs(5, 500)
    tally = tally_of(base, agents, BLOCK)
    statistics = Statistics(("a", "b", "c"), 1e-5, dict.fromkeys(names, tally))
    assert sum(t.elements for t in statistics.by_module().values()) == statistics.total.elements == 2000
    assert list(statistics.by_layer()) == [0, 1]
    assert set(statistics.by_module()) == {"embedding", "mlp", "attention", "norm"}
    assert summarize(statistics.total, statistics.agents)["agents"][0]["changed"] == 4 * int(tally.changed[0])


def test_the_page_on_statistics_names_every_field_and_the_schema():
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    base, agents = random_inputs(6, 100)
    group = summarize(tally_of(base, agents, BLOCK), ["a", "b", "c"])
    fields = {*group, *group["shares"], *group["agents"][0], *group["pairs"][0], *group["agents"][0]["error"]}
    missing = [
        f for f in sorted(fields - {"agent", "agents", "pairs"}) if f"`{f}`" not in page and f"[].{f}`" not in page
    ]
    assert missing == []
    assert f"`schema` {SCHEMA})" in page


@pytest.mark.parametrize("quantities", [1, 2, 33])
@pytest.mark.parametrize("blocks", [1, 9, 1000])
def test_blocks_are_added_one_after_the_other(quantities, blocks):
    rng = np.random.default_rng(quantities + blocks)
    start = rng.standard_normal(quantities)
    sums = rng.standard_normal((quantities, blocks)) * 10.0 ** rng.integers(-9, 9)
    wanted = []
    for first, row in zip(start.tolist(), sums.tolist(), strict=True):
        for value in row:
            first += value
        wanted.append(first)
    assert added_in_order(start, sums).tolist() == wanted
    turned = np.ascontiguousarray(sums.T).T  # however the blocks lie in memory
    assert added_in_order(start, turned).tolist() == wanted
