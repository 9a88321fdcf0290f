"""Task arithmetic: δ* = λ Σ wk δk.

Source: Ilharco et al. 2023, arXiv:2212.04089, Sec. 2. Deviations: λ defaults to 1/K, the RAM paper's setting.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hubmerge.methods.base import Method, Paper, Parameters, Scope

NO_WEIGHT = 1e-8  # mergekit's bound, too

# false means the same as leaving it out, so both have one identity
Normalize = Annotated[
    bool | None,
    AfterValidator(lambda value: value or None),
    Field(description="divide the sum by that of the weights"),
]


class TaskArithmeticParameters(Parameters):
    lam: float | None = Field(
        default=None, ge=-10.0, le=10.0, alias="lambda", description="λ, the factor on the sum; 1/K when absent"
    )
    normalize: Normalize = None


def factor(scope: Scope) -> float:
    """λ, divided by the sum of the weights where `normalize` asks for it; a sum of 0 does not divide."""
    parameters, total = scope.parameters, sum(scope.weights)
    lam: float = 1.0 / len(scope.weights) if parameters.lam is None else parameters.lam
    return lam / total if parameters.normalize and abs(total) >= NO_WEIGHT else lam


class TaskArithmetic(Method):
    name = "task_arithmetic"
    title = "Task arithmetic"
    summary = "The sum of the agents' updates times one factor."
    formula = "δ* = λ·Σₖ wₖ·δₖ, with normalize over Σₖ wₖ; λ = 1/K where none is given"
    papers: ClassVar[tuple[Paper, ...]] = (Paper("Editing Models with Task Arithmetic", "2212.04089", "Sec. 2"),)
    parameters: ClassVar[type[Parameters]] = TaskArithmeticParameters
    of_tensor: ClassVar[tuple[str, ...]] = ("lambda",)

    def doubt(self, parameters: Any, weights: Sequence[float]) -> str | None:
        return None  # a negative task vector is what forgets a task (2212.04089, Sec. 3)

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (factor(scope),)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        total = inputs[0] * per_agent[0][0]
        for k in range(1, len(per_agent)):
            total = total + inputs[k] * per_agent[k][0]
        return constants[0] * total
