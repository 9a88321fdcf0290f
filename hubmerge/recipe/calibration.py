"""The question-answer pairs that a sensitivity is computed on: a part of a recipe that hubmerge.sensitivity reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hubmerge.recipe.model_name import is_path

MAX_PAIRS = 100_000
MAX_TOKENS = 1_000_000


class CalibrationSpec(BaseModel):
    """Which pairs of which data."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # else true were 1 pair, and "8" were 8

    data: str = Field(min_length=1, max_length=4096)  # a JSONL file, or a dataset's id on the Hub
    subset: str | None = Field(default=None, min_length=1, max_length=256)  # of a Hub dataset: its config
    split: str = Field(default="train", min_length=1, max_length=256)  # of a Hub dataset; `train[:1000]` works
    revision: str | None = Field(default=None, max_length=255)  # of a Hub dataset
    prompt: str = Field(min_length=1, max_length=256)  # column
    answer: str = Field(min_length=1, max_length=256)  # column
    max_pairs: int = Field(default=128, ge=1, le=MAX_PAIRS)
    max_tokens: int = Field(default=1024, ge=2, le=MAX_TOKENS)  # of prompt, answer and EOS together
    seed: int = Field(default=0, ge=0, lt=2**63)

    @property
    def is_file(self) -> bool:
        return is_path(self.data) or self.data.endswith(".jsonl")

    @property
    def label(self) -> str:
        """The data's name without the folders of this machine."""
        if self.is_file:
            return Path(self.data).name
        return f"{self.data}@{self.revision}" if self.revision else self.data


@dataclass(frozen=True)
class CalibrationRows:
    """The data behind one agent's sensitivity: tokenized rows, or a sensitivity file with its own record of them."""

    data: str  # its name
    digest: str  # sha256 over the rows as tokenized; empty where a file does not say it
    pairs: int
    torch: str  # versions
    transformers: str
    file: str = ""  # digest of a named file's header, size and time of change
    private: bool = False  # a dataset that not everybody may read
    read: Sequence[Any] = field(default=(), repr=False, compare=False)  # the pairs

    def identity(self) -> dict[str, Any]:
        """The part that belongs to the identity of a merge."""
        if self.file:
            return {"file": self.file}
        return {"rows": self.digest, "pairs": self.pairs, "torch": self.torch, "transformers": self.transformers}

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, in the form of hubmerge.json."""
        return {"rows" if key == "digest" else key: value for key, value in vars(self).items() if key != "read"}
