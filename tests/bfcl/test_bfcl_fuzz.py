"""No text makes the decoders or the converters of values raise, hang or execute anything."""

from __future__ import annotations

import random
import sys
from typing import Any

from bfcl_fuzz import LANGUAGES, LISTS, TYPES, converted, mutated, seeds, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hubmerge.evaluation.function_calls import Call, Language, decode, mismatch

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


def read(text: str, language: Language) -> None:
    calls = decode(text, language)
    assert calls is None or all(isinstance(call, Call) for call in calls)


def test_mutated_answers_are_calls_or_none() -> None:
    random_, texts = random.Random(7), seeds()
    for _ in range(1500):
        text = mutated(random_, texts)
        for language in LANGUAGES:
            read(text, language)


def test_mutated_values_are_converted_or_stay_text() -> None:
    for value in values(random.Random(7), 20_000):
        assert converted(value) != "raised"


@SETTINGS
@given(st.text(max_size=300), st.sampled_from(LANGUAGES))
def test_any_text_is_calls_or_none(text: str, language: Language) -> None:
    read(text, language)
    read(f"[f({text})]", language)
    read(f"<tool_call>{text}</tool_call>", language)


@SETTINGS
@given(st.text(alphabet="()[]{}<>\"'=,.:;*-+ \n\\#/afn1Ls", max_size=200), st.sampled_from(LANGUAGES))
def test_any_punctuation_is_calls_or_none(text: str, language: Language) -> None:
    read(text, language)
    read(f"[f(a={text}, b={text})]", language)


@SETTINGS
@given(st.text(alphabet="[](){},:\"' \nnewArrayListHshMp<>.s1putad;\\", max_size=120), st.data())
def test_any_value_has_a_type_or_stays_text(text: str, data: st.DataObject) -> None:
    language = data.draw(st.sampled_from(("java", "javascript")))
    declared = data.draw(st.sampled_from((*TYPES[language], *LISTS[language])))
    assert converted((language, declared, data.draw(st.sampled_from(TYPES[language])), text)) != "raised"


@SETTINGS
@given(JSON, JSON, st.sampled_from(sorted(FUNCTION["parameters"]["properties"])))  # type: ignore[index]
def test_any_value_matches_or_does_not(value: Any, option: Any, declared: str) -> None:
    calls, key = [Call("f", {declared: value})], [{"f": {declared: [option, ""]}}]
    reason = mismatch(calls, key, [FUNCTION], "simple")
    assert reason in (None, f"{declared} is wrong")


def test_nothing_in_an_answer_runs() -> None:
    before = set(sys.modules)
    for source in ("__import__('antigravity')", "__import__('antigravity') + 1", "(lambda: __import__('this'))() * 2"):
        for text in (f"[f(a={source})]", f"[{source}]", source, f"[f(a=[{source}][0] + 1)]"):
            read(text, "python")
    assert not {"antigravity", "this"} & (set(sys.modules) - before)
