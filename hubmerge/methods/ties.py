"""TIES: trim each update to its largest elements, elect a sign, average those that agree.

Source: Yadav et al. 2023, arXiv:2306.01708, Sec. 3, Algorithm 1.
Trim: |δk| at least the magnitude of rank max(1, ⌊density·n⌋), over the whole model (as in the original) or per tensor
(as in mergekit). Elect: the sign of Σ trimmed wk δk; 0 counts as +. Merge: of the agreeing, Σ wk δk / Σ wk, times λ;
`disjoint: sum` leaves out the division, one of the original code's choices and mergekit's `normalize: false`.
Deviations: elements that tie with the threshold are all kept, since which of them a sort drops is no property of
the model; the original resolves a sum of exactly 0 by the majority of the whole model. With `trim_scope: tensor` the
inputs are read once instead of twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope, Threshold
from hubmerge.methods.ops import absolute, where


class TiesParameters(Parameters):
    density: float = Field(default=0.2, gt=0.0, le=1.0, description="share of each update that is kept")
    lam: float = Field(default=1.0, ge=-10.0, le=10.0, alias="lambda", description="λ on the merged update")
    trim_scope: Literal["model", "tensor"] = Field(default="model", description="where the largest are sought")
    disjoint: Literal["mean", "sum"] = Field(default="mean", description="what is taken of those that agree")


def trim(parameters: TiesParameters, of: Literal["delta", "dropped"], drop: float = 0.0) -> Threshold | None:
    """The smallest magnitude that is kept; None where all are."""
    if parameters.density >= 1:
        return None
    return Threshold(of, parameters.trim_scope, lambda n: max(1, int(parameters.density * n)), drop)


def weights_and_trims(scope: Scope) -> tuple[tuple[float, ...], ...]:
    """Per agent its weight and the magnitude from which its updates are kept."""
    untrimmed = tuple(0.0 for _ in scope.weights)
    return tuple(zip(scope.weights, untrimmed if scope.parameters.density >= 1 else scope.thresholds, strict=True))


def negative_mean(parameters: TiesParameters, weights: Sequence[float]) -> str | None:
    """Agents that agree after their weights may disagree about the sum of these, which then is 0 or turns the mean."""
    if parameters.disjoint == "sum" or min(weights) >= 0:
        return None
    return f"a negative weight ({min(weights):g}) in a mean of those that agree; `disjoint: sum` takes it"


class Ties(Method):
    name = "ties"
    title = "TIES"
    summary = "Keeps the largest part of each update, elects a sign per element, averages what agrees with it."
    formula = "δ* = λ·mean{δ̂ₖ : sgn δ̂ₖ = sgn Σⱼ δ̂ⱼ}, δ̂ₖ the top density of δₖ"
    papers = (Paper("TIES-Merging: Resolving Interference When Merging Models", "2306.01708", "Algorithm 1"),)
    parameters = TiesParameters

    def check(self, parameters: TiesParameters, weights: Sequence[float]) -> str | None:
        return negative_mean(parameters, weights)

    def threshold(self, parameters: TiesParameters) -> Threshold | None:
        return trim(parameters, "delta")

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        return weights_and_trims(scope)

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (scope.parameters.lam, 1.0 if scope.parameters.disjoint == "mean" else 0.0, 0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        lam, mean, zero, one = constants
        total = inputs[0] * zero
        for k in range(len(per_agent)):
            kept = where(absolute(inputs[k]) >= per_agent[k][1], inputs[k] * per_agent[k][0], zero)
            total = total + kept
        sign = where(total >= zero, one, -one)
        agreeing = inputs[0] * zero
        weights = inputs[0] * zero
        for k in range(len(per_agent)):
            kept = where(absolute(inputs[k]) >= per_agent[k][1], inputs[k] * per_agent[k][0], zero)
            agrees = kept * sign > zero
            agreeing = agreeing + where(agrees, kept, zero)
            weights = weights + where(agrees, per_agent[k][0], zero)
        divisor = mean * weights + (one - mean)
        return lam * (agreeing / where(divisor == zero, one, divisor))
