"""Our verdicts are those of bfcl-eval 2026.3.23, on a gold answer to every row and on damaged ones. What these do not
reach of calls and keys, by hand; and text made to do harm.

verdicts.jsonl.gz keeps what it said of a gold answer to each row, and of damaged ones: one argument's value, a call or
the list of calls, or the text was changed. Of every kind of damage each category has an answer for every reason that it
gave among about 300 rows. Then come texts of Java and JavaScript values, with what its converters make of them.
"""

import gzip
import json
import sys
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from task_helpers import own_task

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.function_calls.decode import Call, decode
from hubmerge.evaluation.function_calls.match import matches
from hubmerge.evaluation.function_calls.values import TYPES, Language, read_value
from hubmerge.evaluation.tasks.bfcl import CATEGORIES

pytest.importorskip("tree_sitter_java", reason="tree-sitter 0.21 has no build for this Python: docs/evaluation.md")

BFCL = Path(__file__).resolve().parents[2] / "examples" / "datasets" / "bfcl"


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def rows(category: str) -> list[dict[str, Any]]:
    return lines(BFCL / "data" / f"{category}.jsonl.gz")


KEPT = lines(Path(__file__).with_name("verdicts.jsonl.gz"))
LANGUAGES: tuple[Language, ...] = ("python", "java", "javascript")


# published keys that no answer can match; bfcl-eval refuses every answer to them as well
CONTRADICTORY = {
    "simple_java_36": "items of ArrayList<any> stay text, and the key has the number 42 and true among them",
    "simple_java_65": "items of ArrayList<any> stay text, and the key has true among them",
    "live_simple_106-63-0": "auto_loan_payment_start and bank_hours_start are required and have no allowed value",
    "live_simple_112-68-0": "acc_routing_start and others are required and have no allowed value",
    "live_multiple_862-181-3": "journey_start_time has to be given, and the function has no such parameter",
    "live_multiple_964-207-0": "statement is required, and the key does not allow it",
}


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_verdicts_are_those_that_bfcl_eval_gave(category):
    own = own_task(f"bfcl_{category}")
    kept = {each["row"]: each["answers"] for each in KEPT if each.get("category") == category}
    differing, without_gold = [], set()
    for row in rows(category):
        reference = json.loads(json.dumps(own.reference(row)))  # as it passes from process to process
        answers = kept.pop(row["id"])
        differing += [(row["id"], *a) for a in answers if own.score(a[2], reference) != float(a[3])]
        if not any(valid for kind, _, _, valid in answers if kind == "gold"):
            without_gold.add(row["id"])
    assert differing == []
    assert kept == {}
    assert without_gold == {name for name in CONTRADICTORY if name.rsplit("_", 1)[0] == category}


def test_java_and_javascript_values_are_converted_as_bfcl_eval_converts_them():
    def converted(*value: Any) -> str:
        language, declared, items, text = value
        try:
            return repr(read_value(text, language, declared, items))
        except (ValueError, OverflowError):
            return "raised"

    [values] = [each["values"] for each in KEPT if "values" in each]
    assert [value for *value, theirs in values if converted(*value) != theirs] == []


def test_the_card_names_every_category_and_its_rows():
    card = (BFCL / "README.md").read_text(encoding="utf-8")
    for category in CATEGORIES:
        path = f"data/{category}.jsonl.gz"
        assert f"- config_name: {category}\n  data_files:\n  - split: test\n    path: {path}\n" in card
        assert f"| {category} | {len(rows(category))} |" in card


def test_the_client_of_data_sets_reads_every_category(tmp_path):
    from datasets import load_dataset

    for category in ("simple_java", "live_relevance", "irrelevance"):
        loaded = load_dataset(str(BFCL), category, split="test", cache_dir=str(tmp_path))
        assert [dict(row) for row in loaded] == rows(category)


def test_the_prompt_holds_the_functions_the_form_and_the_whole_conversation():
    row = rows("simple_python")[0]
    prompt = own_task("bfcl_simple_python").prompt(row)
    function = json.loads(row["function"])[0]
    assert function["name"] in prompt
    assert function["description"] in prompt
    assert prompt.endswith(json.loads(row["question"])[0][0]["content"])
    assert "Java " not in prompt
    assert "Java 8" in own_task("bfcl_simple_java").prompt(rows("simple_java")[0])
    talk = next(r for r in rows("live_irrelevance") if '"role": "assistant"' in r["question"])
    talked = own_task("bfcl_live_irrelevance").prompt(talk)
    for message in json.loads(talk["question"])[0]:
        assert message["content"] in talked
    assert "\n\nAssistant: " in talked
    calls = decode(next(line for line in prompt.splitlines() if line.startswith("[first_function")))
    assert calls is not None
    assert [call.name for call in calls] == ["first_function", "second_function"]


# --- calls ---------------------------------------------------------------------------------------------------


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
def test_every_way_to_write_calls_gives_the_same_calls(text):
    assert decode(text) == (Call("f", {"a": 1}), Call("g.h", {"b": "x"}))


@pytest.mark.parametrize("text", ["", "[]", "```\n[]\n```", "<think>f(a=1)</think>", "<tool_call>\nno\n</tool_call>"])
def test_an_empty_list_is_no_call(text):
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
def test_what_is_no_list_of_calls_or_too_much_is_none(text):
    assert decode(text) is None


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("...", "..."),
        ("f(1, x)", "f(1, x)"),
        ("f(b=1)", {"f": {"b": 1}}),
        ("(1, [2])", (1, [2])),
        ("2 * 3 + [4][0]", 10),
        ("2 * 'ab'", "abab"),
        ("'\\d'", "\\d"),
    ],
)
def test_an_argument_becomes_what_the_reference_makes_of_it(source, value):
    found = arguments(f"[f(7, a=2, a={source}, **{{'b': 3}})]")
    assert found == {"a": value, None: {"b": 3}}
    assert type(found["a"]) is type(value)


def test_java_and_javascript_values_stay_text():
    java = 'a.b(c="x y", d = new int[]{1, 2}, e=(String) f, g=new T<A>(1, "i"), h=new HashMap<>() {{ put("b", 1); }})'
    read = {"c": "x y", "d": "new int[]{1,2}", "e": "(String)f", "g": 'new T<A>(1, "i")', "h": "new HashMap<>()"}
    assert decode(java, "java") == (Call("a.b", read),)
    javascript = "[a.b(true, c='x y', d=[1, 'f'], e={g: 1}, h=x => x)]"
    read = {"c": "x y", "d": "[1, 'f']", "e": "{g: 1}", "h": "x => x"}
    assert decode(javascript, "javascript") == (Call("a.b", {None: "true", **read}),)
    assert decode("[f.g]", "javascript") is None


@pytest.mark.parametrize(
    ("language", "declared", "text"),
    [
        ("java", "Array", "new A[]{%s}"),
        ("java", "ArrayList", "new ArrayList<>()%s"),
        ("java", "HashMap", "new HashMap<>()%s"),
        ("javascript", "array", "[%s]"),
        ("javascript", "dict", "{%s}"),
    ],
)
def test_a_collection_of_more_characters_than_are_read_stays_text(language, declared, text):
    texts = [text % ("a" * (size - len(text) + 2)) for size in (2048, 2049)]
    assert [isinstance(read_value(each, language, declared), str) for each in texts] == [False, True]


# --- keys ---------------------------------------------------------------------------------------------------


def function(name: str = "f", **types: Any) -> dict[str, Any]:
    properties = {n: t if isinstance(t, dict) else {"type": t} for n, t in types.items()}
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": []}}


def of(item: str, declared: str = "array") -> dict[str, Any]:
    return {"type": declared, "items": {"type": item}}


@pytest.mark.parametrize(
    ("language", "value", "schema", "values", "verdict"),
    [
        ("python", 5, "integer", [5], True),
        ("python", True, "integer", [1], False),
        ("python", 5, "float", [5.0], True),
        ("python", 10**400, "float", [5.0], False),
        ("python", "a_b-c.d/e*f^g,h", "string", ["ABCDEFGH"], True),
        ("python", "XY", "integer", ["x_y"], False),  # a variable: exact, in the key's type
        ("python", [1, 2.0], of("integer"), [[1, 2]], False),
        ("python", (1, 2), of("integer"), [[1, 2]], False),
        ("python", (1, 2), of("integer", "tuple"), [[1, 2]], True),
        ("python", [1, 2], of("integer", "tuple"), [[1, 2]], True),
        ("python", ["x"], {"type": "array"}, [["x"]], False),
        ("python", {"b": "X y"}, "dict", [{"b": ["xy"]}], True),
        ("python", [{"b": 1}, {"b": 2}], of("dict"), [[{"b": [1]}, {"b": [2]}]], True),
        ("python", [{"b": 1}], of("dict"), [[{"b": [1]}, {"b": [2]}]], False),
        ("python", [1], of("dict"), [[{"b": [1]}], ""], False),
        ("java", "5", "integer", [5], True),
        ("java", 5, "integer", [5], False),
        ("java", "1" * 5000, "integer", [5], False),
        ("java", "new HashSet<>()", "Set", [[]], False),
        ("javascript", True, "Boolean", [True], False),
    ],
)
def test_a_value_matches_by_type_and_key(language, value, schema, values, verdict):
    key = [{"f": {"a": values}}]
    assert matches([Call("f", {"a": value})], key, [function(a=schema)], language, simple=True) is verdict


@pytest.mark.parametrize(
    "parts",
    [
        {"ground_truth": "{}"},
        {"function": "nothing"},
        {"function": None},
        {"function": "[1]"},
        {"function": '[{"name": "f"}]'},
        {"function": "[" * 100_000},
        {"function": '[{"name": "f", "parameters": {}}]', "ground_truth": "[1]"},
        {"function": '[{"name": "f", "parameters": {}}]', "ground_truth": '[{"f": 1}]'},
        {"function": '[{"name": "f", "parameters": {}}]', "question": '[[{"role": 1}]]'},
    ],
)
def test_a_row_of_another_shape_is_refused_by_name(parts):
    own = own_task("bfcl_simple_python")
    good = rows("simple_python")[0]
    assert own.reference(good)
    assert own.prompt(good)
    row = {"id": "x", "question": "[]", "function": "[]", "ground_truth": "[]", **parts}
    for read in (own.reference, own.prompt):
        with pytest.raises(EvaluationError, match="row x"):
            read(row)


def test_parallel_calls_are_matched_greedily_and_by_the_types_of_their_values():
    offered = [function(a="integer")]
    key = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    assert matches([Call("f", {"a": 2}), Call("f", {"a": 1})], key, offered)
    # the first expected call takes a=1, which the second needs, though the other order would serve both
    assert not matches([Call("f", {"a": 1}), Call("f", {"a": 2})], key, offered)
    mixed = [function(a="any"), function("g", a="boolean")]
    calls = [Call("f", {"a": 1}), Call("g", {"a": True})]
    assert matches(calls, [{"g": {"a": [True]}}, {"f": {"a": [1]}}], mixed)


def test_a_call_is_held_against_the_first_function_that_the_key_names():
    offered = [function("g"), function(a="integer"), function(a="string")]
    assert matches([Call("f", {"a": 1})], [{"f": {"a": [1]}}], offered)
    assert not matches([Call("f", {"a": "x"})], [{"f": {"a": ["X"]}}], offered)
    assert not matches([Call("h", {"a": 1})], [{"h": {"a": [1]}}], offered)


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
def test_a_bomb_is_no_call_and_leaves_the_parser_usable(name, language):
    limit = sys.getrecursionlimit()
    decode(BOMBS[name], language)
    assert sys.getrecursionlimit() == limit
    assert arguments("[f(a=b, c=d)]", language) == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    "piece",
    [
        *("new A[]{", "new ArrayList<>() {{ add(", "new ArrayList<>(Arrays.asList(", "new HashMap<"),
        *('put("', '",', " "),
        *("[[1],", "[1],\n", "new Array([1], ", "a: ", "a, ", "]", ",", "{"),
    ],
)
def test_a_value_made_to_be_slow_is_read_within_seconds(piece):
    for language in ("java", "javascript"):
        for declared, known in TYPES[language].items():
            for start in ("", "new HashMap<>() {{ ", "new ArrayList<>() {{ ", "[[", "{"):
                began = process_time()
                read_value((start + piece * 2048)[:2048], language, declared, "any" if known.has_items else None)
                assert process_time() - began < 5


@pytest.mark.parametrize("language", LANGUAGES)
def test_ninety_brackets_may_be_open_at_once(language):
    opening, closing = ("[", "]") if language != "java" else ("(", ")")
    texts = [f"[f(b=c, a={opening * depth}5{closing * depth})]" for depth in (88, 89)]
    assert [decode(text, language) is None for text in texts] == [False, True]


@pytest.mark.parametrize(("language", "most"), [("python", 65_536), ("java", 2050), ("javascript", 2050)])
def test_answers_of_more_characters_than_are_read_are_no_call(language, most):
    # Java and JavaScript are parsed without the outer brackets
    texts = [f"[f(b=c, a={'x' * (size - 12)})]" for size in (most, most + 1)]
    assert [len(text) for text in texts] == [most, most + 1]
    assert [decode(text, language) is None for text in texts] == [False, True]


def test_nothing_in_an_answer_runs():
    before = set(sys.modules)
    for source in ("__import__('antigravity')", "__import__('antigravity') + 1", "(lambda: __import__('this'))() * 2"):
        for text in (f"[f(a={source})]", f"[{source}]", source, f"[f(a=[{source}][0] + 1)]"):
            decode(text)
    assert not {"antigravity", "this"} & (set(sys.modules) - before)


SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ANSWERS = [text for each in KEPT for _, _, text, _ in each.get("answers", ())[1:]]
VALUES = [text for each in KEPT for *_, text, _ in each.get("values", ())]
PLACES = st.integers(0, 300)
TEXTS = st.lists(
    st.text(alphabet="()[]{}<>\"'=,.:;*-+ \n\\#/afn1Ls\0\ud800", max_size=20)
    | st.builds(lambda t, i, j: t[i:j], st.sampled_from([*ANSWERS, *BOMBS.values()]), PLACES, PLACES),
    max_size=10,
).map("".join)
CUT_VALUES = st.lists(
    st.builds(lambda t, i, j: t[i:j], st.sampled_from(VALUES), st.integers(0, 60), st.integers(0, 60)), max_size=4
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@settings(SETTINGS, max_examples=200)
@given(TEXTS, st.sampled_from(LANGUAGES))
def test_any_text_is_calls_or_none(text, language):
    for answer in (text, f"[f({text})]", f"[f(a={text}, b={text})]", f"<tool_call>{text}</tool_call>"):
        calls = decode(answer, language)
        assert calls is None or all(isinstance(call, Call) for call in calls)


@SETTINGS
@given(JSON | CUT_VALUES, JSON, st.sampled_from(LANGUAGES), st.data())
def test_any_value_matches_or_does_not(value, option, language, data):
    schema = of(
        *data.draw(st.tuples(st.sampled_from(sorted(TYPES[language])), st.sampled_from(sorted(TYPES[language]))))
    )
    calls, key = [Call("f", {"a": value})], [{"f": {"a": [option, ""]}}]
    assert matches(calls, key, [function(a=schema)], language, simple=True) in (True, False)
