"""MagMax: of each element the update that is largest in magnitude.

Source: Marczak et al. 2024, arXiv:2407.06322, Eq. 3.
Deviations: an agent's weight multiplies its update first; where several are equally large, their mean is taken, so that
the order of the agents does not matter.
"""

from typing import Any

from hubmerge.methods.base import Method, Paper, Scope
from hubmerge.methods.ops import absolute, where


class MagMax(Method):
    name = "magmax"
    title = "MagMax"
    summary = "Takes of each element the update that is largest in magnitude."
    formula = "δ* = mean of the wₖ·δₖ whose |wₖ·δₖ| is the largest"
    papers = (Paper("MagMax", "2407.06322", "Eq. 3"),)

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (0.0, 1.0)

    @staticmethod
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        zero, one = constants
        updates = [inputs[k] * per_agent[k][0] for k in range(len(per_agent))]
        largest = absolute(updates[0])
        for update in updates[1:]:
            largest = where(absolute(update) > largest, absolute(update), largest)
        total = count = largest * zero
        for update in updates:
            is_largest = absolute(update) >= largest
            total = total + where(is_largest, update, zero)
            count = count + where(is_largest, one, zero)
        return total / count
