"""Jobs in real processes: ends, kills, cancellations, restarts, several workers."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from job_helpers import (
    FINAL,
    HERE,
    QUICK,
    claim,
    claimed,
    is_alive,
    job_id,
    make_worker,
    new_job,
    running,
    worker_process,
)
from processes import ROOT, printed_by, until
from pydantic import SecretStr

from hubmerge.errors import DiskError, PermissionDeniedError
from hubmerge.machine import resources
from hubmerge.settings import Settings
from workflows.jobs import worker as worker_module
from workflows.jobs.jobs import HELD, Job, State
from workflows.jobs.store import Store
from workflows.jobs.tokens import SealedToken, TokenVault
from workflows.jobs.worker import Worker, child_environment
from workflows.serve import WorkerProcess

ALL_STEPS = [str(number) for number in range(10)]


def run_one(tmp_path: Path, store: Store, function: str, **payload: object) -> Job:
    if store.find(job_id("a")) is None:
        store.submit(new_job("a", payload=payload))
    worker = make_worker(tmp_path, store, function)
    job = worker.run_once()
    assert job is not None
    return job


def attempts(trace: Path) -> list[str]:
    return trace.read_text().splitlines() if trace.exists() else []


class Steps:
    """A job of ten steps that waits at a gate before the sixth; its trace has a line for every attempt."""

    def __init__(self, folder: Path, store: Store, **changes: Any) -> None:
        self.trace, self.gate = folder / "trace", folder / "gate"
        self.folder, self.store, self.id = folder, store, job_id("a")
        store.submit(new_job("a", payload={"trace": str(self.trace), "gate": str(self.gate)}, **changes))

    def worker(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return worker_process(self.folder, "steps", "--lease-seconds", "2")

    def until_attempt(self, number: int) -> list[str]:
        return until(lambda: len(found := attempts(self.trace)) == number and found)

    def pid(self) -> int:
        """Of the first attempt."""
        return int(attempts(self.trace)[0].split()[3])

    def finish(self) -> Job:
        self.gate.touch()
        job = until(lambda: (job := self.store.get(self.id)).state is State.DONE and job)
        assert job.result == {"journal": ALL_STEPS}
        return job


def test_a_job_runs_to_its_result_and_leaves_no_folder(tmp_path: Path, live: Store) -> None:
    job = run_one(tmp_path, live, "steps", trace=str(tmp_path / "trace"))
    assert (job.state, job.result) == (State.DONE, {"journal": ALL_STEPS})
    assert job.stage == "stream"
    assert (job.progress["done"], job.progress["total"], job.progress["unit"]) == (10, 10, "shards")
    assert [event.type for event in live.events(job.id)] == ["submitted", "claimed", "stage", "done"]
    assert [*(tmp_path / "jobs").iterdir(), *(tmp_path / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    ("function", "state", "code", "said"),
    [
        ("fails hub", State.QUEUED, "E_HUB", "503"),
        ("fails full disk", State.QUEUED, "E_DISK", "the disk is full in /data/shard"),
        ("fails bad disk", State.QUEUED, "E_DISK", "the disk fails in /data/shard"),
        ("segfaults", State.QUEUED, "E_INTERNAL", "died without a message"),
        ("fails memory", State.QUEUED, "E_TOO_BIG", "2 TB"),
        ("no_result", State.FAILED, "E_INTERNAL", "ended without a result"),
        ("fails exit", State.FAILED, "E_INTERNAL", "SystemExit: 0"),
        ("missing", State.FAILED, "E_INTERNAL", "AttributeError"),
    ],
)
def test_a_failed_attempt_says_why_and_keeps_the_folder(
    tmp_path: Path, live: Store, function: str, state: State, code: str, said: str
) -> None:
    pipeline, _, by = function.partition(" ")
    job = run_one(tmp_path, live, pipeline, by=by)
    assert (job.state, job.error.code, job.error.retryable) == (state, code, state is State.QUEUED)
    assert said in job.error.message
    if function != "segfaults":
        assert "Traceback" in (tmp_path / "jobs" / job.id / "child.log").read_text()


def skip_back_off(store: Store) -> None:
    """As a reboot would: the moment that the job waits for belongs to another boot."""
    store.clock.boot_id += "+"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("oom_kills", "attempts", "memory_deaths", "code"),
    [
        pytest.param(lambda: 7, 2, 0, "E_MACHINE", id="the kernel lacked no memory"),
        pytest.param(lambda: None, 1, 1, "E_TOO_BIG", id="it does not count"),
        pytest.param(count().__next__, 1, 1, "E_TOO_BIG", id="it ends some process all the time"),
    ],
)
def test_a_kill_is_the_machine_s_fault_however_often_unless_it_may_be_for_memory(
    tmp_path: Path,
    live: Store,
    monkeypatch: pytest.MonkeyPatch,
    oom_kills: Callable[[], int | None],
    attempts: int,
    memory_deaths: int,
    code: str,
) -> None:
    monkeypatch.setattr(resources, "oom_kills", oom_kills)
    live.submit(new_job("a", max_attempts=1 if attempts > 1 else 5, payload={"done": [3] * 2}))
    for attempt in range(1, attempts + 1):
        job = run_one(tmp_path, live, "dies")
        assert (job.state, job.attempt, job.memory_deaths) == (State.QUEUED, attempt, memory_deaths)
        assert (job.error.code, job.error.retryable) == (code, True)
        skip_back_off(live)


def test_a_killed_worker_takes_its_child_along_and_another_goes_on(tmp_path: Path, live: Store) -> None:
    live.lease_s, steps = 2.0, Steps(tmp_path, live)
    with steps.worker() as first:
        steps.until_attempt(1)
        with running(make_worker(tmp_path, live, "steps")):
            first.kill()
            first.wait()
            lease_end = live.get(steps.id).lease_until
            until(lambda: not is_alive(steps.pid()))
            job = until(lambda: (job := live.get(steps.id)).attempt == 2 and job)
            late = live.clock.steady() - lease_end
            steps.until_attempt(2)
            assert len(list((tmp_path / "tmp").iterdir())) == 1  # of the attempt that was killed none is left
            assert steps.finish().fence == 2
    assert job.lease_until >= lease_end + live.lease_s  # never before the lease has ended
    assert late < 15.0  # at the next tick, however busy the machine is; a worker that asks seldom takes longer


def stopped_between_writes(worker: subprocess.Popen[bytes], data: Path) -> bool:
    """Whoever stops in the middle of a transaction holds the database for everybody; that is not meant here."""
    worker.send_signal(signal.SIGSTOP)
    with closing(sqlite3.connect(data / "jobs.sqlite3", timeout=0.2)) as raw:
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            worker.send_signal(signal.SIGCONT)
            return False
    return True


def test_a_stopped_worker_loses_its_job_and_never_runs_it_beside_the_next(tmp_path: Path, live: Store) -> None:
    """SIGSTOP freezes the worker alone; its child must be gone before the next one starts."""
    steps = Steps(tmp_path, live)
    with steps.worker() as first:
        steps.until_attempt(1)
        until(lambda: stopped_between_writes(first, tmp_path))
        with steps.worker():
            steps.until_attempt(2)
            assert not is_alive(steps.pid())
            first.send_signal(signal.SIGCONT)
            assert steps.finish().attempt == 2
            until(lambda: b"no longer ours" in (tmp_path / "worker.log").read_bytes())
            assert first.poll() is None  # it lost a job, not its life
    assert "OVERLAP" not in steps.trace.read_text()


def test_a_worker_told_to_stop_gives_its_job_back(tmp_path: Path, live: Store) -> None:
    steps = Steps(tmp_path, live, max_attempts=1)
    journal = tmp_path / "jobs" / steps.id / "journal"
    with steps.worker() as worker:
        until(lambda: journal.exists() and len(journal.read_text().split()) == 5)
        worker.terminate()
        assert worker.wait() == 0
    assert live.get(steps.id).state is State.QUEUED
    assert not is_alive(steps.pid())
    steps.gate.touch()
    assert run_one(tmp_path, live, "steps").result == {"journal": ALL_STEPS}
    assert attempts(steps.trace)[1].endswith("from 5")


IN_A_CONTAINER = """
import os, sys
from pathlib import Path
from job_helpers import new_job, worker_process
from processes import ROOT, printed_by, until
from hubmerge.isolation.confinement import adopt_orphans
from workflows.jobs.store import Store
adopt_orphans()  # as the first process of a container, which the app is there, does whether it wants or not
folder = Path(sys.argv[1])
store = Store(folder)
job = store.submit(new_job("a", payload={"trace": str(folder / "trace")}))
with worker_process(folder, "steps"):
    until(lambda: store.get(job.id).state.is_terminal)
    until(lambda: not any((folder / "jobs").iterdir()))  # it has ended with it altogether
    print(len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
"""


def test_a_job_leaves_no_dead_process_to_the_first_one_of_a_container(tmp_path: Path) -> None:
    helpers = os.pathsep.join(map(str, (ROOT, HERE, HERE.parent)))
    assert printed_by(IN_A_CONTAINER, str(tmp_path), PYTHONPATH=helpers) == "1\n"  # the worker


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path: Path, live: Store) -> None:
    """Two workers share five jobs, and one of the two is killed seven times.

    Each job counts its steps in a file; a step done twice, or two attempts at once, would show.
    """
    chance = random.Random(11)
    names = [str(number) for number in range(5)]
    for name in names:
        gate = {"gate": str(tmp_path / "gate")} if name in names[-2:] else {}  # so that two jobs outlast the kills
        payload = {"trace": str(tmp_path / name), "step_s": 0.2, **gate}
        live.submit(new_job(name, max_attempts=50, payload=payload))
    with ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            return stack.enter_context(worker_process(tmp_path, "steps", "--lease-seconds", "2"))

        def holds_a_job(worker: subprocess.Popen[bytes]) -> bool:
            return any(f"_{worker.pid}_" in str(job.lease_owner) for job in live.list_jobs(states=HELD))

        workers = [start(), start()]
        for _ in range(7):
            which = chance.randrange(2)
            until(partial(holds_a_job, workers[which]))
            time.sleep(chance.uniform(0.0, 1.5))
            workers[which].kill()
            workers[which].wait()
            workers[which] = start()
        (tmp_path / "gate").touch()
        until(lambda: all(live.get(job_id(name)).state is State.DONE for name in names))
    jobs = [live.get(job_id(name)) for name in names]
    assert sum(job.attempt - 1 for job in jobs) >= 4  # kills met a job
    for name, job in zip(names, jobs, strict=True):
        assert job.result == {"journal": ALL_STEPS}
        numbers = [int(line.split()[1]) for line in attempts(tmp_path / name)]  # OVERLAP has none
        assert numbers == sorted(set(numbers))
        story = [event for event in live.events(job.id) if event.type != "stage"]
        lost = ["claimed", "lost"] * (job.attempt - 1)
        assert [event.type for event in story] == ["submitted", *lost, "claimed", "done"]
        assert [event.data["attempt"] for event in story if event.type == "claimed"] == [*range(1, job.attempt + 1)]


@pytest.mark.parametrize(
    ("function", "stage", "grace_s", "result"),
    [
        pytest.param("cleans_up", "publish", 30.0, None, id="it cleans up"),
        pytest.param("ignores_cancel", "publish", 0.5, None, id="it goes on and is killed"),
        pytest.param("helper_process", "evaluate", 30.0, None, id="its helpers end with it"),
        pytest.param("finishes_on_cancel", "publish", 30.0, {"commit": "abc"}, id="it had published already"),
    ],
)
def test_a_cancelled_job_ends_and_leaves_no_folder(
    tmp_path: Path, live: Store, function: str, stage: str, grace_s: float, result: dict[str, str] | None
) -> None:
    cleaned, pids = tmp_path / "cleaned", tmp_path / "pids"
    payload = {"gate": str(tmp_path / "gate"), "cleaned": str(cleaned), "pids": str(pids)}
    job = live.submit(new_job("a", payload=payload))
    with running(make_worker(tmp_path, live, function, replace(QUICK, grace_s=grace_s))):
        until(lambda: live.get(job.id).stage == stage)
        with pytest.raises(PermissionDeniedError):
            live.request_cancel(job.id, "bob")
        live.request_cancel(job.id, "ann")
        until(lambda: live.get(job.id).state.is_terminal)
        until(lambda: not (tmp_path / "jobs" / job.id).exists())
    ended = live.get(job.id)
    assert (ended.state, ended.result) == (State.DONE if result else State.CANCELLED, result)
    assert cleaned.exists() == (function == "cleans_up")
    if function == "helper_process":
        until(lambda: not any(map(is_alive, map(int, pids.read_text().split()))))


def test_a_flood_of_events_is_capped_and_that_is_said(tmp_path: Path, live: Store) -> None:
    job = run_one(tmp_path, live, "floods")
    assert job.state is State.DONE
    story = live.events(job.id, limit=10_000)
    assert len(story) == 1005  # submitted, claimed, 1000 of the child's, the newest statistics, the note, done
    [newest] = live.events(job.id, statistics=True)
    assert newest.data == {"values": {"elements": 1499}}
    assert story[2].data["message"] == "an event of more than 1048576 bytes was dropped"
    assert story[-2].data["message"] == "4002 events, too many or too long, were left out"
    assert job.progress["done"] == 5000


def test_a_database_that_refuses_for_nearly_a_lease_costs_no_event_and_no_attempt(
    tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, live.lease_s = Steps(tmp_path, live), 10.0  # longer than the guardian's patience, shorter than the lease
    refused, beat = dict.fromkeys(("append_events", "set_progress", "finish"), 3), live.heartbeat

    def refusing(name: str, method: Callable[..., object], *arguments: object) -> object:
        if refused[name]:
            refused[name] -= 1
            raise DiskError("the job database cannot be written")
        return method(*arguments)

    for name in refused:
        monkeypatch.setattr(live, name, partial(refusing, name, getattr(live, name)))
    with running(make_worker(tmp_path, live, "steps")):
        steps.until_attempt(1)
        until_s = live.clock.steady() + 9.0

        def refused_beat(*given: Any) -> Job:
            if live.clock.steady() < until_s:
                raise DiskError("the job database cannot be written")
            return beat(*given)

        monkeypatch.setattr(live, "heartbeat", refused_beat)
        until(lambda: live.clock.steady() > until_s + 2.0)  # past the first lease
        assert (live.reap(), live.claim("another worker")) == ((), None)
        assert (steps.finish().attempt, len(attempts(steps.trace))) == (1, 1)
    assert set(refused.values()) == {0}
    assert [event.type for event in live.events(steps.id)] == ["submitted", "claimed", "stage", "done"]


def test_a_child_sees_no_secret_of_the_space(tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUBMERGE_SECRET", "HUBMERGE_WEBHOOK_SECRET", "OAUTH_CLIENT_SECRET", "X_API_KEY"):
        monkeypatch.setenv(name, "private")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    job = run_one(tmp_path, live, "environment")
    seen = job.result["environment"]
    assert "private" not in seen.values()
    assert seen["TOKENIZERS_PARALLELISM"] == "false"
    assert seen["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"
    assert child_environment({}, "http://hub")["HF_ENDPOINT"] == "http://hub"


def test_a_long_document_arrives_whole_and_a_helper_reads_none_of_what_follows(tmp_path: Path, live: Store) -> None:
    job = run_one(tmp_path, live, "reads_stdin", long="x" * 250_000)  # longer than a pipe holds
    assert job.result == {"read": "", "length": 250_000}


def test_folders_of_jobs_that_ended_meanwhile_are_swept(tmp_path: Path, live: Store) -> None:
    for name in ("cancelled", "waiting", "failed"):
        live.submit(new_job(name))
        (tmp_path / "jobs" / job_id(name)).mkdir(parents=True)
    (tmp_path / "jobs" / "unknown").mkdir()  # of a database that was moved away
    temporary = tmp_path / "tmp" / f"{job_id('unknown')[:16]}-2"
    temporary.mkdir(parents=True)
    live.request_cancel(job_id("cancelled"), "ann")
    worker = make_worker(tmp_path, live, "no_result", replace(QUICK, sweep_s=0.0))
    ended = [worker.run_once(), worker.run_once()]  # sweeps, then fails `waiting` and `failed`
    kept = sorted(path.name for path in (tmp_path / "jobs").iterdir())
    assert [job.state for job in ended if job] == [State.FAILED, State.FAILED]
    assert kept == sorted([job_id("waiting"), job_id("failed")])
    assert not temporary.exists()
    forgetful = make_worker(tmp_path, live, "steps", replace(QUICK, keep_failed_s=0.0))
    assert forgetful.run_once() is None
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_worker_stops_while_it_waits(tmp_path: Path, live: Store) -> None:
    with running(make_worker(tmp_path, live, "steps", replace(QUICK, idle_s=3600.0))):
        pass


def test_folders_of_failed_jobs_are_bounded(tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(tmp_path, live, "steps")
    usage = worker_module.shutil.disk_usage(tmp_path)._replace(total=10 * 300_000)
    monkeypatch.setattr(worker_module.shutil, "disk_usage", lambda _: usage)
    for name in ("first", "second", "third"):
        live.submit(new_job(name))
        job = claim(live)
        inputs = worker.workdir(job.id) / "evaluation" / "inputs"
        inputs.mkdir(parents=True)
        (inputs / "model.safetensors").write_bytes(b"x" * 131_072)
        (tmp_path / "tmp" / f"{job.id[:16]}-{job.attempt}").mkdir(parents=True)  # its worker was killed
        live.fail(job.id, job.fence, FINAL)
    live.submit(new_job("waiting"))  # of a job that can still go on, whatever it takes
    waiting = claim(live, worker.owner)
    worker.workdir(waiting.id).mkdir()
    (worker.workdir(waiting.id) / "inputs").write_bytes(b"x" * 1_000_000)
    worker.run_once()
    kept = {name for name in ("first", "second", "third", "waiting") if worker.workdir(job_id(name)).exists()}
    assert kept == {"second", "third", "waiting"}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_that_is_used_again_is_not_swept(tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = claimed(live)
    worker = make_worker(tmp_path, live, "steps", replace(QUICK, keep_failed_s=0.0))
    worker.workdir(job.id).mkdir(parents=True)
    (worker.workdir(job.id) / "journal").write_text("0\n")
    live.fail(job.id, job.fence, FINAL)
    lock = worker_module.lock_workdir

    def submitted_meanwhile(path: Path, wait_s: float) -> int | None:
        live.submit(new_job("a", payload={"trace": str(tmp_path / "trace")}))
        return lock(path, wait_s)

    monkeypatch.setattr(worker_module, "lock_workdir", submitted_meanwhile)
    done = worker.run_once()
    assert (done.id, done.state) == (job.id, State.DONE)
    assert "from 1" in attempts(tmp_path / "trace")[0]


def test_a_job_gets_no_folder_that_is_being_emptied(
    tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = claimed(live)
    worker = make_worker(tmp_path, live, "steps", replace(QUICK, keep_failed_s=0.0))
    (worker.workdir(job.id) / "inputs").mkdir(parents=True)
    live.fail(job.id, job.fence, FINAL)
    empty = worker_module.shutil.rmtree
    locks = []

    def slowly(path: Path) -> None:
        monkeypatch.setattr(worker_module.shutil, "rmtree", empty)
        locks.append(worker_module.lock_workdir(worker.workdir(job.id), 5.0))
        (worker.workdir(job.id) / "journal").write_text("0\n")
        empty(path)

    monkeypatch.setattr(worker_module.shutil, "rmtree", slowly)
    worker.run_once()
    assert locks != [None]
    os.close(locks[0])
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [job.id]
    assert (worker.workdir(job.id) / "journal").exists()


def test_a_worker_that_loses_a_job_early_goes_on(tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    live.submit(new_job("a"), SealedToken("not a token", None))
    live.submit(new_job("b", payload={"trace": str(tmp_path / "trace")}))
    worker = make_worker(tmp_path, live, "steps")
    open_token = worker._vault.open

    def late(*given: Any) -> SecretStr:
        live.cancelled(job_id("a"), 1)  # another worker had it meanwhile, and ended it
        return open_token(*given)

    monkeypatch.setattr(worker._vault, "open", late)
    with running(worker):
        until(lambda: live.get(job_id("b")).state is State.DONE)
    assert live.get(job_id("a")).state is State.CANCELLED


def test_a_worker_that_could_not_be_started_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [BlockingIOError(11, "Resource temporarily unavailable")]
    start = subprocess.Popen

    def crowded(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        if refused:
            raise refused.pop()
        return start(*given, **more)

    monkeypatch.setattr("workflows.serve.RESTART_AFTER_S", 0.0)
    monkeypatch.setattr(subprocess, "Popen", crowded)
    with WorkerProcess(Settings(data_dir=tmp_path), stop=threading.Event()):
        until((tmp_path / "jobs.sqlite3").exists)


def test_a_disk_without_room_for_a_lock_ends_no_job(
    tmp_path: Path, live: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs" / "unknown").mkdir(parents=True)

    def full(path: Path, wait_s: float) -> int | None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(worker_module, "lock_workdir", full)
    assert run_one(tmp_path, live, "steps", trace=str(tmp_path / "trace")).state is State.DONE


def test_a_disk_without_room_for_a_job_s_folder_is_waited_for_as_any_full_disk(tmp_path: Path, live: Store) -> None:
    (tmp_path / "jobs").touch()
    job = run_one(tmp_path, live, "steps", trace=str(tmp_path / "trace"))
    assert (job.state, job.error.code) == (State.QUEUED, "E_DISK")


@pytest.mark.parametrize(
    ("spoil", "left"), [(Path.touch, (State.FAILED, "E_SETTINGS")), (Path.mkdir, (State.QUEUED, "E_DISK"))]
)
def test_an_evaluation_whose_signing_key_is_damaged_says_so_and_a_worker_goes_on(
    tmp_path: Path, live: Store, spoil: Callable[[Path], None], left: tuple[State, str]
) -> None:
    spoil(tmp_path / "signing.key")
    live.submit(new_job("a", kind="evaluate"))
    job = Worker(Settings(data_dir=tmp_path), live, TokenVault([b"secret"])).run_once()
    assert (job.state, job.error.code) == left
