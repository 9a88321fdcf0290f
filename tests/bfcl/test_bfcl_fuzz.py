"""No text makes the decoders or the converters of values raise, hang or execute anything."""

from __future__ import annotations

import random
import sys
from typing import Any

from bfcl_fuzz import FRAGMENTS, LANGUAGES, converted, seeds, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubmerge.evaluation.function_calls import Call, Language, decode, matches

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FUNCTION = {
    "name": "f",
    "parameters": {
        "properties": {
            t: {"type": t, "items": {"type": "dict"}} for t in ("string", "integer", "float", "array", "dict")
        },
        "required": [],
    },
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
PLACES = st.integers(0, 300)
CUT_ANSWERS = st.builds(lambda text, start, end: text[start:end], st.sampled_from(seeds()), PLACES, PLACES)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="()[]{}<>\"'=,.:;*-+ \n\\#/afn1Ls", max_size=200),
    st.lists(st.sampled_from(FRAGMENTS) | CUT_ANSWERS, max_size=10).map("".join),
)


def read(text: str, language: Language) -> None:
    calls = decode(text, language)
    assert calls is None or all(isinstance(call, Call) for call in calls)


def test_mutated_values_are_converted_or_stay_text() -> None:
    for value in values(random.Random(7), 20_000):
        assert converted(value) != "raised"


@settings(SETTINGS, max_examples=800)
@given(TEXTS, st.sampled_from(LANGUAGES))
def test_any_text_is_calls_or_none(text: str, language: Language) -> None:
    for answer in (text, f"[f({text})]", f"[f(a={text}, b={text})]", f"<tool_call>{text}</tool_call>"):
        read(answer, language)


@SETTINGS
@given(JSON, JSON, st.sampled_from(sorted(FUNCTION["parameters"]["properties"])))  # type: ignore[index]
def test_any_value_matches_or_does_not(value: Any, option: Any, declared: str) -> None:
    calls, key = [Call("f", {declared: value})], [{"f": {declared: [option, ""]}}]
    assert matches(calls, key, [FUNCTION], "simple") in (True, False)


def test_nothing_in_an_answer_runs() -> None:
    before = set(sys.modules)
    for source in ("__import__('antigravity')", "__import__('antigravity') + 1", "(lambda: __import__('this'))() * 2"):
        for text in (f"[f(a={source})]", f"[{source}]", source, f"[f(a=[{source}][0] + 1)]"):
            read(text, "python")
    assert not {"antigravity", "this"} & (set(sys.modules) - before)
