"""A thread that does one thing to every item it is given, in order, a few items behind whoever gives them.

Items and the room for them are two queues without locks of Python's: handing over an item costs microseconds of the
interpreter, which queue.Queue, made of conditions, takes dozens of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Follower(Generic[T]):
    """`work` over items in a thread of its own; at most `behind` of them wait.

    An error of `work` is raised in the giver's thread, by the next `put` or by `finish`; items after it are dropped.
    Leaving the context ends the thread, whatever still waits.
    """

    def __init__(self, work: Callable[[T], None], name: str, behind: int = 2) -> None:
        self._work = work
        self._items: SimpleQueue[T | None] = SimpleQueue()  # None: the end
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(behind):
            self._room.put(None)
        self._error: BaseException | None = None
        self._dropping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._room.put(None)
            if self._dropping:
                continue
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 (it is raised where the items come from)
                self._error = error
                self._dropping = True

    def put(self, item: T) -> None:
        """Give the next item; waits while `behind` items wait."""
        self._raise()
        self._room.get()
        self._items.put(item)

    def finish(self) -> None:
        """Return when everything is done."""
        if self._thread.is_alive():
            self._items.put(None)
            self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dropping = True
        if self._thread.is_alive():
            self._items.put(None)
            self._thread.join()
