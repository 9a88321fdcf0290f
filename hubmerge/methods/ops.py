"""The few operations, besides + − × ÷ and comparisons, that a kernel may use.

A kernel written with them runs unchanged on numpy arrays and torch tensors; the choice is made by the operands.
"""

from hubmerge.numerics.arrays import where  # element-wise; `yes` and `no` are arrays or scalars of the operands' dtype

__all__ = ["absolute", "where"]

absolute = abs
