"""The value that each parameter of a mergekit document has for each model.

As mergekit 0.1.5 does, it looks for a parameter in the source within a slice, then in the slice, the module and the
document. It does so for each tensor anew, since filters may leave some undecided. A model's own `parameters` under
`models` count as those of its source in one slice that is the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import float_info
from typing import Any

from hubmerge.methods.varying import MAX_RULES, Setting, SettingRule, evened, parse
from hubmerge.recipe.mergekit_document import Document, Input, Tables
from hubmerge.recipe.recipe import number_step

_TRUE = (True, 1, "true", "yes", "on")  # as mergekit reads words and 0 or 1
_FALSE = (False, 0, "false", "no", "off")


class Reading(Document):
    """A document being read, with the values of its parameters."""

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
