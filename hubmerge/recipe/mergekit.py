"""A mergekit document as a recipe, or the reasons why it cannot be one.

The document is read as mergekit 0.1.5 reads it (mergekit_document.py). Its methods become
methods of hubmerge with parameters that mean the same:

    linear           the base's weight is `base_weight`; without a base the first model is what updates are counted from
    task_arithmetic  λ; divided by Σ wk with `normalize`
    ties             trimmed per tensor; the weighted mean of the agreeing, or their sum without `normalize`
    dare_linear      p = 1 − density; λ as for task_arithmetic, times the density without `rescale`
    dare_ties        p = 1 − density, and no trimming; the rest as for ties
    ram, ramplus_tl  ε; r and α with ρ counted per tensor

Notes beside the recipe say what a document means differently here. Everything without a counterpart is refused, and
all of it is listed together; nothing is merged into something else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from sys import float_info
from typing import Any

from hubmerge.errors import RecipeError
from hubmerge.methods.varying import MAX_RULES, Setting, SettingRule, evened, mapped, parse, points, rules_of, written
from hubmerge.recipe.mergekit_document import Document, Input, Tables
from hubmerge.recipe.recipe import Recipe, number_step, recipe_from_dict

_TRIM = (
    "Trimming: elements whose magnitude equals the smallest one kept are all kept; mergekit keeps exactly the share "
    "that `density` names, and which of the equal ones these are depends on its sort."
)
_RESCALE = (
    "DARE: what survives the drop is divided by `density`, as in the paper; mergekit scales it so that the sum of the "
    "tensor's magnitudes stays what it was. The two differ by one factor per tensor and agent, close to 1 in large "
    "tensors."
)
_NO_BASE = (
    "Base: mergekit's `linear` has none; here the first model, {model}, is the base that updates are counted from, and "
    "one of those in the mean, with its weight."
)
_DRAW = (
    "DARE: which elements are dropped is drawn from the recipe's `seed`, the agent, the tensor and the element, the "
    "same on every run; it is another draw than mergekit's."
)


_MARKS = frozenset(("merge_method", "experts", "genome"))  # of a merge, a mixture of experts and an evolution


def is_mergekit(document: Any) -> bool:
    """True for plain data that is written for mergekit."""
    return isinstance(document, Mapping) and not _MARKS.isdisjoint(document)


def from_mergekit(document: Mapping[str, Any], where: str = "the recipe") -> tuple[Recipe, tuple[str, ...]]:
    """The recipe, with notes on what the document means differently here.

    Raises RecipeError, which lists everything without a counterpart.
    """
    if "merge_method" not in document:
        raise RecipeError(
            "a mergekit document of another kind than a merge, such as a mixture of experts",
            where=where,
            expected="merge_method",
            got=", ".join(map(str, document))[:120],
            next_step="Merge whole models: list them under `models`, with a `merge_method`.",
        )
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
    reading.read_inputs()
    base, agents = reading.base, reading.agents
    meaning = read(reading) if read and base and agents and reading.parts else None
    tokenizer = None if base is None else reading.tokenizer_of(base)
    if base is None or meaning is None or reading.problems:
        problems = tuple(dict.fromkeys(reading.problems))
        raise RecipeError("this mergekit document cannot be merged here", where=where, problems=problems)
    recipe = recipe_from_dict(
        {
            "base": base.name,
            "agents": [
                {"model": agent.name, "weight": written(weight), "parameters": dict(own)}
                for agent, weight, own in zip(agents, meaning.weights, meaning.own or [{}] * len(agents), strict=True)
            ],
            "method": meaning.method,
            "parameters": meaning.parameters,
            "dtype": reading.output_dtype,
            "rounding": "nearest",  # mergekit knows no other
            **({} if tokenizer is None else {"tokenizer": tokenizer}),
        },
        where,
    )
    renamed = "" if meaning.method == method else f"; its `{method}` is `{meaning.method}` here"
    return recipe, (f"Read as a mergekit document{renamed}.", *reading.notes(meaning.notes))


_TRUE = (True, 1, "true", "yes", "on")  # as mergekit reads words and 0 or 1
_FALSE = (False, 0, "false", "no", "off")


class Reading(Document):
    """A document being read, with the value that each parameter has for each model.

    As mergekit 0.1.5 does, it looks for a parameter in the source within a slice, then in the slice, the module and the
    document. It does so for each tensor anew, since filters may leave some undecided. A model's own `parameters` under
    `models` count as those of its source in one slice that is the whole model.
    """

    def constant(self, key: str, default: float) -> float:
        """A shared parameter that has one value for all tensors."""
        found = self.number(key, default)
        if isinstance(found, tuple):
            step = "Give it one value."
            self.refuse(f"`{key}` differs from tensor to tensor", "parameters", key, next_step=step)
            return default
        return found

    def flag(self, key: str, default: bool) -> bool:
        found: list[Any] = []
        for part in self.parts:
            for table, path in (*part.shared, *self._global()):
                if key in table:
                    found.append(self._flag(table[key], *path, "parameters", key))
                    break
            else:
                found.append(default)
        if any(one != found[0] for one in found):
            self.refuse(f"`{key}` differs between slices", "slices", next_step="Give it one value.")
        return bool(found[0]) if found else default

    def _flag(self, value: Any, *path: object) -> Any:
        if isinstance(value, list) and value and (isinstance(value[0], Mapping) or len(set(map(str, value))) == 1):
            value = value[0]  # of conditions: the first that holds decides
        if isinstance(value, Mapping):
            if value.get("filter") not in (None, "*"):
                self.refuse("a flag that differs from tensor to tensor", *path, got=value["filter"])
                return None
            value = value.get("value")
        value = value.lower() if isinstance(value, str) else value
        if isinstance(value, list) or value not in (*_TRUE, *_FALSE):
            self.refuse("true or false is needed", *path, got=value)
            return None
        return value in _TRUE

    def _global(self) -> Tables:
        table = self.document.get("parameters")
        return ((table, ()),) if isinstance(table, Mapping) else ()

    def number(self, key: str, default: float | None, model: Input | None = None) -> Setting:
        """The value of a parameter for each tensor: the model's own, else a shared one, else the default; without a
        default it is required."""
        rules: list[SettingRule] = []
        for number, part in enumerate(self.parts):
            own: Tables = ()
            if model is not None and number in model.own:
                own = (model.own[number],)
            elif model is not None and model is self.base and part.layers is not None:
                rules.append(SettingRule(0.0, None, part.layers))  # a base that is no source of this slice
                continue
            found: list[SettingRule] = []
            for table, path in (*own, *part.shared, *self._global()):
                if key in table and not any(rule.filter is None for rule in found):
                    found += self._rules(table[key], part.layers, *path, "parameters", key)
            if default is not None and not any(rule.filter is None for rule in found):
                found.append(SettingRule(default, None, part.layers))
            if not found and model is not None:
                step = "Give every model one."
                if model.name == self.document.get("base_model"):
                    step = "Give every model one, the base too: list it with weight 0 to keep it out of the mean."
                path = own[0][1] if own else model.place
                self.refuse(f"no `{key}` for {model.name}, which mergekit requires", *path, next_step=step)
            rules += found
        if not rules:
            return 1.0 if default is None else default
        if len(rules) > MAX_RULES:
            path = ("parameters", key) if model is None else (*model.place, "parameters", key)
            step = "Join slices that are next to each other, or give them fewer conditions."
            what, most = f"too many values of `{key}` over all slices", f"at most {MAX_RULES}"
            self.refuse(what, *path, expected=most, got=len(rules), next_step=step)
            return 1.0
        setting = parse(tuple(rules))
        # a weight keeps its ranges of layers although it is the same in all: the plan checks them against the model's
        sliced = any(part.layers for part in self.parts)
        return setting if key == "weight" and sliced else evened(setting)

    def weights(self) -> list[Setting]:
        """The agents' weights; where the document has slices, those of the first agent tell which layers there are."""
        found = [self.number("weight", None, agent) for agent in self.agents]
        return [w if k == 0 else evened(w) for k, w in enumerate(found)]

    def unweighted(self) -> list[Setting]:
        """The weights where the method reads none; the first still tells which layers there are."""
        layers = tuple(SettingRule(1.0, None, part.layers) for part in self.parts if part.layers)
        return [layers or 1.0 if k == 0 else 1.0 for k in range(len(self.agents))]

    def _rules(self, written: Any, layers: tuple[int, int] | None, *path: object) -> list[SettingRule]:
        """The value that one place of the document gives: a number, numbers over the layers, or either by filters."""
        if isinstance(written, list) and any(isinstance(one, Mapping) for one in written):
            conditions = written
        else:
            conditions = [written if isinstance(written, Mapping) else {"value": written}]
        rules: list[SettingRule] = []
        for condition in conditions:
            if not isinstance(condition, Mapping) or set(condition) - {"filter", "value"}:
                self.refuse("a condition is a table with `filter` and `value`", *path, got=condition)
                continue
            part = condition.get("filter")
            if part is not None and (not isinstance(part, str) or not part):
                self.refuse("a filter is a part of a tensor's name", *path, "filter", got=part)
                part = None
            value = condition.get("value")
            numbers: float | tuple[float, ...] = 1.0
            if value is None or value == []:
                self.refuse("a value is missing", *path)
            elif isinstance(value, list):
                several = tuple(self._number(one, *path) for one in value)
                numbers = several[0] if len(set(several)) == 1 else several
            else:
                numbers = self._number(value, *path)
            rules.append(SettingRule(numbers, None if part == "*" else part, layers))
            if rules[-1].filter is None:
                break
        return rules

    def _number(self, value: Any, *path: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= float_info.max:
            self.refuse("a number is needed", *path, got=value, next_step=number_step(value))
            return 1.0
        return float(value)


@dataclass(frozen=True)
class _Meaning:
    """A method of mergekit in hubmerge's terms."""

    method: str
    weights: list[Setting]  # per agent
    parameters: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    own: Sequence[Mapping[str, Any]] = ()  # per agent, where some have their own


def _linear(reading: Reading) -> _Meaning:
    assert reading.base is not None
    own = reading.number("weight", None, reading.base)
    weights = reading.weights()
    known = [_constant(setting) for setting in (own, *weights)]
    total = None if None in known else sum(one for one in known if one is not None)
    if not reading.flag("normalize", True) and (total is None or not isclose(total, 1.0, rel_tol=1e-6)):
        reading.refuse(
            "weights that scale the base itself",
            "parameters",
            "normalize",
            expected="weights that add up to 1, the same for all tensors",
            got="others" if total is None else total,
            next_step="Set normalize: true.",
        )
    if total == 0:
        reading.refuse("weights that add up to 0, so that their mean does not exist", "models")
    notes: tuple[str, ...] = ()
    if reading.document.get("base_model") is None:
        notes = (_NO_BASE.format(model=reading.base.name),)
    return _Meaning("linear", weights, {} if _constant(own) == 0 else {"base_weight": written(evened(own))}, notes)


def _task_arithmetic(reading: Reading) -> _Meaning:
    return _Meaning("task_arithmetic", reading.weights(), _factor(reading))


def _ties(reading: Reading) -> _Meaning:
    densities = _densities(reading, "keeps nothing")
    trimmed = any(min(points(density)) < 1 for density in densities)
    if reading.flag("rescale", False) and trimmed:
        reading.refuse("rescaling after the trim is not supported", "parameters", "rescale", next_step="Remove it.")
    shared, own = _shared_or_own("density", densities, 1.0)
    parameters = {
        **shared,
        "trim_scope": "tensor",
        "lambda": written(reading.number("lambda", 1.0)),
        "disjoint": "mean" if reading.flag("normalize", True) else "sum",
    }
    return _Meaning("ties", reading.weights(), parameters, (_TRIM,) if trimmed else (), own)


def _dare_linear(reading: Reading) -> _Meaning:
    shared, own, kept, notes = _drop(reading)
    return _Meaning("dare_linear", reading.weights(), {**shared, **_factor(reading, kept)}, notes, own)


def _dare_ties(reading: Reading) -> _Meaning:
    shared, own, kept, notes = _drop(reading)
    parameters = {
        **shared,
        "density": 1.0,
        "trim_scope": "tensor",
        "lambda": written(mapped(reading.number("lambda", 1.0), lambda lam: lam * kept)),
        "disjoint": "mean" if reading.flag("normalize", False) else "sum",
    }
    return _Meaning("dare_ties", reading.weights(), parameters, notes, own)


def _ram(reading: Reading) -> _Meaning:
    return _Meaning("ram", reading.unweighted(), {"epsilon": reading.constant("epsilon", 1e-5)})


def _ramplus_tl(reading: Reading) -> _Meaning:
    parameters = {
        "r": written(reading.number("r", 0.1)),
        "alpha": written(reading.number("alpha", 0.2)),
        "epsilon": reading.constant("epsilon", 1e-5),
        "scope": "tensor",
    }
    return _Meaning("ram_plus", reading.unweighted(), parameters)


def _factor(reading: Reading, kept: float = 1.0) -> dict[str, Any]:
    """λ of a sum of weighted updates, and whether their weights divide it."""
    lam = written(mapped(reading.number("lambda", 1.0), lambda factor: factor * kept))
    return {"lambda": lam, **({"normalize": True} if reading.flag("normalize", False) else {})}


def _densities(reading: Reading, what_0_does: str) -> list[Setting]:
    """The density of each agent; 1 and more keeps all."""
    found: list[Setting] = []
    for agent in reading.agents:
        density = reading.number("density", 1.0, agent)
        path = agent.place
        if min(points(density)) <= 0:
            reading.refuse(f"a density that {what_0_does}", *path, expected="above 0", got=min(points(density)))
            density = 1.0
        if any(isinstance(rule.value, tuple) and max(rule.value) > 1 for rule in rules_of(density)):
            reading.refuse(
                "a density over the layers that exceeds 1", *path, expected="at most 1", got=max(points(density))
            )
        found.append(mapped(density, lambda share: min(share, 1.0)))
    return [evened(density) for density in found]


def _drop(reading: Reading) -> tuple[dict[str, Any], list[dict[str, Any]], float, tuple[str, ...]]:
    """DARE's p, one for all agents or one for each; the factor that undoes its rescaling where mergekit does not
    rescale; and notes on what differs."""
    densities = _densities(reading, "drops everything")
    shared, own = _shared_or_own(
        "p", [mapped(density, lambda share: round(1.0 - share, 12)) for density in densities], 0.0
    )
    if all(density == 1.0 for density in densities):
        return shared, own, 1.0, ()
    if reading.flag("rescale", True):
        return shared, own, 1.0, (_RESCALE, _DRAW)
    kept = densities[0]
    if own or isinstance(kept, tuple):
        step = "Set rescale: true, or give all models one density."
        reading.refuse("densities that differ, without rescaling", "parameters", "rescale", next_step=step)
        return shared, own, 1.0, ()
    return shared, own, kept, (_DRAW,)


def _shared_or_own(key: str, values: list[Setting], default: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A parameter in the recipe where all agents have the same, else in each agent."""
    if all(value == values[0] for value in values):
        return {key: written(values[0])}, []
    return {key: default}, [{key: written(value)} for value in values]


def _constant(setting: Setting) -> float | None:
    """The one number in a setting, or None where it has several."""
    numbers = points(setting)
    return numbers[0] if len(set(numbers)) == 1 else None


_METHODS: Mapping[str, Callable[[Reading], _Meaning]] = {
    "linear": _linear,
    "task_arithmetic": _task_arithmetic,
    "ties": _ties,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "ram": _ram,
    "ramplus_tl": _ramplus_tl,
}
