"""What follows in a local shard is asked for while what was read is computed on, and only where it is not there yet."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import llama_shapes, random_base, write_model
from hub_helpers import opened

from hubmerge.sources import files
from hubmerge.sources.base import Model
from hubmerge.sources.files import OpenFiles

COUNT = 300_000  # bytes of a chunk: two requests and a part


class Kernel:
    """Stands for `os`: the page cache is as it is told, and what is asked for is noted."""

    def __init__(self, cached: Callable[[int], int]) -> None:
        self._cached = cached
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
        if error := self._cached(offset):
            raise OSError(error, os.strerror(error))
        return 1

    def posix_fadvise(self, file: int, offset: int, count: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.asked.append((offset, count))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    write_model(tmp_path / "m", random_base(0, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40)))
    return opened(tmp_path / "m")


def read(model: Model, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, offset: int, count: int) -> bytes:
    monkeypatch.setattr(files, "os", kernel)
    shards, out = OpenFiles(), bytearray(count)
    shards.read_into(Path(model.ref.id) / model.shards[0], model, model.shards[0], offset, memoryview(out))
    shards.close()
    return bytes(out)


def bytes_of(model: Model) -> bytes:
    return (Path(model.ref.id) / model.shards[0]).read_bytes()


def test_the_next_chunk_is_asked_for_in_parts_that_no_system_cuts_off(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(lambda offset: errno.EAGAIN)
    assert read(model, kernel, monkeypatch, 1000, COUNT) == bytes_of(model)[1000 : 1000 + COUNT]
    begin = 1000 + COUNT
    assert kernel.probed == [begin + COUNT - 1]
    assert kernel.asked == [(begin, 131_072), (begin + 131_072, 131_072), (begin + 262_144, COUNT - 262_144)]


@pytest.mark.parametrize("error", [0, errno.EOPNOTSUPP, errno.EINVAL])
def test_what_is_there_or_cannot_be_known_is_not_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    kernel = Kernel(lambda offset: error)
    assert read(model, kernel, monkeypatch, 0, COUNT) == bytes_of(model)[:COUNT]
    assert len(kernel.probed) == 1
    assert kernel.asked == []


def test_little_tensors_cost_no_question(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(lambda offset: errno.EAGAIN)
    read(model, kernel, monkeypatch, 0, 192)
    assert (kernel.probed, kernel.asked) == ([], [])


def test_the_end_of_a_file_and_what_is_really_cached_need_no_care(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the system's own answers: it was just written."""
    content = bytes_of(model)
    for offset in (0, len(content) - COUNT):
        kernel = Kernel(lambda offset: 0)
        monkeypatch.setattr(kernel, "preadv", os.preadv, raising=False)
        assert read(model, kernel, monkeypatch, offset, COUNT) == content[offset : offset + COUNT]
        assert kernel.asked == []


def test_a_system_that_cannot_be_asked_reads_all_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(lambda offset: errno.EAGAIN)
    monkeypatch.setattr(files, "_NO_WAIT", 0)
    assert read(model, kernel, monkeypatch, 0, COUNT) == bytes_of(model)[:COUNT]
    assert kernel.read == [(0, COUNT)], "the question would be a reading"
    assert kernel.asked == []
