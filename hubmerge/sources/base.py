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

from hubmerge.sources.adapter_config import AdapterConfig
from hubmerge.sources.header import TensorEntry

SYNTHETIC = "synthetic:"  # how a model's name begins that lies nowhere (synthetic.py)
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
    here: Path | None = field(default=None, compare=False)  # where the Hub's client has it on this machine, unverified


@dataclass(frozen=True)
class HeaderDigest:
    """The first bytes of a shard, up to the end of its header, as the merge was planned from them."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenTable:
    """What a tokenizer.json tells of rows."""

    ids: Mapping[str, int]  # token → row
    added: Mapping[str, Mapping[str, Any]]  # those beside the tokenizer's own vocabulary, with how they are matched
    next_id: int  # what the tokenizers library calls the next token that is added


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the shard that holds it. `entry.dtype` is what a reader gives (see derived.py for computed ones)."""

    shard: str
    entry: TensorEntry

    @property
    def kept_dtype(self) -> str:
        """What an output is stored as that keeps this tensor's dtype."""
        return self.entry.dtype


@dataclass(frozen=True)
class ModelRef:
    """A pinned model. `sha` is a 40-hex commit for the Hub, a digest of names, sizes and headers for a folder, and of
    its description for a synthetic model (synthetic.py)."""

    kind: Literal["hub", "local", "synthetic"]
    id: str  # "org/name", or the folder or description as the user wrote it
    sha: str
    requested: str = ""  # the branch or tag that was asked for
    place: str = ""  # where a folder lies, if its id does not lead there from here

    def __str__(self) -> str:
        return f"{self.id}@{self.sha[:12]}"

    @property
    def path(self) -> Path:
        """The folder, of a local model."""
        return Path(self.place or self.id).expanduser()

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
    adapter: AdapterConfig | None = None  # the tensors are LoRA factors, on a base that the recipe names
    tokens: TokenTable | None = None  # read only where vocabularies differ in size
    headers: Mapping[str, HeaderDigest] = field(default_factory=lambda: MappingProxyType({}))  # by shard
    outside: tuple[str, ...] = ()  # links in a local folder that lead out of it, and are not among the files

    @property
    def kind(self) -> str:
        """What the stored tensors are."""
        if self.adapter is not None:
            return "LoRA adapter"
        return "fp8 weights" if any(t.entry.dtype.startswith("F8") for t in self.tensors.values()) else "weights"

    @property
    def weight_bytes(self) -> int:
        return sum(self.files[shard].size for shard in self.shards)

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.shard for t in self.tensors.values()))
