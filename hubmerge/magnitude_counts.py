"""The two counting passes of selection.py, fused over the agents and compiled by numba; the same counts as there.

A block at a time: what is not zero (in the second pass: what lies in the wanted bin) is packed together first, so
that a sparse agent costs no more than the scan, and random drops are drawn for those elements only. Each row is
counted in _COPIES histograms by turns, because the updates of a bf16 checkpoint share few bins and each addition to
a bin waits for the last one. Only bins that are not empty leave the pass, as triples (row, bin, count).

This file calls no compiled function of another one: numba's cache would not notice when that one changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hubmerge.counter_rng import Key
from hubmerge.dtypes import decode
from hubmerge.eager import ChunkInputs
from hubmerge.vector_code import VECTOR, pack_equal, pack_nonzero

_BLOCK = 4096
_COPIES = 4
_STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False, "cache": True}
_thread = threading.local()  # .scratch: histograms, all zero between two passes


@njit(**_STRICT)
def _load(raw16, raw32, row, start, n, values):
    """values[n] = one block of one model as float32; raw16 holds BF16, else raw32 the values."""
    if raw16.shape[0] > 0:
        source = raw16[row, start : start + n]
        bits = values[:n].view(np.uint32)
        for i in range(n):
            bits[i] = np.uint32(source[i]) << np.uint32(16)
    else:
        values[:n] = raw32[row, start : start + n]


@njit(**_STRICT)
def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**_STRICT)
def _survivors(places, found, index, first, second, p, kept):
    """Leaves in kept[:…] what the random drop leaves; the draws are counter_rng.uniform's."""
    left = np.int64(0)
    for j in range(found):
        x = (np.uint64(index) + np.uint64(places[j])) * np.uint64(0x9E3779B97F4A7C15) + first
        drawn = np.float32(_mix(_mix(x) ^ second) >> np.uint64(40)) * np.float32(2.0**-24)
        kept[left] = kept[j]
        left += np.int64(drawn >= p)
    return left


@njit(**_STRICT)
def _pack(values, n, fine, wanted, shift, kept):
    """The non-zero magnitudes of values[n] (if `fine`, those in bin `wanted`); returns how many. n: whole vectors."""
    bits = values.view(np.uint32)
    found = np.int64(0)
    if fine:
        for i in range(0, n, VECTOR):
            found += pack_equal(bits, i, kept, found, shift, wanted)
    else:
        for i in range(0, n, VECTOR):
            found += pack_nonzero(bits, i, kept, found)
    return found


@njit(**_STRICT)
def _pack_places(values, n, fine, wanted, shift, kept, places):
    """_pack, and the elements' places."""
    bits = values.view(np.uint32)
    found = np.int64(0)
    for i in range(n):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        kept[found] = magnitude
        places[found] = i
        found += np.int64(magnitude != 0 and (not fine or (magnitude >> shift) == wanted))
    return found


@njit(**_STRICT)
def _count(raw16, raw32, n, agents, wanted, shift, drop, p, rescale, keys, index, scratch):
    """Adds to scratch[agents, _COPIES, bins]: patterns by their upper bits where wanted is empty, else the lower bits
    of those whose upper ones are wanted[k]."""
    fine = wanted.shape[0] > 0
    mask = np.uint32((1 << shift) - 1)
    base, values = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    kept, places = np.empty(_BLOCK + VECTOR, np.uint32), np.empty(_BLOCK + 1, np.uint32)
    low = np.uint32(shift)
    for block in range((n + _BLOCK - 1) // _BLOCK):
        start = block * _BLOCK
        m = min(n - start, _BLOCK)
        _load(raw16, raw32, 0, start, m, base)
        for k in range(agents):
            _load(raw16, raw32, k + 1, start, m, values)
            if drop:
                for i in range(m):
                    values[i] = (values[i] - base[i]) * rescale
            else:
                for i in range(m):
                    values[i] = values[i] - base[i]
            whole = (m + VECTOR - 1) // VECTOR * VECTOR
            values[m:whole] = np.float32(0)
            bin_ = np.uint32(wanted[k]) if fine else np.uint32(0)
            # zeros are counted as what is left, so that bin 0 needs everything that is not zero
            if not drop:
                found = _pack(values, whole, fine and bin_ != 0, bin_, low, kept)
            else:
                found = _pack_places(values, m, fine and bin_ != 0, bin_, low, kept, places)
                found = _survivors(places, found, index + start, keys[k, 0], keys[k, 1], p, kept)
            row = scratch[k]
            if not fine:
                for j in range(found):
                    row[j % _COPIES, kept[j] >> low] += np.uint32(1)
                row[0, 0] += np.uint32(m - found)
            elif bin_ != 0:
                for j in range(found):
                    row[j % _COPIES, kept[j] & mask] += np.uint32(1)
            else:
                row[0, 0] += np.uint32(m - found)
                for j in range(found):
                    if (kept[j] >> low) == 0:
                        row[0, kept[j] & mask] += np.uint32(1)


@njit(**_STRICT)
def _take(scratch):
    """[bins that are not empty, 3]: row, bin, count; leaves scratch empty."""
    rows, copies, bins = scratch.shape
    filled = np.int64(0)
    for row in range(rows):
        for copy in range(1, copies):
            for i in range(bins):
                scratch[row, 0, i] += scratch[row, copy, i]
            scratch[row, copy] = np.uint32(0)
        for i in range(bins):
            filled += np.int64(scratch[row, 0, i] != 0)
    out = np.empty((filled, 3), np.int64)
    place = 0
    for row in range(rows):
        for i in range(bins):
            if scratch[row, 0, i] != 0:
                out[place, 0], out[place, 1], out[place, 2] = row, i, scratch[row, 0, i]
                place += 1
        scratch[row, 0] = np.uint32(0)
    return out


def count_magnitudes(
    chunk: ChunkInputs, wanted: Sequence[int], *, shift: int, bins: int, drop: float | None
) -> NDArray[np.int64]:
    """[m, 3] (agent, bin, count) of the bit patterns of every agent's |δ|, after the random drop unless it is None.

    A bin is the pattern without its lower `shift` bits; with one `wanted` bin per agent, the lower bits of what lies
    in it.
    """
    agents = len(chunk.raws) - 1
    none16, none32 = np.empty((0, 0), np.uint16), np.empty((0, 0), np.float32)
    kinds = set(chunk.dtypes)
    if kinds == {"BF16"} or kinds == {"F32"}:
        stored: NDArray[Any] = np.stack(chunk.raws) if chunk.stacked is None else chunk.stacked
    else:
        stored = np.stack([decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True)])
    raw16, raw32 = (stored, none32) if kinds == {"BF16"} else (none16, stored)
    scratch = _scratch(agents, bins)
    p = np.float32(drop or 0.0)
    rescale = np.float32(1.0 / (1.0 - (drop or 0.0)))
    _count(
        raw16, raw32, len(chunk.raws[0]), agents, np.array(wanted, dtype=np.int64), shift, drop is not None, p, rescale,
        _keys(chunk.uniform_keys, agents), chunk.start, scratch,
    )  # fmt: skip
    found: NDArray[np.int64] = _take(scratch)
    return found


def _scratch(agents: int, bins: int) -> NDArray[np.uint32]:
    """This thread's histograms [agents, _COPIES, bins]; made once, since fresh pages cost more than counting."""
    needed = agents * _COPIES * bins
    kept: NDArray[np.uint32] | None = getattr(_thread, "scratch", None)
    if kept is None or kept.size < needed:
        kept = _thread.scratch = np.zeros(needed, np.uint32)
    return kept[:needed].reshape(agents, _COPIES, bins)


def _keys(keys: Sequence[Key], agents: int) -> NDArray[np.uint64]:
    if not keys:
        return np.zeros((agents, 2), np.uint64)
    return np.array([(k.first, k.second) for k in keys], dtype=np.uint64)
