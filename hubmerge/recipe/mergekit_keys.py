"""The keys of mergekit 0.1.5's documents, the parameters of its methods, its forms of values, and checks of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
EVERY_PARAMETER = frozenset(key for table in (SHARED, PER_MODEL) for keys in table.values() for key in keys)

INPUTS = ("models", "slices", "modules")
KEYS = ("merge_method", "base_model", *INPUTS, "parameters", "dtype", "out_dtype", "tokenizer_source", "tokenizer")
UNSUPPORTED = {
    "chat_template": "Remove it: the result keeps its tokenizer's template; set another one in the published repo.",
}
DTYPES = ("float32", "bfloat16", "float16")
TRUE = (True, 1, "true", "yes", "on")  # as mergekit reads words and 0 or 1
FALSE = (False, 0, "false", "no", "off")

STACKED = "Give every slice the same models and layer_range, and let each begin where the one before it ends, from 0."
ADAPTED = "LoRA: {adapter} is applied to {model} in float32; mergekit first writes the adapted model in its own dtype."

TOKENIZER = (
    "Tokenizer: rows of the vocabulary that no token has stay; with a tokenizer source mergekit cuts or pads the rows "
    "to that tokenizer's vocabulary."
)

Path = tuple[object, ...]


@dataclass
class TopLevel:
    """A document's keys, dtypes and tokenizer; problems are gathered, so that all are told at once."""

    document: Mapping[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)
    output_dtype: str | None = None
    _without_effect: list[str] = field(default_factory=list)
    _source: Any = None  # of the tokenizer, and where it stands
    _source_path: Path = ()

    def refuse(self, what: str, *path: object, expected: str = "", got: Any = None, next_step: str = "") -> None:
        at = place_in(self.where, *path)
        shown = "" if got is None else repr(got)[:120]
        self.problems.append(Problem(RecipeError.code, what, at, expected, shown, next_step))

    def check_top_level(self) -> None:
        """Check keys, dtypes, tokenizer, and parameters that no method knows."""
        for key, value in self.document.items():
            if key in UNSUPPORTED and value is not None:
                self.refuse(f"`{key}` of mergekit is not supported", key, next_step=UNSUPPORTED[key])
            elif key not in KEYS and key not in UNSUPPORTED:
                self.refuse("a key that mergekit does not know", str(key)[:80], expected=", ".join(KEYS))
        dtypes = [self._dtype("dtype", (*DTYPES, "float64")), self._dtype("out_dtype", DTYPES)]
        self.output_dtype = dtypes[1] or dtypes[0]
        if self.output_dtype == "float64" and dtypes[1] is None:
            self.refuse("an output of 64 bits", "dtype", expected=", ".join(DTYPES), next_step="Add an `out_dtype`.")
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
        """Refuse parameters that mergekit does not know; note those that this method does not read."""
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
            if key not in EVERY_PARAMETER and method in SHARED:
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
            if source is not None:
                self._source, self._source_path = source, path
