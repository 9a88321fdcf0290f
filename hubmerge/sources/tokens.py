"""Reads from tokenizer.json which row belongs to which token, for models whose vocabularies differ in size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hubmerge.sources.base import Model, TokenTable
from hubmerge.sources.tying import is_embedding, is_head

TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # the largest known have 35 MB
MAX_TOKENIZER_VALUES = 4_000_000  # tokens and merges of the largest known, twice
_MAX_TOKEN_ID = 2**31
_MATCHING = ("single_word", "lstrip", "rstrip", "normalized", "special")  # how an added token is found in a text


def rows_differ(base: Model, agents: Sequence[Model]) -> bool:
    """Whether an agent stores more rows of an embedding or a head than the base."""
    limit = max(_rows(base), default=0)
    return limit > 0 and any(n > limit for agent in agents for n in _rows(agent))


def _rows(model: Model) -> list[int]:
    return [
        t.entry.shape[0]
        for name, t in model.tensors.items()
        if len(t.entry.shape) == 2 and (is_embedding(name) or is_head(name))
    ]


def tokens_of(content: Mapping[str, Any]) -> dict[str, int] | None:
    """Token → id of a parsed tokenizer.json; None where it is not written as the tokenizers library does."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # Unigram: [token, score] in the order of the ids
        pairs = [(entry[0], i) for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry]
        if len(pairs) != len(vocabulary):
            return None
    elif isinstance(vocabulary, dict):
        pairs = list(vocabulary.items())
    else:
        return None
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(a, dict) for a in added):
        return None
    if any(a.get("content") == "" for a in added):  # the library passes over it, and numbers those behind it otherwise
        return None
    pairs += [(a.get("content"), a.get("id")) for a in added]
    if not all(isinstance(token, str) and type(i) is int and 0 <= i < _MAX_TOKEN_ID for token, i in pairs):
        return None
    try:
        "".join(token for token, _ in pairs).encode()
    except UnicodeEncodeError:  # half a character, for which the library refuses the file
        return None
    return dict(pairs)


def token_table(content: Mapping[str, Any]) -> TokenTable | None:
    """The tokens and rows of a parsed tokenizer.json; None where `tokens_of` is None."""
    ids = tokens_of(content)
    if ids is None:
        return None
    entries = {entry["content"]: entry for entry in content.get("added_tokens") or []}
    added = {token: {key: entry.get(key) is True for key in _MATCHING} for token, entry in entries.items()}
    # as the library counts them: behind the last one added, or behind its own vocabulary
    size = len(content["model"]["vocab"])
    last = max((ids[token] for token in added), default=-1)
    return TokenTable(ids, added, last + 1 if last >= size else size)
