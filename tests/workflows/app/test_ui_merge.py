"""The merge page: names as people type them, what the cards say of the chosen models, and the form as an address."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from pages_fake import BASE, MATH, MEM, TOOL, FakeService, model
from starlette.datastructures import QueryParams
from test_ui_forms import RECIPES, filled_with

from hubmerge.errors import HubUnavailableError, RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.recipe import recipe_from_dict
from workflows.app.inspection import Inspection, advise, inspect_form
from workflows.app.merge_address import MAX_ADDRESS_CHARACTERS, TEXTS, address_of, read_address, text_of
from workflows.app.merge_page import _asked_for
from workflows.app.search import _CHOICES_KEPT, _search
from workflows.app.submission import names_in
from workflows.values import Visitor

HUB = "http://127.0.0.1:9"


def inspected(
    *agents: str, method: str = "ram", service: FakeService | None = None, visitor: Visitor | None = None
) -> Inspection:
    """What is said of a form with these agents of the base."""
    recipe = {"base": BASE, "agents": list(agents), "method": method}
    return inspect_form(recipe, BASE, agents, None, service or FakeService(), visitor)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("https://huggingface.co/org/name", ["org/name"]),
        ("huggingface.co/org/name/", ["org/name"]),
        ("https://hf.co/org/name?library=transformers#use", ["org/name"]),
        ("https://huggingface.co/org/name/tree/main", ["org/name"]),
        ("https://huggingface.co/org/name/tree/v2", ["org/name@v2"]),
        ("https://huggingface.co/org/name/blob/v2/config.json", ["org/name@v2"]),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", ["org/name@refs/pr/3"]),
        ("https://huggingface.co/org/name/tree/refs/pr/3", ["org/name@refs/pr/3"]),
        (f"https://huggingface.co/org/name/commit/{'a' * 40}", [f"org/name@{'a' * 40}"]),
        ("https://huggingface.co/gpt2/tree/main", ["gpt2"]),
        ("https://ada:hf_x@huggingface.co/org/name", ["org/name"]),
        (f"{HUB}/zoo/base", ["zoo/base"]),
        (f"{HUB}/zoo/base/tree/main", ["zoo/base"]),
        ("org/a org/b@v1,org/c; org/d\norg/a", ["org/a", "org/b@v1", "org/c", "org/d"]),
        ("'org/a', \"org/b\"", ["org/a", "org/b"]),
        ("https://hf.co/org/a https://hf.co/org/b", ["org/a", "org/b"]),
        ("- org/a\n- “org/b”\n", ["org/a", "org/b"]),
        ("1. org/a\n2. org/b\u200b", ["org/a", "org/b"]),
        ("", []),
        (" ,\n;", []),
        # what names no model stays, and is refused by name
        ("https://elsewhere.example/org/name", ["https://elsewhere.example/org/name"]),
        ("https://huggingface.co/datasets/org/rows", ["https://huggingface.co/datasets/org/rows"]),
        ("https://[broken/org/name", ["https://[broken/org/name"]),
        ("https://hf.co/org/name/tree/main/checkpoint-9", ["https://hf.co/org/name/tree/main/checkpoint-9"]),
        ("https://hf.co/org/name/tree/refs%2Fpr%2F3/sub", ["https://hf.co/org/name/tree/refs%2Fpr%2F3/sub"]),
        ("https://hf.co/org/name/blob/main/sub/config.json", ["https://hf.co/org/name/blob/main/sub/config.json"]),
        ("./folder", ["./folder"]),
        ("not a model!", ["not a model!"]),
        ("-", ["-"]),
        # and takes no model of a list with it
        ("https://huggingface.co/datasets/org/rows org/a", ["https://huggingface.co/datasets/org/rows", "org/a"]),
    ],
)
def test_addresses_of_the_hub_and_lists_become_names(typed: str, named: list[str]) -> None:
    assert names_in([typed], HUB) == named


def test_each_model_has_its_size_its_license_and_whether_it_was_trained_from_the_base() -> None:
    service = FakeService()
    chosen = str(advise(BASE, (MATH, MEM, "secret/gated-agent", "no/such"), service, None).chosen)
    assert "65.7 kB" in chosen
    assert "apache-2.0" in chosen
    assert "gated or private" in chosen
    assert f"trained from {BASE}: yes" in chosen
    assert chosen.count(f"trained from {BASE}: unknown") == 2
    assert "not found or not readable" in chosen
    assert f"trained from {TOOL}: no" in str(advise(TOOL, (MATH,), service, None).chosen)


def test_agents_propose_the_base_that_their_cards_name() -> None:
    advice = advise("", (MATH, TOOL), FakeService(), None)
    assert advice.choice is not None
    assert (advice.choice.base, advice.choice.agents) == (BASE, (MATH, TOOL))
    other = advise(MEM, (MATH, TOOL), FakeService(), None)
    assert other.choice is not None
    assert other.choice.base == BASE
    assert f"not {MEM}" in other.why
    assert advise("", (MEM,), FakeService(), None).choice is None  # its card names none


def test_a_misspelled_name_is_said_before_anything_about_private_models() -> None:
    advice = advise(BASE, ("zoo/maht-agent", TOOL), FakeService(), None)
    assert "Did you mean zoo/math-agent?" in advice.why
    assert advice.choice is not None
    assert advice.choice.agents == (MATH, TOOL)
    for agents in (("zoo/maht-agent", MATH), ("zoo/qwen-agent", TOOL)):  # chosen already, and another model
        assert advise(BASE, agents, FakeService(), None).choice is None
    service = FakeService()
    visitor = service.visitor("ada", "token-of-ada")
    for agent, offered in (("zoo/maht-agent", False), ("ada/quite-another-name", True)):
        found = inspected(agent, TOOL, service=service, visitor=visitor)
        assert ("Is it private, and yours?" in found.outcome) == offered
        assert found.outcome.index("must change first") < found.outcome.find("private, and yours") or not offered


def test_only_who_is_not_signed_in_is_told_to_sign_in_for_a_model_that_cannot_be_read() -> None:
    unknown = ("ada/quite-another-name", TOOL)
    assert "Check its name, and sign in if it is private." in inspected(*unknown).outcome
    known = inspected(*unknown, visitor=FakeService().visitor("ada", "token-of-ada")).outcome
    assert "Check its name, and whether this account may read it." in known
    assert "and sign in" not in known


def test_another_method_has_another_name_before_its_calibration_data_is_there() -> None:
    found = inspected(MATH, TOOL, method="sar")
    assert (found.suggested_name, found.fits, found.refused) == ("base-sar", False, True)


def test_a_message_with_code_stands_beside_the_start_without_its_backticks() -> None:
    told = inspect_form(RecipeError("no `base`"), BASE, (MATH, TOOL), None, FakeService(), None).verdict
    assert "No base" in told


def test_agents_propose_their_base_in_place_of_one_that_is_not_there_and_never_itself() -> None:
    advice = advise("nobody/none", (MATH, TOOL), FakeService(), None)
    assert advice.choice is not None
    assert advice.choice.base == BASE
    service = FakeService()
    about = service.about
    service.about = lambda name, visitor: about("no/such" if name == BASE else name, visitor)  # type: ignore[method-assign]
    assert advise(BASE, (MATH, TOOL), service, None).choice is None  # it is private, perhaps


def test_an_address_with_more_agents_than_a_merge_takes_says_so() -> None:
    recipe, _, problems = read_address(QueryParams([("agent", f"org/a{k}") for k in range(40)]), HUB)
    assert len(recipe["agents"]) == 32
    assert "the address names 40 agents" in problems[0].what


@pytest.mark.parametrize("method", [name for name, method in registry().items() if "sensitivity" not in method.extras])
def test_models_that_fit_are_told_with_size_and_time_whatever_the_method(method: str) -> None:
    found = inspected(MATH, TOOL, method=method)
    assert "These models fit" in found.verdict
    assert "about" in found.verdict


def test_a_hub_that_does_not_answer_takes_only_its_part_away() -> None:
    service = FakeService()
    service.failure = HubUnavailableError("the Hub is away")
    found = inspected(MATH, TOOL, service=service)
    assert "Not now" in found.verdict
    assert found.advice.choice is None
    assert found.advice.suggested == ()


def test_an_empty_box_offers_the_base_s_agents_or_popular_models() -> None:
    service = FakeService()
    assert _search(service, None, [], "", [], BASE)[1] == [MATH, TOOL]
    assert BASE in _search(service, None, None, "", [], "")[1]
    assert _search(service, None, [], "https://hf.co/zoo/mem", [], BASE)[1] == [MEM]


def test_the_list_of_an_open_box_never_becomes_shorter_and_keeps_a_hundred() -> None:
    service = FakeService()
    known: list[str] = []
    for k in range(30):
        service.models |= {name: model(name, "a") for name in (f"org/m{k}-{n}" for n in range(10))}
        _, after = _search(service, None, [], f"m{k}-", known, "")
        assert len(known) <= len(after) <= _CHOICES_KEPT
        assert after[0] == f"org/m{k}-0"
        known = after
    assert len(known) == _CHOICES_KEPT


@pytest.mark.parametrize("changed", RECIPES)
def test_an_address_says_all_that_a_recipe_says(changed: dict[str, Any]) -> None:
    recipe = {"base": "org/base@main", "agents": ["org/a", "org/b"], "method": "ties", **changed}
    query = address_of(recipe, "my-merge")
    read, name, problems = read_address(QueryParams(query), HUB)
    assert (recipe_from_dict(read), name, problems) == (recipe_from_dict(recipe), "my-merge", ())


def test_an_address_can_be_read_by_people() -> None:
    recipe = {"base": "org/base", "agents": ["org/a"], "method": "ties", "parameters": {"density": 0.3}}
    assert address_of(recipe) == "base=org/base&agent=org/a&method=ties&density=0.3"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("method=tie", "Did you mean ties?"),
        ("method=ties&density=2", "density"),
        ("method=ties&density=[", "density"),
        ("method=ties&densty=0.5", "Did you mean density?"),
        ("dtype=bfloat61", "Did you mean bfloat16?"),
        ("rounding=up", "rounding"),
        ("seed=x", "seed"),
        ("weight=1", "weight"),
        ("weight=1&weight=nan", "weight"),
        ("more=[1", "more"),
        ("more=base: org/x", "more"),
        ("more={parameters: 5}", "more"),
        ("more={agents: [org/a]}", "more"),
        ("more={agents: {org/a: 2}}", "more"),
        ("more={calibration: {data: a/b, prompt: q, answer: a, max_pairs: x}}", "more"),
        ("colour=red", "colour"),
    ],
)
def test_what_is_wrong_in_an_address_is_said_and_the_rest_is_used(query: str, said: str) -> None:
    recipe, _, problems = read_address(QueryParams(f"base=org/base&agent=org/a&agent=org/b&{query}"), HUB)
    assert (recipe["base"], recipe["agents"]) == ("org/base", ["org/a", "org/b"])
    [problem] = problems
    assert said in str(problem)
    assert problem.got == ", ".join(v for k, v in parse_qsl(query) if k in problem.where)[:100]


def test_a_weight_belongs_to_the_model_that_an_address_of_the_hub_s_names_and_none_counts_twice() -> None:
    agents = f"agent=https://huggingface.co/org/a&agent={HUB}/org/b&weight=0.5&weight=2"
    recipe, _, problems = read_address(QueryParams(f"base=https://hf.co/org/base&{agents}"), HUB)
    assert recipe["base"] == "org/base"
    assert recipe["agents"] == [{"model": "org/a", "weight": 0.5}, {"model": "org/b", "weight": 2}]
    assert problems == ()
    recipe, _, [problem] = read_address(QueryParams("agent=org/a&agent=org/a&weight=1&weight=2"), HUB)
    assert (recipe["agents"], problem.expected) == (["org/a"], "1 numbers")


def test_a_form_that_another_version_kept_is_not_read_as_one_of_today() -> None:
    recipe = {"base": BASE, "agents": [MATH, TOOL], "method": "ties", "parameters": {"density": 0.3}}
    kept = [*filled_with(recipe)[:-1], "math", "ada", "mine", "public", ""]
    opened, target, _ = _asked_for(FakeService(), QueryParams(""), None, kept, len(kept))
    assert (opened["parameters"]["density"], target["name"]) == (0.3, "mine")
    del kept[40]  # a parameter that came later
    assert _asked_for(FakeService(), QueryParams(""), None, kept, len(kept) + 1) == ({}, {}, None)


def test_no_parameter_of_a_method_has_a_name_that_an_address_uses_otherwise() -> None:
    for method in registry().values():
        recipe = {"base": "org/base", "agent": "org/a", "method": method.name}
        defaults = method.parse_parameters({}).model_dump(by_alias=True, exclude_none=True)
        named = read_address(QueryParams([*recipe.items(), *((k, str(v)) for k, v in defaults.items())]), HUB)
        assert named[2] == ()


def test_a_recipe_that_is_too_long_for_a_link_says_what_to_copy() -> None:
    recipe = {"base": "org/base", "agents": ["org/a"], "method": "ram", "ignore": ["x" * MAX_ADDRESS_CHARACTERS]}
    assert address_of(recipe) == ""
    with pytest.raises(RecipeError, match="too long for a link"):
        text_of("link", recipe, "me/it", HUB)


@pytest.mark.parametrize("private", [False, True])
def test_a_recipe_is_copied_as_a_text_that_works_elsewhere_and_makes_private_what_the_form_does(private: bool) -> None:
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
