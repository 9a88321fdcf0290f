"""Names of repos as the Hub allows them, and what the Hub states about a repo and its files."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PART = r"\w(?:[\w.\-]{0,94}\w)?"  # an owner, or a name
_HUB_ID = re.compile(rf"{_PART}(?:/{_PART})?", re.ASCII)
_SHA = re.compile(r"[0-9a-f]{40}")
_LICENSE_NAME = re.compile(r"[a-z0-9\-.]{1,96}")  # as the Hub allows it


def is_hub_id(text: str) -> bool:
    """True for `name` and `namespace/name` as the Hub allows them."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith(".git")


def is_sha(text: str | None) -> bool:
    """Whether it is the full id of a commit."""
    return bool(text and _SHA.fullmatch(text))


def blob_id(content: bytes) -> str:
    """git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def stated_digest(file: "FileInfo") -> tuple[str | None, Any]:
    """What is stated of a file's content, and a digest of that kind to feed with it: the sha256, or git's id of what is
    not in LFS."""
    if file.sha256 or not file.blob:
        return file.sha256, hashlib.sha256()
    return file.blob, hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def stated_bases(card: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that a card names as those that its own was made from."""
    named = card.get("base_model")
    bases = named if isinstance(named, list) else [named]
    return tuple(base for base in bases if isinstance(base, str) and is_hub_id(base))


def stated_license(card: Mapping[str, Any]) -> str | None:
    """The license that a card states; of a list, which the Hub allows, all that it names, joined by "and".

    "other (NAME)" where the card names a text of its own."""
    stated, own = card.get("license"), card.get("license_name")
    names = stated if isinstance(stated, list) else [stated]
    if isinstance(own, str) and _LICENSE_NAME.fullmatch(own):
        names = [f"other ({own})" if name == "other" else name for name in names]
    return " and ".join(name for name in names if isinstance(name, str)) or None


@dataclass(frozen=True)
class FileInfo:
    """One file of a model: `sha256` is the LFS oid, `blob` git's id of the file or of its LFS pointer, where stated."""

    path: str
    size: int  # bytes
    sha256: str | None = None
    here: Path | None = field(default=None, compare=False)  # where the Hub's client has it on this machine, unverified
    blob: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RepoState:
    """A repo at one commit."""

    id: str
    sha: str
    files: Mapping[str, FileInfo]
    private: bool
    gated: bool
    license: str | None
    card: Mapping[str, Any]
