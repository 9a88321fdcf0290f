"""What the job tests share: a clock to move, a board, jobs with readable names, workers in threads and processes."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from processes import ROOT

from hubmerge.board.results_dataset import ResultsDataset
from hubmerge.errors import EvaluationError
from hubmerge.hub.client import Hub
from hubmerge.settings import Settings
from localhub.process import LocalHubProcess
from workflows.jobs.evaluations import Pin, RecordedScores, ScoreKey
from workflows.jobs.jobs import Job, JobError, NewJob
from workflows.jobs.protocol import JobSpec
from workflows.jobs.store import Store
from workflows.jobs.supervision import Timing
from workflows.jobs.tokens import TokenVault
from workflows.jobs.worker import Worker
from workflows.service import Service
from workflows.values import Visitor

HERE = Path(__file__).parent
NOWHERE = "http://127.0.0.1:9"  # where nobody answers
QUICK = Timing(idle_s=0.02, line_s=0.02, cancel_s=0.02, heartbeat_s=0.2, progress_s=0.0, grace_s=30.0)

RETRYABLE = JobError(code="E_DISK", message="the disk is full", retryable=True)
OUTAGE = JobError(code="E_HUB", message="the Hub is away", retryable=True)
REFUSAL = JobError(code="E_HUB", message="the Hub will never do it")
FAULT = JobError(code="E_MACHINE", message="it was killed", retryable=True)
FINAL = JobError(code="E_FORMAT", message="no safetensors")


class FakeClock:
    def __init__(self) -> None:
        self.boot_id = "boot-1"
        self.wall = datetime(2030, 1, 1, 12, tzinfo=UTC)
        self.seconds = 1000.0

    def now(self) -> datetime:
        return self.wall

    def steady(self) -> float:
        return self.seconds

    def pass_time(self, seconds: float = 0.0, **how: float) -> None:
        """For so many seconds, or for what `timedelta` takes."""
        passed = timedelta(seconds=seconds, **how)
        self.seconds += passed.total_seconds()
        self.wall += passed

    def reboot(self) -> None:
        self.boot_id = f"boot-{int(self.boot_id[5:]) + 1}"
        self.seconds = 5.0


class FakeScores(RecordedScores):
    """A leaderboard that the test writes: the version of every suite, scores that are known, their means, and flags."""

    def __init__(self, default_suite: str | None = None, version: str = "1") -> None:
        self.default_suite = default_suite
        self.dataset = ResultsDataset(Hub(NOWHERE), "zoo/results")
        self.version = version
        self.known: set[ScoreKey] = set()
        self.means: dict[Pin, float] = {}
        self.flags: dict[Pin, str] = {}

    def suite_version(self, suite: str) -> str:
        if suite == "gone":
            raise EvaluationError("there is no such suite")
        return self.version

    def known_scores(self) -> frozenset[ScoreKey]:
        return frozenset(self.known)

    def ranking(self, suite: str, models: Sequence[Pin]) -> Mapping[Pin, float]:
        return {pin: self.means[pin] for pin in models if pin in self.means}

    def flagged(self, models: Sequence[Pin]) -> Mapping[Pin, str]:
        return {pin: self.flags[pin] for pin in models if pin in self.flags}


def job_spec(folder: Path, **given: Any) -> JobSpec:
    """What the child of a job of ada's is told; its files lie in `folder`."""
    first = {"user": "ada", "payload": {}, "workdir": folder / "work", "shared": folder / "shared"}
    return JobSpec(**{**first, **given})


def job_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def new_job(name: str, user: str = "ann", **changes: Any) -> NewJob:
    return NewJob(**{"id": job_id(name), "user": user, "payload": {"name": name}, **changes})


def visitor(hub: LocalHubProcess, name: str, **more: Any) -> Visitor:
    return Visitor(name, hub.tokens[name], (name,), **more)


def service_of(endpoint: str, store: Store, requests: Any = None, **settings: Any) -> Service:
    """The service of an app whose secret is "test secret"."""
    configured = Settings(endpoint=endpoint, secret="test secret", **settings)
    return Service(configured, store, TokenVault.from_settings(configured), requests)


def claim(store: Store, owner: str = "w1") -> Job:
    job = store.claim(owner)
    assert job is not None
    return job


def claimed(store: Store, name: str = "a", owner: str = "w1", **changes: Any) -> Job:
    """A new job, claimed."""
    store.submit(new_job(name, **changes))
    return claim(store, owner)


def ended(store: Store, error: JobError | None = None, **result: Any) -> Job:
    """The job that was due, after an attempt that failed with an error, or else was done with a result."""
    job = claim(store)
    return store.finish(job.id, job.fence, result) if error is None else store.fail(job.id, job.fence, error)


def make_worker(data: Path, store: Store, function: str, timing: Timing = QUICK, **settings: Any) -> Worker:
    configured = Settings(data_dir=data, secret="test secret", **settings)
    vault = TokenVault.from_settings(configured)
    pipelines = {"merge": f"job_pipelines:{function}"}
    return Worker(configured, store, vault, pipelines=pipelines, timing=timing)


@contextmanager
def running(worker: Worker) -> Iterator[threading.Event]:
    stop = threading.Event()
    thread = threading.Thread(target=worker.run_forever, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


@contextmanager
def worker_process(data: Path, function: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "HUBMERGE_DATA": str(data), "HUBMERGE_SECRET": "test secret"}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(HERE)))
    command = [sys.executable, "-m", "workflows.jobs.worker", "--pipeline", f"merge=job_pipelines:{function}"]
    with (data / "worker.log").open("ab") as log:
        process = subprocess.Popen([*command, *arguments], env=environment, cwd=ROOT, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
