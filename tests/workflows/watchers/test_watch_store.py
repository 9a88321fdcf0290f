"""The watchers' tables: brought in without losing a job, and transactions that two processes cannot both win."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from job_helpers import OUTAGE, FakeClock, ended
from watch_helpers import BASE, facts, rule_of

from hubmerge.errors import IncompatibleError
from hubmerge.hub.names import FileInfo, RepoState
from workflows.jobs.jobs import JobError, NewJob, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken
from workflows.watchers import ledger as ledger_module
from workflows.watchers.base import PlannedMerge, Skip
from workflows.watchers.facts import Facts, _reason, facts_of
from workflows.watchers.kinds.agents import plan_merge
from workflows.watchers.ledger import Ledger

TOKEN = SealedToken("sealed", None)


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


def planned(*versions: int) -> PlannedMerge:
    return plan_merge(rule_of(), BASE, [facts(f"a{n}", n) for n in versions])


def job_of(merge: PlannedMerge, user: str = "ada") -> NewJob:
    return NewJob(id=merge.set_id, user=user, payload={"target": merge.target})


def test_the_budget_holds_against_many_sets_at_once(ledger: Ledger) -> None:
    merges = [planned(n, n + 1) for n in range(1, 13)]
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda m: ledger.start("watch", m, job_of(m, m.set_id[:8]), TOKEN, 3), merges))
    assert sum(job is not None for job in started) == 3
    assert ledger.used("watch") == 3


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (JobError(code="E_HUB", message="away for days", retryable=True), True),
        (JobError(code="E_SOURCE_CHANGED", message="an agent was hidden for an hour"), True),
        (JobError(code="E_NONFINITE", message="an agent holds NaN"), False),
    ],
)
def test_a_set_whose_job_was_given_up_without_its_fault_is_tried_another_day(
    ledger: Ledger, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, error: JobError, again: bool
) -> None:
    monkeypatch.setattr("workflows.jobs.transaction.OUTAGE_TRIES", 2)
    merge = planned(1, 2)
    assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is not None
    while ended(store, error).state is not State.FAILED:
        clock.pass_time(seconds=700.0)
    clock.pass_time(days=3)
    assert [past.set_id for past in ledger.history("watch")] == ([] if again else [merge.set_id])
    started = ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert (started is not None) is again
    if started is not None:
        assert started.state is State.QUEUED
        assert ledger.used("watch") == 1  # of today's budget
        assert [past.set_id for past in ledger.history("watch")] == [merge.set_id]
        assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is None


def test_history_tells_a_merge_that_failed_from_one_that_is_done_or_on_its_way(ledger: Ledger, store: Store) -> None:
    merges = [planned(1, 2), planned(3, 4), planned(5, 6), planned(9, 10)]
    for merge in merges:
        ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    ended(store, JobError(code="E_NONFINITE", message="an agent holds NaN"))
    ended(store, JobError(code="E_SOURCE_CHANGED", message="for an hour"))
    ended(store)
    ledger.refuse("watch", planned(7, 8), "E_X", "taken")
    told = {past.set_id: (past.merged, past.failed) for past in ledger.history("watch")}
    expected = [(True, True), (True, False), (True, False), (True, False), (False, False)]
    assert told == dict(zip([merge.set_id for merge in (*merges, planned(7, 8))], expected, strict=True))


def test_a_set_that_was_given_up_is_merged_once_to_another_target(
    ledger: Ledger, store: Store, clock: FakeClock
) -> None:
    merge = planned(1, 2)
    ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    ended(store, JobError(code="E_PERMISSION", message="no namespace of the token's"))
    clock.pass_time(days=1)
    elsewhere = NewJob(id="e" * 64, user="ada", payload={"target": "ada/elsewhere"})  # its owner corrected the rule
    assert ledger.start("watch", merge, elsewhere, TOKEN, 5).id == elsewhere.id
    assert ledger.used("watch") == 1
    ended(store)
    assert [past.set_id for past in ledger.history("watch")] == [merge.set_id]
    assert ledger.start("watch", merge, elsewhere, TOKEN, 5) is None


def test_budgets_and_histories_of_rules_are_their_own(ledger: Ledger, clock: FakeClock) -> None:
    merge = planned(1, 2)
    assert ledger.start("one", merge, job_of(merge), TOKEN, 1) is not None
    assert (ledger.history("two"), ledger.used("two"), ledger.used("one")) == ((), 0, 1)
    assert ledger.start("two", merge, job_of(merge), TOKEN, 1).id == merge.set_id  # the same set is the same job
    ledger.refuse("one", merge, "E_X", "too late")  # what is merged stays merged
    assert [past.merged for past in ledger.history("one")] == [True]
    clock.wall -= timedelta(days=1)
    assert ledger.used("one") == 0  # a clock that was ahead uses up no budget


def test_a_job_that_a_person_started_is_taken_over_not_doubled(ledger: Ledger, store: Store) -> None:
    merge = planned(1, 2)
    mine = store.submit(job_of(merge))
    started = ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert (started.id, started.ticket) == (mine.id, mine.ticket)
    assert len(store.list_jobs()) == 1
    assert store.sealed_token(mine.id) is None  # whose token acts was decided when it was submitted


def test_a_set_whose_job_is_tried_again_is_not_given_up(ledger: Ledger, store: Store, clock: FakeClock) -> None:
    merge = planned(1, 2)
    ledger.start("watch", merge, job_of(merge), TOKEN, 5)
    assert ended(store, OUTAGE).state is State.QUEUED
    clock.pass_time(hours=30)
    assert ledger.start("watch", merge, job_of(merge), TOKEN, 5) is None
    assert ledger.used("watch") == 0


def test_the_reasons_of_the_last_look_are_noted_with_the_time_when_each_was_first_seen(
    ledger: Ledger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.skip("other", [Skip("zoo/a", "a" * 40, "license", "none")])
    skip, over = Skip("zoo/a", "a" * 40, "license", "not stated"), Skip("set 0123456789", "e" * 40, "budget", "")
    ledger.skip("watch", [skip, over])
    [first] = [note for note in ledger.skips("watch") if note.subject == "zoo/a"]
    clock.pass_time(hours=1)
    ledger.skip("watch", [skip, Skip("zoo/b", "b" * 40, "size", "too large")])
    assert [note.subject for note in ledger.skips("watch")] == ["zoo/b", "zoo/a"]
    assert ledger.skips("watch")[1] == first
    monkeypatch.setattr(ledger_module, "KEPT_SKIPS", 5)
    ledger.skip("watch", [Skip(f"zoo/a{n}", "a" * 40, "license", "none") for n in range(12)])
    assert [note.subject for note in ledger.skips("watch")] == [f"zoo/a{n}" for n in range(5)]
    assert len(ledger.skips("other")) == 1


def test_texts_of_strangers_are_cut_to_what_anybody_needs() -> None:
    card = {"tags": [f"{n:03}{'x' * 300}" for n in range(300)], "base_model": "b" * 300}
    found = facts_of(RepoState("zoo/a", "a" * 40, {}, False, False, "\ud800" + "l" * 300, card))
    assert len(found.tags) == 200
    assert {len(text) for text in (*found.tags, *found.bases, found.license or "")} == {200}
    assert (found.license or "").isascii()  # half a character could not be stored
    assert len(_reason(IncompatibleError("x" * 5000))) == 1000


def test_checkpoints_in_folders_of_a_repo_are_no_weights_of_its_model() -> None:
    def of(*paths: str) -> Facts:
        files = {path: FileInfo(path, 10, path * 3) for path in paths}
        return facts_of(RepoState("zoo/a", "a" * 40, files, False, False, None, {}))

    alone, beside = of("model.safetensors"), of("model.safetensors", "checkpoint-5/model.safetensors")
    assert (alone.weights, alone.weight_bytes) == (beside.weights, beside.weight_bytes)
    assert len(beside.files) == 2  # by any of which a merge is known
    assert of("checkpoint-5/model.safetensors").weights == ""
