"""Files of models on this machine: lists and reads them without following links out, and notices when they change.

A folder may have come from a stranger, and a link in it may name any file of this machine, whose bytes would then be
published. So a link is followed only where it stays in the folder, or leads from a snapshot in the Hub client's cache
into the same repo's `blobs`.

A folder's pin covers the config and every shard's name, size, time of change, header and some blocks of its data: all
of a small model, 64 blocks of a large one. An unpacked archive gives all files one time, and models of one kind have
equal sizes and headers, so that data alone tell them apart.

A merge makes its results durable only while the shards still have that size and time. Otherwise a merge that had read
half of a shard before somebody replaced it would bear the pin of bytes that it does not hold.

A shard's file is opened for each read: that costs 7 µs, and a model may have more shards than a process may have open.
A thread reads a chunk and then computes on it. So that the disk does not rest meanwhile, the system is asked to read
the next part of the file. Where that part is in memory already, the question is all that it costs. The system reads
ahead by itself too, but often only the next 128 kB, and a chunk is larger.
"""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hubmerge.errors import CorruptError, DiskError, FormatError, HeaderError, SourceChangedError, SourceNotFoundError
from hubmerge.hub.names import FileInfo
from hubmerge.machine.disk_errors import remedy
from hubmerge.sources.base import Model
from hubmerge.sources.header import header_length

_MAX_DEPTH = 3  # folders in folders; verl saves models to global_step_N/actor/huggingface
_MAX_FILES = 20_000
CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # of an adapter, in its place
_PINNED_BLOCKS = 64  # of a model's data, or one of each shard
_PINNED_BYTES = 4096  # of each
Stamp = tuple[int, int]  # size in bytes, time of change in ns

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ESTALE))

_AHEAD_LEAST_BYTES = 64 * 1024  # what is read for so little computing is not worth a question
_AT_ONCE_BYTES = 128 * 1024  # of one request, of which the system may cut off what exceeds its own measure
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)  # not on every system


def list_folder(folder: Path) -> tuple[dict[str, FileInfo], tuple[str, ...]]:
    """The files by path, `sub/file` for those below, and the links that lead out. Raises OSError, FormatError.

    Hidden folders and folders that are links are not entered.
    """
    roots = _roots(folder)
    files: dict[str, FileInfo] = {}
    outside: list[str] = []
    for path, name in _walk(folder, "", 0):
        if path.is_symlink() and (path.is_dir() or not _leads_into(path, roots)):
            outside.append(name)
        elif path.is_file():
            files[name] = FileInfo(name, path.stat().st_size)
        if len(files) + len(outside) > _MAX_FILES:
            raise FormatError("too many files in a folder", where=str(folder), expected=f"at most {_MAX_FILES}")
    return files, tuple(outside)


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """At most `most` bytes, else FormatError; SourceNotFoundError where a link leads out of the folder; OSError."""
    path = folder / name
    if not _leads_into(path, _roots(folder)):
        raise link_outside(str(folder), name)
    with path.resolve().open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FormatError("a file is too large", where=f"{name} in {folder}", expected=f"{most} bytes", got="more")
    return content


def link_outside(folder: str, name: str) -> SourceNotFoundError:
    return SourceNotFoundError(
        "a link that leads out of the folder",
        where=f"{name} in {folder}",
        expected="the file itself",
        next_step="Such links are not followed: put the file in its place if it belongs to the model, else remove it.",
    )


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[Path, str]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda e: e.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth < _MAX_DEPTH and not entry.name.startswith("."):
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", depth + 1)
        else:
            yield Path(entry.path), prefix + entry.name


def _roots(folder: Path) -> tuple[Path, ...]:
    root = folder.resolve()
    in_cache = root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--")
    return (root, root.parent.parent / "blobs") if in_cache else (root,)


def _leads_into(path: Path, roots: tuple[Path, ...]) -> bool:
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a circle of links
        return False
    return any(target.is_relative_to(root) for root in roots)


def folder_digest(folder: Path, config: str, shards: Sequence[str]) -> str:
    """40 hex digits over the config and the shards' names, sizes, times, headers and some blocks of their data."""
    digest = hashlib.sha256((folder / config).read_bytes())
    blocks = max(1, _PINNED_BLOCKS // len(shards))
    for shard in shards:
        with open(folder / shard, "rb") as file:
            size, changed_ns = _stamp(file.fileno())
            digest.update(f"{shard}\0{size}\0{changed_ns}\0".encode())
            prefix = file.read(8)
            header = prefix + file.read(header_length(prefix, shard))
            digest.update(header)
            for offset in range(len(header), size, max(_PINNED_BYTES, (size - len(header)) // blocks)):
                digest.update(os.pread(file.fileno(), _PINNED_BYTES, offset))
    return digest.hexdigest()[:40]


class UnchangedFolders:
    """The local folders among `models`; SourceChangedError as soon as one is not what was pinned."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._stamps: dict[Path, tuple[Model, Stamp]] = {}
        for model in models:
            if model.ref.kind != "local":
                continue
            folder = model.ref.path
            try:
                stamps = {folder / shard: _stamp(folder / shard) for shard in model.shards}
                config = CONFIG if model.adapter is None else ADAPTER_CONFIG
                digest = folder_digest(folder, config, model.shards)
            except OSError as error:
                raise _changed(model, str(error.filename or folder), error.strerror or str(error)) from None
            except HeaderError:  # of what lies there now
                digest = ""
            if digest != model.ref.sha:
                raise _changed(model, model.ref.id, "another size, time, header or other data")
            self._stamps |= {path: (model, stamp) for path, stamp in stamps.items()}

    def check(self) -> None:
        for path, (model, stamp) in self._stamps.items():
            try:
                now = _stamp(path)
            except OSError as error:
                raise _changed(model, str(path), error.strerror or str(error)) from None
            if now != stamp:
                raise _changed(model, str(path), "another size" if now[0] != stamp[0] else "a later time of change")


def _stamp(file: Path | int) -> Stamp:
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


def _changed(model: Model, where: str, got: str) -> SourceChangedError:
    return SourceChangedError(
        "a folder was changed while it was merged",
        where=where,
        expected=f"what was pinned as {model.ref}",
        got=got,
        next_step="Start again in a new folder, and leave the models alone until it is done.",
    )


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
                        raise _shard_changed(model, shard, "it ends early")
                    left, offset = left[got:], offset + got
                if len(out) >= _AHEAD_LEAST_BYTES:
                    _read_ahead(number, offset, len(out))
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in _GONE:
                raise _shard_changed(model, shard, why) from None
            where, step = f"{shard} of {model.ref}", remedy(error)
            raise DiskError("a shard cannot be read", where=where, got=why, next_step=step) from None


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
        raise _shard_changed(model, shard, "it changed its size")
    planned = model.headers.get(shard)
    if planned is None or hashlib.sha256(os.pread(file, planned.bytes, 0)).hexdigest() == planned.sha256:
        return
    if model.ref.kind == "local":
        raise _shard_changed(model, shard, "it changed its header")
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


def _shard_changed(model: Model, shard: str, why: str) -> SourceChangedError:
    return SourceChangedError(
        "a shard can no longer be read",
        where=f"{shard} of {model.ref}",
        got=why,
        next_step="Resume when it is there again.",
    )
