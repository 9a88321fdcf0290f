"""The text of a Java value → a value of Python, by the parameter's declared type.

Where the text is no literal of the type it stays text, and then only a key that allows that text (a variable's name,
say) accepts it. bfcl-eval's conventions: collections are found anywhere in the text; their elements are split at every
comma, inside quotes too; elements of `String[]` keep their quotes while those of `ArrayList<String>` lose them; a map
ends at its first `}`. The scans mean what the reference's regular expressions mean, in linear time.
"""

from __future__ import annotations

import re
from typing import Any

from hubmerge.evaluation.function_calls.calls import enclosed, number_or_text

TYPES: dict[str, type] = {
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": bool,
    "char": str,
    "String": str,
    "any": str,
    "Array": list,
    "ArrayList": list,
    "HashMap": dict,
}
WITH_ITEMS = frozenset({"Array", "ArrayList"})

_INTEGER = re.compile(r"-?\d+$")
_LONG = re.compile(r"-?\d+[lL]$")
_DOUBLE = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?$")
_FLOAT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]$")
_AS_LIST = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\(")
_WITH_ADDS = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*")
_EMPTY_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{")
_MAP = re.compile(r"new\s+HashMap<")
_MAP_CREATED = re.compile(r">\s*\(\)")
_MAP_BODY = re.compile(r">\s*\(\)\s*\{\s*\{?\s*")
_SPACE = re.compile(r"\s*")


def java_value(text: str, declared: str, items: str | None = None) -> Any:
    """`text` as a value of the declared type, or `text` itself; ValueError for a type that has no conversion."""
    if declared not in TYPES:
        raise ValueError(f"no conversion to {declared}")
    if declared in ("byte", "short", "integer"):
        return int(text) if _INTEGER.match(text) else text
    if declared == "long":
        return int(text.rstrip("lL\n")) if _LONG.match(text) else text
    if declared == "double":
        return float(text) if _DOUBLE.match(text) else text
    if declared == "float":
        return float(text.rstrip("fF\n")) if _FLOAT.match(text) else text
    if declared == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if declared == "Array":
        return _array(text, items)
    if declared == "ArrayList":
        return _array_list(text, items)
    if declared == "HashMap":
        return _map(text)
    return text


def _element(text: str, items: str | None) -> Any:
    return java_value(text, items) if items else _untyped(text)


def _list_element(text: str, items: str | None) -> Any:
    return text[1:-1] if items in ("char", "String") else _element(text, items)


def _array(text: str, items: str | None) -> Any:
    inside = _after(_ARRAY, text, "}", 0)
    if inside is None:
        return text
    return [_element(part, items) for part in map(str.strip, inside.split(",")) if part]


def _array_list(text: str, items: str | None) -> Any:
    inside = _after(_AS_LIST, text, "))", 1)
    if inside is not None:
        return [_list_element(part.strip(), items) for part in inside.split(",")]
    body = _adds(text)
    if body is not None:
        return [_list_element(part.strip(), items) for part in enclosed(body, "add(", ")", 1)]
    return [] if _EMPTY_LIST.search(text) else text


def _after(header: re.Pattern[str], text: str, closing: str, least: int) -> str | None:
    """What stands between a match of `header` and the next `closing`, on one line, where that is so first."""
    for match in header.finditer(text):
        end = text.find(closing, match.end() + least)
        if end < 0:
            return None
        if text.find("\n", match.end(), end) < 0:
            return text[match.end() : end]
    return None


def _adds(text: str) -> str | None:
    """The body of `new ArrayList<T>() {{ add(1); add(2); }}`, if it is not empty."""
    header = _WITH_ADDS.search(text)
    end = text.find("}}", header.end() + 1) if header else -1
    return text[header.end() : end] if header and end >= 0 else None


def _map(text: str) -> Any:
    header = _MAP.search(text)
    if header is None:
        return text
    body = _MAP_BODY.search(text, header.end())
    end = text.find("}", body.end()) if body else -1
    if body and end >= 0:
        return _puts(text[body.end() : end])
    return {} if _MAP_CREATED.search(text, header.end()) else text


def _puts(body: str) -> dict[str, Any]:
    """The pairs of `put("key", value);`: key and value each on one line."""
    pairs: dict[str, Any] = {}
    position = 0
    while (start := body.find('put("', position)) >= 0:
        start += len('put("')
        newline = body.find("\n", start)
        position = len(body) if newline < 0 else newline  # what fails for one `put` fails for the rest of its line
        comma = body.find('",', start)
        while 0 <= comma < (len(body) if newline < 0 else newline):
            space = _SPACE.match(body, comma + 2)
            value = space.end() if space else comma + 2
            end = body.find(")", value)
            if end >= 0 and body.find("\n", value, end) < 0:
                pairs[body[start:comma]] = _untyped(body[value:end].strip())
                position = end + 1
                break
            comma = body.find('",', comma + 1)
    return pairs


def _untyped(text: str) -> Any:
    """A value without a declared type, by its look; numbers as Python reads them."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    if _LONG.match(text):
        return int(text[:-1])
    if _FLOAT.match(text):
        return float(text.rstrip("fF\n"))
    return number_or_text(text)
