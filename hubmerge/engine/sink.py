"""The sink: shards written at known offsets and hashed on the way, the manifest last.

A shard is written to a temporary name, synced and renamed; then one line of the journal (journal.py) makes it final,
with its sha256 and tallies. A resumed merge believes no shard that has other bytes than its line says. An output folder
is complete if and only if `hubmerge.json` is there: it is written last and removed first.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hubmerge.engine.threads import Follower
from hubmerge.engine.uncached import UncachedFile
from hubmerge.errors import DiskError, FolderInUseError
from hubmerge.machine.disk_errors import make_folder, writing, written
from hubmerge.machine.resources import cores
from hubmerge.plan.plan import PlannedShard
from hubmerge.sources.ancestry import REPORT
from hubmerge.statistics.statistics import ResultTally, Tally

MANIFEST = REPORT
WORK = ".hubmerge"  # inside the output folder, gone when it is complete
HASHING_THREADS = 8  # as many as a disk has use for
BLOCK_BYTES = 1024 * 1024  # between two looks at whether it was broken off
TELLING_S = 0.2


@dataclass(frozen=True)
class FinishedShard:
    """A shard that is durable: its bytes, their hash, and what was counted while they were made."""

    filename: str
    size: int  # bytes
    sha256: str
    inputs: Mapping[str, Tally] | None  # by tensor; None when a probe counted them before
    result: Mapping[str, ResultTally]

    def to_json(self) -> dict[str, Any]:
        return {
            "filename": self.filename,
            "size": self.size,
            "sha256": self.sha256,
            "inputs": None if self.inputs is None else {n: t.to_json() for n, t in self.inputs.items()},
            "result": {n: t.to_json() for n, t in self.result.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        inputs = data["inputs"]
        return cls(
            data["filename"],
            data["size"],
            data["sha256"],
            None if inputs is None else {n: Tally.from_json(t) for n, t in inputs.items()},
            {n: ResultTally.from_json(t) for n, t in data["result"].items()},
        )


def has_size(path: Path, shard: FinishedShard) -> bool:
    """Whether a file of the shard's size is there."""
    try:
        return path.stat().st_size == shard.size
    except OSError:  # gone, or no longer readable: it is made again
        return False


def sound(files: Sequence[tuple[Path, FinishedShard]], tell: Callable[[int, int], None]) -> list[bool]:
    """For each file whether it has the size and the sha256 of its shard, hashed in threads, file by file.

    `tell(done, total)` is told bytes, in this thread, where there are any. It may raise to break it off, as a signal
    does: each thread then ends within one block.
    """
    total = sum(shard.size for _, shard in files)
    if not total:
        return [has_size(path, shard) for path, shard in files]
    done = [0] * len(files)  # each by one thread
    broken_off = threading.Event()

    def check(number: int) -> bool:
        path, shard = files[number]
        digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
        if has_size(path, shard):
            with suppress(OSError), open(path, "rb", buffering=0) as file:  # what cannot be read has another digest
                while (count := file.readinto(block)) and not broken_off.is_set():
                    digest.update(block[:count])
                    done[number] += count
        done[number] = shard.size
        return digest.hexdigest() == shard.sha256

    tell(0, total)
    with ThreadPoolExecutor(min(HASHING_THREADS, cores(), len(files))) as pool:
        try:
            checks = [pool.submit(check, number) for number in range(len(files))]
            while wait(checks, TELLING_S).not_done:
                tell(min(sum(done), total), total)
        finally:
            broken_off.set()
    tell(total, total)
    return [one.result() for one in checks]


@contextmanager
def sole_owner(folder: Path, rank: int = 0, *, used: FolderInUseError | None = None) -> Iterator[None]:
    """Nobody else on this machine works in `folder` meanwhile, else `used`; it is made if it is missing.

    Rank 0 locks the folder itself, so that nothing is left in one that turns out to be somebody else's; the other
    processes of a merge lock a file of their rank. A lock goes with the process, however that ends.
    """
    make_folder(folder)
    lock = folder / WORK / f"rank-{rank}.lock" if rank else folder
    with ExitStack() as held:
        if rank:
            with writing(lock):
                lock.parent.mkdir(exist_ok=True)
                lock.touch()
        else:
            for left in folder.glob(f"{WORK}/rank-*.lock"):  # by an earlier run, perhaps of more processes
                with _locked(left, folder):
                    pass
        held.enter_context(_locked(lock, folder, used))
        yield


@contextmanager
def _locked(path: Path, folder: Path, used: FolderInUseError | None = None) -> Iterator[None]:
    with written("the folder cannot be read", str(folder)):
        held = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise used or FolderInUseError(
                "another process is merging into this folder",
                where=str(folder),
                next_step="Wait for it, or choose another folder; nothing was touched.",
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(held)


class ShardWriter:
    """Writes one shard front to back. Leaves nothing under the final name unless `finish` is reached.

    Hashing and writing follow in a thread each, so that neither waits for the other, nor the merge for them.

    Where it does not `keep` the shard, the bytes are counted and hashed as they would be written, and dropped. Such a
    merge costs what a merge costs, except for the disk. It shows memory, speed and the hashes of the result for models
    that no disk here holds (sources/synthetic.py), and whether a recipe goes through at all.
    """

    def __init__(self, folder: Path, shard: PlannedShard, outputs: int = 1, *, keep: bool = True) -> None:
        """`outputs`: how many are written side by side, this one included."""
        self._shard = shard
        self._outputs = outputs
        self._keep = keep
        self._final = folder / shard.filename
        self._temporary = folder / WORK / (shard.filename + ".tmp")
        self._digest = hashlib.sha256()
        self._written = 0
        self._file: UncachedFile | None = None
        self._hashing = Follower(self._digest.update, "hubmerge-hash")
        self._writing = Follower(self._append, "hubmerge-write")
        self._threads = ExitStack()

    def __enter__(self) -> Self:
        if self._keep:
            try:
                with writing(self._final):
                    self._temporary.parent.mkdir(parents=True, exist_ok=True)
                    self._file = UncachedFile(self._temporary, self._shard.size, self._outputs)
            except DiskError:
                self.__exit__(None, None, None)
                raise
        self._threads.enter_context(self._hashing)
        self._threads.enter_context(self._writing)
        self.write(self._shard.header)
        return self

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes, in file order, which must not change any more; DiskError when the disk is full, here or at
        a later call."""
        view = memoryview(data).cast("B")
        self._written += len(view)
        self._hashing.put(view)
        if self._file is not None:
            self._writing.put(view)

    def _append(self, view: memoryview) -> None:
        assert self._file is not None
        with writing(self._final):
            self._file.append(view)

    def finish(self) -> tuple[int, str]:
        """Make the file durable under its name; returns its size in bytes and its sha256."""
        assert self._written == self._shard.size, (self._written, self._shard.size)
        self._hashing.finish()
        if self._file is not None:
            self._writing.finish()
            with writing(self._final):
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._temporary, self._final)
        return self._written, self._digest.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()
        if self._file is not None:
            self._file.close()
        self._temporary.unlink(missing_ok=True)
