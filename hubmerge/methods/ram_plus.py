"""RAM+: RAM whose unique updates are rescaled by how much of the agent lies in the shared region.

Source: Yuan et al. 2026, arXiv:2601.13572, Eq. 2 (ρt), Eq. 6 (λt), Eq. 7 (merge).
ρt = shared_t / unique_t over the whole model;  λt = 1 + r·clip(ρt, 0, α).
Deviations: none in the formula; unique_t = 0 gives ρt = ∞, clipped to α (nothing is scaled then). Output of 16
bits is rounded stochastically by default, since nearest rounding can swallow (λt − 1)·δt, which is often less
than half a unit in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from hubmerge.methods.base import EpsilonParameters, Method, Paper
from hubmerge.methods.ram import RAM_PAPER, ram_kernel
from hubmerge.statistics import Tally


class RamPlusParameters(EpsilonParameters):
    r: float = Field(default=0.1, ge=0.0, le=10.0, description="strength of the rescaling (Eq. 6)")
    alpha: float = Field(default=2.0, ge=0.0, le=1000.0, description="upper bound of ρt (Eq. 6)")


class RamPlus(Method):
    name = "ram_plus"
    title = "RAM+"
    summary = "RAM, with each agent's unique updates scaled up by its overlap-unique ratio over the whole model."
    formula = "RAM with λₜ·δₜ for c = 1, λₜ = 1 + r·clip(ρₜ, 0, α), ρₜ = sharedₜ / uniqueₜ"
    papers = (Paper(RAM_PAPER, "2601.13572", "Eq. 1, 2, 6, 7"),)
    parameters = RamPlusParameters
    needs_statistics = True
    rescales = True

    def scales(
        self, parameters: RamPlusParameters, weights: Sequence[float], statistics: Tally | None
    ) -> tuple[float, ...]:
        assert statistics is not None
        return tuple(1.0 + parameters.r * min(max(rho, 0.0), parameters.alpha) for rho in statistics.rho)

    def per_agent(
        self, parameters: RamPlusParameters, weights: Sequence[float], statistics: Tally | None
    ) -> tuple[tuple[float, ...], ...]:
        return tuple(zip(weights, self.scales(parameters, weights, statistics), strict=True))

    def constants(self, parameters: RamPlusParameters, weights: Sequence[float]) -> tuple[float, ...]:
        return (parameters.epsilon, 0.0, 1.0)

    kernel = staticmethod(ram_kernel)
