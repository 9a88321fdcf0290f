"""One fused pass per chunk, compiled by numba; bit-equal to eager.py and counting.py.

A chunk is worked through block by block (passes.py), so that everything between the stored inputs and the
stored output stays in the first two cache levels. The method's kernel is the very function that runs eagerly: called
with one scalar per agent inside a generated loop, it is vectorised; the pass around it is the same for all methods
and kept on disk. Floating point is strict (no fast-math, no contraction), which is why the bits agree.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.buffers import empty
from hubmerge.compiled.counts import COPIES, FLUSH, SHORT, flush, take
from hubmerge.compiled.kernel_loops import kernel_loop
from hubmerge.compiled.passes import merge_pass, probe_pass
from hubmerge.compiled.rounding import BFLOAT16, FLOAT16, FLOAT32
from hubmerge.counter_rng import Key
from hubmerge.counting import BLOCK, Counted
from hubmerge.dtypes import STORAGE, decode
from hubmerge.eager import COMPILED_AGENTS, ChunkInputs, ChunkOutput, Rule, compilable
from hubmerge.histogram import BINS, Histogram
from hubmerge.statistics import ResultTally, Tally, zero_result, zero_tally

MAX_AGENTS = COMPILED_AGENTS
_OUTPUTS = {"F32": FLOAT32, "BF16": BFLOAT16, "F16": FLOAT16}
_thread = threading.local()  # .magnitudes: counters of all agents, all zero between two passes


class _InputCounters:
    def __init__(self, agents: int, elements: int) -> None:
        blocks = -(-elements // BLOCK)
        self.elements = elements
        self.by_overlap = np.zeros((agents, agents + 1), np.int64)
        self.pair_active = np.zeros((agents, agents), np.int64)  # of pairs a < b
        self.pair_agree = np.zeros((agents, agents), np.int64)
        self.single = np.zeros((3, agents + 1), np.int64)  # conflict (one number), identical (K), nonfinite (K + 1)
        self.extent = np.full((agents, 2), (0, 0xFFFFFFFF), np.int64)  # largest pattern, and smallest less 1
        self.short, self.packed = _magnitudes(agents)
        self.magnitudes = np.zeros((2, agents, BINS if blocks > FLUSH else 0), np.int64)
        self.sums = np.zeros((3 * agents + agents * (agents + 1) // 2, blocks))

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """As passes.py takes them."""
        return (
            self.by_overlap, self.pair_active, self.pair_agree, self.single, self.short, self.packed, self.magnitudes,
            self.extent,
        )  # fmt: skip

    def counted(self) -> Counted[Tally]:
        """What was counted; only once."""
        agents = len(self.by_overlap)
        if self.magnitudes.size:
            flush(self.packed, self.magnitudes)
        changed = self.by_overlap.sum(axis=1)
        overlap = self.by_overlap.sum(axis=0)
        overlap[1:] //= _numbers(agents)
        overlap[0] = self.elements - overlap.sum()
        tally = replace(
            _nothing(agents),
            elements=self.elements,
            changed=changed,
            identical=self.single[1, :agents],
            overlap=overlap,
            by_overlap=self.by_overlap,
            pair_active=_both_ways(self.pair_active, changed),
            pair_agree=_both_ways(self.pair_agree, changed),
            conflict=int(self.single[0, 0]),
            nonfinite=self.single[2],
            max_abs=self.extent[:, 0].astype(np.uint32).view(np.float32).astype(np.float64),
            histogram=Histogram(*take(self.short, self.packed, self.magnitudes, self.extent)),
        )
        return Counted(tally, self.sums)


def _both_ways(pairs: NDArray[np.int64], diagonal: NDArray[np.int64]) -> NDArray[np.int64]:
    whole = pairs + pairs.T
    whole.reshape(-1)[:: len(whole) + 1] = diagonal
    return whole


_nothing, _no_result = cache(zero_tally), cache(zero_result)  # their arrays are only read


@cache
def _numbers(agents: int) -> NDArray[np.int64]:
    return np.arange(1, agents + 1)


def _magnitudes(agents: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """This thread's [K, COPIES, SHORT] and [K, COPIES, BINS], made once: fresh pages cost more than counting."""
    kept: tuple[NDArray[np.uint32], NDArray[np.uint64]] | None = getattr(_thread, "magnitudes", None)
    if kept is None or len(kept[0]) < agents:
        short, packed = np.zeros((agents, COPIES, SHORT), np.uint32), np.zeros((agents, COPIES, BINS), np.uint64)
        kept = _thread.magnitudes = short, packed
    return kept[0][:agents], kept[1][:agents]


def supports(agents: int, dtype: str) -> bool:
    """What the compiled pass covers."""
    return compilable(agents, dtype)


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """eager.probe_chunk in one pass."""
    raw16, raw32, half = _stacked(chunk)
    agents = len(chunk.raws) - 1
    into = _InputCounters(agents, len(chunk.raws[0]))
    probe_pass(
        raw16, raw32, half, into.elements, np.float32(epsilon), into.arrays, into.sums,
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
    out16, out32 = empty(0 if wide else n, np.uint16), empty(n if wide else 0, np.float32)
    per_agent = np.array(rule.per_agent, dtype=np.float32)
    constants = np.array(rule.constants, dtype=np.float32)
    keys = np.array([(k.first, k.second) for k in chunk.uniform_keys], dtype=np.uint64).reshape(-1, 2)
    sensitivities = np.empty((0, n), dtype=np.float32)
    if chunk.sensitivities:
        sensitivities = np.stack(chunk.sensitivities)
    merge_pass(
        kernel_loop(rule.kernel, agents, agents * (1 + len(rule.extras)), per_agent.shape[1], len(constants)),
        raw16, raw32, half, n, np.float32(rule.epsilon), per_agent, constants, with_inputs, _OUTPUTS[dtype],
        not wide and chunk.dtypes[0] != dtype, rule.rounding == "stochastic", rule.both_roundings and not wide,
        np.uint64(key.first), np.uint64(key.second), chunk.start, into.arrays, into.sums, counts, sums, out16, out32,
        keys, sensitivities,
    )  # fmt: skip
    tally = replace(
        _no_result(agents), elements=n, changed=int(counts[0]), rounded=int(counts[1]), nonfinite=int(counts[2])
    )
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
