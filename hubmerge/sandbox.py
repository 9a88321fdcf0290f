"""Run generated Python code and say whether it came to its end: in its own process, confined, within limits.

    run_python(solution, tests, timeout_s=10).passed

The process (`sandbox_child`) has an empty folder as its working directory, an empty environment, no input, its own
session, and the rules of `sandbox_rules`; it sees the standard library and no installed package. At the wall limit,
or when it says more than it should, its group is killed; since it cannot start processes, nothing is left. Hashes
are seeded, so that the order of a set of strings is the same in every run.

**What counts as passing.** The last unit of code came to its end, and the process then handed over a random token
that it could read only from a pipe. Printing something, exit codes, `sys.exit`, `os._exit`, atexit handlers and
threads prove nothing. Units are compiled one by one, so an open quote in a solution cannot swallow the tests.
**What is left.** Solution and tests share an interpreter, as in every published harness for these benchmarks: code
written against this very harness can find the pipes by number and pass on the token, and an object whose `__eq__`
is always true passes any assertion of equality. The answers are kept with the results for whoever doubts a score.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import IO

from hubmerge import seccomp
from hubmerge.confinement import Limits
from hubmerge.errors import EvaluationError

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START_S = 60.0  # until the process is confined; a machine under load may need seconds
_VERDICT_BYTES = 4096
_TAIL_BYTES = 2000
_READY = b"ready\n"
_CONTROL = re.compile(r"[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}

# cpu_s follows the wall limit where it is not given; file_bytes is the most that can be printed
DEFAULT_LIMITS = Limits(memory_bytes=1 << 30, file_bytes=16 << 20, open_files=64)


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool
    reason: str  # "passed", an exception, or what stopped it
    stdout_tail: str  # the last of what it printed, errors included; foreign text


def run_python(program: str, tests: str = "", *, timeout_s: float = 10.0, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run `program`, then `tests` in the same module; passed if both came to their end.

    EvaluationError where this machine cannot confine the process: that says nothing about the program.
    """
    seccomp.machine()
    if limits.cpu_s is None:
        limits = replace(limits, cpu_s=math.ceil(timeout_s) + 1)
    token = secrets.token_hex(16).encode()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hubmerge-sandbox-"))
        output = stack.enter_context(tempfile.TemporaryFile())
        job = stack.enter_context(tempfile.TemporaryFile())
        verdict_end, verdict_in = _pipe(stack)
        token_end, token_in = _pipe(stack)
        with token_in:
            token_in.write(token)
        units = [unit for unit in (program, tests) if unit]
        job.write(json.dumps(_job(units, limits, verdict_in.fileno(), token_end.fileno())).encode())
        job.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(_CHILD)],
            stdin=job,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_ENVIRONMENT,
            pass_fds=(verdict_in.fileno(), token_end.fileno()),
            start_new_session=True,
        )
        try:
            verdict_in.close()
            verdict, in_time = _listen(verdict_end.fileno(), timeout_s)
        finally:
            # not reaped yet, so the number still is this group's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        tail = _tail(output)
    if not verdict.startswith(_READY):
        raise EvaluationError(
            "the process for generated code did not start",
            expected="a process that says when it is confined",
            got=tail.strip()[-500:] or f"exit code {code}",
            next_step="Nothing was run and nothing is scored.",
        )
    verdict = verdict.removeprefix(_READY)
    if secrets.compare_digest(verdict, b"passed " + token):
        return Outcome(True, "passed", tail)
    return Outcome(False, _reason(verdict, code, in_time, timeout_s), tail)


def _pipe(stack: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    """The reading and the writing end."""
    reading, writing = os.pipe()
    return stack.enter_context(FileIO(reading, "r")), stack.enter_context(FileIO(writing, "w"))


def _job(units: list[str], limits: Limits, verdict_fd: int, token_fd: int) -> dict[str, object]:
    return {
        "units": units,
        "limits": asdict(limits),
        "verdict_fd": verdict_fd,
        "token_fd": token_fd,
        "parent": os.getpid(),
        "package_root": str(Path(__file__).resolve().parents[1]),
        "readable": _readable(),
    }


def _readable() -> list[str]:
    """Python's library and the system's shared ones."""
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"]
    return [*folders, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"]


def _listen(said: int, timeout_s: float) -> tuple[bytes, bool]:
    """What the process says until it closes the pipe, and whether that was in time."""
    heard, ready = b"", False
    poll = select.poll()
    poll.register(said, select.POLLIN)
    deadline = time.monotonic() + _START_S
    while len(heard) <= _VERDICT_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return heard, False
        more = os.read(said, _VERDICT_BYTES)
        if not more:
            break
        heard += more
        if not ready and heard.startswith(_READY):
            ready, deadline = True, time.monotonic() + timeout_s
    return heard, True


def _reason(verdict: bytes, code: int, in_time: bool, timeout_s: float) -> str:
    if verdict.startswith(b"failed "):
        return _plain(verdict.removeprefix(b"failed "))
    if not in_time:
        return f"stopped at the wall limit of {timeout_s:g} s"
    if code == -signal.SIGXCPU:
        return "stopped at the limit of processor time"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended before its tests did, with exit code {code}"


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return _plain(output.read(_TAIL_BYTES))


def _plain(text: bytes) -> str:
    """Foreign bytes as text without control and direction-changing characters."""
    return _CONTROL.sub("\ufffd", text.decode("utf-8", "replace"))
