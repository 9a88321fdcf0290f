"""Work in threads whose results come in order: how many at once, what an error and an early end leave behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from hubmerge.engine.threads import in_order


def streaming() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("hubmerge-stream")]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_items_order(workers: int) -> None:
    late = threading.Event()

    def work(item: int) -> int:
        if item == 0 and workers > 1:
            late.wait(10)
        if item == workers - 1:
            late.set()
        return item * item

    assert list(in_order(range(100), work, workers)) == [n * n for n in range(100)]
    assert streaming() == []


def test_at_most_two_items_per_worker_are_asked_for_ahead_of_the_results() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for n in range(50):
            asked.append(n)
            yield n

    for taken, result in enumerate(in_order(items(), lambda n: n, 3)):
        assert result == taken
        assert len(asked) <= taken + 6


def test_none_takes_the_oldest_result_before_the_next_item_is_asked_for() -> None:
    took: list[int] = []

    def items() -> Iterator[int | None]:
        yield 1
        yield 2
        yield None
        assert took == [1]
        yield 3

    for result in in_order(items(), lambda n: n, 4):
        took.append(result)
    assert took == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_is_raised_at_its_place_and_what_waits_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    begun: list[int] = []
    over: list[bool] = []
    ending = threading.Event()
    join = threading.Thread.join

    def join_and_end(thread: threading.Thread) -> None:  # when there is nothing left but to wait for the threads
        ending.set()
        join(thread)

    def work(item: int) -> int:
        begun.append(item)
        if item == 2:
            raise error("two")
        if item > 2:
            ending.wait()
        return item

    monkeypatch.setattr(threading.Thread, "join", join_and_end)
    took: list[int] = []
    with pytest.raises(error, match="two"):
        took.extend(in_order(range(100), work, 2, lambda: over.append(True)))
    assert took == [0, 1]
    assert over == [True]
    assert max(begun) <= 4  # in 3 and 4 the two threads hung, and 5 was waiting
    assert streaming() == []


def test_a_consumer_that_leaves_ends_the_threads() -> None:
    over: list[bool] = []
    results = in_order(range(100), lambda n: n, 2, lambda: over.append(True))
    assert next(results) == 0
    results.close()
    assert over == [True]
    assert streaming() == []


def test_an_error_of_the_items_ends_the_threads() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError):
        list(in_order(items(), lambda n: n, 2))
    assert streaming() == []


@pytest.mark.parametrize(("items", "workers"), [(1, 4), (3, 4), (9, 4), (9, 1)])
def test_there_are_no_more_threads_than_workers_and_none_without_an_item(items: int, workers: int) -> None:
    asked: list[int] = []

    def asking() -> Iterator[int]:
        for n in range(items):
            asked.append(n)
            yield n

    for _ in in_order(asking(), lambda n: n, workers):
        assert 1 <= len(streaming()) <= min(len(asked), workers)


def test_without_items_there_is_no_thread() -> None:
    started: list[int] = []
    assert list(in_order([], started.append, 4)) == []
    assert streaming() == []


def test_a_result_belongs_to_its_consumer_alone() -> None:
    """Not to the thread that made it either, which may wait for its next item for long."""

    class Large:
        pass

    results = in_order(range(5), lambda n: Large(), 2)
    for _ in range(5):
        gone = threading.Event()
        weakref.finalize(next(results), gone.set)
        assert gone.wait(10)
    results.close()
