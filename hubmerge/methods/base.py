"""The interface of a merge method.

A method declares data about itself (name, paper, parameters, what it needs) and one *kernel*: a branch-free
expression over one chunk, free of state, from which every backend is derived. An element of the result depends
on the same element of the inputs only, so chunks, processes and devices cannot change it.

    kernel(deltas, per_agent, constants) → merged delta

    deltas     K arrays [n], float32: δk = θk − θ0, in recipe order
    per_agent  K tuples of float32 scalars: what `per_agent` computed for each agent
    constants  float32 scalars: what `constants` computed
    returns    [n], float32: δ*

Scalars are computed once per merge in float64 from the parameters, the agents' weights and the global
statistics, and rounded to float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hubmerge.statistics import Tally

EPSILON = 1e-5  # RAM Sec. 3.1: two parameters are equal when they differ by at most this, absolute


@dataclass(frozen=True)
class Paper:
    title: str
    arxiv: str  # identifier
    equations: str = ""


class Parameters(BaseModel):
    """Base of every method's parameters: frozen, ranges checked, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EpsilonParameters(Parameters):
    epsilon: float = Field(default=EPSILON, ge=0.0, le=1.0, description="an update is active above it, absolute")


class Method(ABC):
    """One merge method; instances are stateless."""

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]  # δ* in one line, for the card and the docs
    papers: ClassVar[tuple[Paper, ...]] = ()
    parameters: ClassVar[type[Parameters]] = Parameters
    needs_statistics: ClassVar[bool] = False  # global counts, hence a pass before the merge
    rescales: ClassVar[bool] = False  # has a λ per agent that nearest rounding to 16 bits can lose
    permutation_invariant: ClassVar[bool] = True  # up to float32 summation order

    def parse_parameters(self, values: Mapping[str, Any]) -> Parameters:
        """Validated parameters; ValueError names each wrong one."""
        try:
            return self.parameters.model_validate(dict(values))
        except ValidationError as error:
            issues = "; ".join(
                f"{'.'.join(str(p) for p in e['loc']) or 'parameters'}: {e['msg']} (got {e['input']!r})"
                for e in error.errors(include_url=False)
            )
            known = ", ".join(self.parameters.model_fields) or "none"
            raise ValueError(f"parameters of {self.name}: {issues}; it knows {known}") from None

    @abstractmethod
    def per_agent(
        self, parameters: Any, weights: Sequence[float], statistics: Tally | None
    ) -> tuple[tuple[float, ...], ...]:
        """K tuples of scalars. `statistics`: the whole model's counts when `needs_statistics`."""

    @abstractmethod
    def constants(self, parameters: Any, weights: Sequence[float]) -> tuple[float, ...]:
        """Scalars that all agents share."""

    @staticmethod
    @abstractmethod
    def kernel(deltas: Any, per_agent: Any, constants: Any) -> Any:
        """δ* of one chunk; see the module's docstring."""

    def scales(self, parameters: Any, weights: Sequence[float], statistics: Tally | None) -> tuple[float, ...]:
        """λt per agent on its unique region, as the method intends it (1 without rescaling)."""
        return tuple(1.0 for _ in weights)

    def check(self, parameters: Any, weights: Sequence[float]) -> str | None:
        """A reason why these values cannot be merged, or None."""
        return None
