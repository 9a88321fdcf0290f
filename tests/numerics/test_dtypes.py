"""Decoding is exact for every pattern; encoding rounds once, to nearest or without bias, by draws of its own."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from hubmerge.numerics.counter_rng import draws, make_key
from hubmerge.numerics.dtypes import decode, encode

# processors of ARM tell of a signaling NaN where NumPy makes a float32 of a float16
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")

PATTERNS = np.arange(2**16, dtype=np.uint16)
BF16 = np.dtype(ml_dtypes.bfloat16)
REFERENCE = {"BF16": BF16, "F16": np.dtype(np.float16)}
KEY = make_key(0, "rounding", "w")


def stored(dtype: str, patterns: NDArray[np.uint16]) -> NDArray[Any]:
    """Bit patterns as a reader hands them over."""
    return patterns if dtype == "BF16" else patterns.view(np.float16)


def bits(raw: NDArray[Any]) -> NDArray[np.uint16]:
    return raw.view(np.uint16)


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Equal bit for bit, any NaN like any other."""
    nan = np.isnan(a)
    return bool(np.array_equal(nan, np.isnan(b)) and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan]))


def finite_values(dtype: str) -> NDArray[np.float32]:
    """Every finite value of a dtype, ascending."""
    values = PATTERNS.view(REFERENCE[dtype]).astype(np.float32)
    return np.unique(values[np.isfinite(values)])


def awkward_floats(count: int, seed: int) -> NDArray[np.float32]:
    """Random bit patterns, and values around every neighbour, halfway point and limit of both dtypes."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)]
    for dtype in REFERENCE.values():
        grid = PATTERNS.view(dtype).astype(np.float32)
        with np.errstate(all="ignore"):
            middle = (grid.astype(np.float64) + np.roll(grid, -1).astype(np.float64)) / 2
            parts += [grid, middle.astype(np.float32)]
            for part in (grid, parts[-1]):
                parts += [np.nextafter(part, np.float32(np.inf)), np.nextafter(part, np.float32(-np.inf))]
    parts.append(rng.normal(0, 0.02, count).astype(np.float32))
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_pattern_is_decoded_exactly(dtype):
    expected = PATTERNS.view(REFERENCE[dtype]).astype(np.float32)
    assert same(decode(stored(dtype, PATTERNS), dtype), expected)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_pattern_survives_decoding_and_encoding(dtype, rounding):
    back = bits(encode(decode(stored(dtype, PATTERNS), dtype), dtype, rounding, draws(KEY, 0, 2**16)))
    finite_or_inf = ~np.isnan(PATTERNS.view(REFERENCE[dtype]).astype(np.float32))
    assert np.array_equal(back[finite_or_inf], PATTERNS[finite_or_inf])
    assert np.isnan(decode(stored(dtype, back[~finite_or_inf]), dtype)).all()


def test_float32_passes_unchanged():
    values = awkward_floats(1000, 0)
    assert decode(values, "F32").tobytes() == values.tobytes()
    for rounding in ("nearest", "stochastic"):
        assert encode(values, "F32", rounding, None).tobytes() == values.tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_nearest_is_the_references_rounding_bit_for_bit(dtype):
    values = awkward_floats(200_000, 1)
    with np.errstate(all="ignore"):
        expected = values.astype(REFERENCE[dtype])
    ours = encode(values, dtype, "nearest", None)
    nan = np.isnan(values)
    assert np.array_equal(bits(ours)[~nan], bits(expected)[~nan])
    assert np.isnan(decode(ours[nan], dtype)).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_only_the_two_neighbours_can_come_out(dtype):
    values = awkward_floats(200_000, 2)
    values = values[np.isfinite(values)]
    limit = np.float32(ml_dtypes.finfo(REFERENCE[dtype]).max)
    values = values[np.abs(values) <= limit]
    out = decode(encode(values, dtype, "stochastic", draws(KEY, 0, values.size)), dtype)
    grid = finite_values(dtype)
    below = grid[np.searchsorted(grid, values, side="right") - 1]
    above = grid[np.minimum(np.searchsorted(grid, values, side="left"), grid.size - 1)]
    assert ((out == below) | (out == above)).all()
    exact = below == above
    assert np.array_equal(out[exact], values[exact])


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize(
    "value",
    [1 + 2**-12, 1 + 2**-9, -(1 + 2**-12), 0.0203, -0.0203, 1.5e-5, -1.5e-5, 2.0**-26, -(2.0**-25), 1e-40, 60001.0],
)
def test_stochastic_rounding_is_unbiased(dtype, value):
    count = 200_000
    values = np.full(count, value, dtype=np.float32)
    exact = float(values[0])
    out = decode(encode(values, dtype, "stochastic", draws(KEY, 0, count)), dtype).astype(np.float64)
    grid = finite_values(dtype).astype(np.float64)
    low = grid[np.searchsorted(grid, exact, side="right") - 1]
    high = grid[np.searchsorted(grid, exact, side="left")]
    if low == high:
        assert (out == exact).all()
        return
    p = (exact - low) / (high - low)
    sigma = (p * (1 - p) / count) ** 0.5
    assert abs(np.mean(out == high) - p) <= 5 * sigma + 1e-12
    assert set(np.unique(out)) <= {low, high}


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_minus_zero_and_infinities_keep_their_sign_and_nan_stays_nan(dtype, rounding):
    values = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan], dtype=np.float32)
    values = np.concatenate([values, np.array([0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)])
    out = decode(encode(values, dtype, rounding, draws(KEY, 0, values.size)), dtype)
    assert out[:4].tolist() == [0.0, 0.0, float("inf"), float("-inf")]
    assert np.signbit(out[:4]).tolist() == [True, False, False, True]
    assert np.isnan(out[4:]).all()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_float16_cannot_hold_becomes_infinite_instead_of_its_largest_value(rounding):
    # 65504 is the largest; 65520 is halfway to the next power and the first that rounds to infinity
    values = np.array([65504, 65519, 65520, 1e6, 3e38, -65519, -65520, -1e6], dtype=np.float32)
    for start in range(20):
        out = decode(encode(values, "F16", rounding, draws(KEY, 8 * start, 8)), "F16")
        assert out.tolist() == [65504, 65504, np.inf, np.inf, np.inf, -65504, -np.inf, -np.inf]
