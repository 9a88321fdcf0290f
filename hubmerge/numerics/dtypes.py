"""Stored dtypes to float32 and back, with one rounding at the end.

Decoding is exact. Encoding to 16 bits is `nearest` (ties to even, IEEE 754) or `stochastic`: up with the
probability of the discarded fraction, hence unbiased, from draws of the counter-based generator. Both leave a
value alone that the dtype can represent. NaN stays NaN, and values that are too large become infinite; the caller
counts both.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hubmerge.numerics.arrays import Array, cast, is_finite, is_numpy, shifted, view, where, zeros

Rounding = Literal["nearest", "stochastic"]
Float32 = NDArray[np.float32]

FLOAT_DTYPES = ("F32", "BF16", "F16")  # what this version merges
STORAGE: dict[str, np.dtype[np.generic]] = {
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
}
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # torch's name → safetensors' name
TORCH_NAMES = {stored: name for name, stored in NAMES.items()}


def decode(raw: Array, dtype: str) -> Array:
    """`raw` as stored (see STORAGE; torch's own dtypes) → float32 of the same shape; exact."""
    if dtype == "BF16" and is_numpy(raw):
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # ARM tells of a signaling NaN; the caller counts it
        return np.asarray(raw, dtype=np.float32) if is_numpy(raw) else cast(raw, "float32")


def encode(values: Array, dtype: str, rounding: Rounding, draws: Array | None) -> Array:
    """float32 → storage of `dtype`, rounded once. `draws`: [n] of 64 bits, needed for stochastic rounding."""
    if dtype == "F32":
        return values
    if rounding == "stochastic":
        assert draws is not None
        draws = view(draws, "int64")
    with np.errstate(over="ignore", invalid="ignore"):  # overflow to infinity is counted by the caller
        return _bf16(values, rounding, draws) if dtype == "BF16" else _f16(values, rounding, draws)


def _bf16(values: Array, rounding: Rounding, draws: Array | None) -> Array:
    bits = view(values, "int32")
    half = 0x7FFF + ((bits >> 16) & 1)
    # stochastic: 16 random bits against the 16 discarded ones, of which an infinity has none
    rounded = bits + (half if rounding == "nearest" else cast(shifted(draws, 48), "int32"))
    # adding to a NaN's payload could carry into infinity or zero
    upper = where(values != values, zeros((), "int32", values) + 0x7FC0, rounded >> 16)
    return view(cast(upper, "int16"), "uint16" if is_numpy(values) else "bfloat16")


def _f16(values: Array, rounding: Rounding, draws: Array | None) -> Array:
    """Stochastic: the float16 on either side of each value, the farther from zero with the probability of the fraction.

    Of the patterns of a sign, one less is one step toward zero. The fraction and the draw are taken in float64: near
    zero, where the gap is wide, float32 values have fractions far below 2^-24. What overflows when rounded to nearest
    overflows here, too, so that the caller can count it.
    """
    near = cast(values, "float16")
    if rounding == "nearest":
        return near
    exact = cast(values, "float64")
    too_far = abs(cast(near, "float64")) > abs(exact)
    inner = view(near, "int16") - cast(too_far, "int16")
    toward_zero, away = view(inner, "float16"), view(inner + 1, "float16")
    low, high = cast(toward_zero, "float64"), cast(away, "float64")
    fraction = (exact - low) / (high - low)  # exact: the gap is a power of two (or infinite: never away)
    chance = cast(shifted(draws, 11), "float64") * 2.0**-53
    return where(is_finite(near), where(chance < fraction, away, toward_zero), near)
