"""WUDI: a merged update whose rows interfere least with what each agent's update responds to.

Source: Cheng et al. 2025, "Whoever Started the Interference Should End It", arXiv:2503.08099; compared with RAM in
arXiv:2601.13572, Table 10. For each 2-D weight of a linear layer, δ* minimises
    Σk ‖(δ* − δk) δkᵀ‖²_F / ‖δk‖²_F
by Adam (β 0.9, 0.999; ε 1e-8) from Σ δk; every other tensor is averaged over the agents.
Deviations: none known. The gradient 2·Σk (δ* − δk)·δkᵀδk / ‖δk‖² is written out instead of differentiated, with the
smaller of the two products δkᵀδk and (δ* − δk)δkᵀ as the intermediate. Matrix products run on one thread, since
their summation order depends on the number of threads.
A whole tensor is in memory: K deltas, δ*, two moments and a gradient in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from hubmerge.dtypes import Float32
from hubmerge.methods.base import Method, Paper, Parameters, Scope
from hubmerge.statistics.statistics import module_of

_BETA1, _BETA2, _EPS = np.float32(0.9), np.float32(0.999), np.float32(1e-8)


class WudiParameters(Parameters):
    steps: int = Field(default=300, ge=0, le=100_000, description="steps of Adam")
    lr: float = Field(default=1e-5, gt=0.0, le=1.0, description="learning rate of Adam")


class Wudi(Method):
    name = "wudi"
    title = "WUDI"
    summary = "Looks, layer by layer, for an update that interferes little with every agent's own."
    formula = (
        "from Σₖ δₖ towards argmin Σₖ ‖(δ* − δₖ)·δₖᵀ‖²_F / ‖δₖ‖²_F per linear weight; the mean elsewhere; "
        "each δₖ times wₖ"
    )
    papers = (Paper("Whoever Started the Interference Should End It", "2503.08099", "the objective of its Sec. 4"),)
    parameters = WudiParameters
    matrix_products = True

    def needs_whole(self, name: str, shape: tuple[int, ...]) -> bool:
        """2-D weights of linear layers; embeddings, norms and biases are averaged."""
        return len(shape) == 2 and min(shape) > 1 and module_of(name) in ("attention", "mlp", "other")

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (float(len(scope.weights)),)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        total = inputs[0] * per_agent[0][0]
        for k in range(1, len(per_agent)):
            total = total + inputs[k] * per_agent[k][0]
        return total / constants[0]

    def merge_whole(self, deltas: Sequence[Float32], scope: Scope) -> Float32:
        from threadpoolctl import threadpool_limits

        updates = [d * np.float32(w) for d, w in zip(deltas, scope.weights, strict=True)]
        updates = [d for d in updates if d.any()]
        if not updates:
            return np.zeros_like(deltas[0])
        with threadpool_limits(1):
            return _descend(updates, scope.parameters)


def _descend(updates: Sequence[Float32], parameters: WudiParameters) -> Float32:
    merged = updates[0].copy()
    for update in updates[1:]:
        merged += update
    norms = [np.float32(np.sum(np.square(d, dtype=np.float64))) for d in updates]
    rows, columns = merged.shape
    grams = [(d.T @ d) / n for d, n in zip(updates, norms, strict=True)] if columns <= rows else None
    first, second = np.zeros_like(merged), np.zeros_like(merged)
    for step in range(1, parameters.steps + 1):
        gradient = np.zeros_like(merged)
        for k, (update, norm) in enumerate(zip(updates, norms, strict=True)):
            difference = merged - update
            if grams is not None:
                gradient += difference @ grams[k]
            else:
                gradient += (difference @ update.T) @ (update / norm)
        gradient *= np.float32(2)
        first = _BETA1 * first + (np.float32(1) - _BETA1) * gradient
        second = _BETA2 * second + (np.float32(1) - _BETA2) * gradient * gradient
        unbiased1 = first / np.float32(1 - float(_BETA1) ** step)
        unbiased2 = second / np.float32(1 - float(_BETA2) ** step)
        merged = merged - np.float32(parameters.lr) * unbiased1 / (np.sqrt(unbiased2) + _EPS)
    return merged
