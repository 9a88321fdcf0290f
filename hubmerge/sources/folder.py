"""Lists and reads local folders without following links out of them.

A folder may have come from a stranger, and a link in it may name any file of this machine, whose bytes would then be
published. So a link is followed only where it stays in the folder, or leads from a snapshot in the Hub client's cache
into the same repo's `blobs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hubmerge.errors import FormatError, SourceNotFoundError
from hubmerge.hub.names import FileInfo

_MAX_DEPTH = 2  # folders in folders; sentence-transformers' routes lie there
_MAX_FILES = 20_000


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
