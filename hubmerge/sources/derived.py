"""Tensors that no file holds: they are computed, one range of elements at a time, from tensors in files.

    BorrowedTensor  another model's tensor, as it is: what an adapter leaves to its base
    ScaledTensor    fp8 elements times the scale of their tensor, row or block
    AdaptedTensor   W + s·B·A of a LoRA adapter, without a full copy of anything
    JoinedTensor    a table of a base's rows, and of those that agents' vocabularies add
    ZeroTensor      zeros: the update from a tensor to them is the tensor itself, with the sign turned round

Elements are computed in float32, each by itself in a fixed order, so the range that is asked for changes no bit. Like a
stored tensor, each has a name, a shape and a dtype (`entry`), so later stages need not know how a tensor comes about.
They nest: an adapter's W may be fp8.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hubmerge.numerics.dtypes import STORAGE, Float32
from hubmerge.sources.base import StoredTensor

BASE = 0  # the base's place among the models of a merge
# of the first of some rows: which tables (0: its own) have it and as which row of theirs; several make a mean
Holders = tuple[tuple[int, int], ...]
_PANEL_ELEMENTS = 32 * 1024  # of a low-rank product at a time: sum and term stay in the second cache level


class Elements(Protocol):
    """Reads the elements of other tensors; `model` is 0 for the base, k for the k-th agent."""

    def raw(self, model: int, tensor: StoredTensor, start: int, count: int) -> NDArray[np.generic]:
        """[count] elements as stored."""

    def values(self, model: int, tensor: StoredTensor, start: int, count: int) -> Float32:
        """[count] elements as float32."""

    def whole(self, model: int, tensor: StoredTensor) -> Float32:
        """All elements in the tensor's shape, kept for the next call; for small tensors."""


@dataclass(frozen=True)
class DerivedTensor(StoredTensor, ABC):
    """A computed tensor. `shard` and the offsets of `entry` are those of the tensor that it stands for."""

    @abstractmethod
    def read(self, elements: Elements, model: int, start: int, count: int) -> NDArray[np.generic]:
        """[count] elements from `start`, as `entry.dtype` is stored; `model` is the one that this tensor belongs to."""


@dataclass(frozen=True)
class _ChangedTensor(DerivedTensor):
    """A tensor made of a model's `own` one, whose place and dtype it has in an output."""

    own: StoredTensor

    @classmethod
    def _of(cls, own: StoredTensor, *fields: Any, **entry: Any) -> Self:
        """A tensor with these `fields`, described as its own one but for what `entry` says."""
        return cls(own.shard, replace(own.entry, **entry), own, *fields)

    @property
    def kept_dtype(self) -> str:
        return self.own.kept_dtype


@dataclass(frozen=True)
class BorrowedTensor(_ChangedTensor):
    """A tensor of the model `owner`, seen as part of another one."""

    owner: int

    @classmethod
    def of(cls, tensor: StoredTensor, owner: int) -> "BorrowedTensor":
        return cls._of(tensor, owner)

    def read(self, elements: Elements, model: int, start: int, count: int) -> NDArray[np.generic]:
        return elements.raw(self.owner, self.own, start, count)


@dataclass(frozen=True)
class ScaledTensor(_ChangedTensor):
    """fp8 elements times scales [⌈r/block rows⌉, ⌈c/block columns⌉]; no block: one scale for the whole tensor."""

    scale: StoredTensor
    block: tuple[int, int] | None  # rows, columns

    @property
    def kept_dtype(self) -> str:
        return "BF16"  # an output has no scales, and fp8 without them would lose what they say

    @classmethod
    def of(cls, stored: StoredTensor, scale: StoredTensor, block: tuple[int, int] | None) -> "ScaledTensor":
        return cls._of(stored, scale, block, dtype="F32")

    def read(self, elements: Elements, model: int, start: int, count: int) -> Float32:
        decoded = fp8_values(elements.raw(model, self.own, start, count), self.own.entry.dtype)
        if count == 0:
            return decoded
        with np.errstate(all="ignore"):  # NaN and Inf are for the caller to count
            return decoded * self._scales(elements, model, start, count)

    def _scales(self, elements: Elements, model: int, start: int, count: int) -> Float32:
        if self.block is None:
            return elements.values(model, self.scale, 0, 1)
        height, width = self.block
        columns = self.entry.shape[1]
        across = -(-columns // width)
        first, last = start // columns, (start + count - 1) // columns
        top, bottom = first // height, last // height
        scales = elements.values(model, self.scale, top * across, (bottom - top + 1) * across)
        rows = np.arange(first, last + 1) // height - top
        spread = np.repeat(scales.reshape(-1, across), width, axis=1)[:, :columns][rows]
        return spread.reshape(-1)[start - first * columns :][:count]


@dataclass(frozen=True)
class AdaptedTensor(_ChangedTensor):
    """W + s·B·A, float32, W being `own`; the rank dimension is summed in order, so that no range sees another sum."""

    a: StoredTensor  # [rank, in]
    b: StoredTensor  # [out, rank]
    scale: float
    transposed: bool  # W is stored [in, out]: an embedding, or fan_in_fan_out

    @classmethod
    def of(cls, weight: StoredTensor, a: StoredTensor, b: StoredTensor, scale: float, *, transposed: bool) -> Self:
        return cls._of(weight, a, b, scale, transposed, dtype="F32")

    def read(self, elements: Elements, model: int, start: int, count: int) -> Float32:
        weight = elements.values(model, self.own, start, count)
        if count == 0:
            return weight
        a, b = elements.whole(model, self.a), elements.whole(model, self.b)
        columns = self.entry.shape[1]
        first, last = start // columns, (start + count - 1) // columns + 1
        left, right = (a.T, b.T) if self.transposed else (b, a)
        update = _product(left[first:last], np.ascontiguousarray(right)).reshape(-1)
        with np.errstate(all="ignore"):
            update *= np.float32(self.scale)
            return weight + update[start - first * columns :][:count]


@dataclass(frozen=True)
class JoinedTensor(_ChangedTensor):
    """Rows of `own` and of other tables, one part after the other."""

    others: tuple[StoredTensor, ...]
    parts: tuple[tuple[int, Holders], ...]  # each from its first row on, up to the next one's

    @classmethod
    def of(
        cls, own: StoredTensor, others: tuple[StoredTensor, ...], parts: tuple[tuple[int, Holders], ...], rows: int
    ) -> Self:
        return cls._of(own, others, parts, dtype="F32", shape=(rows, *own.entry.shape[1:]))

    @classmethod
    def extended(cls, own: StoredTensor, by: StoredTensor) -> Self:
        """The rows of `own`, then those of `by` beyond them."""
        end = own.entry.shape[0]
        return cls.of(own, (by,), ((0, ((0, 0),)), (end, ((1, end),))), by.entry.shape[0])

    def read(self, elements: Elements, model: int, start: int, count: int) -> Float32:
        width = self.entry.shape[1]
        found, end = [np.empty(0, np.float32)], start + count
        while start < end:
            number = bisect_right(self.parts, start // width, key=itemgetter(0))
            first, held = self.parts[number - 1]
            until = self.parts[number][0] * width if number < len(self.parts) else end
            take = min(end, until) - start
            found.append(self._mean(elements, model, held, start - first * width, take))
            start += take
        return np.concatenate(found)

    def _mean(self, elements: Elements, model: int, held: Holders, offset: int, count: int) -> Float32:
        tables, width = (self.own, *self.others), self.entry.shape[1]
        first, *more = (elements.values(model, tables[table], row * width + offset, count) for table, row in held)
        with np.errstate(all="ignore"):  # NaN and Inf are for the caller to count
            for values in more:
                first = first + values
            return first / np.float32(len(held)) if more else first


@dataclass(frozen=True)
class ZeroTensor(DerivedTensor):
    """Zeros in the shape of a tensor, stored as it is."""

    def read(self, elements: Elements, model: int, start: int, count: int) -> NDArray[np.generic]:
        return np.zeros(count, STORAGE[self.entry.dtype])


def first_rows(tensor: StoredTensor, rows: int) -> StoredTensor:
    """The first rows of a matrix. Computed tensors are computed row by row, so cutting off rows changes no bit."""
    entry = tensor.entry
    end = entry.begin + (entry.end - entry.begin) // max(entry.shape[0], 1) * rows
    return replace(tensor, entry=replace(entry, shape=(rows, *entry.shape[1:]), end=end))


def _product(left: Float32, right: Float32) -> Float32:
    """left [n, rank] · right [rank, m] → [n, m]: term by term in the order of the ranks, each rounded to float32.

    A matrix product of a library adds in an order that depends on the shapes; this one does not.
    """
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    height = max(1, _PANEL_ELEMENTS // max(1, right.shape[1]))
    term = np.empty((height, right.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for top in range(0, left.shape[0], height):
            panel, rows = total[top : top + height], left[top : top + height]
            for k in range(right.shape[0]):
                np.multiply(rows[:, k : k + 1], right[k], out=term[: len(panel)])
                panel += term[: len(panel)]
    return total


def fp8_values(raw: NDArray[Any], dtype: str) -> Float32:
    """fp8 bits (uint8) → float32, exact."""
    return np.asarray(_TABLES[dtype][raw])


_KINDS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
with np.errstate(invalid="ignore"):  # processors of ARM tell of a signaling NaN
    _TABLES = {name: np.arange(256, dtype=np.uint8).view(kind).astype(np.float32) for name, kind in _KINDS.items()}
