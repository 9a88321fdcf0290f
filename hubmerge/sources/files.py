"""Reads shards on this machine, and refuses files that have changed since the merge was planned.

A file is opened for each read: that costs 7 µs, and a model may have more shards than a process may have open.

A thread reads a chunk and then computes on it. So that the disk does not rest meanwhile, the system is asked to read
the next part of the file. Where that part is in memory already, the question is all that it costs. The system reads
ahead by itself too, but often only the next 128 kB, and a chunk is larger.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from hubmerge.disk_errors import remedy
from hubmerge.errors import CorruptError, DiskError, HubmergeError, SourceChangedError
from hubmerge.sources.base import Model

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ESTALE))

_AHEAD_LEAST_BYTES = 64 * 1024  # what is read for so little computing is not worth a question
_AT_ONCE_BYTES = 128 * 1024  # of one request, of which the system may cut off what exceeds its own measure
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)  # not on every system


class ShardFiles:
    """Reads shards that lie on this machine; may be called from several threads."""

    def __init__(self) -> None:
        self._checked: dict[Path, tuple[int, int, int]] = {}  # with number, size and time of change

    def read_into(self, path: Path, model: Model, shard: str, offset: int, out: memoryview) -> None:
        """SourceChangedError when the file is no longer what the model says, DiskError when it cannot be read."""
        left = out
        try:
            with open(path, "rb", buffering=0) as file:
                number = file.fileno()
                status = os.fstat(number)
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                if self._checked.get(path) != stamp:
                    _check(number, model, shard)
                    self._checked[path] = stamp
                while left:
                    got = os.preadv(number, [left], offset)
                    if not got:
                        raise _changed(model, shard, "it ends early")
                    left, offset = left[got:], offset + got
                if len(out) >= _AHEAD_LEAST_BYTES:
                    _read_ahead(number, offset, len(out))
        except OSError as error:
            raise _unreadable(model, shard, error) from None


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
