"""Counting one chunk: from float32 arrays to tallies, with the same bits for every chunk size.

A chunk begins at a multiple of BLOCK elements within its tensor. Counts are integers and add up in any order.
Real sums are taken per aligned block in float64, in a fixed order; `fold` adds them to the running total block
after block, in the order of the tensor. So their bits do not depend on the chunks, nor on which thread counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubmerge.histogram import histogram_of
from hubmerge.statistics import Counts, ResultTally, Sums, Tally, zero_result, zero_tally

BLOCK = 4096  # elements; chunks are multiples of it
LANES = 64  # columns of a block; wide enough for every vector unit
GROUP = 4  # rows that are added to each other before they are added to a column's sum

Float32 = NDArray[np.float32]
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


def block_sums(values: Sums) -> Sums:
    """[n] float64 → [⌈n/BLOCK⌉]: the sum of each aligned block, the last one padded with zeros.

    A block is LANES columns of BLOCK/LANES rows: columns are summed by groups of four rows, group after group, then
    halved as a tree.
    """
    missing = -len(values) % BLOCK
    if missing:
        values = np.concatenate([values, np.zeros(missing)])
    a, b, c, d = values.reshape(-1, BLOCK // LANES // GROUP, GROUP, LANES).transpose(2, 0, 1, 3)
    groups = (a + b) + (c + d)
    lanes = groups[:, 0] + 0.0  # a sum begins at +0, so that no block of −0 sums to −0
    for group in range(1, groups.shape[1]):
        lanes += groups[:, group]
    while (half := lanes.shape[1] // 2) > 0:
        lanes = lanes[:, :half] + lanes[:, half:]
    return np.asarray(lanes[:, 0])


def count_inputs(base: Float32, agents: Sequence[Float32], deltas: Sequence[Float32], act: Activity) -> Counted[Tally]:
    """One chunk of the inputs; all arrays [n], float32. Sums: l1 per agent, moments per power and agent, then dot for
    every a ≤ b."""
    k = len(agents)
    masks, count = act.masks, act.count
    positive = [d > 0 for d in deltas]
    any_positive = np.zeros(base.shape, dtype=bool)
    any_negative = np.zeros(base.shape, dtype=bool)
    for mask, plus in zip(masks, positive, strict=True):
        any_positive |= mask & plus
        any_negative |= mask & ~plus
    by_overlap = np.zeros((k, k + 1), dtype=np.int64)
    for c in range(1, k + 1):
        at = count == c
        for a in range(k):
            by_overlap[a, c] = np.count_nonzero(at & masks[a])
    pair_active, pair_agree = np.zeros((k, k), dtype=np.int64), np.zeros((k, k), dtype=np.int64)
    wide = [d.astype(np.float64) for d in deltas]
    squares = [w * w for w in wide]
    sums = [block_sums(np.abs(w)) for w in wide]
    sums += [block_sums(w) for w in wide]
    sums += [block_sums(s * w) for s, w in zip(squares, wide, strict=True)]
    sums += [block_sums(s * s) for s in squares]
    for a, b in _pairs(k):
        both = masks[a] & masks[b]
        pair_active[a, b] = pair_active[b, a] = np.count_nonzero(both)
        same = both & (positive[a] == positive[b])
        pair_agree[a, b] = pair_agree[b, a] = np.count_nonzero(same)
        sums.append(block_sums(wide[a] * wide[b]))
    tally = replace(
        zero_tally(k),
        elements=base.size,
        changed=_array(int(np.count_nonzero(m)) for m in masks),
        identical=_array(int(np.count_nonzero(a == base)) for a in agents),
        overlap=np.bincount(count, minlength=k + 1).astype(np.int64),
        by_overlap=by_overlap,
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
    start = np.concatenate([running.l1, running.moments.reshape(-1), [running.dot[a, b] for a, b in _pairs(k)]])
    total = _in_order(start, chunk.sums)
    dot = np.zeros((k, k))
    for (a, b), value in zip(_pairs(k), total[4 * k :], strict=True):
        dot[a, b] = dot[b, a] = value
    return replace(running + chunk.tally, l1=total[:k], moments=total[k : 4 * k].reshape(3, k), dot=dot)


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
    wide_delta = delta.astype(np.float64)
    step = stored.astype(np.float64) - base
    other_step = step if other is stored else other.astype(np.float64) - base
    alone, several = act.count == 1, act.count > 1
    rows: dict[str, list[Sums]] = {name: [] for name in ResultTally.SUMS}
    for mask, update in zip(act.masks, deltas, strict=True):
        wide = update.astype(np.float64)
        only, shared = mask & alone, mask & several
        square, kept = wide * wide, wide * wide_delta
        rows["unique_norm"].append(block_sums(np.where(only, square, 0.0)))
        rows["unique_kept"].append(block_sums(np.where(only, kept, 0.0)))
        rows["unique_stored"].append(block_sums(np.where(only, wide * step, 0.0)))
        rows["unique_other"].append(block_sums(np.where(only, wide * other_step, 0.0)))
        rows["shared_norm"].append(block_sums(np.where(shared, square, 0.0)))
        rows["shared_kept"].append(block_sums(np.where(shared, kept, 0.0)))
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
    total = _in_order(np.concatenate([getattr(running, n) for n in ResultTally.SUMS]), chunk.sums)
    sums: dict[str, Any] = {name: total[i * k : (i + 1) * k] for i, name in enumerate(ResultTally.SUMS)}
    return replace(running + chunk.tally, **sums)


def _in_order(total: Sums, blocks: Sums) -> Sums:
    # a running sum adds one after the other, which numpy's sum does not
    return np.asarray(np.add.accumulate(np.concatenate([total[:, None], blocks], axis=1), axis=1)[:, -1])


def _pairs(k: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(k) for b in range(a, k)]


def _array(values: Iterable[int]) -> Counts:
    return np.fromiter(values, dtype=np.int64)


def _nonfinite(values: Float32) -> int:
    return int(values.size - np.count_nonzero(np.isfinite(values)))
