"""The child's side of `process.py`: reads its job from standard input and writes events to a pipe of their own.

Standard output is moved away first, so that no library's chatter gets between the events; printed text goes to the log.
The kernel kills the process when its parent ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from hubmerge.errors import EvaluationError, HubmergeError, MemoryLimitError

_PR_SET_PDEATHSIG = 1
_MAX_TEXT = 2000


class WallLimitError(EvaluationError):
    """A child did not end in time; a busy machine can cause this as well."""


class Channel:
    """Events to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def stage(self, name: str) -> None:
        self._send({"event": "stage", "stage": name})

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        self._send({"event": "progress", "stage": stage, "done": done, "total": total, "unit": unit})

    def warning(self, message: str) -> None:
        self._send({"event": "warning", "message": message[:_MAX_TEXT]})

    def done(self, result: Mapping[str, Any]) -> None:
        self._send({"event": "done", **result})

    def error(self, error: HubmergeError) -> None:
        problem = {key: value[:_MAX_TEXT] for key, value in error.problems[0].as_dict().items()}
        self._send({"event": "error", **problem, "code": error.code, "slow": isinstance(error, WallLimitError)})

    def _send(self, event: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(event).encode() + b"\n")
        while data:
            data = data[os.write(self._descriptor, data) :]


def run(job: Callable[[Mapping[str, Any], Channel], Mapping[str, Any]]) -> int:
    """Run `job(spec, channel)` and send its result, or its error, as the last event; returns the exit code."""
    with os.fdopen(os.dup(0), "rb") as document:
        spec = json.loads(document.read())
    _die_with_parent(spec["parent"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    channel = Channel(os.dup(1))
    os.dup2(2, 1)
    try:
        channel.done(job(spec, channel))
    except HubmergeError as error:
        traceback.print_exc()
        channel.error(error)
        return 1
    except Exception as error:  # noqa: BLE001 - the job boundary: whatever a stranger's files caused is reported
        traceback.print_exc()
        channel.error(_named(error))
        return 1
    return 0


def _named(error: Exception) -> HubmergeError:
    # torch's error for the GPU is known by its name, so that torch need not be imported here
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _out_of_memory(error):
        return MemoryLimitError(
            "the evaluation ran out of memory",
            got=_first_line(error),
            next_step="Lower the batch size, or evaluate it on a machine with more memory.",
        )
    return EvaluationError("the evaluation failed", got=f"{type(error).__name__}: {_first_line(error)}")


def _out_of_memory(error: Exception) -> bool:
    """Whether an error means too little memory; torch on the CPU and the kernel's mmap have no class for it."""
    return "can't allocate memory" in str(error) or "Cannot allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:300]


def _die_with_parent(parent: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os.kill(os.getpid(), signal.SIGKILL)
