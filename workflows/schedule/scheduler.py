"""The clockwork: calls functions every so many seconds, and nothing else; the only importer of APScheduler.

The job database holds everything that is due. A tick looks there and does what is missing, so a late, repeated or lost
tick changes nothing. The schedule itself is in memory, since APScheduler's stores unpickle their rows.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Self

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from hubmerge.errors import HubmergeError

LOOK_EVERY_S = 10.0  # seconds between two looks at the wall clock

log = logging.getLogger(__name__)


@dataclass
class Tick:
    """A function that is called at once and then every `every_s` seconds, never twice at a time."""

    name: str
    every_s: float
    run: Callable[[], object]
    failed: object = None  # what kind of error ended its last call


class _Pause(BaseTrigger):  # type: ignore[misc]  # the library has no types
    """Fires so many seconds after now. APScheduler's own trigger lists every time that was missed since the last one:
    gigabytes, where a clock is set forward by a year."""

    def __init__(self, seconds: float) -> None:
        self._pause = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        return now + self._pause


class Scheduler:
    """Runs ticks while it is entered; on leaving it waits for those that run, and no thread of it is left."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        self._ticks = tuple(ticks)

    def __enter__(self) -> Self:
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(max(1, len(self._ticks)))},  # a slow tick holds up no other
            # a tick that was missed while the machine slept comes, however late it is
            job_defaults={"misfire_grace_time": None, "max_instances": 1},
        )
        logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a skipped run of a slow tick is no news
        for tick in self._ticks:
            self._scheduler.add_job(
                run_tick, _Pause(tick.every_s), (tick,), id=tick.name, next_run_time=datetime.now(UTC)
            )
        self._scheduler.start()
        self._stop = Event()
        self._watching = Thread(target=self._watch_the_clock, daemon=True)
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watching.join()
        self._scheduler.shutdown(wait=True)

    def _watch_the_clock(self) -> None:
        """APScheduler waits for times of the wall clock: where somebody sets it back by a day, no tick would come for a
        day. So all of them come at once then."""
        last = time.time()
        while not self._stop.wait(LOOK_EVERY_S):
            now = time.time()
            if now < last:
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=datetime.now(UTC))
            last = now


def run_tick(tick: Tick) -> None:
    """Call a tick once; its errors end here. Those of one outage are logged once."""
    before, tick.failed = tick.failed, None
    try:
        tick.run()
    except Exception as error:  # a job boundary: the next tick, and the others, go on
        tick.failed = error.code if isinstance(error, HubmergeError) else type(error)
        if tick.failed == before:
            return
        if isinstance(error, HubmergeError):
            log.warning("tick %s: %s", tick.name, error)
        else:
            log.exception("tick %s", tick.name)
