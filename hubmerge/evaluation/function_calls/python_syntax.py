"""Calls in Python syntax, `[f(a=1, b="x"), g.h()]`, read from the syntax tree and never evaluated.

What the parts of an argument become is bfcl-eval's convention:

- a literal is its value, `...` the text "...", a name its own text, a subscript its source;
- a call without keywords is its source, one with keywords the mapping {name: {keyword: value}};
- any unary operator negates (`+5` is -5, `not True` is -1): so does the reference;
- positional arguments are dropped, of a repeated keyword the last counts, `**options` is the argument `None`;
- a binary operation is folded. The reference passes it to `eval`; here only literals and sequences of literals
  take part, bounded in size. A name, a call or text formatting in it makes the answer no list of calls;
- everything else (attributes, comprehensions, f-strings, comparisons, sets, lambdas) is no list of calls either.

`ast.parse` is safe within the bounds of `calls.py`: CPython limits its own depth, with a MemoryError or a
RecursionError that is caught here.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from typing import Any

from hubmerge.evaluation.function_calls.calls import MAX_CHARACTERS, MAX_DEPTH, MAX_INTEGER_BITS, Call, NotACallError

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


def parse_python(text: str) -> tuple[Call, ...]:
    """The calls of a list in Python syntax; NotACallError if the text is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a string's odd escapes warn, and where warnings raise they would decide
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotACallError("not Python syntax") from error
    if not isinstance(tree, ast.List):
        raise NotACallError("not a list")
    _check_depth(tree)
    try:
        return tuple(_call(element) for element in tree.elts)
    except (TypeError, ArithmeticError, LookupError, ValueError, RecursionError, MemoryError) as error:
        raise NotACallError(str(error)) from error


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise NotACallError("nested too deep")


def _call(node: ast.AST) -> Call:
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


def _value(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant():
            return "..." if node.value is Ellipsis else node.value
        case ast.UnaryOp(operand=ast.Constant() as operand):
            constant: Any = operand.value
            return -constant
        case ast.List():
            return [_value(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_value(element) for element in node.elts)
        case ast.Dict():
            return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.Name():
            return node.id
        case ast.Call():
            if not node.keywords:
                return ast.unparse(node)
            inner = _call(node)
            return {inner.name: dict(inner.arguments)}
        case ast.Subscript():
            return f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]"
        case ast.BinOp():
            return _fold(node)
    raise NotACallError("an argument that is no value")


def _fold(node: ast.expr) -> Any:
    """The value of an expression of literals."""
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [_fold(element) for element in node.elts]
        case ast.Tuple():
            return tuple(_fold(element) for element in node.elts)
        case ast.Dict() if None not in node.keys:
            return {_fold(key): _fold(value) for key, value in zip(node.keys, node.values, strict=True) if key}
        case ast.UnaryOp():
            return _UNARY[type(node.op)](_fold(node.operand))
        case ast.Subscript():
            return _fold(node.value)[_fold(node.slice)]
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _fold(node.left), _fold(node.right)
            _check_operation(node.op, left, right)
            return _OPERATORS[type(node.op)](left, right)
    raise NotACallError("not arithmetic on literals")


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
