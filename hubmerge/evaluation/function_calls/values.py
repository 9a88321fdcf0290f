"""The types that functions declare, and the text of a Java or JavaScript value → a value of Python.

Where the text is no literal of its declared type it stays text, and then only a key that allows that text (a variable's
name, say) accepts it. These are bfcl-eval's conventions, and its regular expressions where hostile text cannot make
those slow. In Java collections are found anywhere in the text, a map ends at its first `}`, and elements of `String[]`
keep their quotes while those of `ArrayList<String>` lose them. In JavaScript an array or object ends at its first
closing bracket on the same line, and quotes around an object's value are dropped before the value is read, so that
`"5"` there is the number 5. Elements are split at every comma, inside quotes too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Language = Literal["python", "java", "javascript"]
MAX_COLLECTION_CHARACTERS = 2048  # some expressions take the square of it; no gold answer has more than 341


@dataclass(frozen=True)
class Declared:
    """A type that a parameter can have."""

    kind: type  # in Python
    read: Callable[[str, str | None], Any] | None = None  # of a value's text and its items' type; None: stays text
    has_items: bool = False


def read_value(text: str, language: Language, declared: str, items: str | None = None) -> Any:
    """`text` as a value of the declared type, or `text` itself; ValueError for a type that has no conversion."""
    if declared not in TYPES[language]:
        raise ValueError(f"no conversion to {declared}")
    read = TYPES[language][declared].read
    return read(text, items) if read else text


def _literal(pattern: str, read: Callable[[str], Any]) -> Callable[[str, str | None], Any]:
    """Reads text that is a literal of this pattern."""
    looks = re.compile(f"(?:{pattern})$")
    return lambda text, _: read(text) if looks.match(text) else text


_INTEGER = _literal(r"-?\d+", int)
_DOUBLE = _literal(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", float)
_FLOAT = _literal(r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]", lambda text: float(text.rstrip("fF\n")))
_LONG = _literal(r"-?\d+[lL]", lambda text: int(text.rstrip("lL\n")))


def _boolean(text: str, _: str | None) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _without_type(text: str) -> Any:
    """A value without a declared type, by its look; numbers as Python reads them."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return _boolean(text, None)


# --- Java --------------------------------------------------------------------------------------------------

_AS_LIST = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_WITH_ADDS = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*+(.+?)\}\}", re.DOTALL)
_EMPTY_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_WITH_PUTS = re.compile(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?([^}]*)\}", re.DOTALL)
_EMPTY_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)")
_PUT = re.compile(r'put\("(.*?)",\s*+([^)\n]*)\)')


def _java_array(text: str, items: str | None) -> Any:
    found = _ARRAY.search(text) if len(text) <= MAX_COLLECTION_CHARACTERS else None
    return [_java_item(part, items) for part in map(str.strip, found[1].split(",")) if part] if found else text


def _java_list(text: str, items: str | None) -> Any:
    if len(text) > MAX_COLLECTION_CHARACTERS:
        return text
    if listed := _AS_LIST.search(text):
        parts = listed[1].split(",")
    elif added := _WITH_ADDS.search(text):
        parts = re.findall(r"add\((.+?)\)", added[1])
    else:
        return [] if _EMPTY_LIST.search(text) else text
    quoted = items in ("char", "String")
    return [part.strip()[1:-1] if quoted else _java_item(part.strip(), items) for part in parts]


def _java_map(text: str, _: str | None) -> Any:
    if len(text) > MAX_COLLECTION_CHARACTERS:
        return text
    if body := _WITH_PUTS.search(text):
        return {key: _java_item(value.strip(), None) for key, value in _PUT.findall(body[1])}
    return {} if _EMPTY_MAP.search(text) else text


def _java_item(text: str, items: str | None) -> Any:
    if items:
        return read_value(text, "java", items)
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for read in (_LONG, _FLOAT):
        value = read(text, None)
        if value is not text:
            return value
    return _without_type(text)


# --- JavaScript --------------------------------------------------------------------------------------------

# `[[1], [2]]` or `new Array([1], [2])`: a row is on one line, the space around the comma between two rows need not be
_ROWS = re.compile(
    r"(?:(\[)|new\s+Array\()\s*\["
    r"(?:.*\](?=[^\S\n]*,?[^\S\n]*\n)\s*,\s*\[)*?"
    r".*?\]\s*(?(1)\]|\))"
)
_LIST = re.compile(r"\[(.*?)\]|new\s+Array\((.*?)\)")
_OBJECT = re.compile(r"\{(.*?)\}")
_PAIR = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")  # a comma ends a value only where a further key follows


def unquoted(text: str, _: str | None = None) -> str:
    return text[1:-1] if text[:1] in ("'", '"') and text.endswith(text[0]) else text


def _javascript_array(text: str, items: str | None) -> Any:
    code = text.strip()
    if len(code) > MAX_COLLECTION_CHARACTERS:
        return code
    if table := _ROWS.match(code):
        rows = [row.strip() for row in re.findall(r"\[(.*?)\]", table[0])]
        rows[0] = rows[0].removeprefix("[")  # the outer bracket opened this one
        return [[_javascript_item(part) for part in row.split(",")] for row in rows]
    found = _LIST.match(code)
    if found is None:
        return code
    inside = (found[1] if found[1] is not None else found[2]).strip()
    parts = [part.strip() for part in inside.split(",")] if inside else []
    if not items:
        return [_javascript_item(part) for part in parts]
    try:
        return [read_value(part, "javascript", items) for part in parts]
    except ValueError:
        return code


def _javascript_object(text: str, _: str | None) -> Any:
    code = text.strip()
    found = _OBJECT.match(code) if len(code) <= MAX_COLLECTION_CHARACTERS else None
    if found is None:
        return code
    read: dict[str, Any] = {}
    for key, value in _PAIR.findall(found[1]):
        is_array = value.strip().startswith("[") and value.strip().endswith("]")
        shown = value.strip() if is_array else value.strip().strip("'\"")
        read[key.strip().strip("'\"")] = _javascript_array(shown, None) if is_array else _javascript_item(shown)
    return read


def _javascript_item(text: str) -> Any:
    text = text.strip()
    inside = unquoted(text)
    return inside if inside != text else _without_type(text)


TYPES: Mapping[Language, Mapping[str, Declared]] = {
    "python": {
        "string": Declared(str),
        "integer": Declared(int),
        "float": Declared(float),
        "boolean": Declared(bool),
        "array": Declared(list, has_items=True),
        "tuple": Declared(list, has_items=True),
        "dict": Declared(dict),
        "any": Declared(str),
    },
    "java": {
        "byte": Declared(int, _INTEGER),
        "short": Declared(int, _INTEGER),
        "integer": Declared(int, _INTEGER),
        "long": Declared(int, _LONG),
        "float": Declared(float, _FLOAT),
        "double": Declared(float, _DOUBLE),
        "boolean": Declared(bool, _boolean),
        "char": Declared(str),
        "String": Declared(str),
        "any": Declared(str),
        "Array": Declared(list, _java_array, has_items=True),
        "ArrayList": Declared(list, _java_list, has_items=True),
        "HashMap": Declared(dict, _java_map),
    },
    "javascript": {
        "String": Declared(str, unquoted),
        "integer": Declared(int, _INTEGER),
        "float": Declared(float, _literal(r"-?\d+(\.\d+)?", float)),
        "Bigint": Declared(int, _literal(r"-?\d+n", lambda text: int(text[:-1]))),
        "Boolean": Declared(bool, _boolean),
        "dict": Declared(dict, _javascript_object),
        "array": Declared(list, _javascript_array, has_items=True),
        "any": Declared(str),
    },
}
