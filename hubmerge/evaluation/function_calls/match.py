"""Does an answer key allow these calls? The Berkeley function-calling leaderboard's AST match.

A key is one mapping per expected call, {name: {parameter: [allowed values]}}; "" among the allowed values says that
the parameter may be left out. The meaning of a match is that of bfcl-eval 2026.3.23, its peculiarities included,
because a score that nobody else can reproduce is worth nothing:

- Types are exact (`True` is no integer), with two exceptions: an integer stands for a declared Python float, though
  not inside a list, and a value of the type of the first allowed value always passes, as a "variable". A variable is
  compared exactly, also where it is text.
- Text is compared without case, spaces and the characters `,./-_*^`, single quotes as double ones. That reaches the
  elements of a list and the values of a dictionary, and no deeper.
- Item types of a list are checked one level deep, against each allowed list; "" among the allowed values (the
  parameter is optional) switches that check off and allows the empty list.
- Lists are ordered; tuples count as lists where a tuple is declared, and only there.
- Of a dictionary the allowed values are listed per key. Where the key gives a text instead of a list, its single
  characters are the allowed values and the entry is optional.
- Java and JavaScript values arrive as text and are read by the declared type; a value that is no text fails.
- Parallel calls match in any order, greedily: each expected call takes the first answer that fits.
- Where bfcl-eval raises (a list's element that should be a dictionary, an integer beyond any float), nothing matches.
- Names with dots are compared as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hubmerge.evaluation.function_calls.decode import Call
from hubmerge.evaluation.function_calls.values import TYPES, Language, read_value

Function = Mapping[str, Any]  # name, parameters: {properties, required}
Key = Mapping[str, Mapping[str, Any]]

_IGNORED = str.maketrans("", "", " ,./-_*^")


def matches(
    calls: Sequence[Call],
    key: Sequence[Key],
    functions: Sequence[Function],
    language: Language = "python",
    *,
    simple: bool = False,
) -> bool:
    """Whether the key allows the calls of an answer; `simple`: of the only function, whatever the key calls it."""
    if len(calls) != len(key):
        return False
    by_name = {function["name"]: function for function in reversed(functions)}
    left = list(calls)
    for expected in key:
        (name, allowed), *_ = expected.items()
        function = functions[0] if simple else by_name.get(name)
        if function is None:
            return False
        # by its place: calls with True and with 1 are equal to Python
        place = next((i for i, call in enumerate(left) if _fits(call, allowed, function, language)), None)
        if place is None:
            return False
        del left[place]
    return True


def _fits(call: Call, allowed: Mapping[str, Any], function: Function, language: Language) -> bool:
    declared, given = function["parameters"], call.arguments
    properties = declared["properties"]
    return (
        call.name == function["name"]
        and all(parameter in given for parameter in declared["required"])
        and all(parameter in given or "" in values for parameter, values in allowed.items())
        and all(
            parameter is not None
            and parameter in properties
            and parameter in allowed
            and _value_matches(value, allowed[parameter], properties[parameter], language)
            for parameter, value in given.items()
        )
    )


def _value_matches(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any], language: Language) -> bool:
    declared, types = schema["type"], TYPES[language]
    if declared not in types:
        return False
    expected, item, item_type = types[declared].kind, None, None
    if types[declared].has_items:
        item = schema.get("items", {}).get("type")
        if item not in types:
            return False
        item_type = types[item].kind
    try:
        if language != "python":
            if type(value) is not str:
                return False
            value = read_value(value, language, declared, item)
        elif declared == "float" and type(value) is int:
            value = float(value)
        elif declared == "tuple" and type(value) is tuple:
            value = list(value)
    except (ValueError, OverflowError):  # more digits than a number can have
        return False
    if not _well_typed(value, allowed, expected, item_type):
        return False
    if _type_of(allowed) not in (None, expected):
        return value in allowed  # a variable
    if expected is dict:
        return _dictionary_matches(value, allowed)
    if item_type is dict:
        return any(_dictionaries_match(value, option) for option in allowed)
    if expected is str:
        return _standard(value) in [_standard(option) for option in allowed if type(option) is str]
    if expected is list:
        lists = [_items(option) for option in allowed if isinstance(option, list | str)]
        return [_standard(item) for item in value] in [[_standard(item) for item in items] for items in lists]
    return value in allowed


def _type_of(allowed: Sequence[Any]) -> type | None:
    return next((type(option) for option in allowed if option != ""), None)


def _well_typed(value: Any, allowed: Sequence[Any], expected: type, item_type: type | None) -> bool:
    actual: type = type(value)
    if actual is not expected:
        return actual is _type_of(allowed)
    if item_type is None:
        return True
    return any(
        type(option) is not list or all(_well_typed(item, option, item_type, None) for item in value)
        for option in allowed
    )


def _standard(value: Any) -> Any:
    return value.translate(_IGNORED).lower().replace("'", '"') if type(value) is str else value


def _items(option: Any) -> list[Any]:
    """What a key's entry lists: a list's items, a text's characters."""
    return list(option) if isinstance(option, list | str) else []


def _dictionary_matches(value: Mapping[Any, Any], allowed: Sequence[Any]) -> bool:
    for option in allowed:
        if not isinstance(option, dict):
            continue
        entries = {name: _items(values) for name, values in option.items()}
        if all(
            name in entries and _standard(item) in [_standard(value) for value in entries[name]]
            for name, item in value.items()
        ) and all(name in value or isinstance(option[name], str) or "" in values for name, values in entries.items()):
            return True
    return False


def _dictionaries_match(values: Sequence[Any], option: Any) -> bool:
    options = _items(option)
    return len(values) == len(options) and all(
        isinstance(value, dict) and _dictionary_matches(value, [expected])
        for value, expected in zip(values, options, strict=True)
    )
