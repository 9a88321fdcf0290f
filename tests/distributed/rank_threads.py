"""Ranks that are threads of one process."""

from __future__ import annotations

import json
from threading import Barrier
from typing import Any

from hubmerge.engine.distributed import Ranks


class Thread(Ranks):
    """A rank that is a thread; what is exchanged passes through JSON, as between processes."""

    def __init__(self, rank: int, size: int, barrier: Barrier, board: list[str]) -> None:
        self.rank, self.size = rank, size
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
