"""Calls in Java and JavaScript syntax, `f(a=1, b="x")`, read from tree-sitter's syntax trees.

Text that is not quite Java or JavaScript (named arguments, no semicolon) is readable only through a parser's error
recovery, so the verdict depends on the parser: grammars and library are pinned at the versions that bfcl-eval pins.
Values stay text; `java_values.py` and `javascript_values.py` give them types. Conventions of bfcl-eval, all of them
visible in scores:

- Java: the first method call counts, the others are not read. Recovery refuses a call with one single named argument
  unless a semicolon follows (`f(a=1);`). A value's text is put together from its tokens, so spaces between them go;
  the body of an anonymous class goes too (`new HashMap<>() {{ put("a", 1); }}` is an empty map; such a map arrives
  only in a text block or as a JSON tool call). Text is cut at byte offsets out of characters, so that whatever
  follows a non-ASCII character is shifted.
- JavaScript: the first statement that is a call counts; positional arguments other than names and `true` are dropped.
- A name given twice is no call.

Error recovery takes superlinear time, so text is bounded in length and parsing in time. Walks over trees use a cursor
or are bounded in depth; the library's recursive printing is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hubmerge.evaluation.function_calls.calls import MAX_DEPTH, MAX_TREE_CHARACTERS, MAX_TREE_S, Call, NotACallError

# the library's types are not imported: only these two answer languages need it, and the tasks import nothing heavy
Node = Any

_WHOLE = frozenset({"identifier", "class_literal", "type_identifier", "method_invocation"})  # kept as written
_QUOTED = frozenset({"string_literal", "character_literal"})


def parse_java(text: str) -> tuple[Call, ...]:
    """The first method call of Java text; NotACallError if there is none."""
    for node in _nodes(_root(text, "java")):
        if node.type == "method_invocation":
            return (_java_call(node, text),)
    raise NotACallError("no method call")


def parse_javascript(text: str) -> tuple[Call, ...]:
    """The first statement of JavaScript text that is a call; NotACallError if there is none."""
    for statement in _root(text, "javascript").children:
        if statement.type != "expression_statement":
            continue
        for node in statement.children:
            if node.type == "call_expression" and node.child_count > 1:
                return (Call(_own_text(node.children[0]), _javascript_arguments(node.children[1])),)
    raise NotACallError("no call")


@cache
def _parser(language: str) -> Any:
    import tree_sitter  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import tree_sitter_java  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import tree_sitter_javascript  # type: ignore[import-not-found, import-untyped, unused-ignore]

    grammar = {"java": tree_sitter_java, "javascript": tree_sitter_javascript}[language]
    parser = tree_sitter.Parser()
    parser.set_language(tree_sitter.Language(grammar.language(), language))
    parser.set_timeout_micros(int(MAX_TREE_S * 1e6))
    return parser


def _root(text: str, language: str) -> Node:
    if len(text) > MAX_TREE_CHARACTERS:
        raise NotACallError("longer than an answer may be")
    parser = _parser(language)
    try:
        root = parser.parse(text.encode()).root_node
    except ValueError as error:  # half of a surrogate pair, or the time is over
        parser.reset()
        raise NotACallError("not text, or no end in time") from error
    # missing tokens, which `has_error` counts as well, are what recovery adds; they do not matter
    if root.has_error and any(node.type == "ERROR" for node in _nodes(root)):
        raise NotACallError("not the syntax of the language")
    return root


def _nodes(root: Node) -> Iterator[Node]:
    """All nodes below and with `root`, each before its children."""
    cursor = root.walk()
    while True:
        yield cursor.node
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _own_text(node: Node) -> str:
    return str(node.text.decode())


def _add(arguments: dict[str | None, Any], name: str | None, value: str) -> None:
    if name in arguments:
        raise NotACallError("an argument given twice")
    arguments[name] = value


def _java_call(node: Node, text: str) -> Call:
    def cut(part: Node) -> str:
        return text[part.start_byte : part.end_byte]

    holder, arguments = node.child_by_field_name("object"), node.child_by_field_name("arguments")
    name = cut(node.child_by_field_name("name"))
    found: dict[str | None, Any] = {}
    for child in arguments.children if arguments else ():
        if child.type == "assignment_expression":
            _add(found, cut(child.children[0]), _java_text(child.children[2], text, depth=0))
        elif child.type in ("identifier", "class_literal"):
            _add(found, None, cut(child))
    return Call(f"{cut(holder)}.{name}" if holder else name, found)


def _java_text(node: Node | None, text: str, depth: int) -> str:
    """A value's text: of a string without its quotes where it is the whole value, else token by token."""
    if node is None or depth > MAX_DEPTH:
        raise NotACallError("a value without its parts, or nested too deep")
    own = text[node.start_byte : node.end_byte]
    if node.type in _QUOTED:
        return own if depth else own[1:-1]
    if node.type in _WHOLE:
        return own
    if node.type == "array_creation_expression":
        kind = _java_text(node.child_by_field_name("type"), text, depth + 1)
        return f"new {kind}[]{_java_text(node.child_by_field_name('value'), text, depth + 1)}"
    if node.type == "object_creation_expression":
        arguments = node.child_by_field_name("arguments")
        parts = (child for child in (arguments.children if arguments else ()) if child.type not in (",", "(", ")"))
        kind = _java_text(node.child_by_field_name("type"), text, depth + 1)
        return f"new {kind}({', '.join(_java_text(part, text, depth + 1) for part in parts)})"
    if node.child_count:
        return "".join(_java_text(child, text, depth + 1) for child in node.children)
    return own


def _javascript_arguments(node: Node) -> dict[str | None, Any]:
    found: dict[str | None, Any] = {}
    for child in node.children:
        if child.type == "assignment_expression":
            value = _own_text(child.children[2])
            if (value.startswith('"') and value.endswith('"')) or (value.startswith("'") and value.endswith("'")):
                value = value[1:-1]
            _add(found, _own_text(child.children[0]), value)
        elif child.type in ("identifier", "true"):
            _add(found, None, _own_text(child))
    return found
