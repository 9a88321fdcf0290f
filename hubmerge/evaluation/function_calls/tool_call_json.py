"""JSON tool calls: what chat templates with tools ask for, in tags or as the whole answer.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

or a list of `{"name", "arguments"}` (also `"parameters"`, also `"function"` for the name). As in bfcl-eval's handler
of Qwen's tags, a block that is no JSON is passed over and one without name or arguments spoils the whole answer.
Beyond it, a block may hold several objects, and the line breaks inside the tags are free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hubmerge.evaluation.function_calls.calls import Call, NotACallError

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def parse_tagged(text: str) -> tuple[Call, ...]:
    """The calls of all tags; NotACallError if one of them is something else."""
    return tuple(_call(value) for block in _blocks(text) for value in _objects(block))


def parse_json(text: str) -> tuple[Call, ...]:
    """The calls of an answer that is one JSON list or object; NotACallError if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotACallError("not JSON") from error
    return tuple(_call(item) for item in (value if isinstance(value, list) else [value]))


def _blocks(text: str) -> Iterator[str]:
    position = 0
    while (start := text.find(OPENING, position)) >= 0:
        end = text.find(CLOSING, start)
        if end < 0:
            return
        yield text[start + len(OPENING) : end].strip()
        position = end + len(CLOSING)


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
