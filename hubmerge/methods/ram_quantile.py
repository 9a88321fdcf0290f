"""Quantile RAM: RAM with a threshold per tensor and one factor on all unique updates.

Source: "Does Sparsity Persist?" (the 70B scaling paper), Eq. 4 (mask |δk| ≥ its 90th percentile per tensor) and
Eq. 5 (merge):
c ≥ 2 → (1/K) Σ δk over all K;  c = 1 → λ·δ, λ = 1.5;  else 0.
Deviations: where more than q of a tensor's deltas are 0 the percentile is 0 and the literal mask is true
everywhere, so that the method is plain averaging; here an element must also be non-zero to be active.
`literal: true` gives the paper's rule. The percentile is the order statistic of rank ⌈q·(n − 1)⌉: a value is at
least the interpolated percentile exactly when it is at least that one. Output of 16 bits is rounded stochastically by
default, as with RAM+.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

from pydantic import Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope, Threshold
from hubmerge.methods.ops import absolute, where


class RamQuantileParameters(Parameters):
    q: float = Field(default=0.9, ge=0.0, le=1.0, description="percentile of |δ| per tensor (Eq. 4)")
    lam: float = Field(default=1.5, ge=0.0, le=10.0, alias="lambda", description="λ on unique updates (Eq. 5)")
    literal: bool = Field(default=False, description="the paper's mask, which is true everywhere at a percentile of 0")


class RamQuantile(Method):
    name = "ram_quantile"
    title = "Quantile RAM"
    summary = "RAM with each tensor's largest updates as active, from a quantile up, and one factor on unique ones."
    formula = (
        "δ* = 0 (c = 0), λ·wₜ·δₜ (c = 1), (1/K)·Σₖ wₖ·δₖ (c ≥ 2); "
        "active: |δₖ| ≥ its q-quantile in the tensor and, unless literal, not 0"
    )
    papers = (
        Paper("Does Sparsity Persist? Scaling Laws for RL-Induced Task Vectors and RAM at 70B+ Scale", "", "Eq. 4, 5"),
    )
    parameters = RamQuantileParameters
    rescales = True
    of_tensor = ("q", "lambda")

    def threshold(self, parameters: RamQuantileParameters, own: Sequence[Any] = ()) -> Threshold:
        return Threshold("delta", "tensor", lambda n: n - ceil(parameters.q * (n - 1)) if n else 1)

    def constants(self, scope: Scope) -> tuple[float, ...]:
        # an element is active above or at its threshold and above `least`; −1 lets zeros through
        least = -1.0 if scope.parameters.literal else 0.0
        return (scope.parameters.lam, float(len(scope.weights)), least, 0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        lam, agents, least, zero, one = constants
        count = inputs[0] * zero
        everyone = inputs[0] * zero
        unique = inputs[0] * zero
        for k in range(len(per_agent)):
            weighted = inputs[k] * per_agent[k][0]
            size = absolute(inputs[k])
            active = where(size >= per_agent[k][1], size, -one) > least
            count = count + where(active, one, zero)
            everyone = everyone + weighted
            unique = unique + where(active, weighted, zero)
        return where(count > one, everyone / agents, where(count > zero, unique * lam, zero))
