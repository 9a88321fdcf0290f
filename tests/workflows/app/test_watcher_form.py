"""The form of a rule: what it holds is what a rule's file says, there and back, also as an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages_fake import FakeService
from test_ui_forms import in_blocks

from hubmerge.errors import RuleError
from workflows.app.lanes import Lanes
from workflows.app.watcher_form import address_of, build_form, fill, proposed, read_address, rule_of, where_it_belongs
from workflows.watchers.rules import load_rules, rule_data, rule_from_data

EXAMPLES = load_rules(Path(__file__).parents[3] / "examples" / "watchers").rules
EVERYTHING = {
    "name": "all-of-it",
    "owner": "ada",
    "base": "zoo/base@main",
    "agents": {"authors": ["zoo"], "tags": ["rl"], "lineage": "any", "licenses": ["mit"], "exclude": ["zoo/x"]},
    "recipe": {"method": "ties", "parameters": {"density": 0.3}, "seed": 7},
    "join": {"best": 4},
    "min_agents": 3,
    "target": "zoo/{name}-{set}",
    "private": True,
    "license": "mit",
    "suite": "zoo",
    "budget": 9,
}


def held(rule: dict[str, Any]) -> list[Any]:
    """What the form's components hold once they are filled."""
    return [v.get("value") if isinstance(v, dict) else v for v in fill(rule)]


@pytest.mark.parametrize("data", [EVERYTHING, *map(rule_data, EXAMPLES)], ids=lambda data: data["name"])
def test_a_rule_is_the_same_after_the_form_and_after_an_address(data: dict[str, Any]) -> None:
    rule = rule_from_data(data)
    assert rule_from_data(rule_of(held(data))) == rule
    address = address_of(rule_of(held(data)))
    assert rule_from_data(rule_of(held(read_address(address)))) == rule


def test_a_rule_s_suite_is_chosen_by_its_title_and_may_be_none_or_a_new_one() -> None:
    form = in_blocks(lambda: build_form(FakeService(), Lanes()))
    [suite] = [c for c in form if c.elem_id == "watch-suite"]
    assert suite.choices == [("Nothing", ""), ("Mathematics", "math"), ("Function calling", "tool")]
    assert (suite.value, suite.allow_custom_value) == ("", True)


def test_what_is_left_open_gets_a_proposal() -> None:
    values = held({"base": "Qwen/Qwen2.5-7B-Instruct@main", "agents": {"authors": ["org"]}, "owner": "ada"})
    rule = rule_from_data(proposed(rule_of(values)))
    assert rule.name == "qwen2-5-7b-instruct-watch"
    assert rule.target == "ada/qwen2-5-7b-instruct-watch-{set}"
    assert not rule.private
    assert proposed({"base": "zoo/b"})["target"] == "your-name/b-watch-{set}"
    assert "your-name" not in address_of(rule_of(held({"base": "zoo/b"})))  # whoever signs in later is the owner


def test_an_address_in_words_fills_the_form() -> None:
    rule = read_address("base=zoo/base&author=zoo&author=ada&tag=rl&method=ties&budget=5&private=yes")
    assert (rule["base"], rule["agents"]) == ("zoo/base", {"authors": ["zoo", "ada"], "tags": ["rl"]})
    assert (rule["recipe"], rule["budget"], rule["private"]) == ({"method": "ties"}, 5, True)
    assert read_address("base=a/b&agent=a/c&agent=a/d")["join"] == {"fixed": ["a/c", "a/d"]}


@pytest.mark.parametrize(
    "query",
    [
        *("", "best=x", "budget=-1", "budget=9999", "more=[", "more=[1]", "method=none&lineage=odd", "a" * 9000),
        "more={recipe: {method: [ram]}}",
    ],
)
def test_what_an_address_says_wrongly_never_breaks_the_form(query: str) -> None:
    held(read_address(query))


@pytest.mark.parametrize(
    ("box", "number", "told"),
    [
        ("watch-budget", -1, "budget: expected at least 1, got -1"),
        ("watch-budget", 0, "budget: expected at least 1, got 0"),
        ("watch-budget", 99999, "budget: expected at most 100, got 99999"),
        ("watch-budget", 1.5, "whole number in the rule → budget: got 1.5"),
        ("watch-best", 1, "best: expected at least 2, got 1"),
        ("watch-best", 33, "best: expected at most 32, got 33"),
    ],
)
def test_a_number_out_of_range_reaches_the_rule_s_check_which_says_what_it_must_be(
    box: str, number: float, told: str
) -> None:
    form = in_blocks(lambda: build_form(FakeService(), Lanes()))
    values = held({"base": "zoo/base", "agents": {"authors": ["zoo"]}, "join": {"best": 3}, "suite": "zoo"})
    [k] = [k for k, component in enumerate(form) if component.elem_id == box]
    values[k] = form[k].preprocess(number)  # which gradio calls before the page's own code
    with pytest.raises(RuleError) as refused:
        rule_from_data(proposed(rule_of(values)))
    assert told in str(refused.value)
    assert refused.value.code == "E_RULE"


def test_an_empty_number_is_the_usual_one() -> None:
    values = held({"base": "zoo/base", "join": {"best": 5}, "budget": 9})
    rule = rule_of([None if value in (5, 9) else value for value in values])
    assert (rule["join"], rule["budget"]) == ({"best": 3}, 3)


@pytest.mark.parametrize("text", ["[", "- a list", "just text"])
def test_more_of_a_rule_that_is_no_table_is_refused_by_name(text: str) -> None:
    with pytest.raises(RuleError, match="More of the rule"):
        rule_of([*held({"base": "zoo/base"})[:-1], text])


def test_a_rule_that_is_too_long_for_an_address_has_none() -> None:
    assert address_of({"base": "zoo/base", "agents": {"exclude": [f"zoo/agent-{n}" for n in range(900)]}}) == ""


def test_the_place_of_a_rule_names_its_file_and_its_owner() -> None:
    text = str(where_it_belongs("zoo-watch", "<ada>"))
    assert "zoo-watch.yaml" in text
    assert "&lt;ada&gt;" in text
