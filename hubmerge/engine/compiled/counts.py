"""What passes.py counts and sums of one block.

The loops are in difference_loops.py and sum_loops.py. Which agents are active and where their updates are positive is
kept as bits, 64 elements to a word; every count across agents is a number of bits set.

Counting magnitudes: those that BF16 holds (differences of bf16 checkpoints, nearly all) are counted by their upper 16
bits, one addition each. For the others one 64-bit addition adds 1 to a bin's count (upper 24 bits) and the element's
offset to the bin's sum (lower 40); FLUSH blocks fit before either half can overflow. Both have COPIES, because most
elements share few bins and each addition to a bin waits for the last one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.engine.compiled.adapters import INNER, array_at
from hubmerge.engine.compiled.difference_loops import (
    flag_bf16_1,
    flag_bf16_2,
    flag_bf16_3,
    split_bf16_1,
    split_bf16_2,
    split_bf16_3,
    split_float,
)
from hubmerge.engine.compiled.layout import COPIES
from hubmerge.engine.compiled.sum_loops import dots_2, masked_dot, powers_1, powers_2, regions
from hubmerge.engine.compiled.vector_code import from_bits, from_half, popcount
from hubmerge.engine.counting import SAFE
from hubmerge.statistics.histogram import BINS, LAST, LOW_BITS

_COUNT_SHIFT = 40
_SHORT_BITS = 16  # of a pattern, below those that BF16 holds
_PER_BIN = 1 << (LOW_BITS - _SHORT_BITS)


@njit(**INNER)
def _decode(rows16, rows32, half, model, start, n, padded, values):
    """One block of one model as float32 into values[padded], zeros behind n."""
    if rows16.shape[0] == 0:
        floats = array_at(rows32[model] + np.uint64(4 * start), (n,), np.float32)
        for i in range(n):
            values[i] = floats[i]
    else:
        words = array_at(rows16[model] + np.uint64(2 * start), (n,), np.uint16)
        if half:
            for i in range(n):
                values[i] = from_half(words[i])
        else:
            for i in range(n):
                values[i] = from_bits(np.uint32(words[i]) << np.uint32(16))
    values[n:padded] = np.float32(0)


@njit(**INNER)
def _filled(rows16, start, n, padded, tail):
    """Rows, and the element of theirs, from which `padded` elements can be read: the last block of a tensor is
    filled up with zeros."""
    tail_rows, tails, _ = tail
    if n == padded:
        return rows16, start
    for model in range(tails.shape[0]):
        words = array_at(rows16[model] + np.uint64(2 * start), (n,), np.uint16)
        for i in range(n):
            tails[model, i] = words[i]
        tails[model, n:padded] = np.uint16(0)
    return tail_rows, np.int64(0)


@njit(**INNER)
def differences(
    rows16, rows32, half, start, n, padded, epsilon, base, deltas, active, positive, short, long, found, tail
):
    """base[padded], deltas[K, padded] = agents − base, the flags of every element, and per agent its magnitudes:
    difference_loops. `tail`: addresses and memory of as many rows as there are models, and a spare row."""
    agents = deltas.shape[0]
    if rows16.shape[0] > 0 and not half:
        rows, first = _filled(rows16, start, n, padded, tail)
        k = 0
        while agents - k >= 3:
            split_bf16_3(rows, k, first, padded, epsilon, base, deltas, active, positive, short, long, found)
            k += 3
        if agents - k == 2:
            split_bf16_2(rows, k, first, padded, epsilon, base, deltas, active, positive, short, long, found)
        elif agents - k == 1:
            split_bf16_1(rows, k, first, padded, epsilon, base, deltas, active, positive, short, long, found)
    else:
        spare = tail[2]
        _decode(rows16, rows32, half, 0, start, n, padded, base)
        for k in range(agents):
            _decode(rows16, rows32, half, k + 1, start, n, padded, spare)
            split_float(base, spare, k, padded, epsilon, deltas, active, positive, short, long, found)


@njit(**INNER)
def active_flags(
    rows16, rows32, half, start, n, padded, epsilon, base, deltas, active, positive, short, long, found, tail
):
    """Only `active` of `differences`; what else there is may be written to."""
    if rows16.shape[0] == 0 or half:
        differences(
            rows16, rows32, half, start, n, padded, epsilon, base, deltas, active, positive, short, long, found, tail
        )
        return
    rows, first = _filled(rows16, start, n, padded, tail)
    agents, k = deltas.shape[0], 0
    while agents - k >= 3:
        flag_bf16_3(rows, k, first, padded, epsilon, active)
        k += 3
    if agents - k == 2:
        flag_bf16_2(rows, k, first, padded, epsilon, active)
    elif agents - k == 1:
        flag_bf16_1(rows, k, first, padded, epsilon, active)


@njit(**INNER)
def overlaps(active, words, exactly):
    """exactly[c]: where c = 0 … K agents are active."""
    agents = active.shape[0]
    exactly[:] = np.uint64(0)
    exactly[0, :words] = ~np.uint64(0)
    for k in range(agents):
        own = active[k]
        for c in range(k + 1, 0, -1):
            here, below = exactly[c], exactly[c - 1]
            for w in range(words):
                here[w] = (here[w] & ~own[w]) | (below[w] & own[w])
        none = exactly[0]
        for w in range(words):
            none[w] &= ~own[w]


@njit(**INNER)
def _common(x, y, words):
    """How many bits are set in both."""
    found = np.uint64(0)
    for w in range(words):
        found += popcount(x[w] & y[w])
    return np.int64(found)


@njit(**INNER)
def count_overlaps(active, exactly, words, by_overlap):
    """Adds to Tally's count of the same name."""
    agents = active.shape[0]
    for k in range(agents):
        for c in range(1, agents + 1):
            by_overlap[k, c] += _common(active[k], exactly[c], words)


@njit(**INNER)
def _count_pairs(active, positive, words, pair_active, pair_agree, conflict):
    """Adds to Tally's counts of the same names; of pairs only those a < b."""
    agents = active.shape[0]
    for a in range(agents):
        for b in range(a + 1, agents):
            one, other, up, high = active[a], active[b], positive[a], positive[b]
            both, same = np.uint64(0), np.uint64(0)
            for w in range(words):
                together = one[w] & other[w]
                both += popcount(together)
                same += popcount(together & ~(up[w] ^ high[w]))
            pair_active[a, b] += np.int64(both)
            pair_agree[a, b] += np.int64(same)
    found = np.uint64(0)
    for w in range(words):
        rises, falls = np.uint64(0), np.uint64(0)
        for k in range(agents):
            rises |= positive[k, w]
            falls |= active[k, w] & ~positive[k, w]
        found += popcount(rises & falls)
    conflict[0] += np.int64(found)


@njit(**INNER)
def _count_magnitudes(short, long, found, fine, packed):
    """Adds what differences found of one agent to fine[COPIES, SHORT] and packed[COPIES, BINS]."""
    count = found[0]
    whole = count - count % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            fine[copy, short[i + copy]] += np.uint32(1)
    for i in range(whole, count):
        fine[0, short[i]] += np.uint32(1)
    one, low, last, count = np.uint64(1 << _COUNT_SHIFT), np.uint32(LOW_BITS), np.uint32(LAST), found[1]
    whole = count - count % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            packed[copy, long[i + copy] >> low] += one + np.uint64(long[i + copy] & last)
    for i in range(whole, count):
        packed[0, long[i] >> low] += one + np.uint64(long[i] & last)


@njit(**INNER)
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
    return 0


@njit(**INNER)
def take(counted, out):
    """Histogram's keys, counts and offsets into out[3, …] of `counted`: short[K, COPIES, SHORT], packed[K, COPIES,
    BINS], magnitudes[2, K, BINS or none] and extent[K, 2], the largest and (less 1) smallest pattern of each agent.
    Leaves the first two empty; returns how many there are."""
    short, packed, magnitudes, extent = counted
    place = np.int64(0)
    for k in range(short.shape[0]):
        if extent[k, 0] == 0:
            continue
        for i in range((extent[k, 1] + 1) >> LOW_BITS, (extent[k, 0] >> LOW_BITS) + 1):
            count, offset = np.int64(0), np.int64(0)
            for copy in range(COPIES):
                for part in range(_PER_BIN):
                    here = np.int64(short[k, copy, _PER_BIN * i + part])
                    count += here
                    offset += here * (part << _SHORT_BITS)
                both = packed[k, copy, i]
                count += np.int64(both >> np.uint64(_COUNT_SHIFT))
                offset += np.int64(both & np.uint64((1 << _COUNT_SHIFT) - 1))
                short[k, copy, _PER_BIN * i : _PER_BIN * (i + 1)] = np.uint32(0)
                packed[k, copy, i] = np.uint64(0)
            if magnitudes.shape[2] > 0:
                count += magnitudes[0, k, i]
                offset += magnitudes[1, k, i]
            if count > 0:
                out[0, place], out[1, place], out[2, place] = k * BINS + i, count, offset
                place += 1
    return place


@njit(**INNER)
def _nonfinite_stored(rows16, rows32, half, model, start, n):
    """How many of n stored elements of one model from `start` are not finite."""
    found = np.int64(0)
    if rows16.shape[0] > 0:
        exponent = np.uint16(0x7C00) if half else np.uint16(0x7F80)
        words = array_at(rows16[model] + np.uint64(2 * start), (n,), np.uint16)
        for i in range(n):
            found += np.int64((words[i] & exponent) == exponent)
    else:
        floats = array_at(rows32[model] + np.uint64(4 * start), (n,), np.float32)
        for i in range(n):
            found += np.int64(not np.isfinite(floats[i]))
    return found


@njit(**INNER)
def _scale(pattern):
    """counting.block_scales of one block."""
    exponent = np.int64(pattern >> 23)
    if pattern == 0 or SAFE[0] <= exponent < SAFE[1]:
        return np.float32(1)
    return from_bits(np.uint32(min(max(254 - int(exponent), 1), 254)) << np.uint32(23))


@njit(**INNER)
def _scaled(values, scale, padded, out):
    """out[:padded] = values · scale; the two may be one array."""
    for i in range(padded):
        out[i] = values[i] * scale


@njit(**INNER)
def count_inputs(
    rows16, rows32, half, start, deltas, n, padded, active, positive, exactly, short, long, found, counters, sums,
    scaled, scratch,
):  # fmt: skip
    """Counts and sums of one block of the inputs; `sums` in the order of counting.count_inputs."""
    by_overlap, pair_active, pair_agree, single, fine, packed, _, extent = counters
    agents = deltas.shape[0]
    words = padded // 64
    count_overlaps(active, exactly, words, by_overlap)
    _count_pairs(active, positive, words, pair_active, pair_agree, single[0])
    finite, safe = True, True
    for k in range(agents):
        _count_magnitudes(short[k], long[k], found[k], fine[k], packed[k])
        single[1, k] += n - found[k, 0] - found[k, 1]
        extent[k, 0] = max(extent[k, 0], found[k, 2])
        extent[k, 1] = min(extent[k, 1], found[k, 3])
        finite = finite and found[k, 2] < 0x7F800000
        safe = safe and _scale(found[k, 2]) == np.float32(1)
    if not finite:  # a difference is finite only between finite values
        for k in range(agents + 1):
            single[2, k] += _nonfinite_stored(rows16, rows32, half, k, start, n)
    out, undo = scratch[0], scratch[1]
    undo[:] = 1.0
    values = deltas
    if not safe:
        values = scaled
        for k in range(agents):
            scale = _scale(found[k, 2])
            _scaled(deltas[k], scale, padded, scaled[k])
            undo[k] = 1 / np.float64(scale)
    for k in range(0, agents, 2):
        two = agents - k > 1
        if two:
            powers_2(values, k, padded, out)
            sums[_pair(k, k + 1, agents)] = out[8] * (undo[k] * undo[k + 1])
        else:
            powers_1(values, k, padded, out)
        for part in range(2 if two else 1):
            own, u = k + part, undo[k + part]
            sums[own] = out[4 * part] * u
            sums[agents + own] = out[4 * part + 1] * (u * u * u)
            sums[2 * agents + own] = out[4 * part + 2] * (u * u * (u * u))
            sums[_pair(own, own, agents)] = out[4 * part + 3] * (u * u)
        for other in range(k + 2, agents):
            dots_2(values, k, other, padded, out)
            sums[_pair(k, other, agents)] = out[0] * (undo[k] * undo[other])
            sums[_pair(k + 1, other, agents)] = out[1] * (undo[k + 1] * undo[other])


@njit(**INNER)
def _pair(a, b, agents):
    """Where counting.count_inputs has the sum of agents a ≤ b."""
    return 3 * agents + a * agents - a * (a - 1) // 2 + b - a


@njit(**INNER)
def sum_result(
    deltas, found, active, exactly, flags, delta, step, other_step, n, padded, has_other, sums, scaled, out,
):  # fmt: skip
    """Sums of one block of the output, in the order of ResultTally.SUMS, K rows each."""
    agents = deltas.shape[0]
    delta[n:padded] = np.float32(0)
    step[n:padded] = np.float32(0)
    if has_other:
        other_step[n:padded] = np.float32(0)
    largest = np.int64(0)
    safe = True
    for k in range(agents):
        largest = max(largest, found[k, 2])
        safe = safe and _scale(found[k, 2]) == np.float32(1)
    common = _scale(largest)
    values = deltas
    if not safe:
        values = scaled
        _scaled(delta, common, padded, delta)
        _scaled(step, common, padded, step)
        if has_other:
            _scaled(other_step, common, padded, other_step)
        for k in range(agents):
            _scaled(deltas[k], _scale(found[k, 2]), padded, scaled[k])
    once, words = exactly[1], padded // 64
    alone, shared = flags[0], flags[1]
    for k in range(agents):
        mine = active[k]
        for w in range(words):
            alone[w] = mine[w] & once[w]
            shared[w] = mine[w] & ~once[w]
        regions(values, k, alone, shared, delta, step, padded, out)
        undo = 1 / np.float64(_scale(found[k, 2]))
        both = undo / np.float64(common)
        sums[k], sums[agents + k], sums[2 * agents + k] = out[0] * (undo * undo), out[1] * both, out[2] * both
        sums[4 * agents + k], sums[5 * agents + k] = out[3] * (undo * undo), out[4] * both
        sums[3 * agents + k] = sums[2 * agents + k]
        if has_other:
            sums[3 * agents + k] = masked_dot(values, k, alone, other_step, padded) * both
