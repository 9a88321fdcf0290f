"""Runs a child process: gives it a job, reads its events, and ends it.

    parent                                        child
    the job as JSON, by standard input      →     hubmerge.evaluation.fetch or .child
    JSON lines: stage, progress, warning    ←
    one last line: done or error            ←

The child leads a process group of its own. It ends early in one of three ways, all within seconds: cancelled (SIGTERM
to the group, SIGKILL after a grace period), past its wall limit, or with its parent (the kernel's PDEATHSIG). Its
standard error goes to a log of limited length. Its events are checked here, since it has read data from strangers.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubmerge.errors import CancelledError, EvaluationError, HubmergeError, HubUnavailableError, MemoryLimitError
from hubmerge.isolation.channel import WallLimitError
from hubmerge.settings import Settings, evaluation_environment

MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_LOG_BYTES = 4 * 1024 * 1024
MAX_MESSAGE = 500
GRACE_S = 3.0  # between SIGTERM and SIGKILL
_POLL_S = 0.1
_READ_BYTES = 65536
_ROOT = Path(__file__).resolve().parents[2]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")

Event = Mapping[str, Any]


@dataclass(frozen=True)
class ChildJob:
    """A child to run: `python -m module`, with `spec` on its standard input."""

    module: str
    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    log: Path
    wall_s: float
    what: str  # "the evaluation of org/model@sha": for errors


@dataclass
class _Output:
    """The child's output so far."""

    line: bytearray = field(default_factory=bytearray)
    logged: int = 0


def run_child(job: ChildJob, on_event: Callable[[Event], None], cancelled: Callable[[], bool]) -> Event:
    """Run the child to its end and return its `done` event; every other event goes to `on_event` as it comes.

    Raises CancelledError, EvaluationError (past its wall limit, died, or reports an error), and MemoryLimitError or
    HubUnavailableError where it reports that.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with _stdin(job.spec) as stdin, open(job.log, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,  # where the package is found
            env={**job.environment, "PYTHONUNBUFFERED": "1"},
        )
        last: list[Event] = []

        def keep(event: Event) -> None:
            if event["event"] in ("done", "error"):
                last.append(event)
            else:
                on_event(event)

        try:
            code = _watch(job, process, log, keep, cancelled)
        finally:
            _end_group(process)
            for pipe in (process.stdout, process.stderr):
                assert pipe
                pipe.close()
    return _verdict(job, code, last)


def fresh_environment(home: Path, endpoint: str, *, network: bool) -> dict[str, str]:
    """The environment of a child, without tokens and without this user's caches."""
    home.mkdir(exist_ok=True)
    environment = {
        **evaluation_environment(network=network),
        "HOME": str(home),
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if Settings(endpoint=endpoint).is_loopback:
        environment |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1,localhost"}
    if not network:
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return environment


def _stdin(spec: Mapping[str, Any]) -> Any:
    """A file in memory that holds the job. It never reaches the disk, since it can hold a token, and it may have any
    length, unlike a pipe's content."""
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC)
    file = os.fdopen(descriptor, "w+b")
    file.write(json.dumps({**spec, "parent": os.getpid()}).encode())
    file.seek(0)
    return file


def _watch(
    job: ChildJob,
    process: subprocess.Popen[bytes],
    log: Any,
    keep: Callable[[Event], None],
    cancelled: Callable[[], bool],
) -> int:
    """Read until the child has ended; returns its exit code, negative for a signal."""
    assert process.stdout
    assert process.stderr
    deadline = time.monotonic() + job.wall_s
    output = _Output()
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = _has_ended(process)
            ready = selector.select(0 if ended else _POLL_S) if selector.get_map() else []
            for key, _ in ready:
                _read(job, key.fileobj, process, selector, output, log, keep)
            if ended and not ready:  # read to the end, or a grandchild that outlives it holds the pipe
                return _exit_code(process)
            if not ready and not selector.get_map() and not ended:
                time.sleep(_POLL_S)  # it closed its pipes and goes on
            if cancelled():
                raise CancelledError("the evaluation was cancelled")
            if time.monotonic() > deadline:
                raise WallLimitError(
                    "the evaluation did not end within its wall limit",
                    where=job.what,
                    expected=f"at most {job.wall_s:g} s",
                    got="more; it was killed",
                    next_step="What it generated is kept: run it again with a higher limit, or lower the suite's.",
                )


def _read(
    job: ChildJob,
    pipe: Any,
    process: subprocess.Popen[bytes],
    selector: selectors.BaseSelector,
    output: _Output,
    log: Any,
    keep: Callable[[Event], None],
) -> None:
    data = os.read(pipe.fileno(), _READ_BYTES)
    if not data:
        selector.unregister(pipe)
    elif pipe is process.stderr:
        log.write(data[: max(0, MAX_LOG_BYTES - output.logged)])
        output.logged += len(data)
    else:
        output.line += data
        *lines, rest = bytes(output.line).split(b"\n")
        output.line = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES:
            raise EvaluationError("the evaluating process said a line without an end", where=job.what)
        for line in lines:
            keep(_event(job, line))


def _event(job: ChildJob, line: bytes) -> Event:
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise ValueError("no event")
    except (ValueError, RecursionError):
        raise EvaluationError(
            "the evaluating process said something that is no event", where=job.what, got=ascii(line[:80])
        ) from None
    return event


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True once the child has ended. It stays unreaped, so that the kernel gives its group's number to no other."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End every process of the child's group."""
    if not _has_ended(process):
        _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while not _has_ended(process) and time.monotonic() < deadline:
            time.sleep(0.02)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], signum: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


def _verdict(job: ChildJob, code: int, last: list[Event]) -> Event:
    if last and last[0]["event"] == "error":
        raise _error(job, last[0])
    if code == 0 and last:
        return last[0]
    if code == -signal.SIGKILL:
        raise MemoryLimitError(
            "the evaluating process was killed",
            where=job.what,
            got="SIGKILL, as the kernel does when memory runs out",
            next_step="Lower the batch size, or evaluate it on a machine with more memory.",
        )
    got = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code} without a result"
    raise EvaluationError("the evaluating process died", where=job.what, got=got, next_step="Its log says more.")


def _error(job: ChildJob, event: Event) -> HubmergeError:
    named = {error.code: error for error in (MemoryLimitError, HubUnavailableError)}
    kind = named.get(str(event.get("code")), WallLimitError if event.get("slow") is True else EvaluationError)
    return kind(
        plain(event.get("what")) or "the evaluation failed",
        where=job.what,
        expected=plain(event.get("expected")),
        got=plain(event.get("got")),
        next_step=plain(event.get("next_step")),
    )


def plain(text: Any) -> str:
    """A stranger's text as one line of limited length, for a message."""
    return _CONTROL.sub(" ", text)[:MAX_MESSAGE].strip() if isinstance(text, str) else ""
