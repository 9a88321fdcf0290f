"""Names of models as people type and paste them: addresses of the Hub's pages, and lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from hubmerge.hub.names import is_hub_id

_HUBS = ("huggingface.co", "www.huggingface.co", "hf.co")
_AT = ("tree", "blob", "resolve", "raw", "blame", "commit", "commits")  # what stands before a revision
_BETWEEN = re.compile(r"[\s,;]+")
_REF = re.compile(r"refs/(?:pr|convert|heads|tags)/[^/]+")


def names_in(typed: Iterable[str], endpoint: str) -> list[str]:
    """The models that texts name, each once and in order; what names none stays as it is, for the checks to refuse.

    `endpoint`: the Hub in use, whose addresses are understood like those of huggingface.co.
    """
    return list(dict.fromkeys(name for text in typed for name in _names(str(text).strip(), endpoint)))


def _names(text: str, endpoint: str) -> list[str]:
    parts = [part.strip("\"'<>[]()`") for part in _BETWEEN.split(text)]
    names = [_name(part, endpoint) for part in parts if part]
    if len(names) > 1 and not all(is_hub_id(name.partition("@")[0]) for name in names):
        return [text]
    return names


def _name(text: str, endpoint: str) -> str:
    """`org/name` or `org/name@revision` for an address of the Hub's, else the text itself."""
    hosts = {*_HUBS, urlsplit(endpoint).netloc.lower()}
    given = text if "://" in text else f"https://{text}"
    try:
        parts = urlsplit(given)
    except ValueError:
        return text
    if parts.scheme not in ("http", "https") or parts.netloc.lower() not in hosts:
        return text
    pieces = [piece for piece in parts.path.split("/") if piece]
    if len(pieces) > 2 and pieces[1] in _AT:  # of a model without an owner, such as gpt2
        pieces.insert(0, "")
    name = "/".join(piece for piece in pieces[:2] if piece)
    if not is_hub_id(name) or pieces[0] in ("datasets", "spaces", "collections", "papers", "models"):
        return text
    if len(pieces) > 3 and pieces[2] in _AT:
        rest = unquote("/".join(pieces[3:]))
        found = _REF.match(rest)
        revision = found.group() if found else unquote(pieces[3])
        return name if revision == "main" else f"{name}@{revision}"
    return name
