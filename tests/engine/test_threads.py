"""The two ways of working in threads: order, how many at once, and what an error and an early end leave behind."""

import threading
import weakref
from collections.abc import Iterator

import pytest

from hubmerge.engine.threads import Follower, in_order


def alive(name: str = "hubmerge-stream") -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(name)]


@pytest.mark.parametrize("workers", [1, 5])
def test_results_come_in_the_items_order(workers):
    late = threading.Event()

    def work(item: int) -> int:
        if item == 0 and workers > 1:
            late.wait(10)
        if item == workers - 1:
            late.set()
        return item * item

    assert list(in_order(range(100), work, workers)) == [n * n for n in range(100)]
    assert alive() == []


@pytest.mark.parametrize(("items", "workers"), [(50, 3), (1, 4), (9, 1)])
def test_items_and_threads_are_few(items, workers):
    asked: list[int] = []

    def asking() -> Iterator[int]:
        for n in range(items):
            asked.append(n)
            yield n

    for taken, result in enumerate(in_order(asking(), lambda n: n, workers)):
        assert result == taken
        assert len(asked) <= taken + 2 * workers
        assert 1 <= len(alive()) <= min(len(asked), workers)
    assert alive() == []


def test_none_takes_the_oldest_result_before_the_next_item_is_asked_for():
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


def test_an_error_is_raised_at_its_place_and_what_waits_is_not_begun(monkeypatch):
    begun: list[int] = []
    over: list[bool] = []
    ending, join = threading.Event(), threading.Thread.join

    def work(item: int) -> int:
        begun.append(item)
        if item == 2:
            raise KeyboardInterrupt("two")
        if item > 2:
            ending.wait()
        return item

    # when there is nothing left but to wait for the threads
    monkeypatch.setattr(threading.Thread, "join", lambda thread: ending.set() or join(thread))
    took: list[int] = []
    with pytest.raises(KeyboardInterrupt, match="two"):
        took.extend(in_order(range(100), work, 2, lambda: over.append(True)))
    assert took == [0, 1]
    assert over == [True]
    assert max(begun) <= 4  # in 3 and 4 the two threads hung, and 5 was waiting
    assert alive() == []


def test_a_consumer_that_leaves_and_an_error_of_the_items_end_the_threads():
    over: list[bool] = []
    results = in_order(range(100), lambda n: n, 2, lambda: over.append(True))
    assert next(results) == 0
    results.close()
    assert over == [True]

    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError):
        list(in_order(items(), lambda n: n, 2))
    assert alive() == []


def test_a_result_belongs_to_its_consumer_alone():
    """Not to the thread that made it either, which may wait for its next item for long."""

    class Large:
        pass

    results = in_order(range(5), lambda n: Large(), 2)
    for _ in range(5):
        gone = threading.Event()
        weakref.finalize(next(results), gone.set)
        assert gone.wait(10)
    results.close()


def give(follower: Follower[int], items: int) -> None:
    for item in range(items):
        follower.put(item)


def test_a_follower_works_in_order_and_all_is_done_when_finish_returns():
    seen: list[int] = []
    with Follower(seen.append, "order") as follower:
        give(follower, 1000)
        follower.finish()
        assert seen == list(range(1000))
    assert alive("order") == []


def test_the_giver_waits_while_enough_items_wait():
    gate = threading.Event()
    with Follower(lambda item: gate.wait(), "bounded", behind=2) as follower:
        giver = threading.Thread(target=give, args=(follower, 4))
        giver.start()
        giver.join(0.3)
        waits = giver.is_alive()
        gate.set()
        giver.join()
        follower.finish()
    assert waits


@pytest.mark.parametrize("items", [3, 100])  # raised by `finish`, or by a `put` before it
def test_an_error_is_raised_by_a_later_put_or_by_finish(items):
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise ValueError("two")

    def given() -> None:
        with Follower(work, "error") as follower:
            give(follower, items)
            follower.finish()

    with pytest.raises(ValueError, match="two"):
        given()
    assert len(begun) <= 5, "two may wait behind an error"
    assert alive("error") == []


def test_leaving_drops_what_waits_and_ends_the_thread(monkeypatch):
    seen: list[int] = []
    leaving, join = threading.Event(), threading.Thread.join

    def work(item: int) -> None:
        leaving.wait()
        seen.append(item)

    def interrupted(follower: Follower[int]) -> None:
        with follower:
            give(follower, 5)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", lambda thread: leaving.set() or join(thread))
    with pytest.raises(KeyboardInterrupt):
        interrupted(Follower(work, "left", behind=5))
    assert seen in ([], [0])
    assert alive("left") == []
