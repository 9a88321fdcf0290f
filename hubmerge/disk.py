"""Disk: what a merge may take, what it needs at least, and what it took.

A limit (or what is free) covers everything that a merge writes: fetched inputs and output shards. The outputs come
first: all of them where they stay, two shards where each is uploaded and deleted. What is left is the budget of the
inputs, and any budget will do, because shards that do not fit in are read by ranges.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hubmerge.errors import DiskError
from hubmerge.plan import Plan

DISK_MARGIN_BYTES = 64 * 1024 * 1024  # journal, card, database
SHARDS_ON_DISK = 2  # of an output that is uploaded: one on its way, one being written or waiting


def output_need(plan: Plan, *, uploaded: bool) -> int:
    """Bytes of output that lie on disk at once."""
    if not uploaded:
        return plan.output_bytes
    return sum(sorted(s.size for s in plan.shards)[-SHARDS_ON_DISK:])


def input_budget(
    plans: Sequence[Plan], folders: Sequence[Path], cache: Path, limit: int | None, *, uploaded: bool = False
) -> int:
    """Bytes that fetched inputs may take; DiskError when not even the outputs fit in.

    `limit`: of everything that these merges write, None for what is free.
    """
    needed = sum(output_need(plan, uploaded=uploaded) for plan in plans)
    free = shutil.disk_usage(folders[0]).free
    available = free + used_bytes((*folders, cache)) - DISK_MARGIN_BYTES
    if needed > available:
        raise DiskError(
            "not enough disk",
            where=str(folders[0]),
            expected=f"{(needed - available + free) / 1e9:.2f} GB free",
            got=f"{free / 1e9:.2f} GB",
            next_step="Free some disk or use a larger Space.",
        )
    if limit is not None and needed > limit:
        raise DiskError(
            "the disk budget is too small for the output",
            where=str(folders[0]),
            expected=f"{needed / 1e9:.2f} GB or more",
            got=f"{limit / 1e9:.2f} GB",
            next_step="Raise the budget.",
        )
    return (available if limit is None else min(limit, available)) - needed


class DiskGauge:
    """The high-water mark of what lies below some folders; sampled where use is at a peak, before deletions."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._lock = threading.Lock()
        self.high_water_bytes = 0

    def sample(self) -> None:
        used = used_bytes(self._folders)
        with self._lock:
            self.high_water_bytes = max(self.high_water_bytes, used)


def used_bytes(folders: Iterable[Path], counts: Callable[[str], bool] = lambda path: True) -> int:
    """Disk that the files below `folders` take, while files may come and go; folders may lie in each other.

    `counts`: whether a file is to be counted, by its path.
    """
    sizes: dict[str, int] = {}
    for folder in folders:
        for path in _files(folder):
            if counts(path):
                with suppress(FileNotFoundError):
                    sizes[path] = os.lstat(path).st_blocks * 512
    return sum(sizes.values())


def _files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder.absolute()):
        for name in names:
            yield os.path.join(parent, name)
