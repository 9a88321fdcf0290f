"""What the clock schedules, each evaluation once and in the order of its worth, and the clockwork itself."""

import hashlib
import json
import threading
from collections import Counter
from datetime import datetime, timedelta, tzinfo
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import apscheduler.schedulers.base
import pytest
from job_helpers import FINAL, FakeScores, ended, new_job
from processes import until
from watch_helpers import facts, finish, jobs, joined, rule_for, skipped

from hubmerge.errors import HubUnavailableError, QuotaError, SourceNotFoundError
from workflows.bot import Intervals
from workflows.jobs.evaluations import (
    OF_CANDIDATE,
    OF_PARENT,
    WATCHED_MERGE,
    EvaluationRequests,
    ScoreKey,
    evaluation_job,
    schedule_evaluations,
)
from workflows.jobs.jobs import Job, JobError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken
from workflows.schedule import scheduler
from workflows.schedule.scheduler import Scheduler, Tick, run_tick

BASE, MATH, TOOL, MEM = (f"zoo/{name}" for name in ("base", "math", "tool", "mem"))
SHA = {name: f"{n:040x}" for n, name in enumerate((BASE, MATH, TOOL, MEM), start=1)}
ACCOUNT: Any = SimpleNamespace(name="ada", seal=lambda job_id: SealedToken(f"sealed for {job_id}", None))
PARENTS = [f"{name}@{SHA[name]}" for name in (MATH, TOOL)]


class Bench:
    """A store with merges, and requests for scores of a board that the test writes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.board = FakeScores()
        self.requests = EvaluationRequests(store, ACCOUNT, self.board)

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
        self.store.submit(new_job(name, "ada", payload=payload, priority=10**6))
        if state is State.QUEUED:
            return
        job = self.store.claim("worker", ["merge"])
        if state is State.DONE:
            self.store.finish(job.id, job.fence, {"repo": f"ada/{name}", "commit": f"{len(name):040x}", "use": use})
        else:
            self.store.fail(job.id, job.fence, FINAL)

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


def test_the_identity_of_an_evaluation_by_hand():
    job = evaluation_job(ScoreKey(MATH, SHA[MATH], "zoo", "v1", "test"), "ada")
    text = json.dumps(["evaluate", MATH, SHA[MATH], "zoo", "test", "v1"])
    assert job.id == hashlib.sha256(text.encode()).hexdigest()
    asked = {"model": MATH, "sha": SHA[MATH], "suite": "zoo", "suite_version": "v1", "split": "test"}
    assert (job.kind, job.payload) == ("evaluate", asked)


def test_a_done_merge_is_evaluated_with_its_parents_and_base_once_a_version_of_its_suite(bench, caplog, monkeypatch):
    looked = Mock(side_effect=bench.board.known_scores)
    monkeypatch.setattr(bench.board, "known_scores", looked)
    bench.merge("failed", state=State.FAILED)
    bench.merge("one")
    bench.merge("gone", suite="gone")
    bench.merge("three", [*PARENTS, {"model": f"{MEM}@{SHA[MEM]}", "weight": 0.5}])
    bench.merge("waits", state=State.QUEUED)
    for _ in range(3):
        assert bench.tick() == 0
    looked.assert_called_once()  # only where there is no job
    assert caplog.text.count("nothing is evaluated with gone now") == 1, "not at every tick"
    merged = {("ada/one", f"{3:040x}"), ("ada/three", f"{5:040x}")}
    assert bench.asked() == merged | {(name, SHA[name]) for name in (BASE, MATH, TOOL, MEM)}
    assert len(bench.evaluations()) == 6  # each parent once, not once per merge
    assert {(job.payload["suite"], job.user) for job in bench.evaluations()} == {("zoo", "ada")}
    bench.board.version = "2"
    bench.board.known = {ScoreKey(MEM, SHA[MEM], "zoo", "2", "test")}  # which is not measured again
    for _ in range(2):
        bench.tick()
    assert len(bench.evaluations()) == 6 + 5


def test_merges_come_before_evaluations_and_merged_models_before_parents(bench):
    bench.merge("one")
    bench.tick()
    watched = NewJob(id="a" * 64, user="ada", payload={}, priority=WATCHED_MERGE)
    asked = NewJob(id="b" * 64, user="bob", payload={})
    bench.requests.request(bench.requests.key("zoo/candidate", "d" * 40, "zoo"), OF_CANDIDATE)
    bench.requests.request(bench.requests.key(TOOL, SHA[TOOL], "zoo"), OF_CANDIDATE)  # which waits as a parent's
    bench.store.submit(watched)
    bench.store.submit(asked)
    order = []
    while (job := bench.store.claim("worker")) is not None:
        order.append(job.payload.get("model") or job.id[0])
    assert order == ["b", "a", "ada/one", TOOL, "zoo/candidate", BASE, MATH]


def test_an_evaluation_that_failed_without_a_record_is_due_again_hours_later(bench, clock):
    bench.merge("one")
    bench.tick()
    while (job := bench.store.claim("worker")) is not None:
        bench.store.fail(job.id, job.fence, JobError(code="E_INTERNAL", message="no record of it"))
    recorded, *_ = bench.evaluations()  # as the model's own failure, say
    model, sha = recorded.payload["model"], recorded.payload["sha"]
    bench.board.known.add(ScoreKey(model, sha, "zoo", bench.board.version, "test"))
    clock.pass_time(hours=5)
    bench.tick()
    assert {job.state for job in bench.evaluations()} == {State.FAILED}
    clock.pass_time(hours=1, seconds=1)
    bench.tick()
    states = {job.id: job.state for job in bench.evaluations()}
    assert states.pop(recorded.id) is State.FAILED
    assert set(states.values()) == {State.QUEUED}
    assert len(states) > 1
    job = ended(bench.store, JobError(code="E_INTERNAL", message="no record of it"))
    clock.wall -= timedelta(days=3650)  # it was ahead
    bench.tick()
    assert bench.store.get(job.id).state is State.QUEUED


def test_what_was_recorded_in_another_results_dataset_is_due_in_the_present_one(bench):
    bench.merge("one")
    bench.tick()
    while (job := bench.store.claim("worker")) is not None:
        bench.store.finish(job.id, job.fence, {"repo": bench.board.dataset.repo})
    bench.tick()
    assert {job.state for job in bench.evaluations()} == {State.DONE}
    bench.board.dataset.repo = "zoo/another"  # another HUBMERGE_RESULTS, which has one of these scores
    known, *others = bench.evaluations()
    bench.board.known = {ScoreKey(*(known.payload[name] for name in ScoreKey._fields))}
    bench.tick()
    assert bench.store.get(known.id).state is State.DONE
    assert {bench.store.get(job.id).state for job in others} == {State.QUEUED}


def test_merges_of_the_form_are_evaluated_with_the_default_suite_and_private_and_watched_are_not(bench):
    bench.merge("open", suite=None)
    bench.merge("hidden", suite=None, private=True)
    bench.merge("watched", suite=None, watcher="without a suite")
    bench.merge("sees-pictures", suite=None, use="image-classification")
    assert bench.tick() == 0
    assert bench.evaluations() == []
    bench.board.default_suite = "math"
    bench.tick()
    assert ("ada/open", f"{4:040x}") in bench.asked()
    assert {"ada/hidden", "ada/watched", "ada/sees-pictures"}.isdisjoint(model for model, _ in bench.asked())
    assert {job.payload["suite"] for job in bench.evaluations()} == {"math"}


def test_evaluations_take_no_room_of_the_owner_s_other_jobs_and_go_on_later(bench):
    bench.store.jobs_per_user = 2
    bench.merge("one")
    for name in "ab":
        bench.store.submit(NewJob(id=name * 64, user="ada", payload={}))
    assert bench.tick() == 2
    assert [job.payload["model"] for job in reversed(bench.evaluations())] == ["ada/one", BASE]
    with pytest.raises(QuotaError, match="ada already has 2 jobs"):
        bench.store.submit(NewJob(id="c" * 64, user="ada", payload={}))
    with pytest.raises(QuotaError, match="ada already has 2 evaluations"):
        bench.requests.request(bench.requests.key(TOOL, SHA[TOOL], "zoo"), OF_PARENT)
    candidate = bench.requests.request(bench.requests.key(MEM, SHA[MEM], "zoo"), OF_CANDIDATE)
    assert candidate.state is State.QUEUED  # a rule waits for it, and the tick would take each place that becomes free
    with pytest.raises(QuotaError):
        bench.requests.request(bench.requests.key("zoo/new", SHA[MEM], "zoo"), OF_CANDIDATE)
    while (job := bench.store.claim("worker")) is not None:
        bench.store.finish(job.id, job.fence, {})
    assert bench.tick() == 0
    assert len(bench.evaluations()) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {}},
        {"recipe": None},
        {"recipe": {"base": "zoo/base", "agents": ["zoo/math", 7, {"model": None}, "../x@" + "a" * 40]}},
        {"recipe": {"base": None, "agents": []}},
    ],
)
def test_parents_that_are_not_pinned_are_left_out(bench, changes):
    bench.merge("one", **changes)
    bench.tick()
    assert bench.asked() == {("ada/one", f"{3:040x}")}


def test_a_tick_that_raises_is_logged_and_stops_neither_itself_nor_others(caplog):
    counts: Counter[str] = Counter()
    enough = threading.Event()

    def count(name: str, error: Exception | None) -> None:
        counts[name] += 1
        if min(counts[name] for name in ("bug", "refused", "good")) >= 3:
            enough.set()
        if error is not None:
            raise error

    errors = {"bug": ZeroDivisionError(), "refused": HubUnavailableError("away"), "good": None}
    with Scheduler([Tick(name, 0.01, partial(count, name, error)) for name, error in errors.items()]):
        assert enough.wait(60)
    logged = sorted((r.levelname, r.getMessage().partition(":")[0], r.exc_info is not None) for r in caplog.records)
    assert logged == [("ERROR", "tick bug", True), ("WARNING", "tick refused", False)]  # a bug with its trace


def test_every_outage_that_a_tick_meets_is_told_once(caplog):
    away, gone = HubUnavailableError("away"), SourceNotFoundError("gone")
    answers = iter([away, HubUnavailableError("away for another reason"), gone, None, gone, away])

    def look() -> None:
        if (error := next(answers)) is not None:
            raise error

    tick = Tick("look", 1, look)
    for _ in range(6):
        run_tick(tick)
    assert [r.getMessage().split()[-1] for r in caplog.records] == ["away.", "gone.", "gone.", "away."]


def test_a_tick_never_runs_twice_at_once_and_a_slow_one_holds_up_no_other():
    release = threading.Event()
    begun: list[str] = []

    def slow() -> None:
        begun.append("slow")
        release.wait(60)

    with Scheduler([Tick("slow", 0.01, slow), Tick("quick", 0.01, partial(begun.append, "quick"))]):
        until(lambda: begun.count("quick") >= 10)
        assert begun.count("slow") == 1
        release.set()


def test_ticks_go_on_where_somebody_sets_the_clock_back(monkeypatch):
    back = iter([1000.0, 999.0])
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(time=lambda: next(back, 999.0)))
    monkeypatch.setattr(scheduler, "LOOK_EVERY_S", 0.01)
    calls: list[int] = []
    with Scheduler([Tick("rare", 1000, partial(calls.append, 1))]):
        until(lambda: len(calls) == 2, seconds=10)


def test_ticks_that_a_clock_set_forward_skips_come_once_and_at_once(monkeypatch):
    class SetForward(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=60 if calls else 0)

    calls: list[int] = []
    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", SetForward)
    with Scheduler([Tick("often", 1, partial(calls.append, 1))]):
        until(lambda: len(calls) == 3, seconds=10)  # five million times were missed
        assert len(calls) == 3


def test_the_end_waits_for_a_tick_that_runs_and_leaves_no_thread():
    before = set(threading.enumerate())
    started, go_on, finished = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(60)
        finished.set()

    with Scheduler([Tick("work", 1000, work)]):
        assert started.wait(60)  # the first call comes at once
        releasing = threading.Timer(0.05, go_on.set)
        releasing.start()
    assert finished.is_set()
    releasing.join()
    assert set(threading.enumerate()) <= before


def test_the_bot_by_its_ticks_merges_and_evaluates_unattended(agents, bot_for):
    """Push → tick → merge job → (done) → tick → evaluations of the merge, its agents and its base."""
    base, names = agents.family(2)
    quick = Intervals(reap_s=0.02, inbox_s=0.02, poll_s=0.05, evaluations_s=0.02)
    rule = rule_for(base, suite="zoo")
    bot = bot_for(rule, scores=FakeScores(), jobs_per_user=20, intervals=quick)
    with bot.scheduler:
        [merge] = until(lambda: bot.store.list_jobs(kinds=["merge"]))
        finish(bot)
        asked = until(lambda: len(found := bot.store.list_jobs(kinds=["evaluate"])) == 4 and found)
    wanted = {(merge.payload["target"], "c" * 40)} | {(n, agents.head(n)) for n in (base, *names)}
    assert {(job.payload["model"], job.payload["sha"]) for job in asked} == wanted


@pytest.mark.parametrize("join", [None, {"best": 2}])
def test_a_flagged_model_neither_joins_nor_is_evaluated(agents, bot_for, join):
    base, names = agents.family(3)
    scores = FakeScores()
    scores.flags = {(names[0], agents.head(names[0])): "contaminated: saw the test set"}
    bot = bot_for(rule_for(base, suite="zoo", join=join), scores=scores, jobs_per_user=20)
    [turn] = bot.watchers.poll()
    if join is None:
        assert joined(turn) == names[1:]
    else:
        assert {job.payload["model"] for job in bot.store.list_jobs()} == set(names[1:])
    told = {skip.subject: (skip.code, skip.text) for skip in turn.decision.skips}
    assert told[names[0]] == ("flagged", "contaminated: saw the test set")


def test_the_best_are_evaluated_before_they_join(agents, bot_for):
    base, names = agents.family(3)
    agents.api.update_repo_settings(names[0], private=True)
    scores = FakeScores()
    chosen = {"agents": {"authors": ["ada"], "closed": True}, "suite": "zoo", "join": {"best": 2}}
    bot = bot_for(rule_for(base, **chosen), scores=scores, jobs_per_user=20)
    for _ in range(2):
        [turn] = bot.watchers.poll()
        assert turn.decision.waiting == "evaluations on their way: 3"
    asked = bot.store.list_jobs()
    assert sorted(job.payload["model"] for job in asked) == names  # each once
    assert {job.priority for job in asked} == {OF_CANDIDATE}
    assert [job.payload["model"] for job in asked if job.payload.get("private")] == names[:1]  # its owner's to see
    for job in asked:
        scores.means[job.payload["model"], job.payload["sha"]] = 0.1 * names.index(job.payload["model"])
    finish(bot)
    [turn] = bot.watchers.poll()
    assert (joined(turn), skipped(turn)) == (names[1:], {names[0]: "not_best"})
    [turn] = bot_for(rule_for(base, **chosen)).watchers.poll()  # of an app that keeps no scores
    assert "Set HUBMERGE_RESULTS" in str(turn.error)


def test_scores_recorded_during_a_look_count(bot_for, monkeypatch):
    scores, model = FakeScores(), facts("a")
    bot = bot_for(scores=scores)

    def ends_meanwhile(*_: Any, **__: Any) -> Any:
        scores.means[model.id, model.sha] = 0.9
        return Mock(state=State.DONE)

    monkeypatch.setattr(bot.requests, "request", ends_meanwhile)
    found = bot.watchers._scores("zoo", [model], request=True, private=False)
    assert (found.values, found.pending) == ({model.pin: 0.9}, frozenset())


def test_a_candidate_that_could_not_be_measured_is_not_measured_again(bot_for):
    scores, model = FakeScores(), facts("a")
    bot = bot_for(scores=scores)
    scores.known.add(bot.requests.key(model.id, model.sha, "zoo"))  # that it failed is recorded
    found = bot.watchers._scores("zoo", [model], request=True, private=False)
    assert (found.values, found.pending, jobs(bot)) == ({}, frozenset(), [])
