"""Numbers that may differ from tensor to tensor: weights and parameters of methods, as a recipe writes them.

    0.5                                           the same everywhere
    [0, 0.3, 0.7, 1]                              over the layers, from the first to the last, linear in between
    - {filter: mlp, layers: [0, 16], value: 0.5}  rules: the first that holds decides
    - {value: [1, 0.2]}

A rule matches a tensor whose name contains `filter` and whose layer is in `layers` (from the first number up to, but
without, the second). A rule with neither matches every tensor. A list of numbers is spread over the rule's layers, or
over all layers: layer i of n stands at i / (n − 1) of the way, a single layer at the end. A tensor outside the layers
(embedding, final norm, head) gets the first number; embeddings belong to the range that begins with layer 0, the others
to the range that ends with the last layer.

A model with several stacks of layers (a vision tower beside a language model) has each spread over its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import float_info
from typing import Any, cast

from hubmerge.statistics.statistics import LAYER

Value = float | tuple[float, ...]

MAX_RULES = 256
MAX_POINTS = 1024
_NUMBERS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "number"},
    "minItems": 1,
    "maxItems": MAX_POINTS,
    "description": "Over the layers, from the first to the last.",
}
SCHEMA: tuple[dict[str, Any], ...] = (  # JSON schemas of what is not one number
    _NUMBERS,
    {
        "type": "array",
        "description": "The first rule that holds for a tensor decides.",
        "minItems": 1,
        "maxItems": MAX_RULES,
        "items": {
            "type": "object",
            "properties": {
                "filter": {"type": ["string", "null"], "minLength": 1, "description": "Part of the tensor's name."},
                "layers": {
                    "type": ["array", "null"],
                    "items": {"type": "integer", "minimum": 0},
                    "minItems": 2,
                    "maxItems": 2,
                    "description": "The first, and the one after the last.",
                },
                "value": {"anyOf": [{"type": "number"}, _NUMBERS]},
            },
            "required": ["value"],
            "additionalProperties": False,
        },
    },
)
# embed_out is a head (GPT-NeoX), shared the embedding of encoder and decoder (T5, BART)
_BEFORE_LAYERS = re.compile(r"embed(?!_out\.)|(?:^|\.)(?:wte|wpe|shared)\.", re.IGNORECASE)
_FORMS = "a number, a list of numbers over the layers, or a list of {filter, layers, value}"


@dataclass(frozen=True)
class SettingRule:
    """One value, with the tensors that get it."""

    value: Value
    filter: str | None = None  # a part of the tensor's name
    layers: tuple[int, int] | None = None  # the first, and the one after the last

    @property
    def always(self) -> bool:
        return self.filter is None and self.layers is None


Setting = float | tuple[float, ...] | tuple[SettingRule, ...]


@dataclass(frozen=True)
class Place:
    """The position of a tensor in its model."""

    name: str
    layer: int | None = None
    depth: int = 0  # layers of its stack; where it is in none, of the deepest one
    before: bool = False  # it is in no layer, but an embedding


def places_of(names: Iterable[str]) -> dict[str, Place]:
    """The place of every tensor of a model, by name."""
    found: dict[str, tuple[str, int] | None] = {}
    depths: dict[str, int] = {}
    for name in names:
        match = LAYER.search(name)
        found[name] = None
        if match is not None:
            stack, layer = name[: match.start(1)], int(match[1])
            found[name] = stack, layer
            depths[stack] = max(depths.get(stack, 0), layer + 1)
    deepest = max(depths.values(), default=0)
    return {
        name: Place(name, None, deepest, _BEFORE_LAYERS.search(name) is not None)
        if where is None
        else Place(name, where[1], depths[where[0]])
        for name, where in found.items()
    }


def parse(written: Any) -> Setting:
    """A setting from plain data; ValueError says what is wrong. One that is the same everywhere becomes a number."""
    if isinstance(written, list | tuple) and any(isinstance(one, Mapping | SettingRule) for one in written):
        if len(written) > MAX_RULES:
            raise ValueError(f"at most {MAX_RULES} rules")
        rules: list[SettingRule] = []
        for one in written:
            rules.append(one if isinstance(one, SettingRule) else _rule(one))
            if rules[-1].always:  # what follows decides nothing
                break
        return rules[0].value if rules[0].always else tuple(rules)
    return _value(written)


def _rule(written: Any) -> SettingRule:
    if not isinstance(written, Mapping) or set(written) - {"filter", "layers", "value"} or "value" not in written:
        raise ValueError(f"a rule has `value`, and `filter` or `layers` (got {str(written)[:80]})")
    part, layers = written.get("filter"), written.get("layers")
    if part is not None and (not isinstance(part, str) or not part or len(part) > 256):
        raise ValueError(f"a filter is a part of a tensor's name (got {str(part)[:80]!r})")
    if layers is not None:
        if not isinstance(layers, list | tuple) or len(layers) != 2 or any(type(n) is not int for n in layers):
            raise ValueError(f"layers are the first, and the one after the last (got {str(layers)[:80]})")
        if not 0 <= layers[0] < layers[1]:
            raise ValueError(f"layers {list(layers)} hold no layer")
        layers = (layers[0], layers[1])
    return SettingRule(_value(written["value"]), part, layers)


def _value(written: Any) -> Value:
    if isinstance(written, list | tuple):
        if not 0 < len(written) <= MAX_POINTS:
            raise ValueError(f"a list over the layers has 1 to {MAX_POINTS} numbers")
        numbers = tuple(_number(one) for one in written)
        return numbers[0] if len(set(numbers)) == 1 else numbers
    return _number(written)


def _number(written: Any) -> float:
    # true would be 1, and "0.5" 0.5; in a recipe these are slips of the pen
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise ValueError(f"{_FORMS} is needed" if isinstance(written, Mapping) else "a number is needed")
    if not abs(written) <= float_info.max:  # NaN, Inf, and integers that are no float
        raise ValueError("a finite number is needed")
    return float(written)


def varies(setting: Setting) -> bool:
    return isinstance(setting, tuple)


def rules_of(setting: Setting) -> tuple[SettingRule, ...]:
    """The same setting as rules."""
    if isinstance(setting, tuple) and isinstance(setting[0], SettingRule):
        return setting
    return (SettingRule(setting),)


def points(setting: Setting) -> tuple[float, ...]:
    """Every number in a setting. Interpolated values lie between the least and the greatest of their list."""
    values = [rule.value for rule in rules_of(setting)]
    return tuple(n for value in values for n in (value if isinstance(value, tuple) else (value,)))


def mapped(setting: Setting, change: Callable[[float], float]) -> Setting:
    """The setting with `change` applied to every number. It must be affine, such as 1 − x, to commute with
    interpolation."""

    def of(value: Value) -> Value:
        return tuple(map(change, value)) if isinstance(value, tuple) else change(value)

    if not varies(setting):
        return of(cast(Value, setting))
    return parse(tuple(SettingRule(of(rule.value), rule.filter, rule.layers) for rule in rules_of(setting)))


def evened(setting: Setting) -> Setting:
    """One number where all ranges of layers have the same, which then holds outside of them, too."""
    rules, numbers = rules_of(setting), set(points(setting))
    return numbers.pop() if len(numbers) == 1 and {rule.filter for rule in rules} == {None} else setting


def at(setting: Setting, place: Place) -> float | None:
    """The number for one tensor; None where no rule decides."""
    for rule in rules_of(setting):
        if _holds(rule, place):
            return _interpolated(rule.value, place, rule.layers or (0, place.depth))
    return None


def _holds(rule: SettingRule, place: Place) -> bool:
    if rule.filter is not None and rule.filter not in place.name:
        return False
    if rule.layers is None:
        return True
    first, end = rule.layers
    if place.layer is not None:
        return first <= place.layer < end
    return first == 0 if place.before else end == place.depth


def _interpolated(value: Value, place: Place, layers: tuple[int, int]) -> float:
    if not isinstance(value, tuple):
        return value
    if place.layer is None:
        return value[0]
    first, end = layers
    way = (place.layer - first) / (end - first - 1) if end - first > 1 else 1.0
    scaled = way * (len(value) - 1)
    before = int(scaled)
    share, low, high = scaled - before, value[before], value[min(before + 1, len(value) - 1)]
    return sorted((low, (1 - share) * low + share * high, high))[1]  # rounding may leave what lies between


def written(setting: Setting) -> Any:
    """The setting as plain data, as users write it."""

    def plain(value: Value) -> Any:
        return list(value) if isinstance(value, tuple) else value

    if not varies(setting):
        return setting
    rules = rules_of(setting)
    if len(rules) == 1 and rules[0].always:
        return plain(rules[0].value)
    return [
        {
            **({} if rule.filter is None else {"filter": rule.filter}),
            **({} if rule.layers is None else {"layers": list(rule.layers)}),
            "value": plain(rule.value),
        }
        for rule in rules
    ]


def worded(setting: Any) -> str:
    """A setting in words, in one line; any other parameter as text."""
    if not isinstance(setting, list | tuple):
        return str(setting)
    try:
        rules = rules_of(parse(setting))
    except ValueError:
        return str(setting)

    def value(of: SettingRule) -> str:
        numbers = of.value if isinstance(of.value, tuple) else (of.value,)
        return " → ".join(f"{n:g}" for n in numbers) + (" by layer" if len(numbers) > 1 else "")

    def where(of: SettingRule) -> str:
        layers = "" if of.layers is None else f"layers {of.layers[0]} to {of.layers[1] - 1}"
        return ", ".join(part for part in (of.filter or "", layers) if part) or ("else" if len(rules) > 1 else "")

    return "; ".join(f"{at}: {value(rule)}" if (at := where(rule)) else value(rule) for rule in rules)


def ranged(numbers: Sequence[float]) -> str:
    """The least and the greatest of some numbers, or one of them where both look alike."""
    ends = dict.fromkeys(f"{n:g}" for n in (min(numbers), max(numbers)))
    return " to ".join(ends)
