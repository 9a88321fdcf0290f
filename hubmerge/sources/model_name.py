"""A model as a user names it: a Hub id with an optional revision, or a local folder."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hubmerge.sources.base import SYNTHETIC, is_hub_id

_REVISION = re.compile(r"[A-Za-z0-9_][\w.\-/]{0,254}", re.ASCII)


class ModelName(BaseModel):
    """A Hub id with an optional revision, or a local folder. In a recipe it is written as text (see `parse`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=4096)
    revision: str | None = None
    local: bool = False

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """`org/name`, `org/name@revision`, or a folder.

        What a text means does not depend on which folders exist: `a/b` is a Hub id, a folder of that name is
        written `./a/b`.
        """
        text = text.strip()
        if not text:
            raise ValueError("no model is named")
        if "://" in text:
            raise ValueError("this is a URL, where a Hub id alone is needed")
        if "\0" in text:
            raise ValueError("a model's name holds a zero byte")
        name, _, revision = text.partition("@")
        if text.startswith((".", "/", "~", SYNTHETIC)) or name.count("/") > 1:
            return cls(id=text, local=True)
        return cls(id=name, revision=revision or None)

    @model_validator(mode="after")
    def _is_a_hub_id_at_a_revision(self) -> ModelName:
        if not self.local:
            if not is_hub_id(self.id):
                raise ValueError(f"{self.id[:120]!r} is no Hub id (org/name@revision)")
            if self.revision and (not _REVISION.fullmatch(self.revision) or ".." in self.revision):
                raise ValueError(f"{self.revision[:80]!r} is not a revision (a branch, a tag or a commit sha)")
        return self

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id


def _model_from_text(value: Any) -> Any:
    if isinstance(value, ModelName):
        return value
    if not isinstance(value, str):
        raise ValueError("a model is written as text: org/name, org/name@revision or ./folder")
    return ModelName.parse(value)


WrittenModel = Annotated[ModelName, BeforeValidator(_model_from_text)]
