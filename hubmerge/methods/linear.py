"""Linear averaging (model soup): δ* = Σ wk δk / Σ wk.

Source: Wortsman et al. 2022, arXiv:2203.05482, Sec. 2 (uniform soup), with a weight per agent. With `base_weight` w0
the base is one of the models that are averaged: δ* = Σ wk δk / (w0 + Σ wk).
Deviations: none; averaging the deltas and averaging the models are the same in exact arithmetic, and the deltas
keep the base's bits where no agent changed them.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope
from hubmerge.methods.task_arithmetic import NO_WEIGHT


class LinearParameters(Parameters):
    base_weight: float | None = Field(
        default=None, ge=-100.0, le=100.0, description="the base's own weight in the mean; none when absent"
    )


class Linear(Method):
    name = "linear"
    title = "Linear average"
    summary = "The weighted mean of the agents; what only one agent changed keeps that agent's share of the weights."
    formula = "δ* = Σₖ wₖ·δₖ / (w₀ + Σₖ wₖ), w₀ = base_weight, or 0"
    papers = (Paper("Model soups", "2203.05482", "Sec. 2"),)
    parameters = LinearParameters
    of_tensor = ("base_weight",)

    def check(self, parameters: LinearParameters, weights: Sequence[float]) -> str | None:
        if (total := sum(weights) + (parameters.base_weight or 0.0)) >= NO_WEIGHT:
            return None
        if total > -NO_WEIGHT:  # 0.1 + 0.2 - 0.3 is not 0
            return "the weights add up to 0, so their mean does not exist"
        return f"the weights add up to {total:g}, so that their mean turns every update round"

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (sum(scope.weights) + (scope.parameters.base_weight or 0.0),)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        total = inputs[0] * per_agent[0][0]
        for k in range(1, len(per_agent)):
            total = total + inputs[k] * per_agent[k][0]
        return total / constants[0]
