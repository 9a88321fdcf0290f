"""WUDI: a merged update whose rows interfere least with what each agent's update responds to.

Source: Cheng et al. 2025, "Whoever Started the Interference Should End It", arXiv:2503.08099; compared with RAM in
arXiv:2601.13572, Table 10. For each 2-D weight of a linear layer, δ* minimises
    Σk ‖(δ* − δk) δkᵀ‖²_F / ‖δk‖²_F
by Adam (β 0.9, 0.999; ε 1e-8) from Σ δk; every other tensor is averaged over the agents.
Deviations: none known. The gradient 2·Σk (δ* − δk)·δkᵀδk / ‖δk‖² is written out instead of differentiated: as
2·(δ*·G − C) with G = Σk δkᵀδk / ‖δk‖² and C = Σk δk·δkᵀδk / ‖δk‖² where a weight has no more columns than rows,
otherwise with (δ* − δk)δkᵀ as the intermediate, since G would be larger than the weight.

A row of δ* depends on no other row, so rows descend in blocks: each is one thread's from the first step
to the last and stays in the caches, and no bit depends on the number of threads. A device takes all rows at once; its
products have other last bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from hubmerge.methods.base import Each, Method, Paper, Parameters, Scope, one_by_one
from hubmerge.methods.linear import Linear
from hubmerge.numerics.arrays import Array, cast, concat, is_numpy
from hubmerge.statistics.statistics import module_of

BLOCK = 256  # rows that a thread takes at once; the last bits follow from it
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


class WudiParameters(Parameters):
    steps: int = Field(default=300, ge=0, le=100_000, description="steps of Adam")
    lr: float = Field(default=1e-5, gt=0.0, le=1.0, description="learning rate of Adam")


class Wudi(Method):
    name = "wudi"
    title = "WUDI"
    summary = "Looks, layer by layer, for an update that interferes little with every agent's own."
    formula = (
        "from Σₖ δₖ towards argmin Σₖ ‖(δ* − δₖ)·δₖᵀ‖²_F / ‖δₖ‖²_F per linear weight; the mean elsewhere; "
        "each δₖ times wₖ"
    )
    papers = (Paper("Whoever Started the Interference Should End It", "2503.08099", "the objective of its Sec. 4"),)
    parameters = WudiParameters
    matrix_products = True

    def needs_whole(self, name: str, shape: tuple[int, ...]) -> bool:
        """2-D weights of linear layers; embeddings, norms and biases are averaged."""
        return len(shape) == 2 and min(shape) > 1 and module_of(name) in ("attention", "mlp", "other")

    def constants(self, scope: Scope) -> tuple[float, ...]:
        return (float(len(scope.weights)),)

    kernel = staticmethod(Linear.kernel)

    def operations(self, shape: tuple[int, ...], agents: int, parameters: Any) -> float:
        rows, columns = shape
        steps = float(parameters.steps)
        if columns <= rows:
            return 2.0 * columns * columns * rows * (steps + 2 * agents)
        return 4.0 * agents * rows * rows * columns * steps

    def floats(self, shape: tuple[int, ...], agents: int) -> int:
        rows, columns = shape
        weighted, descending, grams = agents, 9, (agents + 1) * (columns <= rows)
        return rows * columns * (weighted + descending) + columns * columns * grams

    def merge_whole(self, deltas: Sequence[Array], scope: Scope, each: Each = one_by_one) -> Array:
        updates = [d if w == 1 else d * float(w) for d, w in zip(deltas, scope.weights, strict=True)]
        updates = [d for d in updates if bool(d.any())]
        if not updates:
            return deltas[0] * 0.0
        return _descended(updates, scope.parameters, each)


def _descended(updates: Sequence[Array], parameters: WudiParameters, each: Each) -> Array:
    rows, columns = updates[0].shape
    blocks = [slice(first, min(rows, first + BLOCK)) for first in range(0, rows, BLOCK)]
    squares = [sum(float((cast(d[block], "float64") ** 2).sum()) for block in blocks) for d in updates]
    # so that no gradient need be doubled; of a smaller update float32 has no squares at all
    halves = [max(square / 2, 1e-37) for square in squares]
    if not is_numpy(updates[0]):
        blocks = [slice(0, rows)]
    if columns <= rows:
        grams = [gram / half for gram, half in zip(each(lambda d: d.T @ d, updates), halves, strict=True)]
        gram = _total(grams)

        def descended(block: slice) -> Array:
            own = [d[block] for d in updates]
            towards = _total([d @ g for d, g in zip(own, grams, strict=True)])
            return _descend(_total(own), lambda merged: merged @ gram - towards, parameters)
    else:
        turned = [d.T for d in updates]

        def descended(block: slice) -> Array:
            own = [d[block] for d in updates]

            def gradient(merged: Array) -> Array:
                products = [(merged - o) @ t / half for o, t, half in zip(own, turned, halves, strict=True)]
                return _total([p @ d for p, d in zip(products, updates, strict=True)])

            return _descend(_total(own), gradient, parameters)

    return concat(each(descended, blocks))


def _descend(start: Array, gradient_of: Callable[[Array], Array], parameters: WudiParameters) -> Array:
    """Adam; in place, so that a block stays in the caches."""
    merged, first, second = start + 0.0, start * 0.0, start * 0.0
    for step in range(1, parameters.steps + 1):
        gradient = gradient_of(merged)
        first *= _BETA1
        first += gradient * (1 - _BETA1)
        gradient *= gradient
        gradient *= 1 - _BETA2
        second *= _BETA2
        second += gradient
        root = second**0.5
        root *= (1 - _BETA2**step) ** -0.5
        root += _EPS
        change = first / root
        change *= parameters.lr / (1 - _BETA1**step)
        merged -= change
    return merged


def _total(parts: Sequence[Array]) -> Array:
    total = parts[0] + 0.0
    for part in parts[1:]:
        total += part
    return total
