"""The clockwork: calls functions every so many seconds, and nothing else.

The job database holds everything that is due. A tick looks there and does what is missing, so a late, repeated or lost
tick changes nothing. Pauses are measured in steady seconds: whoever sets the clock, by however much, moves no tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Self

from hubmerge.errors import HubmergeError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """A function that is called at once and then `every_s` seconds after each call's end, never twice at a time."""

    name: str
    every_s: float
    run: Callable[[], object]


class Scheduler:
    """Runs ticks while it is entered; on leaving it waits for those that run, and no thread of it is left."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        self._stop = Event()
        # a thread each: a slow tick holds up no other
        self._threads = [Thread(target=self._keep, args=(tick,), name=f"tick-{tick.name}") for tick in ticks]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, tick: Tick) -> None:
        while not self._stop.is_set():
            try:
                tick.run()
            except HubmergeError as error:
                log.warning("tick %s: %s", tick.name, error)
            except Exception:  # a job boundary: the next tick, and the others, go on
                log.exception("tick %s", tick.name)
            self._stop.wait(tick.every_s)
