"""Work on many items in a few threads, of which the results come in the items' order.

At most two items per thread are in flight, so that memory does not grow with the model or its largest tensor. What
concurrent.futures would do between two chunks, with a condition of Python's for each, takes as long as a tenth of a
chunk's arithmetic, and meanwhile no other thread begins its next one: an item has one lock here, which is its end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class _Job(Generic[A, B]):
    """An item that waits for a thread, or its result that waits to be taken."""

    __slots__ = ("_done", "_error", "_item", "_result", "_work")

    def __init__(self, work: Callable[[A], B], item: A) -> None:
        self._work: Callable[[A], B] | None = work
        self._item = item
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        try:
            if (work := self._work) is not None:
                self._result = work(self._item)
        except BaseException as error:  # noqa: BLE001 (it is raised where the result is taken)
            self._error = error
        finally:
            self._done.release()

    def cancel(self) -> None:
        """It is not begun any more."""
        self._work = None

    def result(self) -> B:
        """Wait for it; only once."""
        self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._result


def in_order(
    items: Iterable[A | None], work: Callable[[A], B], workers: int, abandon: Callable[[], None] = lambda: None
) -> Iterator[B]:
    """`work` over `items` in several threads, results in the items' order, at most two per thread in flight.

    None among the items takes the oldest result before the next item is asked for; there must be one. `abandon` is
    called when it ends before the items do, so that work that waits for something can give up. No thread is left.
    """
    pending: deque[_Job[A, B]] = deque()
    waiting: SimpleQueue[_Job[A, B] | None] = SimpleQueue()
    threads: list[threading.Thread] = []
    try:
        for item in items:
            if item is not None:
                job = _Job(work, item)
                if len(threads) < workers:
                    thread = threading.Thread(
                        target=_run, args=(waiting,), name=f"hubmerge-stream_{len(threads)}", daemon=True
                    )
                    thread.start()
                    threads.append(thread)
                waiting.put(job)
                pending.append(job)
                del job  # a result is its consumer's alone
            if item is None or len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException:  # an error of the work, or the consumer leaves (GeneratorExit)
        abandon()
        raise
    finally:
        for job in pending:
            job.cancel()
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()


def _run(waiting: SimpleQueue[_Job[A, B] | None]) -> None:
    while (job := waiting.get()) is not None:
        job.run()
        del job
