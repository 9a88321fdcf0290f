"""The loop over elements around a method's kernel, as machine code that stays between processes.

A method's kernel is the very function that runs eagerly. The loop around it is generated, so that the values of an
element and the scalars are named and the compiler sees no array of pointers: only then is it vectorised. Compiling
takes 0.4 s, so the code is kept (kept_code.py) under the digest of the loop's text, of this file, and of the kernel's
meaning: its bytecode with its constants, and the same of every function that it refers to. A kernel that refers to
anything whose meaning is not plain is compiled in every process.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from uuid import uuid4

from llvmlite.binding import set_option  # type: ignore[import-untyped]
from numba import njit
from numba.extending import overload

from hubmerge.compiled import kept_code
from hubmerge.compiled.kept_code import digest_of_files, keep, numbas_folder
from hubmerge.compiled.pass_types import APPLY, STRICT
from hubmerge.methods import ops

# a kernel's loop over five agents or more stays a loop otherwise, and then that over elements is not vectorised
_UNROLL_THRESHOLD = 8000
_LLVMS_UNROLL_THRESHOLD = 300  # at numba's level of optimisation
_one_compiles = threading.Lock()


# numba compares the parameters with those of what is returned, which cannot be annotated
def _where(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


def _absolute(x):
    return lambda x: abs(x)


_COMPILED_AS: dict[Any, Any] = {ops.where: _where, ops.absolute: _absolute}
for _operation, _implementation in _COMPILED_AS.items():
    overload(_operation)(_implementation)


def kernel_loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Any:
    """The compiled loop: (inputs[rows, ≥ n], per_agent[agents, columns], constants, n, out[≥ n]) as APPLY says, for
    `inputs` rows: the deltas and the method's extras."""
    with _one_compiles:  # the first chunks of all threads ask at once
        return _loop(kernel, agents, inputs, columns, constants)


@cache
def _loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Any:
    return compile_loop(kernel, agents, inputs, columns, constants, numbas_folder())


def compile_loop(
    kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int, folder: Path | None
) -> Any:
    """`kernel_loop`, its machine code from `folder` or compiled and kept there."""
    source = _source(agents, inputs, columns, constants)
    meaning = meaning_of(kernel)
    settings = repr((str(APPLY), sorted(STRICT.items())))
    told = (digest_of_files(sys.modules[__name__], kept_code), source, settings, meaning or uuid4().hex)
    identity = sha256("\n".join(told).encode()).hexdigest()
    scope: dict[str, Any] = {"__name__": __name__, "kernel": njit(**STRICT)(_named(kernel, f"kernel_{identity}"))}
    exec(source, scope)  # noqa: S102 (the text is made from four integers)
    loop = njit(**STRICT)(_named(scope["loop"], f"loop_{identity}"))
    if meaning is not None:
        loop = keep(loop, identity, folder)
    set_option("hubmerge", f"-unroll-threshold={_UNROLL_THRESHOLD}")
    try:
        loop.compile(APPLY)
    finally:
        set_option("hubmerge", f"-unroll-threshold={_LLVMS_UNROLL_THRESHOLD}")
    loop.disable_compile()
    return _found_at_once(loop)


def _found_at_once(loop: Any) -> Any:
    """The loop, which has one signature. Whenever it is given to compiled code, numba asks twice where it lies, and
    looks it up by types and by name each time, which takes longer than all else that a chunk costs."""
    result = loop.get_compile_result(APPLY)
    loop.get_compile_result = lambda signature: result
    result.library.get_pointer_to_function = cache(result.library.get_pointer_to_function)
    return loop


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A copy under another name. Symbols of machine code are made from names and a number that begins anew in every
    process: of two functions of one name, one kept and one compiled now, the linker would run the first for both."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = name
    copy.__module__ = __name__
    return copy


def _source(agents: int, inputs: int, columns: int, constants: int) -> str:
    rows = "; ".join(f"r{k} = inputs[{k}]" for k in range(inputs))
    element = ", ".join(f"r{k}[i]" for k in range(inputs))
    scalars = ", ".join("(" + "".join(f"per_agent[{k}, {c}], " for c in range(columns)) + ")" for k in range(agents))
    shared = "".join(f"constants[{c}], " for c in range(constants))
    return (
        f"def loop(inputs, per_agent, constants, n, out):\n"
        f"    {rows}\n"
        f"    scalars = ({scalars},)\n"
        f"    shared = ({shared})\n"
        f"    for i in range(n):\n"
        f"        out[i] = kernel(({element},), scalars, shared)\n"
    )


def meaning_of(function: Callable[..., Any]) -> str | None:
    """A text that differs between functions that numba could compile to different code; None where that is not
    known."""
    known: dict[Any, str] = {}

    def told(value: Any) -> str:
        if isinstance(value, FunctionType):
            value = _COMPILED_AS.get(value, value)
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
