"""The card's template as Python compiled it, kept between processes: to compile it takes longer than all of the card.

A file lies in the package's `__pycache__` and is trusted as far as the package's own code, which whoever can write
there can change as well. Its name is a digest of all that decides it: the template, the modules of the environment that
it is compiled for, jinja2 and Python. It begins with a checksum, so that a torn or rotten file is compiled anew; where
the folder cannot be written to, every process compiles.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import jinja2
from jinja2.bccache import Bucket

_CHECKSUM_BYTES = 32


class KeptTemplates(jinja2.BytecodeCache):
    """`modules`: the sources of what templates are compiled for, their filters above all."""

    def __init__(self, modules: Sequence[Path], folder: Path = Path(__file__).parent / "__pycache__") -> None:
        self._folder = folder
        self._surroundings = b"\0".join(
            (jinja2.__version__.encode(), sys.version.encode(), *(m.read_bytes() for m in modules))
        )

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return name

    def get_source_checksum(self, source: str) -> str:
        return sha256(self._surroundings + b"\0" + source.encode()).hexdigest()

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            kept = self._path(bucket).read_bytes()
            checksum, content = kept[:_CHECKSUM_BYTES], kept[_CHECKSUM_BYTES:]
            if checksum == sha256(content).digest():
                bucket.load_bytecode(io.BytesIO(content))

    def dump_bytecode(self, bucket: Bucket) -> None:
        content = io.BytesIO()
        bucket.write_bytecode(content)
        path = self._path(bucket)
        written = path.with_name(f"{path.name}.{uuid4().hex[:16]}")
        with suppress(OSError):
            try:
                path.parent.mkdir(exist_ok=True)
                written.write_bytes(sha256(content.getvalue()).digest() + content.getvalue())
                for older in path.parent.glob(f"{bucket.key}.*.template"):
                    older.unlink(missing_ok=True)
                os.replace(written, path)
            finally:
                written.unlink(missing_ok=True)

    def _path(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}.{bucket.checksum[:16]}.template"
