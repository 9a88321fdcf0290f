"""The few operations, besides + − × ÷ and comparisons, that a kernel may use.

A kernel written with them runs unchanged on numpy arrays and torch tensors; the choice is made by the operands.
"""

from __future__ import annotations

from typing import Any

from hubmerge.numerics import arrays


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Element-wise choice; `yes` and `no` are arrays or scalars of the operands' dtype."""
    return arrays.where(condition, yes, no)


def absolute(x: Any) -> Any:
    return abs(x)
