"""How passes.py rounds and draws; dtypes.py and counter_rng.py, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.compiled.adapters import INNER
from hubmerge.compiled.vector_code import from_half, to_half

STEP = 0x9E3779B97F4A7C15  # of counter_rng's counter
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of its mixing


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
def round_f16(exact, n, stochastic, first, second, index, stored, out):
    """exact[n] float32 → F16 bits in out[n] and their values in stored[n] (dtypes.encode, decode). Of the patterns of
    a sign, one less is one step toward zero."""
    if stochastic:
        for i in range(n):
            x = (np.uint64(index) + np.uint64(i)) * np.uint64(STEP) + first
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
def finish(base, stored_base, exact, stored, n, step, counts):
    """rounding_loops.finish_nearest's steps and counts of an output that is there."""
    changed, rounded = np.int32(0), np.int32(0)
    for i in range(n):
        changed += np.int32(stored[i] != stored_base[i])
        rounded += np.int32(stored[i] != exact[i])
        step[i] = stored[i] - base[i]
    counts[0] += changed
    counts[1] += rounded
    counts[2] += _nonfinite(stored, n)
