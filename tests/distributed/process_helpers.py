"""Starting a command as several processes, as a launcher does."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
SHARD_BYTES = 12_000  # four shards
_TIMEOUT_S = 120.0


class Launcher:
    """Starts processes, which are forks of one that has imported everything (rank_process.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # so that all that it started can be ended with it
        )
        return self

    def __call__(
        self,
        processes: int,
        runs: Sequence[Sequence[str]],
        trouble: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        folders: Sequence[Path] = (),
        notes: Path | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> list[tuple[int, str]]:
        """(exit code, stderr) by rank, after `runs` one after the other.

        `folders`: by rank, where a process works and keeps its data, like machines that share no disk.
        """
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(processes),
            **(environment or {}),
        }
        own = [{"HUBMERGE_DATA": str(folder / "data")} for folder in folders] or [{}] * processes
        errors = [self._folder / f"{rank}.err" for rank in range(processes)]
        order = {
            "runs": runs,
            "ports": _free_ports(len(runs)),
            "environments": [{**common, **own[rank], "RANK": str(rank)} for rank in range(processes)],
            "folders": [str(folder) for folder in folders] or [os.getcwd()] * processes,
            "errors": [str(path) for path in errors],
            "shard_bytes": shard_bytes,
            "notes": str(notes) if notes else None,
            "trouble": trouble,
        }
        self._parent.stdin.write(json.dumps(order).encode() + b"\n")
        self._parent.stdin.flush()
        if not select.select([self._parent.stdout], [], [], _TIMEOUT_S)[0]:
            self.__exit__(None, None, None)
            raise TimeoutError([path.read_text(encoding="utf-8") for path in errors])
        codes = json.loads(self._parent.stdout.readline())
        return [(code, path.read_text(encoding="utf-8")) for code, path in zip(codes, errors, strict=True)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parent.poll() is None:
            os.killpg(self._parent.pid, signal.SIGKILL)
        with self._parent:
            pass


def noted(notes: Path, word: str) -> list[list[str]]:
    """By rank, what the processes have noted behind `word`."""
    files = sorted(notes.iterdir())
    lines = [[line.split() for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    return [[what for kind, what in own if kind == word] for own in lines]


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
