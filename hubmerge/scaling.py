"""The scaling law of sparsity, s(N) = 1 − a·N^(−b) (70B paper, Eq. 3), fitted by nonlinear least squares.

N is the model's size in billions of parameters, s the L0 sparsity of its task vector. The residuals are those of s
itself, not of its logarithm. A line through (log N, log(1 − s)) gives the start; Levenberg–Marquardt steps in
(log a, b), which keep a positive, do the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_STEPS = 200
_TOLERANCE = 1e-14  # relative gain of a step, below which the fit has arrived
_MAX_DAMPING = 1e12

Float64 = NDArray[np.float64]


def fit_scaling_law(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(a, b, R²) from (N, s) pairs.

    Raises ValueError unless every N > 0 and 0 ≤ s ≤ 1, with s < 1 at two sizes at least: less determines no law.
    """
    data = np.array(points, dtype=np.float64).reshape(-1, 2)
    sizes, sparsity = data[:, 0], data[:, 1]
    if not (np.isfinite(data).all() and (sizes > 0).all() and (sparsity >= 0).all() and (sparsity <= 1).all()):
        raise ValueError("a point of the scaling law needs a size above 0 and a sparsity from 0 to 1")
    dense = 1 - sparsity
    usable = dense > 0
    if len(np.unique(sizes[usable])) < 2:
        raise ValueError("the scaling law needs two different sizes with a sparsity below 1")
    log_size = np.log(sizes)
    slope, intercept = np.polyfit(log_size[usable], np.log(dense[usable]), 1)
    log_a, b = _levenberg_marquardt(log_size, dense, float(intercept), float(-slope))
    return math.exp(log_a), b, _r_squared(dense, _law(log_size, log_a, b))


def _law(log_size: Float64, log_a: float, b: float) -> Float64:
    """1 − s."""
    return np.exp(log_a - b * log_size)


def _levenberg_marquardt(log_size: Float64, dense: Float64, log_a: float, b: float) -> tuple[float, float]:
    damping = 1e-3
    fitted = _law(log_size, log_a, b)
    error = float(((dense - fitted) ** 2).sum())
    for _ in range(_STEPS):
        jacobian = np.stack([fitted, -log_size * fitted], axis=1)
        normal = jacobian.T @ jacobian
        step = np.linalg.lstsq(
            normal + damping * np.diag(normal.diagonal()), jacobian.T @ (dense - fitted), rcond=None
        )[0]
        with np.errstate(over="ignore"):  # a step too far is refused below
            tried = _law(log_size, log_a + float(step[0]), b + float(step[1]))
            tried_error = float(((dense - tried) ** 2).sum())
        if tried_error <= error:
            arrived = error - tried_error <= _TOLERANCE * error
            log_a, b, fitted, error = log_a + float(step[0]), b + float(step[1]), tried, tried_error
            damping /= 10
            if arrived:
                break
        else:
            damping *= 10
            if damping > _MAX_DAMPING:
                break
    return log_a, b


def _r_squared(values: Float64, fitted: Float64) -> float:
    """1 where the fit is perfect, 0 where it is no better than the mean."""
    residual = float(((values - fitted) ** 2).sum())
    spread = float(((values - values.mean()) ** 2).sum())
    if spread == 0:
        return 1.0 if residual == 0 else 0.0
    return 1 - residual / spread
