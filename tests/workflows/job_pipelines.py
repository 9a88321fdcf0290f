"""Pipelines for the job tests; each leaves traces that a test can read from outside."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hubmerge.errors import CancelledError
from workflows.jobs.protocol import Emit, JobSpec, Notice, Progress, Result, StageStarted, Statistics


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


def steps(spec: JobSpec, emit: Emit) -> None:
    """Ten durable steps, each done once however often the job is killed; waits at `gate` before step 5.

    Each step takes `step_s`.
    """
    tempfile.mkdtemp()  # which nobody removes
    journal = spec.workdir / "journal"
    done = journal.read_text().splitlines() if journal.exists() else []
    with Path(spec.payload["trace"]).open("a") as trace:
        try:
            fcntl.flock(trace, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            trace.write("OVERLAP\n")
            raise
        trace.write(f"attempt {spec.attempt} pid {os.getpid()} from {len(done)}\n")
        trace.flush()
        emit(StageStarted(stage="stream"))
        for step in range(len(done), 10):
            if step == 5 and "gate" in spec.payload:
                wait_for(spec.payload["gate"])
            time.sleep(spec.payload.get("step_s", 0.0))
            with journal.open("a") as file:
                file.write(f"{step}\n")
                file.flush()
                os.fsync(file.fileno())
            emit(Progress(stage="stream", done=step + 1, total=10, unit="shards"))
        emit(Result(values={"journal": journal.read_text().split()}))


def dies(_spec: JobSpec, emit: Emit) -> None:
    """Killed without a word."""
    emit(StageStarted(stage="stream"))
    os.kill(os.getpid(), signal.SIGKILL)


def no_result(_spec: JobSpec, emit: Emit) -> None:
    emit(Notice(message="hello"))


def shouts(_spec: JobSpec, emit: Emit) -> None:
    """An event that is longer than a worker reads, then its result."""
    emit(Statistics(values={"long": "x" * 2_000_000}))
    emit(Result(values={"commit": "abc"}))


def helper_process(spec: JobSpec, emit: Emit) -> None:
    """Starts a program of its own, then holds still until it is ended."""
    helper = subprocess.Popen(["sleep", "600"])
    Path(spec.payload["pids"]).write_text(f"{os.getpid()} {helper.pid}")
    emit(StageStarted(stage="evaluate"))
    wait_for(spec.payload["gate"])


def cleans_up(spec: JobSpec, emit: Emit) -> None:
    try:
        helper_process(spec, emit)
    except CancelledError:
        os.kill(os.getpid(), signal.SIGTERM)  # an impatient user's second click
        Path(spec.payload["cleaned"]).write_text("yes")
        raise


def ignores_cancel(spec: JobSpec, emit: Emit) -> None:
    while True:
        try:
            emit(StageStarted(stage="evaluate"))
            wait_for(spec.payload["gate"])
        except CancelledError:
            continue


def finishes_on_cancel(spec: JobSpec, emit: Emit) -> None:
    """The cancellation comes when the commit is already made."""
    try:
        emit(StageStarted(stage="evaluate"))
        wait_for(spec.payload["gate"])
    except CancelledError:
        emit(Result(values={"commit": "abc"}))


def cancelled_after_result(_spec: JobSpec, emit: Emit) -> None:
    emit(Result(values={"commit": "abc"}))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)


def cancelled_with_the_result(_spec: JobSpec, emit: Emit) -> None:
    child = sys.modules["__main__"]
    write = child.write_all
    child.write_all = lambda *line: (write(*line), os.kill(os.getpid(), signal.SIGTERM))
    emit(Result(values={"commit": "abc"}))


def leaks(spec: JobSpec, emit: Emit) -> None:
    """Says its token everywhere it can, then waits, then ends with it in its result or its error."""
    assert spec.token is not None
    token = spec.token.get_secret_value()
    logging.getLogger("http").warning("Authorization: Bearer %s", token)
    print("stdout", token)
    print("stderr", token, file=sys.stderr, flush=True)
    sys.stderr.write("x" * 70_000 + token)
    os.write(2, token[:7].encode())
    os.write(2, token[7:].encode() + b"\n")
    subprocess.run(["echo", token], check=True)
    emit(StageStarted(stage=f"stage {token}"))
    emit(Progress(stage=f"stage {token}", done=1))
    emit(Statistics(values={"nested": [{"key": token}], token: 1}))
    emit(Notice(message=f"https://user:{token}@hub"))
    wait_for(spec.payload["gate"])
    if spec.payload["end"] == "error":
        raise ValueError(f"bad request with {token}")
    emit(Result(values={"token": token}))


def surroundings(spec: JobSpec, emit: Emit) -> None:
    """Its environment, and what a helper reads that asks for input."""
    helper = subprocess.run(["cat"], capture_output=True, timeout=20, check=True)
    said = {"environment": dict(os.environ), "read": helper.stdout.decode(), "length": len(spec.payload["long"])}
    emit(Result(values=said))
