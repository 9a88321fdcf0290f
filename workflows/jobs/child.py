"""One job in a process of its own: `python -m workflows.jobs.child [--pipeline module:function]`.

Reads a `JobSpec` from stdin, runs the pipeline, and writes its events to stdout as JSON lines. Standard
output is moved away first, so that no library's chatter gets between them: everything else goes to stderr.

    SIGTERM                     raises CancelledError once in the main thread
    HubmergeError               an error line, exit 1
    too little memory           E_TOO_BIG, to be retried once, exit 1
    anything else               E_INTERNAL with class and message, the traceback to stderr, exit 1
    the worker dies or stops    the whole process group is killed (see `process`)

No token leaves the process: every line and every traceback is scrubbed.
"""

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress

from hubmerge.errors import CancelledError, HubmergeError, InternalError, MemoryLimitError
from hubmerge.isolation.confinement import Limits, die_with_parent, give_way, limit_resources
from hubmerge.isolation.in_child import own_pipes, ran_out_of_memory, write_all
from hubmerge.isolation.scrub import Scrubber
from hubmerge.machine import extras
from hubmerge.machine.disk_errors import of_disk
from workflows.jobs.process import lock_workdir, set_up_logging, start_guardian
from workflows.jobs.protocol import Failure, JobSpec, Line, Result, encode

DEFAULT_PIPELINE = "workflows.jobs.pipeline:run"
LOCK_WAIT_S = 20.0


class EventWriter:
    """Events to the worker; any thread may emit."""

    def __init__(self, descriptor: int, scrubber: Scrubber) -> None:
        self._descriptor = descriptor
        self._scrubber = scrubber
        self._lock = threading.Lock()
        self.has_result = False

    def send(self, line: Line) -> None:
        torn = "\n" if isinstance(line, Failure) else ""  # a cancellation may have come in the middle of another line
        data = (torn + self._scrubber.text(encode(line))).encode()
        with self._lock:
            self.has_result |= isinstance(line, Result)  # first: what a cancellation meets half-way has been published
            write_all(self._descriptor, data)


def _cancel(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the clean-up
    raise CancelledError("the job was cancelled")


def run_job(spec: JobSpec, pipeline: str, events: EventWriter, scrubber: Scrubber) -> int:
    """Run the pipeline and turn however it ends into a line and an exit code."""
    try:
        module, _, function = pipeline.partition(":")
        getattr(importlib.import_module(module), function)(spec, events.send)
        if not events.has_result:
            raise InternalError("the pipeline ended without a result", where=pipeline)
    except CancelledError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the job boundary: whatever happened is recorded
        sys.stderr.write(scrubber.text(traceback.format_exc()))
        failure = _failure_of(error)
    else:
        return 0
    events.send(failure)
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workflows.jobs.child", description="Run one job from stdin.")
    parser.add_argument("--pipeline", default=DEFAULT_PIPELINE, metavar="MODULE:FUNCTION")
    parser.add_argument(
        "--guard-seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="stdin stays open and brings a heartbeat at least every S seconds (300), or the job is killed",
    )
    options = parser.parse_args(argv)
    die_with_parent(os.getppid())
    limit_resources(Limits())  # no core file, which would hold the token
    commands, descriptor = own_pipes()
    with open(commands, "rb", closefd=False) as document:
        spec = JobSpec.model_validate_json(document.readline())
    spec.workdir.mkdir(parents=True, exist_ok=True)
    scrubber = Scrubber(spec.token)
    events = EventWriter(descriptor, scrubber)
    try:
        signal.signal(signal.SIGTERM, _cancel)
        if os.getpgrp() != os.getpid():
            os.setsid()
        if lock_workdir(spec.workdir, LOCK_WAIT_S) is None:
            busy = InternalError("an earlier attempt still works in the job's folder", where=str(spec.workdir))
            events.send(Failure.of(busy, retryable=True))
            return 1
        start_guardian(commands, options.guard_seconds, descriptor)
        give_way()
        set_up_logging()
        code = run_job(spec, options.pipeline, events, scrubber)
    except CancelledError as error:
        if events.has_result:  # it came too late: what is published is published
            return 0
        events.send(Failure.of(error))
        return 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def _failure_of(error: BaseException) -> Failure:
    if isinstance(error, HubmergeError):
        return Failure.of(error)
    if (of_the_disk := of_disk(error)) is not None:
        return Failure.of(of_the_disk)
    if ran_out_of_memory(error):
        return Failure.of(MemoryLimitError("the job ran out of memory", got=str(error)), retryable=True)
    if isinstance(error, ModuleNotFoundError) and (missing := extras.explained(error)) is not None:
        return Failure.of(missing)
    return Failure.of(InternalError(f"{type(error).__name__}: {error}", next_step="Report this as a bug."))


def _exit(code: int) -> None:
    """End at once: a thread that a library left behind must not keep a finished job alive."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())
