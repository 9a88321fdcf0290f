"""The engine: chunks through a device and back, from several threads, in bounded memory.

A lane is everything that one chunk needs on its way: a pinned buffer on the host, its twin on the device, a pinned
buffer for what comes back, and a CUDA stream of its own. A thread that has read a chunk takes a free lane, copies
the chunk in, runs the pass, copies the output and the counts back, and waits for its own stream alone. With
LANES lanes, one chunk is copied in while another is computed and a third is copied out. Buffers are made once per
lane; what a pass needs beside them comes from torch's caching allocator, which holds a pool per stream and asks the
driver for nothing once it has seen a chunk. The allocator is told the limit, so that memory is bounded by the device
and not by an estimate.

A copy is waited for, by its thread alone. Of pinned memory that was copied without waiting (`non_blocking`) torch notes
the stream, and where the memory is freed it records an event there, in a destructor: on a device that has failed for
good that raises, and the process would end (pytorch/pytorch#178154) instead of going on without the device.

A device that fails (out of memory, driver error) is left for good at a chunk's boundary: the chunk in hand and all
that follow are computed on the CPU from the same host memory, with the same bytes, and the observer is warned once.
Before its first chunk an engine must reproduce a small one bit for bit; a device that computes otherwise (another
rounding, flushed subnormals, fused operations) or fails in any way is not used. Once it has passed, an error that is
not the device's own is raised, as it is a mistake of ours.

Every thread begins with the first device as its current one. A lane makes its own device current before its stream
is: coming back from a stream, torch would otherwise open a context on the first device, and every process of a
machine would hold memory there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hubmerge.counter_rng import Key, make_key
from hubmerge.dtypes import STORAGE, decode, encode
from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK, Counted, Read
from hubmerge.engine.definition import ChunkInputs, ChunkOutput, Rule, Scalars
from hubmerge.engine.definition import count as count_on_device
from hubmerge.engine.definition import merge as merge_on_device
from hubmerge.engine.device.choose import LANES, reason
from hubmerge.statistics.statistics import Tally

MAX_ELEMENTS = 1 << 22  # of a chunk
STORED: dict[str, torch.dtype] = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_ALIGN = 16  # bytes; of every array within a buffer
_Raw = NDArray[Any]
T = TypeVar("T")


def _first(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0]


_COUNTING = Rule(_first, (), (), (), 1e-5, "nearest", both_roundings=False)


class Engine:
    """Counts and merges chunks on one torch device; called from several threads.

    `host`: the module that does the same on the CPU.
    """

    def __init__(self, device: torch.device, host: ModuleType, *, memory_bytes: int, lanes: int = LANES) -> None:
        """A CUDA device must have an index: without one, some of torch's functions refuse it and others take the
        thread's current device."""
        self._device = device
        self._host = host
        self._failed = ""
        self._checked: set[tuple[Callable[..., Any], int, str]] = set()
        self._untold: list[str] = []  # warnings
        self._has_refused = False
        self._lock = threading.Lock()
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        self._cuda = device.type == "cuda"
        self._name = str(device)
        try:
            if self._cuda:
                properties = torch.cuda.get_device_properties(device)
                self._name = str(properties.name)
                torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / properties.total_memory), device)
                torch.cuda.reset_peak_memory_stats(device)
            for _ in range(lanes):
                self._lanes.put(_Lane(device))
        except BaseException:
            self.close()
            raise

    @property
    def working(self) -> bool:
        return not self._failed

    def probe_chunk(self, chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
        """definition.probe_chunk."""
        agents = len(chunk.raws) - 1

        def on_device(lane: _Lane) -> Counted[Tally]:
            n = len(chunk.raws[0])
            rule = replace(_COUNTING, epsilon=epsilon)
            vector = lane.run(chunk, lambda inputs: (None, count_on_device(inputs, lane.scalars(rule).epsilon)))[1]
            return Read(vector, n).inputs(agents)

        def on_host() -> Counted[Tally]:
            counted: Counted[Tally] = self._host.probe_chunk(chunk, epsilon)
            return counted

        return self._tried(chunk, on_device, on_host)

    def merge_chunk(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""

        def on_device(lane: _Lane) -> ChunkOutput:
            return lane.merge(chunk, rule, dtype, key, with_inputs=with_inputs)

        def on_host() -> ChunkOutput:
            output: ChunkOutput = self._host.merge_chunk(chunk, rule, dtype, key, with_inputs=with_inputs)
            return output

        return self._tried(chunk, on_device, on_host)

    def _tried(self, chunk: ChunkInputs, on_device: Callable[[_Lane], T], on_host: Callable[[], T]) -> T:
        if not self._failed and self._takes(len(chunk.raws[0])):
            try:
                with self._lane() as lane:
                    return on_device(lane)
            except RuntimeError as error:
                if not _is_of_device(error):
                    raise
                self._fail(error)
        return on_host()

    def _takes(self, elements: int) -> bool:
        if elements <= MAX_ELEMENTS:
            return True
        with self._lock:
            if not self._has_refused:
                self._has_refused = True
                self._untold.append(
                    f"chunks above {MAX_ELEMENTS:,} elements are merged on the CPU with the same result: "
                    f"the device {self._device} takes no larger ones"
                )
        return False

    @contextmanager
    def _lane(self) -> Iterator[_Lane]:
        lane = self._lanes.get()
        try:
            yield lane
        finally:
            self._lanes.put(lane)

    def _fail(self, why: Exception | str) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = why if isinstance(why, str) else reason(why)
            self._untold.append(
                f"the device {self._device} is no longer used, the CPU goes on with the same result: {self._failed}"
            )

    def check(self, rule: Rule, agents: int, dtype: str) -> None:
        """Compare a small chunk with the definition; an engine that gives other bits, or none, counts as failed."""
        if self._failed or (rule.kernel, agents, dtype) in self._checked:
            return
        self._checked.add((rule.kernel, agents, dtype))
        chunk = _trial(rule, agents, dtype)
        key = make_key(1, "trial")
        try:
            with self._lane() as lane:
                found = lane.merge(chunk, rule, dtype, key, with_inputs=True)
        except Exception as error:  # noqa: BLE001 (a trial may fail in any way)
            self._fail(error)
            return
        if found.bits() != definition.merge_chunk(chunk, rule, dtype, key, with_inputs=True).bits():
            self._fail("it computes other bits than the CPU")

    def check_counting(self, agents: int) -> None:
        """`check` of what a probe needs."""
        self.check(_COUNTING, agents, "BF16")

    def tell(self, warn: Callable[[str], None]) -> None:
        """Say, in the caller's thread, what was not said yet: that the device has failed, or leaves chunks out."""
        while self._untold:
            warn(self._untold.pop(0))

    def facts(self) -> dict[str, Any]:
        """For the report's environment."""
        facts: dict[str, Any] = {"device": self._name, "torch": str(torch.__version__)}
        if self._cuda and not self._failed:
            facts["peak_device_bytes"] = torch.cuda.max_memory_reserved(self._device)
        if self._failed:
            facts["device"] = "cpu"
            facts["device_failed"] = self._failed
        return facts

    def close(self) -> None:
        """Give the device's memory back."""
        while not self._lanes.empty():
            self._lanes.get()
        if self._cuda:
            with suppress(Exception):  # a failed driver raises here once more
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(1.0, self._device)


class _Lane:
    """The way of one chunk at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._in = _Buffer(pinned=self._stream is not None)
        self._out = _Buffer(pinned=self._stream is not None)
        self._on_device = torch.empty(0, dtype=torch.uint8, device=device)
        self._rule: Rule | None = None
        self._scalars: Scalars | None = None

    def scalars(self, rule: Rule) -> Scalars:
        """The rule's scalars on the device; kept from chunk to chunk of a tensor."""
        if self._scalars is None or self._rule is not rule:
            self._rule, self._scalars = rule, _scalars_of(rule, self._device)
        return self._scalars

    def merge(self, chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
        """definition.merge_chunk."""

        def work(inputs: ChunkInputs) -> tuple[torch.Tensor, torch.Tensor]:
            return merge_on_device(inputs, rule, self.scalars(rule), dtype, key, with_inputs=with_inputs)

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


def _scalars_of(rule: Rule, device: torch.device) -> Scalars:
    def scalar(value: Any) -> torch.Tensor:
        return torch.full((), float(value), dtype=torch.float32, device=device)

    per_agent = tuple(tuple(scalar(v) for v in row) for row in rule.per_agent)
    return Scalars(per_agent, tuple(scalar(v) for v in rule.constants), scalar(np.float32(rule.epsilon)))


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


def _is_of_device(error: RuntimeError) -> bool:
    """torch says most of what a device does wrong as a RuntimeError with the runtime's name in it."""
    kinds = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
    return isinstance(error, kinds) or any(name in str(error) for name in ("CUDA", "HIP", "cuBLAS", "CUBLAS"))


def _trial(rule: Rule, agents: int, dtype: str) -> ChunkInputs:
    """Two and a half blocks with what devices differ in: subnormals, both zeros, ties, many exponents."""
    n = 2 * BLOCK + BLOCK // 2 + 1
    rng = np.random.default_rng(agents)
    base = np.ldexp(rng.standard_normal(n), rng.integers(-12, 1, n)).astype(np.float32)
    base[:64], base[64:128] = -0.0, 1e-41
    values = [base]
    for _ in range(agents):
        step = np.ldexp(rng.standard_normal(n), rng.integers(-16, -4, n)).astype(np.float32)
        step[32:96] = 3e-42
        values.append(np.where(rng.random(n) < 0.5, base + step, base).astype(np.float32))
    raws = tuple(encode(v, dtype, "nearest", None) for v in values)
    values = [decode(r, dtype) for r in raws]
    return ChunkInputs(
        raws,
        (dtype,) * (agents + 1),
        3 * BLOCK,
        tuple(make_key(2, "trial", str(k)) for k in range(agents)) if "uniform" in rule.extras else (),
        tuple(np.abs(v) for v in values[1:]) if "sensitivity" in rule.extras else (),
    )
