"""How far the line is: its observer, and the way there from the stream and the cache."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# what a stage does, in the words of a terminal
_DOING = {
    "join": "waiting for the other processes",
    "resolve": "looking up models and reading their headers",
    "calibration": "reading and tokenizing calibration data",
    "verify": "verifying what is there",
    "fetch": "fetching",
    "compile": "compiling for this machine (once)",
    "probe": "measuring what the agents changed",
    "select": "ranking updates",
    "sensitivity": "measuring sensitivities",
    "merge": "merging",
    "upload": "uploading",
    "card": "writing card and figures",
    "figure": "drawing the figure",
    "publish": "publishing",
    "commit": "waiting for the commit",
    "fetch model": "fetching the model",
    "fetch data": "fetching the data",
    "start lighteval": "starting lighteval",
    "load model": "loading the model",
    "generate": "generating answers",
    "score": "scoring",
    "results": "reading results",
    "watch": "looking for agents",
}


def doing(stage: str) -> str:
    """A stage in words; its name where there are none."""
    return _DOING.get(stage, stage)


class Observer(Protocol):
    """Watches the whole line; every method may raise to cancel."""

    def stage(self, name: str) -> None:
        """A stage begins: resolve, calibration (its data), verify (what is there already), fetch, compile, merge,
        card, publish, commit.
        """
        return

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        return

    def statistics(self, values: Mapping[str, Any]) -> None:
        """The statistics counted so far, as `summarize` gives them."""
        return

    def warning(self, message: str) -> None:
        return


class Unobserved(Observer):
    """An observer that looks away."""


class Unwatched(Unobserved):
    """An observer that looks away; warnings are Python's."""

    def warning(self, message: str) -> None:
        warnings.warn(message, stacklevel=2)


class OfRank(Unobserved):
    """What a process other than rank 0 tells: its warnings, with its rank."""

    def __init__(self, observer: Observer, rank: int) -> None:
        self._observer = observer
        self._rank = rank

    def warning(self, message: str) -> None:
        self._observer.warning(f"rank {self._rank}: {message}")


def of_rank(observer: Observer, rank: int) -> Observer:
    """Who watches process `rank` of a merge."""
    return OfRank(observer, rank) if rank else observer


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


def resolving(observer: Observer) -> Callable[[int, int], None]:
    """Tells how many models have been opened."""
    return lambda done, total: observer.progress("resolve", done, total, "models")


class Bridge:
    """Puts the stages of a merge in their order: its stream, its cache and its uploads tell one observer."""

    def __init__(self, observer: Observer) -> None:
        self.stage = observer.stage
        self.statistics = observer.statistics
        self.warning = observer.warning
        self._observer = observer
        self._stage = ""
        self._last: tuple[str, int, int, str] | None = None

    def fetching(self, done: int, total: int) -> None:
        """The merge waits for what it begins with; what else it needs is fetched meanwhile."""
        if not self._stage:
            self._stage = "fetch"
            self.stage("fetch")
        if self._stage == "fetch":
            self._observer.progress("fetch", done, total, "B")
            if done == total:
                self.merging()
        else:
            self.again()

    def merging(self) -> None:
        self._stage = "merge"
        self.stage("merge")

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage != "compile":
            self._last = (stage, done, total, unit)
            self.again()
            return
        if done == 0:
            self.stage("compile")
        self._observer.progress("compile", done, total, unit)
        if done == total and self._stage:
            self.stage(self._stage)

    def uploading(self, sent: int, total: int) -> None:
        """The merge waits for an upload."""
        if total:
            self._observer.progress("upload", sent, total, "B")
        else:
            self.again()

    def again(self) -> None:
        """Say once more how far it is, so that the observer can cancel."""
        if self._last is not None:
            self._observer.progress(*self._last)
