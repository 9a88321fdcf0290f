"""The lines of a journal: JSON, each sealed with a checksum, so that nothing is believed that was not written so.

A kill tears the last line, a full disk may leave half a line before a whole one, and a machine that loses power may
leave zeros. What comes after the first line that is not sound is as if it had never been written: it is repeated.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_SEAL = ', "crc32": "'


def sealed(line: Mapping[str, Any]) -> str:
    """A line as it is written, with its line break."""
    text = json.dumps(line)
    return f'{text[:-1]}{_SEAL}{zlib.crc32(text.encode()):08x}"}}\n'


def sound_lines(raw: bytes) -> tuple[list[dict[str, Any]], int]:
    """The lines before the first one that is not sound, and how many bytes they take."""
    lines = []
    length = 0
    for text in raw.splitlines(keepends=True):
        content, _, seal = text.rpartition(_SEAL.encode())
        if seal != b'%08x"}\n' % zlib.crc32(content + b"}"):
            break
        lines.append(json.loads(content + b"}"))
        length += len(text)
    return lines, length
