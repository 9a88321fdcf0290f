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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
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
        self._in = _Buffer(pin_memory=self._stream is not None)
        self._out = _Buffer(pin_memory=self._stream is not None)
        self._on_device = _Buffer(device=device)
        self._rules: tuple[Rule, Rule] | None = None  # the last one, and the same with its scalars on the device

    def there(self, rule: Rule) -> Rule:
        """The rule with its scalars on the device; kept from chunk to chunk of a tensor."""
        if self._rules is None or self._rules[0] is not rule:
            self._rules = rule, self._moved(rule)
        return self._rules[1]

    def probe(self, chunk: ChunkInputs, epsilon: float) -> NDArray[np.int64]:
        """definition.count."""
        return self.run(chunk, lambda inputs: (None, count_on_device(inputs, self._scalar(epsilon))))[1]

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

    def _scalar(self, value: Any) -> torch.Tensor:
        return torch.full((), float(value), dtype=torch.float32, device=self._device)

    def _moved(self, rule: Rule) -> Rule:
        per_agent = tuple(tuple(map(self._scalar, row)) for row in rule.per_agent)
        constants = tuple(map(self._scalar, rule.constants))
        return replace(rule, per_agent=per_agent, constants=constants, epsilon=self._scalar(rule.epsilon))

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
        here = self._in.tensors(wanted)
        for tensor, (array, _) in zip(here, arrays, strict=True):
            tensor.view(torch.uint8).numpy()[:] = np.ascontiguousarray(array).view(np.uint8)
        there = here
        if self._stream is not None:
            there, used = self._on_device.tensors(wanted), self._in.used
            self._on_device.buffer[:used].copy_(self._in.buffer[:used])
        models = len(chunk.raws)
        tensors: Any = tuple(there)
        return replace(chunk, raws=tensors[:models], sensitivities=tensors[models:])


class _Buffer:
    """Memory that grows to the largest chunk and stays; on the host pinned, so that the device copies it by itself."""

    def __init__(self, **where: Any) -> None:
        """`where`: as torch.empty takes it, which is first asked in a thread whose current device is the lane's."""
        self._where = where
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.used = 0  # bytes, of the last tensors

    def tensors(self, wanted: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
        """One tensor per (dtype, elements), side by side; what was there before is overwritten."""
        sizes = [dtype.itemsize * count for dtype, count in wanted]
        begins = [0, *accumulate(-(-size // _ALIGN) * _ALIGN for size in sizes)]
        self.used = begins[-1]
        if self.buffer.numel() < self.used:
            self.buffer = torch.empty(self.used, dtype=torch.uint8, **self._where)
        parts = zip(begins[:-1], sizes, wanted, strict=True)
        return [self.buffer[begin : begin + size].view(dtype) for begin, size, (dtype, _) in parts]
