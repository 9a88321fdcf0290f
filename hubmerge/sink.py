"""The sink: shards written at known offsets and hashed on the way, a journal of what is durable, the manifest last.

A shard is written to a temporary name, synced and renamed; then one line of the journal makes it final, with
its sha256 and tallies. A resumed merge reads the journal and repeats only what has no sound line, or no longer the
bytes that its line says. An output folder is
complete if and only if `hubmerge.json` is there: it is written last and removed first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hubmerge.disk_errors import make_folder, written
from hubmerge.errors import DiskError, FolderInUseError, TargetExistsError
from hubmerge.follower import Follower
from hubmerge.journal_lines import sealed, sound_lines
from hubmerge.machine import cores
from hubmerge.plan import Plan, PlannedShard
from hubmerge.sources.unchanged import UnchangedFolders
from hubmerge.statistics import SCHEMA, ResultTally, Tally
from hubmerge.uncached import UncachedFile

MANIFEST = "hubmerge.json"
WORK = ".hubmerge"  # inside the output folder, gone when it is complete
_JOURNAL = "journal.jsonl"
_FORM = 3  # version of its lines
_HASHING_THREADS = 8  # as many as a disk has use for


@dataclass(frozen=True)
class FinishedShard:
    """A shard that is durable: its bytes, their hash, and what was counted while they were made."""

    filename: str
    size: int  # bytes
    sha256: str
    inputs: Mapping[str, Tally] | None  # by tensor; None when a probe counted them before
    result: Mapping[str, ResultTally]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """DiskError for what the disk refuses while `path` is written."""
    with written("the output cannot be written", str(path)):
        yield


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """DiskError for what the disk refuses while `path` is read."""
    with written("the journal cannot be read", str(path)):
        yield


@contextmanager
def sole_owner(folder: Path) -> Iterator[None]:
    """Nobody else on this machine works in `folder` meanwhile; it is made if it is missing.

    The folder itself is locked, so that nothing is left in one that turns out to be somebody else's; the lock goes
    with the process, however it ends.
    """
    make_folder(folder)
    with written("the folder cannot be read", str(folder)):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
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
    """

    def __init__(self, folder: Path, shard: PlannedShard) -> None:
        self._shard = shard
        self._final = folder / shard.filename
        self._temporary = folder / WORK / (shard.filename + ".tmp")
        self._digest = hashlib.sha256()
        self._written = 0
        self._file: UncachedFile | None = None
        self._hashing = Follower(self._digest.update, "hubmerge-hash")
        self._writing = Follower(self._append, "hubmerge-write")
        self._threads = ExitStack()

    def __enter__(self) -> Self:
        try:
            with writing(self._final):
                self._temporary.parent.mkdir(parents=True, exist_ok=True)
                self._file = UncachedFile(self._temporary, self._shard.size)
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
        self._writing.put(view)

    def _append(self, view: memoryview) -> None:
        assert self._file is not None
        with writing(self._final):
            self._file.append(view)

    def finish(self) -> tuple[int, str]:
        """Make the file durable under its name; returns its size in bytes and its sha256."""
        assert self._file is not None
        assert self._written == self._shard.size, (self._written, self._shard.size)
        self._hashing.finish()
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


class Journal:
    """Append-only record of what a merge into one folder has made durable.

    Nothing is recorded that was made of local folders which are no longer as they were pinned.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / WORK / _JOURNAL
        self._identity = plan_identity(plan)
        self._models = [f"{m.ref.id}@{m.ref.sha}" for m in plan.models]
        self._on_hub = [m.ref.kind == "hub" for m in plan.models]
        self._folders = UnchangedFolders(plan.models)
        self._tensors = plan.merged_tensors
        self._begun = False
        self.statistics: Mapping[str, Tally] | None = None
        self.probed: dict[str, Tally] = {}  # tensors that the probe has counted, before it has all
        self.thresholds: Mapping[str, tuple[float, ...]] | None = None
        self.shards: dict[str, FinishedShard] = {}
        self.uploaded: set[str] = set()  # shards that the target holds; their files are no longer needed
        self.on_shard: Callable[[FinishedShard], None] | None = None  # called when a shard has its line
        self._uploads = False
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path, plan: Plan, *, resume: bool, uploads: bool = False, verified: bool = False) -> Self:
        """The journal of `folder` for this plan; `uploads`: shards are uploaded and deleted one by one.

        `verified`: its shards were written just now, and are not read again.

        Raises TargetExistsError when the folder holds something else, or an unfinished merge and not `resume`.
        """
        journal = cls(folder, plan)
        journal._uploads = uploads
        path = journal._path
        if path.is_file():
            if not resume:
                raise TargetExistsError(
                    "an unfinished merge is here",
                    where=str(folder),
                    next_step="Go on with --resume, or remove the folder.",
                )
            journal._read(folder, verified)
        else:
            if folder.exists() and any(p for p in folder.iterdir() if p.name != WORK):
                raise TargetExistsError(
                    "the output folder is not empty",
                    where=str(folder),
                    next_step="Choose another folder; nothing was touched.",
                )
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
        if not journal._begun:
            journal._append({"event": "plan", "identity": journal._identity, "models": journal._models})
        return journal

    @staticmethod
    def is_in(folder: Path) -> bool:
        return (folder / WORK / _JOURNAL).is_file()

    def add_probed(self, tensors: Mapping[str, Tally]) -> None:
        """The probe has counted these tensors, too."""
        self._folders.check()
        self.probed |= tensors
        self._append({"event": "probed", "tensors": _dump(tensors)})

    def add_statistics(self, tensors: Mapping[str, Tally]) -> None:
        self._folders.check()
        self.statistics = dict(tensors)
        self.probed.clear()
        self._append({"event": "probe", "tensors": _dump(tensors)})

    def add_thresholds(self, thresholds: Mapping[str, tuple[float, ...]]) -> None:
        self._folders.check()
        self.thresholds = dict(thresholds)
        self._append({"event": "thresholds", "tensors": {n: list(v) for n, v in thresholds.items()}})

    def add_shard(self, shard: FinishedShard) -> None:
        self._folders.check()
        self.shards[shard.filename] = shard
        self._append(
            {
                "event": "shard",
                "filename": shard.filename,
                "size": shard.size,
                "sha256": shard.sha256,
                "inputs": None if shard.inputs is None else _dump(shard.inputs),
                "result": _dump(shard.result),
            }
        )

        if self.on_shard is not None:
            self.on_shard(shard)

    def add_uploaded(self, filename: str) -> None:
        """The target holds the bytes of this shard."""
        self.uploaded.add(filename)
        self._append({"event": "uploaded", "filename": filename})

    def forget(self, filenames: Iterable[str]) -> None:
        """These shards are lost, on both sides."""
        for filename in filenames:
            self.uploaded.discard(filename)
            self.shards.pop(filename, None)
            self._append({"event": "lost", "filename": filename})

    def close(self, folder: Path) -> None:
        """The merge is complete: the working folder goes. Where shards were uploaded it is needed until the commit."""
        if not self._uploads:
            shutil.rmtree(folder / WORK, ignore_errors=True)

    def _append(self, line: Mapping[str, Any]) -> None:
        left = memoryview(sealed(line).encode())
        with self._lock, writing(self._path), open(self._path, "ab", buffering=0) as file:
            end = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:  # a part of a line would hide what other threads append
                with suppress(OSError):
                    file.truncate(end)
                raise

    def _tally(self, data: Mapping[str, Any]) -> Tally:
        return Tally.from_json(data).packed_among(self._tensors)

    def _read(self, folder: Path, verified: bool) -> None:
        with reading(self._path):
            raw = self._path.read_bytes()
        lines, length = sound_lines(raw)
        if not lines and (b"\n" in raw or any(p for p in folder.iterdir() if p.name != WORK)):
            raise TargetExistsError(
                "the journal of an unfinished merge is damaged, or of another version of hubmerge",
                where=str(self._path),
                next_step="Choose another folder, or remove this one.",
            )
        if length < len(raw):  # a kill in the middle of a line, or damage: what is no longer said is repeated
            with writing(self._path), open(self._path, "r+b") as file:
                file.truncate(length)
        for line in lines:
            self._begun = True  # the plan comes first
            if line["event"] == "plan" and line["identity"] != self._identity:
                raise self._another(folder, line)
            if line["event"] == "probed":
                self.probed |= {n: self._tally(t) for n, t in line["tensors"].items()}
            if line["event"] == "probe":
                self.statistics = {n: self._tally(t) for n, t in line["tensors"].items()}
                self.probed.clear()
            if line["event"] == "thresholds":
                self.thresholds = {n: tuple(v) for n, v in line["tensors"].items()}
            if line["event"] == "shard":
                inputs = line["inputs"]
                self.shards[line["filename"]] = FinishedShard(
                    line["filename"],
                    line["size"],
                    line["sha256"],
                    None if inputs is None else {n: self._tally(t) for n, t in inputs.items()},
                    {n: ResultTally.from_json(t) for n, t in line["result"].items()},
                )
            if line["event"] == "uploaded" and self._uploads:
                self.uploaded.add(line["filename"])
            if line["event"] == "lost":
                self.uploaded.discard(line["filename"])
                self.shards.pop(line["filename"], None)
        here = [shard for name, shard in self.shards.items() if name not in self.uploaded]
        with ThreadPoolExecutor(min(_HASHING_THREADS, cores())) as pool:
            kept = pool.map(lambda shard: _is_kept(folder / shard.filename, shard, verified), here)
            for shard, is_kept in zip(here, kept, strict=True):
                if not is_kept:
                    del self.shards[shard.filename]

    def _another(self, folder: Path, line: Mapping[str, Any]) -> TargetExistsError:
        """The folder holds the merge of another plan, perhaps of the same recipe before a source moved on."""
        theirs = [str(name) for name in line.get("models", ())]
        if [_name(m) for m in theirs] == [_name(m) for m in self._models] and theirs != self._models:
            moved = [n for n, (old, new) in enumerate(zip(theirs, self._models, strict=True)) if old != new]
            again = all(self._on_hub[n] for n in moved)
            return TargetExistsError(
                "an unfinished merge of other versions of the models is here",
                where=str(folder),
                expected=", ".join(self._models[n] for n in moved),
                got=", ".join(theirs[n] for n in moved),
                next_step="To go on with it, name those versions in the recipe; or choose another folder."
                if again
                else "The models have changed since: choose another folder.",
            )
        return TargetExistsError(
            "another merge is unfinished here",
            where=str(folder),
            expected=self._identity[:12],
            got=str(line["identity"])[:12],
            next_step="Choose another folder.",
        )


def _is_kept(path: Path, shard: FinishedShard, verified: bool) -> bool:
    """Whether a shard still lies there as its line says."""
    try:
        if path.stat().st_size != shard.size:
            return False
        with open(path, "rb") as file:
            return verified or hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
    except OSError:  # gone, or no longer readable: it is made again
        return False


def _name(model: str) -> str:
    return model.rpartition("@")[0]


def plan_identity(plan: Plan) -> str:
    """What a resumed merge must agree on: inputs, recipe, rounding and the layout of the shards."""
    # the journal holds tallies, so those of another schema are another merge's
    digest = hashlib.sha256(f"{plan.identity}\0{plan.rounding}\0{SCHEMA}.{_FORM}".encode())
    for shard in plan.shards:
        digest.update(shard.filename.encode() + b"\0" + shard.header)
    return digest.hexdigest()


def _dump(tallies: Mapping[str, Tally] | Mapping[str, ResultTally]) -> dict[str, Any]:
    return {name: tally.to_json() for name, tally in tallies.items()}
