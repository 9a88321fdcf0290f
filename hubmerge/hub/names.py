"""Names of repos as the Hub allows them, and what the Hub states about a file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

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
