"""Answers to every row of every category: the gold one and damaged variants of it, the same on every machine.

A variant is (kind of damage, form, text); `form` says which decoder of bfcl-eval reads it (`bfcl_child.py`). Damages
are of three sorts: on one argument's value, on a call or the list of calls, and on the text itself. Whether a variant
still counts is not said here: that is for the two checkers to agree on.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bfcl_write import choose, literal, write_calls, write_tagged

from hubmerge.evaluation.tasks.bfcl import CATEGORIES

NO_CALL = "None of the given functions can answer this."
ROOT = Path(__file__).resolve().parents[2]
SOURCES = json.loads(Path(__file__).with_name("sources.json").read_text(encoding="utf-8"))  # $: the value as written
DATA = ROOT / "examples" / "datasets" / "bfcl" / "data"

Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]
Variant = tuple[str, str, str]


class Raw(str):
    """Source text that stands for itself, not for a string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rows(category: str, folder: Path = DATA) -> list[dict[str, Any]]:
    with gzip.open(folder / f"{category}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def variants(category: str, row: Mapping[str, Any], damaged: bool = True) -> Iterator[Variant]:
    """The gold answer in every form, and every damage to it."""
    functions, key = json.loads(row["function"]), json.loads(row["ground_truth"])
    if not key:
        relevant = category == "live_relevance"
        yield "gold", "prompting", f"[{functions[0]['name']}()]" if relevant else NO_CALL
        if damaged:
            yield from _of_no_key(functions)
        return
    of = {"simple_java": "java", "simple_javascript": "javascript"}.get(category, "python")
    gold: Calls = [(n, dict(a)) for n, a in (choose(n, v, functions) for c in key for n, v in c.items())]
    seen: set[tuple[str, str]] = set()
    damages = [*_of_values(gold, key), *_of_calls(gold, key, functions)] if damaged else []
    for kind, calls in [("gold", gold), *damages]:
        for form, text in _written(calls, functions, of):
            if (form, text) not in seen:
                seen.add((form, text))
                yield kind, form, text
    if not damaged:
        return
    texts = _of_text(write_calls(gold, functions, of), gold)
    yield from ((kind, "prompting", text) for kind, text in [*texts, *_of_source(gold, functions, of)])


def _written(calls: Calls, functions: Sequence[Any], of: str) -> Iterator[tuple[str, str]]:
    try:
        yield "prompting", write_calls(calls, functions, of)
        if any(isinstance(value, Raw) for _, arguments in calls for value in arguments.values()):
            return
        yield "tagged", write_tagged(calls, functions, of)
        blocks = [json.loads(line) for line in write_tagged(calls, functions, of).splitlines() if line[:1] == "{"]
        yield "json", json.dumps([{"function": b["name"], "parameters": b["arguments"]} for b in blocks])
    except (TypeError, AttributeError):
        return  # a damage that the language or JSON cannot write


def _replaced(calls: Calls, index: int, arguments: Arguments) -> Calls:
    return [(n, arguments if i == index else a) for i, (n, a) in enumerate(calls)]


def _of_values(gold: Calls, key: Sequence[Any]) -> Iterator[tuple[str, Calls]]:
    for index, (_, arguments) in enumerate(gold):
        (allowed,) = key[index].values()
        for parameter, value in arguments.items():
            for option in allowed.get(parameter, ()):
                if option != "" and not isinstance(option, dict):
                    yield "another allowed value", _replaced(gold, index, {**arguments, parameter: option})
            for kind, damaged in _damaged(value):
                yield kind, _replaced(gold, index, {**arguments, parameter: damaged})


def _damaged(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Other values in a value's place."""
    yield from (("null", None), ("in a list", [value]), ("in a dictionary", {"value": value}), ("empty text", ""))
    yield from (("empty list", []), ("empty dictionary", {}), ("zero", 0), ("true", True), ("false", False))
    if not isinstance(value, str):
        yield "as text", str(value)
        yield "as JSON text", json.dumps(value)
    if isinstance(value, bool):
        yield from (("flipped", not value), ("as integer", int(value)), ("boolean as text", str(value).lower()))
    elif isinstance(value, int | float):
        yield from (("plus one", value + 1), ("negative", -value), ("as a float", float(value)))
        if value == int(value):
            yield "as an integer", int(value)
    elif isinstance(value, str):
        yield from (("upper case", value.upper()), ("other case", value.swapcase()), ("another word", value + " zebra"))
        yield from (("spaces", " " + value.replace("a", "a ") + " "), ("punctuation", value.replace(" ", ", -_") + "."))
        yield from (
            ("other quotes", value.replace("'", '"') + "'"),
            ("a tab", value + "\t"),
            ("a letter less", value[:-1]),
        )
        yield from (("a line break", value + "\n"), ("quoted twice", f"'{value}'"), ("accents", value + "é"))
        yield from (("a number for text", 5), ("not ASCII before", "é" + value))
        if value.lstrip("-").replace(".", "", 1).isdigit():
            yield "text to number", float(value) if "." in value else int(value)
        if value.isidentifier():
            yield "as a name", Raw(value)
    elif isinstance(value, list | tuple):
        yield from (("reversed", list(value)[::-1]), ("a tuple", tuple(value)), ("twice", [*value, *value]))
        yield from (("one more", [*value, "zebra"]), ("one more number", [*value, 7]), ("one less", list(value)[:-1]))
        for index, item in enumerate(value[:3]):
            if depth < 2:
                for kind, damaged in _damaged(item, depth + 1):
                    yield f"item: {kind}", [*value[:index], damaged, *value[index + 1 :]]
    elif isinstance(value, dict):
        yield from (("one entry more", {**value, "zebra": 1}), ("entries reversed", dict(reversed(value.items()))))
        for name, item in value.items():
            yield "one entry less", {n: v for n, v in value.items() if n != name}
            yield "entry's name in upper case", {(n.upper() if n == name else n): v for n, v in value.items()}
            if depth < 2:
                for kind, damaged in _damaged(item, depth + 1):
                    yield f"entry: {kind}", {**value, name: damaged}


def _of_calls(gold: Calls, key: Sequence[Any], functions: Sequence[Any]) -> Iterator[tuple[str, Calls]]:
    for index, (name, arguments) in enumerate(gold):
        (allowed,) = key[index].values()
        schema = next((f["parameters"]["properties"] for f in functions if f["name"] == name), {})
        for parameter, value in arguments.items():
            rest = {n: v for n, v in arguments.items() if n != parameter}
            kind = "optional left out" if "" in allowed.get(parameter, ()) else "parameter missing"
            yield kind, _replaced(gold, index, rest)
            yield "parameter in upper case", _replaced(gold, index, {**rest, parameter.upper(): value})
            yield "another order of parameters", _replaced(gold, index, {**rest, parameter: value})
        yield (
            "only what is required",
            _replaced(gold, index, {n: v for n, v in arguments.items() if "" not in allowed.get(n, ())}),
        )
        yield "no arguments", _replaced(gold, index, {})
        yield "unknown parameter", _replaced(gold, index, {**arguments, "zebra": 1})
        for parameter, declared in schema.items():
            if parameter not in arguments:
                default = declared.get("default", "")
                yield "another declared parameter", _replaced(gold, index, {**arguments, parameter: default})
                yield "another declared parameter, empty", _replaced(gold, index, {**arguments, parameter: ""})
        others = [f["name"] for f in functions if f["name"] != name][:2]
        for other in (
            *others,
            name + "_x",
            name.upper(),
            name.replace(".", "_"),
            name.rpartition(".")[2],
            "zebra." + name,
        ):
            yield "another name", [(other if i == index else n, a) for i, (n, a) in enumerate(gold)]
        yield "one call less", gold[:index] + gold[index + 1 :]
        yield "one call twice", [*gold, gold[index]]
        yield "one call for another", [*gold[:index], gold[index - 1], *gold[index + 1 :]]
    yield from (
        ("calls reversed", gold[::-1]),
        ("calls rotated", gold[1:] + gold[:1]),
        ("an unknown call", [*gold, ("zebra", {})]),
    )


def _of_text(text: str, gold: Calls) -> Iterator[tuple[str, str]]:
    inner = text[1:-1]
    yield from (
        ("as written", text),
        ("no brackets", inner),
        ("no closing bracket", text[:-1]),
        ("no opening bracket", text[1:]),
        ("no closing parenthesis", "[" + inner.rstrip(";")[:-1] + "]"),
        ("no closing parenthesis or bracket", "[" + inner.rstrip(";")[:-1]),
        ("parenthesis too many", f"[{inner})]"),
        ("double brackets", f"[{text}]"),
        ("in a tuple", f"({inner})"),
        ("fenced", f"```\n{text}\n```"),
        ("fenced as Python", f"```python\n{text}\n```"),
        ("in ticks", f"`{text}`"),
        ("in quotes", f"'{text}'"),
        ("space around", f" \n {text} \n"),
        ("tabs around", f"\t{text}\t"),
        ("words before", f"Here it is: {text}"),
        ("words after", f"{text} That is all."),
        ("full stop", text + "."),
        ("semicolon", text + ";"),
        ("semicolon inside", f"[{inner};]"),
        ("no semicolon inside", f"[{inner.rstrip(';')}]"),
        ("comma inside", f"[{inner.rstrip(';')},]"),
        ("comment", f"[{inner}  # a comment\n]"),
        ("other comment", f"[{inner} // a comment\n]"),
        ("block comment", f"[/* a comment */ {inner}]"),
        ("line breaks", text.replace(", ", ",\n    ")),
        ("spaces at signs", text.replace("=", " = ").replace("(", "( ", 1)),
        ("reasoning", f"<think>\nWhich one? {text}\n</think>\n\n{text}"),
        ("reasoning without an answer", f"<think>\n{text}\n</think>"),
        ("reasoning that does not end", f"<think>\n{text}"),
        ("other reasoning", f"<think>[zebra()]</think>{text}"),
        ("assigned", f"result = {text}"),
        ("in an index", f"{text}[0]"),
        ("a sum of lists", f"{text} + {text}"),
        ("two lists", f"{text}\n{text}"),
        ("two lists with a comma", f"{text}, {text}"),
        ("a comprehension", f"[{inner.rstrip(';')} for _ in [1]]"),
        ("a string in the list", f"['{gold[0][0]}']"),
        ("a name in the list", f"[{gold[0][0]}]"),
        ("starred", f"[*{text}]"),
        ("cut in half", text[: len(text) // 2]),
        ("cut near the end", text[:-3]),
        ("curly quotes", text.replace('"', "”").replace("'", "’")),
        ("not ASCII in front", f"[é_{inner}]"),
        ("an f-string prefix", text.replace("='", "=f'").replace('="', '=f"')),
        ("a raw-string prefix", text.replace("='", "=r'").replace('="', '=r"')),
        ("a bytes prefix", text.replace("='", "=b'").replace('="', '=b"')),
        ("colons for equals", text.replace("=", ": ")),
        ("new before", f"[new {inner}]"),
        ("await before", f"[await {inner}]"),
        ("print around", f"[print({inner.rstrip(';')})]"),
        ("empty", ""),
        ("empty list", "[]"),
        ("empty dictionary", "[{}]"),
        ("refusal", "None of the given functions can answer this."),
    )


def _of_source(gold: Calls, functions: Sequence[Any], of: str) -> Iterator[tuple[str, str]]:
    """Source in the place of each argument of the first call."""
    name, arguments = gold[0]
    schemas = next((f["parameters"]["properties"] for f in functions if f["name"] == name), {})
    for parameter, value in arguments.items():
        written = literal(value, schemas.get(parameter, {}), of)
        for source in SOURCES[of]:
            damaged = _replaced(gold, 0, {**arguments, parameter: "@@@"})
            text = write_calls(damaged, [], of)
            for quoted in ("'@@@'", '"@@@"', "@@@"):
                if quoted in text:
                    text = text.replace(quoted, source.replace("$", written))
                    break
            yield f"source: {source}", text
    positional = ", ".join(literal(v, schemas.get(p, {}), of) for p, v in arguments.items())
    yield "positional arguments", f"[{name}({positional})]"
    keywords = ", ".join(f"{p}={literal(v, schemas.get(p, {}), of)}" for p, v in arguments.items())
    yield "positional and named", f"[{name}(1, {keywords})]"
    yield "a name and named", f"[{name}(zebra, {keywords})]"
    if keywords and arguments:
        first = keywords.split("=")[0]
        yield "first argument given again", f"[{name}({keywords}, {first}=0)]"
        yield "first argument given before", f"[{name}({first}=0, {keywords})]"
    yield "unpacked", f"[{name}(**{{'zebra': 1}}, {keywords})]"
    yield "unpacked keys", f"[{name}(**{arguments!r})]"
    yield "an attribute of a call", f"[zebra().{name}({keywords})]"
    yield "an attribute of a list", f"[[].{name}({keywords})]"
    yield "called twice", f"[{name}({keywords})()]"
    yield "called before", f"[{name}()({keywords})]"


def _of_no_key(functions: Sequence[Any]) -> Iterator[Variant]:
    for text in SOURCES["no key"]:
        yield "text", "prompting", text
    for form in (
        "<tool_call>\n{}\n</tool_call>",
        "<tool_call>\nnothing\n</tool_call>",
        "<tool_call>\n[]\n</tool_call>",
    ):
        yield "empty tags", "tagged", form
    for function in functions:
        name = function["name"]
        required = dict.fromkeys(function["parameters"].get("required", ()), 1)
        for arguments in ({}, required, {"zebra": "a 'b'"}):
            calls: Calls = [(name, arguments)]
            yield "a call", "prompting", write_calls(calls, functions, "python")
            yield "two calls", "prompting", write_calls(calls * 2, functions, "python")
            yield "a call in words", "prompting", f"I call {write_calls(calls, functions, 'python')}"
            yield "a call without brackets", "prompting", write_calls(calls, functions, "python")[1:-1]
            yield "tags", "tagged", write_tagged(calls, functions, "python")
            yield "words and tags", "tagged", "I call\n" + write_tagged(calls * 2, functions, "python")
            yield "tags and words", "tagged", write_tagged(calls, functions, "python") + "\nDone."
            yield "JSON", "json", json.dumps([{"function": name, "parameters": arguments}])
        yield "a name", "prompting", name
        yield "a cut call", "prompting", f"[{name}(a=1"


def all_variants(damaged_rows: int | None = None) -> Iterator[tuple[str, dict[str, Any], list[Variant]]]:
    """Every row of every category with its gold answers, and with its variants: all rows, or so many per category."""
    for category in CATEGORIES:
        found = rows(category)
        step = max(len(found) // damaged_rows, 1) if damaged_rows else 1
        for index, row in enumerate(found):
            yield category, row, list(variants(category, row, damaged=index % step == 0))
