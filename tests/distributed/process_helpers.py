"""Starting a command as several processes, as a launcher does."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from processes import ROOT, free_port

SCRIPT = Path(__file__).with_name("rank_process.py")
SHARD_BYTES = 12_000  # four shards
_TIMEOUT_S = 300.0


def start(
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
    order = {"runs": runs, "ports": [free_port() for _ in runs], "shard_bytes": shard_bytes, "trouble": trouble}
    command = [sys.executable, str(SCRIPT), json.dumps(order | {"notes": str(notes) if notes else None})]
    launched = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(processes)}
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **launched, **(environment or {})}
    started = []
    with ExitStack() as held:
        for rank in range(processes):
            own = {"HUBMERGE_DATA": str(folders[rank] / "data")} if folders else {}
            errors = held.enter_context(TemporaryFile("w+"))
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
            cwd = folders[rank] if folders else None
            process = subprocess.Popen(command, env={**variables, **own, "RANK": str(rank)}, cwd=cwd, **pipes)
            held.enter_context(process)
            held.callback(process.kill)
            started.append((process, errors))
        codes = [process.wait(_TIMEOUT_S) for process, _ in started]
        for _, errors in started:
            errors.seek(0)
        return [(code, errors.read()) for code, (_, errors) in zip(codes, started, strict=True)]


def noted(notes: Path, word: str) -> list[list[str]]:
    """By rank, what the processes have noted behind `word`."""
    files = sorted(notes.iterdir())
    lines = [[line.split() for line in file.read_text(encoding="utf-8").splitlines()] for file in files]
    return [[what for kind, what in own if kind == word] for own in lines]
