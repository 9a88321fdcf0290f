"""What the processes of a shared merge leave on disk, and how rank 0 comes by it.

A helper works in a folder of its own, `.hubmerge/rank-N`, with a journal of its own. Rank 0 adopts what lies there, at
the end and at the start of every run: it moves the shards beside its own and journals them. So a run that was killed
anywhere goes on, also with another number of processes.

A merge to a folder needs one that all processes see. Towards the Hub each process uploads its own shards and tells
rank 0 their journal lines, so that machines need not share a folder; where they do, rank 0 also adopts the uploads of
processes that are lost. A process that has lost the others first finishes its share; the lock in its folder keeps the
next run from working there at the same time.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from hubmerge.disk_errors import writing
from hubmerge.engine.distributed import ProcessLostError, Ranks
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import WORK, FinishedShard
from hubmerge.plan.plan import Plan

_RANK_FOLDER = "rank-"
_LOCK = "lock"


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a helper works."""
    return folder / WORK / f"{_RANK_FOLDER}{rank}"


def claim(ranks: Ranks, folder: Path) -> None:
    """Work in `folder` from now on, where this is one of several processes.

    ProcessLostError where one of an earlier run is still at it.
    """
    lock = _locked(folder)
    if ranks.size > 1:
        ranks.held.callback(lock.close)
    else:
        lock.close()


def see(ranks: Ranks, folder: Path) -> None:
    """ProcessLostError unless every process sees the folder of rank 0, which must exist there."""
    if ranks.size == 1:
        return
    mark = folder / WORK / ranks.first(f"seen-{secrets.token_hex(8)}")
    if ranks.rank == 0:
        with writing(mark):
            mark.touch()
    ranks.gather("marked")
    blind = [str(rank) for rank, seen in enumerate(ranks.gather(mark.exists())) if not seen]
    if ranks.rank == 0:
        mark.unlink(missing_ok=True)
    if blind:
        raise ProcessLostError(
            "the processes of this merge do not see the same output folder",
            where=str(folder),
            got=f"not seen by rank {', '.join(blind)}",
            next_step="Choose a folder that all machines share, or publish with `hubmerge run`, which needs none.",
        )


def take_over(
    ranks: Ranks,
    folder: Path,
    plan: Plan,
    journal: Journal,
    *,
    uploads: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Adopt what an earlier run's helpers left, and clear the rest away. Rank 0 only, before anyone works.

    The inputs that a helper of this run will want again stay. `tell`: see `Journal.verify`.
    """
    claim(ranks, folder)
    for own in _rank_folders(folder):
        _locked(own).close()
    adopt(folder, plan, journal, uploads=uploads, tell=tell)
    wanted = [rank_folder(folder, rank) for rank in range(1, ranks.size)]
    for own in _rank_folders(folder):
        if own in wanted:
            for path in (*own.glob("*"), *(own / WORK).glob("*")):
                if path.is_file():
                    path.unlink()
        else:
            shutil.rmtree(own, ignore_errors=True)
    for shard in plan.shards:
        if shard.filename not in journal.shards:  # a kill between the file and its line
            (folder / shard.filename).unlink(missing_ok=True)


def adopt(
    folder: Path,
    plan: Plan,
    journal: Journal,
    *,
    uploads: bool = False,
    verified: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Move the shards that helpers have finished into `folder`, and journal there what they have done. Rank 0 only.

    A kill in the middle leaves what is adopted again. `uploads`: also take their word for what the target holds.
    `verified`: they were finished in this run. `tell`: see `Journal.verify`.
    """
    folders = _rank_folders(folder)
    journals = [Journal.open(own, plan, resume=True, uploads=uploads, verified=True) for own in folders]
    if not verified:
        Journal.verify(journals, tell)
    for own, theirs in zip(folders, journals, strict=True):
        for shard in theirs.shards.values():
            if shard.filename in theirs.uploaded:
                _note_upload(journal, shard)
            elif shard.filename not in journal.shards:
                with writing(folder / shard.filename):
                    os.replace(own / shard.filename, folder / shard.filename)
                journal.add_shard(shard)


def collect(ranks: Ranks, plan: Plan, journal: Journal) -> None:
    """Tell rank 0, for its journal, what the target holds of this process; returns when everyone has told."""
    if ranks.size == 1:
        return
    uploaded = [s.to_json() for name, s in journal.shards.items() if name in journal.uploaded]
    everyone = ranks.gather(uploaded)
    if ranks.rank == 0:
        for shards in everyone:
            for shard in shards:
                _note_upload(journal, FinishedShard.from_json(shard))


def check_complete(folder: Path, plan: Plan, journal: Journal) -> None:
    """ProcessLostError unless every shard is here or uploaded. Rank 0 only, at the end."""
    missing = [s.filename for s in plan.shards if s.filename not in journal.shards]
    if missing:  # a target that takes shards as plain files, whose bytes go with the commit
        raise ProcessLostError(
            "finished shards of another process are out of reach",
            where=str(folder),
            got=", ".join(missing[:3]),
            next_step="Let all processes see the same folder, or start one process.",
        )


def _locked(folder: Path) -> IO[bytes]:
    """The lock of `folder`, until it is closed or the process ends."""
    path = folder / WORK / _LOCK
    with ExitStack() as unless_locked:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = unless_locked.enter_context(open(path, "a+b", buffering=0))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ProcessLostError(
                "a process of an earlier run is still at work here",
                where=str(folder),
                got=lock.read().decode(errors="replace"),
                next_step="It ends with its share of the shards. Wait for it, or end it, and start again.",
            ) from None
        except OSError:  # a file system without locks
            pass
        else:
            with writing(path):
                lock.truncate(0)
                lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        unless_locked.pop_all()  # the caller's
    return lock


def _rank_folders(folder: Path) -> list[Path]:
    return sorted((folder / WORK).glob(_RANK_FOLDER + "*"))


def _note_upload(journal: Journal, shard: FinishedShard) -> None:
    """Another process has uploaded `shard`: for `journal` it is durable, and nothing is to be done about it."""
    if shard.filename in journal.uploaded:
        return
    uploading, journal.on_shard = journal.on_shard, None
    try:
        journal.add_shard(shard)
        journal.add_uploaded(shard.filename)
    finally:
        journal.on_shard = uploading
