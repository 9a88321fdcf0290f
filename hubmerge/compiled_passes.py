"""The passes of compiled.py: one block after the other through all the arithmetic of a chunk.

Sums are taken in counting.block_sums's order, LANES columns at a time and _GROUP rows before a column's sum is
touched: so a sum's partial results are read and written once per group, which is what bounds these loops.
Rows that a last block lacks are zeros, whose products add nothing.

Counting by pattern: bit k of an element's pattern says that agent k is active, bit K + k that its update is
positive. A histogram of patterns holds every count across agents at once. It has 4^K bins, hence a limit to K.

Counting magnitudes: the non-zero patterns of a block are packed together first, so that a sparse agent costs no
more than the scan; then one 64-bit addition per element adds 1 to a bin's count (upper 24 bits) and the element's
offset to the bin's sum (lower 40). FLUSH blocks fit before either half can overflow.

All compiled functions are in this one file: numba's cache would not notice when one of another file changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from hubmerge.counting import BLOCK, GROUP, LANES
from hubmerge.histogram import BINS, LAST, LOW_BITS
from hubmerge.vector_code import VECTOR, from_half, pack_nonzero, to_half

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # what the output is stored as
FLUSH = 512  # blocks; 2^21 elements of offsets below 2^18 stay below 2^40
COPIES = 4  # of each histogram: most elements share few bins, and each addition to a bin waits for the last one
STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}
_COUNT_SHIFT = 40
_WIDTH = BLOCK + 112  # of scratch rows, which would share cache sets if they lay a power of two apart
_ROWS = GROUP * LANES  # elements of a group of rows


@njit(**STRICT, cache=True)
def _decode(raw16, raw32, half, row, start, n, padded, values):
    """One block of one model as float32 into values[padded], zeros behind n; raw16 holds F16 (`half`) or BF16, else
    raw32 float32."""
    if raw16.shape[0] == 0:
        values[:n] = raw32[row, start : start + n]
    elif half:
        source = raw16[row, start : start + n]
        for i in range(n):
            values[i] = from_half(source[i])
    else:
        source = raw16[row, start : start + n]
        bits = values[:n].view(np.uint32)
        for i in range(n):
            bits[i] = np.uint32(source[i]) << np.uint32(16)
    values[n:padded] = np.float32(0)


@njit(**STRICT, cache=True)
def _differences(raw16, raw32, half, start, n, padded, epsilon, base, deltas, pattern):
    """base[padded], deltas[K, padded] = agents − base, and the pattern of every element."""
    agents = deltas.shape[0]
    _decode(raw16, raw32, half, 0, start, n, padded, base)
    for k in range(agents):
        delta = deltas[k, :padded]
        active_bit, positive_bit = np.uint16(1 << k), np.uint16(1 << (agents + k))
        _decode(raw16, raw32, half, k + 1, start, n, padded, delta)
        for i in range(padded):
            d = delta[i] - base[i]
            delta[i] = d
            bits = active_bit | (positive_bit if d > np.float32(0) else np.uint16(0))
            own = bits if abs(d) > epsilon else np.uint16(0)
            pattern[i] = own if k == 0 else pattern[i] | own


@njit(**STRICT, cache=True)
def _tree(lanes):
    half = LANES // 2
    while half > 0:
        for i in range(half):
            lanes[i] += lanes[i + half]
        half //= 2
    return lanes[0]


@njit(**STRICT, cache=True)
def _dot(x, y, padded, lanes):
    """Σ x·y of one block; lanes[LANES] is scratch."""
    lanes[:] = 0.0
    for first in range(0, padded, _ROWS):
        x0, x1 = x[first : first + LANES], x[first + LANES : first + 2 * LANES]
        x2, x3 = x[first + 2 * LANES : first + 3 * LANES], x[first + 3 * LANES : first + 4 * LANES]
        y0, y1 = y[first : first + LANES], y[first + LANES : first + 2 * LANES]
        y2, y3 = y[first + 2 * LANES : first + 3 * LANES], y[first + 3 * LANES : first + 4 * LANES]
        for i in range(LANES):
            a, b = np.float64(x0[i]) * np.float64(y0[i]), np.float64(x1[i]) * np.float64(y1[i])
            c, d = np.float64(x2[i]) * np.float64(y2[i]), np.float64(x3[i]) * np.float64(y3[i])
            lanes[i] += (a + b) + (c + d)
    return _tree(lanes)


@njit(**STRICT, cache=True)
def _powers(x, padded, lanes, out):
    """Σ|x|, Σx, Σx³, Σx⁴ and Σx² of one block into out[5]; lanes[5, LANES] is scratch."""
    lanes[:] = 0.0
    size, first, third, fourth, second = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    for start in range(0, padded, _ROWS):
        x0, x1 = x[start : start + LANES], x[start + LANES : start + 2 * LANES]
        x2, x3 = x[start + 2 * LANES : start + 3 * LANES], x[start + 3 * LANES : start + 4 * LANES]
        for i in range(LANES):
            a, b, c, d = np.float64(x0[i]), np.float64(x1[i]), np.float64(x2[i]), np.float64(x3[i])
            aa, bb, cc, dd = a * a, b * b, c * c, d * d
            size[i] += (abs(a) + abs(b)) + (abs(c) + abs(d))
            first[i] += (a + b) + (c + d)
            third[i] += (aa * a + bb * b) + (cc * c + dd * d)
            fourth[i] += (aa * aa + bb * bb) + (cc * cc + dd * dd)
            second[i] += (aa + bb) + (cc + dd)
    for power in range(5):
        out[power] = _tree(lanes[power])


@njit(**STRICT, cache=True)
def _count_magnitudes(delta, padded, kept, packed):
    """Adds the non-zero magnitudes of one block to packed[COPIES, BINS], returns how many; kept[BLOCK + VECTOR]."""
    bits = delta[:padded].view(np.uint32)
    found = np.int64(0)
    for i in range(0, padded, VECTOR):
        found += pack_nonzero(bits, i, kept, found)
    one, low, last = np.uint64(1 << _COUNT_SHIFT), np.uint32(LOW_BITS), np.uint32(LAST)
    whole = found - found % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            packed[copy, kept[i + copy] >> low] += one + np.uint64(kept[i + copy] & last)
    for i in range(whole, found):
        packed[0, kept[i] >> low] += one + np.uint64(kept[i] & last)
    return found


@njit(**STRICT, cache=True)
def flush(packed, magnitudes):
    """Moves packed[K, COPIES, BINS] into magnitudes[2, K, BINS]: counts and offsets."""
    for k in range(packed.shape[0]):
        for copy in range(COPIES):
            for i in range(BINS):
                both = packed[k, copy, i]
                if both != 0:
                    magnitudes[0, k, i] += np.int64(both >> np.uint64(_COUNT_SHIFT))
                    magnitudes[1, k, i] += np.int64(both & np.uint64((1 << _COUNT_SHIFT) - 1))
                    packed[k, copy, i] = 0


@njit(**STRICT, cache=True)
def take(packed):
    """Histogram's keys, counts and offsets of packed[K, COPIES, BINS], which is left empty."""
    agents = packed.shape[0]
    filled = np.int64(0)
    for k in range(agents):
        first = packed[k, 0]
        for copy in range(1, COPIES):
            for i in range(BINS):
                first[i] += packed[k, copy, i]
            packed[k, copy] = np.uint64(0)
        for i in range(BINS):
            filled += np.int64(first[i] != 0)
    keys, counts, offsets = np.empty(filled, np.int64), np.empty(filled, np.int64), np.empty(filled, np.int64)
    place = np.int64(0)
    for k in range(agents):
        first = packed[k, 0]
        for i in range(BINS):
            if first[i] != 0:
                keys[place] = k * BINS + i
                counts[place] = np.int64(first[i] >> np.uint64(_COUNT_SHIFT))
                offsets[place] = np.int64(first[i] & np.uint64((1 << _COUNT_SHIFT) - 1))
                place += 1
        packed[k, 0] = np.uint64(0)
    return keys, counts, offsets


@njit(**STRICT, cache=True)
def _nonfinite_stored(raw16, raw32, half, row, start, n):
    found = np.int64(0)
    if raw16.shape[0] > 0:
        exponent = np.uint16(0x7C00) if half else np.uint16(0x7F80)
        for i in range(start, start + n):
            found += np.int64((raw16[row, i] & exponent) == exponent)
    else:
        for i in range(start, start + n):
            found += np.int64(not np.isfinite(raw32[row, i]))
    return found


@njit(**STRICT, cache=True)
def _nonfinite(x, n):
    bits = x[:n].view(np.uint32)
    exponent = np.uint32(0x7F800000)
    found = np.int32(0)
    for i in range(n):
        found += np.int32((bits[i] & exponent) == exponent)
    return found


@njit(**STRICT, cache=True)
def _count_inputs(
    raw16, raw32, half, start, deltas, pattern, n, padded, histogram, identical, nonfinite, max_abs, packed, sums, kept
):
    """Counts and sums of one block of the inputs; `sums` in the order of counting.count_inputs."""
    agents = deltas.shape[0]
    largest, lanes, powers, squares = np.zeros(1, np.uint32), np.empty((5, LANES)), np.empty(5), np.empty(agents)
    whole = n - n % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            histogram[copy, pattern[i + copy]] += 1
    for i in range(whole, n):
        histogram[0, pattern[i]] += 1
    finite = True
    for k in range(agents):
        delta = deltas[k]
        # as integers: the order of non-negative floats is that of their patterns, and only this is vectorised
        magnitudes = delta[:padded].view(np.uint32)
        most = np.uint32(0)
        for i in range(padded):
            most = max(most, magnitudes[i] & np.uint32(0x7FFFFFFF))
        largest[0] = most
        finite = finite and bool(most < np.uint32(0x7F800000))
        max_abs[k] = max(max_abs[k], np.float64(largest.view(np.float32)[0]))
        identical[k] += n - _count_magnitudes(delta, padded, kept, packed[k])
        _powers(delta, padded, lanes, powers)
        for power in range(4):
            sums[power * agents + k] = powers[power]
        squares[k] = powers[4]
    if not finite:  # a difference is finite only between finite values
        for k in range(agents + 1):
            nonfinite[k] += _nonfinite_stored(raw16, raw32, half, k, start, n)
    row = 4 * agents
    for a in range(agents):
        for b in range(a, agents):
            sums[row] = squares[a] if a == b else _dot(deltas[a], deltas[b], padded, lanes[0])
            row += 1


@njit(**STRICT, cache=True)
def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**STRICT, cache=True)
def _draw_uniform(first, second, index, n, out):
    """counter_rng.uniform."""
    for i in range(n):
        x = (np.uint64(index) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15) + first
        out[i] = np.float32(_mix(_mix(x) ^ second) >> np.uint64(40)) * np.float32(2.0**-24)


@njit(**STRICT, cache=True)
def _round_bf16(exact, n, stochastic, first, second, index, stored, out):
    """exact[n] float32 → BF16 bits in out[n] and their values in stored[n] (dtypes.encode, decode)."""
    bits, back = exact[:n].view(np.uint32), stored[:n].view(np.uint32)
    high = np.uint32(16)
    if stochastic:
        for i in range(n):
            x = (np.uint64(index) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15) + first
            up = np.uint32(_mix(_mix(x) ^ second) >> np.uint64(48))
            special = (bits[i] & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
            rounded = bits[i] >> high if special else (bits[i] + up) >> high
            quiet = np.uint32(0x7FC0) if exact[i] != exact[i] else rounded
            out[i] = np.uint16(quiet)
            back[i] = quiet << high
    else:
        for i in range(n):
            rounded = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> high) & np.uint32(1))) >> high
            quiet = np.uint32(0x7FC0) if exact[i] != exact[i] else rounded
            out[i] = np.uint16(quiet)
            back[i] = quiet << high


@njit(**STRICT, cache=True)
def _round_f16(exact, n, stochastic, first, second, index, stored, out):
    """exact[n] float32 → F16 bits in out[n] and their values in stored[n] (dtypes.encode, decode). Of the patterns of
    a sign, one less is one step toward zero."""
    if stochastic:
        for i in range(n):
            x = (np.uint64(index) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15) + first
            chance = np.float64(_mix(_mix(x) ^ second) >> np.uint64(11)) * 2.0**-53
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


@njit(**STRICT, cache=True)
def _round(dtype, exact, n, stochastic, first, second, index, stored, out):
    """exact[n] as BFLOAT16 or FLOAT16: bits in out[n], values in stored[n]."""
    if dtype == FLOAT16:
        _round_f16(exact, n, stochastic, first, second, index, stored, out)
    else:
        _round_bf16(exact, n, stochastic, first, second, index, stored, out)


@njit(**STRICT, cache=True)
def _regions(own, pattern, active, bit, delta, step, padded, lanes):
    """Sums of one block, own being one agent's update: Σ own², Σ own·delta and Σ own·step where it alone is active,
    Σ own² and Σ own·delta where others are, too, into lanes[5, 0]. delta and step are in float64."""
    lanes[:] = 0.0
    unique_norm, unique_kept, unique_stored, shared_norm, shared_kept = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    for start in range(0, padded, _ROWS):
        x, masks = own[start : start + _ROWS], pattern[start : start + _ROWS]
        merged, steps = delta[start : start + _ROWS], step[start : start + _ROWS]
        for i in range(LANES):
            j, k, m = i + LANES, i + 2 * LANES, i + 3 * LANES
            a, b, c, d = np.float64(x[i]), np.float64(x[j]), np.float64(x[k]), np.float64(x[m])
            in_a, in_b, in_c, in_d = masks[i] & active, masks[j] & active, masks[k] & active, masks[m] & active
            only_a, only_b, only_c, only_d = in_a == bit, in_b == bit, in_c == bit, in_d == bit
            with_a, with_b = (in_a & bit) != 0 and in_a != bit, (in_b & bit) != 0 and in_b != bit
            with_c, with_d = (in_c & bit) != 0 and in_c != bit, (in_d & bit) != 0 and in_d != bit
            aa, bb, cc, dd = a * a, b * b, c * c, d * d
            unique_norm[i] += ((aa if only_a else 0.0) + (bb if only_b else 0.0)) + (
                (cc if only_c else 0.0) + (dd if only_d else 0.0)
            )
            shared_norm[i] += ((aa if with_a else 0.0) + (bb if with_b else 0.0)) + (
                (cc if with_c else 0.0) + (dd if with_d else 0.0)
            )
            aa, bb, cc, dd = a * merged[i], b * merged[j], c * merged[k], d * merged[m]
            unique_kept[i] += ((aa if only_a else 0.0) + (bb if only_b else 0.0)) + (
                (cc if only_c else 0.0) + (dd if only_d else 0.0)
            )
            shared_kept[i] += ((aa if with_a else 0.0) + (bb if with_b else 0.0)) + (
                (cc if with_c else 0.0) + (dd if with_d else 0.0)
            )
            aa, bb, cc, dd = a * steps[i], b * steps[j], c * steps[k], d * steps[m]
            unique_stored[i] += ((aa if only_a else 0.0) + (bb if only_b else 0.0)) + (
                (cc if only_c else 0.0) + (dd if only_d else 0.0)
            )
    for number in range(5):
        _tree(lanes[number])


@njit(**STRICT, cache=True)
def _unique_dot(own, pattern, active, bit, step, padded, lanes):
    """Σ own·step of one block where this agent alone is active, step in float64; lanes[LANES] is scratch."""
    lanes[:] = 0.0
    for start in range(0, padded, _ROWS):
        x, masks, y = own[start : start + _ROWS], pattern[start : start + _ROWS], step[start : start + _ROWS]
        for i in range(LANES):
            j, k, m = i + LANES, i + 2 * LANES, i + 3 * LANES
            a, b = np.float64(x[i]) * y[i], np.float64(x[j]) * y[j]
            c, d = np.float64(x[k]) * y[k], np.float64(x[m]) * y[m]
            lanes[i] += ((a if (masks[i] & active) == bit else 0.0) + (b if (masks[j] & active) == bit else 0.0)) + (
                (c if (masks[k] & active) == bit else 0.0) + (d if (masks[m] & active) == bit else 0.0)
            )
    return _tree(lanes)


@njit(**STRICT, cache=True)
def _count_result(
    base, stored_base, deltas, pattern, delta, exact, stored, other, n, padded, has_other, counts, sums, wide,
    step, other_step,
):  # fmt: skip
    """Counts and sums of one block of the output; `sums` in the order of ResultTally.SUMS, K rows each."""
    agents = deltas.shape[0]
    changed, rounded = np.int32(0), np.int32(0)
    for i in range(n):
        changed += np.int32(stored[i] != stored_base[i])
        rounded += np.int32(stored[i] != exact[i])
    counts[0] += changed
    counts[1] += rounded
    counts[2] += _nonfinite(stored, n)
    for i in range(n):
        step[i] = np.float64(stored[i]) - np.float64(base[i])
    step[n:padded] = 0.0
    if has_other:
        for i in range(n):
            other_step[i] = np.float64(other[i]) - np.float64(base[i])
        other_step[n:padded] = 0.0
    for i in range(n):
        wide[i] = np.float64(delta[i])
    wide[n:padded] = 0.0
    active = np.uint16((1 << agents) - 1)
    lanes = np.empty((5, LANES))
    for k in range(agents):
        bit = np.uint16(1 << k)
        _regions(deltas[k], pattern, active, bit, wide, step, padded, lanes)
        sums[k], sums[agents + k], sums[2 * agents + k] = lanes[0, 0], lanes[1, 0], lanes[2, 0]
        sums[4 * agents + k], sums[5 * agents + k] = lanes[3, 0], lanes[4, 0]
        sums[3 * agents + k] = lanes[2, 0]
        if has_other:
            sums[3 * agents + k] = _unique_dot(deltas[k], pattern, active, bit, other_step, padded, lanes[0])


@njit(**STRICT, cache=True)
def probe_pass(raw16, raw32, half, n, epsilon, histogram, identical, nonfinite, max_abs, packed, magnitudes, sums):
    """Counts of n elements: patterns, sums per block in sums[:, blocks], magnitudes in packed[K, COPIES, BINS] and,
    beyond FLUSH blocks, in magnitudes[2, K, BINS]."""
    agents = identical.shape[0]
    base = np.empty(BLOCK, np.float32)
    deltas = np.empty((agents, _WIDTH), np.float32)
    pattern = np.empty(BLOCK, np.uint16)
    kept = np.empty(BLOCK + VECTOR, np.uint32)
    for block in range((n + BLOCK - 1) // BLOCK):
        if block > 0 and block % FLUSH == 0:
            flush(packed, magnitudes)
        start = block * BLOCK
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        _differences(raw16, raw32, half, start, m, padded, epsilon, base, deltas, pattern)
        _count_inputs(
            raw16, raw32, half, start, deltas, pattern, m, padded, histogram, identical, nonfinite, max_abs, packed,
            sums[:, block], kept,
        )  # fmt: skip


APPLY = types.void(
    types.float32[:, ::1], types.float32[:, ::1], types.float32[::1], types.int64, types.float32[::1]
)  # fmt: skip
_MERGE = types.void(
    types.FunctionType(APPLY),
    types.uint16[:, ::1], types.float32[:, ::1], types.boolean, types.int64, types.float32, types.float32[:, ::1],
    types.float32[::1], types.boolean, types.int64, types.boolean, types.boolean, types.boolean,
    types.uint64, types.uint64, types.int64, types.int64[:, ::1], types.int64[::1], types.int64[::1],
    types.float64[::1], types.uint64[:, :, ::1], types.int64[:, :, ::1], types.float64[:, ::1], types.int64[::1],
    types.float64[:, ::1], types.uint16[::1], types.float32[::1], types.uint64[:, ::1], types.float32[:, ::1],
)  # fmt: skip


# The signature is given so that the machine code can be kept on disk: `apply` is a pointer, not a part of it.
@njit(_MERGE, **STRICT, cache=True)
def merge_pass(
    apply, raw16, raw32, half, n, epsilon, per_agent, constants, count_inputs, dtype, recode, stochastic, has_other,
    first, second, index, histogram, identical, nonfinite, max_abs, packed, magnitudes, in_sums, counts, out_sums,
    out16, out32, uniform_keys, sensitivities,
):  # fmt: skip
    """Merges n elements into out16 (dtype FLOAT16 or BFLOAT16) or out32 (FLOAT32), and counts the inputs (as
    probe_pass) and the result. `recode`: the base is stored in another dtype than the output's 16 bits."""
    agents = per_agent.shape[0]
    draws = uniform_keys.shape[0]
    inputs = np.empty((agents + draws + sensitivities.shape[0], _WIDTH), np.float32)
    deltas = inputs[:agents]
    singles, doubles, halves = (
        np.empty((6, _WIDTH), np.float32),
        np.empty((3, _WIDTH)),
        np.empty((2, _WIDTH), np.uint16),
    )
    delta, exact, stored, other, stored_base = singles[0], singles[1], singles[2], singles[3], singles[4]
    base = singles[5]
    wide, step, other_step = doubles[0], doubles[1], doubles[2]
    pattern, unused = halves[0], halves[1]
    kept = np.empty(BLOCK + VECTOR, np.uint32)
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        _differences(raw16, raw32, half, start, m, padded, epsilon, base, deltas, pattern)
        if count_inputs:
            if block > 0 and block % FLUSH == 0:
                flush(packed, magnitudes)
            _count_inputs(
                raw16, raw32, half, start, deltas, pattern, m, padded, histogram, identical, nonfinite, max_abs, packed,
                in_sums[:, block], kept,
            )  # fmt: skip
        for k in range(draws):
            _draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + start, m, inputs[agents + k])
        for k in range(sensitivities.shape[0]):
            inputs[agents + draws + k, :m] = sensitivities[k, start:stop]
        apply(inputs, per_agent, constants, m, delta)
        for i in range(m):
            exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
        if dtype == FLOAT32:
            stored[:m] = exact[:m]
            out32[start:stop] = exact[:m]
        else:
            _round(dtype, exact, m, stochastic, first, second, index + start, stored, out16[start:stop])
            if has_other:
                _round(dtype, exact, m, not stochastic, first, second, index + start, other, unused)
        if recode:
            _round(dtype, base, m, False, first, second, 0, stored_base, unused)
        _count_result(
            base, stored_base if recode else base, deltas, pattern, delta, exact, stored, other, m, padded,
            has_other, counts, out_sums[:, block], wide, step, other_step,
        )  # fmt: skip
