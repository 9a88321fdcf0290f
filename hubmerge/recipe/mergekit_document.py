"""Reads a mergekit document: its keys, its models, and the value that each parameter has for each model.

As mergekit 0.1.5 does, it looks for a parameter in the source within a slice, then in the slice, the module and the
document. It does so for each tensor anew, since filters may leave some undecided. A model's own `parameters` under
`models` count as those of its source in one slice that is the whole model. `base_model` is no agent, whether or not it
stands among the `models`. Parameters that the method does not read have no effect. Slices must have the model's layers
in their order. Keys without a counterpart are refused by name; problems are gathered, so that all are told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import float_info
from typing import Any

from hubmerge.methods.varying import Setting, SettingRule, evened, parse
from hubmerge.recipe.mergekit_keys import (
    ADAPTED,
    FALSE,
    INPUTS,
    SHARED,
    STACKED,
    TOKENIZER,
    TRUE,
    Path,
    TopLevel,
)


@dataclass(frozen=True)
class Part:
    """A range of layers, with the tables in which parameters are looked up, in this order."""

    layers: tuple[int, int] | None  # None: the whole model
    shared: tuple[tuple[Mapping[str, Any], Path], ...]  # of the slice and the module


@dataclass(frozen=True)
class Input:
    """A model of the document; the base has no `places` where it is not listed."""

    name: str
    places: tuple[Path, ...]  # where it stands, one in each part
    tables: tuple[Mapping[str, Any], ...]  # its own parameters there


@dataclass
class Reading(TopLevel):
    """One document being read, models and their parameters as well."""

    parts: tuple[Part, ...] = ()
    _adapters: list[str] = field(default_factory=list)

    def inputs(self) -> tuple[Input | None, tuple[Input, ...]]:
        """The base with its parameters, and the agents in the document's order."""
        given = [key for key in INPUTS if self.document.get(key) is not None]
        if len(given) != 1:
            what = "no list of models" if not given else "more than one of `models`, `slices` and `modules`"
            self.refuse(what, given[-1] if given else "models")
        base_name = self._name(self.document.get("base_model"), "base_model")
        table: Mapping[str, Any] = self.document
        path: Path = ()
        module: tuple[tuple[Mapping[str, Any], Path], ...] = ()
        if given == ["modules"]:
            table, path, module = self._only_module()
        listed = table.get("slices") if "slices" in table else table.get("models")
        if not isinstance(listed, list) or not listed:
            if given and (table or not self.problems):
                self.refuse("no list of models", *path, "models", got=listed)
            return None, ()
        inputs: dict[str, Input] = {}
        if "slices" in table:
            base_name = self._slices(listed, (*path, "slices"), module, base_name, inputs)
        else:
            self.parts = (Part(None, module),)
            self._sources(listed, (*path, "models"), base_name, inputs, ())
        if base_name is None and self.document.get("base_model") is None:
            if self.document["merge_method"] == "linear":
                return self._first_as_base(list(inputs.values()))
            if str(self.document["merge_method"]) in SHARED:  # of others nobody here knows whether they have one
                self.refuse(
                    "no base, from which updates are counted",
                    "base_model",
                    next_step="Name the model that the others were trained from.",
                )
        if base_name is None:
            return None, ()
        agents = tuple(one for one in inputs.values() if one.name != base_name)
        if not agents and not self.problems:
            self.refuse("no model besides the base", "models", next_step="List the agents to merge.")
        return inputs.get(base_name, Input(base_name, (), ())), agents

    def _first_as_base(self, inputs: list[Input]) -> tuple[Input | None, tuple[Input, ...]]:
        """The first model as the base: a mean has none, so updates are counted from its first model."""
        if len(inputs) < 2 and not self.problems:
            self.refuse("a single model, of which there is no mean", "models", next_step="List two or more.")
        if any("+" in one.name for one in inputs[:1]):
            self.refuse("a LoRA adapter on a model that has no base to be counted from", "models")
        return (inputs[0], tuple(inputs[1:])) if inputs else (None, ())

    def _only_module(self) -> tuple[Mapping[str, Any], Path, tuple[tuple[Mapping[str, Any], Path], ...]]:
        """The one module of a model, as if its models or slices stood in the document."""
        modules = self.document.get("modules")
        if not isinstance(modules, Mapping) or not modules:
            self.refuse("`modules` is a table of modules", "modules", got=modules)
            return {}, (), ()
        if len(modules) > 1:
            step = "List whole models under `models`: all of their parts are merged alike."
            self.refuse("several `modules`, each merged in its own way", "modules", got=list(modules), next_step=step)
        name, table = next(iter(modules.items()))
        path = ("modules", str(name)[:80])
        if not isinstance(table, Mapping) or ("models" in table) == ("slices" in table):
            self.refuse("a module has either `models` or `slices`", *path, got=table)
            return {}, path, ()
        for key in table:
            if key not in ("models", "slices", "parameters", "name"):
                self.refuse("a key that a module does not have", *path, str(key)[:80])
        return table, path, self._level(table, path)

    def _level(self, table: Mapping[str, Any], path: Path) -> tuple[tuple[Mapping[str, Any], Path], ...]:
        """The parameters of a slice or module, checked."""
        own = table.get("parameters")
        self._check_parameters(own, path, shared=True)
        return ((own, path),) if isinstance(own, Mapping) else ()

    def _slices(
        self, listed: list[Any], path: Path, module: Any, base_name: str | None, inputs: dict[str, Input]
    ) -> str | None:
        """The slices, which must make up the whole model, and the base that they name if the document names none."""
        parts: list[Part] = []
        end, first_names = 0, None
        for number, table in enumerate(listed):
            here = (*path, number)
            sources = table.get("sources") if isinstance(table, Mapping) else None
            if not isinstance(sources, list) or not sources:
                self.refuse("a slice is a table with `sources`", *here, got=table)
                continue
            for key in table:
                if key not in ("sources", "parameters", "base_model", "residual_weight"):
                    self.refuse("a key that a slice does not have", *here, str(key)[:80])
            if table.get("residual_weight") is not None:
                self.refuse("`residual_weight` of mergekit is not supported", *here, "residual_weight")
            if table.get("base_model") is not None:
                own_base = self._name(table["base_model"], *here, "base_model")
                if base_name is None and number == 0 and self.document.get("base_model") is None:
                    base_name = own_base
                elif own_base != base_name:
                    self.refuse("a slice with a base of its own", *here, "base_model", got=own_base)
            ranges = [self._range(source, (*here, "sources", k)) for k, source in enumerate(sources)]
            if None in ranges:
                continue
            if len(set(ranges)) > 1:
                self.refuse(
                    "sources of other layers than each other",
                    *here,
                    got=[list(r or ()) for r in ranges],
                    next_step=STACKED,
                )
                continue
            layers = ranges[0]
            assert layers is not None
            if layers[0] != end:
                what = "layers that are repeated or in another order" if layers[0] < end else "layers that are left out"
                self.refuse(what, *here, expected=f"from layer {end}", got=list(layers), next_step=STACKED)
            end = layers[1]
            parts.append(Part(layers, (*self._level(table, here), *module)))
            names = self._sources(sources, (*here, "sources"), base_name, inputs, ("layer_range",))
            if first_names is not None and set(names) - {base_name} != set(first_names) - {base_name}:
                self.refuse(
                    "other models than in the slice before, so that layers are stacked", *here, next_step=STACKED
                )
            first_names = names
        self.parts = tuple(parts)
        return base_name

    def _range(self, source: Any, path: Path) -> tuple[int, int] | None:
        layers = source.get("layer_range") if isinstance(source, Mapping) else None
        if (
            isinstance(layers, list)
            and len(layers) == 2
            and all(type(n) is int for n in layers)
            and 0 <= layers[0] < layers[1]
        ):
            return layers[0], layers[1]
        self.refuse("a source is a table with `model` and `layer_range: [from, to]`", *path, got=source)
        return None

    def _sources(
        self, listed: list[Any], path: Path, base_name: str | None, inputs: dict[str, Input], more: tuple[str, ...]
    ) -> list[str]:
        """Add the models of one part to `inputs`; returns their names."""
        names: list[str] = []
        for place, entry in enumerate(listed):
            here = (*path, place)
            if not isinstance(entry, Mapping) or "model" not in entry:
                self.refuse("a model is a table with `model` and `parameters`", *here, got=entry)
                continue
            for key in entry:
                if key not in ("model", "parameters", *more):
                    self.refuse("a key that a model does not have", *here, str(key)[:80])
            # one with a name that was refused stays, so that its parameters are read too
            name = self._name(entry["model"], *here, "model", base=base_name) or f"model {place}"
            table = entry.get("parameters")
            self._check_parameters(table, here, shared=False, base=name == base_name)
            if name in names:
                self.refuse("the same model stands twice", *here, "model", got=name)
            names.append(name)
            known = inputs.get(name, Input(name, (), ()))
            own = table if isinstance(table, Mapping) else {}
            inputs[name] = Input(name, (*known.places, here), (*known.tables, own))
        return names

    def _name(self, text: Any, *path: object, base: str | None = None) -> str | None:
        if text is None and path == ("base_model",):
            return None
        if not isinstance(text, str):
            self.refuse("a model is written as text, org/name or org/name@revision", *path, got=text)
            return None
        name = text.strip()
        if "+" in name:
            return self._adapter(name, base, *path)
        local = name.startswith((".", "/", "~")) or name.partition("@")[0].count("/") > 1
        if name.count("@") > 1 or (local and "@" in name):
            self.refuse("a model with a revision that it cannot have", *path, got=name)
            return None
        return name

    def _adapter(self, name: str, base: str | None, *path: object) -> str | None:
        """`model+adapter`: the adapter, which hubmerge takes as an agent on the recipe's base."""
        model, _, adapter = name.partition("+")
        if base is None or model.strip() != base or "+" in adapter:
            self.refuse(
                "a LoRA adapter on another model than the base",
                *path,
                expected=f"{base}+adapter" if base else "a `base_model` that the adapter is for",
                got=name,
                next_step="Merge the adapter into its model first and name the result.",
            )
            return None
        found = self._name(adapter, *path)
        if found is not None:
            self._adapters.append(ADAPTED.format(adapter=found, model=base))
        return found

    def number(self, key: str, default: float) -> Setting:
        """A parameter that all models share."""
        found = self._setting(key, None, default)
        return default if found is None else found

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
        if isinstance(value, list) or value not in (*TRUE, *FALSE):
            self.refuse("true or false is needed", *path, got=value)
            return None
        return value in TRUE

    def per_model(self, key: str, model: Input, default: float | None = None) -> Setting:
        """A parameter of one model: its own, else a shared one, else the default; without one it is required."""
        found = self._setting(key, model, default)
        if found is not None:
            return found
        step = "Give every model one" + (
            ", the base too: list it with weight 0 to keep it out of the mean."
            if model.name == self.document.get("base_model")
            else "."
        )
        path = model.places[0] if model.places else ("base_model",)
        self.refuse(f"no `{key}` for {model.name}, which mergekit requires", *path, next_step=step)
        return 1.0

    def _global(self) -> tuple[tuple[Mapping[str, Any], Path], ...]:
        table = self.document.get("parameters")
        return ((table, ()),) if isinstance(table, Mapping) else ()

    def _setting(self, key: str, model: Input | None, default: float | None) -> Setting | None:
        """The value of a parameter for each tensor; None where the document does not give one."""
        rules: list[SettingRule] = []
        for number, part in enumerate(self.parts):
            own: tuple[tuple[Mapping[str, Any], Path], ...] = ()
            if model is not None and number < len(model.tables):
                own = ((model.tables[number], model.places[number]),)
            open_yet = True
            for table, path in (*own, *part.shared, *self._global()):
                if key in table and open_yet:
                    found = self._rules(table[key], part.layers, *path, "parameters", key)
                    rules += found
                    open_yet = not any(rule.filter is None for rule in found)
            if open_yet and default is not None:
                rules.append(SettingRule(default, None, part.layers))
        if not rules:
            return default
        setting = parse(tuple(rules))
        return setting if self._tells_layers(key) else evened(setting)

    def _tells_layers(self, key: str) -> bool:
        """Whether a parameter keeps its ranges of layers although its value is the same in all. The plan can then check
        the ranges against the model's layers."""
        return key == "weight" and any(part.layers for part in self.parts)

    def weights(self, agents: tuple[Input, ...]) -> list[Setting]:
        """The agents' weights; where the document has slices, those of the first agent tell which layers there are."""
        found = [self.per_model("weight", agent) for agent in agents]
        return [w if k == 0 else evened(w) for k, w in enumerate(found)]

    def unweighted(self, agents: tuple[Input, ...]) -> list[Setting]:
        """Refuse weights where the method has none."""
        layers = tuple(SettingRule(1.0, None, part.layers) for part in self.parts if part.layers)
        return [layers or 1.0 if k == 0 else 1.0 for k in range(len(agents))]

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
            self.refuse("a number is needed", *path, got=value)
            return 1.0
        return float(value)

    def tokenizer_of(self, base: Input, agents: tuple[Input, ...]) -> str | None:
        """The recipe's `tokenizer`; None: all tokens that the models have."""
        source = str(self._source).strip().removeprefix("model:") if isinstance(self._source, str) else self._source
        if source in (None, "union"):
            return None
        if source in ("base", base.name):
            return "base"
        known = [agent.name for agent in agents]
        if source not in known:
            step = "Name one of the models, base or union."
            self.refuse("a tokenizer of none of the models", *self._source_path, got=source, next_step=step)
        return str(source)

    def adapters(self) -> tuple[str, ...]:
        """The notes on `model+adapter`."""
        return tuple(self._adapters)

    def ignored(self) -> tuple[str, ...]:
        named = ", ".join(f"`{path}`" for path in self._without_effect)
        return (f"Without effect, here as in mergekit: {named}.",) if named else ()

    def numbers(self) -> tuple[str, ...]:
        """Notes on the precision in which mergekit would compute and store."""
        dtype = self.document.get("dtype")
        if dtype is None:
            return (
                "Precision: without `dtype` mergekit computes in the widest dtype of each tensor among the models"
                + ("" if self.output_dtype else " and stores that")
                + "; hubmerge computes in float32 and rounds once"
                + ("." if self.output_dtype else ", to the base's dtype."),
            )
        if str(dtype).removeprefix("torch.") == "float32":
            return ()
        return (
            f"Precision: mergekit converts every input to `dtype: {dtype}` and computes in it; hubmerge computes in "
            "float32 on the inputs as they are and rounds once.",
        )

    def tokenizer(self) -> tuple[str, ...]:
        named = any(self.document.get(key) is not None for key in ("tokenizer_source", "tokenizer"))
        return (TOKENIZER,) if named else ()
