"""One chunk on a device: the operations of eager.py and counting.py in torch, with the same bits.

Nothing in a pass waits for the device: there is no branch on a value and no result is looked at. What was counted
leaves the device as one vector (`Counts`), so that a chunk costs one copy in and two copies out.

Counting pairs: a row of booleans says per agent where its update is positive, another where it is active and not
positive, and one per overlap count c = 0 … K where c agents are active. The number of elements where an agent's row
and any other row are both true holds every count across agents. (A matrix product would give them at once, but each
thread's use of each stream would take a workspace of 32 MiB on the device.)

Counting magnitudes: one 64-bit addition per element adds 1 to a bin's count (the bits from _COUNT_SHIFT) and the
element's offset to the bin's sum (the bits below). Zeros, which have no bin and are most of a sparse agent, go to
_SPARE bins in turn, so that they do not wait for one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hubmerge.counter_rng import Key
from hubmerge.dtypes import Rounding
from hubmerge.engine.counting import BLOCK, Counted
from hubmerge.engine.device.arithmetic import block_scales, block_sums, draws, encode, padded, uniform
from hubmerge.engine.eager import Rule
from hubmerge.statistics.histogram import BINS, LAST, LOW_BITS, Histogram
from hubmerge.statistics.statistics import ResultTally, Tally, zero_result, zero_tally

MAX_ELEMENTS = 1 << 22  # of a chunk: offsets below 2^18 sum to less than 2^40, counts stay below 2^23
_COUNT_SHIFT = 40
_SPARE = 1024

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """What a pass works on; all on one device."""

    stored: Tensors  # K+1 × [n], as stored
    start: int
    uniform_keys: tuple[Key, ...] = ()
    sensitivities: Tensors = ()  # K × [n] float32


@dataclass(frozen=True)
class Scalars:
    """A rule's scalars as float32 tensors of the device."""

    per_agent: tuple[Tensors, ...]
    constants: Tensors
    epsilon: torch.Tensor
    zero: torch.Tensor


@dataclass(frozen=True)
class _Decoded:
    values: torch.Tensor  # [K+1, n] float32
    deltas: torch.Tensor  # [K, n]
    active: torch.Tensor  # [K, n]
    count: torch.Tensor  # [n] uint8


def scalars_of(rule: Rule, device: torch.device) -> Scalars:
    def scalar(value: Any) -> torch.Tensor:
        return torch.full((), float(value), dtype=torch.float32, device=device)

    per_agent = tuple(tuple(scalar(v) for v in row) for row in rule.per_agent)
    constants = tuple(scalar(v) for v in rule.constants)
    return Scalars(per_agent, constants, scalar(np.float32(rule.epsilon)), scalar(0))


def probe(inputs: Inputs, scalars: Scalars) -> torch.Tensor:
    """What `Counts.inputs` makes a tally from."""
    return torch.cat(_count_inputs(_decoded(inputs, scalars)))


def merge(
    inputs: Inputs, rule: Rule, scalars: Scalars, dtype: str, key: Key, *, with_inputs: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output as stored, and what `Counts.result` and, after it, `Counts.inputs` make tallies from."""
    known = _decoded(inputs, scalars)
    base, n, device = known.values[0], known.values.shape[1], known.values.device
    extras: list[torch.Tensor] = []
    for name in rule.extras:
        if name == "uniform":
            extras += [uniform(k, inputs.start, n, device) for k in inputs.uniform_keys]
        else:
            extras += inputs.sensitivities
    delta = rule.kernel((*known.deltas.unbind(), *extras), scalars.per_agent, scalars.constants)
    exact = torch.where(delta == scalars.zero, base, base + delta)

    def rounded(mode: Rounding) -> torch.Tensor:
        random = draws(key, inputs.start, n, device) if mode == "stochastic" and dtype != "F32" else None
        return encode(exact, dtype, mode, random)

    raw = rounded(rule.rounding)
    stored = raw.to(torch.float32)
    other = stored
    if rule.both_roundings and dtype != "F32":
        other = rounded("nearest" if rule.rounding == "stochastic" else "stochastic").to(torch.float32)
    stored_base = base
    if inputs.stored[0].dtype != raw.dtype:
        stored_base = encode(base, dtype, "nearest", None).to(torch.float32)
    counts = [_number((stored != stored_base).sum()), _number((stored != exact).sum()), _nonfinite(stored[None])]
    sums = _result_sums(known, delta, stored, other, scalars.zero)
    if with_inputs:
        return raw, torch.cat([*counts, sums, *_count_inputs(known)])
    return raw, torch.cat([*counts, sums])


def _decoded(inputs: Inputs, scalars: Scalars) -> _Decoded:
    values = torch.stack([s.to(torch.float32) for s in inputs.stored])
    deltas = values[1:] - values[0]
    active = deltas.abs() > scalars.epsilon
    return _Decoded(values, deltas, active, active.sum(0, dtype=torch.uint8))


def _count_inputs(known: _Decoded) -> list[torch.Tensor]:
    """int64 vectors: identical, nonfinite, max_abs (float64's bits), conflict, overlap, pairs of rows, magnitudes,
    sums (float64's bits)."""
    values, deltas, active = known.values, known.deltas, known.active
    k = len(deltas)
    plus = deltas > 0
    up, down = active & plus, active & ~plus
    overlaps = torch.arange(k + 1, dtype=torch.uint8, device=values.device)
    rows = torch.cat([up, down, known.count == overlaps[:, None]])
    return [
        (values[1:] == values[0]).sum(1),
        _nonfinite(values),
        deltas.abs().amax(1).to(torch.float64).view(torch.int64),
        _number((up.any(0) & down.any(0)).sum()),
        rows[2 * k :].sum(1),
        *((rows[i] & rows).sum(1) for i in range(2 * k)),
        _magnitudes(deltas),
        _input_sums(deltas),
    ]


def _magnitudes(deltas: torch.Tensor) -> torch.Tensor:
    """[K · BINS]: per bin the count above _COUNT_SHIFT and the sum of offsets below it."""
    k, n = deltas.shape
    patterns = deltas.view(torch.int32) & 0x7FFFFFFF
    first = torch.arange(0, k * BINS, BINS, dtype=torch.int32, device=deltas.device)[:, None]
    spare = (torch.arange(n, dtype=torch.int32, device=deltas.device) & (_SPARE - 1)) + k * BINS
    where = torch.where(patterns == 0, spare, (patterns >> LOW_BITS) + first)
    what = (patterns & LAST).to(torch.int64) + (1 << _COUNT_SHIFT)
    bins = torch.zeros(k * BINS + _SPARE, dtype=torch.int64, device=deltas.device)
    bins.scatter_add_(0, where.flatten().to(torch.int64), what.flatten())
    return bins[: k * BINS]


@dataclass(frozen=True)
class _Scaled:
    """counting.py's scaled deltas."""

    deltas: torch.Tensor  # [K, whole blocks] float32, zero behind the first n
    undo: torch.Tensor  # [K, blocks] float64
    common: torch.Tensor  # [blocks] float32


def _scaled(deltas: torch.Tensor) -> _Scaled:
    k, n = deltas.shape
    rows = _rows(k, n, deltas.device)
    rows[:, :n] = deltas
    largest = (rows.view(torch.int32) & 0x7FFFFFFF).view(k, -1, BLOCK).amax(2)
    scales = block_scales(largest)
    return _Scaled(_times(rows, scales), scales.to(torch.float64).reciprocal(), block_scales(largest.amax(0)))


def _times(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Each block times its scale, in place."""
    rows.view(*rows.shape[:-1], -1, BLOCK).mul_(scales[..., None])
    return rows


def _input_sums(deltas: torch.Tensor) -> torch.Tensor:
    """The rows of counting.count_inputs."""
    k = len(deltas)
    scaled = _scaled(deltas)
    x, u = scaled.deltas, scaled.undo
    squares = x * x
    rows = torch.empty((3 * k + k * (k + 1) // 2, x.shape[1]), dtype=torch.float32, device=x.device)
    factors = [u, u * u * u, u * u * (u * u)]
    rows[:k] = x
    torch.mul(squares, x, out=rows[k : 2 * k])
    torch.mul(squares, squares, out=rows[2 * k : 3 * k])
    row = 3 * k
    for a in range(k):
        torch.mul(x[a], x[a:], out=rows[row : row + k - a])
        factors.append(u[a] * u[a:])
        row += k - a
    return block_sums(rows).mul_(torch.cat(factors)).flatten().view(torch.int64)


def _result_sums(
    known: _Decoded, delta: torch.Tensor, stored: torch.Tensor, other: torch.Tensor, zero: torch.Tensor
) -> torch.Tensor:
    """The rows of counting.count_result."""
    k, n = known.deltas.shape
    scaled = _scaled(known.deltas)
    x, u = scaled.deltas, scaled.undo

    def whole(values: torch.Tensor) -> torch.Tensor:
        rows = _rows(1, n, values.device)[0]
        rows[:n] = values
        return _times(rows, scaled.common)

    merged, step = whole(delta), whole(stored - known.values[0])
    other_step = step if other is stored else whole(other - known.values[0])
    rows = _rows(len(ResultTally.SUMS) * k, n, delta.device)
    alone, several = known.active & (known.count == 1), known.active & (known.count > 1)
    for row, (factor, where) in enumerate(
        ((x, alone), (merged, alone), (step, alone), (other_step, alone), (x, several), (merged, several))
    ):
        products = torch.mul(x, factor)[:, :n]
        torch.where(where, products, zero, out=rows[row * k : (row + 1) * k, :n])
    both = u / scaled.common.to(torch.float64)
    factors = torch.cat([u * u, both, both, both, u * u, both])
    return block_sums(rows).mul_(factors).flatten().view(torch.int64)


def _rows(quantities: int, n: int, device: torch.device) -> torch.Tensor:
    """[quantities, whole blocks] float32, zero behind the first n."""
    rows = torch.empty((quantities, padded(n)), dtype=torch.float32, device=device)
    rows[:, n:] = 0.0
    return rows


def _number(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.int64).reshape(1)


def _nonfinite(values: torch.Tensor) -> torch.Tensor:
    return (~torch.isfinite(values)).sum(1)


class Counts:
    """A vector of counts, read front to back; for what it is shorter, the reader is wrong."""

    def __init__(self, vector: NDArray[np.int64], elements: int) -> None:
        self._left = vector
        self._elements = elements
        self._blocks = padded(elements) // BLOCK

    def _take(self, *shape: int) -> NDArray[np.int64]:
        size = int(np.prod(shape))
        taken, self._left = self._left[:size], self._left[size:]
        return taken.reshape(shape).copy()

    def _sums(self, quantities: int) -> NDArray[np.float64]:
        return self._take(quantities, self._blocks).view(np.float64)

    def result(self, agents: int) -> Counted[ResultTally]:
        """What counting.count_result gives."""
        changed, rounded, nonfinite = (int(v) for v in self._take(3))
        tally = replace(
            zero_result(agents), elements=self._elements, changed=changed, rounded=rounded, nonfinite=nonfinite
        )
        return Counted(tally, self._sums(len(ResultTally.SUMS) * agents))

    def inputs(self, agents: int) -> Counted[Tally]:
        """What counting.count_inputs gives."""
        k = agents
        identical, nonfinite = self._take(k), self._take(k + 1)
        max_abs = self._take(k).view(np.float64)
        conflict = int(self._take(1)[0])
        overlap = self._take(k + 1)
        signs = self._take(2, k, 3 * k + 1)  # rows of positive, then of other active updates
        packed = self._take(k, BINS)
        active = signs.sum(0)
        by_overlap = active[:, 2 * k :]
        tally = replace(
            zero_tally(k),
            elements=self._elements,
            changed=by_overlap.sum(1),
            identical=identical,
            overlap=overlap,
            by_overlap=by_overlap,
            pair_active=active[:, :k] + active[:, k : 2 * k],
            pair_agree=signs[0, :, :k] + signs[1, :, k : 2 * k],
            conflict=conflict,
            nonfinite=nonfinite,
            max_abs=max_abs,
            histogram=Histogram.from_dense(packed >> _COUNT_SHIFT, packed & ((1 << _COUNT_SHIFT) - 1)),
        )
        return Counted(tally, self._sums(3 * k + k * (k + 1) // 2))
