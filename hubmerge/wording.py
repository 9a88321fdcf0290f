"""The words in which models are said not to fit: short, and safe against what strangers write into their files."""

from __future__ import annotations

from collections.abc import Sequence
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
