"""Texts of answers become calls, or no calls; nothing in them runs, and nothing in them takes long."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hubmerge.evaluation.function_calls import Call, Language, decode
from hubmerge.evaluation.function_calls.java_values import java_value
from hubmerge.evaluation.function_calls.javascript_values import javascript_value


def arguments(text: str, language: Language = "python") -> dict[str | None, Any]:
    calls = decode(text, language)
    assert calls is not None
    (call,) = calls
    return dict(call.arguments)


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=1), g.h(b='x')]",
        "f(a=1), g.h(b='x')",
        "`[f(a=1), g.h(b='x')]`",
        "```\n[f(a=1), g.h(b='x')]\n```",
        "[f(a=1), g.h(b='x')",
        "<think>[z()]</think>\n\n[f(a=1), g.h(b='x')]",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g.h", "arguments": {"b": "x"}}\n</tool_call>',
        'First:<tool_call>{"name": "f", "parameters": {"a": 1}}\n{"name": "g.h", "parameters": {"b": "x"}}</tool_call>',
        '[{"name": "f", "arguments": {"a": 1}}, {"function": "g.h", "parameters": {"b": "x"}}]',
        '```json\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g.h", "arguments": {"b": "x"}}]\n```',
    ],
)
def test_every_way_to_write_calls_gives_the_same_calls(text: str) -> None:
    assert decode(text) == (Call("f", {"a": 1}), Call("g.h", {"b": "x"}))


@pytest.mark.parametrize("text", ["", "[]", "```\n[]\n```", "<think>f(a=1)</think>", "<tool_call>\nno\n</tool_call>"])
def test_an_empty_list_is_no_call(text: str) -> None:
    assert decode(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "None of the functions fits.",
        "[None]",
        "[f]",
        "[f(a=b.c)]",
        "[f(a=f'{b}')]",
        "[f(a=1)][0]",
        "[f(a=1), 2]",
        "f(a=1).",
        "```python\n[f(a=1)]\n```",
        "<tool_call>\n{}\n</tool_call>",
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{}"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n[1]\n</tool_call>',
        '[{"name": "f"}]',
        "[1]",
    ],
)
def test_what_is_no_list_of_calls_is_none(text: str) -> None:
    assert decode(text) is None


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("+5", -5),
        ("not True", -1),
        ("...", "..."),
        ("zebra", "zebra"),
        ("f(1, x)", "f(1, x)"),
        ("f(b=1)", {"f": {"b": 1}}),
        ("a[1:2]", "a[1:2]"),
        ("(1, [2])", (1, [2])),
        ("{'b': [1.5, None]}", {"b": [1.5, None]}),
        ("2 * 3 + [4][0]", 10),
        ("'a' + 'b' * 2", "abb"),
        ("10 ** 3 / 8", 125.0),
        ("'\\d'", "\\d"),
    ],
)
def test_an_argument_becomes_what_the_reference_makes_of_it(source: str, value: Any) -> None:
    found = arguments(f"[f(a={source})]")["a"]
    assert found == value
    assert type(found) is type(value)


def test_positional_arguments_are_dropped_and_the_last_of_a_name_counts() -> None:
    assert arguments("[f(7, a=1, a=2, **{'b': 3})]") == {"a": 2, None: {"b": 3}}


@pytest.mark.parametrize(
    "source",
    [
        "2 ** 10 ** 8",
        "1 << 10 ** 9",
        "'a' * 10 ** 9",
        "[0] * 10 ** 9",
        "(" + "*".join(["9" * 4000] * 20) + ")",
        "'%999999999d' % 1",
        "__import__('os').system('true') + 1",
        "len('a') + 1",
        "1 / 0",
        "9" * 5000,
        "[x for x in range(10 ** 9)] + [1]",
    ],
)
def test_arithmetic_is_folded_only_where_it_stays_small_and_calls_nothing(source: str) -> None:
    assert decode(f"[f(a={source})]") is None


BOMBS = {
    "brackets": "(" * 100_000,
    "lists": "[f(a=" + "[" * 100_000 + "]" * 100_000 + ")]",
    "90 lists": "[f(a=" + "[" * 80 + "]" * 80 + ")]",
    "signs": "[f(a=" + "-" * 60_000 + "1)]",
    "negations": "[f(a=" + "not " * 15_000 + "1)]",
    "powers": "[f(a=" + "1**" * 20_000 + "1)]",
    "sums": "[f(a=" + "1+" * 30_000 + "1)]",
    "attributes": "[a" + ".b" * 30_000 + "(c=1)]",
    "calls": "[f" + "()" * 30_000 + "]",
    "lambdas": "[f(a=" + "lambda:" * 9_000 + "1)]",
    "conditions": "[f(a=" + "b if c else " * 5_000 + "d)]",
    "comparisons": "[f(a=" + "b<" * 30_000 + "d)]",
    "statements": "a b " * 16_000,
    "megabytes": "[f(a='" + "x" * 5_000_000 + "')]",
    "megabytes of reasoning": "<think>" + "f(" * 2_000_000,
    "tags": "<tool_call>" * 6_000,
    "tags that close": "<tool_call></tool_call>" * 2_800,
    "JSON lists": "<tool_call>" + "[" * 60_000 + "</tool_call>",
    "JSON objects": '[{"name":"f","arguments":{"a":' + '{"a":' * 85 + "1" + "}" * 87 + "]",
    "quotes": '"' * 2_000,
    "prefixed quotes": "b'" * 1_000,
    "generics": "a<b<" * 500,
    "arrows": "->" * 1_000,
    "nulls": "\0" * 60_000,
    "surrogates": "[f(a='\ud800', b=\ud801)]",
    "line separators": "[f(a=1,\u2028b=2)]",
}


@pytest.mark.parametrize("language", ["python", "java", "javascript"])
@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_is_no_call_and_leaves_the_parser_usable(name: str, language: Language) -> None:
    limit = sys.getrecursionlimit()
    decode(BOMBS[name], language)
    assert sys.getrecursionlimit() == limit
    assert arguments("[f(a=b, c=d)]", language) == {"a": "b", "c": "d"}


@pytest.mark.parametrize("language", ["python", "java", "javascript"])
def test_ninety_brackets_may_be_open_at_once(language: Language) -> None:
    opening, closing = ("[", "]") if language != "java" else ("(", ")")
    texts = [f"[f(b=c, a={opening * depth}5{closing * depth})]" for depth in (88, 89)]
    assert [decode(text, language) is None for text in texts] == [False, True]


@pytest.mark.parametrize(("language", "most"), [("python", 65_536), ("java", 2050), ("javascript", 2050)])
def test_answers_of_more_characters_than_are_read_are_no_call(language: Language, most: int) -> None:
    # Java and JavaScript are parsed without the outer brackets
    texts = [f"[f(b=c, a={'x' * (size - 12)})]" for size in (most, most + 1)]
    assert [len(text) for text in texts] == [most, most + 1]
    assert [decode(text, language) is None for text in texts] == [False, True]


def test_java_values_are_put_together_from_tokens() -> None:
    text = 'a.b(c="x y", d = new int[]{1, 2}, e=(String) f, g=-5L, h=new T<A>(1, "i"), j=K.class, l=m(n, o))'
    assert decode(text, "java") == (
        Call(
            "a.b",
            {
                "c": "x y",
                "d": "new int[]{1,2}",
                "e": "(String)f",
                "g": "-5L",
                "h": 'new T<A>(1, "i")',
                "j": "K.class",
                "l": "m(n, o)",
            },
        ),
    )


def test_recovery_refuses_a_java_call_of_one_argument_without_a_semicolon() -> None:
    assert decode("[f(a=1)]", "java") is None
    assert arguments("[f(a=1);]", "java") == {"a": "1"}
    assert arguments("[f(a=1, b=2)]", "java") == {"a": "1", "b": "2"}


def test_the_body_of_an_anonymous_java_class_is_lost() -> None:
    text = '[f(a=new HashMap<>() {{ put("b", 1); }}, c=1)]'
    assert arguments(text, "java")["a"] == "new HashMap<>()"


def test_java_text_behind_a_character_of_two_bytes_is_shifted() -> None:
    assert arguments('[f(a="é", b="xyz")]', "java") == {"a": 'é"', "=": 'yz"'}


def test_of_java_the_first_method_call_counts_wherever_it_stands() -> None:
    assert decode("[new A(f(a=b, c=d))]", "java") == (Call("f", {"a": "b", "c": "d"}),)
    assert decode("[a = 5;]", "java") is None


def test_javascript_values_are_source_without_outer_quotes() -> None:
    text = "[a.b(c='x y', d=\"z\", e=[1, 'f'], g={h: 1}, i=`j`, k=x => x, l=-1)]"
    assert arguments(text, "javascript") == {
        "c": "x y",
        "d": "z",
        "e": "[1, 'f']",
        "g": "{h: 1}",
        "i": "`j`",
        "k": "x => x",
        "l": "-1",
    }


def test_of_javascript_positional_arguments_only_names_and_true_are_seen() -> None:
    assert arguments("[f(5, false, 'x', a=1)]", "javascript") == {"a": "1"}
    assert arguments("[f(true, a=1)]", "javascript") == {None: "true", "a": "1"}
    assert arguments("[f(x, a=1)]", "javascript") == {None: "x", "a": "1"}
    assert decode("[f(x, true)]", "javascript") is None


def test_a_name_given_twice_is_no_javascript_or_java_call() -> None:
    assert decode("[f(a=1, a=2)]", "javascript") is None
    assert decode("[f(a=1, a=2)]", "java") is None


@pytest.mark.parametrize(
    ("text", "declared", "item", "value"),
    [
        ("5", "integer", None, 5),
        ("5L", "integer", None, "5L"),
        ("5L", "long", None, 5),
        ("5", "long", None, "5"),
        ("2.5f", "float", None, 2.5),
        ("2.5", "float", None, "2.5"),
        ("2.5e1", "double", None, 25.0),
        ("true", "boolean", None, True),
        ("True", "boolean", None, "True"),
        ("5", "any", None, "5"),
        ("new int[]{1, 2, x}", "Array", "integer", [1, 2, "x"]),
        ('new String[]{"a,b"}', "Array", "String", ['"a', 'b"']),
        ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>() {{ add(1L); add(2); }}", "ArrayList", "long", [1, "2"]),
        ("new ArrayList<>()", "ArrayList", "String", []),
        ("Arrays.asList(1)", "ArrayList", "integer", "Arrays.asList(1)"),
        (
            'new HashMap<A, B>() {{ put("a", 1); put("b", "c"); put("d", 2L); }}',
            "HashMap",
            None,
            {"a": 1, "b": "c", "d": 2},
        ),
        ('new HashMap<A, B<C>>() {{ put("a", x{}); put("b", 1); }}', "HashMap", None, {}),
        ("new HashMap<>()", "HashMap", None, {}),
        ('new HashMap<>() {{ put("a", put("b", 1); }}', "HashMap", None, {"a": 'put("b", 1'}),
        ('new HashMap<>() {{ put("a\nput("b", 1); }}', "HashMap", None, {"b": 1}),
        ("new ArrayList<>() {{ }}", "ArrayList", "String", []),
    ],
)
def test_java_text_gets_the_declared_type_or_stays_text(text: str, declared: str, item: str | None, value: Any) -> None:
    assert java_value(text, declared, item) == value


@pytest.mark.parametrize(
    ("text", "declared", "item", "value"),
    [
        ("'a'", "String", None, "a"),
        ("5", "integer", None, 5),
        ("5n", "Bigint", None, 5),
        ("1e3", "float", None, "1e3"),
        ("[1, 'two', true]", "array", None, [1, "two", True]),
        ("['a', b]", "array", "String", ["a", "b"]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 2], [3]]", "array", "array", [[1, 2], [3]]),
        ("[[1, 2], 3]", "array", "integer", ["[1", 2]),
        ("[]", "array", "String", []),
        ("[[]]", "array", "array", [[""]]),
        ("[1,\n2]", "array", "integer", "[1,\n2]"),
        ("{}", "dict", None, {}),
        ("{a: 1, 'b': \"5\", c: [1, x], d: 'p, q'}", "dict", None, {"a": 1, "b": 5, "c": [1, "x"], "d": "p, q"}),
        ("{a: 1, : 2}", "dict", None, {"a": 1, "": 2}),
        ("{a: {b: 1}, c: 2}", "dict", None, {"a": "{b: 1"}),
    ],
)
def test_javascript_text_gets_the_declared_type_or_stays_text(
    text: str, declared: str, item: str | None, value: Any
) -> None:
    assert javascript_value(text, declared, item) == value
