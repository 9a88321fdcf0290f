"""Memory is used again when the last view of an array is gone, and not before."""

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from hubmerge.sources import buffers

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    buffers.drop()
    yield
    buffers.drop()


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("size", [0, 1, buffers.SMALLEST // 8, MB, MB + 3])
def test_an_array_is_like_numpys(size, dtype):
    array = buffers.empty((2, size), dtype)
    assert array.shape == (2, size)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[:] = 1
    assert array.sum() == 2 * size


def test_memory_is_used_again_once_nobody_looks_at_it():
    first = buffers.empty(MB, np.uint16)
    where, view = address(first), first[10:20].data
    del first
    second = buffers.empty(MB, np.uint16)
    assert address(second) != where, "a view of a view keeps it"
    view.release()
    assert address(buffers.empty(MB, np.uint16)) == where


def test_living_arrays_never_share_memory():
    generator = np.random.default_rng(0)
    alive: dict[int, NDArray[Any]] = {}
    for number in range(60):
        alive[number % 7] = buffers.empty(int(generator.integers(MB // 2, MB)), np.uint8)
        alive[number % 7][:] = number % 7
        assert all((array == name).all() for name, array in alive.items())


@pytest.mark.parametrize("position", [0, 8, 4096, 12_346, 4095])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_placed_array_lies_in_its_page_as_in_its_file(position, dtype):
    for _ in range(3):
        with buffers.placed(position):
            array = buffers.empty(MB, dtype)
        size = array.itemsize
        assert address(array) % size == 0, "elements are aligned"
        assert address(array) % buffers.PAGE == (position % buffers.PAGE if position % size == 0 else 0)
        array[:] = 1
    assert address(buffers.empty(MB, dtype)) % buffers.PAGE == 0


def test_no_more_than_a_few_pieces_wait():
    alive = [buffers.empty(MB, np.uint8) for _ in range(3 * buffers.KEPT)]
    alive.clear()
    assert len(buffers._free) == buffers.KEPT
    buffers.drop()
    assert not buffers._free


def test_a_lack_of_memory_is_told_as_numpy_tells_it(monkeypatch):
    """An OSError would be taken for the disk's, or for a mistake of ours."""

    def refuse(*_: int, **__: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as context:
        context.setattr(mmap, "mmap", refuse)
        with pytest.raises(MemoryError, match="Cannot allocate memory"):
            buffers.empty(MB, np.uint8)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what memory a process holds")
def test_memory_takes_what_is_written_and_no_more_however_the_kernel_sees_huge_pages():
    """Else what a merge takes would depend on the machine, and not only on its recipe."""
    held = psutil.Process().memory_info().rss
    memory = np.frombuffer(buffers.pages(64 * MB), np.uint8)
    memory[:: 2 * MB] = 1  # one byte of each huge page
    assert psutil.Process().memory_info().rss - held < 8 * MB


def test_a_kernel_without_huge_pages_is_good_enough(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as context:
        context.setattr(mmap, "mmap", Plain)
        array = buffers.empty(MB, np.uint8)
    array[:] = 1
    assert array.sum() == MB
