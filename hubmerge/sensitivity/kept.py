"""Keeps sensitivities beyond the merge that computed them, so that an agent's is computed once per data.

It is a folder of finished files, each named by a digest of what decides its content. A merge that takes a file gets a
hard link of its own (a copy across file systems), so it keeps the file when the folder is pruned. When the folder grows
over its budget, the files that were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

DEFAULT_BUDGET_BYTES = 50_000_000_000


class KeptSensitivities:
    """The files in `folder`; None keeps nothing. Safe to use from several processes at once."""

    def __init__(self, folder: Path | None, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._folder = folder
        self._budget = budget_bytes

    def take(self, name: str, into: Path) -> bool:
        """Bring the file called `name` to the path `into`; False when it is not kept."""
        if self._folder is None:
            return False
        source = self._folder / name
        try:
            os.utime(source)
            _link(source, into)
        except FileNotFoundError:
            return False
        return True

    def keep(self, file: Path) -> None:
        """Keep the finished `file` under its name, then prune to the budget; a full disk keeps nothing."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _link(file, self._folder / file.name)
            self._prune(file.name)

    def _prune(self, newest: str) -> None:
        assert self._folder is not None
        # also what a process that was killed has left half-copied, which nobody takes any more
        entries = sorted(
            ((p.stat().st_mtime_ns, p.stat().st_size, p) for p in self._folder.iterdir() if p.is_file()),
            key=lambda entry: (entry[2].name != newest, -entry[0]),
        )
        total = 0
        for _, size, path in entries:
            total += size
            if total > self._budget:
                path.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """Make `target` a link to, or a copy of, `source` in one step."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
