"""The merge page without a browser: its form, the recipe that it holds, what is said of its models, and its address."""

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from markupsafe import escape
from pages_fake import BASE, MATH, MEM, TOOL, FakeService, model
from pydantic import Field
from starlette.datastructures import QueryParams

from hubmerge.errors import HubUnavailableError, IncompatibleError, RecipeError
from hubmerge.methods import registry
from hubmerge.methods.base import Parameters
from hubmerge.methods.linear import Linear
from hubmerge.recipe.recipe import MAX_RECIPE_BYTES, recipe_from_dict
from hubmerge.recipe.sweep import sweep_from_dict
from workflows.app.format import el
from workflows.app.forms import EVERYONE, component_of, fields_of, given, parameters_of, plain_markdown, turn, values_of
from workflows.app.frame import AS_IT_IS, number_box
from workflows.app.inspection import Inspection, advise, inspect_form
from workflows.app.merge_address import MAX_ADDRESS_CHARACTERS, TEXTS, address_of, read_address, text_of
from workflows.app.merge_form import MergeForm, build_form, fill, fillable, recipe_of, reweight, show_method
from workflows.app.merge_page import _asked_for
from workflows.app.panels import in_the_form
from workflows.app.search import _CHOICES_KEPT, _search
from workflows.app.submission import checked_recipe, names_in
from workflows.app.sweep_form import sweep_of
from workflows.values import Visitor

METHODS = list(registry().values())
HUB = "http://127.0.0.1:9"
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
    with gr.Blocks(analytics_enabled=False):
        return make()


def held(update: Any, before: Any) -> Any:
    """What a component holds after an update."""
    return update.get("value", before) if isinstance(update, Mapping) and "__type__" in update else update


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_parameter_has_a_component_with_its_words_and_untouched_it_means_the_default(method):
    fields = fields_of(method)
    assert method.parse_parameters(parameters_of(fields, values_of(fields, {}))) == method.parse_parameters({})
    components = in_blocks(lambda: [component_of(field) for field in fields])
    assert [c.label for c in components] == [i.alias or n for n, i in method.parameters.model_fields.items()]
    for field, component in zip(fields, components, strict=True):
        assert field.description
        assert plain_markdown(field.description) in component.info
        assert "&" not in field.hint  # an entity, which the form would show


def test_types_ranges_and_defaults_come_from_the_model():
    share, steps, lam, flip, norm, label, scales, needed = fields_of(Sample())
    assert (share.kind, share.bounds, share.default) == ("number", "0 to 1", 0.25)
    assert (steps.kind, steps.bounds, steps.default) == ("integer", "above 0", 7)
    assert (lam.name, lam.kind, lam.default, lam.required) == ("lambda", "number", None, False)
    assert (flip.kind, norm.kind, norm.choices, label.kind) == ("switch", "choice", ("l1", "l2"), "text")
    assert (scales.kind, needed.required) == ("yaml", True)
    assert share.hint == r"kept of \*each\* &lt;agent&gt; · 0 to 1 · default 0.25"
    assert parameters_of([share, steps, lam], [None, 0, ""]) == {"steps": 0}  # an empty field is left to its default


def test_a_list_is_written_as_yaml_and_an_alias_in_it_is_refused():
    scales = [f for f in fields_of(Sample()) if f.name == "scales"]
    assert parameters_of(scales, ["[1, 0.5]"]) == {"scales": [1, 0.5]}
    assert values_of(scales, {"scales": [1.0, 0.5]}) == ["[1.0, 0.5]"]
    for hostile in ("[&a [1], *a]", "[" * 1900):
        with pytest.raises(RecipeError, match="scales"):
            parameters_of(scales, [hostile])


def test_a_number_reaches_the_check_as_it_was_typed():
    method = next(m for m in METHODS if any(f.kind == "integer" for f in fields_of(m)))
    [field, *_] = [f for f in fields_of(method) if f.kind == "integer"]
    boxes = in_blocks(lambda: [component_of(field), number_box("", "Seed", 0)])
    assert [box.preprocess(1.5) for box in boxes] == [1.5, 1.5]  # neither rounded nor an error of gradio's
    with pytest.raises(ValueError, match="integer"):
        method.parse_parameters({field.name: boxes[0].preprocess(1.5)})
    seeded = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram", "seed": boxes[1].preprocess(1.5)}
    with pytest.raises(RecipeError, match="seed"):
        recipe_from_dict(seeded)


@cache
def untouched() -> MergeForm:
    return in_blocks(partial(build_form, {"short": "Short"}))  # type: ignore[no-any-return]


def filled_with(recipe: Mapping[str, Any]) -> list[Any]:
    """What the form's components hold after the recipe was loaded."""
    before = [component.value for component in untouched().filled]
    updates = fill(recipe)[: len(before)]  # without the folds
    values = [held(update, value) for update, value in zip(updates, before, strict=True)]
    for component, value in zip(untouched().filled, values, strict=True):
        component.postprocess(value)
    # in a browser every number is a double
    return list(json.loads(json.dumps(values), parse_int=lambda digits: int(float(digits))))


@pytest.mark.parametrize("stated", [{}, {"r": 0.1, "alpha": 2.0}, {"r": 0.3}, {"alpha": [0.5, 2.0]}], ids=str)
def test_a_preset_decides_what_nobody_states_beside_it_on_the_page_as_in_a_recipe(stated):
    content = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram_plus"}
    recipe = {**content, "parameters": {"preset": "reference", **stated}}
    for loaded in (recipe, recipe_from_dict(recipe).to_dict()):
        held = recipe_of(filled_with(loaded)[:-1])
        assert recipe_from_dict(held) == recipe_from_dict(recipe)
        [(_, varied)] = sweep_from_dict(sweep_of(held, [], [])).variants
        assert varied == recipe_from_dict(recipe)
        opened, _, wrong = read_address(QueryParams(address_of(held)), "https://huggingface.co")
        assert (recipe_from_dict(opened), wrong) == (recipe_from_dict(recipe), ())


def test_a_recipe_that_is_half_there_fills_what_it_has_and_one_of_a_later_version_loses_nothing():
    updates = fill({"base": "org/base", "method": "no-such", "agents": [{"weight": "x"}], "seed": "y"})
    assert held(updates[0], None) == "org/base"
    assert "y" not in [held(update, None) for update in updates]
    recipe = {"base": "org/base", "agents": ["org/a"], "method": "fisher", "of_a_later_version": [1]}
    assert recipe_of(filled_with(recipe)[:-1])["of_a_later_version"] == [1]
    many = {**recipe, "agents": [f"org/a{k}" for k in range(40)]}
    assert recipe_of(filled_with(many)[:-1])["agents"] == many["agents"]  # all, for the check to refuse


@pytest.mark.parametrize(
    ("change", "opened"),
    [
        ({}, ()),
        ({"calibration": {"data": "org/rows", "prompt": "q", "answer": "a", "max_pairs": 8}}, ()),
        ({"calibration": {"data": "org/rows", "prompt": "q", "answer": "a", "seed": 1}}, ("rows",)),
        ({"agents": [{"model": "org/a", "weight": 0.5}, "org/b"]}, ("weights",)),
        ({"parameters": {"r": 0.2}}, ("settings",)),
        ({"parameters": {"nothing_like_it": 1}}, ("settings", "advanced")),
        ({"seed": 3}, ("advanced",)),
        ({"agents": ["org/a", {"model": "org/b", "sensitivity": "./b.safetensors"}]}, ("advanced",)),
    ],
)
def test_a_fold_opens_where_a_loaded_recipe_has_something_unusual_in_it(change, opened):
    recipe = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram_plus", **change}
    folds, updates = untouched().folds, fill(recipe)[len(untouched().filled) :]
    assert [f.elem_id for f in folds] == ["weights", "settings", "rows", "advanced"]
    assert tuple(f.elem_id for f, u in zip(folds, updates, strict=True) if u.get("open")) == opened


def test_agents_keep_their_weights_when_their_order_changes():
    now, *updates = reweight(["c", "b", "a"], ["a", "b"], 0.25, 0.5)
    assert now == ["c", "b", "a"]
    assert [(u["label"], u["value"]) for u in updates[:3]] == [("c", 1.0), ("b", 0.5), ("a", 0.25)]
    assert [u["visible"] for u in updates] == [True] * 3 + [False] * 29


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_choosing_a_method_shows_its_formula_its_papers_and_what_it_alone_asks_for(method):
    about, *groups, calibration = show_method(method.name)
    assert el("div", method.formula, cls="hm-formula") in about
    for paper in method.papers:
        assert escape(paper.title) in about
        assert (f'href="https://arxiv.org/abs/{paper.arxiv}"' in about) == bool(paper.arxiv)
    visible = [m.name for m, group in zip(METHODS, groups, strict=True) if group["visible"]]
    assert visible == ([method.name] if fields_of(method) else [])
    assert calibration["visible"] == (method.name in ("fisher", "sar"))


OTHER = {**CALIBRATION, "data": "org/other", "split": "test", "max_pairs": 7, "max_tokens": 99, "seed": 3}
RECIPES: list[dict[str, Any]] = [  # whatever a recipe of org/a and org/b can say
    *({"method": method.name} for method in METHODS),
    {"method": "ram_plus", "parameters": {"r": 0.25, "scope": "tensor"}, "dtype": "bfloat16", "seed": 7},
    {"agents": ["org/a", {"model": "org/b@v1", "weight": 0.5}], "rounding": "nearest", "ignore": ["v_head.*", "x"]},
    {"agents": ["org/a", {"model": "org/b", "weight": 1 / 3}], "seed": 2**62 + 1},
    {"agents": [{"model": "org/a", "weight": [0, 1]}, {"model": "org/b", "weight": 2}]},
    {"agents": ["org/a", {"model": "org/b", "weight": 2, "parameters": {"density": 0.5}}]},
    {"parameters": {"lambda": [0.5, 1], "density": 0.3}, "tokenizer": "org/b"},
    {"method": "ram_quantile", "parameters": {"literal": True}},
    {"method": "fisher", "calibration": CALIBRATION},
    {"method": "sar", "calibration": {**CALIBRATION, "revision": "v1", "subset": "main"}, "agents": [
        {"model": "org/a", "calibration": OTHER, "weight": 0.5}, "org/b"]},
    {"method": "fisher", "agents": [{"model": "org/a", "calibration": CALIBRATION},
                                    {"model": "org/b", "calibration": OTHER}]},
]  # fmt: skip


@pytest.mark.parametrize("changed", RECIPES)
def test_whatever_a_recipe_says_the_form_carries_and_an_address_says(changed):
    recipe = recipe_from_dict({"base": "org/base@main", "agents": ["org/a", "org/b"], "method": "ties", **changed})
    assert fillable(recipe.to_dict()) == recipe.to_dict()
    *held, weighted = filled_with(recipe.to_dict())
    assert recipe_from_dict(recipe_of(held)) == recipe
    assert weighted == [str(agent.model) for agent in recipe.agents]
    read, name, problems = read_address(QueryParams(address_of(recipe.to_dict(), "my-merge")), HUB)
    assert (recipe_from_dict(read), name, problems) == (recipe, "my-merge", ())


def test_what_no_field_can_show_goes_into_the_box_of_yaml_for_the_check_to_refuse():
    for wrong in ("many", [5], {"a": 1}, 2**60):
        recipe = {"base": "org/base", "agents": ["org/a"], "method": "wudi", "parameters": {"steps": wrong}}
        assert recipe_of(filled_with(recipe)[:-1])["parameters"]["steps"] == wrong


def test_an_agent_that_stands_in_a_recipe_twice_is_refused_by_name():
    with pytest.raises(RecipeError) as caught:
        fillable({"base": "org/base", "agents": ["org/a", {"model": "org/a", "weight": 2}], "method": "ties"})
    assert caught.value.problems[0].got == "org/a"


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        ({"agents": [{"model": "org/a", "sensitivity": "/etc/f"}]}, "sensitivity of org/a: /etc/f"),
        ({"calibration": {**CALIBRATION, "data": "../rows.jsonl"}}, "calibration data of the recipe: ../rows.jsonl"),
        ({"agents": [{"model": "org/a", "calibration": {**CALIBRATION, "data": "/x"}}]}, "data of org/a: /x"),
    ],
)
def test_a_file_of_the_server_is_refused_by_name(changed, got):
    with pytest.raises(RecipeError) as caught:
        checked_recipe({"base": "org/base", "agents": ["org/a"], "method": "fisher", **changed})
    assert caught.value.problems[0].got.endswith(got)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("[1", "no YAML"),
        ("[1]", "no mapping"),
        ("seed: 3", "a field for it"),
        ("agents: {org/x: {weight: 2}}", "no agent of the form"),
        ("agents: {org/a: 2}", "no mapping of mappings"),
        ("parameters: 3", "no mapping"),
        ("a: " + "x" * MAX_RECIPE_BYTES, "too long"),
    ],
)
def test_what_the_box_of_yaml_cannot_say_is_refused(more, what):
    values = filled_with({"base": "org/base", "agents": ["org/a"], "method": "ties"})
    form = untouched()
    values[form.filled.index(form.more)] = more
    with pytest.raises(RecipeError, match=what):
        recipe_of(values[:-1])


def test_each_agent_s_calibration_data_is_kept_while_another_s_is_shown():
    agents = ["org/a", "org/b"]
    shared = ["org/rows", "main", "train", "v1", "question", "answer", 64, 1024, 0]
    whose, specs, editing, *fields = turn(agents, "org/b", {}, "", *shared)
    assert whose["value"] == editing == "org/b"
    assert fields == ["", "", "train", "", "question", "answer", 64, 1024, 0]  # as the others', but for the dataset
    own = ["org/other", *fields[1:]]
    after = given(specs, editing, *own)
    assert {who: spec["data"] for who, spec in after.items()} == {"": "org/rows", "org/b": "org/other"}
    whose, specs, editing, *fields = turn(["org/a"], "org/b", specs, editing, *own)  # org/b was taken out
    assert (whose["value"], editing, fields) == ("", "", shared)
    assert given(specs, editing, *fields)["org/b"]["data"] == "org/other"  # for when it comes back


def test_a_column_that_is_not_named_is_asked_for_in_the_form_s_words():
    with pytest.raises(RecipeError) as caught:
        given({}, EVERYONE, "zoo/questions", "", "train", "", "", " ", 128, 1024, 0)
    steps = [problem.next_step for problem in caught.value.problems]
    assert steps == ["Fill in “Question column”.", "Fill in “Answer column”."]
    assert all("→" not in problem.where for problem in caught.value.problems)


# --- names, advice and addresses ----------------------------------------------------------------------------


def inspected(
    *agents: str, method: str = "ram", service: FakeService | None = None, visitor: Visitor | None = None
) -> Inspection:
    """What is said of a form with these agents of the base."""
    recipe = {"base": BASE, "agents": list(agents), "method": method}
    return inspect_form(recipe, BASE, agents, None, service or FakeService(), visitor)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("https://hf.co/org/name?library=transformers#use", ["org/name"]),
        ("huggingface.co/org/name/", ["org/name"]),
        ("https://huggingface.co/org/name/tree/main", ["org/name"]),
        ("https://huggingface.co/org/name/blob/v2/config.json", ["org/name@v2"]),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", ["org/name@refs/pr/3"]),
        (f"https://huggingface.co/org/name/commit/{'a' * 40}", [f"org/name@{'a' * 40}"]),
        ("https://huggingface.co/gpt2/tree/main", ["gpt2"]),
        ("https://ada:hf_x@huggingface.co/org/name", ["org/name"]),
        (f"{HUB}/zoo/base/tree/main", ["zoo/base"]),
        ("org/a org/b@v1,org/c; org/d\norg/a", ["org/a", "org/b@v1", "org/c", "org/d"]),
        ("'org/a', \"org/b\"", ["org/a", "org/b"]),
        ("- org/a\n- “org/b”\n", ["org/a", "org/b"]),
        ("1. org/a\n2. org/b\u200b", ["org/a", "org/b"]),
        ("[org/a](https://hf.co/org/a) **org/b**\uff0c«org/c»\u202e", ["org/a", "org/b", "org/c"]),
        (" ,\n;\u200e", []),
        # what names no model stays, and is refused by name
        ("https://elsewhere.example/org/name", ["https://elsewhere.example/org/name"]),
        ("https://[broken/org/name", ["https://[broken/org/name"]),
        ("https://hf.co/org/name/tree/main/checkpoint-9", ["https://hf.co/org/name/tree/main/checkpoint-9"]),
        ("https://hf.co/org/name/blob/main/sub/config.json", ["https://hf.co/org/name/blob/main/sub/config.json"]),
        ("./folder", ["./folder"]),
        ("not a model!", ["not a model!"]),
        # and takes no model of a list with it
        ("https://huggingface.co/datasets/org/rows org/a", ["https://huggingface.co/datasets/org/rows", "org/a"]),
    ],
)
def test_addresses_of_the_hub_and_lists_become_names(typed, named):
    assert names_in([typed], HUB) == named


def test_a_browser_that_translates_the_page_leaves_the_names_of_models_as_they_are():
    form = untouched()
    for shown in (form.base, form.agents, form.suggested, form.weights[0].parent.parent):
        assert AS_IT_IS in shown.elem_classes


def test_each_model_has_its_size_its_license_and_whether_it_was_trained_from_the_base():
    chosen = str(advise(BASE, (MATH, MEM, "secret/gated-agent", "no/such"), FakeService(), None).chosen)
    trained = f"trained from {BASE}: yes"
    for told in ("65.7 kB", "apache-2.0", "gated or private", trained, "not found or not readable"):
        assert told in chosen
    assert chosen.count(f"trained from {BASE}: unknown") == 2
    assert f"trained from {TOOL}: no" in str(advise(TOOL, (MATH,), FakeService(), None).chosen)


def proposed(base: str, *agents: str, service: FakeService | None = None) -> tuple[str, tuple[str, ...]] | None:
    """Base and agents that could be chosen instead."""
    choice = advise(base, agents, service or FakeService(), None).choice
    return choice and (choice.base, choice.agents)


def test_agents_propose_the_base_that_their_cards_name():
    for base in ("", MEM, "nobody/none"):
        assert proposed(base, MATH, TOOL) == (BASE, (MATH, TOOL))
    assert f"not {MEM}" in advise(MEM, (MATH, TOOL), FakeService(), None).why
    assert proposed("", MEM) is None  # its card names none
    service = FakeService()
    about = service.about
    service.about = lambda name, visitor: about("no/such" if name == BASE else name, visitor)  # type: ignore[method-assign]
    assert proposed(BASE, MATH, TOOL, service=service) is None  # it is private, perhaps


def test_a_misspelled_name_is_said_before_anything_about_private_models():
    assert "Did you mean zoo/math-agent?" in advise(BASE, ("zoo/maht-agent", TOOL), FakeService(), None).why
    assert proposed(BASE, "zoo/maht-agent", TOOL) == (BASE, (MATH, TOOL))
    for agents in (("zoo/maht-agent", MATH), ("zoo/qwen-agent", TOOL)):  # chosen already, and another model
        assert proposed(BASE, *agents) is None
    visitor = FakeService().visitor("ada", "token-of-ada")
    for agent, offered in (("zoo/maht-agent", False), ("ada/quite-another-name", True)):
        found = inspected(agent, TOOL, visitor=visitor)
        assert ("Is it private, and yours?" in found.outcome) == offered


def test_only_who_is_not_signed_in_is_told_to_sign_in_for_a_model_that_cannot_be_read():
    unknown = ("ada/quite-another-name", TOOL)
    assert "Check its name, and sign in if it is private." in inspected(*unknown).outcome
    known = inspected(*unknown, visitor=FakeService().visitor("ada", "token-of-ada")).outcome
    assert "Check its name, and whether this account may read it." in known
    assert "and sign in" not in known


def test_a_message_with_code_stands_beside_the_start_without_its_backticks():
    told = inspect_form(RecipeError("no `base`"), BASE, (MATH, TOOL), None, FakeService(), None).verdict
    assert "No base" in told


def test_models_that_fit_are_told_with_size_and_time_whatever_the_method():
    for name, method in registry().items():
        found = inspected(MATH, TOOL, method=name)
        asks = "sensitivity" in method.extras
        assert ("These models fit" in found.verdict and "about" in found.verdict) == (not asks), name
        # another method has another name at once, also before its calibration data is there
        told = (found.suggested_name, found.fits, found.refused)
        assert told == (f"base-{name.replace('_', '-')}", not asks, asks)


def test_what_is_missing_is_said_and_then_every_problem_with_the_place_in_the_form_that_mends_it():
    assert "Choose the agents" in inspected().verdict
    assert "hm-problems" not in inspected().outcome
    with pytest.raises(IncompatibleError) as expected:
        FakeService().inspect({"base": BASE, "agents": [MATH, "other/wide-agent"], "method": "ram"}, None)
    told = inspected(MATH, "other/wide-agent").outcome
    assert told.count("hm-what") == len(expected.value.problems) > 1
    for problem in expected.value.problems:
        step = in_the_form(problem.next_step)
        assert "into Ignore, under Advanced" in step  # which is where the form has it
        assert [str(escape(text)) in told for text in (problem.what, step)] == [True, True]


def test_a_hub_that_does_not_answer_takes_only_its_part_away():
    service = FakeService()
    service.failure = HubUnavailableError("the Hub is away")
    found = inspected(MATH, TOOL, service=service)
    assert ("Not now" in found.verdict, found.advice.choice, found.advice.suggested) == (True, None, ())


def test_an_empty_box_offers_the_base_s_agents_or_popular_models():
    service = FakeService()
    assert _search(service, None, [], "", [], BASE)[1] == [MATH, TOOL]
    assert BASE in _search(service, None, None, "", [], "")[1]
    assert _search(service, None, [], "https://hf.co/zoo/mem", [], BASE)[1] == [MEM]


def test_the_list_of_an_open_box_never_becomes_shorter_and_keeps_a_hundred():
    service = FakeService()
    known: list[str] = []
    for k in range(30):
        service.models |= {name: model(name, "a") for name in (f"org/m{k}-{n}" for n in range(10))}
        _, after = _search(service, None, [], f"m{k}-", known, "")
        assert len(known) <= len(after) <= _CHOICES_KEPT
        assert after[0] == f"org/m{k}-0"
        known = after
    assert len(known) == _CHOICES_KEPT


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("method=tie", "Did you mean ties?"),
        ("method=ties&density=2", "density"),
        ("method=ties&densty=0.5", "Did you mean density?"),
        ("dtype=bfloat61", "Did you mean bfloat16?"),
        ("rounding=up", "rounding"),
        ("seed=x", "seed"),
        ("weight=1", "weight"),
        ("more=base: org/x", "more"),
        ("more={agents: {org/a: 2}}", "more"),
        ("more={calibration: {data: a/b, prompt: q, answer: a, max_pairs: x}}", "more"),
        ("colour=red", "colour"),
    ],
)
def test_what_is_wrong_in_an_address_is_said_and_the_rest_is_used(query, said):
    recipe, _, problems = read_address(QueryParams(f"base=org/base&agent=org/a&agent=org/b&{query}"), HUB)
    assert (recipe["base"], recipe["agents"]) == ("org/base", ["org/a", "org/b"])
    [problem] = problems
    assert said in str(problem)
    assert problem.got == ", ".join(v for k, v in parse_qsl(query) if k in problem.where)[:100]


def test_models_of_an_address_may_be_addresses_of_the_hub_each_with_its_weight_none_twice_and_few():
    agents = f"agent=https://huggingface.co/org/a&agent={HUB}/org/b&weight=0.5&weight=2"
    recipe, _, problems = read_address(QueryParams(f"base=https://hf.co/org/base&{agents}"), HUB)
    assert recipe["base"] == "org/base"
    assert recipe["agents"] == [{"model": "org/a", "weight": 0.5}, {"model": "org/b", "weight": 2}]
    assert problems == ()
    recipe, _, [problem] = read_address(QueryParams("agent=org/a&agent=org/a&weight=1&weight=2"), HUB)
    assert (recipe["agents"], problem.expected) == (["org/a"], "1 number")
    recipe, _, [problem] = read_address(QueryParams([("agent", f"org/a{k}") for k in range(40)]), HUB)
    assert (len(recipe["agents"]), problem.what) == (32, "the address names 40 agents")
    shown = {"base": "org/base", "agents": ["org/a"], "method": "ties", "parameters": {"density": 0.3}}
    assert address_of(shown) == "base=org/base&agent=org/a&method=ties&density=0.3"  # which people can read


def test_a_form_that_another_version_kept_is_not_read_as_one_of_today():
    recipe = {"base": BASE, "agents": [MATH, TOOL], "method": "ties", "parameters": {"density": 0.3}}
    kept = [*filled_with(recipe)[:-1], "math", "ada", "mine", "public", ""]
    opened, target, _ = _asked_for(FakeService(), QueryParams(""), None, kept, len(kept))
    assert (opened["parameters"]["density"], target["name"]) == (0.3, "mine")
    del kept[40]  # a parameter that came later
    assert _asked_for(FakeService(), QueryParams(""), None, kept, len(kept) + 1) == ({}, {}, None)


def test_no_parameter_of_a_method_has_a_name_that_an_address_uses_otherwise():
    for method in registry().values():
        recipe = {"base": "org/base", "agent": "org/a", "method": method.name}
        defaults = method.parse_parameters({}).model_dump(by_alias=True, exclude_none=True)
        named = read_address(QueryParams([*recipe.items(), *((k, str(v)) for k, v in defaults.items())]), HUB)
        assert named[2] == ()


def test_a_recipe_that_is_too_long_for_a_link_says_what_to_copy():
    recipe = {"base": "org/base", "agents": ["org/a"], "method": "ram", "ignore": ["x" * MAX_ADDRESS_CHARACTERS]}
    assert address_of(recipe) == ""
    with pytest.raises(RecipeError, match="too long for a link"):
        text_of("link", recipe, "me/it", HUB)


@pytest.mark.parametrize("private", [False, True])
def test_a_recipe_is_copied_as_a_text_that_works_elsewhere_and_makes_private_what_the_form_does(private):
    recipe = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram", "seed": 0}
    how = {"private": True, "license": "mit"} if private else {}
    texts = {kind: text_of(kind, recipe, "me/it", HUB, **how) for kind in TEXTS}
    assert all("org/b" in text for text in texts.values())
    setting, _, call = texts["Python"].replace("import hubmerge\n", "").partition("hubmerge.merge")
    scope: dict[str, Any] = {}
    exec(compile(setting, "copied", "exec"), scope)
    assert scope["recipe"] == recipe
    assert call == f"(recipe, to='me/it'{', private=True, license=' * private}{repr('mit') * private})\n"
    command = f"hubmerge run - --to me/it{' --private --license mit' * private} <<'RECIPE'"
    assert texts["command line"].splitlines()[1] == command
