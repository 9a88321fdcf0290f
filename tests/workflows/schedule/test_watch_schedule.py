"""What the clock schedules: each evaluation is asked for once, and in the order of its worth."""

from __future__ import annotations

import hashlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from job_helpers import FakeClock

from hubmerge.errors import EvaluationError, QuotaError
from workflows.jobs.evaluations import (
    OF_CANDIDATE,
    OF_MERGE,
    OF_PARENT,
    WATCHED_MERGE,
    EvaluationRequests,
    ScoreKey,
    Scoring,
    evaluation_job,
)
from workflows.jobs.jobs import Job, JobError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken
from workflows.schedule.evaluations import schedule_evaluations

BASE, MATH, TOOL, MEM = (f"zoo/{name}" for name in ("base", "math", "tool", "mem"))


SHA = {name: f"{n:040x}" for n, name in enumerate((BASE, MATH, TOOL, MEM), start=1)}


PARENTS = [f"{name}@{SHA[name]}" for name in (MATH, TOOL)]


class FakeAccount:
    name = "ada"

    def seal(self, job_id: str) -> SealedToken:
        return SealedToken(f"sealed for {job_id}", None)


class Bench:
    """A store with merges, and a requests whose leaderboard the test writes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.version = "1"
        self.known: set[ScoreKey] = set()
        self.asked_the_board = 0
        self.requests = self.with_default(None)

    def with_default(self, suite: str | None) -> EvaluationRequests:
        scoring = Scoring(self._version, self._known_scores, default_suite=suite)
        return EvaluationRequests(self.store, FakeAccount(), scoring)

    def _version(self, suite: str) -> str:
        if suite == "old":
            raise ValueError("there is no suite 'old'")
        return self.version

    def _known_scores(self) -> set[ScoreKey]:
        self.asked_the_board += 1
        return self.known

    def merge(
        self,
        name: str,
        agents: list[Any] | None = None,
        *,
        suite: str | None = "zoo",
        state: State = State.DONE,
        use: str = "text-generation",
        **more: Any,
    ) -> None:
        """A merge job in a state, finished as the pipeline finishes it."""
        recipe = {"base": f"{BASE}@{SHA[BASE]}", "agents": agents or PARENTS, "method": "ram"}
        payload = {"recipe": recipe, "target": f"ada/{name}", "private": False, "suite": suite, **more}
        new = NewJob(id=hashlib.sha256(name.encode()).hexdigest(), user="ada", payload=payload, priority=10**6)
        self.store.submit(new)
        if state is State.QUEUED:
            return
        job = self.store.claim("worker", ["merge"])
        assert job is not None
        if state is State.DONE:
            self.store.finish(job.id, job.fence, {"repo": f"ada/{name}", "commit": f"{len(name):040x}", "use": use})
        else:
            self.store.fail(job.id, job.fence, JobError(code="E_FORMAT", message="no"))

    def tick(self) -> int:
        return schedule_evaluations(self.store, self.requests)

    def evaluations(self) -> list[Job]:
        return [job for job in self.store.list_jobs(limit=1000) if job.kind == "evaluate"]

    def asked(self) -> set[tuple[str, str]]:
        return {(job.payload["model"], job.payload["sha"]) for job in self.evaluations()}


@pytest.fixture
def bench(store: Store) -> Bench:
    store.jobs_per_user = 100
    return Bench(store)


def test_the_identity_of_an_evaluation_by_hand() -> None:
    job = evaluation_job(ScoreKey(MATH, SHA[MATH], "zoo", "v1", "test"), "ada")
    text = json.dumps(["evaluate", MATH, SHA[MATH], "zoo", "test", "v1"])
    assert job.id == hashlib.sha256(text.encode()).hexdigest()
    assert job.kind == "evaluate"
    asked = {"model": MATH, "sha": SHA[MATH], "suite": "zoo", "suite_version": "v1", "split": "test"}
    assert job.payload == asked
    keys = itertools.product((MATH, TOOL), (SHA[MATH], SHA[TOOL]), ("zoo", "math"), ("v1", "v2"), ("test", "dev"))
    assert len({evaluation_job(ScoreKey(*key), user).id for key in keys for user in ("ada", "bob")}) == 32


def test_a_done_merge_is_evaluated_with_its_parents_and_base_once(bench: Bench) -> None:
    bench.merge("one")
    bench.merge("three", [*PARENTS, {"model": f"{MEM}@{SHA[MEM]}", "weight": 0.5}])
    for _ in range(3):
        assert bench.tick() == 0
    merged = {("ada/one", f"{3:040x}"), ("ada/three", f"{5:040x}")}
    assert bench.asked() == merged | {(name, SHA[name]) for name in (BASE, MATH, TOOL, MEM)}
    assert len(bench.evaluations()) == 6  # each parent once, not once per merge
    assert {job.payload["suite"] for job in bench.evaluations()} == {"zoo"}
    assert {job.user for job in bench.evaluations()} == {"ada"}


def test_merges_come_before_evaluations_and_merged_models_before_parents(bench: Bench) -> None:
    bench.merge("one")
    bench.tick()
    watched = NewJob(id="a" * 64, user="ada", payload={}, priority=WATCHED_MERGE)
    asked = NewJob(id="b" * 64, user="bob", payload={})
    bench.requests.request(bench.requests.key("zoo/candidate", "d" * 40, "zoo"), OF_CANDIDATE)
    bench.store.submit(watched)
    bench.store.submit(asked)
    order = []
    while (job := bench.store.claim("worker")) is not None:
        order.append(job.payload.get("model") or job.id[0])
    assert order == ["b", "a", "ada/one", "zoo/candidate", BASE, MATH, TOOL]
    assert 0 > WATCHED_MERGE > OF_MERGE > OF_CANDIDATE > OF_PARENT


@pytest.mark.parametrize("state", [State.QUEUED, State.FAILED])
def test_a_merge_that_is_not_done_is_not_evaluated(bench: Bench, state: State) -> None:
    bench.merge("one", state=state)
    assert bench.tick() == 0
    assert bench.evaluations() == []


def test_the_leaderboard_is_asked_only_where_there_is_no_job(bench: Bench) -> None:
    bench.merge("one")
    bench.tick()
    bench.tick()
    assert bench.asked_the_board == 1
    bench.known = {ScoreKey(MEM, SHA[MEM], "zoo", "1", "test")}
    bench.merge("three", [*PARENTS, f"{MEM}@{SHA[MEM]}"])
    bench.tick()
    assert (MEM, SHA[MEM]) not in bench.asked()  # a score that is known is not measured again
    assert bench.asked_the_board == 2


def test_another_suite_version_measures_everything_again(bench: Bench) -> None:
    bench.merge("one")
    bench.tick()
    bench.known = {ScoreKey(*pair, "zoo", "1", "test") for pair in bench.asked()}
    bench.tick()
    assert len(bench.evaluations()) == 4
    bench.version = "2"
    bench.tick()
    bench.tick()
    assert len(bench.evaluations()) == 8


def test_an_evaluation_that_failed_without_a_record_is_due_again_hours_later(bench: Bench, clock: FakeClock) -> None:
    bench.merge("one")
    bench.tick()
    while (job := bench.store.claim("worker")) is not None:
        bench.store.fail(job.id, job.fence, JobError(code="E_INTERNAL", message="no record of it"))
    recorded, *_ = bench.evaluations()  # as the model's own failure, say
    model, sha = recorded.payload["model"], recorded.payload["sha"]
    bench.known.add(ScoreKey(model, sha, "zoo", bench.version, "test"))
    bench.tick()
    assert {job.state for job in bench.evaluations()} == {State.FAILED}
    clock.pass_time(hours=6, seconds=1)
    bench.tick()
    states = {job.id: job.state for job in bench.evaluations()}
    assert states.pop(recorded.id) is State.FAILED
    assert set(states.values()) == {State.QUEUED}
    assert len(states) > 1


def test_merges_of_the_form_are_evaluated_with_the_default_suite_and_private_ones_are_not(bench: Bench) -> None:
    bench.merge("open", suite=None)
    bench.merge("hidden", suite=None, private=True)
    bench.merge("sees-pictures", suite=None, use="image-classification")
    assert bench.tick() == 0
    assert bench.evaluations() == []
    bench.requests = bench.with_default("math")
    bench.tick()
    assert ("ada/open", f"{4:040x}") in bench.asked()
    assert {"ada/hidden", "ada/sees-pictures"}.isdisjoint(model for model, _ in bench.asked())
    assert {job.payload["suite"] for job in bench.evaluations()} == {"math"}


def test_evaluations_take_no_room_of_the_owner_s_other_jobs_and_go_on_later(bench: Bench) -> None:
    bench.store.jobs_per_user = 2
    bench.merge("one")
    for name in "ab":
        bench.store.submit(NewJob(id=name * 64, user="ada", payload={}))
    assert bench.tick() == 2
    assert [job.payload["model"] for job in reversed(bench.evaluations())] == ["ada/one", BASE]
    with pytest.raises(QuotaError, match="ada already has 2 jobs"):
        bench.store.submit(NewJob(id="c" * 64, user="ada", payload={}))
    while (job := bench.store.claim("worker")) is not None:
        bench.store.finish(job.id, job.fence, {})
    assert bench.tick() == 0
    assert len(bench.evaluations()) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {}},
        {"recipe": None},
        {"recipe": {"base": "zoo/base", "agents": ["zoo/math", 7, {"model": None}, "../x@" + "a" * 40]}},
        {"recipe": {"base": None, "agents": []}},
    ],
)
def test_parents_that_are_not_pinned_are_left_out(bench: Bench, changes: dict[str, Any]) -> None:
    bench.merge("one", **changes)
    bench.tick()
    assert bench.asked() == {("ada/one", f"{3:040x}")}


def test_a_suite_that_is_no_longer_there_stops_nothing_else(bench: Bench) -> None:
    bench.merge("gone", suite="old")
    bench.merge("one")
    bench.tick()
    assert {job.payload["suite"] for job in bench.evaluations()} == {"zoo"}
    with pytest.raises(EvaluationError):
        bench.requests.key(MATH, SHA[MATH], "old")


def test_requests_at_once_make_one_job(bench: Bench) -> None:
    key = bench.requests.key(MATH, SHA[MATH], "zoo")
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda _: bench.requests.request(key, OF_PARENT), range(40)))
    assert len({job.id for job in jobs}) == 1
    assert len(bench.evaluations()) == 1
    assert bench.store.sealed_token(jobs[0].id) == SealedToken(f"sealed for {jobs[0].id}", None)


def test_a_request_above_the_limit_is_refused_and_a_repeated_one_is_not(bench: Bench) -> None:
    bench.store.jobs_per_user = 1
    first = bench.requests.key(MATH, SHA[MATH], "zoo")
    bench.requests.request(first, OF_PARENT)
    with pytest.raises(QuotaError, match="ada already has 1 evaluations"):
        bench.requests.request(bench.requests.key(TOOL, SHA[TOOL], "zoo"), OF_PARENT)
    assert bench.requests.request(first, OF_PARENT).state is State.QUEUED
