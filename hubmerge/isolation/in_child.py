"""The child's side of `child.py`: reads its job from standard input and writes events to a pipe of their own.

Standard output is moved away first, so that no library's chatter gets between the events; printed text goes to the log.
The kernel kills the process when its parent ends.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from hubmerge.errors import EvaluationError, HubmergeError, MemoryLimitError
from hubmerge.isolation.confinement import die_with_parent
from hubmerge.machine.disk_errors import of_disk

_MAX_TEXT = 2000


class WallLimitError(EvaluationError):
    """A child did not end in time; a busy machine can cause this as well."""


class Reporter:
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
        write_all(self._descriptor, json.dumps(event).encode() + b"\n")


def run(job: Callable[[Mapping[str, Any], Reporter], Mapping[str, Any]]) -> int:
    """Run `job(spec, reporter)` and send its result, or its error, as the last event; returns the exit code."""
    commands, events = own_pipes()
    with os.fdopen(commands, "rb") as document:
        spec = json.loads(document.readline())
    die_with_parent(spec["parent"])
    reporter = Reporter(events)
    try:
        reporter.done(job(spec, reporter))
    except HubmergeError as error:
        traceback.print_exc()
        reporter.error(error)
        return 1
    except Exception as error:  # noqa: BLE001 - the job boundary: whatever a stranger's files caused is reported
        traceback.print_exc()
        reporter.error(_named(error))
        return 1
    return 0


def own_pipes() -> tuple[int, int]:
    """Private descriptors of the real stdin and stdout, which no program that the child starts inherits.

    What reads number 0 now reads nothing, and what writes to number 1 writes to stderr.
    """
    sys.stdout.flush()
    commands, events = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return commands, events


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, of which a pipe may take a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means too little memory. Torch's error for the GPU is known by its name, so that torch need not
    be imported; torch on the CPU has no class for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in str(error) or "Cannot allocate memory" in str(error)


def _named(error: Exception) -> HubmergeError:
    if (of_the_disk := of_disk(error)) is not None:
        return of_the_disk
    if ran_out_of_memory(error):
        return MemoryLimitError(
            "the process ran out of memory",
            got=first_line(error),
            next_step="Lower the batch size, or evaluate it on a machine with more memory.",
        )
    return EvaluationError("the process failed", got=f"{type(error).__name__}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """The first line of an error's words."""
    return (str(error).strip().splitlines() or ["no reason given"])[0][:300]
