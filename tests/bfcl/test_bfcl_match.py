"""A key allows what it says, with the peculiarities of the leaderboard's checker; verdicts derived by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hubmerge.evaluation.function_calls import Call, Kind, Language, matches


def function(name: str = "f", required: tuple[str, ...] = (), **types: Any) -> dict[str, Any]:
    properties = {n: t if isinstance(t, dict) else {"type": t} for n, t in types.items()}
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": list(required)}}


def allowed(value: Any, schema: Any, values: list[Any], language: Language = "python") -> bool:
    """Whether the key {a: values} allows `a=value` where a is declared so."""
    return matches([Call("f", {"a": value})], [{"f": {"a": values}}], [function(a=schema)], "simple", language)


def of(item: str, declared: str = "array") -> dict[str, Any]:
    return {"type": declared, "items": {"type": item}}


@pytest.mark.parametrize(
    ("value", "schema", "values", "verdict"),
    [
        (5, "integer", [5], True),
        (6, "integer", [5], False),
        (5.0, "integer", [5], False),
        ("5", "integer", [5], False),
        (True, "integer", [1], False),
        (1, "boolean", [True], False),
        ("true", "boolean", [True], False),
        (5, "float", [5.0], True),
        (5, "float", [5], True),
        (10**400, "float", [5.0], False),
        (5, "float", [5.5], False),
        ("April 1, 2024", "string", ["april 1 2024"], True),
        ("a_b-c.d/e*f^g,h", "string", ["ABCDEFGH"], True),
        ("it's", "string", ['it"s'], True),
        ("a\tb", "string", ["ab"], False),
        (None, "string", ["a"], False),
        # what the key holds in another type than the declared one is a variable: exact, in the key's type
        ("x_y", "integer", ["x_y"], True),
        ("XY", "integer", ["x_y"], False),
        (5, "integer", ["x_y", 5], True),
        (5, "any", [5], True),
        ("5", "any", [5], False),
        ("x_y", "any", ["X Y"], True),
        (None, "string", [None], True),
        # lists
        ([1, 2], of("integer"), [[1, 2]], True),
        ([2, 1], of("integer"), [[1, 2]], False),
        ([1, 2.0], of("integer"), [[1, 2]], False),
        ([1, 2], of("float"), [[1.0, 2.0]], False),
        ([1, 2], of("float"), [[1, 2]], True),
        (["A b"], of("string"), [["ab"]], True),
        ([["A b"]], of("array"), [[["ab"]]], False),
        ([["ab"]], of("array"), [[["ab"]]], True),
        ((1, 2), of("integer"), [[1, 2]], False),
        ((1, 2), of("integer", "tuple"), [[1, 2]], True),
        ([1, 2], of("integer", "tuple"), [[1, 2]], True),
        ([], of("integer"), [[1], ""], True),
        ([], of("integer"), [[1]], False),
        ("abc", of("string"), [["a"], ""], False),
        (["x"], of("integer"), [[1], ""], False),
        # dictionaries
        ({"b": "X y"}, "dict", [{"b": ["xy"]}], True),
        ({"b": 1}, "dict", [{"b": [1, 2], "c": ["", 3]}], True),
        ({"b": 1}, "dict", [{"b": [1], "c": [3]}], False),
        ({"b": 1, "d": 1}, "dict", [{"b": [1]}], False),
        ({"b": {"c": "X"}}, "dict", [{"b": [{"c": "x"}]}], False),
        ({"b": "a"}, "dict", [{"b": "abc"}], True),
        ({"b": "abc"}, "dict", [{"b": "abc"}], False),
        ({}, "dict", [{"b": "abc"}], True),
        ({}, "dict", [""], False),
        ({}, "dict", ["", {}], True),
        ([{"b": 1}, {"b": 2}], of("dict"), [[{"b": [1]}, {"b": [2]}]], True),
        ([{"b": 2}, {"b": 1}], of("dict"), [[{"b": [1]}, {"b": [2]}]], False),
        ([{"b": 1}], of("dict"), [[{"b": [1]}, {"b": [2]}]], False),
        ([1], of("dict"), [[{"b": [1]}], ""], False),
        ([], of("dict"), [[{"b": [1]}], ""], True),
    ],
)
def test_a_value_matches_by_type_and_by_what_the_key_lists(value: Any, schema: Any, values: Any, verdict: bool) -> None:
    assert allowed(value, schema, values) is verdict


@pytest.mark.parametrize(
    ("value", "schema", "values", "language", "verdict"),
    [
        ("5", "integer", [5], "java", True),
        (5, "integer", [5], "java", False),
        ("5", "long", [5], "java", False),
        ("5L", "long", [5], "java", True),
        ("1" * 5000, "integer", [5], "java", False),
        ("FINAL", "integer", ["FINAL"], "java", True),
        ("new String[]{a, b}", of("String", "Array"), [["a", "b"]], "java", True),
        ('new String[]{"a", "b"}', of("String", "Array"), [["a", "b"]], "java", False),
        ("new HashMap<>()", "HashMap", [{"b": [1]}], "java", False),
        ('new HashMap<>() {{ put("b", 1); }}', "HashMap", [{"b": [1]}], "java", True),
        ("[1, 2]", of("integer"), [[1, 2]], "javascript", True),
        ("{b: 1}", "dict", [{"b": [1]}], "javascript", True),
        ("true", "Boolean", [True], "javascript", True),
        (True, "Boolean", [True], "javascript", False),
    ],
)
def test_java_and_javascript_values_are_text_of_the_declared_type(
    value: Any, schema: Any, values: Any, language: Language, verdict: bool
) -> None:
    assert allowed(value, schema, values, language) is verdict


def test_parameters_that_are_missing_unknown_or_optional() -> None:
    offered = [function(required=("a",), a="integer", b="integer", c="integer")]
    key = [{"f": {"a": [1], "b": [2], "c": [3, ""]}}]

    def fits(**arguments: int) -> bool:
        return matches([Call("f", dict(arguments))], key, offered, "simple")

    assert fits(a=1, b=2)
    assert fits(a=1, b=2, c=3)
    assert not fits(a=1, b=2, c=4)
    assert not fits(b=2)
    assert not fits(a=1)
    assert not fits(a=1, b=2, d=4)
    assert not matches([Call("f", {None: {}, "a": 1, "b": 2})], key, offered, "simple")


def test_a_name_with_dots_is_compared_as_it_is() -> None:
    assert matches([Call("m.f", {})], [{"m.f": {}}], [function("m.f")], "simple")
    assert not matches([Call("m_f", {})], [{"m.f": {}}], [function("m.f")], "simple")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_parallel_calls_match_in_any_order_each_once(order: tuple[int, ...]) -> None:
    offered = [function("f", a="integer"), function("g", a="integer")]
    key = [{"f": {"a": [1]}}, {"f": {"a": [2]}}, {"g": {"a": [1]}}]
    calls = [Call("f", {"a": 1}), Call("f", {"a": 2}), Call("g", {"a": 1})]
    assert matches([calls[i] for i in order], key, offered, "parallel")
    assert not matches([calls[0], calls[0], calls[2]], key, offered, "parallel")
    assert not matches(calls[:2], key, offered, "parallel")
    assert not matches([*calls, calls[0]], key, offered, "parallel")


def test_parallel_calls_are_matched_greedily() -> None:
    offered = [function(a="integer")]
    key = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    assert matches([Call("f", {"a": 2}), Call("f", {"a": 1})], key, offered, "parallel")
    # the first expected call takes a=1, which the second needs, though the other order would serve both
    assert not matches([Call("f", {"a": 1}), Call("f", {"a": 2})], key, offered, "parallel")


def test_equal_numbers_of_other_types_stay_other_calls() -> None:
    offered = [function(a="any"), function("g", a="boolean")]
    key = [{"g": {"a": [True]}}, {"f": {"a": [1]}}]
    calls = [Call("f", {"a": 1}), Call("g", {"a": True})]
    assert matches(calls, key, offered, "parallel")


@pytest.mark.parametrize("kind", ["multiple", "parallel"])
def test_a_call_is_held_against_the_function_that_the_key_names(kind: Kind) -> None:
    offered = [function("g", required=("z",), z="integer"), function(a="integer")]
    assert matches([Call("f", {"a": 1})], [{"f": {"a": [1]}}], offered, kind)
    assert not matches([Call("h", {"a": 1})], [{"h": {"a": [1]}}], offered, kind)


def test_of_two_functions_of_one_name_the_first_counts() -> None:
    offered = [function(a="integer"), function(a="string")]
    assert matches([Call("f", {"a": 1})], [{"f": {"a": [1]}}], offered, "multiple")
    assert not matches([Call("f", {"a": "x"})], [{"f": {"a": ["X"]}}], offered, "multiple")


def test_a_simple_row_has_one_function_whatever_the_key_calls_it() -> None:
    assert matches([Call("f", {"a": 1})], [{"other": {"a": [1]}}], [function(a="integer")], "simple")


def test_a_type_without_conversion_matches_nothing() -> None:
    assert not allowed("new HashSet<>()", "Set", [[]], "java")
    assert not allowed("x", {"type": "array"}, [["x"]])
