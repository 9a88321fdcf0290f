"""A merge begins, or goes on, in a folder: nobody else works there, and what its journal says is verified."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hubmerge.disk_errors import make_folder
from hubmerge.engine.distributed import Ranks, keep_own, see_alike, share
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import sole_owner
from hubmerge.plan.plan import Plan


def own(folders: Sequence[Path], held: ExitStack, ranks: Ranks) -> None:
    """Nobody else works in these folders until `held` is left; FolderInUseError."""
    for folder in folders:
        make_folder(folder)
        if ranks.rank == 0:  # the others follow, once rank 0 has found nothing of somebody else's there
            held.enter_context(sole_owner(folder))


def resumed(
    merges: Sequence[tuple[Plan, Path]],
    held: ExitStack,
    ranks: Ranks,
    tell: Callable[[int, int], None],
    *,
    uploads: bool = False,
) -> list[Journal]:
    """The journals of merges in folders of this process's own: what of its share is done, and what is uploaded.

    `tell`, `uploads`: see Journal. Raises TargetExistsError where a folder holds something else, ProcessLostError where
    the processes must see the same folder and do not.
    """
    journals = []
    for plan, folder in merges:
        journals.append(ranks.in_turn(partial(_open, plan, folder, held, ranks.rank, uploads)))
        keep_own(ranks, plan, journals[-1])
    Journal.verify(journals, tell)
    for (plan, folder), journal in zip(merges, journals, strict=True):
        for shard in ranks.mine(plan.shards):
            if shard.filename not in journal.shards:  # a kill between the file and its line
                (folder / shard.filename).unlink(missing_ok=True)
        if not uploads:
            see_alike(ranks, folder)
        share(ranks, journal, uploaded_only=True)
    return journals


def own_cache(cache: Path, ranks: Ranks) -> Path:
    """Where this process fetches inputs to; what an earlier run of more processes left goes."""
    if ranks.rank:
        return cache.with_name(f"{cache.name}-{ranks.rank}")
    for left in cache.parent.glob(f"{cache.name}-*"):
        if int(left.name.rpartition("-")[2]) >= ranks.size:
            shutil.rmtree(left, ignore_errors=True)
    return cache


def _open(plan: Plan, folder: Path, held: ExitStack, rank: int, uploads: bool) -> Journal:
    if rank:
        held.enter_context(sole_owner(folder, rank))
    return Journal.open(folder, plan, resume=True, uploads=uploads, verified=True, rank=rank)
