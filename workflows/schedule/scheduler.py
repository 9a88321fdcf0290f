"""The clockwork: calls functions every so many seconds, and nothing else.

The job database holds everything that is due. A tick looks there and does what is missing, so a late, repeated or lost
tick changes nothing. Waiting goes by the steady clock, so that nobody who sets the wall clock holds a tick up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Self

from hubmerge.errors import HubmergeError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """A function that is called at once and then every `every_s` seconds, never twice at a time."""

    name: str
    every_s: float
    run: Callable[[], object]


class Scheduler:
    """Runs each tick in a thread of its own while it is entered; on leaving it waits for those that run."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        self._ticks = tuple(ticks)

    def __enter__(self) -> Self:
        self._stop = Event()
        self._threads = [Thread(target=_keep, args=(tick, self._stop), daemon=True) for tick in self._ticks]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _keep(tick: Tick, stop: Event) -> None:
    """Call a tick until the end; its errors are logged and end there."""
    while not stop.is_set():
        began = time.monotonic()
        try:
            tick.run()
        except HubmergeError as error:
            log.warning("tick %s: %s", tick.name, error)
        except Exception:  # a job boundary: the next tick, and the others, go on
            log.exception("tick %s", tick.name)
        stop.wait(began + tick.every_s - time.monotonic())
