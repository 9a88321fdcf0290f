"""Runs generated Python code, confined and within limits, and judges from another process whether it passes its tests.

    run_python(solution, tests, timeout_s=10).passed

There are two processes (`sandbox_child`), each with an empty folder as its working directory, an empty environment, no
input, its own session, and the rules of `sandbox_rules`. They see the standard library and no installed package. One
executes the solution; the other executes the tests, which ask the first for the names that the solution defines. At the
wall limit, or when one sends more than it may, both groups are killed; since they cannot start processes, none is left.
Hashes are seeded, so the order of a set of strings is the same in every run.

**What counts as passing.** The tests must come to their end, in a process where no generated code ever ran. Replaced
builtins, patched modules, objects that equal everything, found pipes and early exits change only the solution's
answers. Units are compiled one by one, so an open quote in a solution cannot swallow the tests. **What it cannot
find.** A solution may know the answers that the tests expect; the answers are kept with the results for readers who
doubt a score. A test that passes a function or an object of its own class to the solution fails; none of the suites has
one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import IO

from hubmerge.errors import EvaluationError
from hubmerge.isolation import seccomp
from hubmerge.isolation.child import how_ended
from hubmerge.isolation.confinement import Limits

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START_S = 60.0  # until the process is confined; a machine under load may need seconds
_VERDICT_BYTES = 4096
_TAIL_BYTES = 500
_READY = b"ready\n"
_LOST = b"lost"  # the tests' process heard the end of the solution's
_END_S = 2.0
_CONTROL = re.compile(r"[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}

# cpu_s follows the wall limit where it is not given; file_bytes is the most that can be printed
DEFAULT_LIMITS = Limits(memory_bytes=1 << 30, file_bytes=16 << 20, open_files=64)


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool
    reason: str  # "passed", an exception, or what stopped it; foreign text


def run_python(
    program: str | Sequence[str], tests: str = "", *, timeout_s: float = 10.0, limits: Limits = DEFAULT_LIMITS
) -> Outcome:
    """Run `program` (one unit or several) in one module, then `tests` on it; passed if both came to their end.

    EvaluationError where this machine cannot confine the processes: that says nothing about the program.
    """
    seccomp.machine()
    if limits.cpu_s is None:
        limits = replace(limits, cpu_s=math.ceil(timeout_s) + 1)
    units = [program] if isinstance(program, str) else list(program)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        verdict_end, verdict_in = _pipe(stack)
        asked_end, asked_in = _pipe(stack)
        answered_end, answered_in = _pipe(stack)
        solution = stack.enter_context(_child("solution", units, limits, output, asked_end, answered_in))
        judge = stack.enter_context(_child("tests", [tests], limits, output, answered_end, asked_in, verdict_in))
        verdict, in_time = _listen(verdict_end.fileno(), timeout_s)
        # the solution's end may still be on its way; nobody else speaks to it now
        code = _ended(solution) if verdict == _READY + _LOST else None
        _kill(judge)
        _kill(solution)
        code = solution.wait() if code is None else code
        tail = _tail(output)
    if not verdict.startswith(_READY):
        raise EvaluationError(
            "the processes for generated code did not start",
            expected="processes that say when they are confined",
            got=tail.strip() or f"exit code {code}",
            next_step="Nothing was run and nothing is scored.",
        )
    verdict = verdict.removeprefix(_READY)
    if verdict == b"passed":
        return Outcome(True, "passed")
    return Outcome(False, _reason(verdict, code, in_time, timeout_s))


@contextlib.contextmanager
def _child(
    role: str, units: list[str], limits: Limits, output: IO[bytes], reading: FileIO, writing: FileIO, *others: FileIO
) -> Iterator[subprocess.Popen[bytes]]:
    """One of the two processes. Only it keeps its ends of the pipes, and it has ended when the context ends."""
    ends = [reading, writing, *others]
    job = {
        "role": role,
        "units": [unit for unit in units if unit],
        "limits": asdict(limits),
        "reading_fd": reading.fileno(),
        "writing_fd": writing.fileno(),
        "verdict_fd": others[0].fileno() if others else None,
        "parent": os.getpid(),
        "package_root": str(Path(__file__).resolve().parents[2]),
        "readable": _readable(),
    }
    with tempfile.TemporaryDirectory(prefix="hubmerge-sandbox-") as folder, tempfile.TemporaryFile() as told:
        told.write(json.dumps(job).encode())
        told.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(_CHILD)],
            stdin=told,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_ENVIRONMENT,
            pass_fds=[end.fileno() for end in ends],
            start_new_session=True,
        )
        for end in ends:
            end.close()
        try:
            yield process
        finally:
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group. The kernel gives its number to no other until the process is waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return None  # it closed its pipes and stayed


def _pipe(stack: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    """The reading and the writing end."""
    reading, writing = os.pipe()
    return stack.enter_context(FileIO(reading, "r")), stack.enter_context(FileIO(writing, "w"))


def _readable() -> list[str]:
    """Python's library and the system's shared ones."""
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"]
    return [*folders, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"]


def _listen(said: int, timeout_s: float) -> tuple[bytes, bool]:
    """The process's output until it closes the pipe, and whether it did so in time."""
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
        return how_ended(code)
    return f"ended before its tests did, with exit code {code}"


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return _plain(output.read(_TAIL_BYTES))


def _plain(text: bytes) -> str:
    """Foreign bytes as text without control and direction-changing characters."""
    return _CONTROL.sub("\ufffd", text.decode("utf-8", "replace"))
