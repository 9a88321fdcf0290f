"""The way of a chunk to a CUDA device and back.

A lane is everything that one chunk needs on its way: a pinned buffer on the host, its twin on the device, a pinned
buffer for what comes back, and a CUDA stream of its own. A thread that has read a chunk takes a free lane, copies
the chunk in, runs the pass, copies the output and the counts back, and waits for its own stream alone. Of
DEVICE_LANES chunks one is copied in while another is computed and a third is copied out. Buffers are made once per
lane; what a pass needs beside them comes from torch's caching allocator, which holds a pool per stream and asks the
driver for nothing once it has seen a chunk. The allocator is told the limit, so that memory is bounded by the device
and not by an estimate.

A copy is waited for, by its thread alone. Of pinned memory that was copied without waiting (`non_blocking`) torch notes
the stream, and where the memory is freed it records an event there, in a destructor: on a device that has failed for
good that raises, and the process would end (pytorch/pytorch#178154) instead of going on without the device.

Every thread begins with the first device as its current one. A lane makes its own device current before its stream
is: coming back from a stream, torch would otherwise open a context on the first device, and every process of a
machine would hold memory there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hubmerge.engine import definition
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.definition import count as count_on_device
from hubmerge.engine.definition import merge as merge_on_device
from hubmerge.numerics.counter_rng import Key
from hubmerge.numerics.dtypes import STORAGE

STORED: dict[str, torch.dtype] = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_ALIGN = 16  # bytes; of every array within a buffer
_Raw = NDArray[Any]


class Lane:
    """The way of one chunk at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._in = _Buffer(pinned=self._stream is not None)
        self._out = _Buffer(pinned=self._stream is not None)
        self._on_device = torch.empty(0, dtype=torch.uint8, device=device)
        self._rules: tuple[Rule, Rule] | None = None  # the last one, and the same with its scalars on the device

    def there(self, rule: Rule) -> Rule:
        """The rule with its scalars on the device; kept from chunk to chunk of a tensor."""
        if self._rules is None or self._rules[0] is not rule:
            self._rules = rule, self._moved(rule)
        return self._rules[1]

    def probe(self, chunk: ChunkInputs, rule: Rule) -> NDArray[np.int64]:
        """definition.count."""
        return self.run(chunk, lambda inputs: (None, count_on_device(inputs, self.there(rule).epsilon)))[1]

    def merge(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""

        def work(inputs: ChunkInputs) -> tuple[torch.Tensor, torch.Tensor]:
            return merge_on_device(inputs, self.there(rule), dtype, key, with_inputs=with_inputs)

        raw, counts = self.run(chunk, work)
        assert raw is not None
        stored = raw.view(STORAGE[dtype])
        return definition.read_output(stored, counts, len(chunk.raws) - 1, with_inputs=with_inputs)

    def run(
        self, chunk: ChunkInputs, work: Callable[[ChunkInputs], tuple[torch.Tensor | None, torch.Tensor]]
    ) -> tuple[_Raw | None, NDArray[np.int64]]:
        """`work` on the device; its output as bytes and its counts, both in memory of their own."""
        with self._current(), torch.inference_mode():
            raw, counts = work(self._inputs(chunk))
            parts = [counts] if raw is None else [counts, raw]
            back = self._out.tensors([(p.dtype, p.numel()) for p in parts])
            for here, there in zip(back, parts, strict=True):
                here.copy_(there)
        stored = back[1].view(torch.uint8).numpy().copy() if raw is not None else None
        return stored, back[0].numpy().copy()

    def _moved(self, rule: Rule) -> Rule:
        def scalar(value: Any) -> torch.Tensor:
            return torch.full((), float(value), dtype=torch.float32, device=self._device)

        per_agent = tuple(tuple(map(scalar, row)) for row in rule.per_agent)
        return replace(
            rule, per_agent=per_agent, constants=tuple(map(scalar, rule.constants)), epsilon=scalar(rule.epsilon)
        )

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The lane's device and stream are this thread's current ones."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def _inputs(self, chunk: ChunkInputs) -> ChunkInputs:
        arrays: list[tuple[_Raw, str]] = [
            *zip(chunk.raws, chunk.dtypes, strict=True),
            *((s, "F32") for s in chunk.sensitivities),
        ]
        wanted = [(STORED[dtype], len(array)) for array, dtype in arrays]
        host = self._in.tensors(wanted)
        for tensor, (array, _) in zip(host, arrays, strict=True):
            tensor.view(torch.uint8).numpy()[:] = np.ascontiguousarray(array).view(np.uint8)
        if self._stream is not None:
            used = self._in.used
            if self._on_device.numel() < used:
                self._on_device = torch.empty(used, dtype=torch.uint8, device=self._device)
            self._on_device[:used].copy_(self._in.buffer[:used])
            host = _cut(self._on_device, wanted)[0]
        models = len(chunk.raws)
        tensors: Any = tuple(host)
        return replace(chunk, raws=tensors[:models], sensitivities=tensors[models:])


class _Buffer:
    """Host memory that grows to the largest chunk and stays; pinned, so that the device copies it by itself."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.used = 0  # bytes of the last cut

    def tensors(self, wanted: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
        """One tensor per (dtype, elements), side by side; what was cut before is overwritten."""
        needed = sum(_aligned(dtype.itemsize * count) for dtype, count in wanted)
        if self.buffer.numel() < needed:
            self.buffer = torch.empty(needed, dtype=torch.uint8, pin_memory=self._pinned)
        tensors, self.used = _cut(self.buffer, wanted)
        return tensors


def _cut(buffer: torch.Tensor, wanted: Sequence[tuple[torch.dtype, int]]) -> tuple[list[torch.Tensor], int]:
    tensors, at = [], 0
    for dtype, count in wanted:
        size = dtype.itemsize * count
        tensors.append(buffer[at : at + size].view(dtype))
        at += _aligned(size)
    return tensors, at


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
