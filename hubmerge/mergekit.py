"""A mergekit document as a recipe, or the reasons why it cannot be one.

Read as mergekit 0.1.5 reads it (mergekit_document.py). The methods' definitions meet through parameters:

    linear           base with weight 0 → linear; with weight w0 → task_arithmetic, λ = 1 / (w0 + Σ wk)
    task_arithmetic  λ; divided by Σ wk with `normalize`
    ties             trimmed per tensor; the weighted mean of the agreeing, or their sum without `normalize`
    dare_linear      p = 1 − density; λ as for task_arithmetic, times the density without `rescale`
    dare_ties        p = 1 − density, and no trimming; the rest as for ties
    ram, ramplus_tl  ε; r and α with ρ counted per tensor

What a document means differently here is told in words beside the recipe. What has no counterpart is refused, all
of it together, rather than merged into something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from hubmerge.errors import RecipeError
from hubmerge.mergekit_document import Input, Reading
from hubmerge.recipe import Recipe, recipe_from_dict

_TRIM = (
    "Trimming: elements whose magnitude equals the smallest one kept are all kept; mergekit keeps exactly the share "
    "that `density` names, and which of the equal ones these are depends on its sort."
)
_RESCALE = (
    "DARE: what survives the drop is divided by `density`, as in the paper; mergekit scales it so that the sum of the "
    "tensor's magnitudes stays what it was. The two differ by one factor per tensor and agent, close to 1 in large "
    "tensors."
)
_DRAW = (
    "DARE: which elements are dropped is drawn from the recipe's `seed`, the agent, the tensor and the element, the "
    "same on every run; it is another draw than mergekit's."
)


def is_mergekit(document: Any) -> bool:
    """True for plain data that is written for mergekit."""
    return isinstance(document, Mapping) and "merge_method" in document


def from_mergekit(document: Mapping[str, Any], where: str = "the recipe") -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, and what the document means differently here; RecipeError lists everything without a counterpart."""
    reading = Reading(document, where)
    method = document["merge_method"]
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        reading.refuse(
            "a mergekit method without a counterpart here",
            "merge_method",
            expected=", ".join(_METHODS),
            got=method,
            next_step="Choose one of these, or write a recipe with `base`, `agents` and `method`.",
        )
    reading.check_top_level()
    base, agents = reading.inputs()
    meaning = read(reading, base, agents) if read and base and agents else None
    if base is None or meaning is None or reading.problems:
        problems = tuple(dict.fromkeys(reading.problems))
        raise RecipeError("this mergekit document cannot be merged here", where=where, problems=problems)
    notes = [*reading.ignored(), *meaning.notes, *reading.numbers(), *reading.tokenizer()]
    recipe = recipe_from_dict(
        {
            "base": base.name,
            "agents": [
                {"model": agent.name, "weight": weight} for agent, weight in zip(agents, meaning.weights, strict=True)
            ],
            "method": meaning.method,
            "parameters": meaning.parameters,
            "dtype": reading.output_dtype,
            "rounding": "nearest",  # mergekit knows no other
        },
        where,
    )
    renamed = "" if meaning.method == method else f"; its `{method}` is `{meaning.method}` here"
    return recipe, (f"Read as a mergekit document{renamed}.", *notes)


@dataclass(frozen=True)
class _Meaning:
    """What a method of mergekit is in hubmerge's terms."""

    method: str
    weights: list[float]  # per agent
    parameters: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def _linear(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    own = reading.per_model("weight", base)
    weights = [reading.per_model("weight", agent) for agent in agents]
    total = own + sum(weights)
    if not reading.flag("normalize", True):
        if not isclose(total, 1.0, rel_tol=1e-6):
            reading.refuse(
                "weights that scale the base itself",
                "parameters",
                "normalize",
                expected="weights that add up to 1",
                got=total,
                next_step="Set normalize: true.",
            )
        return _Meaning("task_arithmetic", weights, {"lambda": 1.0})
    if total == 0:
        reading.refuse("weights that add up to 0, so that their mean does not exist", "models")
        return _Meaning("linear", weights, {})
    if own == 0:
        return _Meaning("linear", weights, {})
    return _Meaning("task_arithmetic", weights, {"lambda": 1.0 / total})


def _task_arithmetic(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    weights = [reading.per_model("weight", agent) for agent in agents]
    return _Meaning("task_arithmetic", weights, {"lambda": _factor(reading, weights)})


def _ties(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    density = reading.same("density", agents, 1.0, "TIES has one density here.")
    if reading.flag("rescale", False) and density < 1:
        reading.refuse("rescaling after the trim is not supported", "parameters", "rescale", next_step="Remove it.")
    if density <= 0:
        reading.refuse("a density that keeps nothing", "models", expected="above 0", got=density)
    parameters = {
        "density": min(density, 1.0),
        "trim_scope": "tensor",
        "lambda": reading.number("lambda", 1.0),
        "disjoint": _disjoint(reading, True),
    }
    weights = [reading.per_model("weight", agent) for agent in agents]
    return _Meaning("ties", weights, parameters, (_TRIM,) if density < 1 else ())


def _dare_linear(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    weights = [reading.per_model("weight", agent) for agent in agents]
    p, kept, notes = _drop(reading, agents)
    return _Meaning("dare_linear", weights, {"p": p, "lambda": kept * _factor(reading, weights)}, notes)


def _dare_ties(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    p, kept, notes = _drop(reading, agents)
    parameters = {
        "p": p,
        "density": 1.0,
        "trim_scope": "tensor",
        "lambda": kept * reading.number("lambda", 1.0),
        "disjoint": _disjoint(reading, False),
    }
    return _Meaning("dare_ties", [reading.per_model("weight", agent) for agent in agents], parameters, notes)


def _ram(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    return _Meaning("ram", [1.0 for _ in agents], {"epsilon": reading.number("epsilon", 1e-5)})


def _ramplus_tl(reading: Reading, base: Input, agents: tuple[Input, ...]) -> _Meaning:
    parameters = {
        "r": reading.number("r", 0.1),
        "alpha": reading.number("alpha", 0.2),
        "epsilon": reading.number("epsilon", 1e-5),
        "scope": "tensor",
    }
    return _Meaning("ram_plus", [1.0 for _ in agents], parameters)


def _factor(reading: Reading, weights: list[float]) -> float:
    """λ of a sum of weighted updates, divided by the sum of the weights where mergekit does so."""
    lam = reading.number("lambda", 1.0)
    total = sum(weights)
    return lam / total if reading.flag("normalize", False) and abs(total) >= 1e-8 else lam


def _drop(reading: Reading, agents: tuple[Input, ...]) -> tuple[float, float, tuple[str, ...]]:
    """DARE's p; the factor that undoes its rescaling where mergekit does not rescale; what differs."""
    density = reading.same("density", agents, 1.0, "DARE drops with one probability here.")
    if density <= 0:
        reading.refuse("a density that drops everything", "models", expected="above 0", got=density)
    if density >= 1:
        return 0.0, 1.0, ()
    rescale = reading.flag("rescale", True)
    return round(1.0 - density, 12), 1.0 if rescale else density, (*((_RESCALE,) if rescale else ()), _DRAW)


def _disjoint(reading: Reading, default: bool) -> str:
    return "mean" if reading.flag("normalize", default) else "sum"


_METHODS: Mapping[str, Callable[[Reading, Input, tuple[Input, ...]], _Meaning]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "ram": _ram,
    "ramplus_tl": _ramplus_tl,
}
