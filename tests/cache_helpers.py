"""Models whose shards are known bytes, a Hub that is a folder, and passes over them as the stream makes them."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubmerge.hub.names import FileInfo
from hubmerge.plan.disk import used_bytes
from hubmerge.recipe.model_name import ModelRef
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.header import TensorEntry
from hubmerge.sources.reader import Read
from hubmerge.sources.shard_cache import ShardCache

KB = 4096  # of the disk's own unit, so that what files take is what they hold


@dataclass
class FolderHub:
    """The part of `Hub` that a cache uses; counts what is asked for, but for what lies there and is sound."""

    contents: dict[tuple[str, str], bytes] = field(default_factory=dict)  # repo, file
    downloads: Counter[tuple[str, str]] = field(default_factory=Counter)
    ranges: Counter[tuple[str, str]] = field(default_factory=Counter)
    before: Callable[[str, str], None] = lambda repo, path: None  # called before anything is answered

    def breakable(self) -> FolderHub:
        return self

    def hang_up(self) -> None: ...

    def download(self, repo: str, sha: str, file: FileInfo, folder: Path, progress: Callable[[int], None]) -> Path:
        self.before(repo, file.path)
        target = folder / sha / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        content = self.contents[repo, file.path]
        if target.exists():
            target.replace(partial)
        if partial.exists() and partial.read_bytes() == content:
            progress(len(content))
            return partial.replace(target)
        self.downloads[repo, file.path] += 1
        progress(0)
        with open(partial, "wb") as out:
            for begin in range(0, len(content), KB):
                out.write(content[begin : begin + KB])
                out.flush()
                progress(len(content[begin : begin + KB]))
        partial.replace(target)
        return target

    def read_range_into(self, repo: str, sha: str, path: str, start: int, out: memoryview) -> None:
        self.before(repo, path)
        self.ranges[repo, path] += 1
        out[:] = self.contents[repo, path][start : start + len(out)]


def made_model(hub: FolderHub, name: str, shards: Sequence[Sequence[tuple[str, int]]]) -> Model:
    """A model on `hub`: per shard its tensors (name, bytes); contents are random but known."""
    files, tensors = {}, {}
    for number, shard in enumerate(shards):
        path = f"{number}.safetensors"
        size = sum(count for _, count in shard)
        content = random.Random(f"{name}/{path}").randbytes(size)
        hub.contents[name, path] = content
        files[path] = FileInfo(path, size, hashlib.sha256(content).hexdigest())
        begin = 0
        for tensor, count in shard:
            tensors[tensor] = StoredTensor(path, TensorEntry(tensor, "U8", (count,), begin, begin + count))
            begin += count
    return Model(ModelRef("hub", name, "c" * 40), MappingProxyType({}), files, tensors)


def cache_of(hub: FolderHub, folder: Path, models: Sequence[Model], budget: int, **more: Any) -> ShardCache:
    """A cache whose ranged shards are read in blocks of two KB."""
    return ShardCache(hub, folder, models, budget, block_bytes=2 * KB, **more)  # type: ignore[arg-type]


def files_below(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def reads_of(models: Sequence[Model], names: Sequence[str]) -> list[Read]:
    return [
        Read(name, models[0].tensors[name].entry.elements, tuple((m, m.tensors[name].shard) for m in models))
        for name in names
    ]


def read_all(
    cache: Any,
    hub: FolderHub,
    models: Sequence[Model],
    names: Sequence[str],
    *,
    again: bool,
    threads: int = 1,
    chunk: int = KB,
    seen: Callable[[], None] = lambda: None,
) -> None:
    """A pass: every chunk of every tensor from every model, compared with the truth; `seen` after each chunk."""
    cache.expect(reads_of(models, names), again=again)

    def work(item: tuple[str, int, int]) -> None:
        name, start, count = item
        for model in models:
            stored = model.tensors[name]
            out = bytearray(count)
            cache.read_into(model, stored.shard, stored.entry.begin + start, memoryview(out))
            begin = stored.entry.begin + start
            assert bytes(out) == hub.contents[model.ref.id, stored.shard][begin : begin + count]
        cache.consumed(name, count)
        with cache._changed:  # nothing is deleted meanwhile: what goes and what comes after it never lie there together
            seen()

    chunks: list[tuple[str, int, int]] = []
    for name in names:
        size = models[0].tensors[name].entry.elements
        chunks += [(name, start, min(chunk, size - start)) for start in range(0, size, chunk)]
    with ThreadPoolExecutor(threads) as pool:
        try:
            for _ in pool.map(work, chunks):
                pass
        except BaseException:
            cache.abandon()
            raise


def one_pass(
    hub: FolderHub,
    folder: Path,
    models: Sequence[Model],
    budget: int,
    names: Sequence[str],
    *,
    seen: Callable[[], None] = lambda: None,
    threads: int = 1,
    **more: Any,
) -> ShardCache:
    """A cache that was read once and closed."""
    cache = cache_of(hub, folder, models, budget, **more)
    read_all(cache, hub, models, names, again=False, threads=threads, seen=seen)
    cache.close()
    return cache


class Peak:
    """The most that a folder was seen to hold."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes = 0

    def __call__(self) -> None:
        self.bytes = max(self.bytes, used_bytes([self._folder]))
