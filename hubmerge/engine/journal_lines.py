"""The lines of a journal: JSON, each sealed with a checksum, so that nothing is believed that was not written so.

A kill tears the last line, a full disk may leave half a line before a whole one, and a machine that loses power may
leave zeros. What comes after the first line that is not sound is as if it had never been written: it is repeated.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SEAL = ', "crc32": "'


def sealed(line: Mapping[str, Any]) -> str:
    """A line as it is written, with its line break."""
    text = json.dumps(line)
    return f'{text[:-1]}{_SEAL}{zlib.crc32(text.encode()):08x}"}}\n'


def sound_line(text: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is not sound."""
    content, _, seal = text.rpartition(_SEAL.encode())
    if seal != b'%08x"}\n' % zlib.crc32(content + b"}"):
        return None
    found: dict[str, Any] = json.loads(content + b"}")
    return found


def sound_lines(raw: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines before the first one that is not sound, and how many bytes end with each."""
    length = 0
    for text in raw:
        line = sound_line(text)
        if line is None:
            return
        length += len(text)
        yield line, length
