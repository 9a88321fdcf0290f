"""The base's tokenizer with the tokens that several agents add (sources/vocabulary.py): its files, one by one.

    tokenizer.json           `added_tokens`: what the tokenizers library reads
    tokenizer_config.json    `added_tokens_decoder`, where the base has one
    added_tokens.json        token → id, where the base has one: for tokenizers without tokenizer.json

The last two are nobody's but the base's: where one is not what its name says, it stays as it is.

The library numbers added tokens by their order, so the ids here are those that it gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hubmerge.errors import InternalError
from hubmerge.sources.tokens import TOKENIZER
from hubmerge.sources.vocabulary import AddedToken

_CONFIG = "tokenizer_config.json"
_ADDED = "added_tokens.json"


def united_tokenizer(files: Mapping[str, bytes], tokens: Sequence[AddedToken]) -> dict[str, bytes]:
    """Those of the base's `files` that change when `tokens` are added, as they are then."""
    if TOKENIZER not in files:
        raise InternalError("the base's tokenizer cannot be extended", where=TOKENIZER, got="no such file")
    content = json.loads(files[TOKENIZER])
    content["added_tokens"] = [*(content.get("added_tokens") or []), *(_entry(t, with_id=True) for t in tokens)]
    changed = {TOKENIZER: _json(content)}
    config = _table(files.get(_CONFIG, b"")) or {}
    if isinstance(decoder := config.get("added_tokens_decoder"), dict):
        more = {str(t.id): _entry(t, with_id=False) for t in tokens}
        changed[_CONFIG] = _json({**config, "added_tokens_decoder": {**decoder, **more}})
    if (added := _table(files.get(_ADDED, b""))) is not None:
        changed[_ADDED] = _json({**added, **{t.content: t.id for t in tokens}})
    return changed


def _table(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _entry(token: AddedToken, *, with_id: bool) -> dict[str, Any]:
    return {**({"id": token.id} if with_id else {}), "content": token.content, **token.matching}


def _json(value: Any) -> bytes:
    # escaped, since the base's file may hold half a character, which UTF-8 has no bytes for
    return (json.dumps(value, indent=2) + "\n").encode()
