"""How far the line is: its observer, and the way there from the stream and the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hubmerge.statistics import Tally
from hubmerge.summary import summarize

_SUMMARY_S = 0.5  # between two looks at the statistics on the way: a summary of many agents takes milliseconds


class Observer(Protocol):
    """Watches the whole line; every method may raise to cancel."""

    def stage(self, name: str) -> None:
        """A stage begins: resolve, plan, verify (what an earlier run finished), fetch, merge, card, publish."""

    def progress(self, stage: str, done: int, total: int, unit: str) -> None: ...

    def statistics(self, values: Mapping[str, Any]) -> None:
        """The statistics counted so far, as `summarize` gives them."""

    def warning(self, message: str) -> None: ...


def verifying(observer: Observer) -> Callable[[int, int], None]:
    """Tells how many bytes of finished shards have been read again: a stage of its own, where there are any."""
    begun = False

    def tell(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            observer.stage("verify")
        observer.progress("verify", done, total, "B")

    return tell


class Bridge:
    """From the stream's and the cache's observers to the line's, all in the caller's thread."""

    def __init__(self, observer: Observer) -> None:
        self.labels: tuple[str, ...] = ()
        self.ticking: Callable[[], None] = lambda: None  # called whenever the line is told anything
        self._observer = observer
        self._stage = ""
        self._last: tuple[str, int, int, str] | None = None
        self._next_summary = 0.0

    def fetching(self, done: int, total: int) -> None:
        """The merge waits for what it begins with; what else it needs is fetched meanwhile."""
        self.ticking()
        if not self._stage:
            self._stage = "fetch"
            self._observer.stage("fetch")
        if self._stage == "fetch":
            self._observer.progress("fetch", done, total, "B")
            if done == total:
                self.merging()
        else:
            self.again()

    def merging(self) -> None:
        self._stage = "merge"
        self._observer.stage("merge")

    def progress(self, stage: str, done: int, total: int) -> None:
        self.ticking()
        self._last = (stage, done, total, "elements")
        self.again()

    def again(self) -> None:
        """Say once more how far it is, so that the observer can cancel."""
        if self._last is not None:
            self._observer.progress(*self._last)

    def counted(self, total: Tally) -> None:
        """Now and then: what was counted in the end is told by whoever runs the merge."""
        if (now := time.monotonic()) >= self._next_summary:
            self._next_summary = now + _SUMMARY_S
            self._observer.statistics(summarize(total, self.labels))

    def warning(self, message: str) -> None:
        self._observer.warning(message)
