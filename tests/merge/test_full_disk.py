"""A disk that fills while a merge goes to the Hub: E_DISK, nothing published, and the next run goes on.

The disk says so where it does say so: when room is taken for a shard, in the middle of its bytes after it took a part
of them, and in the middle of a download.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from builders import recipe_dict, write_parents
from line import Line, Watcher, threads_left

from hubmerge.engine import uncached
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import DiskError
from hubmerge.hub import transfer as hub_bytes
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.plan.disk import output_need, used_bytes
from hubmerge.recipe.recipe import recipe_from_dict


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SmallDisk:
    """Stands for `os`: `room` bytes of output fit on it, and as many shards as `shards`."""

    def __init__(self, room: int = 10**12, shards: int = 10**6) -> None:
        self.room = room
        self.shards = shards

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def posix_fallocate(self, file: int, offset: int, size: int) -> None:
        self.shards -= 1
        if self.shards < 0:
            raise full()
        os.posix_fallocate(file, offset, size)

    def write(self, file: int, view: memoryview) -> int:
        if not self.room:
            raise full()
        part = view[: self.room]
        self.room -= len(part)
        return os.write(file, part)


class SmallDiskForInputs:
    """Stands for `open`: `room` bytes fit into all partial files together."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.lock = threading.Lock()

    def __call__(self, path: Path, mode: str) -> Any:
        disk = self

        class Partial(io.FileIO):
            def write(self, data: Any) -> int:
                with disk.lock:
                    part = memoryview(data)[: disk.room]
                    disk.room -= len(part)
                if not part:
                    raise full()
                return super().write(part)

        assert mode == "a+b"
        return io.BufferedRandom(Partial(path, "a+"))  # type: ignore[arg-type]


def assert_refused(line: Line) -> None:
    with pytest.raises(DiskError) as caught:
        line.to_hub()
    assert caught.value.code == "E_DISK"
    assert caught.value.retryable
    assert "No space left" in str(caught.value)
    assert threads_left() == []
    assert not [*line.out.rglob("*.tmp")]
    assert not line.api.repo_exists(line.target) or line.commits() == 0


def assert_goes_on(line: Line) -> None:
    line.arrives()
    assert not [*line.folder.rglob("*.safetensors")]


@pytest.mark.parametrize(
    "disk",
    [{"shards": 0}, {"shards": 2}, {"room": 0}, {"room": 100_000}, {"room": 600_000}, {"room": 1_000_000}],
    ids=str,
)
def test_a_disk_that_fills_while_shards_are_written(line: Line, disk: dict[str, int]) -> None:
    with patch.object(uncached, "os", SmallDisk(**disk)):
        assert_refused(line)
    assert_goes_on(line)


@pytest.mark.parametrize("room", [0, 1, 100_000, 400_000, 2_000_000])
def test_a_disk_that_fills_in_the_middle_of_a_download(line: Line, room: int) -> None:
    assert not hasattr(hub_bytes, "open")
    with patch.object(hub_bytes, "open", SmallDiskForInputs(room), create=True):
        assert_refused(line)
    there = sum(p.stat().st_size for p in line.inputs.rglob("*") if p.is_file())
    assert there == room, "what fitted stays, to go on with"
    assert_goes_on(line)


def test_a_budget_for_all_merges_counts_what_an_earlier_run_has_finished(tmp_path: Path) -> None:
    folders = write_parents(tmp_path)
    recipes = [recipe_from_dict(recipe_dict(folders[0], folders[1:], method)) for method in ("ram", "linear")]
    hub, outs = Hub("http://127.0.0.1:9"), [tmp_path / "ram", tmp_path / "linear"]
    merges = list(zip(prepare_variants(recipes, hub, Request(allow_local=True)), outs, strict=True))

    def merge(count: int, budget: int) -> None:
        options, cache = StreamOptions(threads=1, backend="eager"), tmp_path / "in"
        merge_to_folders(merges[:count], hub, replace(options, cache=cache, disk_budget=budget), Watcher())

    one = output_need(merges[0][0].plan, uploaded=False)
    merge(1, one)
    there = used_bytes(outs[:1])
    with pytest.raises(DiskError, match="too small for the output"):
        merge(2, there + one - 1)
    assert not (outs[1] / "model.safetensors").exists()
    merge(2, there + one)
    assert all((out / "model.safetensors").is_file() for out in outs)
