"""The few operations, besides + − × ÷ and comparisons, that a kernel may use.

A kernel written with them runs unchanged on numpy arrays and torch tensors; the choice is made by the operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Element-wise choice; `yes` and `no` are arrays or scalars of the operands' dtype."""
    if isinstance(condition, np.ndarray | np.generic):
        return np.where(condition, yes, no)
    return _torch_where(condition, yes, no)


def absolute(x: Any) -> Any:
    return np.abs(x) if isinstance(x, np.ndarray | np.generic) else x.abs()


def _torch_where(condition: Any, yes: Any, no: Any) -> Any:
    import torch  # only on the GPU path, where torch is loaded already

    return torch.where(condition, yes, no)
