"""How long a board of many synthetic results takes: parsing the files, building, exporting.

    python -m benchmarks.board [--results 10000] [--hostile 500]

Models are bases, agents and merges of them (and merges of merges), on a suite of six domains; hostile files are
broken in the ways of the tests.
"""

import argparse
import json
import random
import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hubmerge.board.export import board_json, board_parquet, suite_csv
from hubmerge.board.files import ResultFiles, parse_files
from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Flag

T = TypeVar("T")
DOMAINS = ("math", "instruction", "code", "tool", "memory", "search")


def synthetic(count: int, seed: int = 0) -> list[tuple[str, bytes]]:
    """Result files: one base per 100 models, then agents, then merges of what came before."""
    draw = random.Random(seed)
    made: list[tuple[str, str]] = []
    files = []
    for k in range(count):
        model, sha = f"org{k % 97}/model-{k}", f"{k:040x}"
        place = k % 100
        parents = []
        if place >= 30:
            family = made[k - place : k]
            agents = draw.sample(family[1:], 3)
            parents = [{"role": "base", "id": family[0][0], "sha": family[0][1]}]
            parents += [{"role": "agent", "id": a, "sha": s} for a, s in agents]
        made.append((model, sha))
        data = {
            "schema_version": 1,
            "model": model,
            "sha": sha,
            "suite": "all",
            "suite_version": "1",
            "split": "test",
            "status": "done",
            "tasks": [
                {
                    "task": f"{domain}_{n}",
                    "domain": domain,
                    "metric": "exact_match",
                    "value": draw.randint(0, 500) / 500,
                    "stderr": None,
                    "samples": 500,
                    "few_shot": 0,
                    "task_version": 1,
                    "dataset": f"data/{domain}",
                    "dataset_revision": "d" * 40,
                }
                for domain in DOMAINS
                for n in range(2)
            ],
            "facts": {
                "author": model.split("/")[0],
                "license": "apache-2.0",
                "parameters": 494_032_768,
                "parents": parents,
                "method": "ram_plus" if parents else None,
                "density": draw.random() if parents else None,
            },
            "environment": {
                **dict.fromkeys(("hubmerge", "lighteval", "transformers", "torch", "device", "dtype"), "1.0"),
                "backend": "transformers",
                "seed": 0,
                "seconds": 1.0,
            },
            "created": f"2026-01-{1 + k % 28:02d}T00:00:00+00:00",
        }
        files.append((f"results/{model}/{sha}/all-1-test.json", json.dumps(data).encode()))
    return files


def hostile(count: int, files: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """As many broken files: no JSON, NaN, text for numbers, above the maximum, at the wrong path, nested deeply."""
    damage: tuple[Callable[[bytes], bytes], ...] = (
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"samples": 500', b'"samples": NaN'),
        lambda data: data.replace(b'"samples": 500', b'"samples": "500"'),
        lambda data: data.replace(b'"value": 0.', b'"value": 7.'),
        lambda data: data,
        lambda data: b"[" * 50_000,
    )
    return [(f"results/evil/{k}.json", damage[k % len(damage)](files[k % len(files)][1])) for k in range(count)]


def timed(name: str, work: Callable[[], T]) -> T:
    start = time.perf_counter()
    value = work()
    print(f"{name:<28}{time.perf_counter() - start:8.2f} s")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--hostile", type=int, default=500)
    arguments = parser.parse_args()
    good = synthetic(arguments.results)
    files = [*good, *hostile(arguments.hostile, good)]
    random.Random(1).shuffle(files)
    read: ResultFiles = timed(f"parse {len(files):,} files", lambda: parse_files(files))
    flags = [Flag("contaminated", read.results[k].model) for k in range(50)]
    board: Any = timed("build the board", lambda: build_board(read.results, flags, refused=read.refused))
    timed("JSON", lambda: board_json(board))
    timed("CSV", lambda: suite_csv(board.suites[0]))
    timed("parquet", lambda: board_parquet(board))
    [suite] = board.suites
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(suite.rows):,} rows, {len(board.refused):,} refused, peak memory {peak:,.0f} MB")
    assert len(suite.rows) == arguments.results
    assert len(board.refused) == arguments.hostile
    assert build_board(reversed(read.results), flags, refused=read.refused) == board


if __name__ == "__main__":
    main()
