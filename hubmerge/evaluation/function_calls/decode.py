"""The text of an answer → its calls.

The answer itself shows its syntax: tags of tool calls, else one JSON list or object, else the syntax that the task asks
for. As in bfcl-eval, reasoning up to `</think>` and the ticks of a code fence are cut off, and a missing bracket of the
list at either end is added; the rest must be a list of calls and nothing else.

**JSON** tool calls are what chat templates with tools ask for: `{"name", "arguments"}` (also `"parameters"`, also
`"function"` for the name) in `<tool_call>` tags, or a list of them as the whole answer. As in bfcl-eval's handler of
Qwen's tags, a block that is no JSON is passed over and one without name or arguments spoils the whole answer. Beyond
it, a block may hold several objects, and the line breaks inside the tags are free.

**Python**, `[f(a=1, b="x"), g.h()]`, is read from the syntax tree and never evaluated. By bfcl-eval's conventions

- a literal is its value, `...` the text "...", a name its own text, a subscript its source;
- a call without keywords is its source, one with keywords the mapping {name: {keyword: value}};
- any unary operator negates (`+5` is -5, `not True` is -1): so does the reference;
- positional arguments are dropped, of a repeated keyword the last counts, `**options` is the argument `None`;
- a binary operation is folded. The reference passes it to `eval`; here only literals and sequences of literals
  take part, bounded in size. A name, a call or text formatting in it makes the answer no list of calls;
- everything else (attributes, comprehensions, f-strings, comparisons, sets, lambdas) is no list of calls either.

**Java and JavaScript** are read from tree-sitter's syntax trees. Text that is not quite Java or JavaScript (named
arguments, no semicolon) is readable only through a parser's error recovery, so the verdict depends on the parser:
grammars and library are pinned at the versions that bfcl-eval pins. Values stay text; `values.py` gives them types.
A name given twice is no call. By bfcl-eval's conventions

- in Java the first method call counts, the others are not read. Recovery refuses a call with one single named argument
  unless a semicolon follows (`f(a=1);`). A value's text is put together from its tokens, so spaces between them go;
  the body of an anonymous class goes too (`new HashMap<>() {{ put("a", 1); }}` is an empty map; such a map arrives
  only in a text block or as a JSON tool call). Text is cut at byte offsets out of characters, so that whatever
  follows a non-ASCII character is shifted;
- in JavaScript the first statement that is a call counts; positional arguments other than names and `true` are dropped.
"""

import ast
import json
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from hubmerge.evaluation.function_calls.values import Language, unquoted

MAX_CHARACTERS = 65536  # of an answer without its reasoning; the longest gold answer has 715
MAX_TREE_CHARACTERS = 2048  # in Java and JavaScript, whose error recovery takes superlinear time; longest gold: 341
MAX_TREE_S = 10.0  # for the same reason; of 2,048 characters the slowest text known takes about 1 s
MAX_BRACKETS = 90  # open at once; no gold answer has more than 6
MAX_DEPTH = 120  # of a syntax tree: no recursion here comes near the interpreter's limit
MAX_INTEGER_BITS = 14000  # about the 4,300 digits that Python converts at most

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
# the types of tree-sitter are not imported: only two languages need it, and the tasks import nothing heavy
Node = Any


class NotACallError(ValueError):
    """The text is no list of calls. Raised and caught in this module: for a score it is an answer like others."""


@dataclass(frozen=True)
class Call:
    """One call as it was written. `None` as a name stands for arguments without one (`f(**options)`)."""

    name: str
    arguments: Mapping[str | None, Any]


def decode(text: str, language: Language = "python") -> tuple[Call, ...] | None:
    """The calls of an answer, () for an empty list; None if it is no list of calls."""
    text = text.rsplit("</think>", 1)[-1]
    try:
        _check_bounds(text)
        if _OPENING in text:
            return tuple(_json_call(value) for block in _blocks(text) for value in _objects(block))
        text = text.strip("`\n ")
        bare = text.removeprefix("json").strip()
        if bare.startswith("{") or (bare.startswith("[") and bare[1:].lstrip().startswith("{")):
            try:
                value = json.loads(bare)
                return tuple(map(_json_call, value if isinstance(value, list) else [value]))
            except (ValueError, RecursionError):
                pass  # `[{}.f(a=1)]` is Python
        text = text if text.startswith("[") else "[" + text
        text = text if text.endswith("]") else text + "]"
        if language == "python":
            return _python_calls(text)
        return (_java_call if language == "java" else _javascript_call)(text[1:-1])
    except NotACallError:
        return None


def _check_bounds(text: str) -> None:
    """Refuse text that is too long, or nested too deep whatever its brackets mean."""
    if len(text) > MAX_CHARACTERS:
        raise NotACallError("longer than an answer may be")
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > MAX_BRACKETS:
                raise NotACallError("nested too deep")
        elif character in ")]}" and depth:
            depth -= 1


# --- JSON --------------------------------------------------------------------------------------------------


def _blocks(text: str) -> list[str]:
    closed = "".join(text.rpartition(_CLOSING)[:2])  # so that every block that opens closes, which keeps it linear
    return re.findall(f"{_OPENING}(.*?){_CLOSING}", closed, re.DOTALL)


def _objects(block: str) -> list[Any]:
    decoder, values, block = json.JSONDecoder(), [], block.strip()
    while block:
        try:
            value, end = decoder.raw_decode(block)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        block = block[end:].lstrip()
    return values


def _json_call(value: Any) -> Call:
    if isinstance(value, dict):
        name = value.get("name", value.get("function"))
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(name, str) and isinstance(arguments, dict):
            return Call(name, arguments)
    raise NotACallError("not a tool call")


# --- Python ------------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}


def _python_calls(text: str) -> tuple[Call, ...]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a string's odd escapes warn, and where warnings raise they would decide
            tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List):
            raise NotACallError("not a list")
        _check_depth(tree)
        return tuple(map(_python_call, tree.elts))
    except (SyntaxError, TypeError, ArithmeticError, LookupError, ValueError, RecursionError, MemoryError) as error:
        # CPython limits its own depth with the last two
        raise NotACallError(str(error)) from error


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise NotACallError("nested too deep")


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise NotACallError("not a call")
    parts: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return Call(".".join(reversed(parts)), {keyword.arg: _value(keyword.value) for keyword in node.keywords})


def _value(node: ast.expr | None, *, folding: bool = False) -> Any:
    """An argument's value; `folding`: as a part of an operation, which takes literals alone."""
    part = partial(_value, folding=folding)
    match node:
        case ast.Constant():
            return "..." if node.value is Ellipsis and not folding else node.value
        case ast.UnaryOp() if folding:
            return _UNARY[type(node.op)](part(node.operand))
        case ast.UnaryOp(operand=ast.Constant() as operand):
            constant: Any = operand.value
            return -constant
        case ast.List():
            return list(map(part, node.elts))
        case ast.Tuple():
            return tuple(map(part, node.elts))
        case ast.Dict():
            return dict(zip(map(part, node.keys), map(part, node.values), strict=True))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, folding=True), _value(node.right, folding=True)
            _check_operation(node.op, left, right)
            return _OPERATORS[type(node.op)](left, right)
        case ast.Subscript() if folding:
            return part(node.value)[part(node.slice)]
        case ast.Subscript():
            return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
        case ast.Name() if not folding:
            return node.id
        case ast.Call() if not folding:
            if not node.keywords:
                return ast.unparse(node)
            inner = _python_call(node)
            return {inner.name: dict(inner.arguments)}
    raise NotACallError("an argument that is no value")


def _check_operation(kind: ast.operator, left: Any, right: Any) -> None:
    """Refuse what could grow beyond an answer's size, before it is computed."""
    sizes = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple)]
    if isinstance(left, int) and isinstance(right, int):
        bits = {ast.Pow: left.bit_length() * max(right, 0), ast.LShift: left.bit_length() + max(right, 0)}
        if bits.get(type(kind), left.bit_length() + right.bit_length()) > MAX_INTEGER_BITS:
            raise NotACallError("a number too large")
    elif sizes and isinstance(kind, ast.Mod):
        raise NotACallError("text formatting")
    elif sizes and isinstance(kind, ast.Mult):
        count = right if isinstance(right, int) else left
        if isinstance(count, int) and sizes[0] * count > MAX_CHARACTERS:
            raise NotACallError("a sequence too long")


# --- Java and JavaScript -----------------------------------------------------------------------------------


@cache
def _parser(language: Language) -> Any:
    import tree_sitter  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import tree_sitter_java  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import tree_sitter_javascript  # type: ignore[import-not-found, import-untyped, unused-ignore]

    grammar = tree_sitter_java if language == "java" else tree_sitter_javascript
    parser = tree_sitter.Parser()
    parser.set_language(tree_sitter.Language(grammar.language(), language))
    parser.set_timeout_micros(int(MAX_TREE_S * 1e6))
    return parser


def _root(text: str, language: Language) -> Node:
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
    """All nodes below and with `root`, each before its children, without recursion."""
    cursor = root.walk()
    while True:
        yield cursor.node
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _add(arguments: dict[str | None, Any], name: str | None, value: str) -> None:
    if name in arguments:
        raise NotACallError("an argument given twice")
    arguments[name] = value


def _java_call(text: str) -> tuple[Call, ...]:
    def cut(part: Node) -> str:
        return text[part.start_byte : part.end_byte]

    node = next((node for node in _nodes(_root(text, "java")) if node.type == "method_invocation"), None)
    if node is None:
        raise NotACallError("no method call")
    holder, arguments = node.child_by_field_name("object"), node.child_by_field_name("arguments")
    name = cut(node.child_by_field_name("name"))
    found: dict[str | None, Any] = {}
    for child in arguments.children if arguments else ():
        if child.type == "assignment_expression":
            _add(found, cut(child.children[0]), _java_text(child.children[2], text, depth=0))
        elif child.type in ("identifier", "class_literal"):
            _add(found, None, cut(child))
    return (Call(f"{cut(holder)}.{name}" if holder else name, found),)


def _java_text(node: Node | None, text: str, depth: int) -> str:
    """A value's text: of a string without its quotes where it is the whole value, else token by token."""
    if node is None or depth > MAX_DEPTH:
        raise NotACallError("a value without its parts, or nested too deep")

    def part(field: str) -> str:
        return _java_text(node.child_by_field_name(field), text, depth + 1)

    own = text[node.start_byte : node.end_byte]
    if node.type in ("string_literal", "character_literal"):
        return own if depth else own[1:-1]
    if node.type in ("identifier", "class_literal", "type_identifier", "method_invocation"):
        return own
    if node.type == "array_creation_expression":
        return f"new {part('type')}[]{part('value')}"
    if node.type == "object_creation_expression":
        arguments = node.child_by_field_name("arguments")
        parts = (child for child in (arguments.children if arguments else ()) if child.type not in (",", "(", ")"))
        return f"new {part('type')}({', '.join(_java_text(child, text, depth + 1) for child in parts)})"
    if node.child_count:
        return "".join(_java_text(child, text, depth + 1) for child in node.children)
    return own


def _javascript_call(text: str) -> tuple[Call, ...]:
    for statement in _root(text, "javascript").children:
        for node in statement.children if statement.type == "expression_statement" else ():
            if node.type != "call_expression" or node.child_count < 2:
                continue
            found: dict[str | None, Any] = {}
            for child in node.children[1].children:
                if child.type == "assignment_expression":
                    _add(found, child.children[0].text.decode(), unquoted(child.children[2].text.decode()))
                elif child.type in ("identifier", "true"):
                    _add(found, None, child.text.decode())
            return (Call(node.children[0].text.decode(), found),)
    raise NotACallError("no call")
