"""The process that asks for bursts: `python -m hubmerge.engine.device.burst_process DESCRIPTOR JOB`.

The platform's package forks its worker from whoever calls. A merge fetches and uploads in threads, and a fork while
one of them holds a lock leaves that lock held in the worker for ever: the Hub's client, for one, takes its connection
pool's lock after every fork. So the calls come from a process of their own that has no other thread, no token and no
socket of a server; it also keeps gradio and torch, which the package imports and patches, out of the merge.

    job → this process      one pickled `Burst` after the other
    this process → job      (True, what it returned) or (False, why it failed), pickled

SIGTERM, and the end of the job's process, kill the workers, so that the call in progress fails and gives the GPU back,
and this process ends. Only the workers inherit its end of the connection: once the job sees that closed, nobody is
left to write.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from hubmerge.engine.device.zero import ends_with, lent
from hubmerge.settings import load_settings

_ENDING_S = 5.0


class BurstProcess:
    """The job's end."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "hubmerge.engine.device.burst_process", str(theirs.fileno()), str(os.getpid())]
        # standard output is for events in some callers, and the package prints
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=2)
        theirs.close()

    def ask(self, burst: Any) -> None:
        self._connection.send(burst)

    def answer(self, wait_s: float) -> tuple[bool, Any] | None:
        """What became of the burst; None when nothing is known after `wait_s`. EOFError, OSError: it is gone."""
        if not self._connection.poll(wait_s):
            return None
        told: tuple[bool, Any] = self._connection.recv()
        return told

    def end(self) -> None:
        """When it returns, no burst runs and none will."""
        for stop in (self._process.terminate, self._process.kill):
            stop()
            if self._has_ended(_ENDING_S):
                break
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _has_ended(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        try:
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
                self._connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False


def main(descriptor: int, job: int) -> None:
    connection = Connection(descriptor)
    ending = waiting = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True
        _kill_workers()
        if waiting:  # Python goes on waiting for a burst after a signal
            raise EOFError

    signal.signal(signal.SIGTERM, end)
    if not ends_with(job, signal.SIGTERM):
        return
    call = None
    while not ending:
        try:
            waiting = True
            burst = connection.recv()
            waiting = False
        except (EOFError, OSError):
            break
        told: tuple[bool, Any]
        try:
            call = call or lent(load_settings())
            assert call is not None
            told = True, call(burst, os.getpid())
        except Exception as error:  # noqa: BLE001 (the platform's have no common type; the job decides)
            told = False, " ".join(f"{type(error).__name__}: {error}".split())[:200]
        try:
            connection.send(told)
        except OSError:
            break
    _kill_workers()


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
