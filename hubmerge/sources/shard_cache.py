"""A cache for shards of models on the Hub: it fetches ahead and deletes behind, within a disk budget.

Every pass announces which tensors it reads in which order (TensorReader.expect). So the cache knows when each shard is
needed next. It fetches the shard that is needed soonest, and deletes for it the one that is needed latest (Belady's
optimal replacement), but never one that is needed sooner than the new one. In the last pass a shard is deleted after
its last use. Where another pass may follow, a shard stays worth keeping after its last use in this pass, since the next
pass uses it again. For that a full cache fetches at most one shard per model ahead; earlier fetching would only drop
another shard sooner.

A shard is read under a lease, and leased shards are not deleted. A reader holds a lease for one read and never while
it waits, so no two readers wait for each other. Where the shards of a single tensor exceed the budget together, the
largest of them are read by ranges instead (block_reader.py). The rest then always fits, so every pass can finish.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from hubmerge.errors import CancelledError
from hubmerge.hub.client import Hub
from hubmerge.hub.transfer import is_sound
from hubmerge.sources.base import Model
from hubmerge.sources.block_reader import BLOCK_BYTES, BlockBuffer, BlockReader
from hubmerge.sources.reader import Read, ShardKey, ShardStore, cache_folder, shard_key

THREADS = 2  # one connection seldom fills the line, and more only fetch what is needed later
_TICK_S = 0.2


@dataclass
class Fetched:
    """Counts of what the cache fetched and found."""

    bytes: int = 0  # from the Hub, ranges included
    range_bytes: int = 0  # of them for shards that are not kept on disk, their verification included
    shards: int = 0  # fetched whole
    refetched_shards: int = 0  # of them again, because they had not fitted in
    hits: int = 0  # shards that a pass found on disk, from an earlier pass or run
    ranged_shards: int = 0  # read by ranges
    high_water_bytes: int = 0  # most that the inputs took on disk


class _UnsoundError(Exception):
    """The client's file of a shard has other bytes than the shard."""


@dataclass(eq=False)
class _Shard:
    """A shard of a model on the Hub, in the cache or not."""

    model: Model
    name: str
    path: Path  # under its final name; beside it the partial one
    size: int  # bytes
    state: Literal["absent", "fetching", "present"] = "absent"
    held: int = 0  # bytes on disk, or reserved there
    uses: deque[int] = field(default_factory=deque)  # places of the reads in this pass that are still to come
    first: int | None = None  # place of the first read in this pass
    started: bool = False  # read in this pass
    fetched_in: int = -1  # the pass
    fetches: int = 0
    leases: int = 0
    waiting: int = 0  # readers
    blocks: BlockReader | None = None  # read by ranges

    @property
    def is_present(self) -> bool:
        return self.state == "present"

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


class ShardCache(ShardStore):
    """A ShardStore for folders, which are read where they lie, and for models on the Hub, cached in `folder`.

    budget_bytes  what fetched shards may take on disk
    keep          the inputs are wanted again after the last pass
    starting      told (bytes there, bytes needed) while a pass waits for its first tensor, in the caller's thread;
                  may raise to cancel
    deleting      called before anything is deleted, when the disk's use is at a peak
    """

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        models: Sequence[Model],
        budget_bytes: int,
        *,
        keep: bool = False,
        starting: Callable[[int, int], None] = lambda done, total: None,
        deleting: Callable[[], None] = lambda: None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__()
        self.fetched = Fetched()
        self._hub = hub.breakable()
        self._folder = folder
        self._budget = budget_bytes
        self._keep = keep
        self._starting = starting
        self._deleting = deleting
        self._block_bytes = block_bytes
        self._buffer = BlockBuffer()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="hubmerge-fetch")
        self._running = 0
        self._waiting = 0  # readers
        self._error: BaseException | None = None
        self._stopped = False
        self._pass = 0
        self._again = True
        self._places = 0  # reads in this pass
        self._reads: dict[str, deque[tuple[int, Read]]] = {}  # by tensor, with their places
        self._counts: dict[str, int] = {}  # elements read since the tensor's last finished reading
        self._shards: dict[ShardKey, _Shard] = {}
        for model in models:
            if model.ref.kind == "hub":
                for shard in model.shards:
                    self._shards.setdefault(shard_key(model, shard), self._found(model, shard))
        self._used = sum(s.held for s in self._shards.values())
        self.fetched.high_water_bytes = self._used

    def _found(self, model: Model, name: str) -> _Shard:
        """A shard as an earlier run left it, in whole or in part, to be verified when it is needed."""
        info = model.files[name]
        if info.here is not None:  # the client's, which takes no room and is never written to
            return _Shard(model, name, info.here, 0)
        shard = _Shard(model, name, self._place(model, name), info.size)
        shard.held = sum(path.stat().st_size for path in (shard.path, shard.partial) if path.is_file())
        return shard

    def _place(self, model: Model, name: str) -> Path:
        return cache_folder(self._folder, model) / model.ref.sha / model.files[name].path

    # --- the store ---------------------------------------------------------------------------------------

    def read_into(self, model: Model, shard: str, offset: int, out: memoryview) -> None:
        found = self._shards.get(shard_key(model, shard))
        if found is None:
            super().read_into(model, shard, offset, out)
            return
        with self._lease(found):
            if found.blocks is not None:
                found.blocks.read_into(offset, out)
            else:
                self._files.read_into(found.path, model, shard, offset, out)

    def expect(self, reads: Sequence[Read], *, again: bool) -> None:
        """Begin a pass, and wait until its first tensor can be read."""
        with self._changed:
            self._pass += 1
            self._again = again or self._keep
            self._places = len(reads)
            self._reads, self._counts = {}, {}
            for shard in self._shards.values():
                shard.uses, shard.first, shard.started = deque(), None, False
            for place, read in enumerate(reads):
                self._reads.setdefault(read.name, deque()).append((place, read))
                self._counts[read.name] = 0
                needed = self._of(read)
                for shard in needed:
                    shard.uses.append(place)
                    shard.first = place if shard.first is None else shard.first
                self._read_by_ranges(needed)
            for shard in self._shards.values():
                self._delete_if_done(shard)
            for shard in self._deletable():  # what earlier runs left beyond the budget of this one
                if self._used > self._budget:
                    self._delete(shard)
            self._advance()
        if self._shards:
            self._wait_for(self._of(reads[0]) if reads else [])

    def consumed(self, name: str, elements: int) -> None:
        with self._changed:
            reads = self._reads.get(name)
            if not reads:
                return
            self._counts[name] += elements
            if self._counts[name] < reads[0][1].elements:
                return
            place, read = reads.popleft()
            self._counts[name] -= read.elements
            for shard in self._of(read):
                shard.started = True
                shard.uses.remove(place)
                self._delete_if_done(shard)
            self._advance()

    @contextmanager
    def held(self, shards: Sequence[tuple[Model, str]]) -> Iterator[Mapping[ShardKey, Path] | None]:
        needed = self._of(Read("", 0, tuple(shards)))
        with self._changed:
            fitting = all(s.blocks is None for s in needed) and sum(s.size for s in needed) <= self._budget
        if not fitting:
            yield None
            return
        with ExitStack() as leases:
            with self._claimed(needed):
                # what is there first: until it is leased, it might have to make room
                for shard in sorted(needed, key=lambda s: (not s.is_present, self._next_use(s))):
                    self._wait_for([shard])
                    leases.enter_context(self._lease(shard))
            ranged = any(s.blocks is not None for s in needed)  # since a file of the client's was damaged
            yield None if ranged else {shard_key(s.model, s.name): s.path for s in needed}

    @contextmanager
    def _claimed(self, shards: Sequence[_Shard]) -> Iterator[None]:
        """While a reader waits for all of these shards; room is made for such shards first."""

        def count(change: int) -> None:
            self._waiting += change
            for shard in shards:
                shard.waiting += change

        with self._changed:
            count(1)
            self._advance()
        try:
            yield
        finally:
            with self._changed:
                count(-1)

    def abandon(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._hub.hang_up()

    def close(self) -> None:
        """Break off what is being fetched; returns when no thread is left."""
        self.abandon()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- reading -----------------------------------------------------------------------------------------

    def _of(self, read: Read) -> list[_Shard]:
        keys = (shard_key(model, shard) for model, shard in read.shards)
        return list(dict.fromkeys(self._shards[key] for key in keys if key in self._shards))

    @contextmanager
    def _lease(self, shard: _Shard) -> Iterator[None]:
        with self._changed:
            if not shard.is_present:
                if not shard.uses:  # nobody announced it, so nobody looked whether it fits in
                    self._read_by_ranges([shard])
                with self._claimed([shard]):
                    while not shard.is_present:
                        self._raise_if_over()
                        self._changed.wait()
            if not shard.started:
                shard.started = True
                self.fetched.hits += shard.fetched_in != self._pass and shard.blocks is None
            shard.leases += 1
        try:
            yield
        finally:
            with self._changed:
                shard.leases -= 1
                if not shard.leases:  # it may be deleted now: for good, or for what somebody waits for
                    self._delete_if_done(shard)
                    if self._waiting:
                        self._advance()

    def _wait_for(self, shards: Sequence[_Shard]) -> None:
        total = sum(s.size for s in shards)
        while True:
            with self._changed:
                self._raise_if_over()
                done = sum(s.size if s.is_present else self._arrived(s) for s in shards)
                missing = any(not s.is_present for s in shards)
            self._starting(max(0, min(done, total - 1)) if missing else total, total)
            if not missing:
                return
            with self._changed:
                self._changed.wait(_TICK_S)

    @staticmethod
    def _arrived(shard: _Shard) -> int:
        try:
            return shard.partial.stat().st_size
        except OSError:  # not begun, complete since, or in a folder that is none, which fetching tells
            return 0

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise self._error
        if self._stopped:
            raise CancelledError("the merge was broken off")

    # --- fetching ----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin to fetch the shards that are needed soonest, as far as room and threads allow; wake the readers."""
        while self._running < THREADS and not self._stopped and self._error is None:
            wanted = [s for s in self._shards.values() if s.state == "absent" and (s.uses or s.waiting)]
            if not wanted:
                break
            shard = min(wanted, key=self._next_use)
            if not self._make_room(shard):
                break
            shard.state = "fetching"
            if shard.blocks is None:
                self._hold(shard, shard.size)
            self._running += 1
            self._pool.submit(self._fetch, shard).add_done_callback(partial(self._ended, shard))
        self._changed.notify_all()

    def _fetch(self, shard: _Shard) -> bool:
        """Make the shard readable; returns whether any of it came from the Hub."""
        if shard.blocks is not None:
            shard.blocks.verify()
            return True
        info = shard.model.files[shard.name]
        if shard.path == info.here:
            if not is_sound(info.here, info, self._raise_if_over):
                raise _UnsoundError
            return False
        calls = 0

        def progress(count: int) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:  # the first tells what was there already
                self._count(count)

        ref, folder = shard.model.ref, cache_folder(self._folder, shard.model)
        self._hub.download(ref.id, ref.sha, replace(info, here=None), folder, progress)
        return calls > 1

    def _count(self, count: int, ranges: int = 0) -> None:
        with self._changed:
            self.fetched.bytes += count
            self.fetched.range_bytes += ranges
            if self._stopped:
                raise CancelledError("the merge was broken off")

    def _ended(self, shard: _Shard, future: Future[bool]) -> None:
        with self._changed:
            self._running -= 1
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                shard.state = "absent"
                if isinstance(error, _UnsoundError):  # the client's file is damaged, so it is fetched after all
                    shard.path = self._place(shard.model, shard.name)
                    shard.size, error = shard.model.files[shard.name].size, None
                    if sum(s.size for s in self._shards.values()) > self._budget:  # nobody counted on its taking room
                        self._take_by_ranges(shard)
                self._hold(shard, self._arrived(shard))
                self._error = self._error or error
            else:
                shard.state = "present"
                if future.result():
                    shard.fetched_in = self._pass
                if shard.blocks is None and future.result():
                    shard.fetches += 1
                    self.fetched.shards += 1
                    self.fetched.refetched_shards += shard.fetches > 1
                self._delete_if_done(shard)
            self._advance()

    # --- room --------------------------------------------------------------------------------------------

    def _next_use(self, shard: _Shard) -> float:
        """The place at which a shard is read next, counted on from this pass into one that may follow."""
        if shard.uses:
            return shard.uses[0]
        if shard.waiting:
            return -1  # read without having been announced
        if self._again and shard.first is not None:
            return self._places + shard.first
        return math.inf

    def _deletable(self) -> list[_Shard]:
        """The shards that can be deleted, the one that is needed latest first."""
        found = [s for s in self._shards.values() if s.held and not s.leases and s.state != "fetching"]
        return sorted(found, key=self._next_use, reverse=True)

    def _make_room(self, shard: _Shard) -> bool:
        """Delete what it takes to fetch the shard; False where that is not worth it."""
        missing = self._used + shard.size - shard.held - self._budget
        if shard.blocks is not None or missing <= 0:
            return True
        use, shards = self._next_use(shard), self._shards.values()
        is_near = (
            shard.waiting
            or use <= min((s.uses[0] for s in shards if s.uses), default=-1)
            or not any(s.model is shard.model and s.state != "absent" and s.uses and not s.started for s in shards)
        )
        victims = []
        for victim in self._deletable():
            later = self._next_use(victim)
            if victim is not shard and later > use and (later == math.inf or is_near) and missing > 0:
                victims.append(victim)
                missing -= victim.held
        if missing > 0:
            return False
        for victim in victims:
            self._delete(victim)
        return True

    def _delete_if_done(self, shard: _Shard) -> None:
        done = not (shard.uses or shard.waiting or shard.leases or self._again)
        if done and shard.held and shard.state != "fetching":
            self._delete(shard)

    def _read_by_ranges(self, needed: Sequence[_Shard]) -> None:
        """Take the largest shards of one tensor off the disk until the others fit in together."""
        whole = [s for s in needed if s.blocks is None and s.state != "fetching"]  # what is being fetched had room
        left = sum(s.size for s in whole)
        for shard in sorted(whole, key=lambda s: s.size, reverse=True):
            if left <= self._budget:
                break
            left -= shard.size
            if shard.held:
                self._delete(shard)
            self._take_by_ranges(shard)

    def _take_by_ranges(self, shard: _Shard) -> None:
        shard.blocks = BlockReader(
            self._hub, shard.model, shard.name, self._buffer, lambda n: self._count(n, n), self._block_bytes
        )
        self.fetched.ranged_shards += 1

    def _hold(self, shard: _Shard, count: int) -> None:
        self._used += count - shard.held
        shard.held = count
        self.fetched.high_water_bytes = max(self.fetched.high_water_bytes, self._used)

    def _delete(self, shard: _Shard) -> None:
        self._deleting()
        shard.path.unlink(missing_ok=True)
        shard.partial.unlink(missing_ok=True)
        shard.state = "absent"
        self._hold(shard, 0)
