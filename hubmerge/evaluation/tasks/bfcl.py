"""Function calling: the single-turn categories of the Berkeley function-calling leaderboard, version 4
(https://gorilla.cs.berkeley.edu/leaderboard.html; its rows are under Apache-2.0).

The model sees the functions as JSON and answers with a list of calls (or with JSON tool calls, which some templates
train). A call counts when the answer key allows its name and every value (`function_calls/match.py`);
irrelevance counts when nothing is called, relevance when anything is. Prompts are our own words, not the
leaderboard's; the verdict on an answer is its checker's. In Java and JavaScript rows the values are literals of that
language.

The dataset holds each row's parts as JSON text, because schemas differ from row to row
(`examples/datasets/bfcl/README.md` tells how it is made).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.function_calls.decode import decode
from hubmerge.evaluation.function_calls.match import matches
from hubmerge.evaluation.function_calls.values import Language
from hubmerge.evaluation.result import first_reason
from hubmerge.evaluation.tasks.base import Row, Rows, Task

REPO = "hubmerge/bfcl-v4"

_LANGUAGES: Mapping[str, Language] = {"simple_java": "java", "simple_javascript": "javascript"}
CATEGORIES = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)

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


def _malformed(row: Row, expected: str, got: object) -> EvaluationError:
    where = f"{REPO}, row {str(row.get('id'))[:80]}"
    return EvaluationError("no function-calling question", where=where, expected=expected, got=str(got)[:80])


class _Schema(BaseModel):
    type: str
    items: dict[str, Any] = {}


class _Parameters(BaseModel):
    properties: dict[str, _Schema]
    required: list[str]


class _Function(BaseModel):
    name: str
    parameters: _Parameters


class _Message(BaseModel):
    role: str
    content: str


_Call = Annotated[dict[str, dict[str, list[Any]]], Field(min_length=1, max_length=1)]
_FUNCTIONS = TypeAdapter(list[_Function])
_KEY = TypeAdapter(list[_Call])
_QUESTION: TypeAdapter[Any] = TypeAdapter(Annotated[list[list[_Message]], Field(min_length=1)])


def _part(row: Row, name: str, kind: TypeAdapter[Any], expected: str) -> list[Any]:
    """One of a row's parts that are JSON text of a list."""
    try:
        value: list[Any] = json.loads(row[name])
        kind.validate_python(value, strict=True)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _malformed(row, f"{name!r} as JSON text of {expected}", first_reason(error)) from None
    return value


def _functions(row: Row) -> list[dict[str, Any]]:
    return _part(row, "function", _FUNCTIONS, "a list of functions with name and parameters, each of a type")


def _conversation(row: Row) -> str:
    messages, *_ = _part(row, "question", _QUESTION, "a list of messages with role and content")
    if len(messages) == 1 and messages[0]["role"] == "user":
        return str(messages[0]["content"])
    return "\n\n".join(f"{_SPEAKERS.get(m['role'], 'User')}: {m['content']}" for m in messages)


def _task(category: str) -> Task:
    language, simple = _LANGUAGES.get(category, "python"), "simple" in category
    # there is no key where it counts alone whether anything is called
    keyed, relevant = "relevance" not in category, category == "live_relevance"

    def prompt(row: Row) -> str:
        functions = json.dumps(_functions(row), ensure_ascii=False, indent=1)
        return f"{_INSTRUCTIONS}\n{_VALUES[language]}\n\nFunctions:\n{functions}\n\nConversation:\n{_conversation(row)}"

    def reference(row: Row) -> Any:
        if not keyed:
            return relevant
        key = _part(row, "ground_truth", _KEY, "a list of {name: {parameter: [allowed values]}}")
        functions = [{"name": f["name"], "parameters": f["parameters"]} for f in _functions(row)]
        if simple and not functions:
            raise _malformed(row, "a function", "none")
        named = {name for call in key for name in call}
        needed = functions[:1] if simple else [function for function in functions if function["name"] in named]
        return {"key": key, "functions": needed}

    def score(answer: str, expected: Any) -> float:
        calls = decode(answer, language)
        if not keyed:
            return float(bool(calls) == expected)
        asked = expected["key"], expected["functions"], language
        return float(calls is not None and matches(calls, *asked, simple=simple))

    return Task(
        name=f"bfcl_{category}",
        title=f"BFCL v4: {category.replace('_', ' ')}",
        domain="tool",
        rows=Rows(REPO, subset=category, split="test"),
        metric="ast_match" if keyed else "calls" if relevant else "calls_nothing",
        prompt=prompt,
        reference=reference,
        score=score,
        max_new_tokens=2048,
        blank=_BLANK,
        needs=() if language == "python" else ("tree_sitter", f"tree_sitter_{language}"),
    )


TASKS = tuple(map(_task, CATEGORIES))
