"""The text of an answer → its calls.

The answer itself shows its syntax: tags of tool calls, else one JSON list or object, else the syntax that the task asks
for. As in bfcl-eval, reasoning up to `</think>` and the ticks of a code fence are cut off, and a missing bracket of the
list at either end is added; the rest must be a list of calls and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hubmerge.evaluation.function_calls import tool_call_json
from hubmerge.evaluation.function_calls.calls import Call, Language, NotACallError, check_bounds
from hubmerge.evaluation.function_calls.python_syntax import parse_python
from hubmerge.evaluation.function_calls.tree_syntax import parse_java, parse_javascript

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
        if tool_call_json.OPENING in text:
            return tool_call_json.parse_tagged(text)
        text = text.strip("`\n ")
        bare = text.removeprefix("json").strip()
        if bare.startswith("{") or (bare.startswith("[") and bare[1:].lstrip().startswith("{")):
            try:
                return tool_call_json.parse_json(bare)
            except NotACallError:
                pass  # `[{}.f(a=1)]` is Python
        text = text if text.startswith("[") else "[" + text
        text = text if text.endswith("]") else text + "]"
        return _PARSERS[language](text)
    except NotACallError:
        return None
