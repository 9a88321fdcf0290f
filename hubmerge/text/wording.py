"""Words of messages: why models do not fit, what a slip may mean, where in a document. Foreign text is escaped."""

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from hubmerge.errors import IncompatibleError, Problem

NAMED_AT_MOST = 5  # tensors spelled out per problem
_SHOWN_CHARACTERS = 80  # of a value from a stranger's file


def incompatible(what: str, *, where: str = "", expected: str = "", got: str = "", next_step: str = "") -> Problem:
    """One reason why models cannot be merged."""
    return Problem(IncompatibleError.code, what, where, expected, got, next_step)


def dims(shape: Sequence[int]) -> str:
    return "×".join(str(n) for n in shape) or "scalar"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def named(listed: Sequence[str]) -> str:
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return ", ".join(listed[:NAMED_AT_MOST]) + more


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def did_you_mean(got: Any, known: Iterable[str]) -> str:
    """The question "Did you mean …?" where a word is close to one of the known words, else an empty text."""
    found = get_close_matches(str(got)[:_SHOWN_CHARACTERS].lower(), list(known), n=1, cutoff=0.6)
    return f"Did you mean {found[0]}?" if found else ""


def place(where: str, *path: object) -> str:
    """A place in a document for messages: `r.yaml → agent 2 → weight`. People count from 1."""
    parts: list[str] = [where]
    for part in path:
        if isinstance(part, int):
            several = parts.pop() if len(parts) > 1 else "entry"
            parts.append(f"{several.removesuffix('s')} {part + 1}")
        else:
            parts.append(str(part)[:_SHOWN_CHARACTERS])
    return " → ".join(parts)


def json_table(content: bytes) -> dict[str, Any] | None:
    """The table that a stranger's JSON file holds, if it holds one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_file(value: Any) -> bytes:
    """JSON that people can read, too. A lone surrogate, which UTF-8 cannot encode, is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
