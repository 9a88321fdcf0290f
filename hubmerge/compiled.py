"""One fused pass per chunk, compiled by numba; bit-equal to eager.py and counting.py.

A chunk is worked through block by block (compiled_passes.py), so that everything between the stored inputs and the
stored output stays in the first two cache levels. The method's kernel is the very function that runs eagerly: called
with one scalar per agent inside a generated loop, it is vectorised; the pass around it is the same for all methods
and kept on disk. Floating point is strict (no fast-math, no contraction), which is why the bits agree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from llvmlite.binding import set_option  # type: ignore[import-untyped]
from numba import njit
from numba.extending import overload
from numpy.typing import NDArray

from hubmerge.compiled_passes import (
    APPLY,
    BFLOAT16,
    COPIES,
    FLOAT16,
    FLOAT32,
    FLUSH,
    STRICT,
    flush,
    merge_pass,
    probe_pass,
    take,
)
from hubmerge.counter_rng import Key
from hubmerge.counting import BLOCK, Counted
from hubmerge.dtypes import STORAGE, decode
from hubmerge.eager import COMPILED_AGENTS, ChunkInputs, ChunkOutput, Rule, compilable
from hubmerge.histogram import BINS, Histogram
from hubmerge.methods import ops
from hubmerge.statistics import ResultTally, Tally, zero_result, zero_tally

MAX_AGENTS = COMPILED_AGENTS
_OUTPUTS = {"F32": FLOAT32, "BF16": BFLOAT16, "F16": FLOAT16}
_one_compiles = threading.Lock()
_thread = threading.local()  # .packed: magnitudes of all agents, all zero between two passes


@overload(ops.where)
def _where(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


@overload(ops.absolute)
def _absolute(x):
    return lambda x: abs(x)


def _apply(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Callable[..., Any]:
    with _one_compiles:  # the first chunks of all threads ask at once
        return _loop(kernel, agents, inputs, columns, constants)


@cache
def _loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Callable[..., Any]:
    """A loop over elements around `kernel`. Generated, so that the values of an element and the scalars are named
    and the compiler sees no array of pointers: only then is the loop vectorised."""
    rows = "; ".join(f"r{k} = inputs[{k}]" for k in range(inputs))
    element = ", ".join(f"r{k}[i]" for k in range(inputs))
    scalars = ", ".join("(" + "".join(f"per_agent[{k}, {c}], " for c in range(columns)) + ")" for k in range(agents))
    shared = "".join(f"constants[{c}], " for c in range(constants))
    source = (
        f"def loop(inputs, per_agent, constants, n, out):\n"
        f"    {rows}\n"
        f"    scalars = ({scalars},)\n"
        f"    shared = ({shared})\n"
        f"    for i in range(n):\n"
        f"        out[i] = kernel(({element},), scalars, shared)\n"
    )
    scope: dict[str, Any] = {"kernel": njit(**STRICT)(kernel)}
    exec(source, scope)  # noqa: S102 (the text is made above from four integers)
    # a kernel's loop over five agents or more stays a loop otherwise, and then that over elements is not vectorised
    set_option("hubmerge", "-unroll-threshold=8000")
    try:
        return njit(APPLY, **STRICT)(scope["loop"])
    finally:
        set_option("hubmerge", "-unroll-threshold=300")  # LLVM's own at this level, for the passes


class _InputCounters:
    def __init__(self, agents: int, elements: int) -> None:
        blocks = -(-elements // BLOCK)
        self.elements = elements
        self.histogram = np.zeros((COPIES, 4**agents), dtype=np.int64)
        self.identical = np.zeros(agents, dtype=np.int64)
        self.nonfinite = np.zeros(agents + 1, dtype=np.int64)
        self.max_abs = np.zeros(agents)
        self.packed = _packed(agents)
        self.magnitudes = np.zeros((2, agents, BINS if blocks > FLUSH else 0), dtype=np.int64)
        self.sums = np.zeros((4 * agents + agents * (agents + 1) // 2, blocks))

    def counted(self) -> Counted[Tally]:
        """What was counted; only once."""
        if self.magnitudes.size:
            flush(self.packed, self.magnitudes)
            magnitudes = Histogram.from_dense(self.magnitudes[0], self.magnitudes[1])
        else:
            magnitudes = Histogram(*take(self.packed))
        return Counted(_tally(self, magnitudes), self.sums)


def _packed(agents: int) -> NDArray[np.uint64]:
    """This thread's [K, COPIES, BINS], made once: fresh pages cost more than counting."""
    kept: NDArray[np.uint64] | None = getattr(_thread, "packed", None)
    if kept is None or len(kept) < agents:
        kept = _thread.packed = np.zeros((agents, COPIES, BINS), np.uint64)
    return kept[:agents]


def _tally(counters: _InputCounters, magnitudes: Histogram) -> Tally:
    """Every count across agents from the histogram of patterns."""
    agents = len(counters.identical)
    total = counters.histogram.sum(axis=0)
    bins = np.flatnonzero(total)  # with many agents most patterns never occur
    h = total[bins]
    bits = np.arange(agents)[:, None]
    active = (bins >> bits) & 1  # [K, patterns], as the others
    positive = active & (bins >> (agents + bits))
    negative = active - positive
    c = active.sum(axis=0)
    up = positive.sum(axis=0)
    with_overlap = h * (c == np.arange(agents + 1)[:, None])
    weighted = active * h
    return replace(
        zero_tally(agents),
        elements=counters.elements,
        changed=weighted.sum(axis=1),
        identical=counters.identical,
        overlap=with_overlap.sum(axis=1),
        by_overlap=active @ with_overlap.T,
        pair_active=weighted @ active.T,
        pair_agree=(positive * h) @ positive.T + (negative * h) @ negative.T,
        conflict=int(h[(up > 0) & (up < c)].sum()),
        nonfinite=counters.nonfinite,
        max_abs=counters.max_abs,
        histogram=magnitudes,
    )


def supports(agents: int, dtype: str) -> bool:
    """What the compiled pass covers."""
    return compilable(agents, dtype)


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """eager.probe_chunk in one pass."""
    raw16, raw32, half = _stacked(chunk)
    agents = len(chunk.raws) - 1
    into = _InputCounters(agents, len(chunk.raws[0]))
    probe_pass(
        raw16, raw32, half, into.elements, np.float32(epsilon), into.histogram, into.identical, into.nonfinite,
        into.max_abs, into.packed, into.magnitudes, into.sums,
    )  # fmt: skip
    return into.counted()


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """eager.merge_chunk in one pass, for what `supports` says."""
    raw16, raw32, half = _stacked(chunk)
    agents = len(chunk.raws) - 1
    n = len(chunk.raws[0])
    wide = dtype == "F32"
    into = _InputCounters(agents, n)
    counts = np.zeros(3, dtype=np.int64)
    sums = np.zeros((len(ResultTally.SUMS) * agents, -(-n // BLOCK)))
    out16 = np.empty(0 if wide else n, dtype=np.uint16)
    out32 = np.empty(n if wide else 0, dtype=np.float32)
    per_agent = np.array(rule.per_agent, dtype=np.float32)
    constants = np.array(rule.constants, dtype=np.float32)
    keys = np.array([(k.first, k.second) for k in chunk.uniform_keys], dtype=np.uint64).reshape(-1, 2)
    sensitivities = np.empty((0, n), dtype=np.float32)
    if chunk.sensitivities:
        sensitivities = np.stack(chunk.sensitivities)
    merge_pass(
        _apply(rule.kernel, agents, agents * (1 + len(rule.extras)), per_agent.shape[1], len(constants)),
        raw16, raw32, half, n, np.float32(rule.epsilon), per_agent, constants, with_inputs, _OUTPUTS[dtype],
        not wide and chunk.dtypes[0] != dtype, rule.rounding == "stochastic", rule.both_roundings and not wide,
        np.uint64(key.first), np.uint64(key.second), chunk.start, into.histogram, into.identical, into.nonfinite,
        into.max_abs, into.packed, into.magnitudes, into.sums, counts, sums, out16, out32, keys, sensitivities,
    )  # fmt: skip
    zero = zero_result(agents)
    tally = replace(zero, elements=n, changed=int(counts[0]), rounded=int(counts[1]), nonfinite=int(counts[2]))
    raw = out32 if wide else out16.view(STORAGE[dtype])
    return ChunkOutput(raw, into.counted() if with_inputs else None, Counted(tally, sums))


def _stacked(chunk: ChunkInputs) -> tuple[NDArray[np.uint16], NDArray[np.float32], bool]:
    """The stored elements as one array [K+1, ≥ n]: 16-bit patterns where all are stored alike (True for F16), else
    float32."""
    kinds = set(chunk.dtypes)
    if kinds == {"BF16"} or kinds == {"F16"}:
        return _rows(chunk).view(np.uint16), np.empty((0, 0), dtype=np.float32), kinds == {"F16"}
    if kinds == {"F32"}:
        return np.empty((0, 0), dtype=np.uint16), _rows(chunk), False
    values = [decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True)]
    return np.empty((0, 0), dtype=np.uint16), np.stack(values), False


def _rows(chunk: ChunkInputs) -> NDArray[Any]:
    return np.stack(chunk.raws) if chunk.stacked is None else chunk.stacked
