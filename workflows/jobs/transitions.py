"""The job's state machine: the changes that one write transaction may make, with the records of them.

Every method runs inside the transaction that it was made with, so the rows that it has read stay true until the commit.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from hubmerge.errors import DiskError, InternalError, MachineFaultError, MemoryLimitError, QuotaError
from workflows.jobs.jobs import (
    ACTIVE,
    DISK_STEPS,
    EVALUATION,
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
from workflows.jobs.schema import Base, EventRow, TokenRow
from workflows.jobs.tokens import SealedToken

JOBS: Table = Base.metadata.tables["jobs"]
MOST_ATTEMPTS = 25  # of a job that gets further each time before something kills it
MOST_MACHINE_FAULTS = 12  # attempts, after which a fault of the machine counts as any other
_AGAIN = "Submit the job again, and report it if that does not help."
MAX_WAITING = 2000  # jobs of all users together
MEMORY_DEATHS = 2  # the second one at the same place is final
FREE: dict[str, Any] = {"lease_owner": None, "lease_until": None}


def find_job(connection: Connection, job_id: str) -> Job | None:
    row = connection.execute(select(JOBS).where(JOBS.c.id == job_id)).mappings().one_or_none()
    return Job.model_validate(row) if row else None


def get_job(connection: Connection, job_id: str) -> Job:
    job = find_job(connection, job_id)
    if job is None:
        raise JobNotFoundError("there is no such job", where=f"job {job_id[:12]}")
    return job


class Transitions:
    """The changes that one transaction makes, all at one moment."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self.clock = clock
        self.now = iso(clock.now())

    def get(self, job_id: str) -> Job:
        return get_job(self._connection, job_id)

    def find(self, job_id: str) -> Job | None:
        return find_job(self._connection, job_id)

    def check_quota(self, user: str, kind: str, limit: int) -> None:
        """QuotaError where `user` has `limit` jobs under way; evaluations, which the account asks for by itself, count
        apart from all other jobs, and those that visitors asked for count nowhere here.
        """
        own = JOBS.c.payload["asked_by"].as_string().is_(None)
        alike = JOBS.c.kind == EVALUATION if kind == EVALUATION else JOBS.c.kind != EVALUATION
        query = select(func.count()).where(JOBS.c.user == user, JOBS.c.state.in_(ACTIVE), own, alike)
        active = self._connection.execute(query).scalar_one()
        if active >= limit:
            jobs = "evaluations" if kind == EVALUATION else "jobs"
            raise QuotaError(
                f"{user} already has {active} {jobs} waiting or running",
                expected=f"at most {limit} at once",
                got=f"job number {active + 1}",
                next_step="Wait until one has ended, or cancel one.",
            )
        self._check_queue()

    def check_asked(self, visitor: str, limit: int) -> None:
        """QuotaError where `limit` evaluations that `visitor` asked for are under way."""
        asked = JOBS.c.payload["asked_by"].as_string() == visitor
        query = select(func.count()).where(asked, JOBS.c.state.in_(ACTIVE))
        active = self._connection.execute(query).scalar_one()
        if active >= limit:
            raise QuotaError(
                f"{visitor} has asked for {active} evaluations that wait or run",
                expected=f"at most {limit} at once",
                got=f"evaluation number {active + 1}",
                next_step="Ask again when one of them has ended.",
            )
        self._check_queue()

    def _check_queue(self) -> None:
        query = select(func.count()).where(JOBS.c.state == State.QUEUED)
        if self._connection.execute(query).scalar_one() >= MAX_WAITING:
            raise QuotaError(
                "the queue is full", expected=f"at most {MAX_WAITING} jobs that wait", next_step="Try again later."
            )

    def enqueue(self, new: NewJob, *, again: bool) -> Job:
        ticket = self._connection.execute(select(func.coalesce(func.max(JOBS.c.ticket), 0) + 1)).scalar_one()
        values: dict[str, Any] = {
            **FREE,
            **new.model_dump(exclude={"id", "max_attempts"}),
            "ticket": ticket,
            "state": State.QUEUED,
            "stage": "",
            "failures": 0,
            "memory_deaths": 0,
        }
        values |= dict.fromkeys(
            ("progress", "death_mark", "not_before", "boot", "started", "finished", "error", "result")
        )
        if again:
            # Attempts keep their numbers; the new submission brings its own share of them.
            job = self.change(new.id, **values, max_attempts=JOBS.c.attempt + new.max_attempts)
        else:
            values |= {"id": new.id, "max_attempts": new.max_attempts, "attempt": 0, "fence": 0}
            self._connection.execute(insert(JOBS).values(created=self.now, updated=self.now, **values))
            job = self.get(new.id)
        self.event(new.id, "submitted", {"again": again})
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

    def fail(self, job: Job, error: JobError) -> Job:
        """The next attempt after a back-off, or the end where another attempt makes no sense.

        An outage of the Hub uses up no attempt: the job waits, for a day and more. Nor does what the machine did, in
        the first twelve attempts.
        """
        if error.is_outage and job.failures < OUTAGE_TRIES:
            return self.retry(job, error, max_attempts=job.max_attempts + 1)
        if error.code == MachineFaultError.code and job.attempt < MOST_MACHINE_FAULTS:
            return self.retry(job, error, max_attempts=job.max_attempts + 1)
        if not error.retryable or job.attempt >= job.max_attempts:
            return self.end(job, State.FAILED, error=error)
        return self.retry(job, error)

    def die_of_memory(self, job: Job, error: JobError) -> Job:
        """Record a death for lack of memory. A first one may be a neighbour's fault; a second one at the same place
        means that the job is too big."""
        mark, more = self._died(job)
        deaths = 1 if got_further(mark, job.death_mark) else job.memory_deaths + 1
        changed = self.change(job.id, memory_deaths=deaths, death_mark=mark)
        if deaths >= MEMORY_DEATHS:
            return self.end(changed, State.FAILED, error=too_big(job, deaths))
        if not more and job.attempt >= job.max_attempts:
            killed = InternalError(
                f"the job's process was killed in attempt {job.attempt}, the last one", next_step=_AGAIN
            )
            return self.end(changed, State.FAILED, error=JobError.of(killed, retryable=True))
        return self.retry(changed, error, **more)

    def _died(self, job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
        """Record where an attempt ended that nobody ended on purpose.

        An attempt that got further than the last such one does not count against the job, which would end in time.
        """
        mark = {"stage": job.stage, "done": float((job.progress or {}).get("done") or 0)}
        further = got_further(mark, job.death_mark) and job.attempt < MOST_ATTEMPTS
        return mark, {"max_attempts": job.max_attempts + 1} if further else {}

    def retry(self, job: Job, error: JobError, **changes: Any) -> Job:
        failures = job.failures + 1
        wait_s = backoff_s(job.id, job.attempt, failures + (DISK_STEPS if error.code == DiskError.code else 0))
        self.event(job.id, "retry", {"after_s": round(wait_s, 3), "error": as_json(error)})
        return self.requeue(job.id, wait_s, failures=failures, error=as_json(error), **changes)

    def take_back(self, job: Job) -> Job:
        if job.state is State.CANCELLING:
            return self.end(job, State.CANCELLED)
        mark, more = self._died(job)
        if not more and job.attempt >= job.max_attempts:
            error = InternalError(
                f"the worker died or fell silent in attempt {job.attempt}, the last one",
                where=f"job {job.id[:12]}",
                next_step=_AGAIN,
            )
            return self.end(job, State.FAILED, error=JobError.of(error, retryable=True))
        self.event(job.id, "lost", {"attempt": job.attempt, "worker": job.lease_owner})
        return self.requeue(job.id, 0.0, death_mark=mark, **more)

    def requeue(self, job_id: str, wait_s: float, **changes: Any) -> Job:
        changes |= {
            **FREE,
            "state": State.QUEUED,
            "not_before": self.clock.steady() + wait_s,
            "boot": self.clock.boot_id,
        }
        return self.change(job_id, **changes)

    def end(
        self,
        job: Job,
        state: State,
        *,
        error: JobError | None = None,
        result: dict[str, Any] | None = None,
    ) -> Job:
        self._connection.execute(delete(TokenRow).where(TokenRow.job_id == job.id))
        self.event(job.id, state.value, {"error": as_json(error)} if error else {})
        return self.change(
            job.id,
            **FREE,
            state=state,
            not_before=None,
            error=as_json(error),
            result=result,
            finished=self.now,
        )

    def change(self, job_id: str, **changes: Any) -> Job:
        statement = update(JOBS).where(JOBS.c.id == job_id).values(updated=self.now, **changes)
        return Job.model_validate(self._connection.execute(statement.returning(*JOBS.c)).mappings().one())

    def keep_token(self, job_id: str, token: SealedToken) -> None:
        values = {"ciphertext": token.ciphertext, "expires_at": token.expires_at}
        statement = upsert(TokenRow).values(job_id=job_id, **values)
        self._connection.execute(statement.on_conflict_do_update(index_elements=["job_id"], set_=values))

    def event(self, job_id: str, kind: str, data: dict[str, Any]) -> None:
        last = select(func.coalesce(func.max(EventRow.seq), 0)).where(EventRow.job_id == job_id)
        seq = self._connection.execute(last).scalar_one() + 1
        values = {"job_id": job_id, "seq": seq, "time": self.now, "type": kind, "data": data}
        self._connection.execute(insert(EventRow).values(values))


def as_json(error: JobError | None) -> dict[str, Any] | None:
    return error.model_dump(mode="json") if error else None


def too_big(job: Job, deaths: int) -> JobError:
    return JobError.of(
        MemoryLimitError(
            "the job ran out of memory",
            where=f"stage {job.stage or 'start'}",
            expected="to fit in this machine's memory",
            got=f"{deaths} deaths at the same place, {job.attempt} attempts in all",
            next_step="Run it on larger hardware, or merge fewer agents at once.",
        )
    )
