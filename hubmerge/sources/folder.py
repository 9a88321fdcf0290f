"""Lists and reads local folders without following links out of them, and checks that they stay as they were pinned.

A folder may have come from a stranger, and a link in it may name any file of this machine, whose bytes would then be
published. So a link is followed only where it stays in the folder, or leads from a snapshot in the Hub client's cache
into the same repo's `blobs`.

A folder's pin covers the config and every shard's name, size, time of change and header. A merge makes its results
durable only while the shards still have that size and time. Otherwise a merge that had read half of a shard before
somebody replaced it would bear the pin of bytes that it does not hold.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hubmerge.errors import FormatError, SourceChangedError, SourceNotFoundError
from hubmerge.hub.names import FileInfo
from hubmerge.sources.base import Model
from hubmerge.sources.header import header_length

_MAX_DEPTH = 2  # folders in folders; sentence-transformers' routes lie there
_MAX_FILES = 20_000
CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # of an adapter, in its place
Stamp = tuple[int, int]  # size in bytes, time of change in ns


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


def inside(folder: Path, name: str) -> Path:
    """The real path of the file `name` in `folder`; SourceNotFoundError where a link leads out of the folder."""
    path = folder / name
    if not _leads_into(path, _roots(folder)):
        raise link_outside(str(folder), name)
    return path.resolve()


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """At most `most` bytes, else FormatError; raises as `inside` does, and OSError."""
    with open(inside(folder, name), "rb") as file:
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
    """40 hex digits over the config and the shards' names, sizes, times and headers."""
    digest = hashlib.sha256((folder / config).read_bytes())
    for shard in shards:
        with open(folder / shard, "rb") as file:
            size, changed_ns = _stamp(file.fileno())
            digest.update(f"{shard}\0{size}\0{changed_ns}\0".encode())
            prefix = file.read(8)
            digest.update(prefix + file.read(header_length(prefix, shard)))
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
            if digest != model.ref.sha:
                raise _changed(model, model.ref.id, "another size, time or header")
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
