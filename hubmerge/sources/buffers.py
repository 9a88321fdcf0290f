"""Memory that goes back to the system as soon as nobody uses it, where the allocator's heap would keep it."""

from __future__ import annotations

import mmap
from contextlib import suppress

PAGE = 4096  # bytes; where pages are larger, they begin at multiples of it, too


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
