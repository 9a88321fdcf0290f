"""Wall time, CPU time and peak memory of merges, beside a copy of the same bytes, in one run.

    python -m benchmarks.merge_speed [--shape 0.5b] [--methods linear ram ram_plus] [--data DIR]

Every measurement is a whole process (interpreter and imports included), repeated, the best kept: the machine is
shared, so read the ratios. `cp` copies the three agents' and the base's files, then the output is synced.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.synthetic import SHAPES, write_family


@dataclass(frozen=True)
class Measured:
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


# a fresh interpreter reports on one child, so that no earlier child's peak is counted
_METER = """
import json, resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
wall = time.monotonic() - start
use = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, wall, use.ru_utime + use.ru_stime, use.ru_maxrss * 1024]))
"""


def measure(command: list[str]) -> Measured:
    done = subprocess.run([sys.executable, "-c", _METER, *command], check=True, capture_output=True, text=True)
    code, wall, cpu, peak = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return Measured(wall, cpu, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--methods", nargs="+", default=["linear", "task_arithmetic", "ram", "ram_plus"])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path("benchmarks/out"))
    options = parser.parse_args()
    family = options.data / options.shape
    write_family(SHAPES[options.shape], family)
    recipe = options.data / "recipe.yaml"
    out = options.data / "merged"
    print(
        f"{options.shape}, three agents, bf16, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"
    )
    print(f"{'':<18} {'wall s':>8} {'CPU s':>8} {'peak RSS':>10}")

    def report(name: str, best: Measured) -> None:
        print(f"{name:<18} {best.wall_s:>8.2f} {best.cpu_s:>8.2f} {best.peak_rss_bytes / 1e6:>7.0f} MB", flush=True)

    def best_of(command: list[str]) -> Measured:
        runs = []
        for _ in range(options.repeat):
            shutil.rmtree(out, ignore_errors=True)
            runs.append(measure(command))
        return min(runs, key=lambda m: m.wall_s)

    report("python, no work", best_of([sys.executable, "-c", "import hubmerge.line"]))
    report("cp of the inputs", best_of(["cp", "-r", str(family), str(out)]))
    report("cp of one model", best_of(["cp", "-r", str(family / "base"), str(out)]))
    for method in options.methods:
        agents = "\n".join(f"  - {(family / f'agent{i}').resolve()}" for i in range(3))
        recipe.write_text(f"base: {(family / 'base').resolve()}\nagents:\n{agents}\nmethod: {method}\n")
        report(method, best_of([sys.executable, "-m", "hubmerge", "merge", str(recipe), "--out", str(out)]))
    shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
