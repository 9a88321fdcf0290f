"""Reads a mergekit document: its keys, its models and its slices (mergekit.py: the parameters' values).

`base_model` is no agent, whether or not it stands among the `models`. Parameters that the method does not read have no
effect. Slices must have the model's layers in their order. Keys without a counterpart are refused by name; problems
are gathered, so that all are told at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hubmerge.errors import Problem, RecipeError
from hubmerge.recipe.model_name import is_path
from hubmerge.recipe.recipe import SHORT_DTYPES
from hubmerge.text.wording import did_you_mean
from hubmerge.text.wording import place as place_in

_SPARSE = ("ties", "dare_linear", "dare_ties")
# what the methods read: once per document, and per model that is not the base (linear: the base too)
_SHARED: Mapping[str, tuple[str, ...]] = {
    "linear": ("normalize",),
    "task_arithmetic": ("normalize", "lambda"),
    **dict.fromkeys(_SPARSE, ("normalize", "lambda", "rescale")),
    "ram": ("epsilon",),
    "ramplus_tl": ("r", "alpha", "epsilon"),
}
_PER_MODEL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear", "task_arithmetic"), ("weight",)),
    **dict.fromkeys(_SPARSE, ("weight", "density")),
}
_EVERY_PARAMETER = frozenset(key for table in (_SHARED, _PER_MODEL) for keys in table.values() for key in keys)
_EVERY_PARAMETER |= {"int8_mask"}  # which changes no number

_INPUTS = ("models", "slices", "modules")
_KEYS = ("merge_method", "base_model", *_INPUTS, "parameters", "dtype", "out_dtype", "tokenizer_source", "tokenizer")
_IGNORED = "Remove it; mergekit ignores it."
_CHAT_TEMPLATE = "Remove it: the result keeps its tokenizer's template; set another one in the published repo."
_DTYPES = ("float32", "bfloat16", "float16")

_STACKED = "Give every slice the same models and layer_range, and let each begin where the one before it ends, from 0."
_ADAPTED = "LoRA: {adapter} is applied to {model} in float32; mergekit first writes the adapted model in its own dtype."

_WITHOUT_BASE = (
    "Base: mergekit refuses a slice whose base is not named and listed among its `sources`; here the updates of every "
    "slice are counted from {base}."
)

_TOKENIZER = (
    "Tokenizer: rows of the vocabulary that no token has stay; with a tokenizer source mergekit cuts or pads the rows "
    "to that tokenizer's vocabulary. Tokens that an agent has in the base's spare rows are merged there, like any row "
    "of the base; mergekit gives each its agent's row, and names them in a union."
)

Path = tuple[object, ...]
Tables = tuple[tuple[Mapping[str, Any], Path], ...]  # parameters, each with its place


@dataclass(frozen=True)
class Part:
    """A range of layers, with the tables in which parameters are looked up, in this order."""

    layers: tuple[int, int] | None  # None: the whole model
    shared: Tables  # of the slice and the module


@dataclass(frozen=True)
class Input:
    """A model of the document. Every part lists every agent; the base need not be listed."""

    name: str
    own: Mapping[int, tuple[Mapping[str, Any], Path]]  # by the part's number: its parameters there, and their place

    @property
    def place(self) -> Path:
        return next((path for _, path in self.own.values()), ("base_model",))


@dataclass
class Document:
    """One document being read; problems are gathered, so that all are told at once."""

    document: Mapping[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)
    output_dtype: str | None = None
    base: Input | None = None
    agents: tuple[Input, ...] = ()  # in the document's order
    parts: tuple[Part, ...] = ()
    _without_effect: list[str] = field(default_factory=list)
    _adapters: list[str] = field(default_factory=list)
    _without_base: bool = False  # some slice
    _source: Any = None  # of the tokenizer, and where it stands
    _source_path: Path = ()

    def refuse(self, what: str, *path: object, expected: str = "", got: Any = None, next_step: str = "") -> None:
        at = place_in(self.where, *path)
        shown = "" if got is None else repr(got)[:120]
        self.problems.append(Problem(RecipeError.code, what, at, expected, shown, next_step))

    def check_top_level(self) -> None:
        """Check keys, dtypes, tokenizer, and parameters that no method knows."""
        for key, value in self.document.items():
            if key == "chat_template":
                if value is not None:
                    self.refuse("`chat_template` of mergekit is not supported", key, next_step=_CHAT_TEMPLATE)
            elif key not in _KEYS:
                step = "Write it under `parameters`." if key in _EVERY_PARAMETER else did_you_mean(key, _KEYS)
                what, known = "a key that mergekit does not know", ", ".join(_KEYS)
                self.refuse(what, str(key)[:80], expected=known, next_step=step or _IGNORED)
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
            step = f"Did you mean {SHORT_DTYPES[name]}?" if name in SHORT_DTYPES else ""
            self.refuse("an unsupported dtype", key, expected=", ".join(known), got=value, next_step=step)
        return name

    def _check_parameters(self, table: Any, path: tuple[object, ...], *, shared: bool, base: bool = False) -> None:
        """Refuse parameters that mergekit does not know; note those that this method does not read."""
        if table is None:
            return
        if not isinstance(table, Mapping):
            self.refuse("parameters are a table", *path, "parameters", got=table)
            return
        method = str(self.document["merge_method"])
        for key in table:
            read = (key in _SHARED.get(method, ()) and shared) or (
                key in _PER_MODEL.get(method, ()) and (not base or method == "linear")
            )
            if key not in _EVERY_PARAMETER and method in _SHARED:
                known = (*_SHARED[method], *_PER_MODEL.get(method, ()))
                step = "Write it at the top of the document." if key in _KEYS else did_you_mean(key, known)
                at = (*path, "parameters", str(key)[:80])
                self.refuse("an unknown parameter", *at, expected=", ".join(known), next_step=step or _IGNORED)
            elif not read:
                self._without_effect.append(" → ".join(map(str, (*path, "parameters", key))))

    def _check_tokenizer(self) -> None:
        if (source := self.document.get("tokenizer_source")) is not None:
            self._source, self._source_path = source, ("tokenizer_source",)
        table = self.document.get("tokenizer")
        if table is None:
            return
        if source is not None:
            self.refuse("both `tokenizer_source` and `tokenizer`", "tokenizer", next_step="Keep one of them.")
        if not isinstance(table, Mapping):
            self.refuse("tokenizer is a table", "tokenizer", got=table)
            return
        for key in table:
            if key != "source" and table[key] is not None:
                at = ("tokenizer", str(key)[:80])
                self.refuse(f"`tokenizer.{key}` of mergekit is not supported", *at, next_step="Remove it.")
        if (source := table.get("source", "union")) is not None:
            self._source, self._source_path = source, ("tokenizer", "source")

    def read_inputs(self) -> None:
        """Find the base and the agents with their parameters, and the parts."""
        given = [key for key in _INPUTS if self.document.get(key) is not None]
        if len(given) != 1:
            what = "no list of models" if not given else "more than one of `models`, `slices` and `modules`"
            self.refuse(what, given[-1] if given else "models")
        base_name = self._name(self.document.get("base_model"), "base_model")
        table: Mapping[str, Any] = self.document
        path: Path = ()
        module: Tables = ()
        if given == ["modules"]:
            table, path, module = self._only_module()
        sliced = table.get("slices") is not None
        listed = table["slices"] if sliced else table.get("models")
        if not isinstance(listed, list) or not listed:
            if given and (table or not self.problems):
                self.refuse("no list of models", *path, "models", got=listed)
            return
        inputs: dict[str, Input] = {}
        if sliced:
            base_name = self._slices(listed, (*path, "slices"), module, base_name, inputs)
        else:
            self.parts = (Part(None, module),)
            self._sources(listed, (*path, "models"), 0, base_name, inputs, ())
        if base_name is None and self.document.get("base_model") is None:
            if self.document["merge_method"] == "linear":
                self._take_first_as_base(list(inputs.values()))
                return
            if str(self.document["merge_method"]) in _SHARED:  # of others nobody here knows whether they have one
                step = "Name the model that the others were trained from."
                self.refuse("no base, from which updates are counted", "base_model", next_step=step)
        if base_name is None:
            return
        self.base = inputs.get(base_name, Input(base_name, {}))
        self.agents = tuple(one for one in inputs.values() if one.name != base_name)
        if not self.agents and not self.problems:
            self.refuse("no model besides the base", "models", next_step="List the agents to merge.")

    def _take_first_as_base(self, inputs: list[Input]) -> None:
        """The first model as the base: a mean has none, so updates are counted from its first model."""
        if len(inputs) < 2 and not self.problems:
            self.refuse("a single model, of which there is no mean", "models", next_step="List two or more.")
        if inputs:
            self.base, self.agents = inputs[0], tuple(inputs[1:])

    def _only_module(self) -> tuple[Mapping[str, Any], Path, Tables]:
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
        if not isinstance(table, Mapping) or (table.get("models") is None) == (table.get("slices") is None):
            self.refuse("a module has either `models` or `slices`", *path, got=table)
            return {}, path, ()
        self._check_keys("module", table, path, ("models", "slices", "parameters", "name"))
        return table, path, self._level(table, path)

    def _check_keys(self, what: str, table: Mapping[str, Any], path: Path, known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                step = "Write it under `parameters`." if key in _EVERY_PARAMETER else _IGNORED
                self.refuse(f"a key that a {what} does not have", *path, str(key)[:80], next_step=step)

    def _level(self, table: Mapping[str, Any], path: Path) -> Tables:
        """The parameters of a slice or module, checked."""
        own = table.get("parameters")
        self._check_parameters(own, path, shared=True)
        return ((own, path),) if isinstance(own, Mapping) else ()

    def _slices(
        self, listed: list[Any], path: Path, module: Tables, base_name: str | None, inputs: dict[str, Input]
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
            self._check_keys("slice", table, here, ("sources", "parameters", "base_model", "residual_weight"))
            if table.get("residual_weight") is not None:
                at = (*here, "residual_weight")
                self.refuse("`residual_weight` of mergekit is not supported", *at, next_step=_IGNORED)
            if table.get("base_model") is not None:
                own_base = self._name(table["base_model"], *here, "base_model")
                if base_name is None and number == 0 and self.document.get("base_model") is None:
                    base_name = own_base
                elif own_base != base_name:
                    step = "Name one `base_model` at the top of the document."
                    self.refuse("a slice with a base of its own", *here, "base_model", got=own_base, next_step=step)
            found = [self._range(source, (*here, "sources", k)) for k, source in enumerate(sources)]
            ranges = [one for one in found if one is not None]
            if len(ranges) < len(found):
                continue
            if len(set(ranges)) > 1:
                others = [list(one) for one in ranges]
                self.refuse("sources of other layers than each other", *here, got=others, next_step=_STACKED)
                continue
            layers = ranges[0]
            if layers[0] != end:
                what = "layers that are repeated or in another order" if layers[0] < end else "layers that are left out"
                self.refuse(what, *here, expected=f"from layer {end}", got=list(layers), next_step=_STACKED)
            end = layers[1]
            parts.append(Part(layers, (*self._level(table, here), *module)))
            names = self._sources(sources, (*here, "sources"), len(parts) - 1, base_name, inputs, ("layer_range",))
            unnamed = self.document.get("base_model") is None and table.get("base_model") is None
            self._without_base |= unnamed or base_name not in names
            if first_names is not None and set(names) - {base_name} != set(first_names) - {base_name}:
                self.refuse(
                    "other models than in the slice before, so that layers are stacked", *here, next_step=_STACKED
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
        step = "List models that are merged as a whole under `models`." if not layers else ""
        what = "a source is a table with `model` and `layer_range: [from, to]`"
        self.refuse(what, *path, got=source, next_step=step)
        return None

    def _sources(
        self,
        listed: list[Any],
        path: Path,
        part: int,
        base_name: str | None,
        inputs: dict[str, Input],
        more: tuple[str, ...],
    ) -> list[str]:
        """Add the models of one part to `inputs`; returns their names."""
        names: list[str] = []
        for place, entry in enumerate(listed):
            here = (*path, place)
            if not isinstance(entry, Mapping) or "model" not in entry:
                self.refuse("a model is a table with `model` and `parameters`", *here, got=entry)
                continue
            self._check_keys("model", entry, here, ("model", "parameters", *more))
            # one with a name that was refused stays, so that its parameters are read too
            name = self._name(entry["model"], *here, "model", base=base_name) or f"model {place}"
            table = entry.get("parameters")
            self._check_parameters(table, here, shared=False, base=name == base_name)
            if name in names:
                self.refuse("the same model stands twice", *here, "model", got=name)
            names.append(name)
            known = inputs.get(name, Input(name, {}))
            own = table if isinstance(table, Mapping) else {}
            inputs[name] = Input(name, {**known.own, part: (own, here)})
        return names

    def _name(self, text: Any, *path: object, base: str | None = None) -> str | None:
        if text is None and path == ("base_model",):
            return None
        text = _as_text(text)
        if not isinstance(text, str):
            self.refuse("a model is written as text, org/name or org/name@revision", *path, got=text)
            return None
        name = text.strip()
        if "+" in name:
            return self._adapter(name, base, *path)
        if name.count("@") > 1 or ("@" in name and is_path(name.partition("@")[0])):
            self.refuse("a model with a revision that it cannot have", *path, got=name)
            return None
        return name

    def _adapter(self, name: str, base: str | None, *path: object) -> str | None:
        """`model+adapter`: the adapter, which hubmerge takes as an agent on the recipe's base."""
        model, _, adapter = name.partition("+")
        step = "Merge the adapter into its model first and name the result."
        if path[-1:] == ("base_model",):
            self.refuse("a base with a LoRA adapter", *path, expected="a whole model", got=name, next_step=step)
            return None
        if base is None or model.strip() != base or "+" in adapter:
            self.refuse(
                "a LoRA adapter on another model than the base",
                *path,
                expected=f"{base}+adapter" if base else "a `base_model` that the adapter is for",
                got=name,
                next_step=step,
            )
            return None
        found = self._name(adapter, *path)
        if found is not None:
            self._adapters.append(_ADAPTED.format(adapter=found, model=base))
        return found

    def tokenizer_of(self, base: Input) -> str | None:
        """The recipe's `tokenizer`; None: all tokens that the models have."""
        source = _as_text(self._source)
        source = source.strip().removeprefix("model:") if isinstance(source, str) else source
        if source in (None, "union"):
            return None
        if source in ("base", base.name):
            return "base"
        if source not in [agent.name for agent in self.agents]:
            step = "Name one of the models, base or union."
            self.refuse("a tokenizer of none of the models", *self._source_path, got=source, next_step=step)
        return str(source)

    def notes(self, of_method: tuple[str, ...]) -> tuple[str, ...]:
        """Everything that the document means differently here; `of_method` is what its method does."""
        ignored = ", ".join(f"`{path}`" for path in self._without_effect)
        bare = self._without_base and self.base is not None and self.document["merge_method"] != "linear"
        named = any(self.document.get(key) is not None for key in ("tokenizer_source", "tokenizer"))
        return (
            *([f"Without effect, here as in mergekit: {ignored}."] if ignored else []),
            *of_method,
            *([_WITHOUT_BASE.format(base=self.base.name)] if bare and self.base else []),
            *self._adapters,
            *self._precision(),
            *([_TOKENIZER] if named else []),
        )

    def _precision(self) -> tuple[str, ...]:
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


def _as_text(model: Any) -> Any:
    """`model@revision+adapter` of the tables in which mergekit writes a model out; anything else as it is."""

    def joined(table: Any, sign: str, *keys: str) -> Any:
        given = {key: one for key, one in table.items() if one is not None} if isinstance(table, Mapping) else {}
        fits = keys[0] in given and given.keys() <= set(keys) and all(isinstance(one, str) for one in given.values())
        return sign.join(given[key] for key in keys if key in given) if fits else table

    if not isinstance(model, Mapping):
        return model
    return joined({key: joined(one, "@", "path", "revision") for key, one in model.items()}, "+", "model", "lora")
