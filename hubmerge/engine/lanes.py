"""A CUDA device at work: chunks go there and back in lanes, and matrices are multiplied.

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

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hubmerge.engine import definition
from hubmerge.engine.counting import Counted, Read
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.definition import count as count_on_device
from hubmerge.engine.definition import merge as merge_on_device
from hubmerge.engine.memory import DEVICE_LANES
from hubmerge.errors import reason_of
from hubmerge.methods.base import one_by_one
from hubmerge.numerics.counter_rng import Key
from hubmerge.numerics.dtypes import STORAGE, Float32
from hubmerge.statistics.statistics import Tally

_EXACT = 1e-5  # of float32's products of 256 elements, relative; TF32's are thirty times as far off
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
T = TypeVar("T")


class Engine:
    """Counts and merges chunks on one torch device; called from several threads.

    `host`: the module that does the same on the CPU. `memory_bytes`: 0 for all that is free.
    """

    def __init__(self, device: torch.device, host: ModuleType, *, memory_bytes: int) -> None:
        """A CUDA device must have an index: without one, some of torch's functions refuse it and others take the
        thread's current device."""
        self.name = str(device)
        self._device = device
        self._host = host
        self._failed = ""
        self._untold: list[str] = []  # warnings
        self._lock, self._multiplying = threading.Lock(), threading.Lock()
        self._lanes: SimpleQueue[Lane] = SimpleQueue()
        self._cuda = device.type == "cuda"
        try:
            if self._cuda:
                properties = torch.cuda.get_device_properties(device)
                self.name = str(properties.name)
                share = min(1.0, memory_bytes / properties.total_memory) if memory_bytes else 1.0
                torch.cuda.set_per_process_memory_fraction(share, device)
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(DEVICE_LANES):
                self._lanes.put(Lane(device))
        except BaseException:
            self.close()
            raise

    @property
    def working(self) -> bool:
        return not self._failed

    def prove(self, rule: Rule, agents: int, dtype: str) -> None:
        """RuntimeError unless a small chunk comes out as the definition has it, or what torch raises."""
        if not definition.has_these_bits(self.merged, rule, agents, dtype):
            raise RuntimeError("it computes other bits than the CPU")

    def prove_products(self) -> None:
        """RuntimeError unless a product of float32 matrices is as exact as float32 is, which TF32 is not."""
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((2, 256, 256))
        found = self._product(x.astype(np.float32), y.astype(np.float32))
        if not np.abs(found - x @ y).max() < _EXACT * np.abs(x @ y).max():
            raise RuntimeError("its products of matrices are less exact than float32")

    def merged(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """`merge_chunk` on the device, whatever becomes of it."""
        with self._lane() as lane:
            return lane.merge(chunk, rule, dtype, key, with_inputs=with_inputs)

    def probe_chunk(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        """definition.probe_chunk."""
        return self._tried(partial(self._probed, chunk, epsilon), partial(self._host.probe_chunk, chunk, epsilon))

    def _probed(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        with self._lane() as lane:
            counts = lane.probe(chunk, epsilon)
        return Read(counts, len(chunk.raws[0])).inputs(len(chunk.raws) - 1)

    def merge_chunk(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""
        on_device = partial(self.merged, chunk, rule, dtype, key, with_inputs=with_inputs)
        on_host = partial(self._host.merge_chunk, chunk, rule, dtype, key, with_inputs=with_inputs)
        output: ChunkOutput = self._tried(on_device, on_host)
        return output

    def whole_update(self, chunk: ChunkInputs, rule: Rule, on_host: Callable[[], Float32]) -> Float32:
        """definition.whole_update, in host memory; one tensor at a time."""

        def on_device() -> Float32:
            with self._products():
                raws: Any = tuple(there(r, d, self._device) for r, d in zip(chunk.raws, chunk.dtypes, strict=True))
                return np.asarray(definition.whole_update(replace(chunk, raws=raws), rule, one_by_one).cpu().numpy())

        return self._tried(on_device, on_host)

    def _product(self, x: Float32, y: Float32) -> Float32:
        with self._products():
            return np.asarray((there(x, "F32", self._device) @ there(y, "F32", self._device)).cpu().numpy())

    @contextmanager
    def _products(self) -> Iterator[None]:
        """This thread alone multiplies matrices of float32, without TF32, which torch may have been told to use."""
        of_torch = torch.backends.cuda.matmul
        with self._multiplying, torch.inference_mode():
            kept, of_torch.allow_tf32 = of_torch.allow_tf32, False
            try:
                yield
            finally:
                of_torch.allow_tf32 = kept

    def _tried(self, on_device: Callable[[], T], on_host: Callable[[], T]) -> T:
        if self.working:
            try:
                return on_device()
            except RuntimeError as error:
                if not _is_of_device(error):
                    raise
                self._fail(error)
        return on_host()

    @contextmanager
    def _lane(self) -> Iterator[Lane]:
        lane = self._lanes.get()
        try:
            yield lane
        finally:
            self._lanes.put(lane)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = reason_of(error)
            self._untold.append(f"the device {self._device} is no longer used, the CPU goes on: {self._failed}")

    def tell(self, warn: Callable[[str], None]) -> None:
        """Say, in the caller's thread, what was not said yet: that the device has failed."""
        while self._untold:
            warn(self._untold.pop(0))

    def facts(self) -> dict[str, Any]:
        """For the report's environment."""
        facts: dict[str, Any] = {"device": self.name, "torch": str(torch.__version__)}
        if self._failed:
            return facts | {"device": "cpu", "device_failed": self._failed}
        if self._cuda:
            facts["peak_device_bytes"] = torch.cuda.max_memory_reserved(self._device)
        return facts

    def close(self) -> None:
        """Give the device's memory back."""
        while not self._lanes.empty():
            self._lanes.get()
        if self._cuda:
            with suppress(Exception):  # a failed driver raises here once more
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(1.0, self._device)


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


def _is_of_device(error: RuntimeError) -> bool:
    """torch says most of what a device does wrong as a RuntimeError with the runtime's name in it."""
    kinds = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    return isinstance(error, kinds) or any(name in str(error) for name in ("CUDA", "HIP", "cuBLAS", "CUBLAS"))
