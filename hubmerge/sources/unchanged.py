"""Local folders that are merged must stay as they were pinned; nobody can promise that, so it is looked at again.

A folder's pin covers the config and every shard's name, size, time of change and header. What is made of a folder is
made durable only while its shards still have that size and time: a merge of which half was read before somebody
replaced a shard would otherwise bear the pin of bytes that it does not hold.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hubmerge.errors import SourceChangedError
from hubmerge.sources.base import Model
from hubmerge.sources.header import header_length

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # of an adapter, in its place
Stamp = tuple[int, int]  # size in bytes, time of change in ns


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
