"""Supervises one attempt at one job: forwards the child's events, keeps the lease, and turns its end into a transition.

    child says / does                          the job
    result, exit 0                             done
    error line                                 failed, or tried again where that makes sense
    killed (SIGKILL) by nobody here            perhaps for its memory: tried again; twice at one place, E_TOO_BIG
    killed, and the kernel lacked no memory    E_MACHINE: tried again
    any other death without a word             tried again
    cancelled by its user                      TERM to the group, KILL after a grace, cancelled
    lease lost                                 group killed, nothing written: the job has another owner
    worker stops                               group killed, job given back: every stage resumes where it was

Progress overwrites one column a few times a second, and statistics the statistics before them; everything else is
appended, up to a number per attempt.
"""

import logging
import time
from dataclasses import dataclass
from threading import Event as Flag
from typing import Any, Literal

from hubmerge.errors import CancelledError, DiskError, HubmergeError, InternalError, MemoryLimitError
from hubmerge.isolation.child import ChildProcess, how_ended
from workflows.jobs.jobs import DatabaseBusyError, Job, JobError, StaleFenceError, State, iso
from workflows.jobs.protocol import Failure, Progress, Result, StageStarted, Statistics, decoded
from workflows.jobs.store import Store

log = logging.getLogger(__name__)

MAX_EVENTS = 1000  # per attempt, beside statistics, of which the newest alone stay
MAX_EVENT_CHARACTERS = 256 * 1024
PASSING = (DatabaseBusyError, DiskError)  # the database cannot be written now, and will be later


@dataclass(frozen=True)
class Timing:
    """How often the worker looks, in seconds."""

    idle_s: float = 1.0  # between two looks at an empty queue
    line_s: float = 0.2
    cancel_s: float = 0.5
    heartbeat_s: float = 5.0
    progress_s: float = 0.3
    grace_s: float = 10.0  # between TERM and KILL
    sweep_s: float = 300.0
    keep_failed_s: float = 3 * 86400.0  # a failed job's folder, for another submission to go on from


class Supervision:
    """Follows one child to its end."""

    def __init__(self, store: Store, job: Job, child: ChildProcess, timing: Timing) -> None:
        self._store = store
        self._job = job
        self._child = child
        self._timing = timing
        self._stop: Literal["cancel", "lost", "shutdown"] | None = None  # why the worker ends the child
        self._result: Result | None = None
        self._failure: Failure | None = None
        self._stage = job.stage
        self._progress: Progress | None = None
        self._moved = False  # stage or progress not yet stored
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._events = 0
        self._dropped = 0

    def run(self, shutdown: Flag) -> Job | None:
        """The job as this attempt left it; None when it belongs to another worker now."""
        try:
            self._follow(shutdown)
        except StaleFenceError as error:
            self._lose(error)
        finally:
            code, rest = self._child.close()
        self._take(rest)
        deadline = self._store.clock.steady() + self._store.lease_s
        while self._stop != "lost":
            try:
                self._write_events()
                self._write_progress()
                return self._conclude(code)
            except StaleFenceError as error:
                self._lose(error)
            except PASSING as error:
                if self._store.clock.steady() >= deadline:
                    self._lose(error)  # the lease runs out, and the next attempt finds what this one made
                time.sleep(self._timing.idle_s)
        return None

    def _lose(self, reason: Exception) -> None:
        log.warning("job %s is no longer ours: %s", self._job.id[:12], reason)
        self._stop = "lost"

    def _follow(self, shutdown: Flag) -> None:
        steady, timing = self._store.clock.steady, self._timing
        next_beat = next_look = next_progress = kill_at = 0.0
        lease_end = steady() + self._store.lease_s
        while not self._child.has_ended():
            self._take(self._child.lines(timing.line_s))
            now = steady()
            try:
                if now >= next_beat:
                    self._child.beat()  # first: while the lease holds, a busy database costs the child nothing
                    self._store.heartbeat(self._job.id, self._job.fence)
                    next_beat, lease_end = now + timing.heartbeat_s, now + self._store.lease_s
                self._write_events()
                if now >= next_progress:
                    next_progress = now + timing.progress_s
                    self._write_progress()
                if self._stop is None and now >= next_look:
                    next_look = now + timing.cancel_s
                    if self._store.get(self._job.id).state is State.CANCELLING:
                        self._stop, kill_at = "cancel", now + timing.grace_s
                        self._child.terminate()
            except PASSING as error:  # go on while the lease holds
                log.warning("job %s goes on without the database: %s", self._job.id[:12], error)
                if now >= lease_end:
                    return self._lose(error)
            if self._stop == "cancel" and now >= kill_at:
                self._child.kill()
            if self._stop is None and shutdown.is_set():
                self._stop = "shutdown"
                return

    def _take(self, lines: list[bytes]) -> None:
        """Sort the child's events. Nothing is written yet, so nothing can be lost half-way."""
        for line in decoded(lines):
            if isinstance(line, Progress):
                self._stage, self._progress, self._moved = line.stage, line, True
            elif isinstance(line, Result):
                self._result = line
            elif isinstance(line, Failure):
                self._failure = line
            else:
                if isinstance(line, StageStarted):
                    self._stage, self._progress, self._moved = line.stage, None, True
                counts = not isinstance(line, Statistics)
                if (counts and self._events >= MAX_EVENTS) or len(line.model_dump_json()) > MAX_EVENT_CHARACTERS:
                    self._dropped += 1
                else:
                    self._events += counts
                    self._pending.append((line.type, line.model_dump(mode="json", exclude={"type"})))

    def _write_events(self) -> None:
        if self._pending:
            self._store.append_events(self._job.id, self._job.fence, self._pending)
            self._pending = []

    def _write_progress(self) -> None:
        if self._moved:
            values = None
            if self._progress:  # with the moment, so that what is left can be told between two of them
                values = self._progress.model_dump(mode="json", exclude={"type"})
                values["at"] = iso(self._store.clock.now())
            self._store.set_progress(self._job.id, self._job.fence, self._stage, values)
            self._moved = False

    def _conclude(self, code: int) -> Job:
        store, job_id, fence = self._store, self._job.id, self._job.fence
        if self._dropped:
            note = {"message": f"{self._dropped} events, too many or too long, were left out"}
            store.append_events(job_id, fence, [("warning", note)])
            self._dropped = 0
        if code == 0 and self._result is not None:
            return store.finish(job_id, fence, self._result.values)
        if self._stop == "cancel":
            return store.cancelled(job_id, fence)
        if self._stop == "shutdown":
            return store.release(job_id, fence)
        if self._failure is not None:
            error = self._failure.as_error()
            if error.code == CancelledError.code:  # a TERM from elsewhere: nobody here wants the job to end
                error = error.model_copy(update={"retryable": True})
            lacked_memory = error.code == MemoryLimitError.code and error.retryable
            return store.fail(job_id, fence, error, out_of_memory=lacked_memory)
        where, killed = f"stage {self._stage}", self._child.killed(code)
        death: HubmergeError = InternalError(
            "the job's process died without a message", where=where, got=how_ended(code), next_step="See its child.log."
        )
        if killed is not None:
            reason = "most likely for its memory" if killed is MemoryLimitError else "and not for its memory"
            death = killed(f"the job's process was killed, {reason}", where=where)
        return store.fail(job_id, fence, JobError.of(death, retryable=True), out_of_memory=killed is MemoryLimitError)
