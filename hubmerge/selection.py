"""Exact order statistics of magnitudes, by streaming selection on float bit patterns in bounded memory.

Among non-negative floats the order of the values is the order of their bit patterns. The patterns' upper half is
counted in one pass, which finds the bin that holds the wanted rank; their lower half is counted within that bin in
a second pass, which finds the value. No sample, no sort: the result is the element itself. Memory is a few histograms
of 65,536 bins per agent and thread. magnitude_counts.py does the counting of both passes compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubmerge.counter_rng import Key, uniform
from hubmerge.counting import Float32, activity
from hubmerge.eager import ChunkInputs, decoded
from hubmerge.methods.base import Threshold

_LOW_BITS = 15  # of the 31 bits of a magnitude; 16 upper ones
_HIGH = 1 << 16
_LOW = 1 << _LOW_BITS

Counts = NDArray[np.int64]  # [m, 3]: row, bin, how often, of the bins that are not empty
CountChunks = Callable[[Callable[[ChunkInputs], Counts]], Iterator[Counts]]


@dataclass(frozen=True)
class Magnitudes:
    """Which magnitudes of a chunk a threshold ranks: one row per agent, or one of all for "private"."""

    threshold: Threshold
    epsilon: float
    compiled: bool = True  # the same counts in one pass, where there is one

    def count(self, chunk: ChunkInputs, wanted: Sequence[int] = ()) -> Counts:
        """The upper half of every pattern; with a `wanted` upper half per row, the lower half of its patterns."""
        of, bins = self.threshold.of, _LOW if wanted else _HIGH
        if self.compiled and of != "private":
            from hubmerge.magnitude_counts import count_magnitudes  # numba takes half a second to import

            drop = self.threshold.drop if of == "dropped" else None
            return count_magnitudes(chunk, wanted, shift=_LOW_BITS, bins=bins, drop=drop)
        found = []
        for number, row in enumerate(self.rows(chunk)):
            bits = _bits(row)
            counted = bits >> _LOW_BITS
            if wanted:
                counted = bits[counted == wanted[number]] & (_LOW - 1)
            filled = np.bincount(counted, minlength=1)
            place = np.flatnonzero(filled)
            found.append(np.stack([np.full_like(place, number), place, filled[place]], axis=1))
        return np.concatenate(found)

    def rows(self, chunk: ChunkInputs) -> list[Float32]:
        _, _, deltas = decoded(chunk)
        if self.threshold.of == "delta":
            return [np.abs(d) for d in deltas]
        if self.threshold.of == "dropped":
            p, rescale = np.float32(self.threshold.drop), np.float32(1.0 / (1.0 - self.threshold.drop))
            return [
                np.abs(np.where(_uniform(key, chunk) >= p, d * rescale, np.float32(0)))
                for key, d in zip(chunk.uniform_keys, deltas, strict=True)
            ]
        act = activity(deltas, self.epsilon)
        alone = act.count == 1
        return [np.concatenate([np.abs(d[alone & m]) for d, m in zip(deltas, act.masks, strict=True)])]


def select(magnitudes: Magnitudes, agents: int, passes: CountChunks) -> tuple[float, ...]:
    """The magnitude of the wanted rank, per agent; 0 where there is nothing to rank.

    `passes(count)` must yield `count(chunk)` for every chunk of the tensor or model; it is called twice.
    """
    rows = 1 if magnitudes.threshold.of == "private" else agents
    coarse = _total(passes(magnitudes.count), (rows, _HIGH))
    found = [_from_the_top(row, magnitudes.threshold.rank(int(row.sum()))) for row in coarse]
    wanted = [bin_ for bin_, _ in found]
    fine = _total(passes(lambda chunk: magnitudes.count(chunk, wanted)), (rows, _LOW))
    values = []
    for row, (bin_, rank) in zip(fine, found, strict=True):
        low, _ = _from_the_top(row, rank)
        bits = (bin_ << _LOW_BITS) | low
        values.append(float(np.uint32(bits).view(np.float32)) if row.any() else 0.0)
    return tuple(values * agents) if rows == 1 else tuple(values)


def _from_the_top(histogram: Counts, rank: int) -> tuple[int, int]:
    """The bin that holds the element of `rank` (1 is the largest), and its rank within that bin."""
    above = np.cumsum(histogram[::-1])
    place = int(np.searchsorted(above, max(1, rank)))
    place = min(place, len(histogram) - 1)
    before = int(above[place - 1]) if place else 0
    return len(histogram) - 1 - place, max(1, rank) - before


def _bits(values: Float32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def _uniform(key: Key, chunk: ChunkInputs) -> Float32:
    return uniform(key, chunk.start, len(chunk.raws[0]))


def _total(parts: Iterable[Counts], shape: tuple[int, int]) -> Counts:
    total = np.zeros(shape, dtype=np.int64)
    for part in parts:
        total[part[:, 0], part[:, 1]] += part[:, 2]  # no bin stands twice in a part
    return total
