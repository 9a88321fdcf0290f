"""Reuses the memory of arrays that are made for each chunk and dropped a little later, perhaps by another thread.

A new array of megabytes takes new pages, and each page costs a fault and a zeroing when it is first written, about as
much as writing it. So the memory of an array that `empty` made is kept when its last view is gone, and the next array
gets it. No caller has to give it back, and none can give it back too early. At most KEPT pieces wait; `drop` frees
them.

An array that will be written to a file can begin as far into its first page as its bytes will in the file (`placed`).
Then whole pages of it are blocks of the file, which a disk takes without a copy (uncached.py).
"""

import mmap
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

KEPT = 24  # pieces that nobody uses: what a few threads have in flight
SMALLEST = 256 * 1024  # bytes; below it the allocator has memory at hand

PAGE = 4096  # bytes; where pages are larger, they begin at multiples of it, too

_here = threading.local()  # .position
_free: deque[mmap.mmap] = deque(maxlen=KEPT)  # append and pop are atomic


class _Loan:
    """The owner of an array's memory while any view of the array lives."""

    _returns_to = _free  # which is there to the interpreter's end, as a module's names are not

    def __init__(self, memory: mmap.mmap, address: int) -> None:
        self._memory = memory
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (len(memory),), "typestr": "|u1"}

    def __del__(self) -> None:
        self._returns_to.append(self._memory)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """numpy.empty, in memory that was used before where there is some."""
    wanted = np.dtype(dtype)
    size = prod(shape if isinstance(shape, tuple) else (shape,)) * wanted.itemsize
    if size < SMALLEST:
        return np.empty(shape, wanted)
    begin = getattr(_here, "position", 0) % PAGE
    if begin % wanted.itemsize:  # an array must lie at a multiple of its elements' size
        begin = 0
    memory = _used(begin + size)
    if memory is None:
        memory = pages(PAGE + size)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    whole = np.asarray(_Loan(memory, address))
    return whole[begin : begin + size].view(wanted).reshape(shape)


@contextmanager
def placed(position: int) -> Iterator[None]:
    """Arrays that this thread makes meanwhile begin as far into a page as a file's byte `position` does."""
    _here.position = position
    try:
        yield
    finally:
        _here.position = 0


def pages(size: int) -> mmap.mmap:
    """Fresh memory, all zero, that begins at a page; MemoryError where there is none, as it is for numpy's arrays.

    Its pages are small, so that it takes what is written and no more on every machine. Huge pages are no faster here,
    take up to 2 MB more each time, and are there or not as the kernel finds room for them.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes: {error.strerror}") from None
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel that has none
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def _used(size: int) -> mmap.mmap | None:
    """Free memory of `size` bytes or more. Smaller pieces are freed: most of the time chunks have one size."""
    while True:
        try:
            memory = _free.pop()
        except IndexError:
            return None
        if len(memory) >= size:
            return memory


def drop() -> None:
    """Give free memory back to the system."""
    _free.clear()
