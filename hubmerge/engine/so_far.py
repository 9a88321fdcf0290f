"""What has been counted so far, for who watches a merge or a probe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import SimpleQueue

from hubmerge.engine.progress import Observer
from hubmerge.statistics.statistics import LayerDensities, Tally, zero_tally
from hubmerge.statistics.summary import summarize
from hubmerge.statistics.tally_sums import TallySum

_SUMMARY_S = 0.5  # between two looks at the statistics on the way: a summary of many agents takes milliseconds


class CountedSoFar:
    """The statistics so far, of agents with these `labels`: tensors come from any thread, one tells the observer."""

    def __init__(self, observer: Observer, labels: Sequence[str]) -> None:
        self._observer = observer
        self._labels = labels
        self._total = TallySum(zero_tally(len(labels)))
        self._layers = LayerDensities()
        self._new: SimpleQueue[tuple[str, Tally]] = SimpleQueue()
        self._next = 0.0

    def add(self, name: str, tally: Tally) -> None:
        """All of tensor `name` has been counted."""
        self._new.put((name, tally))

    def tell(self) -> None:
        """Tell what is new, now and then."""
        if self._new.empty() or time.monotonic() < self._next:
            return
        while not self._new.empty():
            name, tally = self._new.get()
            self._total.add(tally)
            self._layers.add(name, tally)
        self._observer.statistics({**summarize(self._total.value(), self._labels), "layers": self._layers.values()})
        self._next = time.monotonic() + _SUMMARY_S
