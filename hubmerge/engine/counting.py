"""Counting one chunk: from float32 arrays of numpy or torch to tallies, with the same bits for every chunk size.

What was counted is one vector of int64 (`Read` makes tallies from it): no result is looked at before, so that a device
is not waited for. A sum over elements is never left to a reduction, whose order is the library's own.

A chunk begins at a multiple of BLOCK elements within its tensor. Counts are integers and add up in any order. Real
sums are taken per aligned block in a fixed order; `TensorFold` adds them, in float64, to the running total block after
block, in the order of the tensor. So their bits do not depend on the chunks, nor on which thread counted.

Within a block products and sums are float32, as long as a block's updates lie where no power of theirs can leave
float32's range; otherwise each agent's are first multiplied by a power of two (`block_scales`), which changes nothing
but their exponents, and the sums are divided by it. A lane adds up 64 products by groups of four and 64 lanes are
halved as a tree: a block's sum is off by at most 28 · 2⁻²⁴ of the sum of its terms' magnitudes (RELATIVE_ERROR), and
usually by a few 2⁻²⁴; the errors of blocks are independent of each other. What an agent's update meets in the result is
scaled by the largest update of all agents: there, what lies 2⁻¹⁰⁰ below that is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from hubmerge.numerics.arrays import (
    Array,
    added_at,
    cast,
    concat,
    how_many,
    is_finite,
    largest,
    numbers,
    stack,
    view,
    where,
    zeros,
)
from hubmerge.statistics.histogram import BINS, LAST, LOW_BITS, Histogram
from hubmerge.statistics.statistics import Counts, ResultTally, Sums, Tally, zero_result, zero_tally
from hubmerge.statistics.tally_sums import TallySum

BLOCK = 4096  # elements; chunks are multiples of it
LANES = 64  # columns of a block; wide enough for every vector unit
GROUP = 4  # rows that are added to each other before they are added to a column's sum
RELATIVE_ERROR = 28 * 2.0**-24  # of a block's sum: a term goes through 24 additions after 3 roundings of its product
SAFE = (103, 151)  # exponent fields [first, end) of a largest update, 2⁻²⁴ to 2²⁴, whose powers stay in range

_SPARE = 1024  # bins that zeros go to in turn, so that on a device they do not wait for one another
T = TypeVar("T", Tally, ResultTally)


@dataclass(frozen=True)
class Activity:
    """Which agents changed which elements of a chunk."""

    masks: Array  # [K, n]: |δk| > ε
    count: Array  # [n] uint8: c


def activity(deltas: Array, epsilon: Any) -> Activity:
    """RAM Eq. 1: masks and overlap count of deltas [K, n], float32; ε as float32 of their library."""
    masks = abs(deltas) > (np.float32(epsilon) if isinstance(epsilon, float) else epsilon)
    return Activity(masks, cast(masks, "uint8").sum(0, dtype=cast(masks[0], "uint8").dtype))


@dataclass(frozen=True)
class Counted(Generic[T]):
    """One chunk, counted: a tally without real sums, and those sums per block, [quantities, blocks]."""

    tally: T
    sums: Sums


def block_scales(patterns: Array) -> Array:
    """Powers of two for blocks whose largest |δ| have these bit patterns: 1 where they are 0 or SAFE, else what
    brings them to [1, 2), as far as float32 has it."""
    exponents = cast(patterns >> 23, "int32")
    safe = (patterns == 0) | ((exponents >= SAFE[0]) & (exponents < SAFE[1]))
    inverse = 254 - exponents
    scales = cast(where(safe, 127, where(inverse < 1, 1, where(inverse > 254, 254, inverse))), "int32")
    return view(scales << 23, "float32")


def block_sums(values: Array) -> Array:
    """[…, n] float32 → […, ⌈n/BLOCK⌉] float64: the sum of each aligned block, the last one padded with zeros.

    A block is LANES columns of BLOCK/LANES rows: columns are summed by groups of four rows, group after group, then
    halved as a tree, all in float32.
    """
    blocks = _blocks(values)
    rows = blocks.reshape(*blocks.shape[:-1], BLOCK // LANES // GROUP, GROUP, LANES)
    groups = (rows[..., 0, :] + rows[..., 1, :]) + (rows[..., 2, :] + rows[..., 3, :])
    lanes = groups[..., 0, :] + 0.0  # a sum begins at +0, so that no block of −0 sums to −0
    for group in range(1, groups.shape[-2]):
        lanes += groups[..., group, :]
    while (half := lanes.shape[-1] // 2) > 0:
        lanes = lanes[..., :half] + lanes[..., half:]
    return cast(lanes[..., 0], "float64")


def _blocks(values: Array) -> Array:
    """[…, ⌈n/BLOCK⌉, BLOCK], with zeros behind the last."""
    *leading, n = values.shape
    if n % BLOCK:
        padded = zeros((*leading, n + -n % BLOCK), "float32", values)
        padded[..., :n] = values
        values = padded
    return values.reshape(*leading, -1, BLOCK)


def _scaled(deltas: Array) -> tuple[Array, Array, Array]:
    """Deltas [K, n] times their blocks' scales; [K, blocks] float64, what a sum of them is multiplied by; and [blocks]
    float32, the scale of the largest delta of all agents."""
    patterns = largest(view(_blocks(deltas), "int32") & 0x7FFFFFFF)
    scales = block_scales(patterns)
    common = block_scales(largest(patterns.T))
    return _times(deltas, scales), 1 / cast(scales, "float64"), common


def _times(values: Array, scales: Array) -> Array:
    """Each block times its scale."""
    scaled = _blocks(values) * scales[..., None]
    return scaled.reshape(*values.shape[:-1], -1)[..., : values.shape[-1]]


def overlaps_of(act: Activity) -> Array:
    """[K, K+1] int64: active elements of agent k where c agents are active."""
    agents = len(act.masks)
    return stack([how_many(act.masks & (act.count == c)) for c in range(agents + 1)]).T


def input_counts(values: Array, deltas: Array, act: Activity) -> list[Array]:
    """One chunk of the inputs, values [K+1, n] and deltas [K, n], float32, as the vectors that `Read.inputs` reads.
    Sums: moments per power and agent, then dot for every a ≤ b."""
    k = len(deltas)
    plus = deltas > 0
    up, down = act.masks & plus, act.masks & ~plus
    return [
        how_many(values[1:] == values[0]),
        how_many(~is_finite(values)),
        view(cast(largest(abs(deltas)), "float64"), "int64"),
        _number(up.any(0) & down.any(0)),
        how_many(stack([act.count == c for c in range(k + 1)])),
        overlaps_of(act).reshape(-1),
        *(how_many(act.masks[a] & act.masks) for a in range(k)),
        *(how_many(up[a] & up) + how_many(down[a] & down) for a in range(k)),
        *_magnitudes(deltas),
        _input_sums(deltas),
    ]


def _magnitudes(deltas: Array) -> tuple[Array, Array]:
    """Counts and sums of offsets per agent and bin, [K · BINS] each."""
    k, n = deltas.shape
    found = [zeros((k * BINS + _SPARE,), "int64", deltas) for _ in range(2)]
    spare = (numbers(0, n, deltas) & (_SPARE - 1)) + k * BINS
    for agent in range(k):
        patterns = cast(view(deltas[agent], "int32") & 0x7FFFFFFF, "int64")
        places = where(patterns == 0, spare, (patterns >> LOW_BITS) + agent * BINS)
        added_at(found[0], places, patterns * 0 + 1)
        added_at(found[1], places, patterns & LAST)
    return found[0][: k * BINS], found[1][: k * BINS]


def _input_sums(deltas: Array) -> Array:
    x, u, _ = _scaled(deltas)
    squares = x * x
    sums = [block_sums(x) * u, block_sums(squares * x) * (u * u * u), block_sums(squares * squares) * (u * u * (u * u))]
    sums += [block_sums(x[a] * x[a:]) * (u[a] * u[a:]) for a in range(len(x))]
    return view(concat(sums).reshape(-1), "int64")


def result_counts(
    base: Array, deltas: Array, act: Activity, delta: Array, exact: Array, stored: Array, other: Array,
    stored_base: Array,
) -> list[Array]:  # fmt: skip
    """One chunk of the output; arrays [n], deltas [K, n], float32, as the vectors that `Read.result` reads. Sums: the
    fields of ResultTally.SUMS, K rows each.

    delta: δ* before rounding; exact: θ0 + δ* in float32; stored: the output as stored; other: as it were under
    the other rounding mode; stored_base: the base in the output's dtype.
    """
    x, u, common = _scaled(deltas)
    merged, step = _times(delta, common), _times(stored - base, common)
    other_step = step if other is stored else _times(other - base, common)
    alone, several = act.masks & (act.count == 1), act.masks & (act.count > 1)
    both = u / cast(common, "float64")
    nothing = zeros((), "float32", x)
    sums = [
        block_sums(where(region, x * factor, nothing)) * undo
        for factor, region, undo in (
            (x, alone, u * u), (merged, alone, both), (step, alone, both), (other_step, alone, both),
            (x, several, u * u), (merged, several, both),
        )
    ]  # fmt: skip
    changed, rounded, nonfinite = _number(stored != stored_base), _number(stored != exact), _number(~is_finite(stored))
    return [changed, rounded, nonfinite, view(concat(sums).reshape(-1), "int64")]


def _number(flags: Array) -> Array:
    return how_many(flags[None])


class Read:
    """A vector of counts, read front to back; for what it is shorter, the reader is wrong."""

    def __init__(self, vector: Counts, elements: int) -> None:
        self._left = vector
        self._elements = elements

    def _take(self, *shape: int) -> Counts:
        size = int(np.prod(shape))
        taken, self._left = self._left[:size], self._left[size:]
        return taken.reshape(shape).copy()

    def _sums(self, quantities: int) -> Sums:
        return self._take(quantities, -(-self._elements // BLOCK)).view(np.float64)

    def result(self, agents: int) -> Counted[ResultTally]:
        """Of result_counts."""
        changed, rounded, nonfinite = (int(v) for v in self._take(3))
        tally = replace(
            zero_result(agents), elements=self._elements, changed=changed, rounded=rounded, nonfinite=nonfinite
        )
        return Counted(tally, self._sums(len(ResultTally.SUMS) * agents))

    def inputs(self, agents: int) -> Counted[Tally]:
        """Of input_counts."""
        k = agents
        identical, nonfinite = self._take(k), self._take(k + 1)
        max_abs = self._take(k).view(np.float64)
        conflict = int(self._take(1)[0])
        overlap, by_overlap = self._take(k + 1), self._take(k, k + 1)
        tally = replace(
            zero_tally(k),
            elements=self._elements,
            changed=by_overlap.sum(1),
            identical=identical,
            overlap=overlap,
            by_overlap=by_overlap,
            pair_active=self._take(k, k),
            pair_agree=self._take(k, k),
            conflict=conflict,
            nonfinite=nonfinite,
            max_abs=max_abs,
            histogram=Histogram.from_dense(self._take(k, BINS), self._take(k, BINS)),
        )
        return Counted(tally, self._sums(3 * k + k * (k + 1) // 2))


class TensorFold(Generic[T]):
    """Adds up the chunks of a tensor, which come in their order, to a tally that `zero` begins."""

    def __init__(self, zero: T) -> None:
        self._counts: TallySum[T] = TallySum(zero)  # whose real sums are zeros
        self._sums = zero.sums

    def add(self, chunk: Counted[T]) -> None:
        self._counts.add(chunk.tally)
        self._sums = added_in_order(self._sums, chunk.sums)

    def tally(self) -> T:
        return self._counts.value().with_sums(self._sums)


def folded(zero: T, chunks: Iterable[Counted[T]]) -> T:
    """`zero` plus a tensor's chunks in their order."""
    fold = TensorFold(zero)
    for chunk in chunks:
        fold.add(chunk)
    return fold.tally()


def added_in_order(total: Sums, blocks: Sums) -> Sums:
    """total [Q] plus the sums of blocks [Q, n], one block after the other.

    numpy's sum adds rows that way, of two numbers or more, but not the numbers of a row: blocks become rows here.
    """
    rows = np.empty((blocks.shape[1] + 1, len(total)))  # zeros would be made without the interpreter's lock: a wait
    rows[0] = total
    rows[1:] = blocks.T
    return np.asarray(np.add.reduce(rows) if len(total) > 1 else np.add.accumulate(rows)[-1])
