"""Sweeps: one base, the same agents, several methods or a grid of parameters, merged in one go.

    base: org/base
    agents: [org/a, org/b]
    sweep:
      - method: linear
      - {method: ram_plus, parameters: {r: [0.0, 0.05, 0.1]}, rounding: [nearest, stochastic]}

Every list is a choice, so numbers over the layers are written as a list within a list. An entry expands to all its
combinations, in the order in which they are written. The variants share one probe, and those with the same output dtype
and ε are merged in one pass over the inputs.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubmerge.errors import Problem, RecipeError
from hubmerge.recipe.file import Document, located, plain_content, read_document
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.text.wording import did_you_mean, place

MAX_VARIANTS = 64
MAX_PROBLEMS = 100  # that are listed; every variant may repeat one slip
_SHOWN_NAME = 120  # characters of a variant's name in a message
_LONGEST_VALUE = 48  # characters, in a variant's name
_SHARED = ("base", "agents", "calibration", "dtype", "ignore", "tokenizer", "seed")
_OWN = ("method", "parameters", "rounding")


@dataclass(frozen=True)
class Sweep:
    """The variants of a sweep: for each a name that a folder can have, and its recipe."""

    variants: tuple[tuple[str, Recipe], ...]


def is_sweep(document: Any) -> bool:
    return isinstance(document, Mapping) and "sweep" in document


def sweep_from_dict(document: Mapping[str, Any], where: str = "the sweep") -> Sweep:
    """Every variant, validated; RecipeError lists all problems of all variants."""
    unknown = sorted(map(str, set(document) - {*_SHARED, "sweep"}))  # YAML has other keys than texts, too
    entries = document["sweep"]
    if unknown or not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise RecipeError(
            "a sweep has base, agents, calibration, dtype, ignore, tokenizer, seed and a list of entries",
            where=where,
            expected="sweep: [{method: …, parameters: {…}}, …]",
            got=", ".join(unknown) or type(entries).__name__,
            next_step=did_you_mean(unknown[0], _SHARED) if unknown else "",
        )
    shared = {key: document[key] for key in _SHARED if key in document}
    variants: list[tuple[str, Recipe]] = []
    problems: list[Problem] = []
    expanded = 0
    for number, entry in enumerate(entries):
        what, got = "", entry
        if not isinstance(entry, Mapping) or "method" not in entry or set(entry) - set(_OWN):
            what = "an entry of a sweep has method, parameters and rounding"
        elif not isinstance(entry.get("parameters", {}), Mapping):
            what, got = "parameters are a table", entry["parameters"]
        if what:
            problems.append(Problem(RecipeError.code, what, place(where, "sweep", number), got=repr(got)[:120]))
            continue
        for choice, name in _expanded(entry):
            expanded += 1
            if expanded > MAX_VARIANTS:
                raise RecipeError("too many variants", where=where, expected=f"at most {MAX_VARIANTS}")
            if len(problems) > MAX_PROBLEMS:
                continue
            try:
                variants.append((name, recipe_from_dict({**shared, **choice}, f"{where} → {name[:_SHOWN_NAME]}")))
            except RecipeError as error:
                problems.extend(error.problems)
    names = [name for name, _ in variants]
    for name in dict.fromkeys(n for n in names if names.count(n) > 1):
        problems.append(Problem(RecipeError.code, "two variants are the same", f"{where} → {name}"))
    if problems:
        listed = list(dict.fromkeys(problems))
        if len(listed) > MAX_PROBLEMS:
            listed[MAX_PROBLEMS:] = [Problem(RecipeError.code, "there is more, which is not listed", where)]
        raise RecipeError("the sweep has errors", problems=listed)
    return Sweep(tuple(variants))


def load_sweep(path: Path) -> Sweep:
    """The sweep in a file; its relative paths begin there."""
    document = read_document(path)
    content = plain_content(document.text, document.where)
    if not is_sweep(content):
        raise RecipeError(
            "this is no sweep",
            where=document.where,
            expected="a list under `sweep`",
            next_step="A recipe of one merge is for `hubmerge merge` and `hubmerge run`.",
        )
    return _located(content, document)


def sweep_in(document: Document) -> Sweep | None:
    """The sweep in a document; None where it is none, or nothing that the reader of recipes takes."""
    try:
        content = plain_content(document.text, document.where)
    except RecipeError:
        return None
    return _located(content, document) if is_sweep(content) else None


def _located(content: Any, document: Document) -> Sweep:
    variants = sweep_from_dict(content, document.where).variants
    return Sweep(tuple((name, located(recipe, document.folder)) for name, recipe in variants))


def _expanded(entry: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """One combination after the other: a short text can have more of them than memory holds."""
    parameters = entry.get("parameters", {})
    roundings = _choices(entry["rounding"]) if "rounding" in entry else [None]
    for method, *values, rounding in itertools.product(
        _choices(entry["method"]), *map(_choices, parameters.values()), roundings
    ):
        own = dict(zip(map(str, parameters), values, strict=True))
        words = [str(method), *(f"{key}={_short(value)}" for key, value in own.items())]
        variant: dict[str, Any] = {"method": method, "parameters": own}
        if "rounding" in entry:
            variant["rounding"] = rounding
            words.append(str(rounding))
        name = re.sub(r"[^\w.=\-]+", "_", ",".join(words))
        yield variant, name.replace("=-", "_-").replace("=", "-")  # no repo's name has two dashes in a row


def _short(value: Any) -> str:
    """A value as part of a folder's name; long ones, such as rules, become a digest."""
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"varies-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _choices(value: Any) -> list[Any]:
    return value or [None] if isinstance(value, list) else [value]
