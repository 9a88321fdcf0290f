"""RAM+: RAM whose unique updates are rescaled by how much of the agent lies in the shared region.

Source: Yuan et al. 2026, arXiv:2601.13572, Eq. 2 (ρt), Eq. 6 (λt), Eq. 7 (merge).
ρt = shared_t / unique_t over the whole model;  λt = 1 + r·clip(ρt, 0, α).
Deviations: none in the formula of `preset: paper`; unique_t = 0 gives ρt = ∞, clipped to α (nothing is scaled then).
Output of 16 bits is rounded stochastically by default, since nearest rounding can swallow (λt − 1)·δt, which is
often less than half a unit in the last place.
`preset: reference` is the rule of the authors' released code: λt = 1 + 0.2·min(1, ρt), saved in float32.
`scope: tensor` takes ρt from each tensor; with alpha 0.2 it is mergekit's `ramplus_tl`. A tensor is counted just before
it is merged then, and no pass over the whole model comes first.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from hubmerge.methods.base import EpsilonParameters, Paper, Scope
from hubmerge.methods.ram import RAM_PAPER, Ram

_REFERENCE = {"r": 0.2, "alpha": 1.0}


class RamPlusParameters(EpsilonParameters):
    r: float = Field(default=0.1, ge=0.0, le=10.0, description="strength of the rescaling (Eq. 6)")
    alpha: float = Field(default=2.0, ge=0.0, le=1000.0, description="upper bound of ρt (Eq. 6)")
    scope: Literal["model", "tensor"] = Field(default="model", description="where ρt is counted")
    preset: Literal["paper", "reference"] = Field(
        default="paper", description="reference: r = 0.2, alpha = 1, float32, as in the authors' released code"
    )

    @model_validator(mode="before")
    @classmethod
    def _reference_values(cls, values: Any) -> Any:
        """The preset fills in what was not given."""
        if isinstance(values, dict) and values.get("preset") == "reference":
            return {**_REFERENCE, **values}
        return values


class RamPlus(Ram):
    name = "ram_plus"
    title = "RAM+"
    summary = "RAM that scales up what one agent alone changed, the more of its update others share."
    formula = "RAM with λₜ·wₜ·δₜ for c = 1, λₜ = 1 + r·clip(ρₜ, 0, α), ρₜ = sharedₜ / uniqueₜ"
    papers = (Paper(RAM_PAPER, "2601.13572", "Eq. 1, 2, 6, 7"),)
    parameters = RamPlusParameters
    rescales = True
    of_tensor = ("r", "alpha")

    def overlap_scope(self, parameters: RamPlusParameters) -> Literal["tensor", "model"]:
        return parameters.scope

    def scales(self, scope: Scope) -> tuple[float, ...]:
        counted = scope.tensor if scope.parameters.scope == "tensor" and scope.tensor is not None else scope.model
        assert counted is not None
        return tuple(1.0 + scope.parameters.r * min(rho, scope.parameters.alpha) for rho in counted.rho)

    def default_dtype(self, parameters: RamPlusParameters) -> str | None:
        return "float32" if parameters.preset == "reference" else None
