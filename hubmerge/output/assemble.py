"""Writes the files around the shards: index, config, companions, figures, card, and the manifest last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hubmerge.disk_errors import writing
from hubmerge.engine.sink import MANIFEST, FinishedShard
from hubmerge.wording import json_file


def write_folder(
    folder: Path, shards: Sequence[FinishedShard], files: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> None:
    """Write all files around the finished `shards`; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, json_file(manifest))


def _replace(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
