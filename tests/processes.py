"""Commands and scripts in processes of their own, since libraries read their settings when they are imported; threads
that a test waits for."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[1]
Done = Callable[..., Any]  # the fixture that runs a command


def python(
    *arguments: str, given: str = "", folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a process of this Python said, and how it ended."""
    return subprocess.run(
        [sys.executable, *arguments],
        input=given,
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def printed_by(script: str, *arguments: str, **how: Any) -> str:
    """What a script prints; a failure fails the test."""
    done = python("-c", script, *arguments, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def until(condition: Callable[[], Any], what: str = "", seconds: float = 120.0) -> Any:
    """Ask again until it is so: a promise about the end, not about the time it takes."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    """True of a process that is neither gone nor a zombie waiting for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def free_port() -> int:
    """One of this machine that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Beside(threading.Thread):
    """Does something beside the test until it ends, and knows how."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # what it ends with is what is tested
            self._error = error

    def ended_with(self, seconds: float = 30.0) -> BaseException | None:
        self.join(seconds)
        assert not self.is_alive(), "it was not broken off"
        return self._error


def as_ada(hub: LocalHubProcess, folder: Path) -> dict[str, str]:
    """The variables of her commands on a Hub, which keep what they keep in `folder`."""
    return {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.tokens["ada"], "HUBMERGE_DATA": str(folder / "data")}


def act_as_ada(patch: pytest.MonkeyPatch, hub: LocalHubProcess, folder: Path) -> None:
    """The same for commands in this process."""
    for name, value in as_ada(hub, folder).items():
        patch.setenv(name, value)
