"""The text of an answer → its calls.

The answer itself shows its syntax: tags of tool calls, else one JSON list or object, else the syntax that the task asks
for. As in bfcl-eval, reasoning up to `</think>` and the ticks of a code fence are cut off, and a missing bracket of the
list at either end is added; the rest must be a list of calls and nothing else.

JSON tool calls are what chat templates with tools ask for, in tags or as the whole answer:

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

or a list of `{"name", "arguments"}` (also `"parameters"`, also `"function"` for the name). As in bfcl-eval's handler
of Qwen's tags, a block that is no JSON is passed over and one without name or arguments spoils the whole answer.
Beyond it, a block may hold several objects, and the line breaks inside the tags are free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hubmerge.evaluation.function_calls.calls import Call, Language, NotACallError, check_bounds
from hubmerge.evaluation.function_calls.python_syntax import parse_python
from hubmerge.evaluation.function_calls.tree_syntax import parse_java, parse_javascript

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_PARSERS: Mapping[Language, Callable[[str], tuple[Call, ...]]] = {
    "python": parse_python,
    "java": lambda text: parse_java(text[1:-1]),
    "javascript": lambda text: parse_javascript(text[1:-1]),
}


def decode(text: str, language: Language = "python") -> tuple[Call, ...] | None:
    """The calls of an answer, () for an empty list; None if it is no list of calls."""
    text = text.rsplit("</think>", 1)[-1]
    try:
        check_bounds(text)
        if _OPENING in text:
            return tuple(_call(value) for block in _blocks(text) for value in _objects(block))
        text = text.strip("`\n ")
        bare = text.removeprefix("json").strip()
        if bare.startswith("{") or (bare.startswith("[") and bare[1:].lstrip().startswith("{")):
            try:
                return _json_calls(bare)
            except NotACallError:
                pass  # `[{}.f(a=1)]` is Python
        text = text if text.startswith("[") else "[" + text
        text = text if text.endswith("]") else text + "]"
        return _PARSERS[language](text)
    except NotACallError:
        return None


def _json_calls(text: str) -> tuple[Call, ...]:
    """The calls of an answer that is one JSON list or object; NotACallError if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotACallError("not JSON") from error
    return tuple(_call(item) for item in (value if isinstance(value, list) else [value]))


def _blocks(text: str) -> Iterator[str]:
    position = 0
    while (start := text.find(_OPENING, position)) >= 0:
        end = text.find(_CLOSING, start)
        if end < 0:
            return
        yield text[start + len(_OPENING) : end].strip()
        position = end + len(_CLOSING)


def _objects(block: str) -> list[Any]:
    decoder, values, position = json.JSONDecoder(), [], 0
    while position < len(block):
        try:
            value, position = decoder.raw_decode(block, position)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        while position < len(block) and block[position].isspace():
            position += 1
    return values


def _call(value: Any) -> Call:
    if isinstance(value, dict):
        name = value.get("name", value.get("function"))
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(name, str) and isinstance(arguments, dict):
            return Call(name, arguments)
    raise NotACallError("not a tool call")
