"""The store of jobs and their owners: every change of a job's state is one transaction of this module.

A worker claims a job with one atomic statement, which grows the job's fence and starts a lease. Each later
write of that worker names the fence and is refused once the job was claimed again, so a worker that slept
through its lease can do no harm. Leases and back-off are measured in steady seconds of one boot
(`jobs.Clock`): setting the wall clock neither ends a lease nor prolongs it, and a reboot ends them all.

Whatever ends a job wipes its token in the same transaction. Out of the module go frozen values, never rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate

from hubmerge.errors import MachineFaultError, PermissionDeniedError, RecipeError
from workflows.jobs.jobs import HELD, Clock, Job, JobError, JobEvent, NewJob, State, SystemClock, iso
from workflows.jobs.schema import EventRow, TokenRow, open_engine, reading, writing
from workflows.jobs.tokens import SealedToken
from workflows.jobs.transitions import JOBS, Transitions, find_job, get_job

DATABASE = "jobs.sqlite3"
LEASE_S = 30.0
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_SEARCHED = 2000  # evaluations, among which those of a merge are looked for


class Store:
    """The job database in `data_dir`; safe to use from several threads and processes at once."""

    def __init__(
        self,
        data_dir: Path,
        *,
        clock: Clock | None = None,
        jobs_per_user: int = 5,
        lease_s: float = LEASE_S,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.lease_s = lease_s
        self._jobs_per_user = jobs_per_user
        self._engine = open_engine(data_dir / DATABASE)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Transitions]:
        with writing(self._engine) as connection:
            yield Transitions(connection, self.clock)

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
        with self._transaction() as change:
            job = change.find(new.id)
            if job is not None and job.user != new.user and not shared:
                raise PermissionDeniedError(
                    "another user has submitted the same merge to the same target",
                    where=f"job {new.id[:12]}",
                    next_step="Choose another target.",
                )
            ended = (State.FAILED, State.CANCELLED, *((State.DONE,) if undone else ()))
            if job is None or job.state in ended:
                change.check_quota(new.user, new.kind, self._jobs_per_user)
                job = change.enqueue(new, again=job is not None)
            if token is not None and job.user == new.user and not job.state.is_terminal:
                change.keep_token(new.id, token)
            return job

    def retry(self, job_id: str, user: str, token: SealedToken) -> Job:
        """Queue a job of `user` that failed or was cancelled once more; it goes on from what it finished."""
        with self._transaction() as change:
            job = change.get(job_id)
            if job.user != user:
                raise PermissionDeniedError(
                    "only its owner may try a job again",
                    where=f"job {job_id[:12]}",
                    next_step="Sign in as the user who submitted it.",
                )
            if job.state in (State.FAILED, State.CANCELLED):
                change.check_quota(user, job.kind, self._jobs_per_user)
                again = NewJob(id=job.id, kind=job.kind, user=user, payload=job.payload, priority=job.priority)
                job = change.enqueue(again, again=True)
                change.keep_token(job_id, token)
            return job

    def request_cancel(self, job_id: str, user: str) -> Job:
        """Stop a job of `user`: at once while it waits, through its worker while it runs."""
        with self._transaction() as change:
            job = change.get(job_id)
            if job.user != user:
                raise PermissionDeniedError(
                    "only its owner may cancel a job",
                    where=f"job {job_id[:12]}",
                    next_step="Sign in as the user who submitted it.",
                )
            if job.state is State.QUEUED:
                return change.end(job, State.CANCELLED)
            if job.state is State.RUNNING:
                change.event(job_id, "cancel_requested", {})
                return change.change(job_id, state=State.CANCELLING)
            return job

    def get(self, job_id: str) -> Job:
        with reading(self._engine) as connection:
            return get_job(connection, job_id)

    def find(self, job_id: str) -> Job | None:
        with reading(self._engine) as connection:
            return find_job(connection, job_id)

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
        query = select(JOBS).order_by(JOBS.c.ticket.desc()).limit(limit)
        if user is not None:
            wanted = and_(
                JOBS.c.payload["asked_by"].as_string() == user, JOBS.c.payload["private"].as_boolean().is_not(True)
            )
            query = query.where(or_(JOBS.c.user == user, wanted) if asked else JOBS.c.user == user)
        if states is not None:
            query = query.where(JOBS.c.state.in_(states))
        if kinds is not None:
            query = query.where(JOBS.c.kind.in_(kinds))
        if public:
            query = query.where(JOBS.c.payload["private"].as_boolean().is_(False))
        if before is not None:
            query = query.where(JOBS.c.ticket < before)
        with reading(self._engine) as connection:
            return tuple(Job.model_validate(row) for row in connection.execute(query).mappings())

    def waiting_before(self, job: Job) -> int:
        """How many jobs of its kind, hence of its worker, are taken before a job that waits."""
        query = select(func.count()).where(
            JOBS.c.state == State.QUEUED,
            JOBS.c.kind == job.kind,
            or_(JOBS.c.priority > job.priority, and_(JOBS.c.priority == job.priority, JOBS.c.ticket < job.ticket)),
        )
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def evaluations_of(self, pins: Collection[tuple[str, str]]) -> tuple[Job, ...]:
        """The newest evaluation jobs of models at a commit; those long ago are on the board."""
        newest = select(JOBS).where(JOBS.c.kind == "evaluate").order_by(JOBS.c.ticket.desc()).limit(MAX_SEARCHED)
        rows = newest.subquery()
        model, sha = (rows.c.payload[name].as_string() for name in ("model", "sha"))
        query = select(rows).where(tuple_(model, sha).in_(list(pins))).order_by(rows.c.ticket.desc())
        with reading(self._engine) as connection:
            return tuple(Job.model_validate(row) for row in connection.execute(query).mappings())

    def stage_times(self, kind: str, jobs: int) -> tuple[tuple[str, str, str], ...]:
        """(job, moment, stage) of the newest jobs of a kind that are done; the stage is empty at a job's end."""
        newest = select(JOBS.c.id).where(JOBS.c.kind == kind, JOBS.c.state == State.DONE)
        newest = newest.order_by(JOBS.c.ticket.desc()).limit(jobs)
        wanted = ("claimed", "stage", "done")
        query = (
            select(EventRow.job_id, EventRow.time, EventRow.data["stage"].as_string())
            .where(EventRow.job_id.in_(newest), EventRow.type.in_(wanted))
            .order_by(EventRow.job_id, EventRow.seq)
        )
        with reading(self._engine) as connection:
            return tuple((job, moment, stage or "") for job, moment, stage in connection.execute(query))

    def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> tuple[JobEvent, ...]:
        """A job's journal past event `after`, oldest first."""
        query = (
            select(EventRow.__table__)
            .where(EventRow.job_id == job_id, EventRow.seq > after)
            .order_by(EventRow.seq)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return tuple(JobEvent.model_validate(row) for row in connection.execute(query).mappings())

    def last_events(self, job_id: str, count: int, *, statistics: bool | None = None) -> tuple[JobEvent, ...]:
        """The newest events of a job, oldest first; a long outage makes more events than anybody reads.

        `statistics`: these alone, or all but these.
        """
        query = select(EventRow.__table__).where(EventRow.job_id == job_id).order_by(EventRow.seq.desc()).limit(count)
        if statistics is not None:
            query = query.where((EventRow.type == "statistics") == statistics)
        with reading(self._engine) as connection:
            newest = connection.execute(query).mappings().all()
        return tuple(JobEvent.model_validate(row) for row in reversed(newest))

    # What workers do.

    def claim(self, owner: str, kinds: Collection[str] | None = None) -> Job | None:
        """Take the job that is due: highest priority, then oldest, among the waiting and the abandoned."""
        with writing(self._engine) as connection:
            row = connection.execute(self._claim(owner, kinds)).mappings().one_or_none()
            if row is None:
                return None
            job = Job.model_validate(row)
            claimed = {"attempt": job.attempt, "worker": owner}
            Transitions(connection, self.clock).event(job.id, "claimed", claimed)
            return job

    def _claim(self, owner: str, kinds: Collection[str] | None) -> ReturningUpdate[Any]:
        boot, now = self.clock.boot_id, self.clock.steady()
        due = or_(
            and_(JOBS.c.state == State.QUEUED, _elapsed(JOBS.c.not_before, boot, now)),
            and_(JOBS.c.state == State.RUNNING, _elapsed(JOBS.c.lease_until, boot, now)),
        )
        query = select(JOBS.c.id).where(due, JOBS.c.attempt < JOBS.c.max_attempts, _may_have_company())
        if kinds is not None:
            query = query.where(JOBS.c.kind.in_(kinds))
        chosen = query.order_by(JOBS.c.priority.desc(), JOBS.c.ticket).limit(1).scalar_subquery()
        moment = iso(self.clock.now())
        return (
            update(JOBS)
            .where(JOBS.c.id == chosen)
            .values(
                state=State.RUNNING,
                lease_owner=owner,
                lease_until=now + self.lease_s,
                not_before=None,
                boot=boot,
                fence=JOBS.c.fence + 1,
                attempt=JOBS.c.attempt + 1,
                started=func.coalesce(JOBS.c.started, moment),
                updated=moment,
            )
            .returning(*JOBS.c)
        )

    def heartbeat(self, job_id: str, fence: int) -> Job:
        """Prolong the lease; the job that comes back says whether it is to be cancelled."""
        with self._transaction() as change:
            change.held(job_id, fence)
            until = self.clock.steady() + self.lease_s
            return change.change(job_id, lease_until=until, boot=self.clock.boot_id)

    def append_events(self, job_id: str, fence: int, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        with self._transaction() as change:
            change.held(job_id, fence)
            for kind, data in events:
                change.event(job_id, kind, data)

    def set_progress(self, job_id: str, fence: int, stage: str, progress: dict[str, Any] | None) -> None:
        """Overwrite where the job stands; history belongs to the events."""
        with self._transaction() as change:
            change.held(job_id, fence)
            change.change(job_id, stage=stage, progress=progress)

    def finish(self, job_id: str, fence: int, result: dict[str, Any]) -> Job:
        """Mark the job as done, even if it was cancelled meanwhile, since its product is published."""
        with self._transaction() as change:
            return change.end(change.held(job_id, fence), State.DONE, result=result)

    def fail(self, job_id: str, fence: int, error: JobError, *, out_of_memory: bool = False) -> Job:
        """End this attempt: the job is cancelled if a user asked for that, else tried again or failed."""
        with self._transaction() as change:
            job = change.held(job_id, fence)
            if job.state is State.CANCELLING:
                return change.end(job, State.CANCELLED, error=error)
            return change.die_of_memory(job, error) if out_of_memory else change.fail(job, error)

    def cancelled(self, job_id: str, fence: int) -> Job:
        with self._transaction() as change:
            return change.end(change.held(job_id, fence), State.CANCELLED)

    def release(self, job_id: str, fence: int) -> Job:
        """Give a job back unfinished, because its worker stops; the attempt is not held against it."""
        with self._transaction() as change:
            job = change.held(job_id, fence)
            if job.state is State.CANCELLING:
                return change.end(job, State.CANCELLED)
            change.event(job_id, "released", {})
            return change.requeue(job_id, 0.0, max_attempts=job.max_attempts + 1)

    def owners(self) -> tuple[str, ...]:
        """Every worker that holds a job."""
        query = select(JOBS.c.lease_owner).where(JOBS.c.state.in_(HELD)).distinct()
        with reading(self._engine) as connection:
            return tuple(sorted(owner for owner in connection.execute(query).scalars() if owner))

    def reap(self, dead: Collection[str] = ()) -> tuple[Job, ...]:
        """Take back the jobs whose lease ran out or whose worker is among the `dead`.

        They wait again, due at once; one that was to be cancelled is cancelled, one out of attempts fails.
        """
        gone = or_(
            _elapsed(JOBS.c.lease_until, self.clock.boot_id, self.clock.steady()),
            JOBS.c.lease_owner.in_(dead),
        )
        with writing(self._engine) as connection:
            rows = connection.execute(select(JOBS).where(JOBS.c.state.in_(HELD), gone)).mappings().all()
            change = Transitions(connection, self.clock)
            return tuple(change.take_back(Job.model_validate(row)) for row in rows)

    def replace_token(self, job_id: str, token: SealedToken) -> None:
        """Another token for a job that has not ended."""
        with self._transaction() as change:
            if not change.get(job_id).state.is_terminal:
                change.keep_token(job_id, token)

    def sealed_token(self, job_id: str) -> SealedToken | None:
        query = select(TokenRow.ciphertext, TokenRow.expires_at).where(TokenRow.job_id == job_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        return SealedToken(row.ciphertext, row.expires_at) if row else None


def _may_have_company() -> ColumnElement[bool]:
    """Whether a job may run beside others. One that the machine may have ended runs again only alone."""
    others = JOBS.alias()
    at_work = select(others.c.id).where(others.c.state.in_(HELD), others.c.id != JOBS.c.id).exists()
    return or_(JOBS.c.error["code"].as_string().is_distinct_from(MachineFaultError.code), ~at_work)


def _elapsed(moment: ColumnElement[float | None], boot: str, now: float) -> ColumnElement[bool]:
    """True of a moment that has passed, or that belongs to another boot of the machine."""
    return or_(moment.is_(None), JOBS.c.boot.is_distinct_from(boot), moment <= now)
