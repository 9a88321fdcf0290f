"""Hostile text for the decoders and the converters of values."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bfcl_damage import SOURCES, rows, variants

from hubmerge.evaluation.function_calls import Language
from hubmerge.evaluation.function_calls.java_values import java_value
from hubmerge.evaluation.function_calls.javascript_values import javascript_value

LANGUAGES: tuple[Language, ...] = ("python", "java", "javascript")
FRAGMENTS = (
    *"()[]{}<>,.:;=+-*/%&|^~!?@#$'\"`\\ \n\t\r\0é”\u2028\ud800",
    "f(", "f(a=", "lambda:", "lambda x:", "not ", "await ", "yield ", "**", "->", "=>", "new ", "new int[]{",
    "new A<", "{{", "'''", '"""', "f'{", "b'", "\\N{", "\\x", "\\u12", "0x", "1e999", "9" * 50, "//", "/*", "*/", "#",
    "for a in b ", "if a else ", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "</think>", "NaN",
    "null", "true", "async ", "class ", "::", "@interface ", "switch ", "...", ":=", "<<", ">>>", "instanceof ",
    "import ", "import(", "`${", "${", "?.", "/a/", "<!--",
)  # fmt: skip
# what the converters' scans look at
TOKENS = (
    "new ", "new  ", "ArrayList<", "ArrayList<String>", "ArrayList<>", "HashMap<", "HashMap<>",
    "HashMap<String, Object>", "(", ")", "()", "Arrays.asList(", "))", "{", "}", "{{", "}}", "{ {", "} }", "add(",
    "add(1)", 'put("', '",', 'put("a", 1)', "int[]", "String[]", "[]", "[", "]", "[[", "]]", "new Array(", "Array(",
    ",", ", ", ":", ": ", "::", '"', "'", '"a"', "'b'", "a", "1", "2.5", "-1", "5L", "1.5f", "true", "false", "1n",
    "nan", "1_0", "٣", " ", "  ", "\n", "\t", ">", "<", ";", "[1, 2]", "{a: 1}", "{'a': 'b'}", "é", "99999", "e3",
    "E", "f", "L", "inf",
)  # fmt: skip
TYPES: dict[str, tuple[str, ...]] = {
    "java": ("byte", "short", "integer", "long", "float", "double", "boolean", "char", "String", "any", "HashMap"),
    "javascript": ("String", "integer", "float", "Bigint", "Boolean", "dict", "any"),
}
HEADERS = {
    "java": (
        "new String[]{", "new int[] {", "new ArrayList<String>(Arrays.asList(", "new ArrayList<>() {{",
        "new ArrayList<>()", "new HashMap<A, B>() {{", "new HashMap<>() {", "new HashMap<>()",
        'new HashMap<A>() {{ put("', "new ArrayList<A>() {{ add(",
    ),
    "javascript": ("[", "[[", "[ [", "new Array(", "new Array([", "{", "{a: ", "{'a': [", "[[1, 2], ["),
}  # fmt: skip
LISTS = {"java": ("Array", "ArrayList"), "javascript": ("array",)}

Value = tuple[str, str, str | None, str]


def seeds() -> list[str]:
    texts = [text for found in SOURCES.values() for text in found]
    for category in ("simple_python", "simple_java", "simple_javascript", "parallel_multiple", "live_multiple"):
        row = rows(category)[1]
        texts += [text for kind, _, text in variants(category, row) if "item" not in kind and "entry" not in kind]
    return texts


def values(random_: random.Random, count: int) -> Iterator[Value]:
    """Texts that look like collections and numbers, with a type."""
    for _ in range(count):
        language = random_.choice(("java", "javascript"))
        text = "".join(random_.choices(TOKENS, k=random_.randint(1, 14)))
        if random_.random() < 0.7:
            text = (
                random_.choice(HEADERS[language])
                + text
                + random_.choice(("", "]", "}", "}}", ")", "))", ");", "]]", "; }}"))
            )
        if random_.random() < 0.5:
            yield language, random_.choice(LISTS[language]), random_.choice(TYPES[language]), text
        else:
            yield language, random_.choice((*TYPES[language], "HashMap" if language == "java" else "dict")), None, text


def converted(value: Value) -> str:
    """The `repr` of what ours makes of a value, in the words of bfcl_child.py."""
    language, declared, item, text = value
    try:
        return repr((java_value if language == "java" else javascript_value)(text, declared, item))
    except (ValueError, OverflowError):
        return "raised"
