"""A file written front to back past the page cache, where its file system can.

Bytes that a merge writes are not read again by it. Written through the page cache they cost a copy into pages that the
system must find first, they push the inputs out, and they wait there until the end, when everything stands still for
the sync. Written directly they go to the disk while the next chunks are computed, from memory that is used again and
again. A disk takes whole blocks from whole blocks of memory: large arrays are made to lie that way (buffers.py), and
what does not is gathered in one piece of memory. What is left at the end, less than a block, takes the usual way, as
does everything where direct writing is refused.
"""

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubmerge.sources.buffers import PAGE, SMALLEST, pages

GATHERED_BYTES = 4 * 1024 * 1024  # written at once
ALL_GATHERED_BYTES = 32 * 1024 * 1024  # of files that are written side by side
BLOCK_BYTES = PAGE  # what every disk can be written by

_DIRECT = getattr(os, "O_DIRECT", 0)  # not on every system
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)  # of what was asked, not of its bytes


def gathered_bytes(files: int) -> int:
    """What each of so many files gathers before it writes: whole blocks."""
    return max(BLOCK_BYTES, min(GATHERED_BYTES, ALL_GATHERED_BYTES // files // BLOCK_BYTES * BLOCK_BYTES))


class UncachedFile:
    """Writes `path` anew; every method may raise OSError, and making one MemoryError."""

    def __init__(self, path: Path, size: int, files: int = 1) -> None:
        """`size`: bytes that will be written. They are taken from the disk now: that it is too small is found before
        the work, and writing gets cheaper. `files`: how many are written side by side, this one included."""
        self._most = gathered_bytes(files)
        self._memory = pages(self._most)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._gathered = np.frombuffer(self._memory, np.uint8)
        self._held = 0
        try:
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            # what other errors say is that this file system cannot reserve; it can be written
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                self.close()
                raise
        self._direct = self._switch(_DIRECT)

    def append(self, view: memoryview) -> None:
        """The next bytes. Many of them are written from where they lie, if that is as far from a block's begin in
        memory as in the file (`buffers.placed`); others are gathered."""
        values = np.frombuffer(view, np.uint8)
        begin = -self._held % BLOCK_BYTES  # what is held begins with a block, and so does what follows here
        address = values.__array_interface__["data"][0]
        if self._direct and len(values) >= SMALLEST and (address + begin) % BLOCK_BYTES == 0:
            end = begin + (len(values) - begin) // BLOCK_BYTES * BLOCK_BYTES
            self._gather(values[:begin])
            self._write_held(self._held)
            self._write(view[begin:end])
            values = values[end:]
        self._gather(values)

    def _gather(self, values: NDArray[np.uint8]) -> None:
        done = 0
        while done < len(values):
            part = values[done : done + self._most - self._held]
            self._gathered[self._held : self._held + len(part)] = part
            self._held += len(part)
            done += len(part)
            if self._held == self._most:
                self._write_held(self._most)

    def flush(self) -> None:
        """Write what is still gathered; nothing is appended afterwards."""
        self._write_held(self._held // BLOCK_BYTES * BLOCK_BYTES)
        self._direct = self._switch(0)
        self._write_held(self._held)

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write_held(self, count: int) -> None:
        """Write the first `count` bytes of those held; what is left begins anew."""
        with memoryview(self._memory) as gathered:
            self._write(gathered[:count])
        left = self._held - count
        self._gathered[:left] = self._gathered[count : self._held].copy()
        self._held = left

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError as error:
                if not self._direct or error.errno not in _REFUSALS:
                    raise
                self._direct = self._switch(0)  # also after a write that ended within a block

    def _switch(self, direct: int) -> bool:
        """Write directly from now on, or not; returns whether the file does."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~_DIRECT | direct)
        except OSError:
            return False
        return bool(direct)
