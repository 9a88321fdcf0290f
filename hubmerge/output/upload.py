"""Uploads finished shards ahead of the commit, each while the next one is merged, and then deletes them.

The journal records a shard's life: "shard" when its file is durable, "uploaded" when the target holds its bytes and
does not need the file again. Only then is the file deleted. A kill in between costs an upload that the Hub answers with
"known", never a merge. Merging waits while an earlier shard is still being uploaded, so at most two lie on disk.

When the merge ends early, an upload that is under way is broken off, unless a retry could use it.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hubmerge.engine.distributed import Ranks
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import MANIFEST, FinishedShard
from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from hubmerge.output.publish import Target, ensure_target
from hubmerge.plan.plan import Plan

_TICK_S = 0.2


def forget_lost(hub: Hub, target: Target, plan: Plan, journal: Journal, folder: Path, ranks: Ranks) -> bool:
    """Whether the target no longer holds shards that were uploaded; they are made again, and so is what follows."""
    own = {shard.filename for shard in ranks.mine(plan.shards)} & journal.uploaded
    held = [journal.shards[name] for name in sorted(own)]
    missing = hub.missing_uploads(target.repo, [(s.sha256, s.size) for s in held]) if held else ()
    lost = [s.filename for s in held if s.sha256 in missing]
    if not any(ranks.gather(len(lost))):
        return False
    ranks.in_turn(lambda: (folder / MANIFEST).unlink(missing_ok=True))
    journal.forget(lost)
    return True


@dataclass
class ShardUploader:
    """Uploads the shards that the journal of `folder` lists as finished, one at a time, in a thread of its own."""

    hub: Hub
    target: Target
    identity: str
    journal: Journal
    folder: Path
    # called with bytes, sent and in all, while the caller waits for an upload; may raise to cancel
    waiting: Callable[[int, int], None] = lambda sent, size: None
    deleting: Callable[[], None] = lambda: None  # called before a file is deleted, when the disk's use is at a peak

    def __post_init__(self) -> None:
        self.hub = self.hub.breakable()
        self._target_is_there = False
        self._sent = self._size = 0  # bytes of the shard that is on its way
        self._pending: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hubmerge-upload")

    def __enter__(self) -> Self:
        """Go on with an earlier run's files: upload those that are not uploaded yet, delete those that are."""
        for shard in tuple(self.journal.shards.values()):
            if shard.filename in self.journal.uploaded:
                (self.folder / shard.filename).unlink(missing_ok=True)
            else:
                self._submit(shard)
        self.journal.on_shard = self.finished
        return self

    def finished(self, shard: FinishedShard) -> None:
        """Upload `shard`; returns when no more than one shard is left to be uploaded. Raises what an upload raised."""
        self._submit(shard)
        self._wait(1)

    def catch_up(self) -> None:
        """Wait until no more than one shard is left, e.g. of an earlier run."""
        self._wait(1)

    def drain(self) -> None:
        """Wait for all uploads."""
        self._wait(0)

    def _submit(self, shard: FinishedShard) -> None:
        self._pending.append(self._pool.submit(self._upload, shard))

    def _wait(self, left: int) -> None:
        while len(self._pending) > left:
            if wait((self._pending[0],), _TICK_S).done:
                self._pending.popleft().result()
            else:
                self.waiting(self._sent, self._size)

    def _upload(self, shard: FinishedShard) -> None:
        if not self._target_is_there:
            ensure_target(self.hub, self.target, self.identity)
            self._target_is_there = True
        path = self.folder / shard.filename
        self._sent, self._size = 0, shard.size
        operation = self.hub.preupload(
            self.target.repo, path, shard.filename, sha256=shard.sha256, sent=self._note_sent
        )
        if not self.hub.is_uploaded(operation):
            return  # the target takes it as a plain file, whose bytes go with the commit
        self.journal.add_uploaded(shard.filename)
        self.deleting()
        path.unlink()

    def _note_sent(self, position: int) -> None:
        self._sent = position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread: an upload under way is broken off, or finished if a retry can go on from it."""
        self.journal.on_shard = None
        self._pool.shutdown(wait=False, cancel_futures=True)
        if error is not None and not (isinstance(error, HubmergeError) and error.retryable):
            for future in self._pending:
                # more than once: the client may just be about to begin
                while not future.done():
                    self.hub.break_off()
                    wait((future,), _TICK_S)
        self._pool.shutdown(wait=True)
