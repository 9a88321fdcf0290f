"""What the line knows of a model before any weight is read: where it is pinned, its files, its tensors.

`Model` is a frozen description made from headers alone. `TensorReader` (reader.py) is the way to bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hubmerge.sources.header import TensorEntry

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.\-]{0,95}(?:/[A-Za-z0-9_][\w.\-]{0,95})?", re.ASCII)


def is_hub_id(text: str) -> bool:
    """True for `name` and `namespace/name` as the Hub allows them."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith((".", "-"))


@dataclass(frozen=True)
class FileInfo:
    """One file of a model: `sha256` is the LFS oid where the Hub states one."""

    path: str
    size: int  # bytes
    sha256: str | None = None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the shard that holds it."""

    shard: str
    entry: TensorEntry


@dataclass(frozen=True)
class ModelRef:
    """A pinned model. `sha` is a 40-hex commit for the Hub, a digest of names, sizes and headers for a folder."""

    kind: Literal["hub", "local"]
    id: str  # "org/name" or the folder as the user wrote it
    sha: str
    requested: str = ""  # the branch or tag that was asked for

    def __str__(self) -> str:
        return f"{self.id}@{self.sha[:12]}"

    @property
    def label(self) -> str:
        """A short name for tables: the repo or folder name."""
        return Path(self.id).name or self.id


@dataclass(frozen=True)
class Model:
    """Everything that headers and small files tell of one model."""

    ref: ModelRef
    config: Mapping[str, Any]
    files: Mapping[str, FileInfo]
    tensors: Mapping[str, StoredTensor]
    license: str | None = None
    gated: bool = False
    private: bool = False
    card: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def weight_bytes(self) -> int:
        return sum(self.files[shard].size for shard in self.shards)

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.shard for t in self.tensors.values()))
