"""One stream, measured from inside: imports and the card left out.

    python -m benchmarks.stream_meter RECIPE [--sink disk|null] [--no-hash] [--threads N] [--chunk-elements N]
    python -m benchmarks.stream_meter RECIPE --floor 1|2 [--no-hash]

Before the clock starts, the method is merged once on a small model, so that what is measured is the steady state, and
every local input is read once, so that stream and floor begin with the same page cache, and the values of synthetic
ones are made. `--floor`: instead of a merge, every input is read once (or twice) by all cores, in chunks as large as
the merge's, and during the last time as many bytes as the output has are hashed and written as the sink does it, past
the page cache where the file system can, but by all cores. Prints one JSON object.
"""

import argparse
import hashlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import hubmerge.engine.sink
from hubmerge.engine.chunks import Chunk, chunks_of, read_chunk
from hubmerge.engine.journal import Journal
from hubmerge.engine.memory import shares_of
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import merge
from hubmerge.engine.threads import Follower
from hubmerge.engine.uncached import UncachedFile
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import load_recipe
from hubmerge.recipe.recipe import Recipe
from hubmerge.sources import buffers
from hubmerge.sources.reader import LocalOrFetched, TensorReader

HUB = Hub("http://127.0.0.1:9")  # everything is local
_WRITE_BYTES = 2 * 1024 * 1024  # a chunk of bfloat16, as the sink gets it
_READ_BYTES = 8 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--sink", choices=("disk", "null"), default="disk")
    parser.add_argument("--no-hash", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--chunk-elements", type=int, default=0)
    parser.add_argument("--floor", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the output lies for a while (default: a temporary folder)")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    plan = prepare(recipe, HUB, Request(allow_local=True)).plan
    stream = StreamOptions(options.chunk_elements, options.threads)
    hashed = not options.no_hash
    with tempfile.TemporaryDirectory(dir=options.out) as place:
        if options.floor:
            block = block_to_write()
            result = timed(plan, lambda: floor(plan, options.floor, hashed, Path(place), stream, block))
        else:
            small = [f"synthetic:qwen2.5-0.5b?layers=1&agent={k + 1}&density=0.1" for k in range(len(recipe.agents))]
            data = {**recipe.to_dict(), "base": "synthetic:qwen2.5-0.5b?layers=1", "agents": small}
            warm = prepare(Recipe.model_validate(data), HUB, Request(allow_local=True)).plan
            merged(warm, Path(place) / "warm", replace(stream, sink="null"))
            stream = replace(stream, sink=options.sink)
            with hashing(on=hashed):
                result = timed(plan, lambda: merged(plan, Path(place) / "out", stream))
    print(json.dumps(result))


class NoHash:
    """In the place of hashlib.sha256."""

    def __init__(self, data: bytes = b"") -> None: ...

    def update(self, data: memoryview) -> None:
        pass

    def hexdigest(self) -> str:
        return "0" * 64


@contextmanager
def hashing(*, on: bool) -> Iterator[None]:
    """Meanwhile shards are hashed, or not; no merge but one that is measured goes without."""
    if on:
        yield
        return
    without = SimpleNamespace(sha256=NoHash)
    with patch.object(hubmerge.engine.sink, "hashlib", without):
        yield


def timed(plan: Plan, work: Callable[[], None]) -> dict[str, Any]:
    read_once(plan)
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
        "wall_s": round(wall, 4),
        "cpu_s": round(cpu, 4),
        "cpu_ns_per_element": round(cpu / plan.elements * 1e9, 3),
        "peak_rss_bytes": after.ru_maxrss * 1024,
    }


def merged(plan: Plan, folder: Path, options: StreamOptions) -> None:
    journal = Journal.open(folder, plan)
    with TensorReader(plan.models, LocalOrFetched(HUB, folder / "cache")) as reader:
        merge(plan, reader, journal, folder, options, Unobserved())


def read_once(plan: Plan) -> None:
    """Local inputs into the page cache; of synthetic ones, the values that they consist of."""
    buffer = bytearray(_READ_BYTES)
    for model in plan.models:
        for shard in model.shards if model.ref.kind == "local" else ():
            with open(model.ref.path / shard, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    first = next(t for t in plan.tensors() if t.elements)
    with TensorReader(plan.models, LocalOrFetched(HUB, Path("unused"))) as reader:
        read_chunk(reader, Chunk(first, 0, 1))


def block_to_write() -> NDArray[np.uint8]:
    """As long as a chunk, random, since some disks save themselves zeros, and where a disk can take it from."""
    block = buffers.empty(_WRITE_BYTES, np.uint8)
    block[:] = np.random.default_rng(0).integers(0, 256, _WRITE_BYTES, dtype=np.uint8)
    return block


def floor(
    plan: Plan, passes: int, hashed: bool, folder: Path, options: StreamOptions, block: NDArray[np.uint8]
) -> None:
    """Reads by every thread; meanwhile the output's bytes, cut evenly among as many files, are hashed and written."""
    shares = shares_of([plan], options)
    chunks = [c for t in plan.tensors() for c in chunks_of(t, shares.chunk)]
    workers = shares.threads
    ends = [plan.output_bytes * k // workers for k in range(workers + 1)]
    with (
        TensorReader(plan.models, LocalOrFetched(HUB, folder / "cache")) as reader,
        ThreadPoolExecutor(workers) as readers,
        ThreadPoolExecutor(workers) as writers,
    ):

        def read(chunk: Chunk) -> None:
            read_chunk(reader, chunk)

        for _ in range(passes - 1):
            list(readers.map(read, chunks))
        reads = readers.map(read, chunks)
        sizes = enumerate(end - start for start, end in pairwise(ends))
        writes = [writers.submit(_write, folder / str(k), size, hashed, block) for k, size in sizes]
        for write in writes:
            write.result()
        list(reads)


def _write(path: Path, size: int, hashed: bool, block: NDArray[np.uint8]) -> None:
    """Like sink.ShardWriter: hashed in a thread beside, made durable."""
    digest = hashlib.sha256() if hashed else NoHash()
    file = UncachedFile(path, size)
    try:
        with Follower(digest.update, "floor-hash") as hashing:
            for start in range(0, size, len(block)):
                part = block[: size - start].data
                hashing.put(part)
                file.append(part)
            hashing.finish()
        file.flush()
        os.fsync(file.fileno())
    finally:
        file.close()


if __name__ == "__main__":
    main()
