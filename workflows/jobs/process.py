"""What the processes of the app have in common: their log, how they are told to stop, and how their lives are tied.

A child ends with its worker, and no two processes work in one folder:

- *Workdir lock*: the child holds a `flock` on its folder. The kernel frees it with the last process that
  holds it, so the next attempt starts only when the one before is gone, whatever the database says.
- *Guardian*: a small process forked from the child before any thread exists. It reads the worker's
  heartbeats. On the pipe's end (the worker died), on silence (the worker is stopped and its lease runs out),
  and on the child's own death it kills the whole process group. It shares no interpreter lock with the job,
  so no long computation can hold it up.
"""

import fcntl
import logging
import os
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hubmerge.isolation.confinement import die_with_parent

END_AFTER_S = 30.0  # a question to a Hub that does not answer waits for minutes
LOCK_NAME = ".lock"
_LOCK_RETRY_S = 0.05


def set_up_logging() -> None:
    """Everything from INFO on to stderr, where nobody has set up the process's log before."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the bot asks the Hub every few seconds


def told_to_stop() -> threading.Event:
    """What SIGTERM and Ctrl-C set from now on. A process that then does not end is ended; it can be killed anywhere."""
    stop = threading.Event()

    def tell(*_: object) -> None:
        stop.set()
        timer = threading.Timer(END_AFTER_S, os._exit, [1])
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    return stop


def lock_workdir(workdir: Path, wait_s: float) -> int | None:
    """A descriptor that holds the folder's lock, or None when somebody else still has it after `wait_s`."""
    deadline = time.monotonic() + wait_s
    path = workdir / LOCK_NAME
    while True:
        workdir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):  # the folder was not removed meanwhile
                return descriptor
        os.close(descriptor)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOCK_RETRY_S)


def start_guardian(beats: int, silence_s: float, events: int) -> None:
    """Fork the guardian of this process group; it closes `events`, so that the worker sees their end."""
    leader = os.getpid()
    if os.fork() != 0:
        return
    try:
        _guard(leader, beats, silence_s, events)
    finally:
        os._exit(1)


def _guard(leader: int, beats: int, silence_s: float, events: int) -> NoReturn:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # these ask the job to clean up; the guardian stays until then
    signal.signal(signal.SIGUSR1, lambda *_: os.killpg(leader, signal.SIGKILL))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(events)
    die_with_parent(leader, signal.SIGUSR1)
    while True:
        ready, _, _ = select.select([beats], [], [], silence_s)
        if not ready or not os.read(beats, 4096):
            os.killpg(leader, signal.SIGKILL)
