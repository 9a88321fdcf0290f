"""Fisher merging: the mean of the updates, weighted element by element by the agents' diagonal Fisher information.

Source: Matena & Raffel 2022, arXiv:2111.09832, Eq. 3–5: δ* = λ Σ wk Fk δk / Σ wk Fk.
Deviations: where no agent has any information (Σ wk Fk = 0) the plain weighted mean is taken.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope
from hubmerge.methods.ops import where


class FisherParameters(Parameters):
    lam: float = Field(default=1.0, ge=-10.0, le=10.0, alias="lambda", description="λ on the merged update")


class Fisher(Method):
    name = "fisher"
    title = "Fisher merging"
    summary = "The mean of the updates, each element weighted by how sensitive its agent is to it."
    formula = "δ* = λ·Σₖ wₖ·Fₖ·δₖ / Σₖ wₖ·Fₖ"
    papers = (Paper("Merging Models with Fisher-Weighted Averaging", "2111.09832", "Eq. 3-5"),)
    parameters = FisherParameters
    extras = ("sensitivity",)
    of_tensor = ("lambda",)

    def check(self, parameters: FisherParameters, weights: Sequence[float]) -> str | None:
        return "weights must be above 0 for Fisher merging" if min(weights) <= 0 else None

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (scope.parameters.lam, sum(scope.weights), 0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        lam, weights, zero, one = constants
        agents = len(per_agent)
        information = inputs[0] * zero
        plain = inputs[0] * zero
        for k in range(agents):
            information = information + inputs[agents + k] * per_agent[k][0]
            plain = plain + inputs[k] * per_agent[k][0]
        known = information > zero
        divisor = where(known, information, one)
        mean = information * zero  # NaN where float32 has no such sum
        for k in range(agents):
            # shares of 1, since a tiny F times δ would be none in float32
            mean = mean + inputs[k] * (inputs[agents + k] * per_agent[k][0] / divisor)
        return lam * where(known, mean, plain / weights)
