"""One stream, measured from inside: imports, loading of compiled code and the card left out.

    python -m benchmarks.stream_meter RECIPE [--sink file|null] [--no-hash] [--threads N] [--chunk-elements N]
    python -m benchmarks.stream_meter RECIPE --floor 1|2 [--no-hash]

The method is merged once on a small model before the clock starts, so that what is measured is the steady state.
`--floor`: instead of a merge, every input is read once (or twice) and as many bytes as the output has are written
once, by all cores, in chunks as large as the merge's. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hubmerge.sink
import hubmerge.stream
from benchmarks.metering import NoHash, NullWriter, UnhashedNullWriter
from hubmerge.chunks import chunks_of, read_chunk
from hubmerge.hub import Hub
from hubmerge.line import prepare
from hubmerge.plan import Plan
from hubmerge.recipe import Recipe, load_recipe
from hubmerge.sink import Journal
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.stream import Silent, StreamOptions, merge

HUB = Hub("http://127.0.0.1:9")  # everything is local
_WRITE_BYTES = 2 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--sink", choices=("file", "null"), default="file")
    parser.add_argument("--no-hash", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--chunk-elements", type=int, default=0)
    parser.add_argument("--floor", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the output lies for a while (default: a temporary folder)")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    stream = StreamOptions(options.chunk_elements, options.threads)
    if options.sink == "null":
        hubmerge.stream.ShardWriter = UnhashedNullWriter if options.no_hash else NullWriter  # type: ignore
    elif options.no_hash:
        hubmerge.sink.hashlib = type("hashlib", (), {"sha256": NoHash})  # type: ignore
    with tempfile.TemporaryDirectory(dir=options.out) as place:
        if options.floor:
            plan = prepare(recipe, HUB, allow_local=True).plan
            result = timed(plan, lambda: floor(plan, options.floor, not options.no_hash, Path(place), stream))
        else:
            small = [f"synthetic:qwen2.5-0.5b?layers=1&agent={k + 1}&density=0.1" for k in range(len(recipe.agents))]
            data = {**recipe.to_dict(), "base": "synthetic:qwen2.5-0.5b?layers=1", "agents": small}
            warm = Recipe.model_validate(data)
            saved, hubmerge.stream.ShardWriter = hubmerge.stream.ShardWriter, UnhashedNullWriter  # type: ignore
            merged(prepare(warm, HUB, allow_local=True).plan, Path(place) / "warm", stream)
            hubmerge.stream.ShardWriter = saved  # type: ignore
            plan = prepare(recipe, HUB, allow_local=True).plan
            result = timed(plan, lambda: merged(plan, Path(place) / "out", stream))
    print(json.dumps(result))


def timed(plan: Plan, work: Callable[[], None]) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    work()
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "elements": plan.elements,
        "tensors": sum(1 for _ in plan.tensors()),
        "largest": max(t.elements for t in plan.tensors()),
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "cpu_ns_per_element": round(cpu / plan.elements * 1e9, 3),
        "peak_rss_bytes": after.ru_maxrss * 1024,
    }


def merged(plan: Plan, folder: Path, options: StreamOptions) -> None:
    journal = Journal.open(folder, plan, resume=False)
    with TensorReader(plan.models, LocalOrFetched(HUB, folder / "cache")) as reader:
        merge(plan, reader, journal, folder, options, Silent())
    shutil.rmtree(folder)


def floor(plan: Plan, passes: int, hashed: bool, folder: Path, options: StreamOptions) -> None:
    """Reads by every thread; the output's shards are cut evenly among as many threads, each with a digest."""
    chunks = [c for t in plan.tensors() for c in chunks_of(t, options.chunk(plan))]
    with (
        TensorReader(plan.models, LocalOrFetched(HUB, folder / "cache")) as reader,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        for _ in range(passes - 1):
            list(pool.map(lambda chunk: read_chunk(reader, chunk) and None, chunks))
        reads = pool.map(lambda chunk: read_chunk(reader, chunk) and None, chunks)
        share = plan.output_bytes // options.workers
        list(pool.map(lambda k: _write(folder / str(k), share, hashed), range(options.workers)))
        list(reads)


def _write(path: Path, size: int, hashed: bool) -> None:
    block, digest = bytes(_WRITE_BYTES), hashlib.sha256()
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        for _ in range(size // _WRITE_BYTES):
            if hashed:
                digest.update(block)
            file.write(block)
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
