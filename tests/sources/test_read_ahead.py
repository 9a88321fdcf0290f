"""What follows in a local shard is asked for while what was read is computed on, and only where it is not there yet."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from builders import llama_shapes, random_base, write_model
from hub_helpers import opened

from hubmerge.sources import folder as files
from hubmerge.sources.folder import ShardFiles

COUNT = 300_000  # bytes of a chunk: two requests and a part


class Kernel:
    """Stands for `os`: says of the page cache what it is told, and notes what is asked for."""

    def __init__(self, error: int) -> None:
        self._error = error
        self.read: list[tuple[int, int]] = []
        self.probed: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def preadv(self, file: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        if not flags:
            self.read.append((offset, len(buffers[0])))
            return os.preadv(file, buffers, offset)
        assert flags == os.RWF_NOWAIT
        self.probed.append(offset)
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        return 1

    def posix_fadvise(self, file: int, offset: int, count: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.asked.append((offset, count))


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, offset: int, count: int) -> None:
    """Read a part of a model's shard, rightly."""
    sizes = llama_shapes(layers=6, hidden=96, intermediate=256)
    model = opened(write_model(folder, random_base(0, sizes=sizes)))
    path = folder / model.shards[0]
    monkeypatch.setattr(files, "os", kernel)
    out = bytearray(count)
    ShardFiles().read_into(path, model, model.shards[0], offset, memoryview(out))
    assert bytes(out) == path.read_bytes()[offset : offset + count]


def test_the_next_chunk_is_asked_for_in_parts_that_no_system_cuts_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(errno.EAGAIN)
    read(tmp_path, monkeypatch, kernel, 1000, COUNT)
    begin = 1000 + COUNT
    assert kernel.probed == [begin + COUNT - 1]
    assert kernel.asked == [(begin, 131_072), (begin + 131_072, 131_072), (begin + 262_144, COUNT - 262_144)]


@pytest.mark.parametrize(
    ("error", "count", "asks"),
    [(0, COUNT, 1), (errno.EOPNOTSUPP, COUNT, 1), (errno.EINVAL, COUNT, 1), (errno.EAGAIN, 192, 0)],
    ids=["it is there", "no such question", "not of this file", "a small tensor"],
)
def test_what_is_there_small_or_cannot_be_known_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, count: int, asks: int
) -> None:
    kernel = Kernel(error)
    read(tmp_path, monkeypatch, kernel, 0, count)
    assert (len(kernel.probed), kernel.asked) == (asks, [])


def test_a_system_that_cannot_be_asked_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(errno.EAGAIN)
    monkeypatch.setattr(files, "_NO_WAIT", 0)
    read(tmp_path, monkeypatch, kernel, 0, COUNT)
    assert (kernel.probed, kernel.asked) == ([], [])
    assert kernel.read == [(0, COUNT)], "the question would be a reading"
