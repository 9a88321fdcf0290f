"""A strict parser for safetensors headers; it accepts a subset of what safetensors accepts.

A header comes from a stranger, so its length is checked before it is read, and no JSON parser sees it: 25 MB of
`[[],[],…` would cost a gigabyte there before anything can be checked. A header's grammar is much smaller than JSON's
(one table of strings, and per tensor one table of three known fields). So the parser scans it front to back by that
grammar and refuses it at the first byte that no well-behaved writer would write. Nesting, floats, booleans, signs, NaN,
unknown fields and escaped names cannot even be expressed. The parser then checks for repeated names, checks sizes, and
checks that the byte ranges follow one another without hole or overlap up to the end of the file.

Format: 8 bytes little-endian header length N, N bytes of JSON, then the data.
"""

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn

from hubmerge.errors import HeaderError

MAX_HEADER_BYTES = 25_000_000
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 8
MAX_DIMENSION = 2**40  # elements along one axis; far above any model, far below overflow
MAX_ELEMENTS = 2**60  # of a tensor, zeros left aside: safetensors multiplies in 64 bits
MAX_NAME = 256  # characters
MAX_METADATA_BYTES = 4_000_000
MAX_METADATA_ENTRIES = 10_000

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("F64", "C64", "I64", "U64"), 8),
        **dict.fromkeys(("F32", "I32", "U32"), 4),
        **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
        **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "I8", "U8", "BOOL"), 1),
    }
)

# Quantifiers are possessive: the grammar is deterministic, so a match never has to be given back.
_WS = rb"[ \t\n\r]*+"
_INTEGER = rb"(?:0|[1-9][0-9]{0,18}+)"
_LIST = rb"\[" + _WS + rb"(?:" + _INTEGER + _WS + rb"(?:," + _WS + _INTEGER + _WS + rb")*+)?+\]"
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_FIELD = _WS + rb'"([a-z_]++)"' + _WS + rb":" + _WS + rb'("[A-Z0-9_]++"|' + _LIST + rb")" + _WS
_ENTRY = re.compile(_WS + rb"\{" + _FIELD + rb"," + _FIELD + rb"," + _FIELD + rb"\}" + _WS)
_KEY = re.compile(_WS + rb"(" + _STRING + rb")" + _WS + rb":" + _WS)
_TEXT = re.compile(rb"(" + _STRING + rb")" + _WS + rb":" + _WS + rb"(" + _STRING + rb")")
_TEXTS = _STRING + _WS + rb":" + _WS + _STRING + _WS
_TABLE = re.compile(rb"\{" + _WS + rb"(?:" + _TEXTS + rb"(?:," + _WS + _TEXTS + rb")*+)?+(\}?+)" + _WS)
_EMPTY = re.compile(rb"\{" + _WS + rb"\}")
_NUMBER = re.compile(rb"[0-9]++")
_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.\-]*+")
_FIELDS = {b"dtype", b"shape", b"data_offsets"}
_NO_WHOLE_BYTES = frozenset(("F4", "F6_E2M3", "F6_E3M2"))

_REFETCH = "The file is corrupt or hostile; fetch it again, or use another one."

Refuse = Callable[..., NoReturn]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str  # safetensors' name: BF16, F32, …
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """One parsed header; tensors in the order of their offsets."""

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_begin: int  # bytes: 8 + header length


def header_length(prefix: bytes, where: str) -> int:
    """The length in bytes of the JSON part, from a file's first 8 bytes."""
    if len(prefix) < 8:
        raise HeaderError(
            "the file is too short for a safetensors header",
            where=where,
            expected="at least 8 bytes",
            got=str(len(prefix)),
        )
    (length,) = struct.unpack("<Q", prefix[:8])
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise HeaderError(
            "the safetensors header has an impossible length",
            where=where,
            expected=f"2 to {MAX_HEADER_BYTES} bytes",
            got=str(length),
            next_step="Do not trust this file.",
        )
    return int(length)


def parse_header(raw: bytes, file_bytes: int, where: str) -> Header:
    """Parse the JSON part `raw`, as long as `header_length` said, of a file of `file_bytes` bytes, which `where` names.

    Raises HeaderError for everything that a well-behaved writer would not write.
    """

    def refuse(what: str, expected: str = "", got: str = "", step: str = _REFETCH) -> NoReturn:
        raise HeaderError(what, where=where, expected=expected, got=got[:120], next_step=step)

    def unexpected(at: int, expected: str) -> NoReturn:
        refuse(f"the safetensors header is malformed at byte {at}", expected, ascii(raw[at : at + 40]))

    if raw[:1] != b"{":
        refuse("the safetensors header does not start with '{'", got=ascii(raw[:8]))
    entries: dict[str, TensorEntry] = {}
    metadata: dict[str, str] | None = None
    empty = _EMPTY.match(raw)
    at, following = (empty.end(), b"}") if empty else (1, b",")
    while following == b",":
        key = _KEY.match(raw, at)
        if key is None:
            unexpected(at, "a key in quotes")
        name, at = key[1][1:-1], key.end()
        if name == b"__metadata__":
            value = _TABLE.match(raw, at)
            if value is None or not value[1]:
                unexpected(value.end() if value else at, "__metadata__: a table of strings")
            if metadata is not None:
                refuse("the safetensors header repeats a key", got="'__metadata__'")
            metadata = _texts(value[0], refuse)
        else:
            text = _tensor_name(name, refuse)
            if text in entries:
                refuse("the safetensors header repeats a key", got=repr(text))
            if len(entries) == MAX_TENSORS:
                refuse("the safetensors header has too many tensors", f"at most {MAX_TENSORS}", "more")
            value = _ENTRY.match(raw, at)
            if value is None:
                unexpected(at, f"{text!r}: a dtype, a shape and data_offsets of plain integers")
            entries[text] = _entry(text, value, 8 + len(raw), refuse)
        at, following = value.end() + 1, raw[value.end() : value.end() + 1]
    if following != b"}":
        unexpected(at - 1, "',' or '}'")
    if raw[at:].strip(b" \t\n\r"):
        unexpected(at, "the end of the header")
    stored = sorted(entries.values(), key=lambda e: (e.begin, e.end))
    position = 8 + len(raw)
    for entry in stored:
        if entry.begin != position:
            what = f"the bytes of {entry.name!r} overlap others or leave a hole"
            refuse(what, f"offset {position}", str(entry.begin))
        position = entry.end
    if position != file_bytes:
        refuse("the tensors do not cover the file exactly", f"{position} bytes", str(file_bytes))
    return Header(tuple(stored), MappingProxyType(metadata or {}), 8 + len(raw))


def _tensor_name(name: bytes, refuse: Refuse) -> str:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or b".." in name:
        allowed = f"letters, digits, '_', '.', '-', at most {MAX_NAME} characters"
        got = ascii(name[: 2 * MAX_NAME].decode("utf-8", "replace"))
        refuse("a tensor has a name that is not allowed", allowed, got)
    return name.decode("ascii")


def _entry(name: str, match: re.Match[bytes], data: int, refuse: Refuse) -> TensorEntry:
    fields = {match[1]: match[2], match[3]: match[4], match[5]: match[6]}
    if fields.keys() != _FIELDS:
        refuse(f"the entry of {name!r} has wrong fields", "dtype, shape, data_offsets", ascii(match[0][:120]))
    dtype = fields[b"dtype"].strip(b'"').decode("ascii")
    if dtype in _NO_WHOLE_BYTES:
        what, step = "a dtype of less than a byte, which is not read", "Use the model before it was quantized."
        refuse(f"{name!r} has {what}", ", ".join(DTYPE_BYTES), dtype, step)
    if dtype not in DTYPE_BYTES or fields[b"dtype"][:1] != b'"':
        refuse(f"{name!r} has an unknown dtype", ", ".join(DTYPE_BYTES), dtype)
    lists = [fields[b"shape"], fields[b"data_offsets"]]
    for written in lists:
        if written[:1] != b"[":
            refuse(f"{name!r} has a shape or data_offsets that is no list", got=ascii(written[:40]))
        if written.count(b",") >= MAX_DIMENSIONS:
            refuse(f"{name!r} has too many dimensions", f"at most {MAX_DIMENSIONS}", str(written.count(b",") + 1))
    shape, offsets = (tuple(map(int, _NUMBER.findall(written))) for written in lists)
    if any(n > MAX_DIMENSION for n in shape) or prod(n or 1 for n in shape) > MAX_ELEMENTS:
        refuse(f"{name!r} has an impossible shape", f"integers from 0 to {MAX_DIMENSION}", repr(shape))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(f"{name!r} has impossible data_offsets", "[begin, end] with begin <= end", repr(offsets))
    size = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        refuse(f"{name!r} has a byte range of the wrong size", f"{size} bytes", str(offsets[1] - offsets[0]))
    return TensorEntry(name, dtype, shape, data + offsets[0], data + offsets[1])


def _texts(table: bytes, refuse: Refuse) -> dict[str, str]:
    """The content of `__metadata__`."""
    if len(table) > MAX_METADATA_BYTES or len(pairs := _TEXT.findall(table)) > MAX_METADATA_ENTRIES:
        refuse("__metadata__ is too large", f"{MAX_METADATA_BYTES} bytes, {MAX_METADATA_ENTRIES} entries")
    found: dict[str, str] = {}
    for pair in pairs:
        try:
            key, value = (str(json.loads(text.decode("utf-8"))) for text in pair)
            (key + value).encode("utf-8")  # half of a surrogate pair is no text, though Python's parser lets it pass
        except ValueError:
            refuse("__metadata__ holds a string that is no UTF-8 text", got=ascii(b": ".join(pair)[:40]))
        if key in found:
            refuse("the safetensors header repeats a key", got=ascii(key))
        found[key] = value
    return found


def serialize_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header for tensors (name, dtype, shape) stored in the given order.

    Returns the file's first bytes (length, JSON, padding to 8) and each tensor's (begin, end) in the file.
    """
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    relative: dict[str, tuple[int, int]] = {}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + prod(shape) * DTYPE_BYTES[dtype]
        relative[name] = (begin, end)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligned data, as the reference writer does
    data = 8 + len(text)
    ranges = {name: (data + begin, data + end) for name, (begin, end) in relative.items()}
    return struct.pack("<Q", len(text)) + text, ranges
