"""How a seed is damaged: in its structure where it can be read, else in its bytes. The same edits give the same bytes.

Random bytes rarely pass a parser of JSON; a value of the wrong kind at the right place does. JSON and YAML are read for
that and written again.
"""

import copy
import json
import struct
from collections.abc import Sequence
from typing import Any

import yaml

Edit = tuple[int, int, int]  # what to do, where, with what; each is taken modulo what there is

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "a", "\0", "\ud800", "\u202e", "é☃", "\n---\n", "0.9"),
    *("1e5", "null", "no", "2026-11-22", "../../x", "/etc/passwd", "https://x/y", "org/model", "org/model@main"),
    *("a" * 300, "x" * 5000, "a--b.C", "{set}", "{", "{0}", "%s", "^a", "*", "**", "[", "\\", "<script>", "=1+1"),
    *([], [[]], [0], [None, None], ["a", "a"], [0.1, 0.9], {}, {"": ""}, {"a": {"a": {"a": {}}}}, [[1, 2], [3]]),
    *({"model": "org/x"}, {"filter": "mlp", "value": 1}, [{"filter": "mlp", "value": 1}, {"value": 0.5}]),
    *([{"name": "a", "type": "b"}], list(range(40)), {str(n): n for n in range(40)}),
)
TOKENS = (
    *(bytes([byte]) for byte in b'{}[]:,"\\\n\r\t#~%&!/*?\xff\xc3\0'),
    *(b"\r\n", b"---\n", b"- ", b"  ", b"&a", b"*a", b"!!", b"!!int x", b"!!timestamp x", b"!!python/name:os"),
    *(b"<<: ", b"? ", b"|\n", b">\n", b"NaN", b"1e999", b"-Infinity", b"9" * 50, b"9" * 5000, b"0x", b"1:30", b"010"),
    *(b"\xed\xa0\x80", b"**/", b"[a-", b"[!", b"\\ ", b"{}" * 50, b"[" * 200, b"a" * 100, b"\\ud800"),
    *(b'"\\UFFFFFFFF"', b'"\\U00110000"', b'"\\xff"', b"%YAML 1.99", b"[]", b"{}"),
    *(b"\xef\xbb\xbf", b"\x85", "\u2028".encode(), b" filter=lfs", b" -filter", b'{"a":' * 100, b"- " * 60),
)


def damaged(seed: bytes, kind: str, edits: Sequence[Edit]) -> bytes:
    """`seed` after the edits."""
    structure = [e for e in edits if e[0] % 4]
    if kind == "lines":
        lines = seed.split(b"\n")
        for edit in structure:
            place = edit[2] % len(lines)
            lines[place] = _edited(lines[place], "json", [edit])
        seed = b"\n".join(lines)
    elif kind != "text" and structure:
        seed = _edited(seed, kind, structure)
    for what, where, how in edits:
        if what % 4 == 0:
            seed = _spoilt(seed, what // 4, where, how)
    return seed


def _edited(seed: bytes, kind: str, edits: Sequence[Edit]) -> bytes:
    try:
        begin, value, end = _opened(seed, kind)
    except (ValueError, RecursionError, yaml.YAMLError, LookupError, TypeError, AttributeError, struct.error):
        return seed
    holder = [value]
    for what, where, how in edits:
        if holder:
            _change(*_place(holder, where), what, how, _place(holder, how))
    try:
        return begin + _closed(holder[0] if holder else None, kind, edits) + end
    except (ValueError, RecursionError, TypeError, yaml.YAMLError):
        return seed


def _opened(seed: bytes, kind: str) -> tuple[bytes, Any, bytes]:
    if kind == "header":
        (length,) = struct.unpack("<Q", seed[:8])
        return b"", json.loads(seed[8 : 8 + length]), seed[8 + length :]
    if kind == "json":
        return b"", json.loads(seed), b""
    if kind == "card":
        begin, block, end = seed.split(b"---\n", 2)
        return begin + b"---\n", yaml.load(block, yaml.CSafeLoader), b"---\n" + end
    return b"", yaml.load(seed, yaml.CSafeLoader), b""


def _closed(value: Any, kind: str, edits: Sequence[Edit]) -> bytes:
    style = sum(how for _, _, how in edits)
    if kind in ("json", "header"):
        text = json.dumps(value, ensure_ascii=kind == "header" or bool(style % 2)).encode("utf-8", "replace")
        return struct.pack("<Q", len(text)) + text if kind == "header" else text
    if style % 2:  # JSON is YAML
        return json.dumps(value).encode() + b"\n"
    return yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False).encode("utf-8", "replace")


def _place(holder: Any, where: int) -> tuple[Any, Any]:
    """One of the places where a value stands, at any depth."""
    table, key = holder, 0
    for _ in range(40):  # YAML's aliases may make a circle
        value = table[key]
        where, turn = divmod(where, len(value) + 1) if isinstance(value, dict | list) and value else (0, 0)
        if not isinstance(value, dict | list) or turn == len(value):
            break
        table, key = value, list(value)[turn] if isinstance(value, dict) else turn
    return table, key


def _change(table: Any, key: Any, what: int, how: int, other: tuple[Any, Any]) -> None:
    other_table, other_key = other
    match what // 4 % 8:
        case 0 | 1 | 2:
            table[key] = _copied(HOSTILE[how % len(HOSTILE)])
        case 3 if len(table) > 1:
            del table[key]
        case 4 if isinstance(table, dict):
            table[str(HOSTILE[how % len(HOSTILE)])[:200]] = table[key]
        case 5:
            table[key] = _copied(other_table[other_key])
        case 6:
            table[key] = [_copied(table[key])] * (how % 12 + 1)
        case 7 if isinstance(table[key], int | float):
            table[key] = table[key] * (how - 30_000) if abs(table[key]) < 1e300 else how
        case _:
            table[key] = {str(how): table[key]}


def _copied(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


def _spoilt(seed: bytes, what: int, where: int, how: int) -> bytes:
    at = where % (len(seed) + 1)
    size = how % 20 + 1
    match what % 5:
        case 0:
            return seed[:at] + TOKENS[how % len(TOKENS)] + seed[at:]
        case 1:
            return seed[:at] + seed[at + size :]
        case 2:
            return seed[:at] + bytes([how % 256]) + seed[at + 1 :]
        case 3:
            return seed[:at] + seed[at : at + size] * (how % 7) + seed[at:]
        case _:
            return seed[:at] + TOKENS[how % len(TOKENS)] + seed[at + size :]
