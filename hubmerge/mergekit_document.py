"""A mergekit document as it is read: its keys, its models, and the value that a parameter has for each of them.

As in mergekit 0.1.5, a model's own `parameters` come before the document's, `base_model` is no agent whether or not
it stands among the `models`, and parameters that the method does not read have no effect. Values per layer or per
tensor name are refused, as is every key without a counterpart; problems are gathered, so that all are told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hubmerge.errors import Problem, RecipeError
from hubmerge.wording import place as place_in

# what the methods read: once per document, and per model that is not the base (linear: the base too)
SHARED: Mapping[str, tuple[str, ...]] = {
    "linear": ("normalize",),
    "task_arithmetic": ("normalize", "lambda", "rescale", "int8_mask"),
    "ties": ("normalize", "lambda", "rescale", "int8_mask"),
    "dare_linear": ("normalize", "lambda", "rescale", "int8_mask"),
    "dare_ties": ("normalize", "lambda", "rescale", "int8_mask"),
    "ram": ("epsilon",),
    "ramplus_tl": ("r", "alpha", "epsilon"),
}
PER_MODEL: Mapping[str, tuple[str, ...]] = {
    "linear": ("weight",),
    **dict.fromkeys(("task_arithmetic", "ties", "dare_linear", "dare_ties"), ("weight", "density")),
    **dict.fromkeys(("ram", "ramplus_tl"), ()),
}
_EVERY_PARAMETER = frozenset(key for table in (SHARED, PER_MODEL) for keys in table.values() for key in keys)

_KEYS = ("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype", "tokenizer_source", "tokenizer")
_UNSUPPORTED = {
    "slices": "List whole models under `models`.",
    "modules": "List whole models under `models`.",
    "chat_template": "Remove it: the result keeps its tokenizer's template; set another one in the published repo.",
}
_DTYPES = ("float32", "bfloat16", "float16")
_TRUE = (True, 1, "true", "yes", "on")  # as mergekit reads words and 0 or 1
_FALSE = (False, 0, "false", "no", "off")

_TOKENIZER = (
    "Tokenizer: embeddings keep all their rows, and the tokenizer is the base's, or that of the one agent that adds "
    "tokens to it; with a tokenizer source mergekit cuts or pads the rows to that tokenizer's vocabulary."
)


@dataclass(frozen=True)
class Input:
    """One entry of `models`, or the base that is not among them (`place` is None)."""

    name: str
    place: int | None
    parameters: Mapping[str, Any]


@dataclass
class Reading:
    """One document being read; problems are gathered, so that all are told at once."""

    document: Mapping[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)
    output_dtype: str | None = None
    _without_effect: list[str] = field(default_factory=list)

    def refuse(self, what: str, *path: object, expected: str = "", got: Any = None, next_step: str = "") -> None:
        at = place_in(self.where, *path)
        shown = "" if got is None else repr(got)[:120]
        self.problems.append(Problem(RecipeError.code, what, at, expected, shown, next_step))

    def check_top_level(self) -> None:
        """Keys, dtypes and tokenizer; and parameters that no method knows."""
        for key, value in self.document.items():
            if key in _UNSUPPORTED and value is not None:
                self.refuse(f"`{key}` of mergekit is not supported", key, next_step=_UNSUPPORTED[key])
            elif key not in _KEYS and key not in _UNSUPPORTED:
                self.refuse("a key that mergekit does not know", str(key)[:80], expected=", ".join(_KEYS))
        dtypes = [self._dtype("dtype", (*_DTYPES, "float64")), self._dtype("out_dtype", _DTYPES)]
        self.output_dtype = dtypes[1] or dtypes[0]
        if self.output_dtype == "float64" and dtypes[1] is None:
            self.refuse("an output of 64 bits", "dtype", expected=", ".join(_DTYPES), next_step="Add an `out_dtype`.")
        self._check_parameters(self.document.get("parameters"), (), shared=True)
        self._check_tokenizer()

    def _dtype(self, key: str, known: tuple[str, ...]) -> str | None:
        value = self.document.get(key)
        if value is None:
            return None
        name = str(value).removeprefix("torch.")
        if name not in known:
            self.refuse("an unsupported dtype", key, expected=", ".join(known), got=value)
        return name

    def _check_parameters(self, table: Any, path: tuple[object, ...], *, shared: bool, base: bool = False) -> None:
        """Refuses what mergekit does not know at all; remembers what it does not read here."""
        if table is None:
            return
        if not isinstance(table, Mapping):
            self.refuse("parameters are a table", *path, "parameters", got=table)
            return
        method = str(self.document["merge_method"])
        for key in table:
            read = (key in SHARED.get(method, ()) and shared) or (
                key in PER_MODEL.get(method, ()) and (not base or method == "linear")
            )
            if key not in _EVERY_PARAMETER and method in SHARED:
                known = (*SHARED[method], *PER_MODEL[method])
                self.refuse("an unknown parameter", *path, "parameters", str(key)[:80], expected=", ".join(known))
            elif not read:
                self._without_effect.append(" → ".join(map(str, (*path, "parameters", key))))

    def _check_tokenizer(self) -> None:
        table = self.document.get("tokenizer")
        if table is not None:
            if not isinstance(table, Mapping):
                self.refuse("tokenizer is a table", "tokenizer", got=table)
                return
            for key in table:
                if key != "source" and table[key] is not None:
                    self.refuse(f"`tokenizer.{key}` of mergekit is not supported", "tokenizer", str(key)[:80])
        for path, source in (
            (("tokenizer_source",), self.document.get("tokenizer_source")),
            (("tokenizer", "source"), table.get("source", "union") if table is not None else None),
        ):
            if source is not None and source not in ("base", self.document.get("base_model")):
                self.refuse(
                    "another tokenizer than the base's",
                    *path,
                    expected="base",
                    got=source,
                    next_step="Remove it: the result has the base's, or that of the one agent that adds tokens.",
                )

    def inputs(self) -> tuple[Input | None, tuple[Input, ...]]:
        """The base with its parameters, and the agents in the document's order."""
        base_name = self._name(self.document.get("base_model"), "base_model")
        if self.document.get("base_model") is None:
            self.refuse(
                "no base, from which updates are counted",
                "base_model",
                next_step="Name the model that the others were trained from; for `linear`, list it with weight 0 too.",
            )
        listed = self.document.get("models")
        if not isinstance(listed, list):
            if not any(self.document.get(key) is not None for key in ("slices", "modules")):
                self.refuse("no list of models", "models", got=listed)
            return None, ()
        bases: list[Input] = []
        agents: list[Input] = []
        for place, entry in enumerate(listed):
            if not isinstance(entry, Mapping) or "model" not in entry:
                self.refuse("a model is a table with `model` and `parameters`", "models", place, got=entry)
                continue
            for key in entry:
                if key not in ("model", "parameters"):
                    self.refuse("a key that a model does not have", "models", place, str(key)[:80])
            name = self._name(entry["model"], "models", place, "model")
            is_base = name is not None and name == base_name
            table = entry.get("parameters")
            self._check_parameters(table, ("models", place), shared=False, base=is_base)
            if name is not None and any(name == other.name for other in (*bases, *agents)):
                self.refuse("the same model stands twice", "models", place, "model", got=name)
            # one with a name that was refused stays, so that its parameters are read too
            found = Input(name or f"model {place}", place, table if isinstance(table, Mapping) else {})
            (bases if is_base else agents).append(found)
        if base_name is None:
            return None, ()
        if not agents and not self.problems:
            self.refuse("no model besides the base", "models", next_step="List the agents to merge.")
        return (bases or [Input(base_name, None, {})])[0], tuple(agents)

    def _name(self, text: Any, *path: object) -> str | None:
        if text is None and path == ("base_model",):
            return None
        if not isinstance(text, str):
            self.refuse("a model is written as text, org/name or org/name@revision", *path, got=text)
            return None
        name = text.strip()
        if "+" in name:
            self.refuse(
                "a LoRA adapter on a model, which is not supported",
                *path,
                got=name,
                next_step="Merge the adapter into its model first and name the result.",
            )
            return None
        local = name.startswith((".", "/", "~")) or name.partition("@")[0].count("/") > 1
        if name.count("@") > 1 or (local and "@" in name):
            self.refuse("a model with a revision that it cannot have", *path, got=name)
            return None
        return name

    def number(self, key: str, default: float) -> float:
        """A parameter of the document."""
        value = self._value(self.document.get("parameters"), key, "parameters", key)
        return default if value is None else self._number(value, "parameters", key)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(self.document.get("parameters"), key, "parameters", key)
        value = value.lower() if isinstance(value, str) else value
        if value is None:
            return default
        if value not in (*_TRUE, *_FALSE):
            self.refuse("true or false is needed", "parameters", key, got=value)
            return default
        return value in _TRUE

    def per_model(self, key: str, model: Input, default: float | None = None) -> float:
        """A parameter of one model: its own, else the document's, else the default; without one it is required."""
        path: tuple[object, ...] = ("base_model",) if model.place is None else ("models", model.place)
        for table, own in ((model.parameters, path), (self.document.get("parameters"), ())):
            value = self._value(table, key, *own, "parameters", key)
            if value is not None:
                return self._number(value, *own, "parameters", key)
        if default is None:
            step = "Give every model one" + (
                ", the base too: list it with weight 0 to keep it out of the mean."
                if model.name == self.document.get("base_model")
                else "."
            )
            self.refuse(f"no `{key}` for {model.name}, which mergekit requires", *path, next_step=step)
            return 1.0
        return default

    def same(self, key: str, agents: tuple[Input, ...], default: float | None, why: str) -> float:
        """A parameter on which all agents agree."""
        known = len(self.problems)
        values = [self.per_model(key, agent, default) for agent in agents]
        if len(self.problems) == known and any(value != values[0] for value in values):
            self.refuse(
                f"models with different `{key}`", "models", expected=f"one {key} for all", got=values, next_step=why
            )
        return values[0]

    def _value(self, table: Any, key: str, *path: object) -> Any:
        if not isinstance(table, Mapping) or key not in table:
            return None
        return self._constant(table[key], *path)

    def _constant(self, setting: Any, *path: object) -> Any:
        """The one value of a setting; one that depends on the layer or on a tensor's name is refused."""
        if isinstance(setting, list) and setting and not isinstance(setting[0], Mapping):
            if any(value != setting[0] for value in setting):
                self.refuse("a value per layer is not supported", *path, expected="one value", got=setting)
                return 1  # stands in, so that reading goes on to the next problem
            return self._constant(setting[0], *path)
        if isinstance(setting, list):  # of conditions: the first that holds decides
            return self._constant(setting[0], *path) if setting else None
        if isinstance(setting, Mapping):
            if setting.get("filter") not in (None, "*"):
                self.refuse("a value per tensor name is not supported", *path, "filter", got=setting["filter"])
                return 1
            return self._constant(setting.get("value"), *path)
        if setting is None:
            self.refuse("a value is missing", *path)
        return setting

    def _number(self, value: Any, *path: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            self.refuse("a number is needed", *path, got=value)
            return 1.0
        return float(value)

    def ignored(self) -> tuple[str, ...]:
        named = ", ".join(f"`{path}`" for path in self._without_effect)
        return (f"Without effect, here as in mergekit: {named}.",) if named else ()

    def numbers(self) -> tuple[str, ...]:
        """In which precision mergekit would have computed and stored."""
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
        return (_TOKENIZER,) if named else ()
