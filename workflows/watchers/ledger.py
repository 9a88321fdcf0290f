"""The record of what every rule has read, merged, refused and skipped, and the one transaction that starts a merge.

The set, the day's budget, the queue's quota and the job are checked and written together. So two schedulers that
decide the same thing at the same time make one job, and a kill between two lines of code loses or doubles nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select
from sqlalchemy.dialects.sqlite import insert

from workflows.jobs.jobs import Job, NewJob, State, iso, pinned_models
from workflows.jobs.schema import JOBS, MODELS, PAUSES, SETS, SKIPS, TURNS
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken
from workflows.watchers.base import PastSet, PlannedMerge, Skip
from workflows.watchers.facts import OF_ACCESS, Facts, OwnMerge

KEPT_SKIPS = 3000  # per rule; more than one search lists


class SetRow(NamedTuple):
    """A set as the pages show it."""

    time: str
    target: str
    agents: tuple[str, ...]  # id@sha
    job_id: str | None
    code: str | None
    text: str | None


class TurnState(NamedTuple):
    """A rule's last turn: its time, and its error or what it waits for."""

    polled: str
    code: str | None
    text: str | None


class Ledger:
    """The rules' records in the job database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._merges: tuple[object, Mapping[str, Sequence[OwnMerge]]] = (None, {})

    # What was read.

    def known(self, rule: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Model → the facts that the rule has read of it, with the key that they depend on."""
        query = select(MODELS.c.model, MODELS.c.key, MODELS.c.facts).where(MODELS.c.rule == rule)
        with self._store.reading() as connection:
            return {row.model: (row.key, row.facts) for row in connection.execute(query)}

    def remember(self, rule: str, model: str, key: str, facts: Facts) -> None:
        self._put(MODELS, {"rule": rule, "model": model}, {"key": key, "facts": facts.model_dump(mode="json")})

    def own_targets(self) -> frozenset[str]:
        """Every repo that a merge job writes or wrote to."""
        query = select(JOBS.c.payload["target"].as_string()).where(JOBS.c.kind == "merge").distinct()
        with self._store.reading() as connection:
            return frozenset(target for target in connection.execute(query).scalars() if target)

    def own_merges(self) -> Mapping[str, Sequence[OwnMerge]]:
        """The merges that are done, by the sha256 of each of their shards; read anew once one was added, since every
        turn of every rule asks, and three thousand take a second."""
        done = and_(JOBS.c.kind == "merge", JOBS.c.state == State.DONE)
        with self._store.reading() as connection:
            stand = tuple(connection.execute(select(func.count(), func.max(JOBS.c.updated)).where(done)).one())
            if self._merges[0] == stand:
                return self._merges[1]
            rows = connection.execute(select(JOBS.c.user, JOBS.c.payload, JOBS.c.result).where(done)).all()
        found: dict[str, list[OwnMerge]] = {}
        for user, payload, result in rows:
            merge = OwnMerge(user, frozenset(model for _, model, _ in pinned_models(payload.get("recipe") or {})))
            for file in (result or {}).get("weights", ()):
                found.setdefault(file, []).append(merge)
        self._merges = stand, found
        return found

    # What was decided.

    def history(self, rule: str) -> tuple[PastSet, ...]:
        """The sets merged so far, and those refused or given up today: tomorrow they may be tried again."""
        merged = and_(SETS.c.job_id.is_not(None), ~_given_up(SETS.c.job_id))
        failed = and_(JOBS.c.state.in_((State.FAILED, State.CANCELLED)), ~_given_up(SETS.c.job_id)).is_(True)
        columns = (SETS.c.set_id, SETS.c.weights_id, SETS.c.members, SETS.c.target, SETS.c.job_id.is_not(None), failed)
        query = select(*columns).outerjoin_from(SETS, JOBS, JOBS.c.id == SETS.c.job_id)
        query = query.where(SETS.c.rule == rule, or_(merged, self._today)).order_by(SETS.c.time)
        with self._store.reading() as connection:
            return tuple(PastSet(*row) for row in connection.execute(query))

    def used(self, rule: str) -> int:
        """Merges that the rule has started today (UTC)."""
        with self._store.reading() as connection:
            return self._used(connection, rule)

    def start(self, rule: str, planned: PlannedMerge, new: NewJob, token: SealedToken, budget: int) -> Job | None:
        """Queue the merge of a set, at most once ever and within the budget; None where it was queued before, or where
        the rule was paused meanwhile.

        A set whose job was given up for a passing reason is queued again, and for whatever reason where another user
        had started it, since the owner cannot. Any other job that a person has started stands for the set. QuotaError
        when the owner has too many jobs under way.
        """
        with self._store.writing() as change:
            connection = change.connection
            known = select(SETS.c.job_id).where(
                SETS.c.rule == rule, SETS.c.set_id == planned.set_id, ~_given_up(SETS.c.job_id)
            )
            if (
                connection.execute(known).scalar() is not None
                or self._used(connection, rule) >= budget
                or _is_paused(connection, rule)
            ):
                return None
            limit = self._store.jobs_per_user
            job = change.submit(new, token, limit, again=partial(_may_go_on, owner=new.user))
            self._record(connection, rule, planned, job_id=job.id)
            return job

    def refuse(self, rule: str, planned: PlannedMerge, code: str, text: str) -> None:
        """Note why a set cannot be merged; it is not tried again today."""
        with self._store.writing() as change:
            self._record(change.connection, rule, planned, code=code, text=text)

    def forget(self, rule: str, planned: PlannedMerge) -> None:
        """Have the agents of a set read again: the next look leaves out by name the one that is closed or unreadable
        since it was read."""
        models = [pin.partition("@")[0] for pin in (planned.members["base"], *planned.members["agents"])]
        read = and_(MODELS.c.rule == rule, MODELS.c.model.in_(models))
        with self._store.writing() as change:
            change.connection.execute(delete(MODELS).where(read))

    def skip(self, rule: str, skips: Sequence[Skip]) -> None:
        """Note the reasons of the last look in place of those before; the time of one is when it was first seen."""
        columns = (SKIPS.c.subject, SKIPS.c.sha, SKIPS.c.code, SKIPS.c.text, SKIPS.c.time)
        with self._store.writing() as change:
            known = change.connection.execute(select(*columns).where(SKIPS.c.rule == rule)).all()
            first_seen = {(row.subject, row.sha, row.code, row.text): row.time for row in known}
            change.connection.execute(delete(SKIPS).where(SKIPS.c.rule == rule))
            if skips:
                times = [first_seen.get((s.subject, s.sha, s.code, s.text), change.now) for s in skips]
                rows = [{**asdict(s), "rule": rule, "time": time} for s, time in zip(skips, times, strict=True)]
                change.connection.execute(insert(SKIPS).on_conflict_do_nothing(), rows[:KEPT_SKIPS])

    def turn_ended(self, rule: str, code: str | None, text: str | None) -> None:
        self._put(TURNS, {"rule": rule}, {"polled": self._now, "code": code, "text": text})

    # What its owner says.

    def pause(self, rule: str) -> None:
        """Let the rule start nothing from now on, also after a restart; what it has queued goes on."""
        self._put(PAUSES, {"rule": rule}, {"time": self._now})

    def resume(self, rule: str) -> None:
        with self._store.writing() as change:
            change.connection.execute(delete(PAUSES).where(PAUSES.c.rule == rule))

    def is_paused(self, rule: str) -> bool:
        with self._store.reading() as connection:
            return _is_paused(connection, rule)

    # What the pages show.

    def sets(self, rule: str, limit: int = 50) -> tuple[SetRow, ...]:
        """Newest first."""
        query = select(SETS).where(SETS.c.rule == rule).order_by(SETS.c.time.desc()).limit(limit)
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(SetRow(r.time, r.target, tuple(r.members["agents"]), r.job_id, r.code, r.text) for r in rows)

    def skips(self, rule: str, limit: int = 200) -> tuple[Skip, ...]:
        """Newest first."""
        columns = (SKIPS.c.subject, SKIPS.c.sha, SKIPS.c.code, SKIPS.c.text, SKIPS.c.private, SKIPS.c.time)
        query = select(*columns).where(SKIPS.c.rule == rule).order_by(SKIPS.c.time.desc(), SKIPS.c.subject)
        with self._store.reading() as connection:
            return tuple(Skip(*row) for row in connection.execute(query.limit(limit)))

    def state(self, rule: str) -> TurnState | None:
        query = select(TURNS.c.polled, TURNS.c.code, TURNS.c.text).where(TURNS.c.rule == rule)
        with self._store.reading() as connection:
            row = connection.execute(query).one_or_none()
        return TurnState(*row) if row else None

    @property
    def _now(self) -> str:
        return iso(self._store.clock.now())

    @property
    def today(self) -> str:
        return self._now[:10]

    @property
    def _today(self) -> ColumnElement[bool]:
        """The sets of this day, UTC; not those of a clock that was ahead."""
        return SETS.c.time.startswith(self.today)

    def _used(self, connection: Connection, rule: str) -> int:
        mine = and_(SETS.c.rule == rule, SETS.c.job_id.is_not(None), self._today)
        return int(connection.execute(select(func.count()).select_from(SETS).where(mine)).scalar_one())

    def _put(self, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        row = insert(table).values(**key, **values).on_conflict_do_update(index_elements=list(key), set_=values)
        with self._store.writing() as change:
            change.connection.execute(row)

    def _record(self, connection: Connection, rule: str, planned: PlannedMerge, **outcome: Any) -> None:
        values = {
            "weights_id": planned.weights_id,
            "time": self._now,
            "target": planned.target,
            "members": planned.members,
            **dict.fromkeys(("job_id", "code", "text")),
            **outcome,
        }
        statement = insert(SETS).values(rule=rule, set_id=planned.set_id, **values)
        # a set that was refused or given up before may be merged later; one that was merged stays so
        replaceable = or_(SETS.c.job_id.is_(None), SETS.c.job_id == values["job_id"], _given_up(SETS.c.job_id))
        key = ["rule", "set_id"]
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=values, where=replaceable))


def _is_paused(connection: Connection, rule: str) -> bool:
    return connection.execute(select(PAUSES.c.rule).where(PAUSES.c.rule == rule)).scalar() is not None


def _may_go_on(job: Job, owner: str) -> bool:
    """Whether a job that was given up is somebody else's, or failed for a reason that passes: the Hub was away for
    days, the disk was full, a model was hidden for a while."""
    error = job.error
    passes = job.state is State.FAILED and error is not None and (error.retryable or error.code in OF_ACCESS)
    return passes or (job.state in (State.FAILED, State.CANCELLED) and job.user != owner)


def _given_up(job_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a job failed for a reason that passes, in SQL."""
    passes = or_(JOBS.c.error["retryable"].as_boolean(), JOBS.c.error["code"].as_string().in_(OF_ACCESS))
    return job_id.in_(select(JOBS.c.id).where(JOBS.c.state == State.FAILED, passes))
