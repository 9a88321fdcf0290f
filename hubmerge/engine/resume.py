"""A merge begins, or goes on, in a folder: nobody else works there, and what its journal says is verified.

Each of several processes has a journal of its own beside rank 0's, and at its start it reads all journals that it sees.
So a merge that was killed goes on with any number of processes: a shard that a process cannot see is made again.
"""

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hubmerge.engine.distributed import ProcessLostError, Ranks
from hubmerge.engine.journal import Journal
from hubmerge.engine.sink import WORK, FinishedShard, sole_owner
from hubmerge.machine.disk_errors import make_folder, writing
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
        journal = ranks.in_turn(partial(_open, plan, folder, held, ranks.rank, uploads))
        kept = {shard.filename for shard in ranks.mine(plan.shards)} | journal.uploaded  # others look after theirs
        journal.shards = {name: shard for name, shard in journal.shards.items() if name in kept}
        journals.append(journal)
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
        number = left.name.removeprefix(f"{cache.name}-")
        if number.isdecimal() and int(number) >= ranks.size:
            shutil.rmtree(left, ignore_errors=True)
    return cache


def _open(plan: Plan, folder: Path, held: ExitStack, rank: int, uploads: bool) -> Journal:
    if rank:
        held.enter_context(sole_owner(folder, rank))
    return Journal.open(folder, plan, uploads=uploads, rank=rank)


def see_alike(ranks: Ranks, folder: Path) -> None:
    """ProcessLostError unless every process sees the folder of rank 0, which must exist there."""
    mark = folder / WORK / ranks.first(f"seen-{secrets.token_hex(8)}")
    if ranks.rank == 0 and ranks.size > 1:
        with writing(mark):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    ranks.gather("marked")
    blind = [str(rank) for rank, seen in enumerate(ranks.gather(mark.exists())) if not seen and ranks.size > 1]
    if ranks.rank == 0:
        mark.unlink(missing_ok=True)
    if blind:
        raise ProcessLostError(
            "the processes of this merge do not see the same output folder",
            where=str(folder),
            got=f"not seen by rank {', '.join(blind)}",
            next_step="Choose a folder that all machines share, or publish with `hubmerge run`, which needs none.",
        )


def share(ranks: Ranks, journal: Journal, *, uploaded_only: bool = False) -> None:
    """Everyone learns which shards the others have finished, or `uploaded_only`."""
    if ranks.size == 1:
        return
    shards = (s for name, s in journal.shards.items() if name in journal.uploaded or not uploaded_only)
    own = [shard.to_json() for shard in shards]
    for finished, uploaded in ranks.gather([own, sorted(journal.uploaded)]):
        journal.uploaded |= set(uploaded)
        for shard in finished:
            journal.shards.setdefault(shard["filename"], FinishedShard.from_json(shard))


def check_reachable(ranks: Ranks, folder: Path, plan: Plan, journal: Journal) -> None:
    """ProcessLostError unless every shard is in `folder` or uploaded. For rank 0, at the end."""
    if ranks.size == 1:
        return
    names = [shard.filename for shard in plan.shards if shard.filename not in journal.uploaded]
    missing = [name for name in names if name not in journal.shards or not (folder / name).is_file()]
    if missing:  # a target that takes shards as plain files, whose bytes go with the commit
        raise ProcessLostError(
            "finished shards of another process are out of reach",
            where=str(folder),
            got=", ".join(missing[:3]),
            next_step="Let all processes see the same folder, or start one process.",
        )
