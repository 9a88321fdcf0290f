"""The suites' file of pins: which commit, or which content, each dataset must have.

Without a pin a dataset is read at the commit that its main branch has now. That is safe, since a suite's version is
over the content, but whoever changes the dataset makes another version, under which every model is due again. A pinned
one stays what it is.

Commits belong to one Hub, so a revision counts on that Hub alone. Data that this package brings along have other
commits on every embedded Hub; they are pinned by content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.result import first_reason
from hubmerge.hub.names import is_hub_id
from hubmerge.plain_yaml import dump_plain_yaml, load_plain_yaml
from hubmerge.settings import DEFAULT_ENDPOINT

PINS = Path(__file__).with_name("pins.yaml")
_HEAD = re.compile(r"(?:#[^\n]*\n)*")


class DatasetPin(BaseModel):
    """A dataset's commit on a Hub, its content, or both."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    hub: str = DEFAULT_ENDPOINT  # where the revision is known
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # dataset_content.py

    @model_validator(mode="after")
    def _pins_something(self) -> DatasetPin:
        if self.revision is None and self.content is None:
            raise ValueError("a revision or a content is needed")
        return self

    def commit_on(self, endpoint: str) -> str | None:
        return self.revision if endpoint == self.hub else None

    @property
    def words(self) -> str:
        if self.revision is None:
            return f"by content, {str(self.content)[:12]}"
        where = "" if self.hub == DEFAULT_ENDPOINT else f" on {self.hub}"
        return f"at commit {self.revision}{where}" + (", and by content" if self.content else "")


Pins = Mapping[str, DatasetPin]


@cache
def own_pins() -> Pins:
    """The pins that this package was made with."""
    return read_pins(PINS)


def read_pins(path: Path) -> Pins:
    """The pins in a file, by dataset id; EvaluationError says what is wrong with it."""

    class File(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        datasets: dict[str, DatasetPin]

    try:
        found = File.model_validate(load_plain_yaml(path.read_text("utf-8"))).datasets
        if strange := next((name for name in found if not is_hub_id(name)), None):
            raise ValueError(f"{strange[:80]!r} is no dataset's id")
    except (OSError, ValueError) as error:
        raise EvaluationError(
            "the file of pins cannot be read",
            where=str(path),
            expected="a full commit, 40 hex digits, or a content, 64, for each dataset",
            got=first_reason(error),
        ) from None
    return found


def write_pins(path: Path, pins: Pins) -> None:
    """Write the pins in a file, below the words that it begins with; EvaluationError where it cannot be written."""
    known = path.read_text("utf-8") if path.exists() else PINS.read_text("utf-8")
    words = _HEAD.match(known)
    plain = {name: pins[name].model_dump(exclude_defaults=True) for name in sorted(pins)}
    try:
        path.write_text((words[0] if words else "") + dump_plain_yaml({"datasets": plain}), encoding="utf-8")
    except OSError as error:
        raise EvaluationError(
            "the file of pins cannot be written",
            where=str(path),
            got=error.strerror or str(error),
            next_step="Run it in a clone, whose file it changes, or name another one with --file.",
        ) from None
