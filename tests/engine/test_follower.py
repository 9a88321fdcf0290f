"""What a follower promises: order, bounded waiting, errors where the items come from, no thread left behind."""

from __future__ import annotations

import threading

import pytest

from hubmerge.engine.threads import Follower


def alive(name: str) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(name)]


def test_items_are_worked_on_in_order_and_all_are_done_when_finish_returns() -> None:
    seen: list[int] = []
    with Follower(seen.append, "order") as follower:
        for item in range(1000):
            follower.put(item)
        follower.finish()
        assert seen == list(range(1000))
    assert alive("order") == []


def test_the_giver_waits_while_enough_items_wait() -> None:
    gate, put = threading.Event(), []
    with Follower(lambda item: gate.wait(), "bounded", behind=2) as follower:

        def give_four() -> None:
            for item in range(4):
                follower.put(item)
                put.append(item)

        giver = threading.Thread(target=give_four)
        giver.start()
        giver.join(0.3)
        assert giver.is_alive()
        assert len(put) <= 3  # one being worked on, two that wait
        gate.set()
        giver.join()
        follower.finish()
    assert put == [0, 1, 2, 3]


def test_an_error_is_raised_by_the_next_put_or_by_finish_and_what_follows_is_dropped() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        if item == 2:
            raise ValueError("two")
        seen.append(item)

    with Follower(work, "error") as follower:
        with pytest.raises(ValueError, match="two"):
            give(follower, 100)
        with pytest.raises(ValueError, match="two"):
            follower.finish()
    assert seen == [0, 1]
    assert alive("error") == []


def test_an_error_lets_a_giver_go_that_waits_for_room() -> None:
    waiting = threading.Event()

    def work(item: int) -> None:
        waiting.wait()
        raise ValueError("zero")

    with Follower(work, "let go", behind=1) as follower:
        give(follower, 2)  # one is being worked on, one waits
        threading.Timer(0.1, waiting.set).start()
        with pytest.raises(ValueError, match="zero"):
            follower.put(2)
    assert alive("let go") == []


def test_leaving_drops_what_waits_and_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    leaving = threading.Event()
    join = threading.Thread.join

    def work(item: int) -> None:
        leaving.wait()
        seen.append(item)

    def leave(thread: threading.Thread) -> None:  # when there is nothing left but to wait for the thread
        leaving.set()
        join(thread)

    monkeypatch.setattr(threading.Thread, "join", leave)
    with pytest.raises(KeyboardInterrupt):
        interrupted(Follower(work, "left", behind=5))
    assert seen in ([], [0])
    assert alive("left") == []


def give(follower: Follower[int], items: int) -> None:
    for item in range(items):
        follower.put(item)


def interrupted(follower: Follower[int]) -> None:
    with follower:
        give(follower, 5)
        raise KeyboardInterrupt
