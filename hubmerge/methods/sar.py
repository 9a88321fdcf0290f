"""SAR: sum what agrees, let the more sensitive agent decide where updates disagree, thin out weak private updates.

Source: Sparsity Curse, arXiv:2606.18521, Eq. 12–16.
No conflict: the sum of the active updates (Eq. 14, first case). Conflict: the update of the agent with the larger
sensitivity, ties to the later agent (Eq. 14). Private: entries whose magnitude is at most the median private
magnitude are dropped with probability p and, if kept, divided by 1 − p (Eq. 15). θ* = θ0 + λ·δ (Eq. 16).
Deviations: active means |δ| > ε, as everywhere here; for K > 2 the most sensitive active agent elects the sign and
the sum runs over the agents of that sign, which for K = 2 is Eq. 14; the median is the lower one, taken over each
tensor's private entries of all agents, where the paper names no scope.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from hubmerge.methods.base import EpsilonParameters, Method, Paper, Scope, Threshold
from hubmerge.methods.ops import absolute, where


class SarParameters(EpsilonParameters):
    p: float = Field(default=0.2, ge=0.0, lt=1.0, description="probability that a weak private update is dropped")
    lam: float = Field(default=1.0, ge=-10.0, le=10.0, alias="lambda", description="λ on the merged update (Eq. 16)")


class Sar(Method):
    name = "sar"
    title = "SAR"
    summary = "Adds what agrees; where updates disagree the agent that is more sensitive there decides."
    formula = "δ* = λ·(Σ of the active wₖ·δₖ with the sign of argmaxₖ Sₖ; weak private ones thinned out)"
    papers = (
        Paper("Sparsity Curse: Understanding RLVR Model Parameter Space from Model Merging", "2606.18521", "Eq. 12-16"),
    )
    parameters = SarParameters
    extras = ("uniform", "sensitivity")
    permutation_invariant = False  # ties go to the later agent, and draws to its place
    of_tensor = ("p", "lambda")

    def threshold(self, parameters: SarParameters, own: Sequence[Any] = ()) -> Threshold:
        return Threshold("private", "tensor", lambda n: n - (n - 1) // 2 if n else 1)

    def constants(self, scope: Scope) -> tuple[float, ...]:
        p = scope.parameters.p
        return (scope.parameters.epsilon, scope.parameters.lam, p, 1.0 / (1.0 - p), 0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        epsilon, lam, p, rescale, zero, one = constants
        agents = len(per_agent)
        count = inputs[0] * zero
        sign = inputs[0] * zero  # of the most sensitive active agent so far
        most = inputs[0] * zero - one
        for k in range(agents):
            active = absolute(inputs[k]) > epsilon
            count = count + where(active, one, zero)
            sensitivity = where(active, inputs[2 * agents + k], -one)
            decides = where(active, sensitivity, -one - one) >= most
            sign = where(decides, where(inputs[k] > zero, one, -one), sign)
            most = where(decides, sensitivity, most)
        total = inputs[0] * zero
        for k in range(agents):
            active = absolute(inputs[k]) > epsilon
            agrees = where(active, inputs[k] * sign, zero) > zero
            weak = where(count > one, zero, where(absolute(inputs[k]) > per_agent[k][1], zero, one)) > zero
            thinned = where(inputs[agents + k] >= p, inputs[k] * rescale, zero)
            update = where(weak, thinned, inputs[k]) * per_agent[k][0]
            total = total + where(agrees, update, zero)
        return lam * total
