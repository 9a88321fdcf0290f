"""Reads shards on this machine: it opens them when they are first read, and refuses files that have changed.

A thread reads a chunk and then computes on it. So that the disk does not rest meanwhile, the system is asked to read
the next part of the file. Where that part is in memory already, the question is all that it costs. The system reads
ahead by itself too, but often only the next 128 kB, and a chunk is larger.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections import OrderedDict
from pathlib import Path

from hubmerge.disk_errors import remedy
from hubmerge.errors import CorruptError, DiskError, HubmergeError, SourceChangedError
from hubmerge.sources.base import Model

KEPT_FILES = 128  # that are open; a process may often have 1024, and other things need some

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ESTALE))

_AHEAD_LEAST_BYTES = 64 * 1024  # what is read for so little computing is not worth a question
_AT_ONCE_BYTES = 128 * 1024  # of one request, of which the system may cut off what exceeds its own measure
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)  # not on every system


class _Descriptor:
    """An open file, closed when nobody refers to it any more."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


class OpenFiles:
    """Descriptors of shards that lie on this machine, opened when first read; those read last stay open.

    Large models have more shards than a process may have files. A reader holds on to its file, so this cache may drop
    any file at any time.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[Path, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def read_into(self, path: Path, model: Model, shard: str, offset: int, out: memoryview) -> None:
        """SourceChangedError when the file is no longer what the model says, DiskError when it cannot be read."""
        file = self._open(path, model, shard)
        left = out
        while left:
            try:
                got = os.preadv(file.number, [left], offset)
            except OSError as error:
                raise _unreadable(model, shard, error) from None
            if not got:
                raise _changed(model, shard, "it ends early")
            left, offset = left[got:], offset + got
        if len(out) >= _AHEAD_LEAST_BYTES:
            _read_ahead(file.number, offset, len(out))

    def _open(self, path: Path, model: Model, shard: str) -> _Descriptor:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                try:
                    file = self._opened(path)
                    _check(file.number, model, shard)
                except OSError as error:
                    raise _unreadable(model, shard, error) from None
                self._files[path] = file
                if len(self._files) > KEPT_FILES:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def _opened(self, path: Path) -> _Descriptor:
        """Open a file, closing as many of the open ones as it takes."""
        while True:
            try:
                return _Descriptor(path)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
            self._files.popitem(last=False)

    def forget(self, path: Path) -> None:
        """Close one file, which nobody reads at this moment."""
        with self._lock:
            self._files.pop(path, None)

    def close(self) -> None:
        with self._lock:
            self._files.clear()


def _read_ahead(file: int, offset: int, count: int) -> None:
    """Have the next `count` bytes read into memory, unless the last of them lies there or the file ends before it."""
    if not _NO_WAIT:
        return
    try:
        os.preadv(file, [bytearray(1)], offset + count - 1, _NO_WAIT)
    except BlockingIOError:
        for begin in range(offset, offset + count, _AT_ONCE_BYTES):
            os.posix_fadvise(file, begin, min(_AT_ONCE_BYTES, offset + count - begin), os.POSIX_FADV_WILLNEED)
    except OSError:  # a file system that cannot tell
        pass


def _check(file: int, model: Model, shard: str) -> None:
    """Refuse a file that is not the one that was planned from: another size, or another header."""
    if os.fstat(file).st_size != model.files[shard].size:
        raise _changed(model, shard, "it changed its size")
    planned = model.headers.get(shard)
    if planned is None:
        return
    if hashlib.sha256(os.pread(file, planned.bytes, 0)).hexdigest() == planned.sha256:
        return
    if model.ref.kind == "local":
        raise _changed(model, shard, "it changed its header")
    raise other_header(model, shard)


def check_planned(path: Path, model: Model, shard: str) -> None:
    """CorruptError or SourceChangedError when the file at `path` is not the one that was planned from."""
    with open(path, "rb") as file:
        _check(file.fileno(), model, shard)


def other_header(model: Model, shard: str) -> CorruptError:
    return CorruptError(
        "a shard has another header than the one that the merge was planned from",
        where=f"{shard} in {model.ref}",
        next_step="Run again; if it stays, do not trust the server.",
    )


def _unreadable(model: Model, shard: str, error: OSError) -> HubmergeError:
    """The error for a file that was there when the merge was planned and cannot be read now."""
    why = error.strerror or str(error)
    if error.errno in _GONE:
        return _changed(model, shard, why)
    return DiskError("a shard cannot be read", where=f"{shard} of {model.ref}", got=why, next_step=remedy(error))


def _changed(model: Model, shard: str, why: str) -> SourceChangedError:
    return SourceChangedError(
        "a shard can no longer be read",
        where=f"{shard} of {model.ref}",
        got=why,
        next_step="Resume when it is there again.",
    )
