"""What a merge takes of time, network, disk and memory, over all of its processes and all of its runs.

Every process notes in its journal what it has taken so far, with every line, every few seconds and at the end, under a
name of its own: a later note replaces the earlier one, so that nothing counts twice however often journals are adopted.
What was fetched is added up, as is the time of the runs, which is that of their rank 0; of memory and disk the largest
of all processes and runs counts.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hubmerge.errors import DiskError

if TYPE_CHECKING:
    from hubmerge.engine.journal import Journal
    from hubmerge.plan.disk import DiskGauge
    from hubmerge.sources.shard_cache import Fetched

NOTING_S = 3.0  # a process that is killed has fetched at most so much more than it noted
_PEAKS = frozenset(("high_water_bytes",))  # of Fetched; the others are counts


@dataclass(frozen=True)
class Usage:
    """One process in one run."""

    rank: int
    fetched: Mapping[str, int]  # Fetched.to_json
    peak_rss_bytes: int
    disk_high_water_bytes: int  # of all that it sees of the merge, what other processes put there included
    seconds: float = 0.0  # since it began

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        peaks = data["peak_rss_bytes"], data["disk_high_water_bytes"]
        return cls(data["rank"], data["fetched"], *peaks, data.get("seconds", 0.0))  # earlier versions noted no time


def total(usages: Collection[Usage], processes: int, budget_bytes: int | None) -> dict[str, Any]:
    """The part of a report's environment; `budget_bytes` of a process's inputs, None where nothing is fetched."""
    found: dict[str, Any] = {
        name: max((getattr(u, name) for u in usages), default=0) for name in ("peak_rss_bytes", "disk_high_water_bytes")
    }
    if budget_bytes is None:
        return found
    fetch: dict[str, int] = {}
    for usage in usages:
        for name, value in usage.fetched.items():
            fetch[name] = max(fetch.get(name, 0), value) if name in _PEAKS else fetch.get(name, 0) + value
    several = {"runs": sum(usage.rank == 0 for usage in usages), "processes": processes}
    several = {name: number for name, number in several.items() if number > 1}
    return {**found, "fetch": {**fetch, "budget_bytes": budget_bytes, **several}}


def spent(usages: Collection[Usage]) -> dict[str, Any]:
    """The time in a report's environment: of all runs, of each as far as it had noted when it ended."""
    runs = [usage.seconds for usage in usages if usage.rank == 0]
    return {"seconds": round(sum(runs), 3), **({"runs": len(runs)} if len(runs) > 1 else {})}


def facts(environment: Mapping[str, Any]) -> dict[str, int]:
    """The figures of a report's environment, for `--log-json`."""
    fetch = environment.get("fetch", {})
    names = ("bytes", "shards", "ranged_shards", "hits", "high_water_bytes")
    found = {"fetched_" + name: fetch.get(name, 0) for name in names}
    return {
        **found,
        **{name: environment[name] for name in ("disk_high_water_bytes", "peak_rss_bytes", "processes")},
        "runs": environment.get("runs", fetch.get("runs", 1)),
    }


def together(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of merges in one pass each, one after the other: what was fetched is added up, of the rest the largest counts."""
    found = dict(max(environments, key=lambda one: int(one["peak_rss_bytes"])))
    found["disk_high_water_bytes"] = max(one["disk_high_water_bytes"] for one in environments)
    if (runs := max(one.get("runs", 1) for one in environments)) > 1:
        found["runs"] = runs
    fetches = [one["fetch"] for one in environments if "fetch" in one]
    if fetches:
        largest = (*_PEAKS, "budget_bytes", "runs", "processes")
        names = dict.fromkeys(name for fetch in fetches for name in fetch)
        found["fetch"] = {
            name: (max if name in largest else sum)(fetch.get(name, 0) for fetch in fetches) for name in names
        }
    return found


def in_words(environment: Mapping[str, Any]) -> str:
    """The same in one line."""
    from hubmerge.markdown import size  # which the first lines of a command need not wait for

    found = facts(environment)
    parts = ["nothing fetched"]
    if "fetch" in environment:
        runs = f" in {found['runs']} runs" if found["runs"] > 1 else ""
        parts = [
            f"fetched {size(found['fetched_bytes'])}{runs} (shards: {found['fetched_shards']} whole, "
            f"{found['fetched_ranged_shards']} by ranges)",
            f"{found['fetched_hits']} found on disk by a later pass or run",
        ]
    largest = f" in the largest of {found['processes']} processes" if found["processes"] > 1 else ""
    parts += [
        f"disk at most {size(found['disk_high_water_bytes'])}",
        f"memory at most {size(found['peak_rss_bytes'])}{largest}",
    ]
    return ", ".join(parts)


def peak_rss_bytes() -> int:
    """Of this process, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Meter:
    """Notes in journals what this process takes."""

    def __init__(
        self, rank: int, fetched: Fetched, gauge: DiskGauge, journals: Iterable[Journal], began: float | None = None
    ) -> None:
        """`began`: when the run did, by `time.monotonic`; None: now."""
        self._rank = rank
        self._fetched = fetched
        self._gauge = gauge
        self._journals = tuple(journals)
        self._noted: Mapping[str, int] = fetched.to_json()
        self._began = time.monotonic() if began is None else began
        self._next = time.monotonic() + NOTING_S
        for journal in self._journals:
            journal.metered = self.now

    def now(self) -> Usage:
        seconds = round(time.monotonic() - self._began, 3)
        return Usage(self._rank, self._fetched.to_json(), peak_rss_bytes(), self._gauge.high_water_bytes, seconds)

    def tick(self) -> None:
        """Called often: note what was fetched, now and then."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + NOTING_S
            if self._fetched.to_json() != self._noted:
                self.note()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that ends early has fetched what it has fetched."""
        if error is not None:
            with suppress(DiskError):
                self.note()

    def note(self) -> None:
        usage = self.now()
        self._noted = usage.fetched
        for journal in self._journals:
            journal.note_usage(usage)
