"""Function calling: the single-turn categories of the Berkeley function-calling leaderboard, version 4.

The model sees the functions as JSON and answers with a list of calls (or with JSON tool calls, which some templates
train). A call counts when the answer key allows its name and every value (`hubmerge/function_calls/match.py`);
irrelevance counts when nothing is called, relevance when anything is. Prompts are our own words, not the
leaderboard's; the verdict on an answer is its checker's. In Java and JavaScript rows the values are literals of that
language.

The dataset holds each row's parts as JSON text, because schemas differ from row to row
(`examples/datasets/bfcl/README.md` tells how it is made).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hubmerge.errors import EvaluationError
from hubmerge.function_calls import Kind, Language, decode, mismatch, write_answer
from hubmerge.tasks.base import Row, Rows, Task

REPO = "hubmerge/bfcl-v4"
NO_CALL = "None of the given functions can answer this."

_KINDS: Mapping[str, Kind] = {
    "simple_python": "simple",
    "simple_java": "simple",
    "simple_javascript": "simple",
    "multiple": "multiple",
    "parallel": "parallel",
    "parallel_multiple": "parallel",
    "live_simple": "simple",
    "live_multiple": "multiple",
    "live_parallel": "parallel",
    "live_parallel_multiple": "parallel",
}
CATEGORIES = (*_KINDS, "irrelevance", "live_irrelevance", "live_relevance")

_INSTRUCTIONS = """You can call the functions that are described below as JSON. Read the conversation and decide which \
calls do what the user asks: one call, several calls, or none.
Answer with nothing but a list of calls in this form:
[first_function(first_parameter=value, second_parameter=value), second_function(parameter=value)]
Name every argument, and give every parameter that is required. Use the functions' names exactly as they are \
written. If no function fits, or a required value cannot be known, call nothing and say so in words instead."""
_VALUES: Mapping[Language, str] = {
    "python": "Write the values as Python literals.",
    "java": "The functions belong to a Java 8 library: write the values as Java expressions of the declared types.",
    "javascript": "The functions belong to a JavaScript library: write the values as JavaScript expressions of the "
    "declared types.",
}
_SPEAKERS = {"system": "Instructions", "user": "User", "assistant": "Assistant"}


def _language(category: str) -> Language:
    return "java" if category == "simple_java" else "javascript" if category == "simple_javascript" else "python"


def _part(row: Row, name: str, kind: type) -> Any:
    """One of a row's parts that are JSON text."""
    try:
        value = json.loads(row[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise EvaluationError(
            "a row that is no function-calling question",
            where=f"{REPO}, row {str(row.get('id'))[:80]}",
            expected=f"{name!r} as JSON text of a {kind.__name__}",
            got=str(row.get(name))[:80],
        )
    return value


def _conversation(messages: list[Mapping[str, str]]) -> str:
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return "\n\n".join(f"{_SPEAKERS.get(message['role'], 'User')}: {message['content']}" for message in messages)


def _prompt(language: Language) -> Callable[[Row], str]:
    def prompt(row: Row) -> str:
        functions = json.dumps(_part(row, "function", list), ensure_ascii=False, indent=1)
        conversation = _conversation(_part(row, "question", list)[0])
        return f"{_INSTRUCTIONS}\n{_VALUES[language]}\n\nFunctions:\n{functions}\n\nConversation:\n{conversation}"

    return prompt


def _key_and_functions(row: Row) -> tuple[list[Any], list[Any]]:
    """The answer key, and of the functions what the match needs."""
    functions = [
        {"name": function["name"], "parameters": function["parameters"]} for function in _part(row, "function", list)
    ]
    return _part(row, "ground_truth", list), functions


def _match_task(category: str, kind: Kind) -> Task:
    language = _language(category)

    def reference(row: Row) -> dict[str, Any]:
        key, functions = _key_and_functions(row)
        names = {name for call in key for name in call}
        needed = functions[:1] if kind == "simple" else [f for f in functions if f["name"] in names]
        return {"key": key, "functions": needed}

    def score(answer: str, expected: Any) -> float:
        calls = decode(answer, language)
        if calls is None:
            return 0.0
        return float(mismatch(calls, expected["key"], expected["functions"], kind, language) is None)

    def gold(row: Row) -> str | None:
        key, functions = _key_and_functions(row)
        return write_answer(key, functions, kind, language)

    return _task(category, "ast_match", _prompt(language), reference, score, gold)


def _relevance_task(category: str) -> Task:
    relevant = category == "live_relevance"

    def reference(_: Row) -> bool:
        return relevant

    def score(answer: str, expected: Any) -> float:
        return float(bool(decode(answer)) == expected)

    def gold(row: Row) -> str:
        return f"[{_part(row, 'function', list)[0]['name']}()]" if relevant else NO_CALL

    metric = "calls" if relevant else "calls_nothing"
    return _task(category, metric, _prompt("python"), reference, score, gold)


def _task(
    category: str,
    metric: str,
    prompt: Callable[[Row], str],
    reference: Callable[[Row], Any],
    score: Callable[[str, Any], float],
    gold: Callable[[Row], str | None],
) -> Task:
    return Task(
        name=f"bfcl_{category}",
        title=f"BFCL v4: {category.replace('_', ' ')}",
        domain="tool",
        version=1,
        rows=Rows(REPO, subset=category, split="test", license="apache-2.0"),
        metric=metric,
        prompt=prompt,
        reference=reference,
        score=score,
        gold=gold,
        max_new_tokens=2048,
        source="https://gorilla.cs.berkeley.edu/leaderboard.html",
    )


TASKS = (
    *(_match_task(category, kind) for category, kind in _KINDS.items()),
    *(_relevance_task(category) for category in CATEGORIES if category not in _KINDS),
)
