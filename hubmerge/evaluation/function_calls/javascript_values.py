"""The text of a JavaScript value → a value of Python, by the parameter's declared type.

Where the text is no literal of the type it stays text. bfcl-eval's conventions: arrays and objects end at their first
closing bracket on the same line, so that an object with an object inside loses what follows; elements are split at
every comma, inside quotes too; quotes around an object's value are dropped before the value is read, so that `"5"`
there is the number 5. The scans mean what the reference's regular expressions mean, in linear time (its own pattern of
two-dimensional arrays takes exponential time).
"""

from __future__ import annotations

import re
from typing import Any

from hubmerge.evaluation.function_calls.calls import enclosed, number_or_text

TYPES: dict[str, type] = {
    "String": str,
    "integer": int,
    "float": float,
    "Bigint": int,
    "Boolean": bool,
    "dict": dict,
    "array": list,
    "any": str,
}
WITH_ITEMS = frozenset({"array"})

_INTEGER = re.compile(r"-?\d+$")
_BIGINT = re.compile(r"-?\d+n$")
_FLOAT = re.compile(r"-?\d+(\.\d+)?$")
_NEW_ARRAY = re.compile(r"new\s+Array\(")
_ROWS = re.compile(r"(?:\[|new\s+Array\()\s*\[")
_SPACE = re.compile(r"\s*")


def javascript_value(text: str, declared: str, items: str | None = None) -> Any:
    """`text` as a value of the declared type, or `text` itself; ValueError for a type that has no conversion."""
    if declared not in TYPES:
        raise ValueError(f"no conversion to {declared}")
    if declared == "String":
        return _unquoted(text)
    if declared == "integer":
        return int(text) if _INTEGER.match(text) else text
    if declared == "float":
        return float(text) if _FLOAT.match(text) else text
    if declared == "Bigint":
        return int(text[:-1]) if _BIGINT.match(text) else text
    if declared == "Boolean":
        return {"true": True, "false": False}.get(text, text)
    if declared == "dict":
        return _object(text.strip())
    if declared == "array":
        return _array(text.strip(), items)
    return text


def _unquoted(text: str) -> str:
    quoted = (text.startswith('"') and text.endswith('"')) or (text.startswith("'") and text.endswith("'"))
    return text[1:-1] if quoted else text


def _array(code: str, items: str | None) -> Any:
    rows = _rows(code)
    if rows is not None:
        return rows
    header = _NEW_ARRAY.match(code)
    start, closing = (1, "]") if code.startswith("[") else (header.end(), ")") if header else (0, "")
    end = code.find(closing, start) if closing else -1
    if end < 0 or "\n" in code[start:end]:
        return code
    inside = code[start:end].strip()
    parts = [part.strip() for part in inside.split(",")] if inside else []
    if not items:
        return [_untyped(part) for part in parts]
    try:
        return [javascript_value(part, items, "String" if part[:1] in ("'", '"') else None) for part in parts]
    except ValueError:
        return code


def _rows(code: str) -> list[list[Any]] | None:
    """The rows of `[[1, 2], [3, 4]]` or `new Array([1, 2], [3, 4])`; None if it is no such array.

    A row may hold brackets, so what ends it depends on what follows: a further row or the end of the array. From the
    right, `array_end` is told for every bracket that can end a row; of those the first on a row's line does end it.
    """
    header = _ROWS.match(code)
    if header is None:
        return None
    last = "]" if code.startswith("[") else ")"
    bracket, array_end = -1, -1  # the leftmost bracket so far that can end a row, and where its array ends
    position = code.rfind("]")
    while position >= header.end():
        after = _skip_space(code, position + 1)
        if code[after : after + 1] == last:
            bracket, array_end = position, after + 1
        elif code[after : after + 1] == ",":
            row = _skip_space(code, after + 1)
            if code[row : row + 1] == "[" and bracket >= 0 and code.find("\n", row, bracket) < 0:
                bracket = position
        position = code.rfind("]", 0, position)
    if bracket < 0 or code.find("\n", header.end(), bracket) >= 0:
        return None
    rows = [row.strip() for row in enclosed(code[:array_end], "[", "]")]
    if rows and rows[0].startswith("["):
        rows[0] = rows[0][1:]  # the outer bracket opened this one
    return [[_untyped(part) for part in row.split(",")] for row in rows]


def _object(code: str) -> Any:
    end = code.find("}", 1) if code.startswith("{") else -1
    if end < 0 or "\n" in code[:end]:
        return code
    return {
        key.strip().strip("'\""): _array(value, None)
        if value.startswith("[") and value.endswith("]")
        else _untyped(value.strip("'\""))
        for key, value in _pairs(code[1:end])
    }


def _pairs(content: str) -> list[tuple[str, str]]:
    """Keys and values of `a: 1, b: 2`; a comma ends a value only where a further key follows."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while True:
        while content.startswith(":", position):
            position += 1
        colon = content.find(":", position)
        if colon < 0:
            return pairs
        value = _skip_space(content, colon + 1)
        comma, following = content.find(",", value), None
        while comma >= 0 and following is None:
            following, next_comma = _key_after(content, comma)
            if following is None:
                comma = next_comma
        pairs.append((content[position:colon], content[value : comma if comma >= 0 else len(content)].strip()))
        if following is None:
            return pairs
        position = following


def _key_after(content: str, comma: int) -> tuple[int | None, int]:
    """Where a key begins that follows this comma (None: none does), and where the next comma is (-1: nowhere)."""
    start = _skip_space(content, comma + 1)
    next_comma = content.find(",", start)
    limit = next_comma if next_comma >= 0 else len(content)
    if content.find(":", start + 1, limit) >= 0:
        return start, next_comma
    if start > comma + 1 and content.startswith(":", start):
        return start - 1, next_comma  # a space is the key
    return None, next_comma


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _untyped(text: str) -> Any:
    """A value without a declared type, by its look; numbers as Python reads them."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if _unquoted(text) != text:
        return _unquoted(text)
    return number_or_text(text)
