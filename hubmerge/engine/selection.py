"""Exact order statistics of magnitudes, by streaming selection on float bit patterns in bounded memory.

Among non-negative floats the order of the values is the order of their bit patterns. A pattern's key is its upper half
and one bit more, which tells whether its lower half is zero or not: the order of the keys is that of the patterns, and
an even key is that of one value alone. The keys are counted in one pass, which finds the key that holds the wanted
rank. Differences of bf16 models hardly ever need more bits, so that mostly this is the value; only for odd keys the
lower halves are counted within the key in a second pass. No sample, no sort: the result is the element itself. Memory
is a few histograms of 65,536 bins per agent and thread. pass.c does the counting of both passes, too.
"""

from collections.abc import Callable

import numpy as np

from hubmerge.engine.definition import LOWER_BITS, BinCounts
from hubmerge.methods.base import Threshold
from hubmerge.statistics.statistics import Counts

BINS = 1 << 16  # of keys, and of lower halves


class Selection:
    """The magnitude of the wanted rank, per agent, from the counts of one pass over a tensor or model, or of two.

    What `count_magnitudes` gives of every chunk goes to `add`; `end_pass` follows the last one of a pass. `values` are
    there after one pass or two; 0 where there is nothing to rank.
    """

    def __init__(self, threshold: Threshold, agents: int) -> None:
        self.threshold = threshold
        self.values: tuple[float, ...] | None = None
        self._agents = agents
        self._rows = 1 if threshold.of == "private" else agents
        self._total: Counts | None = None  # only while a pass is counted: megabytes
        self._found: list[tuple[int, int]] = []  # per row: the key, and the rank within it

    @property
    def wanted(self) -> list[int]:
        """The key per row whose lower halves this pass counts; in the first one, which counts keys, there is none."""
        return [key for key, _ in self._found]

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
            rank = self.threshold.rank_of
            self._found = [_from_the_top(row, rank(number, int(row.sum()))) for number, row in enumerate(total)]
            if any(key % 2 for key, _ in self._found):
                return
            lower = [0] * self._rows
        bits = [(key >> 1 << LOWER_BITS) | (key % 2 * low) for (key, _), low in zip(self._found, lower, strict=True)]
        values = [self._compared(k, np.uint32(b).view(np.float32)) for k, b in enumerate(bits)]
        self.values = tuple(values * self._agents) if self._rows == 1 else tuple(values)

    def _compared(self, agent: int, value: np.float32) -> float:
        """What the method compares with, of a ranked value. A drop's rescaling keeps the order, so it is done to the
        ranked element alone; were it done to all of them, their patterns would be longer."""
        if self.threshold.of != "dropped":
            return float(value)
        with np.errstate(all="ignore"):
            return float(value * np.float32(1.0 / (1.0 - self.threshold.drop_of(agent))))


def _from_the_top(histogram: Counts, rank: int) -> tuple[int, int]:
    """The bin that holds the element of `rank` (1 is the largest), and its rank within that bin."""
    filled = np.flatnonzero(histogram)[::-1]  # few of all bins
    if not filled.size:
        return 0, rank
    above = np.cumsum(histogram[filled])
    place = min(int(np.searchsorted(above, max(1, rank))), len(filled) - 1)
    before = int(above[place - 1]) if place else 0
    return int(filled[place]), max(1, rank) - before
