"""What a pass over a chunk counts into and works with, and how that is passed to compiled code.

A chunk costs a few dozen microseconds of Python beside its arithmetic, in which no other thread runs. So what outlives
a chunk is made once per thread with its words (machine_code.Packed), and a chunk's counters are cut from one array.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.dtypes import decode
from hubmerge.engine.compiled.entries import Entry
from hubmerge.engine.compiled.kernel_loops import kernel_loop
from hubmerge.engine.compiled.kernel_trace import known
from hubmerge.engine.compiled.layout import COPIES, FLUSH, SHORT, WIDTH, WORDS
from hubmerge.engine.compiled.machine_code import Kind, Packed, address_of
from hubmerge.engine.counting import BLOCK, Counted
from hubmerge.engine.eager import ChunkInputs, Rule
from hubmerge.statistics.histogram import BINS, LOW_BITS, Histogram
from hubmerge.statistics.statistics import ResultTally, Tally, zero_tally

_LINE = 64  # bytes of a cache line, and of the widest vectors
COUNTERS: tuple[Kind, ...] = (
    "int64[2]", "int64[2]", "int64[2]", "int64[2]", "uint32[3]", "uint64[3]", "int64[3]", "int64[2]",
)  # fmt: skip
WORKSPACE: tuple[Kind, ...] = (
    "float32[2]", "float32[2]", "float32[2]", "uint16[1]", "uint64[2]", "uint64[2]", "uint64[2]", "uint64[2]",
    "uint16[2]", "uint32[2]", "int64[2]", "float64[2]", ("uint64[1]", "uint16[2]", "float32[1]"),
)  # fmt: skip
_flush = Entry("counts", "flush", ("uint64[3]", "int64[3]"))
_take = Entry("counts", "take", (("uint32[3]", "uint64[3]", "int64[3]", "int64[2]"), "int64[2]"))
_WORKSPACES, _LOOP_CALLS = 4, 32  # kept per thread; variants of a merge take turns at every chunk
_thread = threading.local()  # .copies, .workspaces, .loop_calls


class Counters:
    """Of one chunk, which is counted once: of the inputs, and of the result if it is merged."""

    def __init__(self, agents: int, elements: int, *, merged: bool = False) -> None:
        blocks = -(-elements // BLOCK)
        self.elements = elements
        layout = _layout(agents, blocks, merged)
        whole = np.zeros(layout.size, np.int64)
        (
            self.by_overlap,
            self.pair_active,  # of pairs a < b
            self.pair_agree,
            self.single,  # conflict (one number), identical (K), nonfinite (K + 1)
            self.extent,  # largest pattern, and smallest less 1
            self.result,  # changed, rounded, nonfinite
            self.sums,
            self.result_sums,
        ) = (np.ndarray(shape, dtype, whole, first) for first, shape, dtype in layout.parts)
        self.extent[:, 1] = 0xFFFFFFFF
        self._magnitudes = np.zeros((2, agents, BINS), np.int64) if blocks > FLUSH else None
        self._copies = _copies(agents)
        place = address_of(whole)
        words = [(place + first, *shape) for first, shape, _ in layout.parts]
        rarely = (0, 2, agents, 0) if self._magnitudes is None else Packed.of(COUNTERS[6], self._magnitudes)
        self._take_words = Packed((*self._copies.words, *rarely, *words[4]))
        self.words = Packed((*words[0], *words[1], *words[2], *words[3], *self._take_words))  # COUNTERS
        self.result_words, self.sums_words, self.result_sums_words = map(Packed, words[5:])

    def counted(self) -> Counted[Tally]:
        """What was counted; only once."""
        agents = len(self.by_overlap)
        if self._magnitudes is not None:
            _flush(self._copies.packed, self._magnitudes)
        changed = self.by_overlap.sum(axis=1)
        overlap = self.by_overlap.sum(axis=0)
        overlap[1:] //= _numbers(agents)
        overlap[0] = self.elements - overlap.sum()
        nothing = _nothing(agents)
        tally = Tally(
            elements=self.elements,
            changed=changed,
            identical=self.single[1, :agents],
            overlap=overlap,
            by_overlap=self.by_overlap,
            pair_active=_both_ways(self.pair_active, changed),
            pair_agree=_both_ways(self.pair_agree, changed),
            conflict=int(self.single[0, 0]),
            nonfinite=self.single[2],
            dot=nothing.dot,
            max_abs=self.extent[:, 0].astype(np.uint32).view(np.float32).astype(np.float64),
            moments=nothing.moments,
            histogram=self._histogram(),
        )
        return Counted(tally, self.sums)

    def _histogram(self) -> Histogram:
        extents = self.extent.tolist()
        room = sum((high >> LOW_BITS) - ((low + 1) >> LOW_BITS) + 1 for high, low in extents if high > 0)
        found = np.empty((3, room), np.int64)
        filled = _take(self._take_words, found)
        return Histogram(*found[:, :filled])


class Workspace:
    """Scratch of probe_pass and merge_pass for so many agents and further inputs of a kernel."""

    def __init__(self, agents: int, extras: int) -> None:
        dtypes_and_shapes: list[tuple[Any, tuple[int, ...]]] = [
            (np.float32, (agents + extras, WIDTH)),  # inputs of the kernel, the deltas first
            (np.float32, (agents, WIDTH)),  # scaled deltas
            (np.float32, (8, WIDTH)),  # base, update, exact, stored, stored the other way, stored base, both steps
            (np.uint16, (BLOCK,)),  # patterns of which only the values are wanted
            (np.uint64, (agents, WORDS)),  # where agents are active
            (np.uint64, (agents, WORDS)),  # where their updates are positive
            (np.uint64, (agents + 1, WORDS)),  # where exactly so many are active
            (np.uint64, (2, WORDS)),  # where one alone is, or more
            (np.uint16, (agents, WIDTH)),  # magnitudes that BF16 holds
            (np.uint32, (agents, WIDTH)),  # the others
            (np.int64, (agents, 4)),  # what was found of them
            (np.float64, (2, max(agents, 9))),  # sums of one loop; what undoes the scaling of each agent
            (np.uint16, (agents + 1, WIDTH)),  # a last block, filled up
            (np.float32, (WIDTH,)),  # an agent that is not stored as BF16, decoded
        ]
        arrays = [_aligned(dtype, shape) for dtype, shape in dtypes_and_shapes]
        rows = addresses_of(arrays[-2])
        self._arrays = arrays, rows
        self.words = Packed.of(WORKSPACE, (*arrays[:-2], (rows, *arrays[-2:])))
        self.inputs, self.delta = arrays[0], arrays[2][1]

    @classmethod
    def of_thread(cls, agents: int, extras: int) -> Workspace:
        kept: dict[tuple[int, int], Workspace] | None = getattr(_thread, "workspaces", None)
        if kept is None:
            kept = _thread.workspaces = {}
        if (agents, extras) not in kept:
            if len(kept) == _WORKSPACES:
                kept.clear()
            kept[agents, extras] = cls(agents, extras)
        return kept[agents, extras]


class LoopCall:
    """How merge_pass calls the loop of a rule's kernel on a workspace."""

    def __init__(self, rule: Rule, workspace: Workspace) -> None:
        self._rule, self._workspace = rule, workspace
        self._per_agent = np.array(rule.per_agent, np.float32)
        self._constants = np.array(rule.constants, np.float32)
        fixed = known(self._per_agent), known(self._constants)
        loop = kernel_loop(rule.kernel, len(self._per_agent), len(workspace.inputs), *fixed)
        self.address = loop.address
        values = (workspace.inputs, self._per_agent, self._constants, 0, workspace.delta)
        self._words = np.array(loop.words(*values), np.uint64)
        self.words = Packed.of("uint64[1]", self._words)

    @classmethod
    def of_thread(cls, rule: Rule, workspace: Workspace) -> LoopCall:
        kept: dict[tuple[int, int], LoopCall] | None = getattr(_thread, "loop_calls", None)
        if kept is None:
            kept = _thread.loop_calls = {}
        call = kept.get((id(rule), id(workspace)))  # both live as long as it is kept
        if call is None:
            if len(kept) == _LOOP_CALLS:
                kept.clear()
            call = kept[id(rule), id(workspace)] = cls(rule, workspace)
        return call


def stored_alike(chunk: ChunkInputs, *dtypes: str) -> tuple[NDArray[Any], ...]:
    """K+1 × [n], contiguous: the models' elements as they are stored if all are of one of `dtypes`, else float32."""
    if set(chunk.dtypes) in [{dtype} for dtype in dtypes]:
        return tuple(map(np.ascontiguousarray, chunk.raws))
    decoded = (decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True))
    return tuple(map(np.ascontiguousarray, decoded))


def addresses_of(rows: Iterable[NDArray[Any]]) -> NDArray[np.uint64]:
    """Where contiguous arrays begin, which must live as long as this is used."""
    return np.array([address_of(row) for row in rows], np.uint64)


def _aligned(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _LINE, np.uint8)
    first = -memory.__array_interface__["data"][0] % _LINE
    return memory[first : first + size].view(dtype).reshape(shape)


@dataclass(frozen=True)
class _Layout:
    """Of Counters' array, whose elements take eight bytes each."""

    parts: tuple[tuple[int, tuple[int, ...], type[np.generic]], ...]  # first byte, shape, dtype
    size: int  # elements


@lru_cache(maxsize=64)
def _layout(agents: int, blocks: int, merged: bool) -> _Layout:
    counts: list[tuple[int, ...]] = [
        (agents, agents + 1), (agents, agents), (agents, agents), (3, agents + 1), (agents, 2), (3,),
    ]  # fmt: skip
    sums: list[tuple[int, ...]] = [
        (3 * agents + agents * (agents + 1) // 2, blocks), (len(ResultTally.SUMS) * agents if merged else 0, blocks),
    ]  # fmt: skip
    shapes = counts + sums
    ends = list(accumulate(map(prod, shapes)))
    dtypes = [np.int64] * len(counts) + [np.float64] * len(sums)
    parts = zip((8 * first for first in (0, *ends)), shapes, dtypes, strict=False)
    return _Layout(tuple(parts), ends[-1])


@dataclass(frozen=True)
class _Copies:
    """A thread's counters of magnitudes, [K, COPIES, SHORT] and [K, COPIES, BINS], all zero between two passes; made
    once, since fresh pages cost more than counting."""

    short: NDArray[np.uint32]
    packed: NDArray[np.uint64]

    @cached_property
    def words(self) -> Packed:
        return Packed.of((COUNTERS[4], COUNTERS[5]), (self.short, self.packed))


def _copies(agents: int) -> _Copies:
    kept: dict[int, _Copies] | None = getattr(_thread, "copies", None)
    if kept is None:
        kept = _thread.copies = {}
    if agents not in kept:
        kept.clear()  # a merge needs one
        kept[agents] = _Copies(
            np.zeros((agents, COPIES, SHORT), np.uint32), np.zeros((agents, COPIES, BINS), np.uint64)
        )
    return kept[agents]


def _both_ways(pairs: NDArray[np.int64], diagonal: NDArray[np.int64]) -> NDArray[np.int64]:
    whole = pairs + pairs.T
    whole.reshape(-1)[:: len(whole) + 1] = diagonal
    return whole


_nothing = cache(zero_tally)  # its arrays are only read


@cache
def _numbers(agents: int) -> NDArray[np.int64]:
    return np.arange(1, agents + 1)
