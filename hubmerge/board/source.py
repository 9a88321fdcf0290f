"""The board of a running app: it is rebuilt when the results dataset has changed, which is checked now and then.

While the Hub does not answer, the last board stays. Before the first board, a visitor is soon told that there is none
yet, and not every visitor asks the Hub again, since a waiting thread cannot show other pages.
"""

import threading
import time
from collections.abc import Callable

from hubmerge.board.leaderboard import board_of
from hubmerge.board.results_dataset import LoadedResults, ResultsDataset
from hubmerge.board.values import Board
from hubmerge.errors import HubmergeError, HubUnavailableError, SourceNotFoundError

REFRESH_S = 10.0  # a page that says an evaluation is done is followed soon by the board
FIRST_WAIT_S = 5.0  # for the first board, while another thread reads it, and between two tries to read it


class DatasetBoard:
    """The source of the leaderboard's pages; safe to be asked by many threads at once."""

    def __init__(self, dataset: ResultsDataset, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dataset = dataset
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._loaded: LoadedResults | None = None
        self._board: Board | None = None
        self._failure: HubmergeError | None = None  # the last one

    @property
    def url(self) -> str:
        """The page of the results dataset."""
        return self._dataset.url

    def board(self) -> Board:
        """The board as it is known; HubmergeError while none is."""
        # a visitor who comes while another thread rebuilds the board gets the old one
        known = self._board
        if not self._lock.acquire(timeout=FIRST_WAIT_S if known is None else 0):
            if known is None:
                raise HubUnavailableError(
                    "the results are being read for the first time", next_step="Try again in some seconds."
                )
            return known
        try:
            pause_s = FIRST_WAIT_S if self._board is None else REFRESH_S
            if self._asked_at is None or self._clock() - self._asked_at >= pause_s:
                self._refresh()
                self._asked_at = self._clock()
            if self._board is None:
                assert self._failure is not None
                raise self._failure.with_traceback(None)
            return self._board
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        """Read the dataset where it has moved; a failure is kept for those who ask before there is a board."""
        try:
            loaded = self._dataset.load()
        except SourceNotFoundError:  # no result was ever recorded
            self._loaded, self._board = None, Board()
        except HubmergeError as error:
            self._failure = error
        else:
            if loaded is not self._loaded:
                self._loaded, self._board = loaded, board_of(loaded)
