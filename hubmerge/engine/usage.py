"""What a run of a merge took of network, disk and memory, over all of its processes.

A merge that was cut short and resumed says what its last run took, and that there were earlier ones.
"""

import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hubmerge.plan.disk import DiskGauge
from hubmerge.sources.shard_cache import Fetched

_PEAKS = ("high_water_bytes",)  # of Fetched; the others are counts


def usage_now(fetched: Fetched, gauge: DiskGauge) -> dict[str, Any]:
    """What this process has taken so far, as plain JSON; the gauge sees what other processes put on the disk, too."""
    return {
        "peak_rss_bytes": peak_rss_bytes(),
        "disk_high_water_bytes": gauge.high_water_bytes,
        "fetch": asdict(fetched),
    }


def total(processes: Sequence[Mapping[str, Any]], budget_bytes: int | None) -> dict[str, Any]:
    """The part of a report's environment; `budget_bytes` of a process's inputs, None where nothing is fetched."""
    found: dict[str, Any] = {
        name: max(usage[name] for usage in processes) for name in ("peak_rss_bytes", "disk_high_water_bytes")
    }
    if budget_bytes is None:
        return found
    several = {"processes": len(processes)} if len(processes) > 1 else {}
    fetch = _added_up([usage["fetch"] for usage in processes], _PEAKS)
    return {**found, "fetch": {**fetch, "budget_bytes": budget_bytes, **several}}


def together(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of merges in one pass each, one after the other: what was fetched is added up, of the rest the largest counts."""
    found = dict(max(environments, key=lambda one: int(one["peak_rss_bytes"])))
    found["disk_high_water_bytes"] = max(one["disk_high_water_bytes"] for one in environments)
    if fetches := [one["fetch"] for one in environments if "fetch" in one]:
        found["fetch"] = _added_up(fetches, (*_PEAKS, "budget_bytes", "processes"))
    return found


def _added_up(fetches: Sequence[Mapping[str, int]], largest: Sequence[str]) -> dict[str, int]:
    """Sums of the numbers by name, but of those in `largest` the largest."""
    names = dict.fromkeys(name for fetch in fetches for name in fetch)
    return {name: (max if name in largest else sum)(fetch.get(name, 0) for fetch in fetches) for name in names}


def facts(environment: Mapping[str, Any]) -> dict[str, int]:
    """The figures of a report's environment, for `--log-json`."""
    fetch = environment.get("fetch", {})
    names = ("bytes", "shards", "ranged_shards", "hits", "high_water_bytes")
    found = {"fetched_" + name: fetch.get(name, 0) for name in names}
    return {**found, **{name: environment[name] for name in ("disk_high_water_bytes", "peak_rss_bytes", "processes")}}


def in_words(environment: Mapping[str, Any]) -> str:
    """The same in one line."""
    from hubmerge.text.markdown import size  # which the first lines of a command need not wait for

    found = facts(environment)
    parts = ["nothing fetched"]
    if "fetch" in environment:
        parts = [
            f"fetched {size(found['fetched_bytes'])} (shards: {found['fetched_shards']} whole, "
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
    """Of this program, so far. What getrusage says counts the process that started it, too: the app, for a job."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
