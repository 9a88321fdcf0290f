"""Runs generated Python code, confined and within limits, and judges from another process whether it passes its tests.

    passed = run_python(solution, tests, timeout_s=10)

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

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from hubmerge.errors import DeviceError, MachineFaultError
from hubmerge.isolation import seccomp
from hubmerge.isolation.child import plain
from hubmerge.isolation.confinement import Limits
from hubmerge.settings import library_path

_CHILD = Path(__file__).with_name("sandbox_child.py")
_START_S = 60.0  # until the process is confined; a machine under load may need seconds
_VERDICT_BYTES = 4096
_TAIL_BYTES = 500
_READY = b"ready\n"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
_READABLE = (
    *(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"),
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"),
)

# cpu_s follows the wall limit; file_bytes is the most that can be printed
DEFAULT_LIMITS = Limits(memory_bytes=1 << 30, file_bytes=16 << 20, open_files=64)
_COPIES = 8  # of the given text, of up to four bytes a character, that reading and parsing it take


def run_python(program: str | Sequence[str], tests: str = "", *, given: str = "", timeout_s: float = 10.0) -> bool:
    """Run `program` (one unit or several) in one module, then `tests` on it: whether both came to their end.

    The tests find the text `given` under that name, and have the more memory the longer it is.
    DeviceError where this machine cannot confine the processes, MachineFaultError where it does not let them start in
    time: neither says anything about the program.
    """
    seccomp.machine()
    limits = replace(DEFAULT_LIMITS, cpu_s=math.ceil(timeout_s) + 1)
    more = replace(limits, memory_bytes=(limits.memory_bytes or 0) + _COPIES * len(given))
    units = [unit for unit in ([program] if isinstance(program, str) else program) if unit]
    solution, asking = {"role": "solution", "units": units}, {"role": "tests", "tests": tests, "given": given}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile())
        verdict_end, verdict_in = map(stack.enter_context, Pipe(duplex=False))
        asked_end, asked_in = map(stack.enter_context, Pipe(duplex=False))
        answered_end, answered_in = map(stack.enter_context, Pipe(duplex=False))
        stack.enter_context(_child(solution, limits, output, asked_end, answered_in))
        stack.enter_context(_child(asking, more, output, answered_end, asked_in, verdict_in))
        verdict = _listen(verdict_end, timeout_s)
        if not verdict.startswith(_READY):
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            said = plain(output.read(_TAIL_BYTES).decode("utf-8", "replace"))
            raise (DeviceError if said else MachineFaultError)(
                "the processes for generated code did not start",
                expected="processes that say when they are confined",
                got=said or f"nothing in {_START_S:g} s",
                next_step="Nothing was run and nothing is scored.",
            )
    return verdict == _READY + b"passed"


@contextlib.contextmanager
def _child(
    role: Mapping[str, Any],
    limits: Limits,
    output: IO[bytes],
    reading: Connection,
    writing: Connection,
    *others: Connection,
) -> Iterator[None]:
    """One of the two processes. Only it keeps its ends of the pipes, and it has ended when the context ends."""
    ends = [reading, writing, *others]
    job = {
        **role,
        "limits": asdict(limits),
        "reading_fd": reading.fileno(),
        "writing_fd": writing.fileno(),
        "verdict_fd": others[0].fileno() if others else None,
        "parent": os.getpid(),
        "package_root": str(Path(__file__).resolve().parents[2]),
        "readable": _READABLE,
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
            env={**_ENVIRONMENT, **library_path()},
            pass_fds=[end.fileno() for end in ends],
            start_new_session=True,
        )
        for end in ends:
            end.close()
        try:
            yield
        finally:
            # the whole group, whose number the kernel gives to no other until the process is waited for
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listen(said: Connection, timeout_s: float) -> bytes:
    """What the tests' process says until it closes the pipe, or until the time is over."""
    heard, ready = b"", False
    deadline = time.monotonic() + _START_S
    while len(heard) <= _VERDICT_BYTES and said.poll(max(0.0, deadline - time.monotonic())):
        if not (more := os.read(said.fileno(), _VERDICT_BYTES)):
            break
        heard += more
        if not ready and heard.startswith(_READY):
            ready, deadline = True, time.monotonic() + timeout_s
    return heard
