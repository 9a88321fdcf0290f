"""Stored dtypes to float32 and back, with one rounding at the end.

Decoding is exact. Encoding to 16 bits is `nearest` (ties to even, IEEE 754) or `stochastic`: up with the
probability of the discarded fraction, hence unbiased, from draws of the counter-based generator. Both leave a
value alone that the dtype can represent. NaN stays NaN, and values that are too large become infinite; the caller
counts both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

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


def decode(raw: NDArray[np.generic], dtype: str) -> Float32:
    """`raw` as stored (see STORAGE) → float32 of the same shape; exact."""
    if dtype == "BF16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(raw, dtype=np.float32)


def encode(values: Float32, dtype: str, rounding: Rounding, draws: NDArray[np.uint64] | None) -> NDArray[np.generic]:
    """float32 → storage of `dtype`, rounded once. `draws`: [n] uint64, needed for stochastic rounding."""
    if dtype == "F32":
        return values
    if rounding == "stochastic":
        assert draws is not None
        return _stochastic_bf16(values, draws) if dtype == "BF16" else _stochastic_f16(values, draws)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        # adding to a NaN's payload could carry into infinity or zero
        rounded = np.where(np.isnan(values), np.uint32(0x7FC0), rounded)
        return rounded.astype(np.uint16)
    with np.errstate(over="ignore"):  # overflow to infinity is counted by the caller
        return values.astype(np.float16)


def _stochastic_bf16(values: Float32, draws: NDArray[np.uint64]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    up = (draws >> np.uint64(48)).astype(np.uint32)  # 16 random bits against the 16 discarded ones
    rounded = (bits + up) >> np.uint32(16)
    finite = np.isfinite(values)
    return np.where(finite, rounded, np.where(np.isnan(values), np.uint32(0x7FC0), bits >> np.uint32(16))).astype(
        np.uint16
    )


def _stochastic_f16(values: Float32, draws: NDArray[np.uint64]) -> NDArray[np.float16]:
    """The float16 on either side of each value, the farther from zero with the probability of the fraction.

    The fraction and the draw are taken in float64: near zero, where the gap is wide, float32 values have fractions
    far below 2^-24. What overflows when rounded to nearest overflows here, too, so that the caller can count it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float16)
        exact = values.astype(np.float64)
        # the limits must be float16 themselves, or the neighbours would be those of a wider dtype
        outward = np.copysign(np.float16(np.inf), near)
        too_far = np.abs(near.astype(np.float64)) > np.abs(exact)
        toward_zero = np.where(too_far, np.nextafter(near, np.float16(0)), near)
        away = np.nextafter(toward_zero, outward)
        low, high = toward_zero.astype(np.float64), away.astype(np.float64)
        fraction = (exact - low) / (high - low)  # exact: the gap is a power of two (or infinite: never away)
        uniform = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
        result = np.where(uniform < fraction, away, toward_zero)
        return np.where(np.isfinite(near), result, near)
