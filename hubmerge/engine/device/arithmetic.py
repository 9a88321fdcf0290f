"""The bit-exact arithmetic of a merge in torch: dtypes, random draws, sums in a fixed order.

Every function gives the bits of its numpy twin (dtypes.py, counter_rng.py, counting.block_sums) on any device.
What this rests on:

- Each torch operation called here is one rounded IEEE operation per element. Products and sums are operations of
  their own, so nothing can be contracted into a fused multiply-add; that is why this path is not compiled:
  Triton contracts by default.
- Scalars are tensors on the device. Dividing by a number of the host would multiply by its reciprocal on CUDA.
- torch's integers are signed. Sums and products wrap around alike; right shifts are made logical by a mask.
- A sum over elements is never left to a reduction, whose order is the device's own: `block_sums` adds row by row.

The bits of a NaN differ between devices. They reach no file: a NaN in an input or the output ends the merge.
"""

from __future__ import annotations

import torch

from hubmerge.counter_rng import FACTORS, GOLDEN, Key
from hubmerge.dtypes import Rounding
from hubmerge.engine.counting import BLOCK, GROUP, LANES, SAFE

STORED: dict[str, torch.dtype] = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def _signed(value: int) -> int:
    """64 bits as torch's int64 holds them."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(GOLDEN)
_MIX1, _MIX2 = map(_signed, FACTORS)


def draws(key: Key, start: int, count: int, device: torch.device) -> torch.Tensor:
    """counter_rng.draws as [count] int64 of the same bits."""
    x = torch.arange(start, start + count, dtype=torch.int64, device=device)
    x.mul_(_GOLDEN).add_(_signed(key.first))
    return _mix(_mix(x).bitwise_xor_(_signed(key.second)))


def uniform(key: Key, start: int, count: int, device: torch.device) -> torch.Tensor:
    """counter_rng.uniform: [count] float32 in [0, 1), multiples of 2⁻²⁴."""
    return _shifted(draws(key, start, count, device), 40).to(torch.float32).mul_(2.0**-24)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Works in place."""
    x = x.bitwise_xor_(_shifted(x, 30)).mul_(_MIX1)
    x = x.bitwise_xor_(_shifted(x, 27)).mul_(_MIX2)
    return x.bitwise_xor_(_shifted(x, 31))


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64."""
    return torch.bitwise_right_shift(x, bits).bitwise_and_((1 << (64 - bits)) - 1)


def encode(values: torch.Tensor, dtype: str, rounding: Rounding, random: torch.Tensor | None) -> torch.Tensor:
    """dtypes.encode: [n] float32 → STORED[dtype]. `random`: [n] of `draws`, needed for stochastic rounding."""
    near = values.to(STORED[dtype])  # to nearest, ties to even
    if dtype == "F32" or rounding == "nearest":
        return near
    assert random is not None
    return _stochastic_bf16(values, near, random) if dtype == "BF16" else _stochastic_f16(values, near, random)


def _stochastic_bf16(values: torch.Tensor, near: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    up = _shifted(random, 48).to(torch.int32)  # 16 random bits against the 16 discarded ones
    rounded = (values.view(torch.int32) + up).bitwise_right_shift_(16).to(torch.int16).view(torch.bfloat16)
    return torch.where(torch.isfinite(values), rounded, near)


def _stochastic_f16(values: torch.Tensor, near: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """The neighbours are found on bit patterns: one less is one step toward zero, whatever the sign."""
    exact = values.to(torch.float64)
    too_far = near.to(torch.float64).abs() > exact.abs()
    inner = near.view(torch.int16) - too_far.to(torch.int16)
    outer = inner + 1  # from zero, too: the sign bit is kept, and the pattern 1 is the smallest magnitude
    toward_zero, away = inner.view(torch.float16), outer.view(torch.float16)
    low, high = toward_zero.to(torch.float64), away.to(torch.float64)
    fraction = (exact - low) / (high - low)
    chance = _shifted(random, 11).to(torch.float64).mul_(2.0**-53)
    result = torch.where(chance < fraction, away, toward_zero)
    return torch.where(torch.isfinite(near), result, near)


def padded(count: int) -> int:
    """`count` elements in whole blocks."""
    return -(-count // BLOCK) * BLOCK


def block_scales(patterns: torch.Tensor) -> torch.Tensor:
    """counting.block_scales: int32 patterns → float32 of their shape."""
    exponents = patterns.bitwise_right_shift(23)
    safe = (patterns == 0) | ((exponents >= SAFE[0]) & (exponents < SAFE[1]))
    scaled = exponents.neg().add_(254).clamp_(1, 254)
    return torch.where(safe, torch.full_like(scaled, 127), scaled).bitwise_left_shift_(23).view(torch.float32)


def block_sums(rows: torch.Tensor) -> torch.Tensor:
    """counting.block_sums of each row: [Q, a multiple of BLOCK] float32 → [Q, blocks] float64, by adding group after
    group.

    Overwrites `rows`: sums of its groups beside it would take half of its memory more.
    """
    a, b, c, d = rows.view(rows.shape[0], -1, BLOCK // LANES // GROUP, GROUP, LANES).unbind(3)
    first, *others = a.add_(b).add_(c.add_(d)).unbind(2)
    lanes = first + 0.0  # a sum begins at +0, so that no block of −0 sums to −0
    for group in others:
        lanes += group
    while (half := lanes.shape[2] // 2) > 0:
        lanes = lanes[:, :, :half] + lanes[:, :, half:]
    return lanes[:, :, 0].to(torch.float64)
