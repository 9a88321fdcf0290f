"""Ranks that are threads of one process."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

from stream_helpers import NOWHERE

from hubmerge.engine.distributed import Ranks
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer, Unobserved, of_rank
from hubmerge.engine.resume import own, own_cache, resumed
from hubmerge.engine.sink import FinishedShard
from hubmerge.engine.stream import MergeResult, Variant, merge_variants
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader


class Thread(Ranks):
    """A rank that is a thread; what is exchanged passes through JSON, as between processes."""

    def __init__(self, rank: int, size: int, barrier: Barrier, board: list[str]) -> None:
        self.rank = self.local_rank = rank
        self.size = size
        self._barrier, self._board = barrier, board

    def gather(self, value: Any) -> list[Any]:
        self._board[self.rank] = json.dumps(value)
        self._barrier.wait(20)
        found = [json.loads(text) for text in self._board]
        self._barrier.wait(20)
        return found

    def lost(self) -> None:
        """The others notice that this one is gone."""
        self._barrier.abort()


def ranks_of(size: int) -> list[Thread]:
    barrier, board = Barrier(size), [""] * size
    return [Thread(rank, size, barrier, board) for rank in range(size)]


def together(size: int, act: Callable[[Thread], Any]) -> list[Any]:
    """What `act` gives to each of `size` processes, or the error that it ends with."""

    def ended(ranks: Thread) -> Any:
        try:
            return act(ranks)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(ended, ranks_of(size)))


def merged_by(
    size: int, plan: Plan, out: Path, shards: int | None = None, observer: Observer | None = None, **options: Any
) -> list[Any]:
    """What each process has of a merge into `out`; each breaks off behind so many `shards` of its own."""

    def work(ranks: Thread) -> MergeResult:
        with ExitStack() as held:
            own([out], held, ranks)
            [journal] = resumed([(plan, out)], held, ranks, lambda done, total: None)
            before, add = len(journal.shards), journal.add_shard

            def add_or_break_off(shard: FinishedShard) -> None:
                add(shard)
                if shards is not None and len(journal.shards) - before >= shards:
                    ranks.lost()
                    raise RuntimeError("broken off")

            journal.add_shard = add_or_break_off  # type: ignore[method-assign]
            cache = LocalOrFetched(NOWHERE, own_cache(out / "cache", ranks))
            reader = held.enter_context(TensorReader(plan.models, cache))
            stream = StreamOptions(4096, 1, backend="eager", ranks=ranks, **options)
            watching = of_rank(observer or Unobserved(), ranks.rank)
            return merge_variants([Variant(plan, journal, out)], reader, stream, watching)[0]

    return together(size, work)
