"""Runs a child process: gives it a job, reads its lines, and ends it.

    parent                                        child
    the job as a line of JSON, by standard input  →     a module with `in_child.run`, or workflows.jobs.child
    JSON lines: stage, progress, warning          ←
    one last line: done or error                  ←

`ChildProcess` is any child; `run_child` follows one to its end. A child leads a process group of its own. It ends early
in one of three ways, all within seconds: cancelled (SIGTERM to the group, SIGKILL after a grace period), past its wall
limit, or with its parent (the kernel's PDEATHSIG). Its standard error goes to a log of limited length, without the
token. The reader must check the child's lines, since the child has read data from strangers.
"""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import SecretStr

from hubmerge.errors import (
    DeviceError,
    DiskError,
    EvaluationError,
    HubmergeError,
    HubUnavailableError,
    InternalError,
    LoginError,
    MachineFaultError,
    MemoryLimitError,
)
from hubmerge.isolation.in_child import WallLimitError, write_all
from hubmerge.isolation.scrub import Scrubber
from hubmerge.machine import resources
from hubmerge.settings import Settings, evaluation_environment

MAX_LINE_BYTES = 1024 * 1024
MAX_LOG_BYTES = 8 * 1024 * 1024
MAX_MESSAGE = 500
MAX_LAST_WORDS = 200
_EXIT_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
GRACE_S = 3.0  # between SIGTERM and SIGKILL
_END_S = 30.0  # for a child that has said all
_POLL_S = 0.1
_QUEUE_LINES = 256
_DRAIN_S = 5.0
_READ_BYTES = 65536
_ROOT = Path(__file__).resolve().parents[2]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")

Event = Mapping[str, Any]


class ChildProcess:
    """A started child. The thread that starts it must outlive it: the kernel ends both together.

    Threads drain its pipes, so that it never blocks on a full one for long: lines go into a bounded queue, everything
    else into its log.
    """

    def __init__(
        self,
        command: Sequence[str],
        document: bytes,
        environment: Mapping[str, str],
        log: Path,
        scrubber: Scrubber,
        *,
        beating: bool = False,
    ) -> None:
        """`document`: a line for its standard input, which is closed then, unless heartbeats follow (`beating`)."""
        self._scrubber = scrubber
        self._beating = beating
        self._lines: queue.Queue[bytes] = queue.Queue(_QUEUE_LINES)
        self._abandoned = threading.Event()
        self._oom_kills = resources.oom_kills()
        environment = {**environment, "PYTHONUNBUFFERED": "1"}
        if paths := environment.get("PYTHONPATH"):  # which may be relative to this folder
            environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,  # where `-m` finds the packages
            env=environment,
        )
        self.pid = self._process.pid
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin = self._process.stdin
        self._readers = (
            self._start(self._read_lines, self._process.stdout),
            self._start(self._read_log, self._process.stderr, log),
        )
        # In a thread, because the document can be longer than a pipe holds and the child slow to read.
        self._sender = self._start(self._send_document, document)

    def beat(self) -> None:
        """Tell the child that it is still wanted."""
        if not self._sender.is_alive():  # never before the document, nor into its middle
            self._send(b"\n")

    def lines(self, wait_s: float) -> list[bytes]:
        """The child's lines so far, after waiting up to `wait_s` for a first one.

        A line longer than MAX_LINE_BYTES is cut and has no end; one that the child's death tore is left out.
        """
        found: list[bytes] = []
        with suppress(queue.Empty):
            found.append(self._lines.get(timeout=wait_s))
            while len(found) < _QUEUE_LINES:
                found.append(self._lines.get_nowait())
        return found

    def has_ended(self) -> bool:
        """True once the child has ended. It stays unreaped, so that the kernel gives its group's number to no other."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def killed(self, code: int) -> type[HubmergeError] | None:
        """What a SIGKILL as exit code `code` means, None for another code: a fault of the machine where the kernel has
        ended nothing for want of memory meanwhile, too little memory where it has, or does not count that."""
        if code not in _EXIT_KILLED:
            return None
        counted = resources.oom_kills()
        return MachineFaultError if counted is not None and counted == self._oom_kills else MemoryLimitError

    def terminate(self) -> None:
        """Ask the whole group to stop and clean up."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self, grace_s: float = 0.0) -> tuple[int, list[bytes]]:
        """End what is left of the group: the exit code (negative: a signal) and the unread lines.

        With `grace_s` it is asked to stop first, and has so many seconds for that.
        """
        deadline = time.monotonic() + grace_s
        if grace_s:
            self.terminate()
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill()
        code = self._process.wait()
        with suppress(ChildProcessError):  # none is left, or this process has not adopted them
            while True:
                os.waitpid(-self.pid, 0)
        rest: list[bytes] = []
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

    def _send_document(self, document: bytes) -> None:
        self._send(document)
        if not self._beating:
            self._stdin.close()

    def _send(self, data: bytes) -> None:
        with suppress(OSError):  # a child that died is noticed by its exit
            write_all(self._stdin.fileno(), data)

    def _signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def _read_lines(self, stdout: IO[bytes]) -> None:
        with stdout:
            while line := stdout.readline(MAX_LINE_BYTES):
                whole = line.endswith(b"\n")
                if whole or len(line) == MAX_LINE_BYTES:
                    self._put(self._scrubber.data(line))
                while not whole and (more := stdout.readline(MAX_LINE_BYTES)):
                    whole = more.endswith(b"\n")

    def _put(self, line: bytes) -> None:
        while not self._abandoned.is_set():
            with suppress(queue.Full):
                self._lines.put(line, timeout=0.5)
                return

    def _read_log(self, stderr: IO[bytes], path: Path) -> None:
        with stderr:
            while chunk := os.read(stderr.fileno(), _READ_BYTES):
                append_to_log(path, self._scrubber.feed(chunk))
            append_to_log(path, self._scrubber.rest())


def append_to_log(path: Path, data: bytes) -> None:
    """A log ends at MAX_LOG_BYTES; a full disk or a vanished folder costs the log, never the child."""
    if data:
        with suppress(OSError), path.open("ab") as file:
            file.write(data[: max(0, MAX_LOG_BYTES - file.tell())])


@dataclass(frozen=True)
class ChildJob:
    """A child to run: `python -m module`, with `spec` on its standard input."""

    module: str
    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    log: Path
    wall_s: float
    what: str  # "mini on org/model@sha": for errors


def run_child(job: ChildJob, on_event: Callable[[Event], None]) -> Event:
    """Run the child to its end and return its `done` event; every other event goes to `on_event` as it comes.

    What `on_event` raises ends the child. Raises EvaluationError (past its wall limit, died, or reports an error), and
    MemoryLimitError, HubUnavailableError, LoginError, DeviceError, DiskError or MachineFaultError where it says so.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.unlink(missing_ok=True)
    document = json.dumps({**job.spec, "parent": os.getpid()}).encode() + b"\n"
    token = job.spec.get("token")
    scrubber = Scrubber(SecretStr(token) if token else None)
    child = ChildProcess([sys.executable, "-m", job.module], document, job.environment, job.log, scrubber)
    deadline = time.monotonic() + job.wall_s
    last: list[Event] = []

    def take(lines: list[bytes]) -> None:
        nonlocal deadline
        for line in lines:
            event = _event(job, line)
            if event["event"] in ("done", "error"):
                last.append(event)
                deadline = min(deadline, time.monotonic() + _END_S)
            else:
                on_event(event)

    try:
        while not child.has_ended():
            take(child.lines(_POLL_S))
            if time.monotonic() > deadline:
                if last:  # all is said, and a library hangs
                    break
                raise WallLimitError(
                    "the process did not end within its wall limit",
                    where=job.what,
                    expected=f"at most {job.wall_s:g} s",
                    got="more; it was killed",
                    next_step="What it generated is kept: run it again with a higher limit, or lower the suite's.",
                )
    except BaseException:
        child.close(GRACE_S)
        raise
    code, rest = child.close()
    take(rest)
    return _verdict(job, code, last, child.killed(code))


def fresh_environment(home: Path, endpoint: str, *, network: bool) -> dict[str, str]:
    """The environment of a child, without tokens and without this user's caches."""
    home.mkdir(exist_ok=True)
    environment = {
        **evaluation_environment(network=network),
        "HOME": str(home),
        "HF_HOME": str(home),
        "LOGNAME": f"uid_{os.getuid()}",  # torch asks for a name, and a container's user may have none
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",  # which sends a dataset's name to another host, also of a private one
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


def _event(job: ChildJob, line: bytes) -> Event:
    if not line.endswith(b"\n"):
        raise EvaluationError("the process said a line without an end", where=job.what)
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise ValueError("no event")
    except (ValueError, RecursionError):
        raise EvaluationError(
            "the process sent a line that is no event", where=job.what, got=ascii(line[:80])
        ) from None
    return event


def _verdict(job: ChildJob, code: int, last: list[Event], killed: type[HubmergeError] | None) -> Event:
    if last and last[0]["event"] == "error":
        raise _error(job, last[0])
    if last:  # whatever became of it afterwards
        return last[0]
    if killed is MachineFaultError:
        raise MachineFaultError(
            "the process was killed, which says nothing of the model",
            where=job.what,
            got="SIGKILL, while the kernel ended nothing for want of memory",
            next_step="Run it again: it goes on where it was.",
        )
    if killed is MemoryLimitError:
        raise MemoryLimitError(
            "the process was killed",
            where=job.what,
            got="SIGKILL, as the kernel does when memory runs out",
            next_step="Lower the batch size, or evaluate it on a machine with more memory.",
        )
    words = _last_words(job.log)
    raise EvaluationError(
        "the process died without a result",
        where=job.what,
        got=how_ended(code) + (f"; its last words were: {words}" if words else ""),
        next_step="Run it again; if it ends the same way, its last words say what to mend.",
    )


def _last_words(log: Path) -> str:
    """The last line that a process wrote to its log, which is mostly what it died of; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return plain(next((line for line in reversed(lines) if line.strip()), ""))[:MAX_LAST_WORDS]


def _error(job: ChildJob, event: Event) -> HubmergeError:
    kept = (MemoryLimitError, HubUnavailableError, LoginError, DeviceError, DiskError, MachineFaultError, InternalError)
    named = {error.code: error for error in kept}
    kind = named.get(str(event.get("code")), WallLimitError if event.get("slow") is True else EvaluationError)
    return kind(
        plain(event.get("what")) or "the process failed",
        where=job.what,
        expected=plain(event.get("expected")),
        got=plain(event.get("got")),
        next_step=plain(event.get("next_step")),
    )


def how_ended(code: int) -> str:
    """How a process with this exit code (negative: a signal) ended. Most real-time signals have no name."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def plain(text: Any) -> str:
    """A stranger's text as one line of limited length, for a message."""
    return _CONTROL.sub(" ", text)[:MAX_MESSAGE].strip() if isinstance(text, str) else ""
