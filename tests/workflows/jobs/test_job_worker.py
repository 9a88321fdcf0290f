"""Jobs in real processes: ends, kills, cancellations, restarts, several workers."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import job_pipelines
import pytest
from job_helpers import (
    FINAL,
    HERE,
    QUICK,
    claimed,
    job_id,
    job_spec,
    make_worker,
    new_job,
    running,
    worker_process,
)
from processes import ROOT, is_alive, printed_by, until
from pydantic import SecretStr

from hubmerge.errors import HubUnavailableError, PermissionDeniedError
from hubmerge.isolation.scrub import Scrubber
from hubmerge.machine import resources
from hubmerge.settings import Settings
from workflows.jobs import worker as worker_module
from workflows.jobs.child import run_job
from workflows.jobs.jobs import HELD, DatabaseBusyError, Job, StaleFenceError, State
from workflows.jobs.protocol import JobSpec, Statistics, decoded, encode
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
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


def test_a_job_runs_to_its_result_and_leaves_no_folder(tmp_path, live):
    job = run_one(tmp_path, live, "steps", trace=str(tmp_path / "trace"))
    assert (job.state, job.result) == (State.DONE, {"journal": ALL_STEPS})
    assert job.stage == "stream"
    assert (job.progress["done"], job.progress["total"], job.progress["unit"]) == (10, 10, "shards")
    assert [event.type for event in live.events(job.id)] == ["submitted", "claimed", "stage", "done"]
    assert [*(tmp_path / "jobs").iterdir(), *(tmp_path / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    ("oom_kills", "code"),
    [
        pytest.param(lambda: 7, "E_MACHINE", id="the kernel lacked no memory"),
        pytest.param(lambda: None, "E_TOO_BIG", id="it does not count"),
        pytest.param(count().__next__, "E_TOO_BIG", id="it ends some process all the time"),
    ],
)
def test_a_kill_is_the_machine_s_fault_where_the_kernel_lacked_no_memory_and_the_folder_stays(
    tmp_path, live, monkeypatch, oom_kills, code
):
    monkeypatch.setattr(resources, "oom_kills", oom_kills)
    job = run_one(tmp_path, live, "dies")
    assert (job.state, job.stage, job.error.code, job.error.retryable) == (State.QUEUED, "stream", code, True)
    assert (tmp_path / "jobs" / job.id).exists()


@pytest.mark.parametrize(("function", "said"), [("no_result", "ended without a result"), ("missing", "AttributeError")])
def test_a_failed_attempt_says_why_and_keeps_the_folder(tmp_path, live, function, said):
    job = run_one(tmp_path, live, function)
    assert (job.state, job.error.code, job.error.retryable) == (State.FAILED, "E_INTERNAL", False)
    assert said in job.error.message
    assert "Traceback" in (tmp_path / "jobs" / job.id / "child.log").read_text()


def test_an_event_that_is_too_long_is_told_of_and_what_follows_arrives(tmp_path, live):
    job = run_one(tmp_path, live, "shouts")
    assert (job.state, job.result) == (State.DONE, {"commit": "abc"})
    told = [event.data.get("message") for event in live.events(job.id)]
    assert "an event of more than 1048576 bytes was dropped" in told


def test_a_killed_worker_takes_its_child_along_and_another_goes_on(tmp_path, live):
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


def test_a_stopped_worker_loses_its_job_and_never_runs_it_beside_the_next(tmp_path, live):
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


def test_a_worker_told_to_stop_gives_its_job_back(tmp_path, live):
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
from processes import ROOT, is_alive, printed_by, until
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


def test_a_job_leaves_no_dead_process_to_the_first_one_of_a_container(tmp_path):
    helpers = os.pathsep.join(map(str, (ROOT, HERE, HERE.parent)))
    assert printed_by(IN_A_CONTAINER, str(tmp_path), PYTHONPATH=helpers) == "1\n"  # the worker


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path, live):
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
    ("function", "grace_s", "result"),
    [
        pytest.param("cleans_up", 30.0, None, id="it cleans up"),
        pytest.param("ignores_cancel", 0.5, None, id="it goes on and is killed"),
        pytest.param("finishes_on_cancel", 30.0, {"commit": "abc"}, id="it had published already"),
    ],
)
def test_a_cancelled_job_ends_with_its_helpers_and_leaves_no_folder(tmp_path, live, function, grace_s, result):
    payload = {name: str(tmp_path / name) for name in ("gate", "cleaned", "pids")}
    job = live.submit(new_job("a", payload=payload))
    with running(make_worker(tmp_path, live, function, replace(QUICK, grace_s=grace_s))):
        until(lambda: live.get(job.id).stage == "evaluate")
        with pytest.raises(PermissionDeniedError):
            live.request_cancel(job.id, "bob")
        live.request_cancel(job.id, "ann")
        until(lambda: live.get(job.id).state.is_terminal)
        until(lambda: not (tmp_path / "jobs" / job.id).exists())
    ended = live.get(job.id)
    assert (ended.state, ended.result) == (State.DONE if result else State.CANCELLED, result)
    if function == "cleans_up":
        assert (tmp_path / "cleaned").exists()
        until(lambda: not any(map(is_alive, map(int, (tmp_path / "pids").read_text().split()))))


def test_a_child_gets_its_document_whole_and_no_secret_of_the_space_and_its_helpers_read_no_heartbeat(
    tmp_path, live, monkeypatch
):
    for name in ("HF_TOKEN", "HUBMERGE_SECRET", "HUBMERGE_WEBHOOK_SECRET", "OAUTH_CLIENT_SECRET", "x_api_key"):
        monkeypatch.setenv(name, "private")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    job = run_one(tmp_path, live, "surroundings", long="x" * 250_000)  # longer than a pipe holds
    seen = job.result["environment"]
    assert "private" not in seen.values()
    assert seen["TOKENIZERS_PARALLELISM"] == "false"
    assert seen["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"
    assert child_environment({}, "http://hub")["HF_ENDPOINT"] == "http://hub"
    assert (job.result["length"], job.result["read"]) == (250_000, "")


def test_folders_of_jobs_that_ended_meanwhile_are_swept(tmp_path, live):
    failed = claimed(live, "failed")
    live.fail(failed.id, failed.fence, FINAL)
    for name in ("cancelled", "waiting"):
        live.submit(new_job(name))
    live.request_cancel(job_id("cancelled"), "ann")
    for folder in (*map(job_id, ("cancelled", "waiting", "failed")), "unknown"):  # of a database that was moved away
        (tmp_path / "jobs" / folder).mkdir(parents=True)
    temporary = tmp_path / "tmp" / f"{job_id('unknown')[:16]}-2"
    temporary.mkdir(parents=True)
    for kept_s, left in ((1000.0, {"waiting", "failed"}), (0.0, {"waiting"})):
        make_worker(tmp_path, live, "steps", replace(QUICK, keep_failed_s=kept_s))._sweep()
        assert {path.name for path in (tmp_path / "jobs").iterdir()} == set(map(job_id, left))
    assert not temporary.exists()


def test_a_worker_stops_while_it_waits(tmp_path, live):
    with running(make_worker(tmp_path, live, "steps", replace(QUICK, idle_s=3600.0))):
        pass


def test_folders_of_failed_jobs_are_bounded(tmp_path, live, monkeypatch):
    worker = make_worker(tmp_path, live, "steps")
    usage = worker_module.shutil.disk_usage(tmp_path)._replace(total=10 * 300_000)
    monkeypatch.setattr(worker_module.shutil, "disk_usage", lambda _: usage)
    for name in ("first", "second", "third"):
        job = claimed(live, name)
        inputs = worker.workdir(job.id) / "evaluation" / "inputs"
        inputs.mkdir(parents=True)
        (inputs / "model.safetensors").write_bytes(b"x" * 131_072)
        (tmp_path / "tmp" / f"{job.id[:16]}-{job.attempt}").mkdir(parents=True)  # its worker was killed
        live.fail(job.id, job.fence, FINAL)
    waiting = claimed(live, "waiting")  # which can still go on, whatever it takes
    worker.workdir(waiting.id).mkdir()
    (worker.workdir(waiting.id) / "inputs").write_bytes(b"x" * 1_000_000)
    worker._sweep()
    kept = {path.name for path in (tmp_path / "jobs").iterdir()}
    assert kept == set(map(job_id, ("second", "third", "waiting")))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_that_is_used_again_is_not_swept(tmp_path, live, monkeypatch):
    job = claimed(live)
    worker = make_worker(tmp_path, live, "steps")
    folder = worker.workdir(job.id)
    folder.mkdir(parents=True)
    live.fail(job.id, job.fence, FINAL)
    lock, empty = worker_module.lock_workdir, worker_module.shutil.rmtree

    def full(path: Path, wait_s: float) -> int | None:
        raise OSError(28, "No space left on device", str(path))

    def submitted_meanwhile(path: Path, wait_s: float) -> int | None:
        live.submit(new_job("a"))
        return lock(path, wait_s)

    def begun_meanwhile(path: Path) -> None:
        monkeypatch.setattr(worker_module.shutil, "rmtree", empty)
        os.close(lock(folder, 5.0))
        (folder / "journal").write_text("0\n")
        empty(path)

    for locked in (full, submitted_meanwhile):
        monkeypatch.setattr(worker_module, "lock_workdir", locked)
        worker._discard(job.id)
        assert folder.exists()
    live.request_cancel(job.id, "ann")
    monkeypatch.setattr(worker_module, "lock_workdir", lock)
    monkeypatch.setattr(worker_module.shutil, "rmtree", begun_meanwhile)
    worker._discard(job.id)
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [job.id]
    assert (folder / "journal").exists()


def test_a_worker_outlives_a_job_that_it_lost_and_a_database_that_is_busy(tmp_path, live, monkeypatch):
    worker, told = make_worker(tmp_path, live, "steps"), [StaleFenceError("lost"), DatabaseBusyError("busy"), KeyError]
    monkeypatch.setattr(worker, "run_once", Mock(side_effect=told))
    with pytest.raises(KeyError):
        worker.run_forever(threading.Event())


def test_a_worker_that_could_not_be_started_is_started_later(tmp_path, monkeypatch):
    crowded, stop = Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable")), threading.Event()
    monkeypatch.setattr("workflows.serve.RESTART_AFTER_S", 0.0)
    monkeypatch.setattr(subprocess, "Popen", crowded)
    with WorkerProcess(Settings(data_dir=tmp_path), stop=stop):
        until(lambda: crowded.call_count > 1)


def test_a_worker_process_has_no_secret_that_only_the_app_needs(tmp_path, monkeypatch):
    started, stop = Mock(side_effect=OSError), threading.Event()
    for name in ("HF_TOKEN", "OAUTH_CLIENT_SECRET", "HUBMERGE_WEBHOOK_SECRET", "HUBMERGE_SECRET"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setattr(subprocess, "Popen", started)
    with WorkerProcess(Settings(data_dir=tmp_path), stop=stop):
        until(lambda: started.called)
    given = started.call_args.kwargs["env"]
    assert [name for name, value in given.items() if value == "secret"] == ["HUBMERGE_SECRET"]  # opens jobs' tokens


def test_a_disk_without_room_for_a_job_s_folder_is_waited_for_as_any_full_disk(tmp_path, live):
    (tmp_path / "jobs").touch()
    job = run_one(tmp_path, live, "steps", trace=str(tmp_path / "trace"))
    assert (job.state, job.error.code) == (State.QUEUED, "E_DISK")


@pytest.mark.parametrize(
    ("spoil", "left"), [(Path.touch, (State.FAILED, "E_SETTINGS")), (Path.mkdir, (State.QUEUED, "E_DISK"))]
)
def test_an_evaluation_whose_signing_key_is_damaged_says_so_and_a_worker_goes_on(tmp_path, live, spoil, left):
    spoil(tmp_path / "signing.key")
    live.submit(new_job("a", kind="evaluate"))
    job = Worker(Settings(data_dir=tmp_path), live, TokenVault([b"secret"])).run_once()
    assert (job.state, job.error.code) == left


# --- the child by itself ------------------------------------------------------------------------------------------


TOKEN = "hf_CaNaRyTokenThatNobodyMayEverSee"


def spec(workdir: Path, **payload: Any) -> JobSpec:
    given = {"token": SecretStr(TOKEN), "workdir": workdir, "endpoint": "http://localhost"}
    return job_spec(workdir.parent, payload=payload, **given)


def start(function: str, document: bytes, *arguments: str) -> subprocess.Popen[bytes]:
    """A child that was told its job; its input stays open."""
    command = [sys.executable, "-m", "workflows.jobs.child", "--pipeline", f"job_pipelines:{function}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    child = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **pipes)
    child.stdin.write(document)
    child.stdin.flush()
    return child


def test_a_document_that_is_no_job_is_refused_without_being_shown(tmp_path):
    child = start("steps", spec(tmp_path).to_line().replace(b'"attempt": 1', b'"attempt": "one"'))
    out, err = child.communicate()
    assert child.returncode == 1
    assert out == b""
    assert b"attempt" in err
    assert TOKEN.encode() not in err


UNREADABLE = ValueError("a library's own words")
UNREADABLE.__cause__ = OSError(5, "Input/output error", "/data/shard")


@pytest.mark.parametrize(
    ("raised", "code", "retryable", "said"),
    [
        (HubUnavailableError("the Hub answered 503"), "E_HUB", True, "503"),
        (OSError(28, "No space left on device", "/data/shard"), "E_DISK", True, "the disk is full in /data/shard"),
        (UNREADABLE, "E_DISK", True, "the disk fails in /data/shard"),
        (MemoryError("2 TB"), "E_TOO_BIG", True, "2 TB"),
        (SystemExit(0), "E_INTERNAL", False, "SystemExit: 0"),
        (None, "E_INTERNAL", False, "ended without a result"),
    ],
)
def test_a_failure_says_why(tmp_path, monkeypatch, capsys, raised, code, retryable, said):
    if raised is not None:
        monkeypatch.setattr(job_pipelines, "no_result", Mock(side_effect=raised))
    sent: list[Any] = []
    events: Any = SimpleNamespace(send=sent.append, has_result=False)
    assert run_job(spec(tmp_path), "job_pipelines:no_result", events, Scrubber(None)) == 1
    assert (sent[-1].code, sent[-1].retryable) == (code, retryable)
    assert said in sent[-1].message
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("function", ["cancelled_after_result", "cancelled_with_the_result"])
def test_a_cancellation_after_the_result_comes_too_late(tmp_path, function):
    child = start(function, spec(tmp_path / "w").to_line())
    assert json.loads(child.stdout.readline()) == {"type": "result", "values": {"commit": "abc"}}
    assert child.wait() == 0
    child.communicate()


@pytest.mark.parametrize("end", ["the pipe closes", "the heartbeat stops", "the child is killed"])
def test_a_guarded_child_and_its_helpers_end_together(tmp_path, end):
    pids = tmp_path / "pids"
    document = spec(tmp_path / "w", pids=str(pids), gate=str(tmp_path / "gate")).to_line()
    child = start("helper_process", document, "--guard-seconds", "0.5" if end == "the heartbeat stops" else "600")
    main, helper = map(int, until(lambda: pids.exists() and pids.read_text()).split())
    if end == "the pipe closes":
        child.stdin.close()
        child.stdin = None
    elif end == "the child is killed":
        child.kill()
    until(lambda: not is_alive(main) and not is_alive(helper))
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def test_an_attempt_waits_until_the_one_before_has_left_the_folder(tmp_path):
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    document = spec(tmp_path / "w", trace=str(trace), gate=str(gate)).to_line()
    first = start("steps", document)
    journal = tmp_path / "w" / "journal"
    until(lambda: journal.exists() and len(journal.read_text().split()) == 5)
    second = start("steps", document)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(2)
    assert len(trace.read_text().splitlines()) == 1
    first.kill()
    until(lambda: len(trace.read_text().splitlines()) == 2)
    gate.touch()
    assert second.wait() == 0
    for child in (first, second):
        child.communicate()
    assert "OVERLAP" not in trace.read_text()
    assert (tmp_path / "w" / "journal").read_text().split() == [str(n) for n in range(10)]


def test_what_json_has_no_number_for_becomes_null():
    line = Statistics(values={"a": float("nan"), "b": [float("inf")]})
    assert list(decoded([encode(line).encode()])) == [Statistics(values={"a": None, "b": [None]})]


def test_a_spec_shows_its_token_and_its_key_on_the_wire_only(tmp_path):
    document = spec(tmp_path).model_copy(update={"signing_key": SecretStr("5" * 64)})
    for secret in (TOKEN, "5" * 64):
        assert secret in document.to_line().decode()
        assert secret not in repr(document) + str(document) + document.model_dump_json()
    assert JobSpec.model_validate_json(document.to_line()) == document
