"""What the store promises about one job: its states, its owner's rights, its back-off and its end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from job_helpers import FINAL, OUTAGE, REFUSAL, RETRYABLE, FakeClock, claim, claimed, job_id, new_job
from pydantic import ValidationError

from hubmerge.errors import PermissionDeniedError, QuotaError, RecipeError
from workflows.jobs.jobs import (
    BACKOFF_BASE_S,
    BACKOFF_CAP_S,
    OUTAGE_TRIES,
    Job,
    JobError,
    JobNotFoundError,
    NewJob,
    StaleFenceError,
    State,
    backoff_s,
)
from workflows.jobs.store import Store


def test_a_submitted_job_waits_and_says_what_was_asked(store: Store) -> None:
    job = store.submit(new_job("a", priority=3))
    assert (job.state, job.attempt, job.fence, job.user, job.priority) == (State.QUEUED, 0, 0, "ann", 3)
    assert job.payload == {"name": "a"}
    assert store.get(job.id) == job


def test_the_same_identity_again_is_the_same_job(store: Store) -> None:
    first = store.submit(new_job("a"))
    assert store.submit(new_job("a")) == first
    claimed = claim(store)
    assert store.submit(new_job("a")) == claimed
    done = store.finish(claimed.id, claimed.fence, {"url": "x"})
    assert store.submit(new_job("a")) == done
    assert len(store.list_jobs()) == 1


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_failed_or_cancelled_identity_submitted_again_is_a_new_attempt(store: Store, end: str) -> None:
    store.submit(new_job("a", max_attempts=2))
    store.submit(new_job("b"))
    job = claim(store)
    if end == "fail":
        store.fail(job.id, job.fence, FINAL)
    else:
        store.cancelled(job.id, job.fence)
    again = store.submit(new_job("a", max_attempts=2))
    assert (again.state, again.error, again.finished, again.failures) == (State.QUEUED, None, None, 0)
    assert (again.attempt, again.max_attempts) == (1, 3)
    assert claim(store).id == job_id("b")  # it lost its place in the queue
    assert (claim(store).attempt, store.get(again.id).fence) == (2, 2)


def test_an_identity_belongs_to_who_submitted_it(store: Store) -> None:
    store.submit(new_job("a", user="ann"))
    with pytest.raises(PermissionDeniedError, match="Choose another target"):
        store.submit(new_job("a", user="bob"))


@pytest.mark.parametrize("bad", ["../../etc", "A" * 64, "a" * 63, "a" * 64 + "\n", ""])
def test_an_identity_that_is_no_sha256_is_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        NewJob(id=bad, user="ann", payload={})


def test_an_endless_recipe_is_refused(store: Store) -> None:
    with pytest.raises(RecipeError, match="too long"):
        store.submit(new_job("a", payload={"x": "y" * 300_000}))
    assert store.list_jobs() == ()


def test_the_sixth_job_of_a_quota_of_five_is_refused_with_a_clear_message(store: Store) -> None:
    for number in range(5):
        store.submit(new_job(f"a{number}"))
    with pytest.raises(QuotaError) as refusal:
        store.submit(new_job("a5"))
    assert str(refusal.value) == (
        "E_QUOTA: ann already has 5 jobs waiting or running: expected at most 5 at once, got job number 6. "
        "Wait until one has ended, or cancel one."
    )
    assert len(store.list_jobs()) == 5
    store.submit(new_job("a3"))  # one that is there already takes no place
    store.submit(new_job("b", user="bob"))  # another user has a quota of their own
    running = claim(store)
    with pytest.raises(QuotaError):
        store.submit(new_job("a5"))
    store.finish(running.id, running.fence, {})
    assert store.submit(new_job("a5")).state is State.QUEUED


def test_a_full_queue_takes_no_job_of_anybody_and_keeps_what_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.jobs.transitions.MAX_WAITING", 2)
    first = store.submit(new_job("a", user="ann"))
    store.submit(new_job("b", user="bob"))
    with pytest.raises(QuotaError, match="the queue is full: expected at most 2 jobs that wait"):
        store.submit(new_job("c", user="cleo"))
    assert store.submit(new_job("a", user="ann")) == first
    claim(store)
    assert store.submit(new_job("c", user="cleo")).state is State.QUEUED


def test_the_newest_events_of_a_job_are_found_however_many_there_are(store: Store) -> None:
    job = claimed(store)
    store.append_events(job.id, job.fence, [("statistics", {"values": {"n": n}}) for n in range(1500)])
    assert [event.data["values"]["n"] for event in store.last_events(job.id, 2)] == [1498, 1499]


def test_a_new_attempt_of_a_failed_job_takes_a_place_of_the_quota(store: Store) -> None:
    store.submit(new_job("failed"))
    job = claim(store)
    store.fail(job.id, job.fence, FINAL)
    for number in range(5):
        store.submit(new_job(f"a{number}"))
    with pytest.raises(QuotaError):
        store.submit(new_job("failed"))
    assert store.get(job.id).state is State.FAILED


def test_a_foreign_user_cannot_cancel(store: Store) -> None:
    job = store.submit(new_job("a", user="ann"))
    with pytest.raises(PermissionDeniedError, match="only its owner"):
        store.request_cancel(job.id, "bob")
    running = claim(store)
    with pytest.raises(PermissionDeniedError):
        store.request_cancel(job.id, "bob")
    assert store.get(job.id) == running


def test_a_waiting_job_is_cancelled_at_once(store: Store) -> None:
    job = store.submit(new_job("a"))
    assert store.request_cancel(job.id, "ann").state is State.CANCELLED
    assert store.claim("w1") is None


def test_a_running_job_is_cancelled_by_its_worker(store: Store) -> None:
    job = claimed(store)
    assert store.request_cancel(job.id, "ann").state is State.CANCELLING
    assert store.request_cancel(job.id, "ann").state is State.CANCELLING
    assert store.heartbeat(job.id, job.fence).state is State.CANCELLING
    assert store.claim("w2") is None
    assert store.cancelled(job.id, job.fence).state is State.CANCELLED


def test_a_cancelled_job_is_not_tried_again_where_its_worker_fails_or_dies_and_is_done_where_it_had_published(
    store: Store,
) -> None:
    failing, publishing, dying = (claimed(store, name, f"w-{name}") for name in "abc")
    for job in (failing, publishing, dying):
        store.request_cancel(job.id, "ann")
    assert store.fail(failing.id, failing.fence, RETRYABLE).state is State.CANCELLED
    assert store.finish(publishing.id, publishing.fence, {"commit": "abc"}).state is State.DONE
    assert [left.state for left in store.reap(["w-c"])] == [State.CANCELLED]


def test_a_job_that_nobody_submitted_is_named_as_missing(store: Store) -> None:
    for call in (
        lambda: store.get(job_id("x")),
        lambda: store.request_cancel(job_id("x"), "ann"),
        lambda: store.heartbeat(job_id("x"), 1),
    ):
        with pytest.raises(JobNotFoundError, match="E_JOB"):
            call()
    assert store.find(job_id("x")) is None


def test_higher_priority_then_older_goes_first(store: Store) -> None:
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        store.submit(new_job(name, priority=priority))
    order = [claim(store).payload["name"] for _ in range(4)]
    assert order == ["high", "first", "second", "low"]


def test_a_worker_gets_only_the_kinds_it_can_run(store: Store) -> None:
    store.submit(new_job("a", kind="evaluate"))
    assert store.claim("w1", ["merge"]) is None
    assert store.claim("w1", ["merge", "evaluate"]) is not None


def test_a_retryable_failure_waits_before_the_next_attempt(store: Store, clock: FakeClock) -> None:
    job = claimed(store)
    busy = RETRYABLE.model_copy(update={"code": "E_BUSY"})
    waiting = store.fail(job.id, job.fence, busy)
    assert (waiting.state, waiting.error) == (State.QUEUED, busy)
    wait_s = backoff_s(job.id, 1, 1)
    clock.pass_time(wait_s - 0.01)
    assert store.claim("w1") is None
    clock.pass_time(0.02)
    assert claim(store).attempt == 2


@pytest.mark.parametrize("error", [FINAL, REFUSAL], ids=lambda error: error.code)
def test_a_failure_without_a_retry_is_final_and_a_refusal_of_the_hub_no_outage(store: Store, error: JobError) -> None:
    job = claimed(store)
    failed = store.fail(job.id, job.fence, error)
    assert (failed.state, failed.error) == (State.FAILED, error)


def test_the_last_attempt_is_final(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=3))
    states = []
    for _ in range(3):
        clock.pass_time(BACKOFF_CAP_S)
        job = claim(store)
        states.append(store.fail(job.id, job.fence, RETRYABLE).state)
    assert states == [State.QUEUED, State.QUEUED, State.FAILED]


def test_a_hub_that_is_away_for_most_of_a_day_loses_no_job(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=2))
    began = clock.seconds
    while clock.seconds - began < 20 * 3600:
        job = claim(store)
        assert store.fail(job.id, job.fence, OUTAGE).state is State.QUEUED
        clock.pass_time(backoff_s(job.id, job.attempt, job.failures + 1) + 0.01)
    job = claim(store)
    assert store.finish(job.id, job.fence, {}).state is State.DONE


def test_an_outage_uses_up_no_attempt_of_those_for_other_failures(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=2))
    states = []
    for error in (OUTAGE, OUTAGE, RETRYABLE, OUTAGE, RETRYABLE):
        clock.pass_time(BACKOFF_CAP_S)
        job = claim(store)
        states.append(store.fail(job.id, job.fence, error).state)
    assert states == [State.QUEUED] * 4 + [State.FAILED]


def test_an_outage_without_end_ends_the_job(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=1))
    for _ in range(OUTAGE_TRIES + 1):
        clock.pass_time(BACKOFF_CAP_S)
        job = claim(store)
        left = store.fail(job.id, job.fence, OUTAGE)
    assert (left.state, left.error) == (State.FAILED, OUTAGE)


def test_back_off_doubles_up_to_a_cap_and_follows_from_the_identity() -> None:
    for failures, full in ((1, 4.0), (2, 8.0), (3, 16.0), (8, 512.0), (9, 600.0), (1000, 600.0)):
        waits = [backoff_s(job_id(str(n)), failures, failures) for n in range(50)]
        assert min(waits) >= full / 2
        assert max(waits) <= full
        assert len(set(waits)) == 50  # jobs that failed together do not come back together
        assert waits == [backoff_s(job_id(str(n)), failures, failures) for n in range(50)]
    assert (BACKOFF_BASE_S, BACKOFF_CAP_S) == (4.0, 600.0)


def die(store: Store, clock: FakeClock, stage: str, done: int) -> Job:
    clock.pass_time(BACKOFF_CAP_S)
    job = claim(store)
    store.set_progress(job.id, job.fence, stage, {"stage": stage, "done": done})
    killed = RETRYABLE.model_copy(update={"code": "E_TOO_BIG"})
    return store.fail(job.id, job.fence, killed, out_of_memory=True)


def test_the_second_memory_death_at_one_place_is_too_big(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a"))
    assert die(store, clock, "stream", 3).state is State.QUEUED
    failed = die(store, clock, "stream", 3)
    assert failed.state is State.FAILED
    assert (failed.error.code, failed.error.retryable, failed.memory_deaths) == ("E_TOO_BIG", False, 2)


def test_a_memory_death_further_on_counts_as_the_first(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a"))
    states = [die(store, clock, "stream", done).state for done in (3, 4, 9)]
    assert states == [State.QUEUED] * 3
    assert die(store, clock, "stream", 9).state is State.FAILED


def test_kills_that_find_a_job_further_on_each_time_use_up_no_attempt(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=3))
    states = [die(store, clock, "stream", done).state for done in range(1, 10)]
    assert states == [State.QUEUED] * 9
    for done in range(10, 20):  # the app is killed and started again
        clock.pass_time(BACKOFF_CAP_S)
        job = claim(store)
        store.set_progress(job.id, job.fence, "stream", {"stage": "stream", "done": done})
        assert [left.state for left in store.reap(["w1"])] == [State.QUEUED]
    job = claim(store)
    assert store.finish(job.id, job.fence, {}).state is State.DONE


def test_kills_further_on_have_an_end(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=3))
    left = None
    for done in range(100):
        if (left := die(store, clock, "stream", done)).state is State.FAILED:
            break
    assert left.attempt <= 26


def test_a_job_that_is_killed_once_at_its_last_attempt_is_not_called_too_big(store: Store, clock: FakeClock) -> None:
    job = claimed(store, max_attempts=2)
    store.fail(job.id, job.fence, RETRYABLE)
    failed = die(store, clock, "stream", 3)
    assert failed.state is State.FAILED
    assert (failed.error.code, failed.error.retryable) == ("E_INTERNAL", True)


def test_a_fault_of_the_machine_uses_up_no_attempt_until_the_twelfth(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=2))
    fault = RETRYABLE.model_copy(update={"code": "E_MACHINE"})
    states = []
    for _ in range(20):
        clock.pass_time(BACKOFF_CAP_S)
        if (job := store.claim("w1")) is None:
            break
        states.append(store.fail(job.id, job.fence, fault).state)
    assert states[:11] == [State.QUEUED] * 11
    assert states[-1] is State.FAILED
    assert len(states) <= 11 + 2


def test_a_disk_that_others_fill_for_three_minutes_loses_no_job(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a"))
    began = clock.seconds
    while clock.seconds - began < 180:
        if (job := store.claim("w1")) is not None:
            assert store.fail(job.id, job.fence, RETRYABLE).state is State.QUEUED
        clock.pass_time(1.0)


def test_a_released_job_is_due_at_once_and_loses_no_attempt(store: Store) -> None:
    store.submit(new_job("a", max_attempts=1))
    for _ in range(3):
        job = claim(store)
        assert store.release(job.id, job.fence).state is State.QUEUED
    assert claim(store).attempt == 4


@pytest.mark.parametrize("end", ["finish", "fail", "cancelled"])
def test_an_ended_job_belongs_to_no_worker_and_says_when_it_ended(store: Store, clock: FakeClock, end: str) -> None:
    """Failed jobs keep their files for a time that is counted from then on."""
    job = claimed(store)
    clock.pass_time(60)
    more = {"finish": [{}], "fail": [FINAL], "cancelled": []}[end]
    getattr(store, end)(job.id, job.fence, *more)
    ended = store.find(job.id)
    assert (ended.lease_owner, ended.lease_until, ended.finished) == (None, None, "2030-01-01T12:01:00.000000+00:00")


def test_done_never_changes(store: Store) -> None:
    job = claimed(store)
    done = store.finish(job.id, job.fence, {"url": "x"})
    for write in (
        lambda: store.heartbeat(job.id, job.fence),
        lambda: store.set_progress(job.id, job.fence, "plan", None),
        lambda: store.append_events(job.id, job.fence, [("warning", {})]),
        lambda: store.fail(job.id, job.fence, RETRYABLE),
        lambda: store.cancelled(job.id, job.fence),
        lambda: store.release(job.id, job.fence),
        lambda: store.finish(job.id, job.fence, {}),
    ):
        with pytest.raises(StaleFenceError):
            write()
    assert store.request_cancel(job.id, "ann") == done
    assert store.reap(["w1"]) == ()
    assert store.get(job.id) == done


def test_events_are_numbered_without_a_gap_and_tell_the_story(store: Store, clock: FakeClock) -> None:
    job = claimed(store)
    store.append_events(job.id, job.fence, [("stage", {"stage": "plan"}), ("warning", {"message": "m"})])
    store.fail(job.id, job.fence, RETRYABLE)
    clock.pass_time(BACKOFF_CAP_S)
    job = claim(store)
    store.finish(job.id, job.fence, {})
    story = store.events(job.id)
    assert [event.seq for event in story] == list(range(1, 8))
    types = [event.type for event in story]
    assert types == ["submitted", "claimed", "stage", "warning", "retry", "claimed", "done"]
    assert [event.seq for event in store.events(job.id, after=5)] == [6, 7]
    assert [event.seq for event in store.events(job.id, after=2, limit=2)] == [3, 4]


def test_lists_are_newest_first_by_page_user_and_state(store: Store) -> None:
    for name, user in (("a", "ann"), ("b", "bob"), ("c", "ann"), ("d", "ann")):
        store.submit(new_job(name, user=user))
    claim(store)

    def names(**how: object) -> list[str]:
        return [job.payload["name"] for job in store.list_jobs(**how)]  # type: ignore[arg-type]

    assert names() == ["d", "c", "b", "a"]
    assert names(user="ann") == ["d", "c", "a"]
    assert names(states=[State.RUNNING]) == ["a"]
    page = store.list_jobs(user="ann", limit=2)
    assert names(user="ann", limit=2, before=page[-1].ticket) == ["a"]


def test_the_wall_clock_may_jump_without_moving_queue_or_back_off(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a"))
    clock.wall -= timedelta(days=400)
    store.submit(new_job("b"))
    assert claim(store).payload["name"] == "a"
    job = claim(store)
    store.fail(job.id, job.fence, RETRYABLE)
    clock.wall += timedelta(days=4000)
    assert store.claim("w1") is None
    assert [job.payload["name"] for job in store.list_jobs()] == ["b", "a"]
