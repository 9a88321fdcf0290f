"""The way into compiled code: words (machine_code.py) become the arguments of a function that numba compiles.

Nothing here or below counts references: arrays are views of what Python holds, none is made, so that the object needs
no symbol of numba's and can be linked without it. A function as numba compiles it is `status f(result, exception,
arguments…)` in C; with one argument, a pointer to words, that is what Python and other compiled code call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import set_option  # type: ignore[import-untyped]
from numba import _dynfunc, njit, types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array

from hubmerge.engine.compiled.kernel_meaning import COMPILED_AS
from hubmerge.engine.compiled.machine_code import OWN_WORDS, Kind, Kinds, ObjectCode, length
from hubmerge.engine.compiled.vector_code import from_bits

# division as numpy's, strict floating point, no counting of references, and no way in but this module's
INNER: dict[str, Any] = {
    "error_model": "numpy", "fastmath": False, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
_LLVMS_UNROLL_THRESHOLD = 300  # at numba's level of optimisation

for _operation, _implementation in COMPILED_AS.items():
    overload(_operation)(_implementation)


@intrinsic
def array_at(typing, address, shape, dtype):
    """The C-contiguous array of a numpy scalar type at an address. (numba's carray wants to count references.)"""

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.return_type)(context, builder)
        lengths = cgutils.unpack_tuple(builder, arguments[1], shape.count)
        size = context.get_constant(types.intp, dtype.dtype.bitwidth // 8)
        strides = [size]
        for count in lengths[:0:-1]:
            strides.insert(0, builder.mul(strides[0], count))
        data = builder.inttoptr(arguments[0], made.data.type)
        populate_array(made, data, lengths, strides, size, None)
        return made._getvalue()

    return types.Array(dtype.dtype, shape.count, "C")(types.uint64, shape, dtype), generate


@intrinsic
def call_code(typing, address, words):
    """Calls machine_code.Code at an address with the words in an array; its status, 0 where all is well."""

    def generate(context, builder, signature, arguments):
        status, byte, word = ir.IntType(32), ir.IntType(8).as_pointer(), ir.IntType(64)
        kind = ir.FunctionType(status, [byte, byte, byte])
        data = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        places = [builder.bitcast(builder.gep(data, [word(k)]), byte) for k in (0, 1, OWN_WORDS)]
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), places)

    return types.int32(types.uint64, words), generate


def object_code(
    function: Any, name: str, kinds: Kinds, digest: str, unroll_threshold: int = _LLVMS_UNROLL_THRESHOLD
) -> ObjectCode:
    """`function` (of njit(**INNER)) with arguments of `kinds`, compiled under symbols that the digest makes unique."""
    scope = {"function": function, "array_at": array_at, "from_bits": from_bits, "np": np}
    exec(_source(kinds), scope)  # noqa: S102 (the text is made from `kinds`, which are constants of this package)
    with global_compiler_lock:  # LLVM's options belong to the process
        set_option("hubmerge", f"-unroll-threshold={unroll_threshold}")
        try:
            return _compiled(named(scope["entry"], f"{name}_{digest}"))
        finally:
            set_option("hubmerge", f"-unroll-threshold={_LLVMS_UNROLL_THRESHOLD}")


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A copy under another name. Symbols of machine code are made from names and a number that begins anew in every
    process: of two functions of one name, one kept and one compiled now, a linker could take one for the other."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = name
    copy.__module__ = __name__
    return copy


def _compiled(entry: Callable[..., Any]) -> ObjectCode:
    dispatcher = njit(**INNER)(entry)
    with _nothing_executable():
        dispatcher.compile((types.CPointer(types.uint64),))
        [result] = dispatcher.overloads.values()
        result.library._ensure_finalized()
    image = result.library.codegen._tm.emit_object(result.library._final_module)
    return ObjectCode(result.fndesc.llvm_func_name, image)


@contextmanager
def _nothing_executable() -> Iterator[None]:
    """numba puts every function that it compiles into this process, those too that others call and contain; here an
    object is all that is wanted."""
    context = cpu_target.target_context

    def described(library, fndesc, env):
        name = fndesc.qualname.split(".")[-1]
        return _dynfunc.make_function(fndesc.lookup_module(), name, "", 0, env, (library,))

    context.get_executable = described
    try:
        yield
    finally:
        del context.get_executable


def _source(kinds: Kinds) -> str:
    place = 0

    def value(kind: Kind) -> str:
        nonlocal place
        if isinstance(kind, tuple):
            return f"({', '.join(map(value, kind))},)"
        first, place = place, place + length(kind)
        scalar = f"np.{kind.partition('[')[0]}"
        if shape := [f"np.int64(w[{k}])" for k in range(first + 1, place)]:
            return f"array_at(w[{first}], ({', '.join(shape)},), {scalar})"
        if kind == "float32":
            return f"from_bits(np.uint32(w[{first}]))"
        return f"w[{first}] != 0" if kind == "bool" else f"{scalar}(w[{first}])"

    return f"def entry(w):\n    return function({', '.join(map(value, kinds))})\n"
