"""The fast pass: a chunk counted and merged by pass.c, with the bits of the definition.

pass.c has the kernels of the methods that come with it. Of any other method the kernel runs as it is, in numpy, on
blocks of PIECE elements, which stay in the second cache level; all else is the same.

A chunk costs a few dozen microseconds of Python beside its arithmetic, in which no other thread runs; so the scratch of
a thread is made once. ctypes calls without the interpreter's lock.
"""

import threading
from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, c_double, c_int64, c_uint64, c_void_p
from dataclasses import replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine import definition
from hubmerge.engine.compiled import library, loaded
from hubmerge.engine.counting import BLOCK, Counted
from hubmerge.engine.definition import BinCounts, ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.memory import ROW
from hubmerge.methods import registry
from hubmerge.methods.base import Threshold
from hubmerge.numerics.counter_rng import Key
from hubmerge.numerics.dtypes import STORAGE, Float32
from hubmerge.sources import buffers
from hubmerge.statistics.histogram import BINS, Histogram
from hubmerge.statistics.statistics import Counts, ResultTally, Tally, zero_result, zero_tally

PIECE = 16_384  # elements that a kernel in numpy takes at once
_COUNTED_AT_ONCE = 512 * BLOCK  # elements, until a bin's sum of offsets could overflow
_KINDS = {"F32": 0, "BF16": 1, "F16": 2}


class _Call(Structure):
    """struct call"""

    _fields_ = (
        ("agents", c_int64), ("elements", c_int64), ("start", c_int64), ("rows", c_void_p), ("kinds", c_void_p),
        ("uniform_keys", c_void_p), ("sensitivities", c_void_p), ("workspace", c_void_p), ("counts", c_void_p),
        ("sums", c_void_p), ("result_sums", c_void_p), ("kernel", c_int64), ("per_agent", c_void_p),
        ("constants", c_void_p), ("columns", c_int64), ("given", c_void_p), ("out", c_void_p), ("kind", c_int64),
        ("stochastic", c_int64), ("both_roundings", c_int64), ("first", c_uint64), ("second", c_uint64),
        ("epsilon", c_double),
    )  # fmt: skip


class _Ranking(Structure):
    """struct ranking"""

    _fields_ = (
        ("agent", c_int64), ("keys", c_void_p), ("span", c_void_p), ("wanted", c_int64), ("bound", c_uint64),
    )  # fmt: skip


class _Pass:
    """One call of pass.c and the arrays that it points to."""

    def __init__(self, chunk: ChunkInputs, epsilon: float, *, extras: bool = False) -> None:
        """`extras`: pass.c draws, and reads sensitivities, where the chunk has keys and those."""
        self.agents, self.elements = len(chunk.raws) - 1, len(chunk.raws[0])
        self._kept: list[Any] = []
        self.call = _Call(
            agents=self.agents,
            elements=self.elements,
            start=chunk.start,
            rows=self._rows(chunk.raws),
            kinds=self.address(np.array([_KINDS[dtype] for dtype in chunk.dtypes])),
            kernel=-1,
            epsilon=epsilon,
        )
        keys, sensitivities = (chunk.uniform_keys, chunk.sensitivities) if extras else ((), ())
        if keys:
            self.call.uniform_keys = self.address(np.array([(k.first, k.second) for k in keys], np.uint64))
        if sensitivities:
            self.call.sensitivities = self._rows(sensitivities)
        self._workspace = _thread.workspace(self.agents)
        self.call.workspace = self._workspace.address
        k = self.agents
        self._counts = np.zeros(k * (k + 1) + 2 * k * k + 1 + k + (k + 1) + 2 * k + 3, np.int64)
        self.call.counts = self.address(self._counts)
        parts = np.split(self._counts, np.cumsum([k * (k + 1), k * k, k * k, 1, k, k + 1, k, k]))
        self.by_overlap = parts[0].reshape(k, k + 1)
        self._pairs = parts[1].reshape(k, k), parts[2].reshape(k, k)
        self._conflict, self._identical, self._nonfinite, self._largest, self._least, self.result = parts[3:]
        self._least[:] = 0xFFFFFFFF
        self._sums = self._result_sums = np.zeros((0, 0))

    def _rows(self, arrays: Sequence[NDArray[Any]]) -> int:
        """Where it lies where their elements lie."""
        found = [np.ascontiguousarray(array) for array in arrays]
        self._kept.append(found)
        return self.address(np.array([_address(row) for row in found], np.uint64))

    def address(self, array: NDArray[Any]) -> int:
        """Where it lies, which it does as long as this object lives."""
        self._kept.append(array)
        return _address(array)

    def count_inputs(self) -> None:
        k = self.agents
        self._sums = np.zeros((3 * k + k * (k + 1) // 2, -(-self.elements // BLOCK)))
        self.call.sums = self.address(self._sums)

    def merge_into(self, out: NDArray[Any], rule: Rule, dtype: str, key: Key) -> None:
        self._result_sums = np.zeros((len(ResultTally.SUMS) * self.agents, -(-self.elements // BLOCK)))
        self.call.result_sums = self.address(self._result_sums)
        self.call.out, self.call.kind = self.address(out), _KINDS[dtype]
        self.call.stochastic, self.call.both_roundings = rule.rounding == "stochastic", rule.both_roundings
        self.call.first, self.call.second = key.first, key.second
        per_agent = np.array(rule.per_agent, np.float32)
        self.call.per_agent, self.call.columns = self.address(per_agent), per_agent.shape[1] if per_agent.size else 0
        self.call.constants = self.address(np.array(rule.constants, np.float32))

    def run(self, given: Callable[[int, int], Float32] | None = None) -> Histogram:
        """Works through the chunk; the histogram of what was counted. `given`: the δ* of a piece of it that pass.c does
        not compute."""
        parts, at_once = [], _COUNTED_AT_ONCE if given is None else PIECE
        for first in range(0, self.elements, at_once):
            end = min(self.elements, first + at_once)
            if given is not None:
                piece = np.ascontiguousarray(given(first, end))
                self.call.given = _address(piece)
            library().work(addressof(self.call), first, end)
            if self.call.sums and (end == self.elements or end % _COUNTED_AT_ONCE == 0):
                parts.append(self.histogram())
        return parts[0] if len(parts) == 1 else Histogram.sum_of(parts)

    def histogram(self) -> Histogram:
        """Of the magnitudes that were counted since the last time."""
        room = self._workspace.room
        filled = library().take(addressof(self.call), _address(room), room.shape[1])
        return Histogram(*room[:, :filled].copy())

    def inputs(self, histogram: Histogram) -> Counted[Tally]:
        changed, overlap = self.by_overlap.sum(axis=1), self.by_overlap.sum(axis=0)
        overlap[1:] //= np.arange(1, self.agents + 1)
        overlap[0] = self.elements - overlap.sum()
        active, agree = (both + both.T + np.diag(changed) for both in self._pairs)
        tally = replace(
            _nothing(self.agents),
            elements=self.elements,
            changed=changed,
            identical=self._identical,
            overlap=overlap,
            by_overlap=self.by_overlap,
            pair_active=active,
            pair_agree=agree,
            conflict=int(self._conflict[0]),
            nonfinite=self._nonfinite,
            max_abs=self._largest.astype(np.uint32).view(np.float32).astype(np.float64),
            histogram=histogram,
        )
        return Counted(tally, self._sums)

    def outputs(self) -> Counted[ResultTally]:
        changed, rounded, nonfinite = self.result.tolist()
        nothing = _no_result(self.agents)
        tally = replace(nothing, elements=self.elements, changed=changed, rounded=rounded, nonfinite=nonfinite)
        return Counted(tally, self._result_sums)


class _Workspace:
    """A thread's scratch for so many agents."""

    def __init__(self, agents: int) -> None:
        self.agents = agents
        # which begins at a page, and is all zero
        self._memory = np.frombuffer(buffers.pages(library().workspace_bytes(agents)), np.uint8)
        self.address = _address(self._memory)
        self.room = np.empty((3, agents * BINS), np.int64)  # for a histogram


class _OfThread(threading.local):
    """What each thread makes once, since fresh pages cost more than counting."""

    def __init__(self) -> None:
        self.keys = np.zeros(ROW, np.uint8)  # a histogram, all zero between two passes
        self._workspace: _Workspace | None = None

    def workspace(self, agents: int) -> _Workspace:
        if self._workspace is None or self._workspace.agents != agents:
            self._workspace = _Workspace(agents)
        return self._workspace


_thread = _OfThread()


@cache
def unavailable() -> str | None:
    """Why this machine has no fast pass; None where it has one that gives the definition's bits."""
    if isinstance(found := loaded(), str):
        return found
    scalars = np.array([0.7, 1.3, 1e-5, 0, 1], np.float32)
    rule = Rule(registry()["ram"].kernel, (), (tuple(scalars[:2]),) * 2, tuple(scalars[2:]), 1e-5, "nearest", True)
    for dtype, trial in ("BF16", replace(rule, rounding="stochastic")), ("F16", rule), ("F32", rule):
        if not definition.has_these_bits(merge_chunk, trial, 2, dtype):
            return "what was built computes other bits than the definition"
    return None


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """definition.probe_chunk."""
    work = _Pass(chunk, epsilon)
    work.count_inputs()
    return work.inputs(work.run())


def count_overlaps(chunk: ChunkInputs, epsilon: float) -> Counts:
    """definition.count_overlaps."""
    work = _Pass(chunk, epsilon)
    work.run()
    return work.by_overlap


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """definition.merge_chunk."""
    kernel = _kernels().get(rule.kernel, -1) if chunk.given is None else -1
    fused = kernel >= 0
    work = _Pass(chunk, rule.epsilon, extras=fused)
    work.call.kernel = kernel
    out = buffers.empty(work.elements, np.float32 if dtype == "F32" else np.uint16)
    work.merge_into(out, rule, dtype, key)
    if with_inputs:
        work.count_inputs()
    histogram = work.run(None if fused else lambda first, end: _given(chunk, rule, first, end))
    raw = out.view(STORAGE[dtype])
    return ChunkOutput(raw, work.inputs(histogram) if with_inputs else None, work.outputs())


def _given(chunk: ChunkInputs, rule: Rule, first: int, end: int) -> Float32:
    """δ* of elements of a chunk whose kernel pass.c does not have."""
    if chunk.given is not None:
        return chunk.given[first:end]
    raws, sensitivities = (tuple(row[first:end] for row in rows) for rows in (chunk.raws, chunk.sensitivities))
    piece = replace(chunk, raws=raws, sensitivities=sensitivities, start=chunk.start + first)
    return definition.kernel_update(piece, rule)


def count_magnitudes(chunk: ChunkInputs, wanted: Sequence[int], threshold: Threshold, epsilon: float) -> BinCounts:
    """definition.count_magnitudes."""
    drop, private = threshold.of == "dropped", threshold.of == "private"
    work = _Pass(replace(chunk, sensitivities=()), epsilon, extras=drop)
    parts = []
    for row in range(1 if private else work.agents):
        if wanted and wanted[row] % 2 == 0:
            continue
        span = np.array([1 << 16, 0])
        ranking = _Ranking(
            agent=-1 if private else row,
            keys=_address(_thread.keys),
            span=_address(span),
            wanted=wanted[row] if wanted else -1,
            bound=_bound(threshold.drop_of(row)),
        )
        library().rank(addressof(work.call), addressof(ranking))
        found = np.empty((int(span[1]) + 2, 2), np.int64)
        filled = library().take_keys(addressof(ranking), _address(found), len(found))
        parts.append(np.insert(found[:filled], 0, row, axis=1))
    return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)


def _bound(p: float) -> int:
    """The smallest k with k · 2⁻²⁴ ≥ p, p being rounded to float32 as a kernel's constants are."""
    return ceil(float(np.float32(p)) * 2**24)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def _kernels() -> dict[Any, int]:
    """The kernels of methods that pass.c has, by the name of the method's module."""
    modules = {method.kernel: method.kernel.__module__.rpartition(".")[2] for method in registry().values()}
    numbers = {kernel: library().kernel_number(module.encode()) for kernel, module in modules.items()}
    return {kernel: number for kernel, number in numbers.items() if number >= 0}


_nothing = cache(zero_tally)  # its arrays are only read
_no_result = cache(zero_result)
