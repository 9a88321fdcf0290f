"""The board of a running app: asked for seldom, rebuilt when the dataset moves, kept while the Hub is silent."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from board_helpers import family, result

from hubmerge.board.leaderboard import build_board
from hubmerge.board.results_dataset import LoadedResults
from hubmerge.board.source import FIRST_WAIT_S, DatasetBoard
from hubmerge.board.values import Board
from hubmerge.errors import HubUnavailableError, SourceNotFoundError


class Dataset:
    """A ResultsDataset in the test's hands."""

    url = "http://hub/datasets/zoo/results"

    def __init__(self) -> None:
        self.loads = 0
        self.now = 0.0
        self.loaded = LoadedResults(results=tuple(family()), sha="a" * 40)
        self.failure: Exception | None = None

    def load(self) -> LoadedResults:
        self.loads += 1
        if self.failure is not None:
            raise self.failure
        return self.loaded


@pytest.fixture
def dataset() -> Dataset:
    return Dataset()


@pytest.fixture
def source(dataset: Dataset) -> DatasetBoard:
    return DatasetBoard(dataset, clock=lambda: dataset.now)  # type: ignore[arg-type]


def test_the_dataset_is_asked_now_and_then_and_a_new_result_appears(dataset, source):
    assert source.board().suites == build_board(family()).suites
    dataset.now = 9
    source.board()
    assert dataset.loads == 1
    dataset.now = 11
    first = source.board()
    assert dataset.loads == 2
    dataset.now = 62
    assert source.board() is first  # the head has not moved, so nothing is rebuilt
    more = (*family(), result("org/new", "7", {"math": 0.9, "instruction": 0.9, "code": 0.9}))
    dataset.loaded, dataset.now = LoadedResults(results=more, sha="b" * 40), 93
    assert source.board().suites[0].rows[0].model == "org/new"


def test_the_last_board_stays_while_the_hub_is_silent(dataset, source):
    board = source.board()
    dataset.failure, dataset.now = HubUnavailableError("down"), 31
    assert source.board() is board
    assert source.board() is board
    assert dataset.loads == 2


def test_a_hub_that_never_answered_is_told(dataset, source):
    dataset.failure = HubUnavailableError("down")
    for _ in range(68):  # of whom each would wait for minutes, in a thread that shows no other page
        with pytest.raises(HubUnavailableError, match="down"):
            source.board()
    assert dataset.loads == 1
    dataset.failure, dataset.now = None, FIRST_WAIT_S
    assert source.board().suites


@contextmanager
def being_read(dataset: Dataset, source: DatasetBoard) -> Iterator[None]:
    """Another thread reads the dataset meanwhile, and has read it afterwards."""
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> LoadedResults:
        inside.set()
        assert go_on.wait(60)
        return dataset.loaded

    dataset.load = slow  # type: ignore[method-assign]
    reading = threading.Thread(target=source.board)
    reading.start()
    assert inside.wait(60)
    try:
        yield
    finally:
        go_on.set()
        reading.join()


def test_nobody_waits_long_for_a_first_board_that_the_hub_does_not_give(dataset, source, monkeypatch):
    monkeypatch.setattr("hubmerge.board.source.FIRST_WAIT_S", 0.1)
    with being_read(dataset, source):
        for _ in range(3):
            with pytest.raises(HubUnavailableError, match="read for the first time"):
                source.board()
    assert source.board().suites


def test_a_dataset_that_does_not_exist_yet_is_an_empty_board(dataset, source):
    dataset.failure = SourceNotFoundError("no such repo")
    assert source.board() == Board()


def test_nobody_waits_while_another_thread_rebuilds(dataset, source):
    board = source.board()
    dataset.loaded, dataset.now = LoadedResults(results=(), sha="b" * 40), 31
    with being_read(dataset, source):
        began = time.monotonic()
        assert source.board() is board
        assert time.monotonic() - began < FIRST_WAIT_S
    assert source.board() == Board()
