"""The counting passes of selection.py, fused over the agents and compiled by numba; the same counts as there.

A block at a time: the keys of what is not zero (in the second pass: the lower halves of what has the wanted key) are
packed together first, so that a sparse agent costs no more than the scan, and random drops are drawn for those elements
only. Each row is counted in KEY_COPIES histograms by turns, because the updates of a bf16 checkpoint share few keys and
each addition to a bin waits for the last one. Only bins that are not empty leave the pass: triples (row, bin, count).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hubmerge.counter_rng import GOLDEN
from hubmerge.engine.compiled.adapters import INNER, array_at
from hubmerge.engine.compiled.layout import KEY_BLOCK, KEYS, PRIVATE_BLOCK
from hubmerge.engine.compiled.rounding import mix, mix_upper
from hubmerge.engine.compiled.vector_code import pack_keys, pack_lower, pack_words, widen


@njit(**INNER)
def _survivors(places, found, index, first, second, bound, packed):
    """Leaves in places[:…] those of packed[:found] that the random drop leaves: counter_rng.uniform's draw is at
    least bound · 2⁻²⁴. Elements behind the last ones are overwritten."""
    start = np.uint64(index) * np.uint64(GOLDEN) + first
    for j in range(found):
        x = np.uint64(places[j]) * np.uint64(GOLDEN) + start
        drawn = mix_upper(mix(x) ^ second) >> np.uint64(40)
        packed[j] = packed[j] if drawn >= bound else np.uint16(0)
    packed[found : found + KEYS] = np.uint16(0)
    left = np.int64(0)
    for j in range(0, found, KEYS):
        left += pack_words(packed, j, places, left)
    return left


@njit(**INNER)
def _pack(base, agent, fine, wanted, packed, places):
    """Keys of the differences that are not zero (if `fine`, lower halves of those with key `wanted`) and, unless it is
    None, their places; returns how many."""
    n = len(base)
    whole = n - n % KEYS
    found = np.int64(0)
    if fine:
        for i in range(0, whole, KEYS):
            found += pack_lower(base, agent, i, wanted, packed, places, found)
    else:
        for i in range(0, whole, KEYS):
            found += pack_keys(base, agent, i, packed, places, found)
    return found


@njit(**INNER)
def _count(packed, found, row):
    """One addition each to row[KEY_COPIES, bins]; packed[:found] is read eight at a time."""
    words = packed.view(np.uint64)
    mask = np.uint64(0xFFFF)
    for i in range(0, found // 8 * 2, 2):
        first, second = words[i], words[i + 1]
        row[0, first & mask] += np.uint32(1)
        row[1, (first >> np.uint64(16)) & mask] += np.uint32(1)
        row[2, (first >> np.uint64(32)) & mask] += np.uint32(1)
        row[3, first >> np.uint64(48)] += np.uint32(1)
        row[4, second & mask] += np.uint32(1)
        row[5, (second >> np.uint64(16)) & mask] += np.uint32(1)
        row[6, (second >> np.uint64(32)) & mask] += np.uint32(1)
        row[7, second >> np.uint64(48)] += np.uint32(1)
    for i in range(found // 8 * 8, found):
        row[0, packed[i]] += np.uint32(1)


@njit(**INNER)
def _extend(packed, found, span):
    """span[2] = the smallest and the largest bin so far."""
    low, high = span[0], span[1]
    for i in range(found):
        low = packed[i] if packed[i] < low else low
        high = packed[i] if packed[i] > high else high
    span[0], span[1] = low, high


@njit(**INNER)
def count_all(base, agents, wanted, drop, bound, draw_keys, index, scratch, spans, kept, last):
    """Adds to scratch[K, KEY_COPIES, bins]: keys where wanted is empty, else the lower halves of those whose key is
    wanted[k], unless that is even. spans[K, 2] are the smallest and the largest bin, except 0.

    The agents lie at the addresses agents[K], as long as base[n] and of its dtype: uint16 (BF16) or float32. If `drop`,
    what _survivors drops with draw_keys[K, 2] counts as zero; element 0 is `index` of its tensor.
    kept[2, KEY_BLOCK + 2 · KEYS] and last[2, KEYS] are scratch."""
    n, fine = len(base), wanted.shape[0] > 0
    packed, places = kept[0], kept[1]
    for start in range(0, n, KEY_BLOCK):
        stop = min(n, start + KEY_BLOCK)
        whole = start + (stop - start) // KEYS * KEYS
        for k in range(agents.shape[0]):
            key = wanted[k] if fine else np.uint16(1)
            if key % 2 == 0:
                continue
            agent = array_at(agents[k], (n,), base.dtype)
            for part in range(2):
                first, end = (start, whole) if part == 0 else (whole, stop)
                if first == end:
                    continue
                if part == 0:
                    old, new = base[first:end], agent[first:end]
                else:
                    last[:] = 0
                    for i in range(end - first):
                        last[0, i], last[1, i] = base[first + i], agent[first + i]
                    old, new = last[0], last[1]
                if drop:
                    found = _pack(old, new, fine, key, packed, places)
                    counted = places
                    found = _survivors(places, found, index + first, draw_keys[k, 0], draw_keys[k, 1], bound, packed)
                else:
                    found = _pack(old, new, fine, key, packed, None)
                    counted = packed
                _count(counted, found, scratch[k])
                _extend(counted, found, spans[k])
                if not fine:
                    scratch[k, 0, 0] += np.uint32(end - first - found)
    return 0


@njit(**INNER)
def count_private(base, agents, epsilon, wanted, scratch, spans, kept, magnitudes, nothing, active):
    """As count_all, of all agents in one row: the magnitudes of elements where one agent alone is active.
    magnitudes[K, PRIVATE_BLOCK] and active[PRIVATE_BLOCK] are scratch, nothing[PRIVATE_BLOCK] is zero."""
    fine = wanted.shape[0] > 0
    key = wanted[0] if fine else np.uint16(1)
    if key % 2 == 0:
        return 0
    n, packed, row, span = len(base), kept[0], scratch[0], spans[0]
    for start in range(0, n, PRIVATE_BLOCK):
        m = min(n - start, PRIVATE_BLOCK)
        padded = (m + KEYS - 1) // KEYS * KEYS
        active[:m] = np.uint8(0)
        old = base[start : start + m]
        for k in range(agents.shape[0]):
            new, own = array_at(agents[k], (n,), base.dtype)[start : start + m], magnitudes[k]
            for i in range(m):
                own[i] = abs(widen(new[i]) - widen(old[i]))
                active[i] += np.uint8(own[i] > epsilon)
        for k in range(agents.shape[0]):
            own = magnitudes[k]
            for i in range(m):
                own[i] = own[i] if active[i] == 1 and own[i] > epsilon else np.float32(0)
            own[m:padded] = np.float32(0)
            found = _pack(nothing[:padded], own[:padded], fine, key, packed, None)
            _count(packed, found, row)
            _extend(packed, found, span)
    return 0


@njit(**INNER)
def add_copies(scratch, spans):
    """Leaves the sums of all copies in scratch[:, 0], the others empty; returns how many bins are not."""
    rows, copies, _ = scratch.shape
    filled = np.int64(0)
    for row in range(rows):
        low, end = np.int64(spans[row, 0]), np.int64(spans[row, 1]) + 1
        total = scratch[row, 0, low:end]
        for copy in range(1, copies):
            part = scratch[row, copy, low:end]
            for i in range(len(total)):
                total[i] += part[i]
                part[i] = np.uint32(0)
        filled += np.int64(scratch[row, 0, 0] != 0)
        for i in range(len(total)):
            filled += np.int64(total[i] != 0)
    return filled


@njit(**INNER)
def take(scratch, spans, out):
    """out[bins that are not empty, 3]: row, bin, count; leaves scratch empty."""
    place = 0
    for row in range(scratch.shape[0]):
        zeros = scratch[row, 0, 0]
        if zeros != 0:
            out[place, 0], out[place, 1], out[place, 2] = row, 0, zeros
            scratch[row, 0, 0] = np.uint32(0)
            place += 1
        for i in range(np.int64(spans[row, 0]), np.int64(spans[row, 1]) + 1):
            if scratch[row, 0, i] != 0:
                out[place, 0], out[place, 1], out[place, 2] = row, i, scratch[row, 0, i]
                scratch[row, 0, i] = np.uint32(0)
                place += 1
    return place
