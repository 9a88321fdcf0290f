"""Exact order statistics of magnitudes, by streaming selection on float bit patterns in bounded memory.

Among non-negative floats the order of the values is the order of their bit patterns. A pattern's key is its upper half
and one bit more, which tells whether its lower half is zero or not: the order of the keys is that of the patterns, and
an even key is that of one value alone. The keys are counted in one pass, which finds the key that holds the wanted
rank. Differences of bf16 models hardly ever need more bits, so that mostly this is the value; only for odd keys the
lower halves are counted within the key in a second pass. No sample, no sort: the result is the element itself. Memory
is a few histograms of 65,536 bins per agent and thread. pass.c does the counting of both passes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.counting import activity
from hubmerge.engine.definition import ChunkInputs, decoded
from hubmerge.methods.base import Threshold
from hubmerge.numerics.counter_rng import uniform
from hubmerge.numerics.dtypes import Float32
from hubmerge.statistics.statistics import Counts

_LOWER_BITS = 16  # of the 31 bits of a magnitude; 15 upper ones
_LOWER = (1 << _LOWER_BITS) - 1
BINS = 1 << 16  # of keys, and of lower halves

BinCounts = NDArray[np.int64]  # [m, 3]: row, bin, how often, of the bins that are not empty


@dataclass(frozen=True)
class Magnitudes:
    """Which magnitudes of a chunk a threshold ranks: one row per agent, or one of all for "private"."""

    threshold: Threshold
    epsilon: float
    fast: bool = True  # the same counts in one pass

    def count(self, chunk: ChunkInputs, wanted: Sequence[int] = ()) -> BinCounts:
        """The key of every pattern; with a `wanted` key per row, the lower half of what has it, if it is odd."""
        if self.fast:
            from hubmerge.engine.fast import count_magnitudes  # which most commands do without

            return count_magnitudes(chunk, wanted, self.threshold, self.epsilon)
        found = []
        for number, row in enumerate(self.rows(chunk)):
            bits = np.ascontiguousarray(row).view(np.uint32)
            counted = keys = (bits >> _LOWER_BITS << 1) | ((bits & _LOWER) != 0)
            if wanted:
                counted = bits[(keys == wanted[number]) & (keys % 2 == 1)] & _LOWER
            filled = np.bincount(counted, minlength=1)
            place = np.flatnonzero(filled)
            found.append(np.stack([np.full_like(place, number), place, filled[place]], axis=1))
        return np.concatenate(found)

    def compared(self, agent: int, value: np.float32) -> float:
        """What the method compares with, of a value of `rows`. A drop's rescaling keeps the order, so it is done to the
        ranked element alone; were it done to all of them, their patterns would be longer."""
        if self.threshold.of != "dropped":
            return float(value)
        with np.errstate(all="ignore"):
            return float(value * np.float32(1.0 / (1.0 - self.threshold.drop_of(agent))))

    def rows(self, chunk: ChunkInputs) -> list[Float32]:
        _, deltas = decoded(chunk)
        if self.threshold.of == "delta":
            return [np.abs(d) for d in deltas]
        if self.threshold.of == "dropped":
            drops = [np.float32(self.threshold.drop_of(k)) for k in range(len(deltas))]
            kept = [
                uniform(k, chunk.start, len(deltas[0])) >= p for k, p in zip(chunk.uniform_keys, drops, strict=True)
            ]
            return [np.abs(np.where(own, d, np.float32(0))) for own, d in zip(kept, deltas, strict=True)]
        act = activity(deltas, self.epsilon)
        alone = act.count == 1
        return [np.concatenate([np.abs(d[alone & m]) for d, m in zip(deltas, act.masks, strict=True)])]


class Selection:
    """The magnitude of the wanted rank, per agent, from the counts of one pass over a tensor or model, or of two.

    Every chunk's `count` goes to `add`; `end_pass` follows the last one of a pass. `values` are there after one pass
    or two; 0 where there is nothing to rank.
    """

    def __init__(self, magnitudes: Magnitudes, agents: int) -> None:
        self.values: tuple[float, ...] | None = None
        self.magnitudes = magnitudes
        self._agents = agents
        self._rows = 1 if magnitudes.threshold.of == "private" else agents
        self._total: Counts | None = None  # only while a pass is counted: megabytes
        self._found: list[tuple[int, int]] = []  # per row: the key, and the rank within it

    def count(self, chunk: ChunkInputs) -> BinCounts:
        """What a chunk adds to this pass; for any thread."""
        return self.magnitudes.count(chunk, [key for key, _ in self._found])

    def add(self, counts: BinCounts) -> None:
        if self._total is None:
            self._total = np.zeros((self._rows, BINS), dtype=np.int64)
        self._total[counts[:, 0], counts[:, 1]] += counts[:, 2]  # no bin stands twice in one count

    def end_pass(self, added: Callable[[Counts], Counts] = lambda total: total) -> None:
        """`added`: to the counts of others, who counted other chunks."""
        total = added(np.zeros((self._rows, BINS), dtype=np.int64) if self._total is None else self._total)
        self._total = None
        if self._found:
            lower = [_from_the_top(row, rank)[0] for row, (_, rank) in zip(total, self._found, strict=True)]
        else:
            rank = self.magnitudes.threshold.rank_of
            self._found = [_from_the_top(row, rank(number, int(row.sum()))) for number, row in enumerate(total)]
            if any(key % 2 for key, _ in self._found):
                return
            lower = [0] * self._rows
        bits = [(key >> 1 << _LOWER_BITS) | (key % 2 * low) for (key, _), low in zip(self._found, lower, strict=True)]
        values = [self.magnitudes.compared(k, np.uint32(b).view(np.float32)) for k, b in enumerate(bits)]
        self.values = tuple(values * self._agents) if self._rows == 1 else tuple(values)


def _from_the_top(histogram: Counts, rank: int) -> tuple[int, int]:
    """The bin that holds the element of `rank` (1 is the largest), and its rank within that bin."""
    filled = np.flatnonzero(histogram)[::-1]  # few of all bins
    if not filled.size:
        return 0, rank
    above = np.cumsum(histogram[filled])
    place = min(int(np.searchsorted(above, max(1, rank))), len(filled) - 1)
    before = int(above[place - 1]) if place else 0
    return int(filled[place]), max(1, rank) - before
