"""Whose place on the disk is taken, and whose never; what earlier runs left; that the cache counts what lies there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_helpers import KB, FolderHub, Peak, cache_of, files_below, made_model, read_all, reads_of

from hubmerge.plan.disk import used_bytes
from hubmerge.sources.base import Model
from hubmerge.sources.folder import ShardFiles
from hubmerge.sources.shard_cache import ShardCache

SHARD = 8 * KB


@pytest.fixture
def hub() -> FolderHub:
    return FolderHub()


@pytest.fixture
def model(hub: FolderHub) -> Model:
    """Three shards with a tensor each."""
    return made_model(hub, "org/m", [[(name, SHARD)] for name in "abc"])


def file_of(folder: Path, model: Model, name: str) -> Path:
    """Where a shard lies."""
    cache: Any = ShardCache(FolderHub(), folder, [model], 0)  # type: ignore[arg-type]
    cache.close()
    return next(s.path for s in cache._shards.values() if s.name == name)


def content(cache: ShardCache, model: Model, name: str) -> bytes:
    out = bytearray(SHARD)
    cache.read_into(model, name, 0, memoryview(out))
    return bytes(out)


def running(cache: Any) -> bool:
    with cache._changed:
        return bool(cache._running)


class Reader(threading.Thread):
    """Reads a whole shard in a thread of its own."""

    def __init__(self, cache: ShardCache, model: Model, name: str) -> None:
        super().__init__(name=f"reads {name}", daemon=True)
        self._arguments = cache, model, name
        self.found = b""
        self.start()

    def run(self) -> None:
        self.found = content(*self._arguments)


def reader_that_waits(cache: Any, model: Model, name: str) -> Reader:
    """Waits for room, or has ended."""
    reader = Reader(cache, model, name)
    while reader.is_alive() and not cache._waiting:
        pass
    return reader


@pytest.fixture
def while_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What is done while a shard's file is being read, by the shard's name; once."""
    to_do: dict[str, Any] = {}
    read_into = ShardFiles.read_into

    def watched(files: ShardFiles, path: Path, model: Model, shard: str, offset: int, out: memoryview) -> None:
        to_do.pop(shard, lambda: None)()
        read_into(files, path, model, shard, offset, out)

    monkeypatch.setattr(ShardFiles, "read_into", watched)
    yield to_do
    assert not to_do


def test_what_is_being_read_is_not_deleted_for_what_somebody_waits_for(
    hub: FolderHub, model: Model, tmp_path: Path, while_reading: dict[str, Any]
) -> None:
    cache: Any = cache_of(hub, tmp_path, [model], SHARD)
    cache.expect(reads_of([model], ["a"]), again=False)
    others: list[Reader] = []

    def another_waits() -> None:
        others.append(reader_that_waits(cache, model, "1.safetensors"))
        with cache._changed:  # until what the other begins with is done
            assert files_below(tmp_path) == ["0.safetensors"]

    while_reading["0.safetensors"] = another_waits
    assert content(cache, model, "0.safetensors") == hub.contents["org/m", "0.safetensors"]
    others[0].join()
    assert others[0].found == hub.contents["org/m", "1.safetensors"]
    cache.close()
    assert cache.fetched.high_water_bytes == SHARD


def test_what_is_being_fetched_is_not_deleted_for_what_somebody_waits_for(
    hub: FolderHub, model: Model, tmp_path: Path, while_reading: dict[str, Any]
) -> None:
    ahead = threading.Event()
    hub.before = lambda repo, path: (path == "1.safetensors" and ahead.wait(), None)[1]
    cache: Any = cache_of(hub, tmp_path, [model], 2 * SHARD)
    cache.expect(reads_of([model], ["a", "b"]), again=False)
    others: list[Reader] = []

    def another_waits() -> None:
        others.append(reader_that_waits(cache, model, "2.safetensors"))
        with cache._changed:  # until what the other begins with is done
            states = [s.state for s in cache._shards.values()]
        ahead.set()
        assert states == ["present", "fetching", "absent"]

    while_reading["0.safetensors"] = another_waits
    for name in ("0.safetensors", "1.safetensors"):
        assert content(cache, model, name) == hub.contents["org/m", name]
    others[0].join()
    assert others[0].found == hub.contents["org/m", "2.safetensors"]
    cache.close()
    assert cache.fetched.high_water_bytes == 2 * SHARD


def test_whoever_holds_shards_gets_the_room_that_a_reader_leaves(
    hub: FolderHub, model: Model, tmp_path: Path, while_reading: dict[str, Any]
) -> None:
    held, waiting = threading.Event(), threading.Event()

    def starting(done: int, total: int) -> None:
        if held.is_set():
            waiting.set()

    cache: Any = cache_of(hub, tmp_path, [model], SHARD, starting=starting)
    cache.expect(reads_of([model], ["a"]), again=True)
    while_reading["0.safetensors"] = waiting.wait
    reader = Reader(cache, model, "0.safetensors")
    while not cache._shards["org/m", "c" * 40, "0.safetensors"].leases:
        pass
    held.set()
    with cache.held([(model, "1.safetensors")]) as paths:
        assert [path.read_bytes() for path in paths.values()] == [hub.contents["org/m", "1.safetensors"]]
    reader.join()
    cache.close()


def test_what_somebody_holds_stays_although_no_pass_needs_it(hub: FolderHub, model: Model, tmp_path: Path) -> None:
    cache = cache_of(hub, tmp_path, [model], 3 * SHARD)
    with cache.held([(model, "1.safetensors")]) as paths:
        cache.expect([], again=False)
        assert [path.read_bytes() for path in paths.values()] == [hub.contents["org/m", "1.safetensors"]]
    assert files_below(tmp_path) == []
    cache.close()


@pytest.mark.parametrize("budget", [SHARD, 0])
def test_a_read_that_nobody_announced_is_served_within_the_budget(
    hub: FolderHub, model: Model, tmp_path: Path, budget: int
) -> None:
    cache: Any = cache_of(hub, tmp_path, [model], budget)
    cache.expect([], again=False)
    for name in ("1.safetensors", "0.safetensors", "1.safetensors"):
        assert content(cache, model, name) == hub.contents["org/m", name]
    assert cache.fetched.high_water_bytes == budget
    assert cache.fetched.ranged_shards == (0 if budget else 2)
    assert (cache._waiting, cache._running) == (0, 0)
    cache.close()
    assert not [*tmp_path.rglob("*.safetensors")]


def test_a_shard_of_another_size_than_the_hubs_is_fetched_again(hub: FolderHub, model: Model, tmp_path: Path) -> None:
    path = file_of(tmp_path, model, "0.safetensors")
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(SHARD - 1))
    cache = cache_of(hub, tmp_path, [model], 3 * SHARD)
    read_all(cache, hub, [model], ["a"], again=False)
    cache.close()
    assert hub.downloads["org/m", "0.safetensors"] == 1
    assert cache.fetched.hits == 0


@pytest.mark.parametrize("name", ["0.safetensors", "1.safetensors"])
def test_a_part_that_an_earlier_run_left_takes_no_second_place_and_goes_for_what_is_needed_sooner(
    hub: FolderHub, model: Model, tmp_path: Path, name: str
) -> None:
    part = file_of(tmp_path, model, name)
    part.parent.mkdir(parents=True)
    part.with_name(part.name + ".partial").write_bytes(bytes(3 * KB))
    peak = Peak(tmp_path)
    cache = cache_of(hub, tmp_path, [model], SHARD, deleting=peak)
    read_all(cache, hub, [model], ["a", "b"], again=False, seen=peak)
    cache.close()
    assert peak.bytes == cache.fetched.high_water_bytes == SHARD
    assert files_below(tmp_path) == []


def test_a_deletion_is_told_before_it_happens(hub: FolderHub, model: Model, tmp_path: Path) -> None:
    seen: list[list[str]] = []
    cache = cache_of(hub, tmp_path, [model], SHARD, deleting=lambda: seen.append(files_below(tmp_path)))
    read_all(cache, hub, [model], ["a", "b", "c"], again=False)
    cache.close()
    assert seen == [["0.safetensors"], ["1.safetensors"], ["2.safetensors"]]


def test_readings_of_one_tensor_may_overlap(hub: FolderHub, model: Model, tmp_path: Path) -> None:
    """Counting and merging a tensor: the second reading begins while the first one's last chunk is on its way."""
    cache = cache_of(hub, tmp_path, [model], 3 * SHARD)
    cache.expect(reads_of([model], ["a", "a"]), again=False)
    for elements in (SHARD - 1, 2):
        cache.consumed("a", elements)
    assert files_below(tmp_path) == ["0.safetensors"]
    cache.consumed("a", SHARD - 1)
    assert files_below(tmp_path) == []
    cache.close()


@pytest.mark.parametrize("budget", [SHARD, 2 * SHARD, 3 * SHARD])
def test_what_the_cache_counts_is_what_lies_on_the_disk_and_nobody_waits_in_the_end(
    hub: FolderHub, model: Model, tmp_path: Path, budget: int
) -> None:
    cache: Any = cache_of(hub, tmp_path, [model], budget)
    for again in (True, False):
        read_all(cache, hub, [model], ["a", "b", "c"], again=again, threads=3)
        with cache.held([(model, "0.safetensors")]):
            pass
        shards = cache._shards.values()
        while running(cache):
            pass
        assert cache._used == used_bytes([tmp_path])
        assert (cache._waiting, [s.waiting for s in shards], [s.leases for s in shards]) == (0, [0] * 3, [0] * 3)
    cache.close()
