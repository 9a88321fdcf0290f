"""What the store promises about a job: its states, who owns it, its owner's rights, its back-off and its end."""

import pytest
from job_helpers import FAULT, FINAL, OUTAGE, REFUSAL, RETRYABLE, FakeClock, claim, claimed, ended, job_id, new_job
from pydantic import ValidationError
from sqlalchemy import insert

from hubmerge.errors import QuotaError, RecipeError
from workflows.jobs import transaction
from workflows.jobs.jobs import BACKOFF_CAP_S, EVALUATION, OUTAGE_TRIES, Job, JobNotFoundError, NewJob, State, backoff_s
from workflows.jobs.schema import SETS
from workflows.jobs.store import Store


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_failed_or_cancelled_identity_submitted_again_is_a_new_attempt(store, end):
    store.submit(new_job("a", max_attempts=2))
    store.submit(new_job("b"))
    if end == "fail":
        ended(store, FINAL)
    else:
        job = claim(store)
        store.cancelled(job.id, job.fence)
    again = store.submit(new_job("a", max_attempts=2))
    assert (again.state, again.error, again.finished, again.failures) == (State.QUEUED, None, None, 0)
    assert (again.attempt, again.max_attempts) == (1, 3)
    assert claim(store).id == job_id("b")  # it lost its place in the queue
    assert (claim(store).attempt, store.get(again.id).fence) == (2, 2)


@pytest.mark.parametrize("bad", ["../../etc", "A" * 64, "a" * 63, "a" * 64 + "\n", ""])
def test_an_identity_that_is_no_sha256_is_refused(bad):
    with pytest.raises(ValidationError):
        NewJob(id=bad, user="ann", payload={})


def test_an_endless_recipe_is_refused(store):
    with pytest.raises(RecipeError, match="too long"):
        store.submit(new_job("a", payload={"x": "y" * 300_000}))
    assert store.list_jobs() == ()


def test_of_a_users_jobs_that_left_nothing_the_newest_are_kept(store, monkeypatch):
    """Who submits and cancels again and again fills no disk."""
    monkeypatch.setattr(transaction, "KEPT_ENDED", 2)
    for name, kind in (("merged", "merge"), ("compared", "diff"), ("measured", EVALUATION)):
        job = claimed(store, name, kind=kind)
        store.finish(job.id, job.fence, {})
    for name, changes in (("failed", {}), ("not measured", {"kind": EVALUATION}), ("of a rule", {})):
        job = claimed(store, name, **changes)
        store.fail(job.id, job.fence, FINAL)
    with store.writing() as change:
        row = dict.fromkeys(("rule", "set_id", "weights_id", "time", "target"), "r") | {"members": {}, "job_id": job.id}
        change.connection.execute(insert(SETS).values(**row))
    store.submit(new_job("of bob", user="bob"))
    store.request_cancel(job_id("of bob"), "bob")
    for name in ("cancelled", "and again"):
        store.submit(new_job(name))
        store.request_cancel(job_id(name), "ann")
    store.submit(new_job("waits"))
    kept = ["waits", "and again", "cancelled", "of bob", "of a rule", "not measured", "measured", "merged"]
    assert [job.payload["name"] for job in store.list_jobs()] == kept
    assert store.events(job_id("failed")) == ()
    assert store.submit(new_job("failed")).state is State.QUEUED, "it is a new one"


def test_the_sixth_job_of_a_quota_of_five_is_refused_with_a_clear_message(store):
    for number in range(5):
        store.submit(new_job(f"a{number}", kind="diff" if number == 4 else "merge"))
    with pytest.raises(QuotaError, match="ann already has 5 jobs waiting or running: expected at most 5 at once"):
        store.submit(new_job("a5"))
    assert len(store.list_jobs()) == 5
    store.submit(new_job("a3"))  # one that is there already takes no place
    store.submit(new_job("b", user="bob"))  # another user has a quota of their own
    running = claim(store)
    with pytest.raises(QuotaError):
        store.submit(new_job("a5"))
    store.finish(running.id, running.fence, {})
    assert store.submit(new_job("a5")).state is State.QUEUED


def test_a_full_queue_takes_no_job_and_keeps_what_waits(store, monkeypatch):
    monkeypatch.setattr("workflows.jobs.transaction.MAX_WAITING", 2)
    first = store.submit(new_job("a", user="ann"))
    store.submit(new_job("b", user="bob"))
    with pytest.raises(QuotaError, match="the queue is full: expected at most 2 jobs that wait"):
        store.submit(new_job("c", user="cleo"))
    assert store.submit(new_job("a", user="ann")) == first
    claim(store)
    assert store.submit(new_job("c", user="cleo")).state is State.QUEUED


def test_the_newest_events_of_a_job_are_found_however_many_there_are(store):
    job = claimed(store)
    store.append_events(job.id, job.fence, [("warning", {"message": str(n)}) for n in range(20)])
    assert [event.data["message"] for event in store.events(job.id, 2)] == ["18", "19"]


def test_a_cancellation_ends_waiting_jobs_at_once_and_others_by_their_worker(store, clock):
    """A worker that fails or dies does not bring the job back; one that had published has done it."""
    failing, publishing, dying = (claimed(store, name, f"w-{name}") for name in "abc")
    store.submit(new_job("waiting"))
    assert store.request_cancel(job_id("waiting"), "ann").state is State.CANCELLED
    for job in (failing, publishing, dying, failing):
        assert store.request_cancel(job.id, "ann").state is State.CANCELLING
        assert store.heartbeat(job.id, job.fence).state is State.CANCELLING
    assert store.claim("w2") is None
    assert store.fail(failing.id, failing.fence, RETRYABLE).state is State.CANCELLED
    assert store.finish(publishing.id, publishing.fence, {"commit": "abc"}).state is State.DONE
    clock.pass_time(store.lease_s)
    assert [left.state for left in store.reap()] == [State.CANCELLED]


def test_a_job_that_nobody_submitted_is_named_as_missing(store):
    with pytest.raises(JobNotFoundError, match="E_JOB"):
        store.request_cancel(job_id("x"), "ann")
    assert [store.find(each) for each in (job_id("x"), "\ud800")] == [None, None]


def test_a_retryable_failure_waits_before_the_next_attempt(store, clock):
    job = claimed(store)
    busy = RETRYABLE.model_copy(update={"code": "E_BUSY"})
    waiting = store.fail(job.id, job.fence, busy)
    assert (waiting.state, waiting.error) == (State.QUEUED, busy)
    wait_s = backoff_s(job.id, 1, 1)
    clock.pass_time(wait_s - 0.01)
    assert store.claim("w1") is None
    clock.pass_time(0.02)
    assert claim(store).attempt == 2
    assert [event.type for event in store.events(job.id)] == ["submitted", "claimed", "retry", "claimed"]


@pytest.mark.parametrize(
    ("attempts", "errors"),
    [
        pytest.param(3, [FINAL], id="no retry makes sense"),
        pytest.param(3, [REFUSAL], id="the Hub refuses, which is no outage"),
        pytest.param(3, [RETRYABLE] * 3, id="the last attempt is final"),
        pytest.param(2, [OUTAGE, OUTAGE, RETRYABLE, OUTAGE, RETRYABLE], id="an outage uses up no attempt"),
        pytest.param(1, [FAULT] * 12, id="nor does a fault of the machine, until the twelfth"),
        pytest.param(2, [FAULT] * 13, id="which counts as any other"),
    ],
)
def test_a_job_is_tried_again_until_an_error_is_final(store, clock, attempts, errors):
    store.submit(new_job("a", max_attempts=attempts))
    ends = []
    for error in errors:
        clock.pass_time(BACKOFF_CAP_S)
        ends.append(ended(store, error))
    assert [end.state for end in ends] == [State.QUEUED] * (len(errors) - 1) + [State.FAILED]
    assert ends[-1].error == errors[-1]


def test_an_outage_of_a_day_loses_no_job_and_one_without_end_ends_it(store, clock, monkeypatch):
    assert sum(backoff_s(job_id("a"), tries, tries) for tries in range(1, OUTAGE_TRIES + 1)) > 24 * 3600
    monkeypatch.setattr(transaction, "OUTAGE_TRIES", 3)
    store.submit(new_job("a", max_attempts=1))
    for _ in range(3):
        assert ended(store, OUTAGE).state is State.QUEUED
        clock.pass_time(BACKOFF_CAP_S)
    assert ended(store, OUTAGE).state is State.FAILED


def test_back_off_doubles_up_to_a_cap_and_follows_from_the_identity():
    for failures, full in ((1, 4.0), (2, 8.0), (3, 16.0), (8, 512.0), (9, 600.0), (1000, 600.0)):
        waits = [backoff_s(job_id(str(n)), failures, failures) for n in range(50)]
        assert min(waits) >= full / 2
        assert max(waits) <= full
        assert len(set(waits)) == 50  # jobs that failed together do not come back together
        assert waits == [backoff_s(job_id(str(n)), failures, failures) for n in range(50)]


def die(store: Store, clock: FakeClock, stage: str, done: int) -> Job:
    clock.pass_time(BACKOFF_CAP_S)
    job = claim(store)
    store.set_progress(job.id, job.fence, stage, {"stage": stage, "done": done})
    killed = RETRYABLE.model_copy(update={"code": "E_TOO_BIG"})
    return store.fail(job.id, job.fence, killed, out_of_memory=True)


def test_the_second_memory_death_at_one_place_is_too_big(store, clock):
    store.submit(new_job("a"))
    assert die(store, clock, "stream", 3).state is State.QUEUED
    failed = die(store, clock, "stream", 3)
    assert failed.state is State.FAILED
    assert (failed.error.code, failed.error.retryable, failed.memory_deaths) == ("E_TOO_BIG", False, 2)


def test_kills_that_find_a_job_further_on_each_time_use_up_no_attempt(store, clock):
    store.submit(new_job("a", max_attempts=3))
    deaths = [die(store, clock, "stream", done) for done in range(1, 6)]
    assert {(job.state, job.memory_deaths) for job in deaths} == {(State.QUEUED, 1)}
    for done in range(6, 10):  # the app is killed and started again
        clock.pass_time(BACKOFF_CAP_S)
        job = claim(store)
        store.set_progress(job.id, job.fence, "stream", {"stage": "stream", "done": done})
        clock.pass_time(store.lease_s)
        assert [left.state for left in store.reap()] == [State.QUEUED]
    assert ended(store).state is State.DONE


def test_a_job_that_is_killed_once_at_its_last_attempt_is_not_called_too_big(store, clock):
    job = claimed(store, max_attempts=2)
    store.fail(job.id, job.fence, RETRYABLE)
    failed = die(store, clock, "stream", 3)
    assert failed.state is State.FAILED
    assert (failed.error.code, failed.error.retryable) == ("E_INTERNAL", True)


def test_kills_further_on_have_an_end_and_do_not_call_a_job_too_big(store, clock):
    store.submit(new_job("a", max_attempts=3))
    left = None
    for done in range(100):
        if (left := die(store, clock, "stream", done)).state is State.FAILED:
            break
    assert left.attempt <= 26
    assert (left.error.code, left.error.retryable) == ("E_INTERNAL", True)


def test_a_disk_that_others_fill_for_three_minutes_loses_no_job(store, clock):
    store.submit(new_job("a"))
    began = clock.seconds
    while clock.seconds - began < 180:
        if (job := store.claim("w1")) is not None:
            assert store.fail(job.id, job.fence, RETRYABLE).state is State.QUEUED
        clock.pass_time(1.0)


def test_a_released_job_is_due_at_once_and_loses_no_attempt(store):
    store.submit(new_job("a", max_attempts=1))
    for _ in range(3):
        job = claim(store)
        assert store.release(job.id, job.fence).state is State.QUEUED
    assert claim(store).attempt == 4


def test_a_job_whose_worker_dies_in_every_attempt_fails(store, clock):
    store.submit(new_job("a", max_attempts=3))
    for attempt in (1, 2, 3):
        job = store.claim("w")
        assert job.attempt == attempt
        clock.pass_time(store.lease_s)
        (left,) = store.reap()
    assert left.state is State.FAILED
    assert (left.error.code, left.error.retryable) == ("E_INTERNAL", True)


def test_a_worker_that_replaces_a_dead_one_takes_its_job_before_those_that_wait(store, clock):
    dead = claimed(store, "dead")
    store.submit(new_job("waits"))
    store.submit(new_job("diff", kind="diff"))
    clock.pass_time(1)
    began = clock.steady()
    assert store.claim("w2", ["merge"], since=began) is None  # nobody knows yet whether w1 lives
    assert store.claim("w3", ["diff"], since=began).id == job_id("diff")  # no merge keeps it
    clock.pass_time(store.lease_s - 1)
    assert store.claim("w2", ["merge"], since=began).id == dead.id
    assert store.claim("w2", ["merge"], since=began).id == job_id("waits")
