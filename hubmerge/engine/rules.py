"""What a recipe does to the elements of one tensor."""

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps

from hubmerge.engine.definition import Rule
from hubmerge.methods import get_method
from hubmerge.methods.base import EPSILON, Each, Scope
from hubmerge.numerics.arrays import Array
from hubmerge.numerics.counter_rng import Key, make_key
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.statistics.statistics import Overlaps


def rule_of(
    plan: Plan,
    tensor: PlannedTensor,
    thresholds: tuple[float, ...] = (),
    model: Overlaps | None = None,
    overlaps: Overlaps | None = None,
) -> Rule | None:
    """What is done to every element of a tensor; None where it is copied.

    `thresholds` per agent, and where updates meet in the `model` and in the tensor, as far as the method asks for them.
    """
    if tensor.action == "copy":
        return None
    values, method = plan.values[tensor.name], get_method(plan.recipe.method)
    scope = Scope(values.parameters, values.weights, model, overlaps, thresholds, values.own)
    rule = Rule.of(method, scope, epsilon_of(plan), plan.rounding, both_roundings=method.rescales)

    @wraps(method.merge_whole)
    def whole(deltas: Sequence[Array], each: Each) -> Array:
        return method.merge_whole([d.reshape(tensor.shape) for d in deltas], scope, each).reshape(-1)

    return replace(rule, whole=whole) if is_whole(plan, tensor) else rule


def is_whole(plan: Plan, tensor: PlannedTensor) -> bool:
    """True where a tensor must be one chunk."""
    return tensor.action == "merge" and get_method(plan.recipe.method).needs_whole(tensor.name, tensor.shape)


def operations_of(plan: Plan, tensor: PlannedTensor) -> float:
    """How many additions and multiplications a whole tensor takes, roughly; 0 for one that is merged in chunks."""
    if not is_whole(plan, tensor):
        return 0.0
    parameters = plan.values[tensor.name].parameters
    return get_method(plan.recipe.method).operations(tensor.shape, len(plan.agents), parameters)


def epsilon_of(plan: Plan) -> float:
    return float(plan.recipe.parameters.get("epsilon", EPSILON))


def draw_keys(plan: Plan, tensor: PlannedTensor) -> tuple[Key, ...]:
    """The keys of every agent's random draws in one tensor."""
    return tuple(make_key(plan.recipe.seed, "uniform", str(k), tensor.drawn_as) for k in range(len(plan.agents)))
