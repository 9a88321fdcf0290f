"""What becomes of a job when its child ends in one way or another, floods its worker, or the database is away."""

from threading import Event as Flag
from typing import Any

import pytest
from job_helpers import FakeClock, claim, new_job

from hubmerge.errors import DiskError, HubmergeError, MachineFaultError, MemoryLimitError
from workflows.jobs.jobs import Job, State
from workflows.jobs.protocol import Failure, Line, Notice, Progress, Result, StageStarted, Statistics, encode
from workflows.jobs.store import Store
from workflows.jobs.supervision import Supervision, Timing

DONE = [Result(values={"commit": "abc"})]


class ScriptedChild:
    """In place of a child: each look at what it says takes a second, and finds what the test has written."""

    def __init__(
        self, clock: FakeClock, looks: list[list[Line | bytes]], code: int, kind: type[HubmergeError] | None
    ) -> None:
        self.clock, self.looks, self.code, self.kind = clock, looks, code, kind
        self.beats = [clock.seconds]

    def has_ended(self) -> bool:
        return not self.looks

    def lines(self, wait_s: float) -> list[bytes]:
        self.clock.pass_time(1.0)
        return [line if isinstance(line, bytes) else encode(line).encode() for line in self.looks.pop(0)]

    def beat(self) -> None:
        self.beats.append(self.clock.seconds)

    def close(self) -> tuple[int, list[bytes]]:
        return self.code, []

    def killed(self, code: int) -> type[HubmergeError] | None:
        return self.kind


def supervised(
    store: Store,
    *looks: list[Line],
    code: int = 0,
    kind: type[HubmergeError] | None = None,
    **changes: Any,
) -> tuple[Job | None, ScriptedChild]:
    """A job after an attempt whose child said so much at each look, and then ended with a code."""
    store.submit(new_job("a", **changes))
    child: Any = ScriptedChild(store.clock, list(looks), code, kind)
    return Supervision(store, claim(store), child, Timing(idle_s=0.0)).run(Flag()), child


def failure(code: str, *, retryable: bool = True) -> list[Line]:
    return [Failure(code=code, message="so it is", retryable=retryable)]


@pytest.mark.parametrize(
    ("said", "code", "kind", "left"),
    [
        (DONE, 0, None, (State.DONE, None, 0, 2)),
        (failure("E_HUB"), 1, None, (State.QUEUED, "E_HUB", 0, 3)),  # an outage uses up no attempt
        (failure("E_FORMAT", retryable=False), 1, None, (State.FAILED, "E_FORMAT", 0, 2)),
        (failure("E_CANCELLED", retryable=False), 1, None, (State.QUEUED, "E_CANCELLED", 0, 2)),  # by nobody here
        (failure("E_TOO_BIG"), 1, None, (State.QUEUED, "E_TOO_BIG", 1, 2)),
        ([], 0, None, (State.QUEUED, "E_INTERNAL", 0, 2)),
        ([], -11, None, (State.QUEUED, "E_INTERNAL", 0, 2)),
        (DONE, -9, MachineFaultError, (State.QUEUED, "E_MACHINE", 0, 3)),  # nor does a fault of the machine
        ([], -9, MemoryLimitError, (State.QUEUED, "E_TOO_BIG", 1, 2)),
    ],
)
def test_how_a_child_ends_decides_what_becomes_of_its_job(store, said, code, kind, left):
    job, _ = supervised(store, said, code=code, kind=kind, max_attempts=2)
    assert (job.state, job.error and job.error.code, job.memory_deaths, job.max_attempts) == left


def test_a_flood_of_events_is_capped_and_that_is_said(store):
    notices = [Notice(message=f"notice {number}") for number in range(5000)]
    counted = [Statistics(values={"elements": number}) for number in range(1500)]  # of a merge of half an hour
    progress = [Progress(stage="stream", done=number, total=5000) for number in range(5001)]
    too_long = [Statistics(values={"long": "x" * 300_000}), b"x" * 1000]  # the second one was cut
    job, _ = supervised(store, too_long, counted, notices, progress, DONE)
    story = store.events(job.id, limit=10_000)
    assert len(story) == 1005  # submitted, claimed, 1000 of the child's, the newest statistics, the note, done
    [newest] = store.events(job.id, statistics=True)
    assert newest.data == {"values": {"elements": 1499}}
    assert story[2].data["message"] == "an event of more than 1000 bytes was dropped"
    assert story[-2].data["message"] == "4002 events, too many or too long, were left out"
    assert job.progress["done"] == 5000


@pytest.mark.parametrize("seconds", [29, 31])
def test_a_database_that_refuses_for_nearly_a_lease_costs_no_event_and_no_attempt(store, clock, monkeypatch, seconds):
    until, writing, finish = clock.seconds + seconds, store.writing, store.finish
    refused = 3

    def refusing() -> Any:
        if 1000 < clock.seconds < until:
            raise DiskError("the job database cannot be written")
        return writing()

    def refusing_the_end(*given: Any) -> Job:
        nonlocal refused
        refused -= 1
        if refused:
            raise DiskError("the job database cannot be written")
        return finish(*given)

    monkeypatch.setattr(store, "writing", refusing)
    monkeypatch.setattr(store, "finish", refusing_the_end)
    looks = [[StageStarted(stage="stream")], *[[]] * 40, [Progress(stage="stream", done=1)], DONE]
    left, child = supervised(store, *looks)
    gaps = [later - earlier for earlier, later in zip(child.beats, child.beats[1:], strict=False)]
    assert max(gaps) <= Timing().heartbeat_s + 1  # so that the child's guardian lets it live
    [job] = store.list_jobs()
    if seconds < store.lease_s:
        assert left.state is State.DONE
        assert [event.type for event in store.events(job.id)] == ["submitted", "claimed", "stage", "done"]
    else:  # another worker may have it
        assert (left, job.state, job.stage) == (None, State.RUNNING, "")
        assert child.looks != []
