"""Order statistics from the histogram against sorted full arrays: never further off than the error they state."""

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import stream_helpers
from hypothesis import given, settings
from hypothesis import strategies as st

from hubmerge.engine import definition, fast
from hubmerge.engine.counting import BLOCK, RELATIVE_ERROR
from hubmerge.statistics.histogram import BINS, LAST, MAX_ERROR, Approximation, Histogram
from hubmerge.statistics.statistics import L0_FRACTION, Tally
from hubmerge.statistics.summary import summarize

ROUNDING = 1e-12  # of float64 sums, on both sides of a comparison
SMALLEST_NORMAL = np.float32(2.0**-126)


def naive_gini(delta: np.ndarray) -> float:
    x = np.sort(np.abs(delta.astype(np.float64)))
    n = len(x)
    ranks = np.arange(1, n + 1)
    return math.fsum((2 * ranks - n - 1) * x) / (n * math.fsum(x))


def naive_top_mass(delta: np.ndarray, percent: int) -> float:
    x = np.sort(np.abs(delta.astype(np.float64)))[::-1]
    return math.fsum(x[: math.ceil(len(x) * percent / 100)]) / math.fsum(x)


def naive_l0_sparsity(delta: np.ndarray) -> float:
    x = np.abs(delta.astype(np.float64))
    return float(np.mean(x < 0.01 * x.max()))


def naive_kurtosis(delta: np.ndarray) -> float:
    x = delta.astype(np.float64)
    x = x / np.abs(x).max()
    centred = x - math.fsum(x) / len(x)
    return math.fsum(centred**4) / len(x) / (math.fsum(centred**2) / len(x)) ** 2 - 3


def tally_of(*deltas: np.ndarray, chunk: int = 1 << 30) -> Tally:
    """Agents of a base of zeros."""
    return stream_helpers.tally_of(np.zeros_like(deltas[0]), deltas, chunk)


def l0_sparsity(tally: Tally) -> Approximation | None:
    return tally.magnitudes(0).below(L0_FRACTION * float(tally.max_abs[0]))


def histogram_of(deltas: Sequence[np.ndarray]) -> Histogram:
    return tally_of(*deltas).histogram


def estimates(tally: Tally, delta: np.ndarray) -> list[tuple[Approximation | None, float]]:
    """Every order statistic of an agent, beside that of its sorted updates."""
    return [
        (tally.magnitudes(0).gini(), naive_gini(delta)),
        (tally.magnitudes(0).top_mass(1), naive_top_mass(delta, 1)),
        (tally.magnitudes(0).top_mass(5), naive_top_mass(delta, 5)),
        (l0_sparsity(tally), naive_l0_sparsity(delta)),
    ]


def within(estimate: Approximation | None, true: float) -> bool:
    assert estimate.error >= 0
    return abs(estimate.value - true) <= estimate.error + ROUNDING


KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=n) * 1e-3,
    "cauchy": lambda rng, n: np.clip(rng.standard_cauchy(size=n), -1e30, 1e30),
    "log-normal": lambda rng, n: rng.choice([-1, 1], n) * np.exp(rng.normal(size=n) * 6),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "one bin": lambda rng, n: 1 + rng.random(n) / 33,
    "ends of a bin": lambda rng, n: rng.choice([1.0, 1 + LAST * 2.0**-23], n),
    "bf16 ulps": lambda rng, n: rng.integers(-3, 4, n) * 2.0 ** rng.integers(-16, -9, n),
    "subnormal": lambda rng, n: rng.integers(-40, 40, n) * 2.0**-149,
    "near subnormal": lambda rng, n: rng.normal(size=n) * 2.0**-126,
    "huge": lambda rng, n: rng.normal(size=n) * 1e37,
    "equal": lambda rng, n: np.full(n, 0.3),
    "one alone": lambda rng, n: np.where(np.arange(n) == n // 2, 0.1, 0.0),
}


def distribution(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    sparse = rng.random(n) < rng.choice([0.01, 0.1, 0.5, 1.0])
    values = KINDS[kind](rng, n)
    delta = np.where(sparse, values, 0).astype(np.float32)
    delta[rng.integers(n)] = np.float32(values[values != 0][0] if values.any() else 2.0**-149)
    return delta


KIND, SEED = st.sampled_from([*KINDS]), st.integers(0, 2**32)


@settings(max_examples=100, deadline=None)
@given(kind=KIND, seed=SEED, n=st.sampled_from([1, 2, 3, 50, 101, 3000, BLOCK + 1]))
def test_no_estimate_is_further_off_than_its_error(kind, seed, n):
    delta = distribution(kind, np.random.default_rng(seed), n)
    for estimate, true in estimates(tally_of(delta), delta):
        assert within(estimate, true)


@settings(max_examples=50, deadline=None)
@given(kind=KIND, seed=SEED, n=st.sampled_from([1, 2, 50, 3000]))
def test_the_errors_keep_the_bounds_that_the_module_states(kind, seed, n):
    delta = distribution(kind, np.random.default_rng(seed), n)
    delta = np.where(np.abs(delta) < SMALLEST_NORMAL, SMALLEST_NORMAL * (delta != 0), delta).astype(np.float32)
    magnitudes = tally_of(delta).magnitudes(0)
    limit = 0.01 * float(np.abs(delta).max())
    patterns = np.abs(delta).view(np.uint32)
    straddled = np.count_nonzero((patterns != 0) & (patterns >> 18 == int(np.float32(limit).view(np.uint32)) >> 18)) / n
    for estimate in (magnitudes.gini(), magnitudes.top_mass(1), magnitudes.top_mass(5)):
        assert estimate.error <= MAX_ERROR + ROUNDING
    assert magnitudes.below(limit).error <= straddled / 2 + ROUNDING


def test_the_worst_bin_comes_close_to_the_stated_bound():
    """Half of the elements at each end of the widest bin, relative to its values."""
    delta = np.repeat(np.array([1.0, 1 + LAST * 2.0**-23], dtype=np.float32), 1000)
    gini = tally_of(delta).magnitudes(0).gini()
    assert 0.95 * MAX_ERROR < gini.error <= MAX_ERROR
    assert gini.value + gini.error == pytest.approx(naive_gini(delta), abs=ROUNDING)


def test_updates_of_a_few_bf16_ulps_are_measured_without_error():
    delta = distribution("bf16 ulps", np.random.default_rng(0), 20_000)
    for estimate, true in estimates(tally_of(delta), delta):
        assert estimate.error == 0
        assert estimate.value == pytest.approx(true, rel=1e-12)


def test_statistics_of_four_elements_are_those_computed_by_hand():
    tally = tally_of(np.array([0.0, 1.0, -1.0, 2.0], dtype=np.float32))
    gini = tally.magnitudes(0).gini()
    # |x_i − x_j| over all ordered pairs: 2·(1 + 1 + 2 + 0 + 1 + 1) = 12; 2·16·1 = 32
    assert gini.value == 12 / 32
    assert tally.magnitudes(0).top_mass(1) == tally.magnitudes(0).top_mass(5) == Approximation(2 / 4, 0.0)
    assert tally.magnitudes(0).top_mass(50) == Approximation(3 / 4, 0.0)
    assert tally.magnitudes(0).top_mass(75) == tally.magnitudes(0).top_mass(100) == Approximation(1.0, 0.0)
    assert l0_sparsity(tally) == Approximation(1 / 4, 0.0)
    # mean 1/2, deviations −1/2, 1/2, −3/2, 3/2: m2 = 5/4, m4 = (2/16 + 2·81/16)/4 = 41/16
    assert tally.kurtosis(0) == pytest.approx(41 / 16 / (25 / 16) - 3)


def test_l0_sparsity_counts_what_is_strictly_below_a_hundredth_of_the_maximum():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert l0_sparsity(tally_of(np.array([50, 0.5, below, 0], dtype=np.float32))) == Approximation(2 / 4, 0.0)


def test_a_hundredth_that_no_float32_holds_is_not_rounded_to_one():
    maxima = np.arange(1000, 1100, dtype=np.float32)
    limits = (0.01 * maxima.astype(np.float64)).astype(np.float32)  # to nearest: below the true limit, or above it
    below = limits.astype(np.float64) < 0.01 * maxima.astype(np.float64)
    assert below.any()
    assert not below.all()
    for maximum, limit, counts in zip(maxima, limits, below, strict=True):
        assert l0_sparsity(tally_of(np.array([maximum, limit]))) == Approximation(int(counts) / 2, 0.0)


@pytest.mark.parametrize("n", [0, 5000])
def test_an_agent_that_changed_nothing_has_no_order_statistics(n):
    (agent,) = summarize(tally_of(np.zeros(n, dtype=np.float32)), ["a"])["agents"]
    assert agent["sparsity"] == 1
    for name in ("l0_sparsity", "gini", "top_1_mass", "top_5_mass"):
        assert agent[name] is None
        assert agent["error"][name] is None
    assert agent["kurtosis"] is None


@settings(max_examples=50, deadline=None)
@given(kind=KIND, seed=SEED, n=st.integers(2, 5000), shift=st.sampled_from([0, 0.5, 3]))
def test_kurtosis_is_that_of_the_full_array(kind, seed, n, shift):
    delta = distribution(kind, np.random.default_rng(seed), n)
    delta = (delta + np.float32(shift) * np.std(delta.astype(np.float64))).astype(np.float32)
    kurtosis = tally_of(delta).kurtosis(0)
    wide = delta.astype(np.float64) / float(np.abs(delta).max() or 1)
    if np.var(wide) > 0.051 * np.mean(wide**2):
        # every raw moment is off by RELATIVE_ERROR of that of the magnitudes, and none of those exceeds the fourth
        bound = 32 * RELATIVE_ERROR * np.mean(wide**4) / np.var(wide) ** 2
        assert kurtosis == pytest.approx(naive_kurtosis(delta), abs=bound)


def test_kurtosis_of_a_usual_agent_is_right_to_five_digits():
    delta = np.random.default_rng(0).laplace(size=100_000).astype(np.float32) * np.float32(1e-6)
    assert tally_of(delta).kurtosis(0) == pytest.approx(naive_kurtosis(delta), rel=1e-5)


def test_a_spread_that_raw_moments_cannot_resolve_gives_no_kurtosis():
    nearly = (1 + np.random.default_rng(0).normal(size=1000) * 0.2).astype(np.float32)
    assert tally_of(nearly).kurtosis(0) is None


@settings(max_examples=30, deadline=None)
@given(
    seed=SEED,
    n=st.sampled_from([1, 63, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7, 4 * BLOCK + 65]),
    blocks=st.integers(1, 4),
    kinds=st.lists(KIND, min_size=1, max_size=3),
)
def test_chunks_give_the_same_bits(seed, n, blocks, kinds):
    rng = np.random.default_rng(seed)
    deltas = [distribution(kind, rng, n) for kind in kinds]
    labels = [str(k) for k in range(len(kinds))]
    whole, parts = tally_of(*deltas), tally_of(*deltas, chunk=blocks * BLOCK)
    assert parts.to_json() == whole.to_json() == Tally.from_json(json.loads(json.dumps(whole.to_json()))).to_json()
    assert summarize(parts, labels) == summarize(whole, labels)


def test_every_element_is_in_the_bin_of_its_exponent_and_five_bits():
    values = np.array([0, -0.0, 2.0**-149, 1, 1 + 2.0**-6, 1 + 2.0**-5, -1.5, 3.4e38], dtype=np.float32)
    histogram = histogram_of([np.resize(values[:2], 8), values])
    assert histogram.of(0, 8).bins.tolist() == []
    magnitudes = histogram.of(1, 8)
    assert magnitudes.bins.tolist() == [0, 127 * 32, 127 * 32 + 1, 127 * 32 + 16, 254 * 32 + 31]
    assert magnitudes.counts.tolist() == [1, 2, 1, 1, 1]
    assert magnitudes.offsets.tolist()[:4] == [1, 2**17, 0, 0]
    assert histogram.keys.max() < 2 * BINS


def test_the_mass_of_the_bins_is_the_l1_norm():
    assert histogram_of([np.full(7, -3.1, dtype=np.float32)]).of(0, 7).mass.tolist() == [7 * float(np.float32(3.1))]
    for kind in KINDS:
        delta = distribution(kind, np.random.default_rng(5), 10_000)
        mass = histogram_of([delta]).of(0, len(delta)).mass.sum()
        assert float(mass) == pytest.approx(math.fsum(np.abs(delta.astype(np.float64))), rel=1e-13)


def test_a_histogram_survives_json_and_stays_small():
    rng = np.random.default_rng(6)
    deltas = [distribution(kind, rng, 50_000) for kind in ("bf16 ulps", "normal")]
    histogram = histogram_of(deltas)
    text = json.dumps(histogram.to_json())
    again = Histogram.from_json(json.loads(text))
    assert again.to_json() == histogram.to_json()
    assert again.keys.dtype == again.counts.dtype == again.offsets.dtype == np.int64
    assert len(json.dumps(histogram_of(deltas[:1]).to_json())) < 2000
    nothing = Histogram.sum_of(()).to_json()
    assert nothing == Histogram.from_json(nothing).to_json()


def test_the_fast_pass_does_not_overflow_in_a_long_chunk():
    """More elements than packed counts and offsets have room for, all at the upper end of one bin."""
    n = 1100 * BLOCK
    delta = np.full(n, 1 + LAST * 2.0**-23, dtype=np.float32)
    base = np.zeros(n, dtype=np.float32)
    counted = fast.probe_chunk(definition.ChunkInputs((base, delta), ("F32", "F32"), 0), 1e-5)
    magnitudes = counted.tally.histogram.of(0, n)
    assert magnitudes.counts.tolist() == [n]
    assert magnitudes.offsets.tolist() == [n * LAST]
