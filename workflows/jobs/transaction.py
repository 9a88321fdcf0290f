"""The changes of jobs: what one write transaction does to a job, to its token and to its log.

Whatever ends a job wipes its token in the same transaction. The store (store.py) opens the transactions.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from hubmerge.errors import (
    DiskError,
    HubUnavailableError,
    InternalError,
    MachineFaultError,
    MemoryLimitError,
    PermissionDeniedError,
    QuotaError,
)
from workflows.jobs.jobs import (
    ACTIVE,
    COMPARISON,
    DISK_STEPS,
    EVALUATION,
    HELD,
    OUTAGE_TRIES,
    Clock,
    Job,
    JobError,
    JobNotFoundError,
    NewJob,
    StaleFenceError,
    State,
    backoff_s,
    got_further,
    iso,
)
from workflows.jobs.schema import EVENTS, JOBS, SETS, TOKENS
from workflows.jobs.tokens import SealedToken

MAX_WAITING = 2000  # jobs of all users together
KEPT_ENDED = 500  # of a user's jobs that left nothing behind
MEMORY_DEATHS = 2  # the second one at the same place is final
MOST_ATTEMPTS = 25  # of a job that gets further each time before something kills it
MOST_MACHINE_FAULTS = 12  # attempts, after which a fault of the machine counts as any other
_FREE: dict[str, Any] = {"lease_owner": None, "lease_until": None}
_AGAIN = "Submit the job again, and report it if that does not help."


class Transaction:
    """The changes that one write transaction makes, all at one moment; what it has read stays true until its end."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.now = iso(clock.now())
        self._clock = clock

    def owned(self, job_id: str, user: str, act: str) -> Job:
        job = get_job(self.connection, job_id)
        if job.user != user:
            raise PermissionDeniedError(
                f"only its owner may {act}",
                where=f"job {job_id[:12]}",
                next_step="Sign in as the user who submitted it.",
            )
        return job

    def held(self, job_id: str, fence: int) -> Job:
        job = get_job(self.connection, job_id)
        if job.fence != fence or job.state not in HELD:
            raise StaleFenceError(
                "this worker no longer owns the job",
                where=f"job {job_id[:12]}",
                expected=f"fence {job.fence} of a running job",
                got=f"fence {fence}, and the job is {job.state}",
                next_step="Drop the work: the job's new owner has it.",
            )
        return job

    def submit(self, new: NewJob, token: SealedToken | None, limit: int, *, again: Callable[[Job], bool]) -> Job:
        """Queue a job that is new, or that stands so that `again` wants another attempt; else the job as it stands,
        which does not wait longer than `new` would.

        QuotaError where `limit` jobs are under way: of the visitor who asked for an evaluation, of an account's own
        evaluations, or of a user's other jobs.
        """
        known = find_job(self.connection, new.id)
        if known is not None and not again(known):
            sooner = known.state is State.QUEUED and new.priority > known.priority
            return self.update(new.id, priority=new.priority) if sooner else known
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
            self._forget_oldest(new.user)
        self.event(new.id, "submitted", {"again": known is not None})
        if token is not None:
            self.keep_token(new.id, token)
        return get_job(self.connection, new.id)

    def _forget_oldest(self, user: str) -> None:
        """Keep the newest KEPT_ENDED of a user's jobs that left nothing behind: merges that failed or were cancelled,
        and comparisons. Else one who submits and cancels again and again would fill the disk. What a watcher has made
        stays, since its rule would make it again."""
        given_up, compared = JOBS.c.state.in_((State.FAILED, State.CANCELLED)), JOBS.c.state == State.DONE
        nothing_left = or_(and_(JOBS.c.kind != EVALUATION, given_up), and_(JOBS.c.kind == COMPARISON, compared))
        of_rules = select(SETS.c.job_id).where(SETS.c.job_id.is_not(None))
        ended = and_(JOBS.c.user == user, nothing_left, JOBS.c.id.not_in(of_rules))
        old = select(JOBS.c.id).where(ended).order_by(JOBS.c.ticket.desc()).offset(KEPT_ENDED)
        self.connection.execute(delete(EVENTS).where(EVENTS.c.job_id.in_(old)))
        self.connection.execute(delete(JOBS).where(JOBS.c.id.in_(old)))

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
        away = error.retryable and error.code == HubUnavailableError.code  # it did not answer, rather than refused
        outage = away and job.failures < OUTAGE_TRIES
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
        if kind == "statistics":  # each time of the whole merge so far, and up to twice a second for hours
            self.connection.execute(delete(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.type == kind))
        last = select(func.coalesce(func.max(EVENTS.c.seq), 0)).where(EVENTS.c.job_id == job_id)
        seq = self.connection.execute(last).scalar_one() + 1
        values = {"job_id": job_id, "seq": seq, "time": self.now, "type": kind, "data": data}
        self.connection.execute(insert(EVENTS).values(values))


def find_job(connection: Connection, job_id: str) -> Job | None:
    if not job_id.isascii():  # of no job; and half a character could not even be asked for
        return None
    row = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).mappings().one_or_none()
    return Job.model_validate(row) if row else None


def get_job(connection: Connection, job_id: str) -> Job:
    job = find_job(connection, job_id)
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
