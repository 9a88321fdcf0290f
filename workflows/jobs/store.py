"""The store of jobs: every change of a job's state is one transaction of this module.

A worker claims a job in one transaction, which grows the job's fence and starts a lease. Each later
write of that worker names the fence and is refused once the job was claimed again, so a worker that slept
through its lease can do no harm. Leases and back-off are measured in steady seconds of one boot
(`jobs.Clock`): setting the wall clock neither ends a lease nor prolongs it, and a reboot ends them all.

Whatever ends a job wipes its token in the same transaction. Out of the module go frozen values, never rows.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select, tuple_

from hubmerge.errors import PermissionDeniedError, RecipeError, TargetExistsError
from workflows.jobs.jobs import EVALUATION, HELD, Clock, Job, JobError, JobEvent, NewJob, State
from workflows.jobs.schema import EVENTS, JOBS, TOKENS, open_engine, reading, writing
from workflows.jobs.tokens import SealedToken
from workflows.jobs.transaction import Transaction, find_job, get_job

DATABASE = "jobs.sqlite3"
LEASE_S = 30.0
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_SEARCHED = 2000  # evaluations, among which those of a merge are looked for
_GIVEN_UP = (State.FAILED, State.CANCELLED)


class Store:
    """The job database in `data_dir`; safe to use from several threads and processes at once."""

    def __init__(
        self, data_dir: Path, *, clock: Clock | None = None, jobs_per_user: int = 5, lease_s: float = LEASE_S
    ) -> None:
        self.clock = clock or Clock()
        self.lease_s = lease_s
        self.jobs_per_user = jobs_per_user
        self._engine = open_engine(data_dir / DATABASE)

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> AbstractContextManager[Connection]:
        return reading(self._engine)

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
            job = find_job(change.connection, new.id)
            if job is not None and job.user != new.user and not shared:
                raise PermissionDeniedError(
                    "another user has submitted the same merge to the same target",
                    where=f"job {new.id[:12]}",
                    next_step="Choose another target.",
                )
            wanted = _result(new.payload)
            # a job of an older version does not say its license
            stands = _result({"licensed": new.payload.get("licensed"), **job.payload}) if job is not None else wanted
            if job is not None and job.state not in ended and stands != wanted:
                raise TargetExistsError(
                    "the same merge has a job, whose result is not as you ask now",
                    where=f"job {new.id[:12]}",
                    expected=wanted,
                    got=stands,
                    next_step=f"Choose another target{'' if job.state.is_terminal else ', or cancel that job first'}.",
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
            return get_job(connection, job_id)

    def find(self, job_id: str) -> Job | None:
        with self.reading() as connection:
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
        limit: int | None = 50,
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

    def claim(self, owner: str, kinds: Collection[str] | None = None, *, since: float = 0.0) -> Job | None:
        """Take the job that is due: highest priority, then oldest. Abandoned jobs are taken back first.

        A worker that began at `since` takes none before every job that was held then has shown that its worker lives,
        or is taken back. Else the worker that replaces a dead one would begin a younger job, and the older one, which
        nobody knows to be abandoned yet, would wait for that one's end.
        """
        with self.writing() as change:
            self._take_back(change)
            boot, steady = self.clock.boot_id, self.clock.steady()
            held, due = select(JOBS.c.id).where(JOBS.c.state.in_(HELD)), select(JOBS.c.id)
            if kinds is not None:
                held, due = held.where(JOBS.c.kind.in_(kinds)), due.where(JOBS.c.kind.in_(kinds))
            if change.connection.execute(held.where(JOBS.c.lease_until <= since + self.lease_s).limit(1)).scalar():
                return None
            due = due.where(JOBS.c.state == State.QUEUED, _elapsed(JOBS.c.not_before, boot, steady))
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
        with self.writing() as change:
            return self._take_back(change)

    def _take_back(self, change: Transaction) -> tuple[Job, ...]:
        gone = _elapsed(JOBS.c.lease_until, self.clock.boot_id, self.clock.steady())
        rows = change.connection.execute(select(JOBS).where(JOBS.c.state.in_(HELD), gone)).mappings().all()
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


def _result(payload: Mapping[str, Any]) -> str:
    """What is chosen of a result beside its weights."""
    licensed = f", license {payload['licensed']}" if payload.get("licensed") else ""
    return f"a {'private' if payload.get('private') else 'public'} result{licensed}"


def _elapsed(moment: ColumnElement[float | None], boot: str, now: float) -> ColumnElement[bool]:
    """True of a moment that has passed, or that belongs to another boot of the machine."""
    return or_(moment.is_(None), JOBS.c.boot.is_distinct_from(boot), moment <= now)
