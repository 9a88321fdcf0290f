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
        "F64": 8,
        "F32": 4,
        "F16": 2,
        "BF16": 2,
        "C64": 8,
        "F8_E4M3": 1,
        "F8_E5M2": 1,
        "F8_E4M3FNUZ": 1,
        "F8_E5M2FNUZ": 1,
        "F8_E8M0": 1,
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

# Quantifiers are possessive: the grammar is deterministic, so a match never has to be given back.
_WS = rb"[ \t\n\r]*+"
_INTEGER = rb"(?:0|[1-9][0-9]{0,18}+)"
_LIST = rb"\[" + _WS + rb"(?:" + _INTEGER + _WS + rb"(?:," + _WS + _INTEGER + _WS + rb")*+)?+\]"
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_FIELD = _WS + rb'"([a-z_]++)"' + _WS + rb":" + _WS + rb'("[A-Z0-9_]++"|' + _LIST + rb")" + _WS
_ENTRY = re.compile(_WS + rb"\{" + _FIELD + rb"," + _FIELD + rb"," + _FIELD + rb"\}" + _WS)
_KEY = re.compile(_WS + rb"(" + _STRING + rb")" + _WS + rb":")
_TEXT = re.compile(_WS + rb"(" + _STRING + rb")" + _WS)
_OPEN = re.compile(_WS + rb"\{")
_CLOSE = re.compile(_WS + rb"\}")
_SPACE = re.compile(_WS)
_NUMBER = re.compile(rb"[0-9]++")
_NAME = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_.\-]*+")
_FIELDS = {b"dtype", b"shape", b"data_offsets"}
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
    scanner = _Scanner(raw, where)
    scanner.table()
    entries = sorted(scanner.entries.values(), key=lambda e: (e.begin, e.end))
    position = 8 + len(raw)
    for entry in entries:
        if entry.begin != position:
            scanner.refuse(
                f"the bytes of {entry.name!r} overlap others or leave a hole", f"offset {position}", str(entry.begin)
            )
        position = entry.end
    if position != file_bytes:
        scanner.refuse("the tensors do not cover the file exactly", f"{position} bytes", str(file_bytes))
    return Header(tuple(entries), MappingProxyType(scanner.metadata), 8 + len(raw))


class _Scanner:
    """One pass over the bytes of a header, by its grammar."""

    def __init__(self, raw: bytes, where: str) -> None:
        self.entries: dict[str, TensorEntry] = {}
        self.metadata: dict[str, str] = {}
        self._raw = raw
        self._where = where
        self._at = 0
        self._seen_metadata = False

    def refuse(self, what: str, expected: str = "", got: str = "") -> NoReturn:
        raise HeaderError(
            what,
            where=self._where,
            expected=expected,
            got=got[:120],
            next_step="The file is corrupt or hostile; fetch it again, or use another one.",
        )

    def table(self) -> None:
        """`{"name": entry, …}` and nothing after it but white space."""
        if self._raw[:1] != b"{":
            self.refuse("the safetensors header does not start with '{'", got=ascii(self._raw[:8]))
        self._at = 1
        self._members(self._member)
        self._skip_space()
        if self._at != len(self._raw):
            self._unexpected("the end of the header")

    def _members(self, member: Callable[[], None]) -> None:
        """`member, member, …}` or `}` alone, with `member` called at each; the opening brace is behind us."""
        if closed := _CLOSE.match(self._raw, self._at):
            self._at = closed.end()
            return
        while True:
            member()
            following = self._raw[self._at : self._at + 1]
            self._at += 1
            if following == b"}":
                return
            if following != b",":
                self._at -= 1
                self._unexpected("',' or '}'")

    def _member(self) -> None:
        name = self._key()
        if name == b"__metadata__":
            self._metadata_table()
            return
        if len(name) > MAX_NAME or not _NAME.fullmatch(name) or b".." in name:
            self.refuse(
                "a tensor has a name that is not allowed",
                f"letters, digits, '_', '.', '-', at most {MAX_NAME} characters",
                ascii(name[: 2 * MAX_NAME].decode("utf-8", "replace")),
            )
        text = name.decode("ascii")
        if text in self.entries:
            self.refuse("the safetensors header repeats a key", got=repr(text))
        if len(self.entries) == MAX_TENSORS:
            self.refuse("the safetensors header has too many tensors", f"at most {MAX_TENSORS}", "more")
        self.entries[text] = self._entry(text)

    def _entry(self, name: str) -> TensorEntry:
        match = _ENTRY.match(self._raw, self._at)
        if match is None:
            self._skip_space()
            self._unexpected(f"{name!r}: a dtype, a shape and data_offsets of plain integers")
        self._at = match.end()
        fields = {match[1]: match[2], match[3]: match[4], match[5]: match[6]}
        if fields.keys() != _FIELDS:
            self.refuse(f"the entry of {name!r} has wrong fields", "dtype, shape, data_offsets", ascii(match[0][:120]))
        dtype = fields[b"dtype"].strip(b'"').decode("ascii")
        if dtype in _NO_WHOLE_BYTES:
            raise HeaderError(
                f"{name!r} has a dtype of less than a byte, which is not read",
                where=self._where,
                expected=", ".join(DTYPE_BYTES),
                got=dtype,
                next_step="Use the model before it was quantized.",
            )
        if dtype not in DTYPE_BYTES or fields[b"dtype"][:1] != b'"':
            self.refuse(f"{name!r} has an unknown dtype", ", ".join(DTYPE_BYTES), dtype)
        shape, offsets = self._integers(name, fields[b"shape"]), self._integers(name, fields[b"data_offsets"])
        if len(shape) > MAX_DIMENSIONS:
            self.refuse(f"{name!r} has too many dimensions", f"at most {MAX_DIMENSIONS}", str(len(shape)))
        if any(n > MAX_DIMENSION for n in shape) or prod(n or 1 for n in shape) > MAX_ELEMENTS:
            self.refuse(f"{name!r} has an impossible shape", f"integers from 0 to {MAX_DIMENSION}", repr(shape))
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            self.refuse(f"{name!r} has impossible data_offsets", "[begin, end] with begin <= end", repr(offsets))
        size = prod(shape) * DTYPE_BYTES[dtype]
        if offsets[1] - offsets[0] != size:
            self.refuse(f"{name!r} has a byte range of the wrong size", f"{size} bytes", str(offsets[1] - offsets[0]))
        begin = 8 + len(self._raw)
        return TensorEntry(name, dtype, shape, begin + offsets[0], begin + offsets[1])

    def _integers(self, name: str, field: bytes) -> tuple[int, ...]:
        if field[:1] != b"[":
            self.refuse(f"{name!r} has a shape or data_offsets that is no list", got=ascii(field[:40]))
        if field.count(b",") > MAX_DIMENSIONS:
            self.refuse(f"{name!r} has too many dimensions", f"at most {MAX_DIMENSIONS}", "more")
        return tuple(int(n) for n in _NUMBER.findall(field))

    def _metadata_table(self) -> None:
        if self._seen_metadata:
            self.refuse("the safetensors header repeats a key", got="'__metadata__'")
        self._seen_metadata = True
        opened = _OPEN.match(self._raw, self._at)
        if opened is None:
            self._unexpected("__metadata__: a table of strings")
        self._at = opened.end()
        start = self._at
        self._members(lambda: self._text_pair(start))
        self._skip_space()

    def _text_pair(self, start: int) -> None:
        key = self._string(b'"' + self._key() + b'"')
        match = _TEXT.match(self._raw, self._at)
        if match is None:
            self._unexpected("__metadata__: a string")
        self._at = match.end()
        if self._at - start > MAX_METADATA_BYTES or len(self.metadata) == MAX_METADATA_ENTRIES:
            self.refuse("__metadata__ is too large", f"{MAX_METADATA_BYTES} bytes, {MAX_METADATA_ENTRIES} entries")
        if key in self.metadata:
            self.refuse("the safetensors header repeats a key", got=ascii(key))
        self.metadata[key] = self._string(match[1])

    def _key(self) -> bytes:
        """The bytes between the quotes of the next `"key":`."""
        match = _KEY.match(self._raw, self._at)
        if match is None:
            self._unexpected("a key in quotes")
        self._at = match.end()
        return match[1][1:-1]

    def _string(self, token: bytes) -> str:
        if len(token) > MAX_METADATA_BYTES:
            self.refuse("__metadata__ is too large", f"{MAX_METADATA_BYTES} bytes")
        try:
            value = str(json.loads(token.decode("utf-8")))
            value.encode("utf-8")  # half of a surrogate pair is no text, though Python's parser lets it pass
        except ValueError:
            self.refuse("__metadata__ holds a string that is no UTF-8 text", got=ascii(token[:40]))
        return value

    def _skip_space(self) -> None:
        match = _SPACE.match(self._raw, self._at)
        assert match is not None  # it matches nothing, too
        self._at = match.end()

    def _unexpected(self, expected: str) -> NoReturn:
        self.refuse(
            f"the safetensors header is malformed at byte {self._at}",
            expected,
            ascii(self._raw[self._at : self._at + 40]),
        )


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
