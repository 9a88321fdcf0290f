"""What a kernel computes, found by calling it once with symbols: a list of steps without a loop or a branch.

A loop over agents inside the loop over elements keeps compilers from vectorising, from nine agents on; here nothing of
it is left. A step is (operation, operands…), operands being numbers of earlier steps; equal steps are one. A kernel
that asks for the truth of a value, or for anything that a symbol does not know, has no trace.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Step = tuple[str | int, ...]
Known = tuple[float | None, ...]  # of each value, what it is where code may rest on it
_PLAIN = {0x00000000: 0.0, 0x3F800000: 1.0}  # by float32 pattern; −0 is none of them
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


@dataclass(frozen=True)
class Trace:
    """float32 steps: ("input", row), ("scalar", agent, column), ("constant", number), ("literal", bits), "add", "sub",
    "mul", "div", "neg", "abs", and "where" of a condition and two values. Conditions: COMPARISONS, "and", "or", "xor",
    "not"."""

    steps: tuple[Step, ...]
    result: int  # the number of its step


class _Unknown(Exception):
    """Not to be told by symbols."""


def known(values: NDArray[np.float32]) -> Known:
    """0 and 1, with which arithmetic is less; every other value would be other code. `values`: [columns] or, to be
    known where all are alike, [agents, columns]."""
    rows = values.reshape(-1, values.shape[-1])
    found = []
    for column in rows.T.copy().view(np.uint32):
        alike = bool((column == column[0]).all()) and int(column[0]) in _PLAIN
        found.append(_PLAIN[int(column[0])] if alike else None)
    return tuple(found)


def trace_of(kernel: Callable[..., Any], agents: int, inputs: int, columns: Known, constants: Known) -> Trace | None:
    """None where calling it with symbols does not tell what it computes."""
    steps: dict[Step, int] = {}

    def value(is_known: float | None, *step: str | int) -> _Value:
        return _Value(steps, *step) if is_known is None else _literal(steps, is_known)

    try:
        result = kernel(
            tuple(_Value(steps, "input", k) for k in range(inputs)),
            tuple(tuple(value(v, "scalar", k, c) for c, v in enumerate(columns)) for k in range(agents)),
            tuple(value(v, "constant", c) for c, v in enumerate(constants)),
        )
    except (_Unknown, AttributeError, TypeError):  # the latter from functions that take no symbols
        return None
    return Trace(tuple(steps), result.number) if isinstance(result, _Value) else None


class _Symbol:
    __array_ufunc__ = None  # numpy's scalars leave operators to us, and its functions refuse
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, steps: dict[Step, int], *step: str | int) -> None:
        self.steps, self.number = steps, steps.setdefault(step, len(steps))

    def __bool__(self) -> bool:
        raise _Unknown


def _logical(operation: str) -> Callable[[_Condition, object], _Condition]:
    def together(one: _Condition, other: object) -> _Condition:
        if not isinstance(other, _Condition):
            raise _Unknown
        return _Condition(one.steps, operation, one.number, other.number)

    return together


class _Condition(_Symbol):
    __and__, __or__, __xor__ = map(_logical, ("and", "or", "xor"))

    def __invert__(self) -> _Condition:
        return _Condition(self.steps, "not", self.number)

    def choose(self, yes: Any, no: Any) -> _Value:
        """methods.ops.where."""
        return _Value(self.steps, "where", self.number, _number(self.steps, yes), _number(self.steps, no))


_Arithmetic = Callable[["_Value", object], "_Value"]


def _arithmetic(operation: str) -> tuple[_Arithmetic, _Arithmetic]:
    """An operator, and what Python calls where the left operand does not know it."""

    def before(value: _Value, other: object) -> _Value:
        return _Value(value.steps, operation, value.number, _number(value.steps, other))

    def after(value: _Value, other: object) -> _Value:
        return _Value(value.steps, operation, _number(value.steps, other), value.number)

    return before, after


def _comparison(operation: str) -> Callable[[_Value, object], _Condition]:
    def compared(value: _Value, other: object) -> _Condition:
        return _Condition(value.steps, operation, value.number, _number(value.steps, other))

    return compared


class _Value(_Symbol):
    __add__, __radd__ = _arithmetic("add")
    __sub__, __rsub__ = _arithmetic("sub")
    __mul__, __rmul__ = _arithmetic("mul")
    __truediv__, __rtruediv__ = _arithmetic("div")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = map(_comparison, ("eq", "ne"))  # type: ignore[assignment]

    def __neg__(self) -> _Value:
        return _Value(self.steps, "neg", self.number)

    def __abs__(self) -> _Value:
        return _Value(self.steps, "abs", self.number)

    abs = __abs__  # of torch's tensors, methods.ops.absolute


def _number(steps: dict[Step, int], value: object) -> int:
    """The step of a float32 value, or of a number that float32 arrays would take as one."""
    if isinstance(value, _Value):
        return value.number
    if isinstance(value, int | float | np.float32) and not isinstance(value, bool | np.float64):
        return _literal(steps, value).number
    raise _Unknown


def _literal(steps: dict[Step, int], value: float | np.float32) -> _Value:
    try:
        [bits] = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        raise _Unknown from None
    return _Value(steps, "literal", bits)
