"""The way of a chunk to a CUDA device and back.

A lane is a CUDA stream of its own. A thread that has read a chunk takes a free lane, copies the chunk in, runs the
pass, copies the output and the counts back, and waits for its own stream alone. Of DEVICE_LANES chunks one is copied
in while another is computed and a third is copied out. Memory comes from torch's caching allocator, which holds a pool
per stream and asks the driver for nothing once it has seen a chunk. The allocator is told the limit, so that memory is
bounded by the device and not by an estimate.

A copy is waited for, by its thread alone. Of pinned memory that was copied without waiting (`non_blocking`) torch notes
the stream, and where the memory is freed it records an event there, in a destructor: on a device that has failed for
good that raises, and the process would end (pytorch/pytorch#178154) instead of going on without the device.

Every thread begins with the first device as its current one. A lane makes its own device current before its stream
is: coming back from a stream, torch would otherwise open a context on the first device, and every process of a
machine would hold memory there.
"""

from __future__ import annotations

from collections.abc import Iterator
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

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Lane:
    """The way of one chunk at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def probe(self, chunk: ChunkInputs, epsilon: float) -> NDArray[np.int64]:
        """definition.count."""
        with self._current():
            return np.asarray(count_on_device(self._inputs(chunk), self._scalar(epsilon)).cpu().numpy())

    def merge(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""
        with self._current():
            inputs, moved = self._inputs(chunk), self._moved(rule)
            raw, counts = merge_on_device(inputs, moved, dtype, key, with_inputs=with_inputs)
            stored, counted = raw.view(torch.uint8).cpu().numpy().view(STORAGE[dtype]), counts.cpu().numpy()
        return definition.read_output(stored, counted, len(chunk.raws) - 1, with_inputs=with_inputs)

    def _scalar(self, value: Any) -> torch.Tensor:
        return torch.full((), float(value), dtype=torch.float32, device=self._device)

    def _moved(self, rule: Rule) -> Rule:
        """The rule with its scalars on the device."""
        per_agent = tuple(tuple(map(self._scalar, row)) for row in rule.per_agent)
        constants = tuple(map(self._scalar, rule.constants))
        return replace(rule, per_agent=per_agent, constants=constants, epsilon=self._scalar(rule.epsilon))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The lane's device and stream are this thread's current ones."""
        with torch.inference_mode():
            if self._stream is None:
                yield
                return
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                yield

    def _inputs(self, chunk: ChunkInputs) -> ChunkInputs:
        raws: Any = tuple(there(raw, dtype, self._device) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True))
        sensitivities: Any = tuple(there(one, "F32", self._device) for one in chunk.sensitivities)
        return replace(chunk, raws=raws, sensitivities=sensitivities)


def there(stored: NDArray[Any], dtype: str, device: torch.device) -> torch.Tensor:
    """A copy on the device."""
    return torch.from_numpy(np.array(stored).view(np.uint8)).to(device).view(_STORED[dtype])
