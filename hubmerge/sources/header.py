"""A strict parser for safetensors headers; it accepts a subset of what safetensors accepts.

A header comes from a stranger, so its length is checked before it is read, and its values are counted before JSON is
parsed: 25 MB of `[[],[],…` would cost a gigabyte there. Every table of it is checked as it is parsed: none may repeat a
key, and a table of a tensor has three known fields of plain integers and text. Then the byte ranges must follow one
another without hole or overlap up to the end of the file.

Format: 8 bytes little-endian header length N, N bytes of JSON, then the data.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
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

_OF_BYTES = {
    8: ("F64", "C64", "I64", "U64"),
    4: ("F32", "I32", "U32"),
    2: ("F16", "BF16", "I16", "U16"),
    1: ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "I8", "U8", "BOOL"),
}
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({d: size for size, dtypes in _OF_BYTES.items() for d in dtypes})

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*", re.ASCII)
_FIELDS = {"dtype", "shape", "data_offsets"}
_METADATA = "__metadata__"
_NO_WHOLE_BYTES = frozenset(("F4", "F6_E2M3", "F6_E3M2"))


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
    refuse = partial(_refuse, where)
    if raw[:1] != b"{":
        refuse("the safetensors header does not start with '{'", got=ascii(raw[:8]))
    # what a tensor of eight dimensions has of each: values, and of them keys and texts, which cost the most memory
    values, keys, quotes = raw.count(b",") + raw.count(b"[") + raw.count(b"{"), raw.count(b":"), raw.count(b'"')
    most = (14 * MAX_TENSORS, 4 * MAX_TENSORS + MAX_METADATA_ENTRIES, 10 * MAX_TENSORS + 4 * MAX_METADATA_ENTRIES)
    if values > most[0] or keys > most[1] or quotes > most[2]:
        refuse("the safetensors header holds too much", f"at most {MAX_TENSORS} tensors", "more")
    try:
        table = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=partial(_table, where),
            parse_int=_integer,
            parse_float=_no_integer,
            parse_constant=_no_integer,
        )
        if not isinstance(table, dict):
            refuse("the safetensors header is no table of tensors", got=ascii(table))
        metadata = _metadata(table.pop(_METADATA, {}), where)
        position = 8 + len(raw)
        entries = [_entry(name, fields, position, where) for name, fields in table.items()]
    except (ValueError, RecursionError) as error:  # also of showing what is nested as deep as json.loads goes
        refuse("the safetensors header is malformed", "JSON of text and plain integers", str(error))
    entries.sort(key=lambda e: (e.begin, e.end))
    for entry in entries:
        if entry.begin != position:
            refuse(
                f"the bytes of {entry.name!r} overlap others or leave a hole", f"offset {position}", str(entry.begin)
            )
        position = entry.end
    if position != file_bytes:
        refuse("the tensors do not cover the file exactly", f"{position} bytes", str(file_bytes))
    return Header(tuple(entries), MappingProxyType(metadata), 8 + len(raw))


def _refuse(where: str, what: str, expected: str = "", got: str = "") -> NoReturn:
    step = "The file is corrupt or hostile; use another one."
    raise HeaderError(what, where=where, expected=expected, got=got[:120], next_step=step)


def _integer(digits: str) -> int:
    if len(digits) > 19 or digits.startswith("-"):
        raise ValueError(f"the number {digits[:40]}")
    return int(digits)


def _no_integer(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]}")


def _table(where: str, pairs: list[tuple[str, Any]]) -> Any:
    """A table of the header; one of a tensor as (dtype, shape, offsets), which takes a third of the memory."""
    if (more := len(pairs) - MAX_TENSORS) > 0 and more > sum(key == _METADATA for key, _ in pairs):
        _refuse(where, "the safetensors header has too many tensors", f"at most {MAX_TENSORS}", "more")
    table = dict(pairs)
    if len(table) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        _refuse(where, "the safetensors header repeats a key", got=ascii(repeated))
    if table.keys() == _FIELDS:
        dtype, shape, offsets = table["dtype"], table["shape"], table["data_offsets"]
        if isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list):
            return dtype, tuple(shape), tuple(offsets)
    return table


def _metadata(table: Any, where: str) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        _refuse(where, "__metadata__ is no table of strings", got=ascii(table)[:120])
    try:
        size = sum(len(text.encode()) for pair in table.items() for text in pair)
    except UnicodeEncodeError:  # half of a surrogate pair is no text, though Python's parser lets it pass
        _refuse(where, "__metadata__ holds a string that is no UTF-8 text")
    if size > MAX_METADATA_BYTES or len(table) > MAX_METADATA_ENTRIES:
        _refuse(where, "__metadata__ is too large", f"{MAX_METADATA_BYTES} bytes, {MAX_METADATA_ENTRIES} entries")
    return table


def _entry(name: str, fields: Any, data_begin: int, where: str) -> TensorEntry:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or ".." in name:
        allowed = f"letters, digits, '_', '.', '-', at most {MAX_NAME} characters"
        _refuse(where, "a tensor has a name that is not allowed", allowed, ascii(name[: 2 * MAX_NAME]))
    if not isinstance(fields, tuple) or any(type(n) is not int for numbers in fields[1:] for n in numbers):
        expected = "a dtype, a shape and data_offsets of plain integers"
        _refuse(where, f"the entry of {name!r} has wrong fields", expected, ascii(fields)[:120])
    dtype, shape, offsets = fields
    if dtype in _NO_WHOLE_BYTES:
        raise HeaderError(
            f"{name!r} has a dtype of less than a byte, which is not read",
            where=where,
            expected=", ".join(DTYPE_BYTES),
            got=dtype,
            next_step="Use the model before it was quantized.",
        )
    if dtype not in DTYPE_BYTES:
        _refuse(where, f"{name!r} has an unknown dtype", ", ".join(DTYPE_BYTES), ascii(dtype))
    if len(shape) > MAX_DIMENSIONS:
        _refuse(where, f"{name!r} has too many dimensions", f"at most {MAX_DIMENSIONS}", str(len(shape)))
    if any(n > MAX_DIMENSION for n in shape) or prod(n or 1 for n in shape) > MAX_ELEMENTS:
        _refuse(where, f"{name!r} has an impossible shape", f"integers from 0 to {MAX_DIMENSION}", repr(shape))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(where, f"{name!r} has impossible data_offsets", "[begin, end] with begin <= end", repr(offsets))
    size = prod(shape) * DTYPE_BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        _refuse(where, f"{name!r} has a byte range of the wrong size", f"{size} bytes", str(offsets[1] - offsets[0]))
    return TensorEntry(name, dtype, shape, data_begin + offsets[0], data_begin + offsets[1])


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
