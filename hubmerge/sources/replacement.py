"""Chooses cached shards to delete for another one: Belady's optimal replacement, since all reads are known beforehand.

The shard that is needed latest goes first, but never for one that is needed later still. Where another pass may follow,
a shard stays worth keeping after its last use in this pass, since the next pass uses it again. For that a full cache
fetches at most one shard per model ahead; earlier fetching would only drop another shard sooner.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from hubmerge.sources.base import Model
from hubmerge.sources.block_reader import BlockReader

T = TypeVar("T")


@dataclass(eq=False)
class CachedShard:
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


@dataclass(frozen=True)
class NextUse:
    """The place at which a shard is read next, counted on from this pass of `places` reads into one that follows."""

    places: int
    again: bool  # a pass may follow

    def __call__(self, shard: CachedShard) -> float:
        if shard.uses:
            return shard.uses[0]
        if shard.waiting:
            return -1  # read without having been announced
        if self.again and shard.first is not None:
            return self.places + shard.first
        return math.inf


def victims_for(
    shard: CachedShard, missing: int, shards: Collection[CachedShard], next_use: Callable[[CachedShard], float]
) -> list[CachedShard]:
    """The shards to delete so that `missing` bytes become free for `shard`; none where that is not worth it."""
    use = next_use(shard)
    is_near = (
        shard.waiting
        or use <= min((s.uses[0] for s in shards if s.uses), default=-1)
        or not any(s.model is shard.model and s.state != "absent" and s.uses and not s.started for s in shards)
    )
    chosen = []
    for victim in latest_first(shards, next_use):
        later = next_use(victim)
        if victim is shard or later <= use or (later < math.inf and not is_near):
            continue
        chosen.append(victim)
        missing -= victim.held
        if missing <= 0:
            return chosen
    return []


def latest_first(shards: Iterable[CachedShard], next_use: Callable[[CachedShard], float]) -> list[CachedShard]:
    """The shards that can be deleted, the one that is needed latest first."""
    deletable = [s for s in shards if s.held and not s.leases and s.state != "fetching"]
    return sorted(deletable, key=next_use, reverse=True)


def beyond_room(items: Sequence[T], size: Callable[[T], int], room: int) -> list[T]:
    """The largest of `items`, as many as must go so that the others fit into `room` together."""
    left, found = sum(map(size, items)), []
    for item in sorted(items, key=size, reverse=True):
        if left <= room:
            break
        left -= size(item)
        found.append(item)
    return found
