"""DARE with TIES: drop at random and rescale, then trim, elect and average as TIES does.

Sources: Yu et al. 2024, arXiv:2311.03099; Yadav et al. 2023, arXiv:2306.01708. The trim looks at the dropped and
rescaled updates. Deviations: as for `dare_linear` and `ties`; with density 1 nothing is trimmed.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from hubmerge.methods.base import Paper, Scope, Threshold
from hubmerge.methods.dare_linear import DARE_PAPER
from hubmerge.methods.ops import absolute, where
from hubmerge.methods.ties import Ties, TiesParameters, elected, trim, trims


class DareTiesParameters(TiesParameters):
    p: float = Field(default=0.5, ge=0.0, lt=1.0, description="probability that an element is dropped")


class DareTies(Ties):
    name = "dare_ties"
    title = "DARE + TIES"
    summary = "Drops elements of each update at random and rescales the rest, then merges as TIES does."
    formula = "TIES of δₖ·1[uₖ ≥ p] / (1 − p), with weights wₖ"
    papers = (DARE_PAPER, Paper("TIES-Merging", "2306.01708", "Algorithm 1"))
    parameters = DareTiesParameters
    extras = ("uniform",)
    permutation_invariant = False
    of_agent = ("p", "density")

    def varying(self, parameters: Any) -> tuple[str, ...]:
        return ("lambda", *(("p", "density") if parameters.trim_scope == "tensor" else ()))

    def threshold(self, parameters: Any, own: Sequence[Any] = ()) -> Threshold | None:
        agents = own or (parameters,)
        return trim("dropped", agents, [agent.p for agent in agents])

    def per_agent(self, scope: Scope) -> tuple[tuple[float, ...], ...]:
        return tuple(
            (weight, trimmed, agent.p, 1.0 / (1.0 - agent.p))
            for weight, trimmed, agent in zip(scope.weights, trims(scope), scope.of_agents, strict=True)
        )

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        zero = constants[2]

        def kept(k: int) -> Any:
            weight, trimmed, p, rescale = per_agent[k]
            dropped = where(inputs[len(per_agent) + k] >= p, inputs[k] * rescale, zero)
            return where(absolute(dropped) >= trimmed, dropped * weight, zero)

        return elected(kept, inputs, per_agent, constants)
