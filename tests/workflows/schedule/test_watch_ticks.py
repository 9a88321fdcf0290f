"""The clockwork: ticks that survive their errors and each other, and the bot that runs by them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from watch_helpers import Agents, rule_of

from hubmerge.errors import HubUnavailableError
from workflows.bot import Bot, Intervals
from workflows.jobs.evaluations import OF_CANDIDATE, Scoring
from workflows.jobs.jobs import Job
from workflows.jobs.store import Store
from workflows.schedule.scheduler import Scheduler, Tick


def test_a_tick_that_raises_is_logged_under_its_name_and_stops_neither_itself_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    logged = {(r.levelname, r.getMessage().partition(":")[0], r.exc_info is not None) for r in caplog.records}
    assert logged == {("ERROR", "tick bug", True), ("WARNING", "tick refused", False)}  # a bug with its trace


def test_a_tick_never_runs_twice_at_once_and_a_slow_one_holds_up_no_other() -> None:
    release, others = threading.Event(), threading.Event()
    running: list[int] = []
    most: list[int] = []
    passed: list[int] = []

    def slow() -> None:
        running.append(1)
        most.append(len(running))
        release.wait(60)
        running.pop()

    def quick() -> None:
        passed.append(1)
        if len(passed) >= 10:
            others.set()

    with Scheduler([Tick("slow", 0.01, slow), Tick("quick", 0.01, quick)]):
        assert others.wait(60)
        release.set()
    assert set(most) == {1}


def test_the_end_waits_for_a_tick_that_runs_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    started, go_on, finished = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(60)
        finished.set()

    scheduler = Scheduler([Tick("work", 1000, work), Tick("other", 1000, lambda: None)])
    with scheduler:
        assert started.wait(60)  # the first call comes at once
        releasing = threading.Timer(0.05, go_on.set)
        releasing.start()
    assert finished.is_set()
    releasing.join()
    assert set(threading.enumerate()) <= before
    with scheduler:  # and begins anew
        pass
    assert set(threading.enumerate()) <= before


def test_the_bot_by_its_ticks_merges_and_evaluates_unattended(
    agents: Agents, bot_for: Callable[..., Bot], tmp_path: Path
) -> None:
    """Push → tick → merge job → (done) → tick → evaluations of the merge, its agents and its base."""
    base = agents.base()
    rule = rule_of(base=base, agents={"authors": ["ada"]}, target="ada/unattended-{set}", suite="zoo")
    scoring = Scoring(lambda _: "1", set)
    quick = Intervals(reap_s=0.02, inbox_s=0.02, poll_s=0.05, evaluations_s=0.02)
    bot = bot_for(rule, scoring=scoring, jobs_per_user=20, intervals=quick)
    names = [agents.agent(base) for _ in range(2)]
    store = Store(tmp_path / "data")
    pause = threading.Event()

    def await_job(kind: str, count: int) -> list[Job]:
        for _ in range(3000):
            found = [job for job in store.list_jobs(limit=100) if job.kind == kind]
            if len(found) >= count:
                return found
            pause.wait(0.02)
        raise AssertionError(f"no {count} jobs of kind {kind}")

    with bot:
        [merge] = await_job("merge", 1)
        claimed = store.claim("worker")
        assert claimed.id == merge.id
        store.finish(merge.id, claimed.fence, {"repo": merge.payload["target"], "commit": "c" * 40})
        asked = await_job("evaluate", 4)
    wanted = {(merge.payload["target"], "c" * 40)} | {(n, agents.head(n)) for n in (base, *names)}
    assert {(job.payload["model"], job.payload["sha"]) for job in asked} == wanted
    store.close()


@pytest.mark.parametrize("join", [None, {"best": 2}])
def test_a_flagged_model_neither_joins_nor_is_evaluated(
    agents: Agents, bot_for: Callable[..., Bot], tmp_path: Path, join: Any
) -> None:
    base = agents.base()
    names = sorted(agents.agent(base) for _ in range(3))
    rule = rule_of(base=base, agents={"authors": ["ada"]}, target="ada/clean-{set}", suite="zoo", join=join)
    scoring = Scoring(
        lambda _: "1",
        set,
        ranking=lambda suite, models: {(name, agents.head(name)): 0.5 for name in names},
        flagged=lambda models: {m: "contaminated: saw the test set" for m in models if m[0] == names[0]},
    )
    [turn] = bot_for(rule, scoring=scoring).watchers.poll()
    assert [a.partition("@")[0] for a in turn.decision.merge.recipe["agents"]] == names[1:]
    [skip] = turn.decision.skips
    assert (skip.subject, skip.code, skip.text) == (names[0], "flagged", "contaminated: saw the test set")


def test_the_best_are_evaluated_before_they_join(agents: Agents, bot_for: Callable[..., Bot], tmp_path: Path) -> None:
    base = agents.base()
    names = sorted(agents.agent(base) for _ in range(3))
    board: dict[tuple[str, str], float] = {}

    def ranking(suite: str, models: Any) -> dict[tuple[str, str], float]:
        return {pair: board[pair] for pair in models if pair in board}

    rule = rule_of(base=base, agents={"authors": ["ada"]}, target="ada/best-{set}", suite="zoo", join={"best": 2})
    bot = bot_for(rule, scoring=Scoring(lambda _: "1", set, ranking=ranking), jobs_per_user=20)
    [turn] = bot.watchers.poll()
    assert turn.decision.waiting == "evaluations on their way: 3"
    [turn] = bot.watchers.poll()
    store = Store(tmp_path / "data")
    asked = store.list_jobs(limit=100)
    assert sorted(job.payload["model"] for job in asked) == names  # each once
    assert {job.priority for job in asked} == {OF_CANDIDATE}
    for job in asked:
        board[job.payload["model"], job.payload["sha"]] = 0.1 * names.index(job.payload["model"])
        claimed = store.claim("worker")
        store.finish(claimed.id, claimed.fence, {})
    [turn] = bot.watchers.poll()
    assert [a.partition("@")[0] for a in turn.decision.merge.recipe["agents"]] == names[1:]
    assert {s.subject: s.code for s in turn.decision.skips} == {names[0]: "not_best"}
    store.close()
