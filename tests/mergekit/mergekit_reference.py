"""mergekit 0.1.5's definitions, naively and in float64, one tensor at a time.

`deltas` are θk − θ0, flat, one row per agent. Which elements a random drop keeps is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.mergekit_parity import PYTHON

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / PYTHON
needs_mergekit = pytest.mark.skipif(
    not INSTALLED.exists(), reason="mergekit is not installed in .cache/mergekit (tests/mergekit/install.sh)"
)
MOST_ULPS = 4.0  # of float32, from another order of the same operations


def linear(models: Array, weights: Sequence[float], normalize: bool = True) -> Array:
    """Over models, the base among them, not over deltas."""
    total = sum(w * m for w, m in zip(weights, models, strict=True))
    return total / sum(weights) if normalize else total


def trim(delta: Array, density: float) -> Array:
    """Exactly max(1, ⌊density·n⌋) elements stay, the largest; of equal ones the first."""
    if density >= 1:
        return delta
    kept = np.zeros_like(delta)
    order = np.argsort(-np.abs(delta), kind="stable")[: max(1, int(density * delta.size))]
    kept[order] = delta[order]
    return kept


def rescaled_drop(delta: Array, kept: NDArray[np.bool_]) -> Array:
    """The survivors, scaled so that the tensor's sum of magnitudes is what it was."""
    survivors = np.where(kept, delta, 0.0)
    after = np.abs(survivors).sum()
    return survivors * (np.abs(delta).sum() / after) if after > 0 else survivors


def task_arithmetic(deltas: Array, weights: Sequence[float], lam: float, normalize: bool) -> Array:
    total = sum(w * d for w, d in zip(weights, deltas, strict=True))
    return lam * total / (sum(weights) if normalize else 1.0)


def consensus(deltas: Array, weights: Sequence[float], lam: float, normalize: bool) -> Array:
    """TIES without the trim: elect a sign per element, 0 counts as +; sum or weighted mean of the agreeing."""
    result = np.zeros(deltas.shape[1])
    for i in range(deltas.shape[1]):
        weighted = [w * d for w, d in zip(weights, deltas[:, i], strict=True)]
        sign = 1.0 if sum(weighted) >= 0 else -1.0
        agreeing = [k for k, value in enumerate(weighted) if np.sign(value) == sign]
        divisor = sum(weights[k] for k in agreeing) if normalize else 1.0
        result[i] = lam * sum(weighted[k] for k in agreeing) / (divisor or 1.0)
    return result


def ram(deltas: Array, epsilon: float, r: float, alpha: float) -> Array:
    """The tensor-local RAM+; RAM where r and alpha are 0."""
    active = np.abs(deltas) > np.float32(epsilon)
    count = active.sum(axis=0)
    result = np.zeros(deltas.shape[1])
    for delta, mask in zip(deltas, active, strict=True):
        unique, shared = mask & (count == 1), mask & (count > 1)
        rho = shared.sum() / unique.sum() if unique.any() else 0.0
        result[unique] += delta[unique] * (1.0 + r * min(rho, alpha))
        result[shared] += delta[shared] / count[shared]
    return result
