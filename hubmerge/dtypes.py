"""Stored dtypes to float32 and back, with one rounding at the end.

Decoding is exact. Encoding to 16 bits is `nearest` (ties to even, IEEE 754) or `stochastic`: up with the
probability of the discarded fraction, hence unbiased, from draws of the counter-based generator. A value that
the dtype can represent stays as it is under both.
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
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float16)
        toward_zero = np.where(
            np.abs(near.astype(np.float32)) > np.abs(values), np.nextafter(near, np.float16(0)), near
        ).astype(np.float16)
        away = np.nextafter(toward_zero, np.copysign(np.float16(np.inf), values))
        low, high = toward_zero.astype(np.float32), away.astype(np.float32)
        fraction = (values - low) / (high - low)  # exact: the gap is a power of two
        uniform = (draws >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        result = np.where(uniform < fraction, away, toward_zero)
    return np.where(np.isfinite(values), result, near).astype(np.float16)
