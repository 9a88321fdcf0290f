"""Measuring whole processes: wall, CPU, peak memory, and the most that lay on the disk.

A child of a fresh interpreter is measured (`measure`), so that no earlier child's peak is counted. Meanwhile a thread
here looks at the disk and, if told so, at the memory that the machine has left: a process that takes it all is ended
before the machine suffers. `Suite` is where the files lie and how often things are measured.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.synthetic import SHAPES, write_family
from hubmerge.engine.prediction import Machine, as_facts, predict
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.machine.resources import cores
from hubmerge.plan.disk import DiskGauge
from hubmerge.recipe.file import load_recipe

NOWHERE = Hub("http://127.0.0.1:9")  # everything is local
SAMPLE_S = 0.05
RESERVE_BYTES = 10**9  # of the machine's memory, which a guarded process may not take
TURNS = 3  # of what is compared by wall time, at least

_METER = """
import json, resource, subprocess, sys, time
start = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
wall = time.monotonic() - start
use = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu, peak = use.ru_utime + use.ru_stime, use.ru_maxrss * 1024
print(json.dumps([done.returncode, wall, cpu, peak, done.stdout, done.stderr[-2000:]]))
"""


@dataclass(frozen=True)
class Measured:
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    disk_high_water_bytes: int
    output: str = ""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["output"]
        return {k: round(v, 3) for k, v in values.items()}


class FailedRunError(Exception):
    """What was measured failed; the message ends with its last words."""


class OutOfMemoryError(Exception):
    """What was measured left the machine too little memory, and was ended; `taken_bytes` was its peak so far."""

    def __init__(self, taken_bytes: int) -> None:
        super().__init__(f"ended at {taken_bytes} bytes of resident memory")
        self.taken_bytes = taken_bytes


def available_memory() -> int:
    return int(psutil.virtual_memory().available)


def measure(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    watched: Iterable[Path] = (),
    reserve_bytes: int = 0,
) -> Measured:
    """One run of `command`; FailedRunError when it fails, OutOfMemoryError when it had to be ended.

    `watched`: folders whose files count as its use of the disk. `reserve_bytes`: of the machine's memory, to be left.
    """
    meter = subprocess.Popen(
        [sys.executable, "-c", _METER, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(environment or {})},  # programs keep their bytecode
        start_new_session=True,  # so that it can be ended with all that it started
    )
    with meter, _Watch(meter.pid, watched, reserve_bytes) as watch:
        told, errors = meter.communicate()
    if watch.ended_at:
        raise OutOfMemoryError(watch.ended_at)
    if meter.returncode:
        raise FailedRunError(f"{' '.join(command)} could not be measured:\n{errors}")
    code, wall, cpu, peak, output, errors = json.loads(told)
    if code:
        raise FailedRunError(f"{' '.join(command)} failed:\n{errors}")
    return Measured(wall, cpu, peak, watch.gauge.high_water_bytes, output)


class _Watch:
    """Samples the disk, and ends the session of `leader` when the machine runs out of memory."""

    def __init__(self, leader: int, watched: Iterable[Path], reserve_bytes: int) -> None:
        self.gauge = DiskGauge(watched)
        self.ended_at = 0
        self._leader = leader
        self._reserve_bytes = reserve_bytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="benchmark-watch", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.gauge.sample()
            if not self.ended_at and self._reserve_bytes and available_memory() < self._reserve_bytes:
                self.ended_at = max(1, self._resident())
                with suppress(ProcessLookupError):
                    os.killpg(self._leader, signal.SIGKILL)

    def _resident(self) -> int:
        try:
            return sum(int(p.memory_info().rss) for p in psutil.Process(self._leader).children(recursive=True))
        except psutil.Error:
            return 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is not None:  # Ctrl-C does not reach another session
            with suppress(ProcessLookupError):
                os.killpg(self._leader, signal.SIGKILL)
        self.gauge.sample()


class Suite:
    """Where the files lie and how often things are measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.place: Path = options.data.resolve()
        self.repeat: int = options.repeat
        self.shapes: list[str] = options.shapes
        self.compared: list[str] = options.compare
        self.out = self.place / "merged"
        self.temporary = self.place / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)

    def family(self, shape: str) -> Path:
        write_family(SHAPES[shape], self.place / shape)
        return (self.place / shape).resolve()

    def recipe(self, method: str, base: str, agents: Sequence[str], **more: Any) -> Path:
        path = self.place / "recipe.yaml"
        path.write_text(json.dumps({"base": base, "agents": list(agents), "method": method, **more}))
        return path

    def synthetic(self, shape: str, agents: int, method: str, layers: int = 0) -> Path:
        cut = f"layers={layers}&" if layers else ""
        names = [f"synthetic:{shape}?{cut}agent={k + 1}&density=0.1" for k in range(agents)]
        return self.recipe(method, f"synthetic:{shape}?{cut}".rstrip("?&"), names)

    def once(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, reserve_bytes: int = 0
    ) -> tuple[dict[str, Any], str]:
        """One run and what it printed; `out` and the folder for temporary files are emptied before."""
        for folder in (self.out, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
        self.temporary.mkdir()
        load = os.getloadavg()[0]
        own = {"TMPDIR": str(self.temporary), **(environment or {})}
        run = measure(command, own, (self.out, self.temporary), reserve_bytes)
        return {**run.to_json(), "load": round(load, 1)}, run.output

    def best(
        self,
        command: Sequence[str],
        repeat: int = 0,
        environment: Mapping[str, str] | None = None,
        reserve_bytes: int = 0,
    ) -> dict[str, Any]:
        """The run with the least CPU time."""
        try:
            rows = [self.once(command, environment, reserve_bytes)[0] for _ in range(repeat or self.repeat)]
        finally:
            shutil.rmtree(self.out, ignore_errors=True)
        return min(rows, key=lambda row: row["cpu_s"])

    def stream(self, recipe: Path, *flags: str) -> dict[str, Any]:
        """`benchmarks.stream_meter`: steady state, measured from inside."""
        return min((self.stream_once(recipe, *flags) for _ in range(self.repeat)), key=lambda row: row["cpu_s"])

    def stream_once(self, recipe: Path, *flags: str) -> dict[str, Any]:
        load = os.getloadavg()[0]
        run = measure([sys.executable, "-m", "benchmarks.stream_meter", str(recipe), "--out", str(self.place), *flags])
        return {**json.loads(run.output), "load": round(load, 1)}

    def by_turns(self, runs: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Each of `runs` in turn, again and again; of each the one with the least wall time."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
        for _ in range(max(TURNS, self.repeat)):
            for name, run in runs.items():
                found[name].append(run())
        return {name: min(rows, key=lambda row: row["wall_s"]) for name, rows in found.items()}


def merging(recipe: Path, *more: str, module: str = "hubmerge") -> list[str]:
    """The command of a merge on the CPU, which is where everything but benchmarks/gpu.py is measured."""
    return ["-m", module, "merge", str(recipe), "--device", "cpu", *more]


def inspected(recipe: Path) -> dict[str, Any]:
    """What `hubmerge inspect` says of such a merge."""
    plan = prepare(load_recipe(recipe), NOWHERE, Request(allow_local=True)).plan
    prediction = predict(plan, replace(Machine.here(plan), device=False))
    return {"parameters": plan.elements, **as_facts(prediction)}


def machine() -> dict[str, Any]:
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "processor": model,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []
