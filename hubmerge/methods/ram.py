"""RAM: what one agent changed stays at full strength, what several changed is averaged over those.

Source: Yuan et al. 2026, arXiv:2601.13572, Eq. 1 (mask), Eq. 7 (merge) with λt = 1.
With mk = |δk| > ε and c = Σ mk:  c = 0 → 0;  c = 1 → δt;  c ≥ 2 → mean of δk over the active agents.
Deviations: an agent's weight multiplies its update after masking.
"""

from typing import Any

from hubmerge.methods.base import EpsilonParameters, Method, Paper, Scope
from hubmerge.methods.ops import absolute, where

RAM_PAPER = "Behavior Knowledge Merge in Reinforced Agentic Models"


class Ram(Method):
    name = "ram"
    title = "RAM"
    summary = "Keeps what one agent alone changed at its own weight, averages what several agents changed."
    formula = "δ* = 0 (c = 0), wₜ·δₜ (c = 1), mean of the active wₖ·δₖ (c ≥ 2)"
    papers = (Paper(RAM_PAPER, "2601.13572", "Eq. 1, 7 with λₜ = 1"),)
    parameters = EpsilonParameters

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        return tuple(zip(scope.weights, self.scales(scope), strict=True))

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (scope.parameters.epsilon, 0.0, 1.0)

    def scales(self, scope: Scope) -> tuple[float, ...]:
        return tuple(1.0 for _ in scope.weights)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        """Eq. 7. per_agent: (weight, λt); constants: (ε, 0, 1), as scalars of the arrays' dtype."""
        epsilon, zero, one = constants
        count = inputs[0] * zero
        shared = inputs[0] * zero
        unique = inputs[0] * zero
        for k in range(len(per_agent)):
            active = absolute(inputs[k]) > epsilon
            weighted = inputs[k] * per_agent[k][0]
            count = count + where(active, one, zero)
            shared = shared + where(active, weighted, zero)
            unique = unique + where(active, weighted * per_agent[k][1], zero)
        mean = shared / where(count > one, count, one)
        return where(count > one, mean, unique)
