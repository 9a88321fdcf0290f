"""The null sink: shards are counted and hashed as they would be written, and then dropped.

A merge into it costs what a merge costs, except for the disk. It shows memory, speed and the hashes of the result
for models that no disk here holds (sources/synthetic.py), and whether a recipe goes through at all.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from hubmerge.engine.follower import Follower
from hubmerge.plan.plan import PlannedShard


class NullShardWriter:
    """In the place of sink.ShardWriter; hashes in a thread beside the merge, as that does."""

    def __init__(self, folder: Path, shard: PlannedShard) -> None:
        self._shard = shard
        self._digest = hashlib.sha256()
        self._counted = 0
        self._hashing = Follower(self._digest.update, "hubmerge-hash")

    def __enter__(self) -> Self:
        self._hashing.__enter__()
        self.write(self._shard.header)
        return self

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes, in file order, which must not change any more."""
        view = memoryview(data).cast("B")
        self._counted += len(view)
        self._hashing.put(view)

    def finish(self) -> tuple[int, str]:
        """The size in bytes and the sha256 that the file would have."""
        assert self._counted == self._shard.size, (self._counted, self._shard.size)
        self._hashing.finish()
        return self._counted, self._digest.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hashing.__exit__(kind, error, trace)
