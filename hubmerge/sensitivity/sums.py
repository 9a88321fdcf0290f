"""The sums of squared gradients: float32 in a mapped file, so that they need disk rather than memory.

Every element is `sum += square(gradient)`, the square and the sum each rounded to float32, pair after pair in their
fixed order. The mapping may hold half a pair when the process dies, so nothing ever resumes from it: a checkpoint
is a safetensors file of its own, written whole at the end of a pair, with the number of pairs that it holds.
Resumed sums are therefore the sums that would have been there without the kill, bit for bit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hubmerge.errors import DiskError, HeaderError, SensitivityError, TargetExistsError
from hubmerge.plan.disk import DISK_MARGIN_BYTES
from hubmerge.sensitivity.file import CHUNK_ELEMENTS, Float32, write_tensors
from hubmerge.sources.header import header_length, parse_header

if TYPE_CHECKING:
    import torch

_CHECKPOINT = "checkpoint.safetensors"
_SUMS = "sums.f32"
SUM_FILES = (_CHECKPOINT, f"{_CHECKPOINT}.tmp", _SUMS)


class SquareSums:
    """One float32 sum per element of every parameter, in `folder`; `finished` pairs are in it."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], identity: str) -> None:
        """`identity` is what a resumed run must agree on. DiskError when the sums do not fit."""
        self.finished = 0
        self._folder = folder
        self._shapes = dict(shapes)
        self._identity = identity
        self._starts: dict[str, int] = {}
        position = 0
        for name, shape in self._shapes.items():
            self._starts[name] = position
            position += prod(shape)
        path = folder / _SUMS
        path.unlink(missing_ok=True)
        # the sums, a checkpoint, and the next checkpoint or the result beside it
        self._require_disk(3 * 4 * position)
        try:
            with path.open("xb") as file:
                # reserved now: a full disk would otherwise end the process when a mapped page is written
                os.posix_fallocate(file.fileno(), 0, max(4 * position, 1))
        except OSError as error:
            raise DiskError(
                "the sums do not fit on the disk", where=str(folder), got=str(error.strerror or error)
            ) from None
        self._all: Float32 = np.memmap(path, dtype=np.float32, mode="r+", shape=(position,)) if position else _NONE

    def values(self, name: str) -> Float32:
        """[elements] the sums of one parameter; a view."""
        start = self._starts[name]
        return self._all[start : start + prod(self._shapes[name])]

    def tensor(self, name: str) -> torch.Tensor:
        """The sums of one parameter in its shape; a view."""
        import torch

        return torch.from_numpy(self.values(name)).reshape(self._shapes[name])

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """Add the squares of one gradient, of any float dtype and device; in chunks, so that no copy of it is made."""
        import torch

        target = self.tensor(name).reshape(-1)
        flat = gradient.detach().reshape(-1)
        for start in range(0, flat.numel(), CHUNK_ELEMENTS):
            part = flat[start : start + CHUNK_ELEMENTS].to(torch.float32)
            target[start : start + part.numel()].add_(part.square().to("cpu"))

    def save(self, finished: int) -> None:
        """Make the sums of the first `finished` pairs durable."""
        self.finished = finished
        write_tensors(
            self._folder / _CHECKPOINT,
            self._shapes,
            {"identity": self._identity, "finished": str(finished)},
            ((name, part) for name in self._shapes for part in chunks(self.values(name))),
        )

    def restore(self) -> int:
        """Take up the checkpoint, if there is one; the number of pairs that it holds.

        TargetExistsError when it belongs to another computation.
        """
        path = self._folder / _CHECKPOINT
        if not path.is_file():
            return 0
        with path.open("rb") as file:
            try:
                header = parse_header(file.read(header_length(file.read(8), path.name)), path.stat().st_size, path.name)
            except HeaderError as error:
                raise SensitivityError(
                    "the checkpoint is damaged",
                    where=str(path),
                    got=error.what,
                    next_step="Start again with --restart.",
                ) from None
            if header.metadata.get("identity") != self._identity:
                raise TargetExistsError(
                    "another computation is unfinished here",
                    where=str(self._folder),
                    expected=self._identity[:12],
                    got=header.metadata.get("identity", "")[:12],
                    next_step="Finish it with its own settings, or start again with --restart.",
                )
            for entry in header.tensors:
                target = self.values(entry.name)
                for start in range(0, target.size, CHUNK_ELEMENTS):
                    part = target[start : start + CHUNK_ELEMENTS]
                    file.seek(entry.begin + 4 * start)
                    part[:] = np.frombuffer(file.read(part.nbytes), dtype="<f4")
        self.finished = int(header.metadata["finished"])
        return self.finished

    def _require_disk(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        checkpoint = self._folder / _CHECKPOINT
        there = checkpoint.stat().st_size if checkpoint.is_file() else 0
        if needed - there + DISK_MARGIN_BYTES > free:
            raise DiskError(
                "not enough disk",
                where=str(self._folder),
                expected=f"{(needed - there + DISK_MARGIN_BYTES) / 1e9:.2f} GB free",
                got=f"{free / 1e9:.2f} GB",
                next_step="Free some disk or write elsewhere.",
            )


_NONE: Float32 = np.zeros(0, dtype=np.float32)


def chunks(values: Float32) -> Iterator[Float32]:
    """`values` in views of some million elements."""
    for start in range(0, values.size, CHUNK_ELEMENTS):
        yield values[start : start + CHUNK_ELEMENTS]
