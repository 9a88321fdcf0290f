"""How passes.py rounds and draws; dtypes.py and counter_rng.py, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.counter_rng import FACTORS, GOLDEN
from hubmerge.engine.compiled.adapters import INNER
from hubmerge.engine.compiled.layout import BFLOAT16, FLOAT32
from hubmerge.engine.compiled.rounding_loops import finish_bf16
from hubmerge.engine.compiled.vector_code import from_half, to_half


@njit(**INNER)
def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FACTORS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(FACTORS[1])
    return x ^ (x >> np.uint64(31))


@njit(**INNER)
def mix_upper(x):
    """mix, of which bits 33 and above are right: its last step changes the lower ones only."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FACTORS[0])
    return (x ^ (x >> np.uint64(27))) * np.uint64(FACTORS[1])


@njit(**INNER)
def _round_f16(exact, n, stochastic, first, second, index, stored, out):
    """exact[n] float32 → F16 bits in out[n] and their values in stored[n] (dtypes.encode, decode). Of the patterns of
    a sign, one less is one step toward zero."""
    if stochastic:
        for i in range(n):
            x = (np.uint64(index) + np.uint64(i)) * np.uint64(GOLDEN) + first
            chance = np.float64(mix(mix(x) ^ second) >> np.uint64(11)) * 2.0**-53
            near = to_half(exact[i])
            inner = near - np.uint16(abs(from_half(near)) > abs(exact[i]))
            outer = inner + np.uint16(1)
            low, high = np.float64(from_half(inner)), np.float64(from_half(outer))
            chosen = outer if chance < (np.float64(exact[i]) - low) / (high - low) else inner
            special = (near & np.uint16(0x7C00)) == np.uint16(0x7C00)
            out[i] = near if special else chosen
            stored[i] = from_half(out[i])
    else:
        for i in range(n):
            out[i] = to_half(exact[i])
            stored[i] = from_half(out[i])


@njit(**INNER)
def _nonfinite(x, n):
    bits = x[:n].view(np.uint32)
    exponent = np.uint32(0x7F800000)
    found = np.int32(0)
    for i in range(n):
        found += np.int32((bits[i] & exponent) == exponent)
    return found


@njit(**INNER)
def copy(source, n, target):
    """target[:n] = source[:n], which numba would prepare for arrays that overlap."""
    for i in range(n):
        target[i] = source[i]


@njit(**INNER)
def _finish(base, stored_base, exact, stored, n, step, counts):
    """rounding_loops.finish_bf16's steps and counts of an output that is there."""
    changed, rounded = np.int32(0), np.int32(0)
    for i in range(n):
        changed += np.int32(stored[i] != stored_base[i])
        rounded += np.int32(stored[i] != exact[i])
        step[i] = stored[i] - base[i]
    counts[0] += changed
    counts[1] += rounded
    counts[2] += _nonfinite(stored, n)


@njit(**INNER)
def finish_part(
    dtype, recode, stochastic, has_other, first, second, index, singles, place, n, out16, out32, unused, counts
):
    """The output of n elements from `place` of the rows of chunk_arrays.Workspace, its steps and its counts."""
    base, delta, step, other_step = singles[0, place:], singles[1, place:], singles[6, place:], singles[7, place:]
    if dtype == BFLOAT16:
        finish_bf16(
            base, delta, n, recode, stochastic, has_other, first, second, index, out16, step, other_step, counts
        )
        return
    exact, stored, other, stored_base = singles[2], singles[3], singles[4], singles[5]
    for i in range(n):
        exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
    if dtype == FLOAT32:
        copy(exact, n, stored)
        copy(exact, n, out32)
    else:
        _round_f16(exact, n, stochastic, first, second, index, stored, out16)
    if recode:
        _round_f16(base, n, False, first, second, 0, stored_base, unused)
    _finish(base, stored_base if recode else base, exact, stored, n, step, counts)
    if has_other:
        _round_f16(exact, n, not stochastic, first, second, index, other, unused)
        for i in range(n):
            other_step[i] = other[i] - base[i]
