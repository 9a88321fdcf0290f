"""The weights and parameters of each tensor, resolved from the recipe to numbers before anything is read.

Tensors with the same numbers share one `Values`; a recipe of constants has one for all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubmerge.errors import Problem
from hubmerge.methods.base import Method, Parameters
from hubmerge.methods.varying import Place, Setting, at, parse, places_of, points, ranged, rules_of, varies
from hubmerge.text.wording import incompatible


@dataclass(frozen=True)
class Given:
    """The weights and parameters of a recipe, unresolved."""

    method: Method
    weights: tuple[Setting, ...]  # per agent
    parameters: Mapping[str, Any]  # settings in their written form
    own: tuple[Mapping[str, Any], ...]  # per agent, in place of `parameters`

    def settings(self) -> Iterator[tuple[str, Setting]]:
        """The weights and parameters that may differ from tensor to tensor, with names for messages; agents count
        from 1."""
        for k, weight in enumerate(self.weights):
            yield f"weight of agent {k + 1}", weight
        for key, value in self.parameters.items():
            if isinstance(value, list | tuple):
                yield key, parse(value)
        for k, table in enumerate(self.own):
            for key, value in table.items():
                yield f"{key} of agent {k + 1}", parse(value)


@dataclass(frozen=True)
class Values:
    """The numbers of one tensor."""

    weights: tuple[float, ...]
    parameters: Parameters
    own: tuple[Parameters, ...] = ()  # each agent's, where some have their own


@dataclass(frozen=True)
class TensorValues:
    """`Values` by the name of the tensor."""

    distinct: tuple[Values, ...]
    numbers: Mapping[str, int]  # of `distinct`; empty where it has one

    def __getitem__(self, name: str) -> Values:
        return self.distinct[self.numbers[name] if self.numbers else 0]

    @property
    def vary(self) -> bool:
        return len(self.distinct) > 1

    @classmethod
    def of(cls, given: Given, names: Iterable[str]) -> "TensorValues":
        """Every setting must decide for every tensor (`misplaced`)."""
        if not any(varies(setting) for _, setting in given.settings()):
            return cls((_values(given, Place("")),), {})
        known: dict[tuple[float | None, ...], int] = {}
        distinct: list[Values] = []
        numbers: dict[str, int] = {}
        settings = [setting for _, setting in given.settings()]
        for name, place in places_of(names).items():
            key = tuple(at(setting, place) for setting in settings)
            if key not in known:
                known[key] = len(distinct)
                distinct.append(_values(given, place))
            numbers[name] = known[key]
        return cls(tuple(distinct), numbers if len(distinct) > 1 else {})


def _values(given: Given, place: Place) -> Values:
    def number(setting: Setting) -> float:
        found = at(setting, place)
        return points(setting)[0] if found is None else found

    def numbers(table: Mapping[str, Any]) -> dict[str, Any]:
        return {k: number(parse(v)) if isinstance(v, list | tuple) else v for k, v in table.items()}

    shared = numbers(given.parameters)
    parameters, own = given.method.parse_parameters(shared), []
    for table in given.own:
        # where an agent's rules decide nothing, the recipe's value stands
        decided = {k: v for k, v in table.items() if at(parse(v), place) is not None}
        own.append(given.method.parse_parameters({**shared, **numbers(decided)}) if decided else parameters)
    return Values(tuple(number(w) for w in given.weights), parameters, tuple(own) if any(given.own) else ())


def misplaced(given: Given, names: Sequence[str]) -> tuple[list[Problem], list[str]]:
    """Problems that forbid the merge, and warnings, where a recipe's settings do not fit the tensors of its base."""
    places = places_of(names)
    deepest = max((place.depth for place in places.values()), default=0)
    within = "Let its ranges end with the model's last layer."
    problems: list[Problem] = []
    warnings: list[str] = []
    own = {f"{key} of agent {k + 1}" for k, table in enumerate(given.own) for key in table}
    for what, setting in given.settings():
        if not varies(setting):
            continue
        rules = rules_of(setting)
        for part in dict.fromkeys(rule.filter for rule in rules if rule.filter is not None):
            if not any(part in name for name in places):
                warnings.append(f"{what}: no tensor's name contains {part[:60]!r}")
        ends = [rule.layers[1] if rule.layers else deepest for rule in rules]
        for end in dict.fromkeys(ends):
            if end > deepest:
                words = f"the model has {deepest} layers, so none up to {end}"
                problems.append(incompatible(words, where=what, next_step=within))
        left = [] if what in own else [name for name, place in places.items() if at(setting, place) is None]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            step = "Add a rule with `value` alone, which is for all others."
            if max(ends) < deepest:
                step = f"The model has {deepest} layers, the last range ends with {max(ends)}. {within}"
            got = f"{left[0]}{more}"
            problems.append(incompatible("no rule decides for some tensors", where=what, got=got, next_step=step))
    if not problems:
        values = TensorValues.of(given, names)
        for one in values.distinct:
            if reason := given.method.check(one.parameters, one.weights):
                named = next((name for name in names if values[name] is one), "") if values.vary else ""
                where = f"the parameters of {given.method.name}" + (f", for {named}" if named else "")
                problems.append(incompatible(reason, where=where, next_step="Change the weights or the parameters."))
                break
        doubts = (given.method.doubt(one.parameters, one.weights) for one in values.distinct)
        warnings += [doubt for doubt in doubts if doubt][:1]
    return problems, warnings


def by_layer(given: Given, values: TensorValues, labels: Sequence[str]) -> list[dict[str, Any]]:
    """A table of the settings that differ from tensor to tensor: per layer a number or a range for each."""
    if not values.vary:
        return []
    rows: dict[str, dict[str, list[float]]] = {}
    for name, place in places_of(values.numbers).items():
        row = rows.setdefault("outside the layers" if place.layer is None else str(place.layer), {})
        one = values[name]
        for k, label in enumerate(labels):
            row.setdefault(f"weight of {label}", []).append(one.weights[k])
        for key, number in _plain(one.parameters).items():
            row.setdefault(key, []).append(number)
        for label, parameters in zip(labels, one.own, strict=False):
            for key in given.method.of_agent:
                row.setdefault(f"{key} of {label}", []).append(_plain(parameters)[key])
    differing = {key for key in next(iter(rows.values())) if len({n for row in rows.values() for n in row[key]}) > 1}
    order = sorted(rows, key=lambda where: (not where.isdigit(), int(where) if where.isdigit() else 0))
    return [{"layer": at, **{k: ranged(v) for k, v in rows[at].items() if k in differing}} for at in order]


def _plain(parameters: Parameters) -> dict[str, float]:
    dumped = parameters.model_dump(mode="json", exclude_none=True)
    return {k: float(v) for k, v in dumped.items() if isinstance(v, int | float) and not isinstance(v, bool)}
