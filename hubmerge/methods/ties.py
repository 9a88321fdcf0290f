"""TIES: trim each update to its largest elements, elect a sign, average those that agree.

Source: Yadav et al. 2023, arXiv:2306.01708, Sec. 3, Algorithm 1.
Trim: |δk| at least the magnitude of rank max(1, ⌊density·n⌋), over the whole model (as in the original) or per tensor
(as in mergekit). Elect: the sign of Σ trimmed wk δk; 0 counts as +. Merge: of the agreeing, Σ wk δk / Σ wk, times λ;
`disjoint: sum` leaves out the division, one of the original code's choices and mergekit's `normalize: false`.
Deviations: elements that tie with the threshold are all kept, since which of them a sort drops is no property of
the model; the original resolves a sum of exactly 0 by the majority of the whole model. With `trim_scope: tensor` a
tensor is ranked just before it is merged, and no pass over the whole model comes first.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope, Threshold
from hubmerge.methods.ops import absolute, where


class TiesParameters(Parameters):
    density: float = Field(default=0.2, gt=0.0, le=1.0, description="share of each update that is kept")
    lam: float = Field(default=1.0, ge=-10.0, le=10.0, alias="lambda", description="λ on the merged update")
    trim_scope: Literal["model", "tensor"] = Field(default="model", description="where the largest are sought")
    disjoint: Literal["mean", "sum"] = Field(default="mean", description="what is taken of those that agree")


def trim(
    of: Literal["delta", "dropped"], agents: Sequence[TiesParameters], drops: Sequence[float] = (0.0,)
) -> Threshold | None:
    """The smallest magnitude that is kept, of all agents or of each; None where all is kept."""

    def rank(density: float) -> Callable[[int], int]:
        return lambda n: max(1, int(density * n))

    densities = [min(agent.density, 1.0) for agent in agents]
    if min(densities) >= 1:
        return None
    ranks = tuple(map(rank, densities))
    alike = len(set(densities)) == 1
    drop = drops[0] if len(set(drops)) == 1 else tuple(drops)
    return Threshold(of, agents[0].trim_scope, ranks[0] if alike else ranks, drop)


def trims(scope: Scope) -> tuple[float, ...]:
    """Per agent the magnitude from which its updates are kept."""
    trimmed = any(agent.density < 1 for agent in scope.of_agents)
    thresholds = scope.thresholds if trimmed else (0.0,) * len(scope.weights)
    return tuple(
        0.0 if agent.density >= 1 else threshold for agent, threshold in zip(scope.of_agents, thresholds, strict=True)
    )


def elected(kept: Callable[[int], Any], inputs: Any, per_agent: Any, constants: Any) -> Any:
    """The election of a sign and the merge of what agrees with it; kept(k): agent k's trimmed wk·δk, which is made
    anew each time rather than held. per_agent: (weight, …)."""
    lam, mean, zero, one = constants
    agents = range(len(per_agent))
    agreeing = weights = total = inputs[0] * zero
    for k in agents:
        total = total + kept(k)
    sign = where(total >= zero, one, -one)
    for k in agents:
        own = kept(k)
        agrees = own * sign > zero
        agreeing = agreeing + where(agrees, own, zero)
        weights = weights + where(agrees, per_agent[k][0], zero)
    divisor = mean * weights + (one - mean)
    return lam * (agreeing / where(divisor == zero, one, divisor))


class Ties(Method):
    name = "ties"
    title = "TIES"
    summary = "Keeps the largest part of each update, elects a sign per element, merges what agrees with it."
    formula = (
        "δ* = λ·Σₖ wₖ·δ̂ₖ / Σₖ wₖ over sgn wₖ·δ̂ₖ = sgn Σⱼ wⱼ·δ̂ⱼ (disjoint sum: no division), δ̂ₖ the top density of δₖ"
    )
    papers: ClassVar[tuple[Paper, ...]] = (
        Paper("TIES-Merging: Resolving Interference When Merging Models", "2306.01708", "Algorithm 1"),
    )
    parameters = TiesParameters
    of_agent: ClassVar[tuple[str, ...]] = ("density",)

    def varying(self, parameters: TiesParameters) -> tuple[str, ...]:
        # the density of a tensor has a meaning only where the largest are sought in it
        return ("lambda", "density") if parameters.trim_scope == "tensor" else ("lambda",)

    def check(self, parameters: TiesParameters, weights: Sequence[float]) -> str | None:
        """The agreeing agents' weights could add up to 0, or to a negative divisor that turns the mean round."""
        if parameters.disjoint == "sum" or min(weights) >= 0:
            return None
        return f"a negative weight ({min(weights):g}) in a mean of those that agree; `disjoint: sum` takes it"

    def threshold(self, parameters: TiesParameters, own: Sequence[TiesParameters] = ()) -> Threshold | None:
        return trim("delta", own or (parameters,))

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        return tuple(zip(scope.weights, trims(scope), strict=True))

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (scope.parameters.lam, 1.0 if scope.parameters.disjoint == "mean" else 0.0, 0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        def kept(k: int) -> Any:
            weight, trimmed = per_agent[k]
            return where(absolute(inputs[k]) >= trimmed, inputs[k] * weight, constants[2])

        return elected(kept, inputs, per_agent, constants)
