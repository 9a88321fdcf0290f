"""A child process as the worker sees it: a queue of events, a heartbeat to send, and a group to end.

Two threads drain the child's pipes, so that it never blocks on a full one: its events go into a bounded
queue, everything else into `child.log` in its folder, scrubbed of the token.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from workflows.jobs.protocol import MAX_LINE_BYTES, JobSpec, Line, Notice, decode
from workflows.jobs.scrub import Scrubber

LOG_NAME = "child.log"
MAX_LOG_BYTES = 8 * 1024 * 1024
_QUEUE_LINES = 256
_DRAIN_S = 5.0
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|KEY)S?($|_)")
_ROOT = Path(__file__).resolve().parents[2]


def child_environment(environment: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """The worker's environment without its secrets: a job has its user's token, never the Space's."""
    kept = {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}
    return kept | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "PYTHONUNBUFFERED": "1"}


class ChildProcess:
    """A started child. The thread that starts it must outlive it: the kernel ends both together."""

    def __init__(self, command: Sequence[str], spec: JobSpec, environment: Mapping[str, str]) -> None:
        self._scrubber = Scrubber(spec.token)
        self._lines: queue.Queue[Line] = queue.Queue(_QUEUE_LINES)
        self._abandoned = threading.Event()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,  # where `-m workflows.jobs.child` finds the package
            env=dict(environment),
        )
        self.pid = self._process.pid
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin = self._process.stdin
        log = spec.workdir / LOG_NAME
        self._readers = (
            self._start(self._read_events, self._process.stdout),
            self._start(self._read_log, self._process.stderr, log),
        )
        # In a thread, because the document can be longer than a pipe holds and the child slow to read.
        self._sender = self._start(self._send, spec.to_line())

    def beat(self) -> None:
        """Tell the guardian that the lease goes on."""
        if not self._sender.is_alive():  # never before the document, nor into its middle
            self._send(b"\n")

    def lines(self, wait_s: float) -> list[Line]:
        """The events that are there, after waiting up to `wait_s` for a first one."""
        found: list[Line] = []
        with suppress(queue.Empty):
            found.append(self._lines.get(timeout=wait_s))
            while len(found) < _QUEUE_LINES:
                found.append(self._lines.get_nowait())
        return found

    def has_ended(self) -> bool:
        """True once the process is gone; it stays unreaped, so that its number is not given to another."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None

    def terminate(self) -> None:
        """Ask the whole group to stop and clean up."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> tuple[int, list[Line]]:
        """End what is left of the group: the exit code (negative: a signal) and the unread events."""
        self.kill()
        code = self._process.wait()
        rest: list[Line] = []
        deadline = time.monotonic() + _DRAIN_S
        while any(reader.is_alive() for reader in self._readers) and time.monotonic() < deadline:
            rest += self.lines(0.02)
        self._abandoned.set()  # only a process that left the group can still hold a pipe
        rest += self.lines(0.0)
        self._sender.join(_DRAIN_S)
        if not self._sender.is_alive():  # else the descriptor's number could be another file's when it writes
            self._stdin.close()
        return code, rest

    def _start(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"child-{self.pid}", daemon=True)
        thread.start()
        return thread

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        with suppress(OSError):  # a child that died is noticed by its exit
            while rest:
                rest = rest[os.write(self._stdin.fileno(), rest) :]

    def _signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def _read_events(self, stdout: IO[bytes]) -> None:
        with stdout:
            while raw := stdout.readline(MAX_LINE_BYTES):
                if not raw.endswith(b"\n") and len(raw) == MAX_LINE_BYTES:
                    while (more := stdout.readline(MAX_LINE_BYTES)) and not more.endswith(b"\n"):
                        pass
                    self._put(Notice(message=f"an event of more than {MAX_LINE_BYTES} bytes was dropped"))
                    continue
                try:
                    line = decode(self._scrubber.data(raw))
                except ValueError:  # a line torn by the child's death
                    continue
                self._put(line)

    def _put(self, line: Line) -> None:
        while not self._abandoned.is_set():
            with suppress(queue.Full):
                self._lines.put(line, timeout=0.5)
                return

    def _read_log(self, stderr: IO[bytes], path: Path) -> None:
        with stderr:
            while chunk := os.read(stderr.fileno(), 65536):
                _append(path, self._scrubber.feed(chunk))
            _append(path, self._scrubber.rest())


def _append(path: Path, data: bytes) -> None:
    # A full disk or a vanished folder costs the log, never the job.
    with suppress(OSError):
        if data and (not path.exists() or path.stat().st_size < MAX_LOG_BYTES):
            with path.open("ab") as file:
                file.write(data)
