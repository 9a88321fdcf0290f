"""Random histories against a naive model: no job is lost, no fence is valid twice, ended jobs stay ended."""

import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from job_helpers import FINAL, RETRYABLE, FakeClock, job_id, new_job

from hubmerge.errors import PermissionDeniedError, QuotaError
from workflows.jobs.jobs import Job, StaleFenceError, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken

QUOTA = 3
USERS = ("ann", "bob")
WORKERS = ("w1", "w2", "w3")
NAMES = tuple("abcdefgh")
HELD = (State.RUNNING, State.CANCELLING)
ENDED = (State.DONE, State.FAILED, State.CANCELLED)


@dataclass
class Expected:
    user: str
    ended: Job | None = None  # as it was when it ended
    fences: list[int] = field(default_factory=list)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.store = Store(Path(self.folder.name), clock=self.clock, jobs_per_user=QUOTA)
        self.jobs: dict[str, Expected] = {}
        self.claims: list[Job] = []  # every claim ever made; the last one of a job is its owner's

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def note(self, job: Job) -> None:
        self.jobs[job.id].ended = job if job.state in ENDED else None

    @initialize()
    def begin(self) -> None:
        """With jobs at work, so that whatever rules a history is made of have some to act on."""
        for name in NAMES[:QUOTA]:
            self.submit(name, USERS[0], 0)
        for worker in WORKERS[:2]:
            self.claim(worker)

    @rule(name=st.sampled_from(NAMES), user=st.sampled_from(USERS), priority=st.integers(-1, 1))
    def submit(self, name: str, user: str, priority: int) -> None:
        identity = job_id(name)
        known = self.jobs.get(identity)
        active = [job for job in self.store.list_jobs(user=user) if job.state not in ENDED]
        fresh = known is None or (known.ended is not None and known.ended.state is not State.DONE)
        try:
            job = self.store.submit(new_job(name, user, priority=priority, max_attempts=3), SealedToken("c", None))
        except PermissionDeniedError:
            assert known.user != user
        except QuotaError:
            assert fresh
            assert len(active) >= QUOTA
        else:
            assert known is None or known.user == user
            assert not fresh or len(active) < QUOTA
            self.jobs.setdefault(identity, Expected(user))
            assert not fresh or job.state is State.QUEUED
            self.note(job)

    @rule(worker=st.sampled_from(WORKERS))
    def claim(self, worker: str) -> None:
        self.take_back()
        now, boot = self.clock.steady(), self.clock.boot_id
        queued = self.store.list_jobs(states=[State.QUEUED])
        due = [job for job in queued if job.boot != boot or (job.not_before or 0) <= now]
        job = self.store.claim(worker)
        if job is None:
            assert due == []
            return
        assert job.attempt <= job.max_attempts
        assert job.id == min(due, key=lambda each: (-each.priority, each.ticket)).id
        fences = self.jobs[job.id].fences
        assert job.fence > max(fences, default=0)
        fences.append(job.fence)
        self.claims.append(job)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        before = self.store.get(claim.id)
        owns = claim.fence == before.fence and before.state in HELD
        key = claim.id, claim.fence
        writes = {
            "heartbeat": lambda: self.store.heartbeat(*key),
            "finish": lambda: self.store.finish(*key, {"by": claim.fence}),
            "retry": lambda: self.store.fail(*key, RETRYABLE),
            "fail": lambda: self.store.fail(*key, FINAL),
            "memory": lambda: self.store.fail(*key, RETRYABLE, out_of_memory=True),
            "cancelled": lambda: self.store.cancelled(*key),
            "release": lambda: self.store.release(*key),
            "event": lambda: self.store.append_events(*key, [("warning", {})]),
            "progress": lambda: self.store.set_progress(*key, "plan", None),
        }
        try:
            write = data.draw(st.sampled_from(sorted(writes)))
            writes[write]()
        except StaleFenceError:
            assert not owns
            assert self.store.get(claim.id) == before
        else:
            assert owns
            job = self.store.get(claim.id)
            if write == "heartbeat":  # also where the lease had run out and nobody had noticed
                assert job.lease_until == self.clock.steady() + self.store.lease_s
            self.note(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), user=st.sampled_from(USERS))
    def cancel(self, data: st.DataObject, user: str) -> None:
        identity = data.draw(st.sampled_from(sorted(self.jobs)))
        try:
            self.note(self.store.request_cancel(identity, user))
        except PermissionDeniedError:
            assert self.jobs[identity].user != user
        else:
            assert self.jobs[identity].user == user

    def take_back(self) -> None:
        now, boot = self.clock.steady(), self.clock.boot_id
        held = self.store.list_jobs(states=HELD)
        silent = {job.id for job in held if job.boot != boot or (job.lease_until or 0) <= now}
        taken = self.store.reap()
        assert {job.id for job in taken} == silent
        for job in taken:
            self.note(job)

    @rule(
        seconds=st.sampled_from([1.0, 10.0, 40.0, 1000.0]),
        days=st.sampled_from([0, -400, 400]),
        ends=st.sampled_from(["nothing", "the app", "the machine"]),
    )
    def time_passes(self, seconds: float, days: int, ends: str) -> None:
        """`days`: by which somebody sets the wall clock."""
        self.clock.pass_time(seconds)
        self.clock.wall += timedelta(days=days)
        if ends == "the machine":
            self.clock.reboot()
        elif ends == "the app":
            self.store.close()
            self.store = Store(Path(self.folder.name), clock=self.clock, jobs_per_user=QUOTA)

    @invariant()
    def the_promises_hold(self) -> None:
        jobs = self.store.list_jobs()
        assert {job.id: job.user for job in jobs} == {identity: known.user for identity, known in self.jobs.items()}
        for job in jobs:
            known, has_ended = self.jobs[job.id], job.state in ENDED
            assert (known.ended is not None) == has_ended
            assert known.ended in (None, job), "what has ended stays as it was"
            assert (job.lease_owner is not None) == (job.state in HELD)
            assert job.fence == max(known.fences, default=0)
            assert (self.store.sealed_token(job.id) is None) == has_ended
            numbers = [event.seq for event in self.store.events(job.id)]
            assert numbers == list(range(1, len(numbers) + 1)), "its journal has a gap"
        for user in USERS:
            assert sum(job.user == user and job.state not in ENDED for job in jobs) <= QUOTA


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
