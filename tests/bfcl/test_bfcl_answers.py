"""Texts of answers become calls or no calls, and keys allow them or not: by hand, and for text made to do harm."""

from __future__ import annotations

import sys
from time import process_time
from typing import Any

import pytest
from bfcl_parity import VERDICTS, lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubmerge.evaluation.function_calls import Call, Kind, Language, decode, matches
from hubmerge.evaluation.function_calls.values import TYPES, read_value

LANGUAGES: tuple[Language, ...] = ("python", "java", "javascript")


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
        *(
            f"[f(a={source})]"  # arithmetic is folded only where it stays small and calls nothing
            for source in (
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
            )
        ),
    ],
)
def test_what_is_no_list_of_calls_or_too_much_is_none(text: str) -> None:
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
    found = arguments(f"[f(7, a=2, a={source}, **{{'b': 3}})]")
    assert found == {"a": value, None: {"b": 3}}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    ("language", "text", "calls"),
    [
        (
            "java",
            'a.b(c="x y", d = new int[]{1, 2}, e=(String) f, g=-5L, h=new T<A>(1, "i"), j=K.class)',
            Call(
                "a.b",
                {
                    "c": "x y",
                    "d": "new int[]{1,2}",
                    "e": "(String)f",
                    "g": "-5L",
                    "h": 'new T<A>(1, "i")',
                    "j": "K.class",
                },
            ),
        ),
        ("java", "[f(a=1)]", None),  # recovery refuses one argument without a semicolon
        ("java", "[f(a=1);]", Call("f", {"a": "1"})),
        ("java", '[f(a=new HashMap<>() {{ put("b", 1); }}, c=1)]', Call("f", {"a": "new HashMap<>()", "c": "1"})),
        ("java", '[f(a="é", b="xyz")]', Call("f", {"a": 'é"', "=": 'yz"'})),  # cut by bytes
        ("java", "[new A(f(a=b, c=d))]", Call("f", {"a": "b", "c": "d"})),
        ("java", "[a = 5;]", None),
        ("java", "[f(a=1, a=2)]", None),
        (
            "javascript",
            "[a.b(c='x y', d=\"z\", e=[1, 'f'], g={h: 1}, i=`j`, k=x => x, l=-1)]",
            Call("a.b", {"c": "x y", "d": "z", "e": "[1, 'f']", "g": "{h: 1}", "i": "`j`", "k": "x => x", "l": "-1"}),
        ),
        ("javascript", "[f(5, false, 'x', a=1)]", Call("f", {"a": "1"})),
        ("javascript", "[f(true, a=1)]", Call("f", {None: "true", "a": "1"})),
        ("javascript", "[f(x, true)]", None),
        ("javascript", "[f(a=1, a=2)]", None),
    ],
)
def test_java_and_javascript_calls_have_their_values_as_text(language: Language, text: str, calls: Call | None) -> None:
    assert decode(text, language) == (None if calls is None else (calls,))


def test_a_collection_of_more_characters_than_are_read_stays_text() -> None:
    for declared, language, items in (
        ("Array", "java", "any"),
        ("HashMap", "java", None),
        ("array", "javascript", "any"),
    ):
        text = {"Array": "new A[]{%s}", "HashMap": "new HashMap<>()%s", "array": "[%s]"}[declared]
        texts = [text % (" " * (size - len(text) + 2)) for size in (2048, 2049)]
        read = [read_value(each, language, declared, items) for each in texts]
        assert [isinstance(value, str) for value in read] == [False, True]


# --- keys ---------------------------------------------------------------------------------------------------


def function(name: str = "f", required: tuple[str, ...] = (), **types: Any) -> dict[str, Any]:
    properties = {n: t if isinstance(t, dict) else {"type": t} for n, t in types.items()}
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": list(required)}}


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
        ("x", {"type": "array"}, [["x"]], False),
    ],
)
def test_a_value_matches_by_type_and_by_what_the_key_lists(value: Any, schema: Any, values: Any, verdict: bool) -> None:
    key = [{"f": {"a": values}}]
    assert matches([Call("f", {"a": value})], key, [function(a=schema)], "simple") is verdict


@pytest.mark.parametrize(
    ("value", "schema", "values", "language", "verdict"),
    [
        ("5", "integer", [5], "java", True),
        (5, "integer", [5], "java", False),
        ("5", "long", [5], "java", False),
        ("1" * 5000, "integer", [5], "java", False),
        ("FINAL", "integer", ["FINAL"], "java", True),
        ("new String[]{a, b}", of("String", "Array"), [["a", "b"]], "java", True),
        ('new HashMap<>() {{ put("b", 1); }}', "HashMap", [{"b": [1]}], "java", True),
        ("new HashSet<>()", "Set", [[]], "java", False),
        ("[1, 2]", of("integer"), [[1, 2]], "javascript", True),
        (True, "Boolean", [True], "javascript", False),
    ],
)
def test_java_and_javascript_values_are_text_of_the_declared_type(
    value: Any, schema: Any, values: Any, language: Language, verdict: bool
) -> None:
    key = [{"f": {"a": values}}]
    assert matches([Call("f", {"a": value})], key, [function(a=schema)], "simple", language) is verdict


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


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_parallel_calls_match_in_any_order_each_once(order: tuple[int, ...]) -> None:
    offered = [function("f", a="integer"), function("g", a="integer")]
    key = [{"f": {"a": [1]}}, {"f": {"a": [2]}}, {"g": {"a": [1]}}]
    calls = [Call("f", {"a": 1}), Call("f", {"a": 2}), Call("g", {"a": 1})]
    assert matches([calls[i] for i in order], key, offered, "parallel")
    assert not matches([calls[0], calls[0], calls[2]], key, offered, "parallel")
    assert not matches(calls[:2], key, offered, "parallel")
    assert not matches([*calls, calls[0]], key, offered, "parallel")


def test_parallel_calls_are_matched_greedily_and_by_the_types_of_their_values() -> None:
    offered = [function(a="integer")]
    key = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    assert matches([Call("f", {"a": 2}), Call("f", {"a": 1})], key, offered, "parallel")
    # the first expected call takes a=1, which the second needs, though the other order would serve both
    assert not matches([Call("f", {"a": 1}), Call("f", {"a": 2})], key, offered, "parallel")
    mixed = [function(a="any"), function("g", a="boolean")]
    assert matches(
        [Call("f", {"a": 1}), Call("g", {"a": True})], [{"g": {"a": [True]}}, {"f": {"a": [1]}}], mixed, "parallel"
    )


@pytest.mark.parametrize("kind", ["multiple", "parallel"])
def test_a_call_is_held_against_the_first_function_that_the_key_names(kind: Kind) -> None:
    offered = [function("m.g", required=("z",), z="integer"), function(a="integer"), function(a="string")]
    assert matches([Call("f", {"a": 1})], [{"f": {"a": [1]}}], offered, kind)
    assert not matches([Call("f", {"a": "x"})], [{"f": {"a": ["X"]}}], offered, kind)
    assert not matches([Call("h", {"a": 1})], [{"h": {"a": [1]}}], offered, kind)
    assert matches([Call("m.g", {"z": 1})], [{"m.g": {"z": [1]}}], offered, kind)
    assert not matches([Call("m_g", {"z": 1})], [{"m.g": {"z": [1]}}], offered, kind)


def test_a_simple_row_has_one_function_whatever_the_key_calls_it() -> None:
    assert matches([Call("f", {"a": 1})], [{"other": {"a": [1]}}], [function(a="integer")], "simple")


# --- hostile text -------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_is_no_call_and_leaves_the_parser_usable(name: str, language: Language) -> None:
    limit = sys.getrecursionlimit()
    decode(BOMBS[name], language)
    assert sys.getrecursionlimit() == limit
    assert arguments("[f(a=b, c=d)]", language) == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "new A[]{",
            "new ArrayList<>() {{ add(",
            "new ArrayList<>(Arrays.asList(",
            "new HashMap<",
            'put("',
            '",',
            " ",
        ),
        *("[[1],", "[1],\n", "new Array([1], ", "a: ", "a, ", "]", ",", "{"),
    ],
)
def test_a_value_made_to_be_slow_is_read_within_seconds(piece: str) -> None:
    for language in ("java", "javascript"):
        for declared, known in TYPES[language].items():
            for start in ("", "new HashMap<>() {{ ", "new ArrayList<>() {{ ", "[[", "{"):
                began = process_time()
                read_value((start + piece * 2048)[:2048], language, declared, "any" if known.has_items else None)
                assert process_time() - began < 5


@pytest.mark.parametrize("language", LANGUAGES)
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


def test_nothing_in_an_answer_runs() -> None:
    before = set(sys.modules)
    for source in ("__import__('antigravity')", "__import__('antigravity') + 1", "(lambda: __import__('this'))() * 2"):
        for text in (f"[f(a={source})]", f"[{source}]", source, f"[f(a=[{source}][0] + 1)]"):
            decode(text)
    assert not {"antigravity", "this"} & (set(sys.modules) - before)


SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FRAGMENTS = (
    *"()[]{}<>,.:;=+-*/%&|^~!?@#$'\"`\\ \n\t\r\0é”\u2028\ud800",
    "f(", "f(a=", "lambda:", "lambda x:", "not ", "await ", "yield ", "**", "->", "=>", "new ", "new int[]{",
    "new A<", "{{", "'''", '"""', "f'{", "b'", "\\N{", "\\x", "\\u12", "0x", "1e999", "9" * 50, "//", "/*", "*/", "#",
    "for a in b ", "if a else ", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "</think>", "NaN",
    "null", "true", "async ", "class ", "::", "@interface ", "switch ", "...", ":=", "<<", ">>>", "instanceof ",
    "import ", "import(", "`${", "${", "?.", "/a/", "<!--",
)  # fmt: skip
KEPT = lines(VERDICTS)
ANSWERS = [text for each in KEPT for _, _, text, _ in each.get("answers", ())[1:]]
VALUES = [text for each in KEPT for *_, text, _ in each.get("values", ())]
PLACES = st.integers(0, 300)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="()[]{}<>\"'=,.:;*-+ \n\\#/afn1Ls", max_size=200),
    st.lists(
        st.sampled_from(FRAGMENTS) | st.builds(lambda t, i, j: t[i:j], st.sampled_from(ANSWERS), PLACES, PLACES),
        max_size=10,
    ).map("".join),
)
CUT_VALUES = st.lists(
    st.builds(lambda t, i, j: t[i:j], st.sampled_from(VALUES), st.integers(0, 60), st.integers(0, 60)), max_size=4
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@settings(SETTINGS, max_examples=800)
@given(TEXTS, st.sampled_from(LANGUAGES))
def test_any_text_is_calls_or_none(text: str, language: Language) -> None:
    for answer in (text, f"[f({text})]", f"[f(a={text}, b={text})]", f"<tool_call>{text}</tool_call>"):
        calls = decode(answer, language)
        assert calls is None or all(isinstance(call, Call) for call in calls)


@SETTINGS
@given(JSON | CUT_VALUES, JSON, st.sampled_from(LANGUAGES), st.data())
def test_any_value_matches_or_does_not(value: Any, option: Any, language: Language, data: st.DataObject) -> None:
    schema = of(
        *data.draw(st.tuples(st.sampled_from(sorted(TYPES[language])), st.sampled_from(sorted(TYPES[language]))))
    )
    calls, key = [Call("f", {"a": value})], [{"f": {"a": [option, ""]}}]
    assert matches(calls, key, [function(a=schema)], "simple", language) in (True, False)
