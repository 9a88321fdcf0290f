"""Counting one chunk: from float32 arrays to tallies, with the same bits for every chunk size.

A chunk begins at a multiple of BLOCK elements within its tensor. Counts are integers and add up in any order. Real
sums are taken per aligned block in a fixed order; `fold` adds them, in float64, to the running total block after
block, in the order of the tensor. So their bits do not depend on the chunks, nor on which thread counted.

Within a block products and sums are float32, as long as a block's updates lie where no power of theirs can leave
float32's range; otherwise each agent's are first multiplied by a power of two (`block_scales`), which changes nothing
but their exponents, and the sums are divided by it. A lane adds up 64 products by groups of four and 64 lanes are
halved as a tree: a block's sum is off by at most 28 · 2⁻²⁴ of the sum of its terms' magnitudes (RELATIVE_ERROR), and
usually by a few 2⁻²⁴; the errors of blocks are independent of each other. What an agent's update meets in the result is
scaled by the largest update of all agents: there, what lies 2⁻¹⁰⁰ below that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubmerge.dtypes import Float32
from hubmerge.statistics.histogram import histogram_of
from hubmerge.statistics.statistics import Counts, ResultTally, Sums, Tally, zero_result, zero_tally
from hubmerge.statistics.tally_sums import TallySum

BLOCK = 4096  # elements; chunks are multiples of it
LANES = 64  # columns of a block; wide enough for every vector unit
GROUP = 4  # rows that are added to each other before they are added to a column's sum
RELATIVE_ERROR = 28 * 2.0**-24  # of a block's sum: a term goes through 24 additions after 3 roundings of its product
SAFE = (103, 151)  # exponent fields [first, end) of a largest update, 2⁻²⁴ to 2²⁴, whose powers stay in range

Mask = NDArray[np.bool_]
T = TypeVar("T", Tally, ResultTally)


@dataclass(frozen=True)
class Activity:
    """Which agents changed which elements of a chunk."""

    masks: tuple[Mask, ...]  # K × [n]: |δk| > ε
    count: NDArray[np.uint8]  # [n]: c


def activity(deltas: Sequence[Float32], epsilon: float) -> Activity:
    """RAM Eq. 1: masks and overlap count of K deltas [n], float32."""
    limit = np.float32(epsilon)
    masks = tuple(np.abs(d) > limit for d in deltas)
    count = np.zeros(deltas[0].shape, dtype=np.uint8)
    for mask in masks:
        count += mask
    return Activity(masks, count)


@dataclass(frozen=True)
class Counted(Generic[T]):
    """One chunk, counted: a tally without real sums, and those sums per block, [quantities, blocks]."""

    tally: T
    sums: Sums


def block_scales(patterns: NDArray[np.uint32]) -> Float32:
    """Powers of two for blocks whose largest |δ| have these bit patterns: 1 where they are 0 or SAFE, else what
    brings them to [1, 2), as far as float32 has it."""
    exponents = (patterns >> np.uint32(23)).astype(np.int64)
    safe = (patterns == 0) | ((exponents >= SAFE[0]) & (exponents < SAFE[1]))
    scales = np.where(safe, 127, np.clip(254 - exponents, 1, 254)).astype(np.uint32) << np.uint32(23)
    return scales.view(np.float32)


def block_sums(values: Float32) -> Sums:
    """[n] float32 → [⌈n/BLOCK⌉] float64: the sum of each aligned block, the last one padded with zeros.

    A block is LANES columns of BLOCK/LANES rows: columns are summed by groups of four rows, group after group, then
    halved as a tree, all in float32.
    """
    a, b, c, d = _blocks(values).reshape(-1, BLOCK // LANES // GROUP, GROUP, LANES).transpose(2, 0, 1, 3)
    groups = (a + b) + (c + d)
    lanes = groups[:, 0] + np.float32(0)  # a sum begins at +0, so that no block of −0 sums to −0
    for group in range(1, groups.shape[1]):
        lanes += groups[:, group]
    while (half := lanes.shape[1] // 2) > 0:
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0].astype(np.float64)


def _blocks(values: Float32) -> Float32:
    """[⌈n/BLOCK⌉, BLOCK], with zeros behind the last."""
    missing = -len(values) % BLOCK
    padded = np.concatenate([values, np.zeros(missing, np.float32)]) if missing else values
    return padded.reshape(-1, BLOCK)


@dataclass(frozen=True)
class _Scaled:
    """Agents' deltas times their blocks' scales."""

    deltas: list[Float32]  # K × [n]
    undo: Sums  # [K, blocks] what a sum of the deltas is multiplied by
    common: Float32  # [blocks] the scale of the largest delta of all


def _scaled(deltas: Sequence[Float32]) -> _Scaled:
    largest = np.stack([_blocks(np.abs(d)).view(np.uint32).max(axis=1, initial=0) for d in deltas])
    scales = block_scales(largest)
    scaled = [_times(d, s) for d, s in zip(deltas, scales, strict=True)]
    return _Scaled(scaled, 1 / scales.astype(np.float64), block_scales(largest.max(axis=0)))


def _times(values: Float32, scales: Float32) -> Float32:
    return np.asarray(_blocks(values) * scales[:, None]).reshape(-1)[: len(values)]


def overlaps_of(act: Activity) -> Counts:
    """[K, K+1]: active elements of agent k where c agents are active."""
    agents = len(act.masks)
    by_overlap = np.zeros((agents, agents + 1), dtype=np.int64)
    for c in range(1, agents + 1):
        at = act.count == c
        for k, mask in enumerate(act.masks):
            by_overlap[k, c] = np.count_nonzero(at & mask)
    return by_overlap


def count_inputs(base: Float32, agents: Sequence[Float32], deltas: Sequence[Float32], act: Activity) -> Counted[Tally]:
    """One chunk of the inputs; all arrays [n], float32. Sums: moments per power and agent, then dot for every a ≤ b."""
    k = len(agents)
    masks, count = act.masks, act.count
    positive = [d > 0 for d in deltas]
    any_positive = np.zeros(base.shape, dtype=bool)
    any_negative = np.zeros(base.shape, dtype=bool)
    for mask, plus in zip(masks, positive, strict=True):
        any_positive |= mask & plus
        any_negative |= mask & ~plus
    pair_active, pair_agree = np.zeros((k, k), dtype=np.int64), np.zeros((k, k), dtype=np.int64)
    scaled = _scaled(deltas)
    undo = scaled.undo
    squares = [x * x for x in scaled.deltas]
    sums = [block_sums(x) * u for x, u in zip(scaled.deltas, undo, strict=True)]
    sums += [block_sums(s * x) * (u * u * u) for s, x, u in zip(squares, scaled.deltas, undo, strict=True)]
    sums += [block_sums(s * s) * (u * u * (u * u)) for s, u in zip(squares, undo, strict=True)]
    for a, b in _pairs(k):
        both = masks[a] & masks[b]
        pair_active[a, b] = pair_active[b, a] = np.count_nonzero(both)
        same = both & (positive[a] == positive[b])
        pair_agree[a, b] = pair_agree[b, a] = np.count_nonzero(same)
        sums.append(block_sums(scaled.deltas[a] * scaled.deltas[b]) * (undo[a] * undo[b]))
    tally = replace(
        zero_tally(k),
        elements=base.size,
        changed=_array(int(np.count_nonzero(m)) for m in masks),
        identical=_array(int(np.count_nonzero(a == base)) for a in agents),
        overlap=np.bincount(count, minlength=k + 1).astype(np.int64),
        by_overlap=overlaps_of(act),
        pair_active=pair_active,
        pair_agree=pair_agree,
        conflict=int(np.count_nonzero(any_positive & any_negative)),
        nonfinite=_array(_nonfinite(x) for x in (base, *agents)),
        max_abs=np.array([float(np.max(np.abs(d), initial=0.0)) for d in deltas]),
        histogram=histogram_of(deltas),
    )
    return Counted(tally, np.stack(sums))


def fold_inputs(running: Tally, chunk: Counted[Tally]) -> Tally:
    """`running` plus the tensor's next chunk."""
    k = running.agents
    start = np.concatenate([running.moments.reshape(-1), [running.dot[a, b] for a, b in _pairs(k)]])
    total = added_in_order(start, chunk.sums)
    dot = np.zeros((k, k))
    for (a, b), value in zip(_pairs(k), total[3 * k :], strict=True):
        dot[a, b] = dot[b, a] = value
    return replace(running + chunk.tally, moments=total[: 3 * k].reshape(3, k), dot=dot)


def count_result(
    base: Float32,
    deltas: Sequence[Float32],
    act: Activity,
    delta: Float32,
    exact: Float32,
    stored: Float32,
    other: Float32,
    stored_base: Float32,
) -> Counted[ResultTally]:
    """One chunk of the output; arrays [n], float32. Sums: the fields of ResultTally.SUMS, K rows each.

    delta: δ* before rounding; exact: θ0 + δ* in float32; stored: the output as stored; other: as it were under
    the other rounding mode; stored_base: the base in the output's dtype.
    """
    scaled = _scaled(deltas)
    merged, step = _times(delta, scaled.common), _times(stored - base, scaled.common)
    other_step = step if other is stored else _times(other - base, scaled.common)
    undo = scaled.undo / scaled.common.astype(np.float64)
    alone, several = act.count == 1, act.count > 1
    rows: dict[str, list[Sums]] = {name: [] for name in ResultTally.SUMS}
    for agent, (mask, own) in enumerate(zip(act.masks, scaled.deltas, strict=True)):
        square, kept = own * own, own * merged
        for name, products, where, factor in (
            ("unique_norm", square, alone, scaled.undo[agent] * scaled.undo[agent]),
            ("unique_kept", kept, alone, undo[agent]),
            ("unique_stored", own * step, alone, undo[agent]),
            ("unique_other", own * other_step, alone, undo[agent]),
            ("shared_norm", square, several, scaled.undo[agent] * scaled.undo[agent]),
            ("shared_kept", kept, several, undo[agent]),
        ):
            rows[name].append(block_sums(np.where(mask & where, products, np.float32(0))) * factor)
    tally = replace(
        zero_result(len(deltas)),
        elements=base.size,
        changed=int(np.count_nonzero(stored != stored_base)),
        rounded=int(np.count_nonzero(stored != exact)),
        nonfinite=_nonfinite(stored),
    )
    return Counted(tally, np.stack([row for name in ResultTally.SUMS for row in rows[name]]))


def fold_result(running: ResultTally, chunk: Counted[ResultTally]) -> ResultTally:
    """`running` plus the tensor's next chunk."""
    k = len(running.unique_norm)
    total = added_in_order(np.concatenate([getattr(running, n) for n in ResultTally.SUMS]), chunk.sums)
    sums: dict[str, Any] = {name: total[i * k : (i + 1) * k] for i, name in enumerate(ResultTally.SUMS)}
    return replace(running + chunk.tally, **sums)


class TensorFold(Generic[T]):
    """Adds up the chunks of a tensor, which come in their order.

    `zero` is the tally of nothing, and `fold` adds a chunk to a tally: fold_inputs or fold_result.
    """

    def __init__(self, zero: T, fold: Callable[[T, Counted[T]], T]) -> None:
        self._zero: T = zero
        self._fold: Callable[[T, Counted[T]], T] = fold
        self._counts: TallySum[T] | None = None
        self._sums: Sums | None = None

    def add(self, chunk: Counted[T]) -> None:
        if self._counts is None or self._sums is None:
            self._counts, self._sums = TallySum(chunk.tally, counts=True), np.zeros(len(chunk.sums))
        else:
            self._counts.add(chunk.tally)
        self._sums = added_in_order(self._sums, chunk.sums)

    def tally(self) -> T:
        """Of all chunks; only once."""
        if self._counts is None or self._sums is None:
            return self._zero
        # the running sums began at zero, to which adding them changes nothing
        return self._fold(self._zero, Counted(self._counts.value(), self._sums[:, None]))


def added_in_order(total: Sums, blocks: Sums) -> Sums:
    """total [Q] plus the sums of blocks [Q, n], one block after the other.

    numpy's sum adds rows that way, of two numbers or more, but not the numbers of a row: blocks become rows here.
    """
    rows = np.empty((blocks.shape[1] + 1, len(total)))  # zeros would be made without the interpreter's lock: a wait
    rows[0] = total
    rows[1:] = blocks.T
    return np.asarray(np.add.reduce(rows) if len(total) > 1 else np.add.accumulate(rows)[-1])


def _pairs(k: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(k) for b in range(a, k)]


def _array(values: Iterable[int]) -> Counts:
    return np.fromiter(values, dtype=np.int64)


def _nonfinite(values: Float32) -> int:
    return int(values.size - np.count_nonzero(np.isfinite(values)))
