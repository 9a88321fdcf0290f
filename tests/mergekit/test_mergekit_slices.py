"""Slices that say less, or other things, than their neighbors: what is missing is refused, not taken from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hubmerge.errors import Problem, RecipeError
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.recipe import Recipe

RANGES = ([0, 8], [8, 32])
Sources = Mapping[str, Any]  # a weight, or None, by the model


def read(method: str, slices: Sequence[Sources], ranges: Sequence[list[int]] = RANGES, **more: Any) -> Recipe:
    """The recipe of a document with these slices."""

    def source(model: str, weight: Any, layers: list[int]) -> dict[str, Any]:
        own = {} if weight is None else {"parameters": {"weight": weight}}
        return {"model": model, "layer_range": layers, **own}

    listed = [
        {"sources": [source(model, weight, at) for model, weight in one.items()]}
        for one, at in zip(slices, ranges, strict=True)
    ]
    return recipe_from_yaml(json.dumps({"merge_method": method, "base_model": "org/base", "slices": listed, **more}))


def problem(method: str, slices: Sequence[Sources], **more: Any) -> Problem:
    with pytest.raises(RecipeError) as caught:
        read(method, slices, **more)
    [found] = caught.value.problems
    return found


AGENTS = {"org/a": 1, "org/b": 0.5}
WITH_BASE = {"org/base": 3, **AGENTS}


@pytest.mark.parametrize("method", ["linear", "ties"])
@pytest.mark.parametrize(("model", "source"), [("org/a", 2), ("org/b", 3)])
def test_a_weight_that_one_slice_lacks_is_refused_though_another_has_it(method: str, model: str, source: int):
    found = problem(method, [WITH_BASE, {**WITH_BASE, model: None}])
    assert found.what == f"no `weight` for {model}, which mergekit requires"
    assert found.where.endswith(f"slice 2 → source {source}")


@pytest.mark.parametrize(
    ("slices", "weight"),
    [
        ((AGENTS, AGENTS), None),
        ((WITH_BASE, AGENTS), [3.0, 0.0]),
        ((AGENTS, WITH_BASE), [0.0, 3.0]),
        ((AGENTS, {**AGENTS, "org/base": None}), [0.0, 7.0]),
        ((WITH_BASE, {**AGENTS, "org/base": None}), [3.0, 7.0]),
    ],
)
def test_in_a_mean_the_base_takes_part_where_it_is_a_source(slices: Sequence[Sources], weight: Any):
    recipe = read("linear", slices, parameters={"weight": 7})
    expected = None if weight is None else [{"layers": at, "value": w} for at, w in zip(RANGES, weight, strict=True)]
    assert recipe.parameters.get("base_weight") == expected
    assert not any(note.startswith("Base: ") for note in recipe.notes)


@pytest.mark.parametrize("slices", [(AGENTS, AGENTS), (WITH_BASE, AGENTS), (AGENTS, WITH_BASE)])
def test_slices_without_the_base_that_mergekit_requires_are_counted_from_it_and_say_so(slices: Any):
    recipe = read("ties", slices)
    assert str(recipe.base) == "org/base"
    assert any(note.startswith("Base: mergekit refuses a slice") for note in recipe.notes)
    assert not any(note.startswith("Base: ") for note in read("ties", (WITH_BASE, WITH_BASE)).notes)


def test_more_values_over_all_slices_than_a_recipe_takes_are_refused():
    weight = [{"filter": "attn", "value": 1}, {"filter": "mlp", "value": 2}]
    ranges = [[i, i + 1] for i in range(90)]
    found = problem("ties", [{**WITH_BASE, "org/a": weight}] * 90, ranges=ranges, parameters={"weight": 1})
    assert found.what == "too many values of `weight` over all slices"
    assert (found.expected, found.got) == ("at most 256", "270")
