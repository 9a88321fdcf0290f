"""Who owns a job: claims of several threads and processes, leases, fences, reboots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from job_helpers import FAULT, FINAL, ROOT, FakeClock, at_once, claim, claimed, job_id, new_job

from workflows.jobs.jobs import StaleFenceError, State
from workflows.jobs.store import Store

RUSH = """
import sys
from pathlib import Path
from workflows.jobs.store import Store
store = Store(Path(sys.argv[1]))
sys.stdin.readline()
while job := store.claim(sys.argv[2]):
    print(job.id, job.fence, flush=True)
    if int(job.id[0], 16) % 2:
        store.finish(job.id, job.fence, {})
"""


def test_a_heartbeat_prolongs_the_lease_and_goes_on_with_one_that_ran_out_unnoticed(
    store: Store, clock: FakeClock
) -> None:
    job = claimed(store)
    for _ in range(10):
        clock.pass_time(store.lease_s - 1)
        store.heartbeat(job.id, job.fence)
    assert store.claim("w2") is None
    clock.pass_time(store.lease_s + 1)
    store.heartbeat(job.id, job.fence)
    assert store.claim("w2") is None


def test_a_worker_that_slept_through_its_lease_can_write_nothing(store: Store, clock: FakeClock) -> None:
    slept = claimed(store)
    clock.pass_time(store.lease_s + 1)
    owner = store.claim("w2")
    assert (owner.id, owner.fence, owner.attempt) == (slept.id, slept.fence + 1, 2)
    before = store.get(owner.id), store.events(owner.id)
    for write in (
        lambda: store.heartbeat(slept.id, slept.fence),
        lambda: store.set_progress(slept.id, slept.fence, "plan", None),
        lambda: store.append_events(slept.id, slept.fence, [("warning", {})]),
        lambda: store.finish(slept.id, slept.fence, {}),
        lambda: store.fail(slept.id, slept.fence, FINAL),
        lambda: store.cancelled(slept.id, slept.fence),
        lambda: store.release(slept.id, slept.fence),
    ):
        with pytest.raises(StaleFenceError, match="E_FENCE"):
            write()
    assert (store.get(owner.id), store.events(owner.id)) == before
    assert store.finish(owner.id, owner.fence, {}).state is State.DONE


def test_only_the_jobs_of_silent_workers_are_taken_back(store: Store, clock: FakeClock) -> None:
    for name in "abc":
        store.submit(new_job(name))
        store.claim(f"worker-{name}")
    clock.pass_time(store.lease_s - 0.01)
    for name in "ac":
        store.heartbeat(job_id(name), 1)
    assert (store.reap(), store.claim("another")) == ((), None)
    clock.pass_time(0.02)
    assert [job.id for job in store.reap()] == [job_id("b")]
    with pytest.raises(StaleFenceError):
        store.heartbeat(job_id("b"), 1)


def test_a_job_whose_worker_dies_in_every_attempt_fails(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a", max_attempts=3))
    for attempt in (1, 2, 3):
        job = store.claim("w")
        assert job.attempt == attempt
        clock.pass_time(store.lease_s)
        (left,) = store.reap()
    assert left.state is State.FAILED
    assert (left.error.code, left.error.retryable) == ("E_INTERNAL", True)


def test_a_worker_that_replaces_a_dead_one_takes_its_job_before_those_that_wait(store: Store, clock: FakeClock) -> None:
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


def test_a_worker_takes_the_next_job_as_soon_as_another_one_has_shown_that_it_lives(
    store: Store, clock: FakeClock
) -> None:
    other = claimed(store, "other")
    store.submit(new_job("waits"))
    clock.pass_time(1)
    began = clock.steady()
    assert store.claim("w2", since=began) is None
    clock.pass_time(5)
    store.heartbeat(other.id, other.fence)
    assert store.claim("w2", since=began).id == job_id("waits")


def test_a_reboot_ends_every_lease_and_every_back_off(store: Store, clock: FakeClock) -> None:
    store.submit(new_job("a"))
    store.submit(new_job("b"))
    failed = store.claim("w1")
    store.fail(failed.id, failed.fence, FINAL.model_copy(update={"retryable": True}))
    store.claim("w1")
    assert store.claim("w2") is None
    clock.reboot()  # steady seconds start over, far below the old lease's end
    assert store.claim("w2") is not None
    assert store.claim("w2") is not None


def test_processes_never_share_a_claim(tmp_path: Path) -> None:
    """Each process opens the new database itself, all at the same moment."""
    command = [sys.executable, "-c", RUSH, str(tmp_path)]
    rush = [
        subprocess.Popen([*command, f"p{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for number in range(4)
    ]
    store = Store(tmp_path, jobs_per_user=100)
    for number in range(40):
        store.submit(new_job(str(number)))
    for process in rush:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    claims = [line for process in rush for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in rush] == [0] * 4
    store.close()
    assert sorted(claims) == sorted(f"{job_id(str(number))} 1" for number in range(40))


def test_submissions_at_once_make_one_job_of_an_identity_and_keep_to_the_quota(tmp_path: Path) -> None:
    store = Store(tmp_path, jobs_per_user=5)
    refused: list[str] = []

    def submit(number: int) -> None:
        try:
            store.submit(new_job("same"))
            store.submit(new_job(str(number)))
        except Exception as error:
            refused.append(type(error).__name__)

    at_once(8, submit)
    assert refused == ["QuotaError"] * 4
    assert len(store.list_jobs()) == 5
    assert [event.type for event in store.events(job_id("same"))] == ["submitted"]
    store.close()


def test_what_the_machine_may_have_ended_is_tried_again_when_nothing_else_is_at_work(
    store: Store, clock: FakeClock
) -> None:
    other = claimed(store, "merge")
    store.submit(new_job("evaluation", kind="evaluate"))
    first = store.claim("w2", ["evaluate"])
    store.fail(first.id, first.fence, FAULT)
    clock.pass_time(store.lease_s - 1)
    store.heartbeat(other.id, other.fence)
    assert store.claim("w2", ["evaluate"]) is None  # the merge is at work
    store.submit(new_job("another", kind="evaluate"))
    another = store.claim("w2", ["evaluate"])
    assert another.id == job_id("another")
    store.finish(another.id, another.fence, {})
    store.finish(other.id, other.fence, {})
    again = store.claim("w2", ["evaluate"])
    assert (again.id, again.attempt) == (first.id, 2)


def test_what_the_machine_may_have_ended_waits_an_hour_for_the_others_and_not_without_end(
    store: Store, clock: FakeClock
) -> None:
    store.submit(new_job("evaluation", kind="evaluate"))
    first = claim(store)
    store.fail(first.id, first.fence, FAULT)
    for minute in range(70):  # on a busy machine somebody is always at work
        store.submit(new_job(f"merge {minute}"))
        merge = store.claim("w1", ["merge"])
        clock.pass_time(20)
        if (job := store.claim("w2", ["evaluate"])) is not None:
            break
        store.finish(merge.id, merge.fence, {})
        clock.pass_time(40)
    assert (job.id, job.attempt, minute) == (first.id, 2, 60)
