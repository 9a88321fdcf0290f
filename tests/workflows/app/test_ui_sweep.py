"""Compare variants on the merge page: from plain fields to a sweep, its number and time, and a job for each variant."""

from typing import Any

import gradio as gr
import pytest
from pages_fake import BASE, MATH, TOOL, job_view
from pages_session import FILLED, errors_of
from starlette.datastructures import QueryParams

from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.sweep import sweep_from_dict
from workflows.app.forms import fields_of
from workflows.app.sweep_form import counted_panel, opened_with, settings_of, started_panel, sweep_of

RECIPE: dict[str, Any] = {"base": BASE, "agents": [MATH, {"model": TOOL, "weight": 0.5}], "method": "ties"}


def variants(*values: Any, **recipe: Any) -> list[tuple[str, Any]]:
    return list(sweep_from_dict(sweep_of({**RECIPE, **recipe}, *values)).variants)


def test_values_of_two_settings_make_every_combination_beside_other_methods():
    found = variants([], [("density", "0.2, 0.5"), ("lambda", "0.5; 1.0")], seed=3, dtype="float16")
    told = [(r.parameters["density"], r.parameters["lambda"]) for _, r in found]
    assert told == [(0.2, 0.5), (0.2, 1.0), (0.5, 0.5), (0.5, 1.0)]
    assert {(r.method, r.seed, r.dtype) for _, r in found} == {("ties", 3, "float16")}
    assert [agent.weight for agent in found[0][1].agents] == [1, 0.5]
    assert [r.method for _, r in variants(["linear", "ties", "ram_plus"], [("", "")])] == ["ties", "linear", "ram_plus"]
    usual = {field.name: field.default for field in fields_of(registry()["ties"])}
    named = [name for name, _ in variants([], [("density", "0.2")], parameters=usual)]
    assert named == ["ties_density-0.2"]  # by what differs from the usual


def test_a_setting_that_differs_over_the_layers_is_one_variant():
    [(_, only)] = variants([], [], parameters={"lambda": [0.5, 1.0]})
    assert list(only.parameters["lambda"]) == [0.5, 1.0]
    assert len(variants([], [("lambda", "[0.5, 1.0], 0.7")])) == 2
    assert len(variants([], [("density", "0.2 0.2, 0.5")])) == 2  # and what is given twice counts once


@pytest.mark.parametrize(("text", "told"), [("0.2, }", r"such as 0\.2, 0\.5"), ("0.2, 7", "density")])
def test_values_that_cannot_be_read_or_that_the_setting_cannot_have_are_refused(text, told):
    with pytest.raises(RecipeError, match=told):
        variants([], [("density", text)])


def test_keys_of_the_box_of_yaml_that_are_no_texts_are_refused_by_name():
    with pytest.raises(RecipeError, match="got 1, colour"):
        sweep_from_dict(sweep_of({**RECIPE, 1: "x", "colour": "red"}, ["ram"], []))


def test_an_address_says_the_variants_and_what_is_wrong_in_it():
    methods, first, values, second, none, told, fold = opened_with(
        QueryParams(f"method=ties&also=linear&vary=density:0.2,0.5&vary=lambda:{'1,' * 400}"), "ties"
    )
    assert (methods, first["value"], values, second["value"]) == (["linear"], "density", "0.2,0.5", "lambda")
    assert len(none) == 500
    assert fold["open"]
    assert "Leave a field" in told
    methods, first, _, _, _, told, fold = opened_with(QueryParams("also=nope&vary=gibberish:1"), "ties")
    assert (methods, first["value"], fold["open"]) == ([], "", True)
    assert "nope, gibberish" in told


def test_an_address_without_variants_takes_away_nothing_that_was_chosen_meanwhile():
    methods, first, values, second, others, told, fold = opened_with(QueryParams("method=ties"), "ties")
    assert [methods, values, others, told, fold] == [gr.skip()] * 5
    assert "value" not in first | second
    assert first["choices"][1:] == second["choices"][1:] == settings_of("ties")


def test_the_number_of_variants_their_names_and_their_time_are_told():
    panel = str(counted_panel([f"ties_density-0.{k}" for k in range(15)], 130, signed_in=False))
    for told in ("15 variants, about 2 min", "<li>TIES, density 0.0</li>", "and 3 more", "Sign in to start them"):
        assert told in panel
    signs = [name for name, _ in variants([], [("lambda", "-0.5, 0.5")])]
    named = counted_panel(["ram_scope-tensor", "ram_plus_r-0.2", *signs], 9, signed_in=True)
    for told in ("RAM, scope tensor", "RAM+, r 0.2", "TIES, lambda -0.5", "TIES, lambda 0.5"):
        assert f"<li>{told}</li>" in named
    assert "one variant alone" in counted_panel(["ties"], 1, signed_in=True)


def test_how_many_of_the_variants_start_now_is_said_where_the_limit_of_a_user_does_not_take_all():
    names = [f"ties_density-0.{k}" for k in range(8)]

    def told(limit: int, under_way: int) -> str:
        return str(counted_panel(names, 130, signed_in=True, limit=limit, under_way=under_way))

    assert "5 jobs waiting or running, and you have 3: only 2 of these can start now" in told(5, 3)
    assert "and you have 6: none of these can start now" in told(5, 6)
    assert "can start now" not in told(8, 0)


@pytest.mark.parametrize(
    ("newest", "told"), [(0, "3 merges started"), (2, "One merge started"), (3, "Nothing new was started")]
)
def test_each_variant_leads_to_its_job_and_one_that_exists_already_is_not_called_started(newest, told):
    jobs = [job_view(str(k) * 64, target=f"ada/mine-{k}", ticket=k) for k in range(1, 4)]
    panel = str(started_panel(jobs, newest=newest))
    assert told in panel
    assert panel.count("exists already") == newest
    assert f'href="job?id={"1" * 64}"' in panel


@pytest.mark.browser
def test_variants_are_counted_kept_in_the_address_and_started(site):
    page = site.open(f"{FILLED}&method=ties&name=mine", "ada")
    errors = errors_of(page)
    page.locator("#start:not([disabled])").wait_for()
    page.get_by_role("button", name="Compare variants").click()
    page.locator("#sweep-setting-0 input").click()
    page.get_by_role("option").filter(has_text="density:").first.click()
    page.locator("#sweep-values-0 input, #sweep-values-0 textarea").first.fill("0.2, 0.5")
    page.keyboard.press("Tab")
    page.locator("#sweep-told").filter(has_text="2 variants, about").wait_for()
    page.wait_for_function("decodeURIComponent(location.search).includes('vary=density:0.2, 0.5')")
    page.locator("#verdict").filter(has_text="These models fit").wait_for()
    page.reload(wait_until="domcontentloaded")
    page.locator("#start:not([disabled])").wait_for()
    values = page.locator("#sweep-values-0 input, #sweep-values-0 textarea").first
    values.wait_for()
    assert values.input_value() == "0.2, 0.5"
    assert "vary=density" in page.url
    values.focus()
    page.keyboard.press("Enter")
    page.locator("#sweep-told").filter(has_text="2 variants, about").wait_for()
    assert page.get_by_role("button", name="Start one merge").is_enabled()
    page.get_by_role("button", name="Start 2 merges").click()
    page.locator("#sweep-started").filter(has_text="2 merges started").wait_for()
    assert [request.target for request, _ in site.service.requests] == [
        f"ada/mine-{name}" for name, _ in variants([], [("density", "0.2, 0.5")], agents=[MATH, TOOL])
    ]
    values.fill("0.1, 0.2, 0.3, 0.4, 0.6, 0.7")
    page.keyboard.press("Tab")  # five at once is the limit of a user, and two are under way
    page.locator("#sweep-told").filter(has_text="and you have 2: only 3 of these can start now").wait_for()
    assert errors == []
