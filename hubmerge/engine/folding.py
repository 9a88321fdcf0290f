"""The chunks of one tensor, counted one by one, become one tally.

Counts may be added in any order; the blocks' real sums are added one after the other, in the order of the tensor
(counting.py). A tensor of one chunk costs nothing beside its tally.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from hubmerge.engine.counting import Counted, added_in_order
from hubmerge.statistics.statistics import ResultTally, Sums, Tally
from hubmerge.statistics.tally_sums import TallySum

T = TypeVar("T", Tally, ResultTally)


class TensorFold(Generic[T]):
    """Takes the chunks of a tensor in their order. `zero` is the tally of nothing, and `fold` what adds a chunk to a
    tally: counting.fold_inputs or fold_result."""

    def __init__(self, zero: T, fold: Callable[[T, Counted[T]], T]) -> None:
        self._zero: T = zero
        self._fold: Callable[[T, Counted[T]], T] = fold
        self._counts: TallySum[T] | None = None
        self._sums: Sums | None = None

    def add(self, chunk: Counted[T]) -> None:
        if self._counts is None or self._sums is None:
            self._counts, self._sums = TallySum(chunk.tally, counts=True), np.zeros(len(chunk.sums))
        else:
            self._counts.add(chunk.tally)
        self._sums = added_in_order(self._sums, chunk.sums)

    def tally(self) -> T:
        """Of all chunks; only once."""
        if self._counts is None or self._sums is None:
            return self._zero
        # the running sums began at zero, to which adding them changes nothing
        return self._fold(self._zero, Counted(self._counts.value(), self._sums[:, None]))
