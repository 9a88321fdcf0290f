"""The board as a running app shows it: rebuilt when the results dataset moves, asked about at most now and then.

While the Hub does not answer, the last board stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from hubmerge.board.values import Board
from hubmerge.errors import HubmergeError, SourceNotFoundError
from hubmerge.leaderboard import build_board
from hubmerge.results_dataset import LoadedResults, ResultsDataset

REFRESH_S = 30.0


class DatasetBoard:
    """Implements hubmerge.ui.service.BoardSource; safe to be asked by many threads at once."""

    def __init__(
        self,
        dataset: ResultsDataset,
        *,
        refresh_s: float = REFRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dataset = dataset
        self._refresh_s = refresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._loaded: LoadedResults | None = None
        self._board = Board()

    @property
    def url(self) -> str:
        return self._dataset.url

    def board(self) -> Board:
        # whoever comes while another thread rebuilds gets the board as it was
        if not self._lock.acquire(blocking=self._asked_at is None):
            return self._board
        try:
            now = self._clock()
            if self._asked_at is None or now - self._asked_at >= self._refresh_s:
                self._refresh()
                self._asked_at = now
            return self._board
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        try:
            loaded = self._dataset.load()
        except SourceNotFoundError:
            loaded = None  # no result was ever recorded
        except HubmergeError:
            if self._asked_at is None:
                raise
            return
        if loaded is not self._loaded:
            board = Board()
            if loaded is not None:
                now = datetime.now(UTC)
                board = build_board(
                    loaded.results, loaded.flags, refused=loaded.refused, now=now, trusted=loaded.trusted
                )
            self._loaded, self._board = loaded, board
