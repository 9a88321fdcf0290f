"""The text of an answer that an answer key allows: the first allowed value of every parameter.

A parameter whose only allowed value is "", or that the function does not have, is left out unless that is forbidden.
Values are written as literals of the language where such a literal is read back as the value (`match.py`,
`java_values.py` and `javascript_values.py` tell where it is not: elements of `String[]` stand without quotes, for
instance). An answer that the language's syntax cannot carry, a map in Java above all, can be written as JSON tool calls
whose arguments are the same literals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hubmerge.evaluation.function_calls import Language
from hubmerge.evaluation.function_calls.match import Function


def write_calls(
    calls: Sequence[tuple[str, Mapping[str, Any]]], functions: Sequence[Function], language: Language
) -> str:
    """Calls in the syntax of the language, as a list."""
    texts = []
    for name, arguments in calls:
        inside = ", ".join(f"{k}={literal(v, _schema(name, k, functions), language)}" for k, v in arguments.items())
        texts.append(f"{name}({inside})")
    return f"[{', '.join(texts)}{';' if language == 'java' else ''}]"


def write_tagged(
    calls: Sequence[tuple[str, Mapping[str, Any]]], functions: Sequence[Function], language: Language
) -> str:
    """Calls as JSON in tags; Java and JavaScript values are literals in text, as the prompt asks for them."""
    blocks = []
    for name, arguments in calls:
        values = arguments
        if language != "python":
            schemas = {k: _schema(name, k, functions) for k in arguments}
            texts = {k: literal(v, schemas[k], language) for k, v in arguments.items()}
            values = {k: v if isinstance(v, str) else texts[k] for k, v in arguments.items()}
        blocks.append(f"<tool_call>\n{json.dumps({'name': name, 'arguments': values})}\n</tool_call>")
    return "\n".join(blocks)


def literal(value: Any, schema: Mapping[str, Any], language: Language) -> str:
    """A value as it is written in the language where `schema` declares it."""
    if language == "python":
        return repr(value)
    declared, item = schema.get("type", "any"), schema.get("items", {}).get("type", "any")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        named = declared not in ("String", "any", "char")  # a variable or a constant by its name
        return value if named or '"' in value else f'"{value}"'
    if isinstance(value, float | int):
        return f"{value}{ {'long': 'L', 'float': 'f'}.get(declared, '') if language == 'java' else '' }"
    if value is None:
        return "null"
    if language == "javascript":
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name}: {literal(v, {}, language)}" for name, v in value.items()) + "}"
        return "[" + ", ".join(literal(v, {"type": item}, language) for v in value) + "]"
    if isinstance(value, dict):
        puts = "".join(f'put("{name}", {literal(v, {}, language)}); ' for name, v in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts}}}}}" if puts else "new HashMap<String, Object>()"
    if declared == "Array":
        texts = (v if isinstance(v, str) else literal(v, {"type": item}, language) for v in value)
        return f"new {'String' if item == 'String' else 'int'}[]{{{', '.join(texts)}}}"
    texts = (literal(v, {"type": item}, language) for v in value)
    return f"new ArrayList<Object>(Arrays.asList({', '.join(texts)}))"


def _schema(function: str, parameter: str, functions: Sequence[Function]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((f for f in functions if f["name"] == function), {})
    schema: Mapping[str, Any] = found.get("parameters", {}).get("properties", {}).get(parameter, {})
    return schema


def choose(name: str, allowed: Mapping[str, Any], functions: Sequence[Function]) -> tuple[str, Mapping[str, Any]]:
    """A call of the first allowed values."""
    function: Mapping[str, Any] = next((f for f in functions if f["name"] == name), {})
    parameters: Mapping[str, Any] = function.get("parameters", {})
    chosen = {}
    for parameter, values in allowed.items():
        schema = parameters.get("properties", {}).get(parameter)
        if schema is None and "" in values:
            continue
        if parameter in parameters.get("required", ()) or any(value != "" for value in values):
            schema = schema or {}
            chosen[parameter] = _first(values, _is_table(schema), _is_table(schema.get("items", {})))
    return name, chosen


def _is_table(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("dict", "HashMap")


def _first(values: Sequence[Any], table: bool, tables: bool) -> Any:
    """The first allowed value that is not ""; inside a dictionary, of each of its entries."""
    value = next((value for value in values if value != ""), "")
    if table and isinstance(value, dict):
        return _table(value)
    if tables and isinstance(value, list):
        return [_table(item) if isinstance(item, dict) else item for item in value]
    return value


def _table(entries: Mapping[str, Any]) -> dict[str, Any]:
    lists = {name: values for name, values in entries.items() if isinstance(values, list)}
    return {name: _first(values, False, False) for name, values in lists.items() if any(v != "" for v in values)}
