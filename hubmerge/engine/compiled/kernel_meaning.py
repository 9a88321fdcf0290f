"""What a kernel without a trace means, as a text: the name under which its machine code is kept.

Its bytecode with its constants, and the same of every function and global that it refers to; also of how operations
are compiled that numba does not know (COMPILED_AS). A kernel that refers to anything whose meaning is not plain has no
text, and is compiled in every process.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from hubmerge.methods import ops


# numba compares the parameters with those of what is returned, which cannot be annotated
def _where(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


def _absolute(x):
    return lambda x: abs(x)


COMPILED_AS: dict[Any, Callable[..., Any]] = {ops.where: _where, ops.absolute: _absolute}


def meaning_of(function: Callable[..., Any]) -> str | None:
    """A text that differs between functions that numba could compile to different code; None where that is not
    known."""
    known: dict[Any, str] = {}

    def told(value: Any) -> str:
        if isinstance(value, FunctionType):
            value = COMPILED_AS.get(value, value)
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value)
        if isinstance(value, tuple):
            return f"({','.join(map(told, value))})"
        if isinstance(value, CodeType):
            return _code(value, told)
        if not isinstance(value, FunctionType):
            raise TypeError
        if value not in known:
            known[value] = f"function {len(known)}"  # what calls itself refers to its number
            closure = tuple(cell.cell_contents for cell in value.__closure__ or ())
            defaults = tuple(sorted((value.__kwdefaults__ or {}).items()))
            parts = [told(p) for p in (value.__code__, value.__defaults__, defaults, closure)]
            parts += [f"{name}={told(value.__globals__[name])}" for name in _globals(value.__code__, value.__globals__)]
            return f"{known[value]}: {'; '.join(parts)}"
        return known[value]

    try:
        return told(function)
    except (TypeError, ValueError):  # ValueError: an empty cell
        return None


def _code(code: CodeType, told: Callable[[Any], str]) -> str:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    raised = code.co_exceptiontable
    return told((code.co_code, names, numbers, raised, code.co_consts))


def _globals(code: CodeType, scope: dict[str, Any]) -> list[str]:
    """The names that the code, or a function inside it, looks up in `scope`, sorted; builtins are the same for all."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = {name for c in code.co_consts if isinstance(c, CodeType) for name in _globals(c, scope)}
    return sorted({name for name in found if name in scope} | inner)
