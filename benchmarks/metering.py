"""Measuring whole processes, and a sink that drops what it is given.

A child of a fresh interpreter is measured (`measure`), so that no earlier child's peak is counted. `NullWriter` takes
the place of sink.ShardWriter: it hashes and drops, or only drops, so that a model of any size can be merged without a
disk. Nothing but benchmarks does that.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hubmerge.plan import PlannedShard

_METER = """
import json, resource, subprocess, sys, time
start = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
wall = time.monotonic() - start
use = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu, peak = use.ru_utime + use.ru_stime, use.ru_maxrss * 1024
print(json.dumps([done.returncode, wall, cpu, peak, done.stdout[-100000:], done.stderr[-2000:]]))
"""


@dataclass(frozen=True)
class Measured:
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    output: str = ""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["output"]
        return {k: round(v, 3) for k, v in values.items()}


def measure(command: list[str], environment: Mapping[str, str] | None = None) -> Measured:
    """One run of `command`; SystemExit with its last words when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _METER, *command],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    code, wall, cpu, peak, output, errors = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors}")
    return Measured(wall, cpu, peak, output)


class NoHash:
    """In the place of hashlib.sha256."""

    def __init__(self, data: bytes = b"") -> None: ...

    def update(self, data: memoryview) -> None:
        pass

    def hexdigest(self) -> str:
        return "0" * 64


class NullWriter:
    """Like sink.ShardWriter, without a file."""

    hashes = True

    def __init__(self, folder: Path, shard: PlannedShard) -> None:
        self._digest = hashlib.sha256() if self.hashes else NoHash()
        self._written = 0
        self._shard = shard

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._written += len(view)

    def finish(self) -> tuple[int, str]:
        return self._written, self._digest.hexdigest()

    def __enter__(self) -> Self:
        self.write(self._shard.header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class UnhashedNullWriter(NullWriter):
    hashes = False
