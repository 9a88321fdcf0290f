"""The few array operations that numpy and torch name or do differently; all else are operators that both have.

A dtype is its name, which both libraries share. torch is never imported here: who has a tensor has imported it.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # numpy's, or a tensor of torch


def is_numpy(x: Array) -> bool:
    return isinstance(x, np.ndarray | np.generic)


def cast(x: Array, dtype: str) -> Array:
    return x.astype(dtype) if is_numpy(x) else x.to(_torch_dtype(dtype))


def view(x: Array, dtype: str) -> Array:
    """The same bits."""
    return np.ascontiguousarray(x).view(dtype) if is_numpy(x) else x.contiguous().view(_torch_dtype(dtype))


def where(condition: Array, yes: Any, no: Any) -> Array:
    return np.where(condition, yes, no) if is_numpy(condition) else sys.modules["torch"].where(condition, yes, no)


def numbers(start: int, count: int, like: Array) -> Array:
    """[count] int64: start, start + 1 …"""
    if is_numpy(like):
        return np.arange(start, start + count, dtype=np.int64)
    torch = sys.modules["torch"]
    return torch.arange(start, start + count, dtype=torch.int64, device=like.device)


def zeros(shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    if is_numpy(like):
        return np.zeros(shape, dtype)
    return sys.modules["torch"].zeros(shape, dtype=_torch_dtype(dtype), device=like.device)


def concat(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if is_numpy(parts[0]) else sys.modules["torch"].cat(list(parts))


def stack(rows: Sequence[Array]) -> Array:
    return np.stack(rows) if is_numpy(rows[0]) else sys.modules["torch"].stack(list(rows))


def largest(x: Array) -> Array:
    """Along the last axis."""
    return x.max(axis=-1) if is_numpy(x) else x.amax(-1)


def how_many(flags: Array) -> Array:
    """True ones along the last axis, int64."""
    return np.count_nonzero(flags, axis=-1).astype(np.int64) if is_numpy(flags) else flags.sum(-1)


def is_finite(x: Array) -> Array:
    return np.isfinite(x) if is_numpy(x) else sys.modules["torch"].isfinite(x)


def added_at(total: Array, places: Array, what: Array) -> None:
    """`total` [n] plus what[i] at places[i], in place."""
    np.add.at(total, places, what) if is_numpy(total) else total.scatter_add_(0, places, what)


def shifted(x: Array, bits: int) -> Array:
    """Logical right shift of int64, whose sign would be shifted in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], name)
