"""Names of models: as a user writes them (a Hub id with an optional revision, or a local folder), and pinned."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from hubmerge.hub.names import is_hub_id

MAX_CHARACTERS = 4096
SYNTHETIC = "synthetic:"  # the prefix of a generated model's name (synthetic.py)
_REVISION = re.compile(r"[A-Za-z0-9_][\w.\-/]{0,254}", re.ASCII)


def is_path(name: str) -> bool:
    """Whether a name of a model or of data means a path of this machine, whatever exists."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


@dataclass(frozen=True)
class ModelName:
    """A Hub id with an optional revision, or a local folder. In a recipe it is written as text (see `parse`)."""

    id: str
    revision: str | None = None
    local: bool = False

    def __post_init__(self) -> None:
        """ValueError where this is no Hub id at a revision."""
        name, revision = self.id, self.revision
        if self.local:
            return
        if not is_hub_id(name):
            folder = f"as a folder it is written {'./' + name[:120]!r}"
            raise ValueError(f"{name[:120]!r} is no Hub id (org/name@revision); {folder}")
        if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise ValueError(f"{revision[:80]!r} is not a revision (a branch, a tag or a commit sha)")

    @classmethod
    def parse(cls, text: str | os.PathLike[str]) -> "ModelName":
        """`org/name`, `org/name@revision`, or a folder.

        The meaning of a text does not depend on which folders exist: `a/b` is a Hub id, and the folder of that name is
        written `./a/b`. A path of Python is a folder.
        """
        text = text.strip() if isinstance(text, str) else os.path.join(".", text)
        if not text:
            raise ValueError("no model is named")
        if "://" in text:
            raise ValueError("this is a URL, where a Hub id alone is needed")
        if re.search("[\0\ud800-\udfff]", text):
            raise ValueError("a model's name holds a zero byte or half a character")
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"a model's name has {len(text)} characters, and {MAX_CHARACTERS} are the most")
        name, _, revision = text.partition("@")
        if is_path(name) or text.startswith(SYNTHETIC):
            return cls(id=text, local=True)
        return cls(id=name, revision=revision or None)

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id


def _model_from_text(value: Any) -> Any:
    if isinstance(value, ModelName):
        return value
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a model is written as text: org/name, org/name@revision or ./folder")
    return ModelName.parse(value)


WrittenModel = Annotated[ModelName, BeforeValidator(_model_from_text)]


@dataclass(frozen=True)
class ModelRef:
    """A pinned model. `sha` is a 40-hex commit for the Hub, a digest of its files for a folder (folder.py), and of
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
        return Path(os.path.expanduser(self.place or self.id))

    @property
    def label(self) -> str:
        """A short name for tables: the repo or folder name."""
        return Path(self.id).name or self.id
