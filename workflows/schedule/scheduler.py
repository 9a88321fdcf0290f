"""The clockwork: calls functions every so many seconds, and nothing else; the only importer of APScheduler.

The job database holds everything that is due. A tick looks there and does what is missing, so a late, repeated or lost
tick changes nothing. The schedule itself is in memory, since APScheduler's stores unpickle their rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from hubmerge.errors import HubmergeError, InternalError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """A function that is called at once and then every `every_s` seconds, never twice at a time."""

    name: str
    every_s: float
    run: Callable[[], object]


class Scheduler:
    """Runs ticks from `start` to `stop`; a context manager. No thread of it is left after `stop`."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        if len({tick.name for tick in ticks}) != len(ticks):
            raise InternalError("two ticks have one name", where=", ".join(tick.name for tick in ticks))
        self._ticks = tuple(ticks)
        self._scheduler: BackgroundScheduler | None = None

    def start(self) -> Self:
        if self._scheduler is not None:
            raise InternalError("the scheduler is running already")
        scheduler = BackgroundScheduler(
            timezone=UTC,
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(max(1, len(self._ticks)))},  # a slow tick holds up no other
            # ticks that were missed while the machine slept become one, however late it is
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a skipped run of a slow tick is no news
        for tick in self._ticks:
            scheduler.add_job(
                run_tick, "interval", (tick,), seconds=tick.every_s, id=tick.name, next_run_time=datetime.now(UTC)
            )
        scheduler.start()
        self._scheduler = scheduler
        return self

    def stop(self) -> None:
        """End; waits for the ticks that run."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def run_tick(tick: Tick) -> None:
    """Call a tick once; its errors are logged and end there."""
    try:
        tick.run()
    except HubmergeError as error:
        log.warning("tick %s: %s", tick.name, error)
    except Exception:  # a job boundary: the next tick, and the others, go on
        log.exception("tick %s", tick.name)
