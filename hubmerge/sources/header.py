"""A strict parser for safetensors headers: what it accepts is a subset of what safetensors accepts.

A header comes from a stranger, so everything is checked before anything is believed: its length before it is
read, the number of brackets before JSON is parsed (a JSON bomb costs memory while it is parsed), duplicate
keys, unknown fields, integer types, names, shapes, and that the byte ranges follow one another without hole or
overlap and end exactly at the end of the file.

Format: 8 bytes little-endian header length N, N bytes of JSON, then the data.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from hubmerge.errors import HeaderError

MAX_HEADER_BYTES = 25_000_000
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 8
MAX_DIMENSION = 2**40  # elements along one axis; far above any model, far below overflow
MAX_NAME = 256  # characters

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "F64": 8,
        "F32": 4,
        "F16": 2,
        "BF16": 2,
        "F8_E4M3": 1,
        "F8_E5M2": 1,
        "I64": 8,
        "I32": 4,
        "I16": 2,
        "I8": 1,
        "U64": 8,
        "U32": 4,
        "U16": 2,
        "U8": 1,
        "BOOL": 1,
    }
)


class Refuse(Protocol):
    def __call__(self, what: str, expected: str = "", got: str = "") -> NoReturn: ...


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True)
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
    """Parse the JSON part `raw` of a file of `file_bytes` bytes; `where` names the file in errors.

    Raises HeaderError for everything that a well-behaved writer would not write.
    """

    def refuse(what: str, expected: str = "", got: str = "") -> NoReturn:
        raise HeaderError(
            what,
            where=where,
            expected=expected,
            got=got[:120],
            next_step="The file is corrupt or hostile; use another one.",
        )

    if len(raw) > MAX_HEADER_BYTES:
        refuse("the safetensors header is too long", f"{MAX_HEADER_BYTES} bytes", str(len(raw)))
    for bracket, limit in ((b"{", MAX_TENSORS + 2), (b"[", 2 * MAX_TENSORS), (b",", 16 * MAX_TENSORS)):
        if raw.count(bracket) > limit:
            refuse("the safetensors header describes too much", f"at most {MAX_TENSORS} tensors")
    table = _strict_json(raw, refuse)
    data_begin = 8 + len(raw)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        refuse("__metadata__ is not a table of strings")
    if len(table) > MAX_TENSORS:
        refuse("the safetensors header has too many tensors", f"at most {MAX_TENSORS}", str(len(table)))
    entries = sorted(
        (_entry(name, fields, data_begin, refuse) for name, fields in table.items()),
        key=lambda e: (e.begin, e.end),
    )
    position = data_begin
    for entry in entries:
        if entry.begin != position:
            refuse(
                f"the bytes of {entry.name!r} overlap others or leave a hole", f"offset {position}", str(entry.begin)
            )
        position = entry.end
    if position != file_bytes:
        refuse("the tensors do not cover the file exactly", f"{position} bytes", str(file_bytes))
    return Header(tuple(entries), MappingProxyType(dict(metadata)), data_begin)


def _strict_json(raw: bytes, refuse: Refuse) -> dict[str, Any]:
    def no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                refuse("the safetensors header repeats a key", got=repr(key))
            result[key] = value
        return result

    def no_constant(text: str) -> NoReturn:
        refuse("the safetensors header has a number that is no integer", got=text)

    if raw[:1] != b"{":
        refuse("the safetensors header does not start with '{'", got=repr(raw[:8]))
    try:
        table = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=no_duplicates,
            parse_float=no_constant,
            parse_constant=no_constant,
        )
    except RecursionError:
        refuse("the safetensors header is nested too deeply")
    except ValueError as error:  # bad UTF-8, bad JSON, integers of thousands of digits
        refuse("the safetensors header is not JSON", got=str(error))
    if not isinstance(table, dict):
        refuse("the safetensors header is not a JSON object")
    return table


def _entry(name: str, fields: Any, data_begin: int, refuse: Refuse) -> TensorEntry:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or ".." in name:
        refuse(
            "a tensor has a name that is not allowed",
            f"letters, digits, '_', '.', '-', at most {MAX_NAME} characters",
            ascii(name),
        )
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        refuse(f"the entry of {name!r} has wrong fields", "dtype, shape, data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        refuse(f"{name!r} has an unknown dtype", ", ".join(DTYPE_BYTES), repr(dtype))
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        refuse(f"{name!r} has a shape that is no list of at most {MAX_DIMENSIONS} integers")
    # bool is a subclass of int in Python, so the type is compared exactly
    if not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in shape):
        refuse(f"{name!r} has an impossible shape", f"integers from 0 to {MAX_DIMENSION}", repr(shape))
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(n) is int for n in offsets)
        or not 0 <= offsets[0] <= offsets[1]
    ):
        refuse(f"{name!r} has impossible data_offsets", "[begin, end] with 0 <= begin <= end", repr(offsets))
    size = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        refuse(f"{name!r} has a byte range of the wrong size", f"{size} bytes", str(offsets[1] - offsets[0]))
    return TensorEntry(name, dtype, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])


def serialize_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header for tensors (name, dtype, shape) stored in the given order.

    Returns the file's first bytes (length, JSON, padding to 8) and each tensor's (begin, end) in the file.
    """
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    relative: dict[str, tuple[int, int]] = {}
    for name, dtype, shape in tensors:
        size = prod(shape) * DTYPE_BYTES[dtype]
        relative[name] = (position, position + size)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligned data, as the reference writer does
    begin = 8 + len(text)
    return (
        struct.pack("<Q", len(text)) + text,
        {name: (begin + start, begin + end) for name, (start, end) in relative.items()},
    )
