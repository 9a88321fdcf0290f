"""The store of jobs: every change of a job's state is one transaction of this module.

A worker claims a job in one transaction, which grows the job's fence and starts a lease. Each later
write of that worker names the fence and is refused once the job was claimed again, so a worker that slept
through its lease can do no harm. Leases and back-off are measured in steady seconds of one boot
(`jobs.Clock`): setting the wall clock neither ends a lease nor prolongs it, and a reboot ends them all.

Whatever ends a job wipes its token in the same transaction. Out of the module go frozen values, never rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.dialects.sqlite import insert as upsert

from hubmerge.errors import (
    DiskError,
    InternalError,
    MachineFaultError,
    MemoryLimitError,
    PermissionDeniedError,
    QuotaError,
    RecipeError,
)
from workflows.jobs.jobs import (
    ACTIVE,
    DISK_STEPS,
    EVALUATION,
    HELD,
    OUTAGE_TRIES,
    Clock,
    Job,
    JobError,
    JobEvent,
    JobNotFoundError,
    NewJob,
    StaleFenceError,
    State,
    SystemClock,
    backoff_s,
    got_further,
    iso,
)
from workflows.jobs.schema import EVENTS, JOBS, TOKENS, open_engine, reading, writing
from workflows.jobs.tokens import SealedToken

DATABASE = "jobs.sqlite3"
LEASE_S = 30.0
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_SEARCHED = 2000  # evaluations, among which those of a merge are looked for
MAX_WAITING = 2000  # jobs of all users together
MEMORY_DEATHS = 2  # the second one at the same place is final
MOST_ATTEMPTS = 25  # of a job that gets further each time before something kills it
MOST_MACHINE_FAULTS = 12  # attempts, after which a fault of the machine counts as any other
_GIVEN_UP = (State.FAILED, State.CANCELLED)
_FREE: dict[str, Any] = {"lease_owner": None, "lease_until": None}
_AGAIN = "Submit the job again, and report it if that does not help."


class Store:
    """The job database in `data_dir`; safe to use from several threads and processes at once."""

    def __init__(
        self, data_dir: Path, *, clock: Clock | None = None, jobs_per_user: int = 5, lease_s: float = LEASE_S
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.lease_s = lease_s
        self.jobs_per_user = jobs_per_user
        self._engine = open_engine(data_dir / DATABASE)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with reading(self._engine) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        with writing(self._engine) as connection:
            yield Transaction(connection, self.clock)

    # What users do.

    def submit(
        self, new: NewJob, token: SealedToken | None = None, *, undone: bool = False, shared: bool = False
    ) -> Job:
        """Queue a job. The same identity again is the same job, and a new attempt where that one failed.

        `undone`: the job's product is missing, so a job that is done runs again too. `shared`: all users who submit it
        find the same job; a new attempt belongs to the user who asked for it and acts with that user's token.
        """
        if len(json.dumps(new.payload)) > MAX_PAYLOAD_BYTES:
            raise RecipeError(
                "the job's recipe is too long",
                expected=f"at most {MAX_PAYLOAD_BYTES} bytes of JSON",
                next_step="Merge fewer agents at once.",
            )
        ended = (*_GIVEN_UP, State.DONE) if undone else _GIVEN_UP
        with self.writing() as change:
            job = change.find(new.id)
            if job is not None and job.user != new.user and not shared:
                raise PermissionDeniedError(
                    "another user has submitted the same merge to the same target",
                    where=f"job {new.id[:12]}",
                    next_step="Choose another target.",
                )
            job = change.submit(new, token, self.jobs_per_user, again=lambda job: job.state in ended)
            if token is not None and job.user == new.user and not job.state.is_terminal:
                change.keep_token(new.id, token)  # the present sign-in, also for a job that waited already
            return job

    def retry(self, job_id: str, user: str, token: SealedToken) -> Job:
        """Queue a job of `user` that failed or was cancelled once more; it goes on from what it finished."""
        with self.writing() as change:
            job = change.owned(job_id, user, "try a job again")
            again = NewJob(id=job.id, kind=job.kind, user=user, payload=job.payload, priority=job.priority)
            return change.submit(again, token, self.jobs_per_user, again=lambda job: job.state in _GIVEN_UP)

    def request_cancel(self, job_id: str, user: str) -> Job:
        """Stop a job of `user`: at once while it waits, through its worker while it runs."""
        with self.writing() as change:
            job = change.owned(job_id, user, "cancel a job")
            if job.state is State.QUEUED:
                return change.end(job, State.CANCELLED)
            if job.state is State.RUNNING:
                change.event(job_id, "cancel_requested", {})
                return change.update(job_id, state=State.CANCELLING)
            return job

    # What is known.

    def get(self, job_id: str) -> Job:
        with self.reading() as connection:
            return _get(connection, job_id)

    def find(self, job_id: str) -> Job | None:
        with self.reading() as connection:
            return _find(connection, job_id)

    def list_jobs(
        self,
        *,
        user: str | None = None,
        asked: bool = False,
        states: Collection[State] | None = None,
        kinds: Collection[str] | None = None,
        public: bool = False,
        before: int | None = None,
        limit: int = 50,
    ) -> tuple[Job, ...]:
        """Newest first; `before` is the ticket of the last job of the page above. `asked`: beside those of `user`, the
        open evaluations that `user` asked for. `public`: none with a private result."""
        private = JOBS.c.payload["private"].as_boolean()
        query = select(JOBS).order_by(JOBS.c.ticket.desc()).limit(limit)
        if user is not None:
            wanted = and_(JOBS.c.payload["asked_by"].as_string() == user, private.is_not(True))
            query = query.where(or_(JOBS.c.user == user, wanted) if asked else JOBS.c.user == user)
        if states is not None:
            query = query.where(JOBS.c.state.in_(states))
        if kinds is not None:
            query = query.where(JOBS.c.kind.in_(kinds))
        if public:
            query = query.where(private.is_(False))
        if before is not None:
            query = query.where(JOBS.c.ticket < before)
        return self._jobs(query)

    def _jobs(self, query: Select[Any]) -> tuple[Job, ...]:
        with self.reading() as connection:
            return tuple(Job.model_validate(row) for row in connection.execute(query).mappings())

    def waiting_before(self, job: Job) -> int:
        """How many jobs of its kind, hence of its worker, are taken before a job that waits."""
        query = select(func.count()).where(
            JOBS.c.state == State.QUEUED,
            JOBS.c.kind == job.kind,
            or_(JOBS.c.priority > job.priority, and_(JOBS.c.priority == job.priority, JOBS.c.ticket < job.ticket)),
        )
        with self.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def evaluations_of(self, pins: Collection[tuple[str, str]]) -> tuple[Job, ...]:
        """The newest evaluation jobs of models at a commit; those long ago are on the board."""
        newest = select(JOBS).where(JOBS.c.kind == EVALUATION).order_by(JOBS.c.ticket.desc()).limit(MAX_SEARCHED)
        rows = newest.subquery()
        model, sha = (rows.c.payload[name].as_string() for name in ("model", "sha"))
        return self._jobs(select(rows).where(tuple_(model, sha).in_(list(pins))).order_by(rows.c.ticket.desc()))

    def stage_times(self, kind: str, jobs: int) -> tuple[tuple[str, str, str], ...]:
        """(job, moment, stage) of the newest jobs of a kind that are done; the stage is empty at a job's end."""
        newest = select(JOBS.c.id).where(JOBS.c.kind == kind, JOBS.c.state == State.DONE)
        newest = newest.order_by(JOBS.c.ticket.desc()).limit(jobs)
        query = (
            select(EVENTS.c.job_id, EVENTS.c.time, EVENTS.c.data["stage"].as_string())
            .where(EVENTS.c.job_id.in_(newest), EVENTS.c.type.in_(("claimed", "stage", "done")))
            .order_by(EVENTS.c.job_id, EVENTS.c.seq)
        )
        with self.reading() as connection:
            return tuple((job, moment, stage or "") for job, moment, stage in connection.execute(query))

    def events(self, job_id: str, limit: int = 1000, *, statistics: bool | None = None) -> tuple[JobEvent, ...]:
        """The newest events of a job, oldest first; a long outage makes more events than anybody reads.

        `statistics`: these alone, or all but these.
        """
        query = select(EVENTS).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.seq.desc()).limit(limit)
        if statistics is not None:
            query = query.where((EVENTS.c.type == "statistics") == statistics)
        with self.reading() as connection:
            newest = connection.execute(query).mappings().all()
        return tuple(JobEvent.model_validate(row) for row in reversed(newest))

    def sealed_token(self, job_id: str) -> SealedToken | None:
        query = select(TOKENS.c.ciphertext, TOKENS.c.expires_at).where(TOKENS.c.job_id == job_id)
        with self.reading() as connection:
            row = connection.execute(query).one_or_none()
        return SealedToken(row.ciphertext, row.expires_at) if row else None

    # What workers do.

    def claim(self, owner: str, kinds: Collection[str] | None = None) -> Job | None:
        """Take the job that is due: highest priority, then oldest. Abandoned jobs are taken back first."""
        self.reap()
        boot, steady = self.clock.boot_id, self.clock.steady()
        elapsed = _elapsed(JOBS.c.not_before, boot, steady)
        due = select(JOBS.c.id).where(JOBS.c.state == State.QUEUED, elapsed, _may_have_company())
        if kinds is not None:
            due = due.where(JOBS.c.kind.in_(kinds))
        with self.writing() as change:
            job_id = change.connection.execute(due.order_by(JOBS.c.priority.desc(), JOBS.c.ticket).limit(1)).scalar()
            if job_id is None:
                return None
            job = change.update(
                job_id,
                state=State.RUNNING,
                lease_owner=owner,
                lease_until=steady + self.lease_s,
                not_before=None,
                boot=boot,
                fence=JOBS.c.fence + 1,
                attempt=JOBS.c.attempt + 1,
                started=func.coalesce(JOBS.c.started, change.now),
            )
            change.event(job_id, "claimed", {"attempt": job.attempt, "worker": owner})
            return job

    def reap(self) -> tuple[Job, ...]:
        """Take back the jobs whose lease ran out.

        They wait again, due at once; one that was to be cancelled is cancelled, one out of attempts fails.
        """
        gone = _elapsed(JOBS.c.lease_until, self.clock.boot_id, self.clock.steady())
        abandoned = select(JOBS).where(JOBS.c.state.in_(HELD), gone)
        with self.writing() as change:
            rows = change.connection.execute(abandoned).mappings().all()
            return tuple(change.take_back(Job.model_validate(row)) for row in rows)

    def heartbeat(self, job_id: str, fence: int) -> Job:
        """Prolong the lease; the job that comes back says whether it is to be cancelled."""
        with self.writing() as change:
            change.held(job_id, fence)
            until = self.clock.steady() + self.lease_s
            return change.update(job_id, lease_until=until, boot=self.clock.boot_id)

    def append_events(self, job_id: str, fence: int, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        with self.writing() as change:
            change.held(job_id, fence)
            for kind, data in events:
                change.event(job_id, kind, data)

    def set_progress(self, job_id: str, fence: int, stage: str, progress: dict[str, Any] | None) -> None:
        """Overwrite where the job stands; history belongs to the events."""
        with self.writing() as change:
            change.held(job_id, fence)
            change.update(job_id, stage=stage, progress=progress)

    def finish(self, job_id: str, fence: int, result: dict[str, Any]) -> Job:
        """Mark the job as done, even if it was cancelled meanwhile, since its product is published."""
        with self.writing() as change:
            return change.end(change.held(job_id, fence), State.DONE, result=result)

    def fail(self, job_id: str, fence: int, error: JobError, *, out_of_memory: bool = False) -> Job:
        """End this attempt: the job is cancelled if a user asked for that, else tried again or failed."""
        with self.writing() as change:
            job = change.held(job_id, fence)
            if job.state is State.CANCELLING:
                return change.end(job, State.CANCELLED, error=error)
            return change.die_of_memory(job, error) if out_of_memory else change.fail(job, error)

    def cancelled(self, job_id: str, fence: int) -> Job:
        with self.writing() as change:
            return change.end(change.held(job_id, fence), State.CANCELLED)

    def release(self, job_id: str, fence: int) -> Job:
        """Give a job back unfinished, because its worker stops; the attempt is not held against it."""
        with self.writing() as change:
            job = change.held(job_id, fence)
            if job.state is State.CANCELLING:
                return change.end(job, State.CANCELLED)
            change.event(job_id, "released", {})
            return change.requeue(job_id, 0.0, max_attempts=job.max_attempts + 1)


class Transaction:
    """The changes that one write transaction makes, all at one moment; what it has read stays true until its end."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.now = iso(clock.now())
        self._clock = clock

    def get(self, job_id: str) -> Job:
        return _get(self.connection, job_id)

    def find(self, job_id: str) -> Job | None:
        return _find(self.connection, job_id)

    def owned(self, job_id: str, user: str, act: str) -> Job:
        job = self.get(job_id)
        if job.user != user:
            raise PermissionDeniedError(
                f"only its owner may {act}",
                where=f"job {job_id[:12]}",
                next_step="Sign in as the user who submitted it.",
            )
        return job

    def held(self, job_id: str, fence: int) -> Job:
        job = self.get(job_id)
        if job.fence != fence or not job.state.is_held:
            raise StaleFenceError(
                "this worker no longer owns the job",
                where=f"job {job_id[:12]}",
                expected=f"fence {job.fence} of a running job",
                got=f"fence {fence}, and the job is {job.state}",
                next_step="Drop the work: the job's new owner has it.",
            )
        return job

    def submit(self, new: NewJob, token: SealedToken | None, limit: int, *, again: Callable[[Job], bool]) -> Job:
        """Queue a job that is new, or that stands so that `again` wants another attempt; else the job as it stands.

        QuotaError where `limit` jobs are under way: of the visitor who asked for an evaluation, of an account's own
        evaluations, or of a user's other jobs.
        """
        known = self.find(new.id)
        if known is not None and not again(known):
            return known
        self._check_quota(new, limit)
        ticket = self.connection.execute(select(func.coalesce(func.max(JOBS.c.ticket), 0) + 1)).scalar_one()
        values: dict[str, Any] = {
            **_FREE,
            **new.model_dump(exclude={"id", "max_attempts"}),
            **dict.fromkeys(("progress", "death_mark", "not_before", "boot", "started", "finished", "error", "result")),
            "ticket": ticket,
            "state": State.QUEUED,
            "stage": "",
            "failures": 0,
            "memory_deaths": 0,
        }
        if known is not None:
            # Attempts keep their numbers; the new submission brings its own share of them.
            self.update(new.id, **values, max_attempts=JOBS.c.attempt + new.max_attempts)
        else:
            values |= {"id": new.id, "max_attempts": new.max_attempts, "attempt": 0, "fence": 0}
            self.connection.execute(insert(JOBS).values(created=self.now, updated=self.now, **values))
        self.event(new.id, "submitted", {"again": known is not None})
        if token is not None:
            self.keep_token(new.id, token)
        return self.get(new.id)

    def _check_quota(self, new: NewJob, limit: int) -> None:
        asked_by = JOBS.c.payload["asked_by"].as_string()
        visitor, unit = new.payload.get("asked_by"), "evaluation" if new.kind == EVALUATION else "job"
        if visitor:
            told, counted = f"{visitor} has asked for", asked_by == visitor
        else:
            alike = JOBS.c.kind == EVALUATION if new.kind == EVALUATION else JOBS.c.kind != EVALUATION
            told, counted = f"{new.user} already has", and_(JOBS.c.user == new.user, asked_by.is_(None), alike)
        active = self._count(counted, JOBS.c.state.in_(ACTIVE))
        if active >= limit:
            raise QuotaError(
                f"{told} {active} {unit}s waiting or running",
                expected=f"at most {limit} at once",
                got=f"{unit} number {active + 1}",
                next_step="Wait until one has ended, or cancel one.",
            )
        if self._count(JOBS.c.state == State.QUEUED) >= MAX_WAITING:
            raise QuotaError(
                "the queue is full", expected=f"at most {MAX_WAITING} jobs that wait", next_step="Try again later."
            )

    def _count(self, *conditions: ColumnElement[bool]) -> int:
        return int(self.connection.execute(select(func.count()).select_from(JOBS).where(*conditions)).scalar_one())

    def fail(self, job: Job, error: JobError) -> Job:
        """The next attempt after a back-off, or the end where another attempt makes no sense.

        An outage of the Hub uses up no attempt: the job waits, for a day and more. Nor does what the machine did, in
        the first twelve attempts.
        """
        outage = error.is_outage and job.failures < OUTAGE_TRIES
        fault = error.code == MachineFaultError.code and job.attempt < MOST_MACHINE_FAULTS
        if outage or fault:
            return self._retry(job, error, max_attempts=job.max_attempts + 1)
        if not error.retryable or job.attempt >= job.max_attempts:
            return self.end(job, State.FAILED, error=error)
        return self._retry(job, error)

    def die_of_memory(self, job: Job, error: JobError) -> Job:
        """Record a death for lack of memory. A first one may be a neighbour's fault; a second one at the same place
        means that the job is too big."""
        mark, more = _died(job)
        deaths = 1 if got_further(mark, job.death_mark) else job.memory_deaths + 1
        changed = self.update(job.id, memory_deaths=deaths, death_mark=mark)
        if deaths >= MEMORY_DEATHS:
            too_big = MemoryLimitError(
                "the job ran out of memory",
                where=f"stage {job.stage or 'start'}",
                expected="to fit in this machine's memory",
                got=f"{deaths} deaths at the same place, {job.attempt} attempts in all",
                next_step="Run it on larger hardware, or merge fewer agents at once.",
            )
            return self.end(changed, State.FAILED, error=JobError.of(too_big))
        if not more and job.attempt >= job.max_attempts:
            return self._end_killed(changed, "the job's process was killed")
        return self._retry(changed, error, **more)

    def take_back(self, job: Job) -> Job:
        if job.state is State.CANCELLING:
            return self.end(job, State.CANCELLED)
        mark, more = _died(job)
        if not more and job.attempt >= job.max_attempts:
            return self._end_killed(job, "the worker died or fell silent")
        self.event(job.id, "lost", {"attempt": job.attempt, "worker": job.lease_owner})
        return self.requeue(job.id, 0.0, death_mark=mark, **more)

    def _end_killed(self, job: Job, what: str) -> Job:
        killed = InternalError(
            f"{what} in attempt {job.attempt}, the last one", where=f"job {job.id[:12]}", next_step=_AGAIN
        )
        return self.end(job, State.FAILED, error=JobError.of(killed, retryable=True))

    def _retry(self, job: Job, error: JobError, **changes: Any) -> Job:
        failures = job.failures + 1
        wait_s = backoff_s(job.id, job.attempt, failures + (DISK_STEPS if error.code == DiskError.code else 0))
        self.event(job.id, "retry", {"after_s": round(wait_s, 3), "error": error.model_dump(mode="json")})
        return self.requeue(job.id, wait_s, failures=failures, error=error.model_dump(mode="json"), **changes)

    def requeue(self, job_id: str, wait_s: float, **changes: Any) -> Job:
        due = {"not_before": self._clock.steady() + wait_s, "boot": self._clock.boot_id}
        return self.update(job_id, **_FREE, **due, **changes, state=State.QUEUED)

    def end(
        self, job: Job, state: State, *, error: JobError | None = None, result: dict[str, Any] | None = None
    ) -> Job:
        self.connection.execute(delete(TOKENS).where(TOKENS.c.job_id == job.id))
        reason = error.model_dump(mode="json") if error else None
        self.event(job.id, state.value, {"error": reason} if reason else {})
        ended = {"not_before": None, "finished": self.now, "error": reason, "result": result}
        return self.update(job.id, **_FREE, **ended, state=state)

    def update(self, job_id: str, **changes: Any) -> Job:
        statement = update(JOBS).where(JOBS.c.id == job_id).values(updated=self.now, **changes)
        return Job.model_validate(self.connection.execute(statement.returning(*JOBS.c)).mappings().one())

    def keep_token(self, job_id: str, token: SealedToken) -> None:
        values = {"ciphertext": token.ciphertext, "expires_at": token.expires_at}
        statement = upsert(TOKENS).values(job_id=job_id, **values)
        self.connection.execute(statement.on_conflict_do_update(index_elements=["job_id"], set_=values))

    def event(self, job_id: str, kind: str, data: dict[str, Any]) -> None:
        last = select(func.coalesce(func.max(EVENTS.c.seq), 0)).where(EVENTS.c.job_id == job_id)
        seq = self.connection.execute(last).scalar_one() + 1
        values = {"job_id": job_id, "seq": seq, "time": self.now, "type": kind, "data": data}
        self.connection.execute(insert(EVENTS).values(values))


def _find(connection: Connection, job_id: str) -> Job | None:
    row = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).mappings().one_or_none()
    return Job.model_validate(row) if row else None


def _get(connection: Connection, job_id: str) -> Job:
    job = _find(connection, job_id)
    if job is None:
        raise JobNotFoundError("there is no such job", where=f"job {job_id[:12]}")
    return job


def _died(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where an attempt ended that nobody ended on purpose, and what that changes of the attempts that are left.

    An attempt that got further than the last such one does not count against the job, which would end in time.
    """
    mark = {"stage": job.stage, "done": float((job.progress or {}).get("done") or 0)}
    further = got_further(mark, job.death_mark) and job.attempt < MOST_ATTEMPTS
    return mark, {"max_attempts": job.max_attempts + 1} if further else {}


def _may_have_company() -> ColumnElement[bool]:
    """Whether a job may run beside others. One that the machine may have ended runs again only alone."""
    others = JOBS.alias()
    at_work = select(others.c.id).where(others.c.state.in_(HELD), others.c.id != JOBS.c.id).exists()
    return or_(JOBS.c.error["code"].as_string().is_distinct_from(MachineFaultError.code), ~at_work)


def _elapsed(moment: ColumnElement[float | None], boot: str, now: float) -> ColumnElement[bool]:
    """True of a moment that has passed, or that belongs to another boot of the machine."""
    return or_(moment.is_(None), JOBS.c.boot.is_distinct_from(boot), moment <= now)
