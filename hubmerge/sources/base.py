"""A model as it is known before any weight is read: its pinned place, its files, its tensors.

`Model` is a frozen description made from headers alone. `TensorReader` (reader.py) is the way to bytes. `Views` are
models as the merge sees them, which views.py makes step by step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hubmerge.errors import Problem
from hubmerge.hub.names import FileInfo
from hubmerge.recipe.model_name import ModelRef
from hubmerge.sources.adapter_config import AdapterConfig
from hubmerge.sources.ancestry import Ancestor
from hubmerge.sources.header import TensorEntry
from hubmerge.text.wording import incompatible


@dataclass(frozen=True)
class HeaderDigest:
    """The first bytes of a shard, up to the end of its header, as the merge was planned from them."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a tokenizer.json and the rows of the embedding that belong to them."""

    ids: Mapping[str, int]  # token → row
    added: Mapping[str, Mapping[str, Any]]  # those beside the tokenizer's own vocabulary, with how they are matched
    next_id: int  # what the tokenizers library calls the next token that is added


@dataclass(frozen=True)
class AddedToken:
    """A token of the output that agents' vocabularies add."""

    content: str
    id: int  # in the output
    matching: Mapping[str, Any]  # as tokenizer.json has it: lstrip, special, …


@dataclass(frozen=True)
class Vocabulary:
    """Rows beyond the base's, and the model that brings them, its tokenizer and its number of tokens."""

    donor: int  # among the models of the merge, the base being 0; the base where `united` tokens are added to its own
    rows: int  # of the output
    added: tuple[str, ...]  # tokens of the added rows, in the order of their ids
    united: tuple[AddedToken, ...] = ()


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the shard that holds it. A reader returns it as `entry.dtype` (derived.py has computed ones)."""

    shard: str
    entry: TensorEntry
    copy: "StoredTensor | None" = field(default=None, kw_only=True)  # the same values once more, as a reader checks

    @property
    def kept_dtype(self) -> str:
        """The dtype of an output that keeps this tensor's dtype."""
        return self.entry.dtype


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
    made_from: tuple[Ancestor, ...] = ()
    outside: tuple[str, ...] = ()  # links in a local folder that lead out of it, and are not among the files

    @property
    def kind(self) -> str:
        """The kind of the stored tensors, in words."""
        if self.adapter is not None:
            return "LoRA adapter"
        return "fp8 weights" if any(t.entry.dtype.startswith("F8") for t in self.tensors.values()) else "weights"

    @property
    def weight_bytes(self) -> int:
        return sum(self.files[shard].size for shard in self.shards)

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.shard for t in self.tensors.values()))


@dataclass
class Views:
    """Base and agents as the merge sees them, which each step changes, and what the steps have to say."""

    base: Model
    agents: list[Model]
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    vocabulary: Vocabulary | None = None  # where agents add rows to the base's
    kept: frozenset[str] = frozenset()  # names of the base that the recipe ignores

    @property
    def models(self) -> list[Model]:
        return [self.base, *self.agents]

    def refuse(self, what: str, **words: str) -> None:
        """Note a problem; `words` are those of `incompatible`."""
        self.problems.append(incompatible(what, **words))
