"""The parameter form derived from the methods, and the recipe that the merge form holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import gradio as gr
import pytest
from pydantic import Field

from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.methods.base import Method, Parameters
from hubmerge.methods.linear import Linear
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.app.app import in_loop
from workflows.app.forms import component_of, fields_of, parameters_of, plain_markdown, values_of
from workflows.app.merge_form import build_form, fill, fillable, recipe_of, reweight, show_method

METHODS = list(registry().values())
CALIBRATION = {"data": "org/rows", "prompt": "question", "answer": "answer"}


class EveryKind(Parameters):
    share: float = Field(default=0.25, ge=0.0, le=1.0, description="kept of *each* <agent>")
    steps: int = Field(default=7, gt=0)
    lam: float | None = Field(default=None, alias="lambda")
    flip: bool = False
    norm: Literal["l1", "l2"] = "l2"
    label: str = ""
    scales: float | list[float] = 1.0
    needed: float


class Sample(Linear):
    name = "sample"
    parameters = EveryKind


def in_blocks(make: Callable[[], Any]) -> Any:
    def made() -> Any:
        with gr.Blocks(analytics_enabled=False):
            return make()

    return in_loop(made)


def held(update: Any, before: Any) -> Any:
    """What a component holds after an update."""
    return update.get("value", before) if isinstance(update, Mapping) else update


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_an_untouched_form_means_the_method_s_defaults(method: Method) -> None:
    fields = fields_of(method)
    assert [f.name for f in fields] == [i.alias or n for n, i in method.parameters.model_fields.items()]
    assert method.parse_parameters(parameters_of(fields, values_of(fields, {}))) == method.parse_parameters({})


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_parameter_becomes_a_component_with_its_name_and_description(method: Method) -> None:
    fields = fields_of(method)
    components = in_blocks(lambda: [component_of(field) for field in fields])
    assert [c.label for c in components] == [f.name for f in fields]
    assert all(
        f.description and plain_markdown(f.description) in c.info for f, c in zip(fields, components, strict=True)
    )


def test_types_ranges_and_defaults_come_from_the_model() -> None:
    share, steps, lam, flip, norm, label, scales, needed = fields_of(Sample())
    assert (share.kind, share.bounds, share.default) == ("number", "0 to 1", 0.25)
    assert (steps.kind, steps.bounds, steps.default) == ("integer", "above 0", 7)
    assert (lam.name, lam.kind, lam.default, lam.required) == ("lambda", "number", None, False)
    assert (flip.kind, norm.kind, norm.choices, label.kind) == ("switch", "choice", ("l1", "l2"), "text")
    assert (scales.kind, needed.required) == ("yaml", True)
    assert share.hint == r"kept of \*each\* &lt;agent&gt; · 0 to 1 · default 0.25"


def test_a_list_is_written_as_yaml_and_an_alias_in_it_is_refused() -> None:
    scales = [f for f in fields_of(Sample()) if f.name == "scales"]
    assert parameters_of(scales, ["[1, 0.5]"]) == {"scales": [1, 0.5]}
    assert values_of(scales, {"scales": [1.0, 0.5]}) == ["[1.0, 0.5]"]
    with pytest.raises(RecipeError, match="scales"):
        parameters_of(scales, ["[&a [1], *a]"])
    with pytest.raises(RecipeError, match="scales"):
        parameters_of(scales, ["[" * 1900])


def test_an_empty_field_is_left_to_its_default() -> None:
    share, steps, lam, *_ = fields_of(Sample())
    assert parameters_of([share, steps, lam], [None, 0, ""]) == {"steps": 0}


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_recipe_survives_the_form(method: Method) -> None:
    recipe = recipe_from_dict(
        {
            "base": "org/base@main",
            "agents": ["org/a", {"model": "org/b@v1", "weight": 0.5}],
            "method": method.name,
            "dtype": "bfloat16",
            "rounding": "nearest",
            "seed": 7,
            "ignore": ["v_head.*", "*.rotary_emb.inv_freq"],
        }
    )
    form = in_blocks(build_form)
    before = [component.value for component in form.filled]
    after = [held(update, value) for update, value in zip(fill(recipe.to_dict()), before, strict=True)]
    assert recipe_from_dict(recipe_of(after[:-1])) == recipe
    assert after[-1] == ["org/a", "org/b@v1"]


def test_a_recipe_that_is_half_there_fills_what_it_has() -> None:
    updates = fill({"base": "org/base", "method": "no-such", "agents": [{"weight": "x"}], "seed": "y"})
    assert held(updates[0], None) == "org/base"
    assert held(updates[-3], None) == 0
    assert held(updates[-2], None) == ""


def test_agents_keep_their_weights_when_their_order_changes() -> None:
    now, *updates = reweight(["c", "b", "a"], ["a", "b"], 0.25, 0.5)
    assert now == ["c", "b", "a"]
    assert [(u["label"], u["value"]) for u in updates[:3]] == [("c", 1.0), ("b", 0.5), ("a", 0.25)]
    assert [u["visible"] for u in updates] == [True] * 3 + [False] * 29


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_choosing_a_method_shows_its_summary_paper_and_parameters_only(method: Method) -> None:
    about, *groups = show_method(method.name)
    assert str(about).count("<li>") == len(method.papers)
    visible = [m.name for m, group in zip(METHODS, groups, strict=True) if group["visible"]]
    assert visible == ([method.name] if fields_of(method) else [])


def test_no_hint_of_a_method_needs_an_entity_which_the_form_would_show() -> None:
    hints = [field.hint for method in registry().values() for field in fields_of(method)]
    assert hints
    assert [hint for hint in hints if "&" in hint] == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"agents": [{"model": "org/a", "weight": [0, 1]}, "org/b"]}, "weight of agent 1"),
        ({"agents": ["org/a", {"model": "org/b", "parameters": {"density": 0.5}}]}, "density of agent 2"),
        ({"parameters": {"lambda": [0.5, 1]}}, "lambda"),
        ({"method": "fisher", "calibration": CALIBRATION}, "calibration"),
        (
            {"method": "fisher", "agents": [{"model": "org/a", "calibration": CALIBRATION}, "org/b"]},
            "calibration of agent 1",
        ),
        (
            {"method": "fisher", "agents": ["org/a", {"model": "org/b", "sensitivity": "org/f"}]},
            "sensitivity of agent 2",
        ),
    ],
)
def test_a_recipe_with_more_than_the_form_has_fields_for_is_not_loaded_into_it(
    changed: dict[str, Any], named: str
) -> None:
    plain = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ties"}
    written = recipe_from_dict(plain).to_dict()
    assert fillable(written) == written
    with pytest.raises(RecipeError) as caught:
        fillable(recipe_from_dict({**plain, **changed}).to_dict())
    assert caught.value.problems[0].got == named
