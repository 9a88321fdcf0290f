"""RAM+s: RAM+ with a soft bound instead of a clip.

Source: Yuan et al. 2026, arXiv:2601.13572, Eq. 8, 9: λt = 1 + r·ρt/(1 + ρt) = 1 + r·shared_t/active_t.
Deviations: r defaults to 0.1, as for RAM+; the paper names no value for this variant. Output of 16 bits is rounded
stochastically by default, as with RAM+.
"""

from typing import Literal

from pydantic import Field

from hubmerge.methods.base import EpsilonParameters, Paper, Scope
from hubmerge.methods.ram import RAM_PAPER, Ram


class RamPlusSoftParameters(EpsilonParameters):
    r: float = Field(default=0.1, ge=0.0, le=10.0, description="strength of the rescaling (Eq. 8)")


class RamPlusSoft(Ram):
    name = "ram_plus_soft"
    title = "RAM+s"
    summary = "RAM+ whose scaling grows with the part of the agent's update that others share."
    formula = "RAM with λₜ·wₜ·δₜ for c = 1, λₜ = 1 + r·sharedₜ / activeₜ"
    papers = (Paper(RAM_PAPER, "2601.13572", "Eq. 7, 8, 9"),)
    parameters = RamPlusSoftParameters
    rescales = True
    of_tensor = ("r",)

    def overlap_scope(self, parameters: RamPlusSoftParameters) -> Literal["model"]:
        return "model"

    def scales(self, scope: Scope) -> tuple[float, ...]:
        assert scope.model is not None
        return tuple(
            1.0 + scope.parameters.r * (int(shared) / int(active) if active else 0.0)
            for shared, active in zip(scope.model.shared, scope.model.changed, strict=True)
        )
