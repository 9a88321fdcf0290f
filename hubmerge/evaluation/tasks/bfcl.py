"""Function calling: the single-turn categories of the Berkeley function-calling leaderboard, version 4.

The model sees the functions as JSON and answers with a list of calls (or with JSON tool calls, which some templates
train). A call counts when the answer key allows its name and every value (`function_calls/match.py`);
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
from hubmerge.evaluation.function_calls import Kind, Language, decode, mismatch, write_answer
from hubmerge.evaluation.tasks.base import Row, Rows, Task

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
_NO_PARAMETERS: Mapping[str, Any] = {"type": "dict", "properties": {}, "required": []}
_BLANK = {
    "function": json.dumps([{"name": "{name}", "description": "{description}", "parameters": _NO_PARAMETERS}]),
    "question": json.dumps([[{"role": "user", "content": "{question}"}]]),
}
_SPEAKERS = {"system": "Instructions", "user": "User", "assistant": "Assistant"}


def _language(category: str) -> Language:
    return "java" if category == "simple_java" else "javascript" if category == "simple_javascript" else "python"


def _malformed(row: Row, expected: str, got: object) -> EvaluationError:
    where = f"{REPO}, row {str(row.get('id'))[:80]}"
    return EvaluationError("no function-calling question", where=where, expected=expected, got=str(got)[:80])


def _part(row: Row, name: str) -> list[Any]:
    """One of a row's parts that are JSON text of a list."""
    try:
        value = json.loads(row[name])
    except (KeyError, TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        raise _malformed(row, f"{name!r} as JSON text of a list", row.get(name))
    return value


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str) and isinstance(value.get("items", {}), dict)


def _functions(row: Row) -> list[dict[str, Any]]:
    functions = _part(row, "function")
    for function in functions:
        if not (
            isinstance(function, dict)
            and isinstance(function.get("name"), str)
            and isinstance(parameters := function.get("parameters"), dict)
            and isinstance(properties := parameters.get("properties"), dict)
            and isinstance(required := parameters.get("required"), list)
            and all(isinstance(name, str) for name in required)
            and all(_is_schema(schema) for schema in properties.values())
        ):
            raise _malformed(row, "functions with name and parameters, each of a type", function)
    return functions


def _key(row: Row) -> list[dict[str, Any]]:
    key = _part(row, "ground_truth")
    for call in key:
        values = list(call.values()) if isinstance(call, dict) else []
        if len(values) != 1 or not isinstance(values[0], dict) or any(type(v) is not list for v in values[0].values()):
            raise _malformed(row, "a key of {name: {parameter: [allowed values]}}", call)
    return key


def _conversation(row: Row) -> str:
    messages = next(iter(_part(row, "question")), None)
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    ):
        raise _malformed(row, "a question of messages with role and content", row["question"])
    if len(messages) == 1 and messages[0]["role"] == "user":
        return str(messages[0]["content"])
    return "\n\n".join(f"{_SPEAKERS.get(m['role'], 'User')}: {m['content']}" for m in messages)


def _prompt(language: Language) -> Callable[[Row], str]:
    def prompt(row: Row) -> str:
        functions = json.dumps(_functions(row), ensure_ascii=False, indent=1)
        return f"{_INSTRUCTIONS}\n{_VALUES[language]}\n\nFunctions:\n{functions}\n\nConversation:\n{_conversation(row)}"

    return prompt


def _needed(row: Row, kind: Kind) -> list[dict[str, Any]]:
    """The parts of the functions that a match needs."""
    functions = [{"name": f["name"], "parameters": f["parameters"]} for f in _functions(row)]
    if kind == "simple":
        if not functions:
            raise _malformed(row, "a function", "none")
        return functions[:1]
    names = {name for call in _key(row) for name in call}
    return [function for function in functions if function["name"] in names]


def _match_task(category: str, kind: Kind) -> Task:
    language = _language(category)

    def reference(row: Row) -> dict[str, Any]:
        return {"key": _key(row), "functions": _needed(row, kind)}

    def score(answer: str, expected: Any) -> float:
        calls = decode(answer, language)
        if calls is None:
            return 0.0
        return float(mismatch(calls, expected["key"], expected["functions"], kind, language) is None)

    def gold(row: Row) -> str | None:
        return write_answer(_key(row), _needed(row, kind), kind, language)

    return _task(category, "ast_match", _prompt(language), reference, score, gold)


def _relevance_task(category: str) -> Task:
    relevant = category == "live_relevance"

    def reference(_: Row) -> bool:
        return relevant

    def score(answer: str, expected: Any) -> float:
        return float(bool(decode(answer)) == expected)

    def gold(row: Row) -> str:
        return f"[{_functions(row)[0]['name']}()]" if relevant else NO_CALL

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
        blank=_BLANK,
        source="https://gorilla.cs.berkeley.edu/leaderboard.html",
    )


TASKS = (
    *(_match_task(category, kind) for category, kind in _KINDS.items()),
    *(_relevance_task(category) for category in CATEGORIES if category not in _KINDS),
)
