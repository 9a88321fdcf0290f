"""Task arithmetic: δ* = λ Σ wk δk.

Source: Ilharco et al. 2023, arXiv:2212.04089, Sec. 2. Deviations: λ defaults to 1/K, the RAM paper's setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from hubmerge.methods.base import Method, Paper, Parameters
from hubmerge.statistics import Tally


class TaskArithmeticParameters(Parameters):
    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    lam: float | None = Field(
        default=None, ge=-10.0, le=10.0, alias="lambda", description="λ, the factor on the sum; 1/K when absent"
    )


class TaskArithmetic(Method):
    name = "task_arithmetic"
    title = "Task arithmetic"
    summary = "The sum of the agents' updates times one factor."
    formula = "δ* = λ·Σₖ wₖ·δₖ"
    papers = (Paper("Editing Models with Task Arithmetic", "2212.04089", "Sec. 2"),)
    parameters = TaskArithmeticParameters

    def per_agent(
        self, parameters: TaskArithmeticParameters, weights: Sequence[float], statistics: Tally | None
    ) -> tuple[tuple[float, ...], ...]:
        return tuple((w,) for w in weights)

    def constants(self, parameters: TaskArithmeticParameters, weights: Sequence[float]) -> tuple[float, ...]:
        return (1.0 / len(weights) if parameters.lam is None else parameters.lam,)

    @staticmethod
    def kernel(deltas: Any, per_agent: Any, constants: Any) -> Any:
        total = deltas[0] * per_agent[0][0]
        for k in range(1, len(deltas)):
            total = total + deltas[k] * per_agent[k][0]
        return constants[0] * total
