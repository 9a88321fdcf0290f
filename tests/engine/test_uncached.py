"""A file written past the page cache holds the bytes that were appended, whatever their sizes and wherever they lie."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from hubmerge.engine import uncached
from hubmerge.engine.uncached import GATHERED_BYTES, UncachedFile, gathered_bytes
from hubmerge.sources import buffers

SMALL = (0, 1, 7, 4095, 4096, 4097, 100_000)
LARGE = (buffers.SMALLEST, buffers.SMALLEST + 5, 2_000_003, GATHERED_BYTES, GATHERED_BYTES + 1, 9_000_001)


def parts_of(sizes: Sequence[int], *, placed: bool) -> list[NDArray[np.uint8]]:
    """Random bytes, which lie as their file will lie or not."""
    generator, position, parts = np.random.default_rng(1), 0, []
    for size in sizes:
        with buffers.placed(position if placed else position + 13):
            part = buffers.empty(size, np.uint8)
        part[:] = generator.integers(0, 256, size, dtype=np.uint8)
        parts.append(part)
        position += size
    return parts


def written(path: Path, parts: Sequence[NDArray[np.uint8]], files: int = 1) -> bytes:
    file = UncachedFile(path, sum(map(len, parts)), files)
    try:
        for part in parts:
            file.append(part.data)
        file.flush()
    finally:
        file.close()
    return path.read_bytes()


def with_write(write: Callable[[int, memoryview], int]) -> object:
    """`os` with another `write`."""
    return SimpleNamespace(**{**vars(os), "write": write})


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("sizes", [(), SMALL, (*SMALL, *LARGE, *SMALL), (8, *(1_048_576,) * 9, 5, 2_097_152, 4096)])
def test_every_byte_is_there_in_order(tmp_path, sizes, placed):
    parts = parts_of(sizes, placed=placed)
    assert written(tmp_path / "file", parts) == b"".join(map(bytes, parts))


def test_a_large_array_in_its_place_is_written_from_where_it_lies(tmp_path, monkeypatch):
    sizes: list[int] = []

    def noting(file: int, view: memoryview) -> int:
        sizes.append(len(view))
        return os.write(file, view)

    parts = parts_of((5000, 3_000_000, 77), placed=True)
    monkeypatch.setattr(uncached, "os", with_write(noting))
    content = written(tmp_path / "file", parts)
    if sizes[0] == len(content) // 4096 * 4096:
        pytest.skip("this file system takes no direct writes")
    # the 5,000 bytes reach into a second block, which the array completes; its end and the 77 bytes fill no block
    assert sizes == [8192, 731 * 4096, 2709]
    assert content == b"".join(map(bytes, parts))


@pytest.mark.parametrize("accepted", [0, 3])
def test_where_direct_writing_is_refused_the_page_cache_takes_the_rest(tmp_path, monkeypatch, accepted):
    """A file system that takes O_DIRECT, and after some writes no longer what comes with it."""
    calls = refused = 0

    def strict(file: int, view: memoryview) -> int:
        nonlocal calls, refused
        calls += 1
        if calls > accepted and not refused:
            refused += 1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.write(file, view)

    parts = parts_of((5000, *LARGE, 77), placed=True)
    monkeypatch.setattr(uncached, "os", with_write(strict))
    assert written(tmp_path / "file", parts) == b"".join(map(bytes, parts))
    assert refused == 1


def test_a_write_that_ends_within_a_block_is_gone_on_with(tmp_path, monkeypatch):
    def short(file: int, view: memoryview) -> int:
        return os.write(file, view[: len(view) // 4096 // 2 * 4096 or 4096] if len(view) > 4096 else view)

    parts = parts_of((5000, *LARGE, 77), placed=True)
    monkeypatch.setattr(uncached, "os", with_write(short))
    assert written(tmp_path / "file", parts) == b"".join(map(bytes, parts))


@pytest.mark.parametrize(("lack", "error"), [("disk", OSError), ("memory", MemoryError)])
def test_a_lack_of_disk_or_memory_is_found_when_the_file_is_made_and_leaves_no_descriptor_open(
    tmp_path, monkeypatch, lack, error
):
    def refuse(*_: int, **__: int) -> None:
        code = errno.ENOSPC if lack == "disk" else errno.ENOMEM
        raise OSError(code, os.strerror(code))

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as context:
        context.setattr(*((os, "posix_fallocate") if lack == "disk" else (buffers.mmap, "mmap")), refuse)
        with pytest.raises(error, match="No space left" if lack == "disk" else "Cannot allocate memory"):
            UncachedFile(tmp_path / "file", 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_files_side_by_side_gather_no_more_than_a_few_and_lose_no_byte(tmp_path, monkeypatch):
    for files in (1, 9, 64, 100_000):
        each = gathered_bytes(files)
        assert each % uncached.BLOCK_BYTES == 0 < each <= GATHERED_BYTES
        assert each * min(files, 64) <= uncached.ALL_GATHERED_BYTES
    monkeypatch.delattr(os, "posix_fallocate")  # a system that cannot reserve is written all the same
    parts = parts_of((*SMALL, *LARGE, *SMALL), placed=False)
    assert written(tmp_path / "file", parts, files) == b"".join(map(bytes, parts))
