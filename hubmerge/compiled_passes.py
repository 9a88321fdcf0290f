"""The passes of compiled.py: one block after the other through all the arithmetic of a chunk.

The loops that count and sum are in vector_loops.py. Which agents are active and where their updates are positive is
kept as bits, 64 elements to a word; every count across agents is a number of bits set.

Counting magnitudes: those that BF16 holds (differences of bf16 checkpoints, nearly all) are counted by their upper 16
bits, one addition each. For the others one 64-bit addition adds 1 to a bin's count (upper 24 bits) and the element's
offset to the bin's sum (lower 40); FLUSH blocks fit before either half can overflow. Both have COPIES, because most
elements share few bins and each addition to a bin waits for the last one.

All compiled functions are in this one file: numba's cache would not notice when one of another file changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hubmerge.counting import BLOCK, LANES, SAFE
from hubmerge.histogram import BINS, LAST, LOW_BITS
from hubmerge.pass_types import MERGE
from hubmerge.vector_code import from_half, to_half
from hubmerge.vector_loops import (
    GROUP,
    VECTOR,
    dot,
    finish_bf16,
    from_bits,
    masked_dot,
    popcount,
    powers,
    regions,
    split_bf16,
    split_float,
)

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # what the output is stored as
FLUSH = 512  # blocks; 2^21 elements of offsets below 2^18 stay below 2^40
COPIES = 4
SHORT = (1 << 15) + 16  # patterns of a magnitude in BF16; copies a power of two apart would share cache sets
STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}
_COUNT_SHIFT = 40
_SHORT_BITS = 16  # of a pattern, below those that BF16 holds
_PER_BIN = 1 << (LOW_BITS - _SHORT_BITS)
_WIDTH = BLOCK + 112  # of scratch rows, which would share cache sets if they lay a power of two apart
_ROWS = GROUP * LANES  # elements of a group of rows
_WORDS = BLOCK // 64


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
        for i in range(n):
            values[i] = from_bits(np.uint32(source[i]) << np.uint32(16))
    values[n:padded] = np.float32(0)


@njit(**STRICT, cache=True)
def _differences(raw16, raw32, half, start, n, padded, epsilon, base, deltas, active, positive, kept, found, spare):
    """base[padded], deltas[K, padded] = agents − base, the flags of every element, and per agent the magnitudes in
    kept[K, 2, ≥ padded + VECTOR] and found[K, 4] (vector_loops.split_bf16)."""
    _decode(raw16, raw32, half, 0, start, n, padded, base)
    stored_as_bf16 = raw16.shape[0] > 0 and not half and n == padded
    for k in range(deltas.shape[0]):
        into = deltas[k], active[k], positive[k], kept[k, 0], kept[k, 1], found[k]
        if stored_as_bf16:
            split_bf16(base, raw16[k + 1], start, padded, epsilon, *into)
        else:
            _decode(raw16, raw32, half, k + 1, start, n, padded, spare)
            split_float(base, spare, padded, epsilon, *into)


@njit(**STRICT, cache=True)
def _overlaps(active, words, exactly):
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


@njit(**STRICT, cache=True)
def _common(x, y, words):
    """How many bits are set in both."""
    found = np.uint64(0)
    for w in range(words):
        found += popcount(x[w] & y[w])
    return np.int64(found)


@njit(**STRICT, cache=True)
def _count_overlaps(active, positive, exactly, words, by_overlap, pair_active, pair_agree, conflict):
    """Adds to Tally's counts of the same names; of pairs only those a < b."""
    agents = active.shape[0]
    for k in range(agents):
        for c in range(1, agents + 1):
            by_overlap[k, c] += _common(active[k], exactly[c], words)
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


@njit(**STRICT, cache=True)
def _count_magnitudes(kept, found, short, packed):
    """Adds what _differences kept of one agent to short[COPIES, SHORT] and packed[COPIES, BINS]."""
    place, bits, count = kept[0], np.uint32(_SHORT_BITS), found[0]
    whole = count - count % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            short[copy, place[i + copy] >> bits] += np.uint32(1)
    for i in range(whole, count):
        short[0, place[i] >> bits] += np.uint32(1)
    one, low, last, count, place = np.uint64(1 << _COUNT_SHIFT), np.uint32(LOW_BITS), np.uint32(LAST), found[1], kept[1]
    whole = count - count % COPIES
    for i in range(0, whole, COPIES):
        for copy in range(COPIES):
            packed[copy, place[i + copy] >> low] += one + np.uint64(place[i + copy] & last)
    for i in range(whole, count):
        packed[0, place[i] >> low] += one + np.uint64(place[i] & last)


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
def take(short, packed, magnitudes, extent):
    """Histogram's keys, counts and offsets of short[K, COPIES, SHORT], packed[K, COPIES, BINS] and magnitudes[2, K,
    BINS or none]; leaves the first two empty. extent[K, 2]: largest and (less 1) smallest pattern of each agent."""
    agents = short.shape[0]
    room = np.int64(0)
    for k in range(agents):
        if extent[k, 0] > 0:
            room += np.int64(extent[k, 0] >> LOW_BITS) - np.int64((extent[k, 1] + 1) >> LOW_BITS) + 1
    keys, counts, offsets = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    place = np.int64(0)
    for k in range(agents):
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
                keys[place], counts[place], offsets[place] = k * BINS + i, count, offset
                place += 1
    return keys[:place], counts[:place], offsets[:place]


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
def _scale(pattern):
    """counting.block_scales of one block."""
    exponent = np.int64(pattern >> 23)
    if pattern == 0 or SAFE[0] <= exponent < SAFE[1]:
        return np.float32(1)
    return from_bits(np.uint32(int(min(max(254 - exponent, 1), 254))) << np.uint32(23))


@njit(**STRICT, cache=True)
def _scaled(values, scale, padded, out):
    for i in range(padded):
        out[i] = values[i] * scale


@njit(**STRICT, cache=True)
def _count_inputs(
    raw16, raw32, half, start, deltas, n, padded, active, positive, exactly, kept, found, counters, sums, scaled,
    scratch,
):  # fmt: skip
    """Counts and sums of one block of the inputs; `sums` in the order of counting.count_inputs."""
    by_overlap, pair_active, pair_agree, single, short, packed, _, extent = counters
    agents = deltas.shape[0]
    words = padded // 64
    _count_overlaps(active, positive, exactly, words, by_overlap, pair_active, pair_agree, single[0])
    finite, safe = True, True
    for k in range(agents):
        _count_magnitudes(kept[k], found[k], short[k], packed[k])
        single[1, k] += n - found[k, 0] - found[k, 1]
        extent[k, 0] = max(extent[k, 0], found[k, 2])
        extent[k, 1] = min(extent[k, 1], found[k, 3])
        finite = finite and found[k, 2] < 0x7F800000
        safe = safe and _scale(found[k, 2]) == np.float32(1)
    if not finite:  # a difference is finite only between finite values
        for k in range(agents + 1):
            single[2, k] += _nonfinite_stored(raw16, raw32, half, k, start, n)
    out, undo = scratch[0], scratch[1]
    undo[:] = 1.0
    if not safe:
        for k in range(agents):
            scale = _scale(found[k, 2])
            _scaled(deltas[k], scale, padded, scaled[k])
            undo[k] = 1 / np.float64(scale)
    values = deltas if safe else scaled
    row = 3 * agents
    for k in range(agents):
        powers(values[k], padded, out)
        u = undo[k]
        sums[k] = out[0] * u
        sums[agents + k] = out[1] * (u * u * u)
        sums[2 * agents + k] = out[2] * (u * u * (u * u))
        sums[row] = out[3] * (u * u)
        for other in range(k + 1, agents):
            sums[row + other - k] = dot(values[k], values[other], padded) * (u * undo[other])
        row += agents - k


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
def _finish(base, stored_base, exact, stored, n, step, counts):
    """finish_bf16's steps and counts of an output that is there."""
    changed, rounded = np.int32(0), np.int32(0)
    for i in range(n):
        changed += np.int32(stored[i] != stored_base[i])
        rounded += np.int32(stored[i] != exact[i])
        step[i] = stored[i] - base[i]
    counts[0] += changed
    counts[1] += rounded
    counts[2] += _nonfinite(stored, n)


@njit(**STRICT, cache=True)
def _sum_result(
    deltas, found, active, exactly, delta, step, other_step, n, padded, has_other, sums, scaled, alone, shared, out,
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
    if not safe:
        _scaled(delta, common, padded, delta)
        _scaled(step, common, padded, step)
        if has_other:
            _scaled(other_step, common, padded, other_step)
    words = padded // 64
    once = exactly[1]
    for k in range(agents):
        scale = _scale(found[k, 2])
        own = deltas[k]
        if not safe:
            _scaled(deltas[k], scale, padded, scaled[0])
            own = scaled[0]
        mine = active[k]
        for w in range(words):
            alone[w] = mine[w] & once[w]
            shared[w] = mine[w] & ~once[w]
        regions(own, alone, shared, delta, step, padded, out)
        undo = 1 / np.float64(scale)
        both = undo / np.float64(common)
        sums[k], sums[agents + k], sums[2 * agents + k] = out[0] * (undo * undo), out[1] * both, out[2] * both
        sums[4 * agents + k], sums[5 * agents + k] = out[3] * (undo * undo), out[4] * both
        sums[3 * agents + k] = sums[2 * agents + k]
        if has_other:
            sums[3 * agents + k] = masked_dot(own, alone, other_step, padded) * both


@njit(**STRICT, cache=True)
def probe_pass(raw16, raw32, half, n, epsilon, counters, sums):
    """Counts of n elements into `counters` (compiled.InputCounters), sums per block into sums[:, blocks]."""
    agents = counters[0].shape[0]
    base, spare = np.empty(_WIDTH, np.float32), np.empty(_WIDTH, np.float32)
    deltas, scaled = np.empty((agents, _WIDTH), np.float32), np.empty((agents, _WIDTH), np.float32)
    active, positive = np.empty((agents, _WORDS), np.uint64), np.empty((agents, _WORDS), np.uint64)
    exactly = np.empty((agents + 1, _WORDS), np.uint64)
    kept, found = np.empty((agents, 2, _WIDTH), np.uint32), np.empty((agents, 4), np.int64)
    scratch = np.empty((2, max(agents, 8)))
    for block in range((n + BLOCK - 1) // BLOCK):
        if block > 0 and block % FLUSH == 0:
            flush(counters[5], counters[6])
        start = block * BLOCK
        m = min(n - start, BLOCK)
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        _differences(
            raw16, raw32, half, start, m, padded, epsilon, base, deltas, active, positive, kept, found, spare
        )  # fmt: skip
        _overlaps(active, padded // 64, exactly)
        _count_inputs(
            raw16, raw32, half, start, deltas, m, padded, active, positive, exactly, kept, found, counters,
            sums[:, block], scaled, scratch,
        )  # fmt: skip


# The signature is given so that the machine code can be kept on disk: `apply` is a pointer, not a part of it.
@njit(MERGE, **STRICT, cache=True)
def merge_pass(
    apply, raw16, raw32, half, n, epsilon, per_agent, constants, count_inputs, dtype, recode, stochastic, has_other,
    first, second, index, counters, in_sums, counts, out_sums, out16, out32, uniform_keys, sensitivities,
):  # fmt: skip
    """Merges n elements into out16 (dtype FLOAT16 or BFLOAT16) or out32 (FLOAT32), and counts the inputs (as
    probe_pass) and the result. `recode`: the base is stored in another dtype than the output's 16 bits."""
    agents = per_agent.shape[0]
    draws = uniform_keys.shape[0]
    inputs = np.empty((agents + draws + sensitivities.shape[0], _WIDTH), np.float32)
    deltas, scaled = inputs[:agents], np.empty((agents, _WIDTH), np.float32)
    singles = np.empty((9, _WIDTH), np.float32)
    base, delta, exact, stored, other = singles[0], singles[1], singles[2], singles[3], singles[4]
    stored_base, step, other_step, spare = singles[5], singles[6], singles[7], singles[8]
    unused = np.empty(BLOCK, np.uint16)
    active, positive = np.empty((agents, _WORDS), np.uint64), np.empty((agents, _WORDS), np.uint64)
    exactly = np.empty((agents + 1, _WORDS), np.uint64)
    alone, shared = np.empty(_WORDS, np.uint64), np.empty(_WORDS, np.uint64)
    kept, found = np.empty((agents, 2, _WIDTH), np.uint32), np.empty((agents, 4), np.int64)
    scratch = np.empty((2, max(agents, 8)))
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
        padded = (m + _ROWS - 1) // _ROWS * _ROWS
        _differences(
            raw16, raw32, half, start, m, padded, epsilon, base, deltas, active, positive, kept, found, spare
        )  # fmt: skip
        _overlaps(active, padded // 64, exactly)
        if count_inputs:
            if block > 0 and block % FLUSH == 0:
                flush(counters[5], counters[6])
            _count_inputs(
                raw16, raw32, half, start, deltas, m, padded, active, positive, exactly, kept, found, counters,
                in_sums[:, block], scaled, scratch,
            )  # fmt: skip
        for k in range(draws):
            _draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + start, m, inputs[agents + k])
        for k in range(sensitivities.shape[0]):
            inputs[agents + draws + k, :m] = sensitivities[k, start:stop]
        apply(inputs, per_agent, constants, m, delta)
        if dtype == BFLOAT16 and not stochastic and not recode and m % VECTOR == 0:
            finish_bf16(base, delta, m, out16[start:stop], exact, step, counts)
        else:
            for i in range(m):
                exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
            if dtype == FLOAT32:
                stored[:m] = exact[:m]
                out32[start:stop] = exact[:m]
            else:
                _round(dtype, exact, m, stochastic, first, second, index + start, stored, out16[start:stop])
            if recode:
                _round(dtype, base, m, False, first, second, 0, stored_base, unused)
            _finish(base, stored_base if recode else base, exact, stored, m, step, counts)
        if has_other:
            _round(dtype, exact, m, not stochastic, first, second, index + start, other, unused)
            for i in range(m):
                other_step[i] = other[i] - base[i]
        _sum_result(
            deltas, found, active, exactly, delta, step, other_step, m, padded, has_other, out_sums[:, block], scaled,
            alone, shared, scratch[0],
        )  # fmt: skip
