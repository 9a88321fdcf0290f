"""The common parts of all parsers of calls: the call, the languages, the bounds on hostile text, and its refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Language = Literal["python", "java", "javascript"]

MAX_CHARACTERS = 65536  # of an answer without its reasoning; the longest gold answer has 715
MAX_TREE_CHARACTERS = 2048  # in Java and JavaScript, whose error recovery takes superlinear time; longest gold: 341
MAX_TREE_S = 10.0  # for the same reason; of 2,048 characters the slowest text known takes about 1 s
MAX_BRACKETS = 90  # open at once; no gold answer has more than 6
MAX_DEPTH = 120  # of a syntax tree: no recursion here comes near the interpreter's limit
MAX_INTEGER_BITS = 14000  # about the 4,300 digits that Python converts at most


class NotACallError(ValueError):
    """The text is no list of calls. Raised and caught in this package: for a score it is an answer like others."""


@dataclass(frozen=True)
class Call:
    """One call as it was written. `None` as a name stands for arguments without one (`f(**options)`)."""

    name: str
    arguments: Mapping[str | None, Any]


def check_bounds(text: str) -> None:
    """Refuse text that is too long, or nested too deep whatever its brackets mean."""
    if len(text) > MAX_CHARACTERS:
        raise NotACallError("longer than an answer may be")
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > MAX_BRACKETS:
                raise NotACallError("nested too deep")
        elif character in ")]}" and depth:
            depth -= 1


def enclosed(text: str, opening: str, closing: str, least: int = 0) -> Iterator[str]:
    """The text between `opening` and the next `closing` of the same line, for every pair from the left.

    The meaning of the regular expression `opening(.*?)closing` (with `least` = 1: `.+?`), in linear time.
    """
    position = 0
    while (start := text.find(opening, position)) >= 0:
        start += len(opening)
        end = text.find(closing, start + least)
        if end < 0:
            return
        newline = text.find("\n", start, end)
        if newline >= 0:
            position = newline  # nothing that opens on this line closes on it
            continue
        yield text[start:end]
        position = end + len(closing)


def number_or_text(text: str) -> int | float | str:
    """`text` as Python reads numbers, or as it is."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
