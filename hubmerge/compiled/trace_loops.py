"""A kernel's trace (kernel_trace.py) as a loop over elements, VECTOR of them in every step, written as LLVM code."""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.compiled.kernel_trace import COMPARISONS, Trace
from hubmerge.compiled.vector_loops import _BIT, _FLOAT, _I64, VECTOR, _call, _load, _pointer, _spread, _store

_INPUTS, _PER_AGENT, _CONSTANTS, _N, _OUT = range(5)  # kernel_loops.LOOP
_WORD = ir.IntType(32)


def loop_of(trace: Trace) -> Any:
    """The intrinsic of kernel_loops.LOOP's arguments."""

    @intrinsic
    def loop(typing, inputs, per_agent, constants, n, out):
        def generate(context, builder, signature, arguments):
            def width(place):
                """The length of an array's rows."""
                array = context.make_array(signature.args[place])(context, builder, arguments[place])
                return builder.extract_value(array.shape, 1)

            def at(place, offset, element):
                return _pointer(context, builder, signature, arguments, place, offset, element)

            def spread(place, offset):
                return _spread(builder, _load(builder, at(place, offset, _FLOAT.element), 4), _FLOAT)

            row, columns = width(_INPUTS), width(_PER_AGENT)
            scalars = {
                step: spread(_PER_AGENT, builder.add(builder.mul(_I64(step[1]), columns), _I64(step[2])))
                if step[0] == "scalar"
                else spread(_CONSTANTS, _I64(step[1]))
                for step in trace.steps
                if step[0] in ("scalar", "constant")
            }

            def elements(i, among):
                """VECTOR elements from i; of fewer, those `among` say."""
                values: list[Any] = []
                for step in trace.steps:
                    if step in scalars:
                        values.append(scalars[step])
                    elif step[0] == "input":
                        address = at(_INPUTS, builder.add(builder.mul(_I64(step[1]), row), i), _FLOAT)
                        values.append(_load_some(builder, address, among))
                    else:
                        values.append(_step(builder, step, values))
                _store_some(builder, values[trace.result], at(_OUT, i, _FLOAT), among)

            left = builder.urem(arguments[_N], _I64(VECTOR))
            whole = builder.sub(arguments[_N], left)
            with cgutils.for_range_slice(builder, _I64(0), whole, _I64(VECTOR), _I64) as (i, _):
                elements(i, None)
            with builder.if_then(builder.icmp_unsigned("!=", left, _I64(0))):
                ones = builder.sub(builder.shl(_WORD(1), builder.trunc(left, _WORD)), _WORD(1))
                elements(whole, builder.bitcast(builder.trunc(ones, ir.IntType(VECTOR)), _BIT))
            return _I64(0)

        return types.int64(inputs, per_agent, constants, types.int64, out), generate

    return loop


def _step(builder, step, values):
    operation = step[0]
    if operation == "literal":
        [value] = struct.unpack("<f", struct.pack("<I", step[1]))
        return ir.Constant(_FLOAT, [value] * VECTOR)
    operands = [values[k] for k in step[1:]]
    if operation in COMPARISONS:
        compare = builder.fcmp_unordered if operation == "ne" else builder.fcmp_ordered
        return compare(COMPARISONS[operation], *operands)
    if operation == "abs":
        return _call(builder, f"llvm.fabs.v{VECTOR}f32", _FLOAT, operands)
    made = {
        "add": builder.fadd, "sub": builder.fsub, "mul": builder.fmul, "div": builder.fdiv, "neg": builder.fneg,
        "where": builder.select, "and": builder.and_, "or": builder.or_, "xor": builder.xor, "not": builder.not_,
    }  # fmt: skip
    return made[operation](*operands)


def _load_some(builder, address, among):
    if among is None:
        return _load(builder, address, 4)
    nothing = ir.Constant(_FLOAT, [0.0] * VECTOR)
    return _call(builder, f"llvm.masked.load.v{VECTOR}f32.p0", _FLOAT, [address, _WORD(4), among, nothing])


def _store_some(builder, value, address, among):
    if among is None:
        _store(builder, value, address, 4)
    else:
        _call(builder, f"llvm.masked.store.v{VECTOR}f32.p0", ir.VoidType(), [value, address, _WORD(4), among])
