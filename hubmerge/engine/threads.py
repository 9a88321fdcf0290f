"""The two ways in which the engine works in threads: on many items at once, and a few items behind whoever gives them.

In both at most a few items are in flight, so that memory does not grow with the model or its largest tensor.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

A = TypeVar("A")
B = TypeVar("B")


def in_order(
    items: Iterable[A | None], work: Callable[[A], B], workers: int, abandon: Callable[[], None] = lambda: None
) -> Iterator[B]:
    """`work` over `items` in several threads, results in the items' order, at most two per thread in flight.

    None among the items takes the oldest result before the next item is asked for; there must be one. `abandon` is
    called when it ends before the items do, so that work that waits for something can give up. No thread is left.
    """
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="hubmerge-stream") as pool:
        try:
            for item in items:
                if item is not None:
                    pending.append(pool.submit(work, item))
                if item is None or len(pending) >= 2 * workers:
                    yield pending.popleft().result()  # a result is its consumer's alone
            while pending:
                yield pending.popleft().result()
        except BaseException:  # an error of the work, or the consumer leaves (GeneratorExit)
            abandon()
            raise
        finally:
            for job in pending:
                job.cancel()


class Follower(Generic[A]):
    """`work` over items, in order, in a thread of its own; at most `behind` of them wait.

    An error of `work` is raised in the giver's thread, by a later `put` or by `finish`. Leaving the context ends the
    thread, whatever still waits.
    """

    def __init__(self, work: Callable[[A], None], name: str, behind: int = 2) -> None:
        self._work = work
        self._behind = behind
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._given: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def put(self, item: A) -> None:
        """Give the next item; waits while `behind` items wait."""
        self._settle(self._behind)
        self._given.append(self._pool.submit(self._work, item))

    def finish(self) -> None:
        """Return when everything is done."""
        self._settle(0)

    def _settle(self, most: int) -> None:
        """Wait until at most `most` items are not done; the error of one is raised."""
        while len(self._given) > most:
            self._given.popleft().result()

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
