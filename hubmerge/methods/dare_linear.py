"""DARE with task arithmetic: drop each element of each update at random, rescale the rest, add up.

Source: Yu et al. 2024, arXiv:2311.03099, Eq. 2–4: m ~ Bernoulli(p), δ̂ = (1 − m)·δ / (1 − p); then δ* = λ Σ wk δ̂k.
Deviations: λ defaults to 1/K, as for task arithmetic; the draw for an element is a function of (seed, agent, tensor,
element), not of a stream.
"""

from typing import Any

from pydantic import Field

from hubmerge.methods.base import Paper, Parameters, Scope
from hubmerge.methods.ops import where
from hubmerge.methods.task_arithmetic import Normalize, TaskArithmetic, factor

DARE_PAPER = Paper("Language Models are Super Mario", "2311.03099", "Eq. 2-4")


class DareParameters(Parameters):
    p: float = Field(default=0.5, ge=0.0, lt=1.0, description="probability that an element is dropped")
    lam: float | None = Field(
        default=None, ge=-10.0, le=10.0, alias="lambda", description="λ, the factor on the sum; 1/K when absent"
    )
    normalize: Normalize = None


class DareLinear(TaskArithmetic):
    name = "dare_linear"
    title = "DARE + task arithmetic"
    summary = "Drops elements of each update at random, rescales the rest, adds up."
    formula = "δ* = λ·Σₖ wₖ·δₖ·1[uₖ ≥ p] / (1 − p), with normalize over Σₖ wₖ; λ = 1/K where none is given"
    papers = (DARE_PAPER,)
    parameters = DareParameters
    extras = ("uniform",)
    permutation_invariant = False  # the draws belong to the agent's place in the recipe
    of_agent = ("p",)
    of_tensor = ("p", "lambda")

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        return tuple((w, a.p, 1.0 / (1.0 - a.p)) for w, a in zip(scope.weights, scope.of_agents, strict=True))

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (factor(scope), 0.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        lam, zero = constants
        agents = len(per_agent)
        total = inputs[0] * zero
        for k in range(agents):
            kept = where(inputs[agents + k] >= per_agent[k][1], inputs[k] * per_agent[k][2], zero)
            total = total + kept * per_agent[k][0]
        return lam * total
