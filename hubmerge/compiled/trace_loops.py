"""A kernel's trace (kernel_trace.py) as a loop over elements, VECTOR of them in every step, written as LLVM code."""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.compiled.kernel_trace import COMPARISONS, Trace
from hubmerge.compiled.vectors import BITS, FLOAT, I64, VECTOR, Arguments, call, load, spread, store

_INPUTS, _PER_AGENT, _CONSTANTS, _N, _OUT = range(5)  # kernel_loops.LOOP
_WORD = ir.IntType(32)


def loop_of(trace: Trace) -> Any:
    """The intrinsic of kernel_loops.LOOP's arguments."""

    @intrinsic
    def loop(typing, inputs, per_agent, constants, n, out):
        def generate(context, builder, signature, arguments):
            given = Arguments(context, builder, signature, arguments)

            def spread_out(address):
                return spread(builder, load(builder, address, 4))

            scalars = {
                step: spread_out(given.row(_PER_AGENT, I64(step[1]), I64(step[2]), FLOAT.element))
                if step[0] == "scalar"
                else spread_out(given.at(_CONSTANTS, I64(step[1]), FLOAT.element))
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
                        address = given.row(_INPUTS, I64(step[1]), i, FLOAT)
                        values.append(_load_some(builder, address, among))
                    else:
                        values.append(_step(builder, step, values))
                _store_some(builder, values[trace.result], given.at(_OUT, i, FLOAT), among)

            left = builder.urem(arguments[_N], I64(VECTOR))
            whole = builder.sub(arguments[_N], left)
            with cgutils.for_range_slice(builder, I64(0), whole, I64(VECTOR), I64) as (i, _):
                elements(i, None)
            with builder.if_then(builder.icmp_unsigned("!=", left, I64(0))):
                ones = builder.sub(builder.shl(_WORD(1), builder.trunc(left, _WORD)), _WORD(1))
                elements(whole, builder.bitcast(builder.trunc(ones, ir.IntType(VECTOR)), BITS))
            return I64(0)

        return types.int64(inputs, per_agent, constants, types.int64, out), generate

    return loop


def _step(builder, step, values):
    operation = step[0]
    if operation == "literal":
        [value] = struct.unpack("<f", struct.pack("<I", step[1]))
        return ir.Constant(FLOAT, [value] * VECTOR)
    operands = [values[k] for k in step[1:]]
    if operation in COMPARISONS:
        compare = builder.fcmp_unordered if operation == "ne" else builder.fcmp_ordered
        return compare(COMPARISONS[operation], *operands)
    if operation == "abs":
        return call(builder, f"llvm.fabs.v{VECTOR}f32", FLOAT, operands)
    made = {
        "add": builder.fadd, "sub": builder.fsub, "mul": builder.fmul, "div": builder.fdiv, "neg": builder.fneg,
        "where": builder.select, "and": builder.and_, "or": builder.or_, "xor": builder.xor, "not": builder.not_,
    }  # fmt: skip
    return made[operation](*operands)


def _load_some(builder, address, among):
    if among is None:
        return load(builder, address, 4)
    nothing = ir.Constant(FLOAT, [0.0] * VECTOR)
    return call(builder, f"llvm.masked.load.v{VECTOR}f32.p0", FLOAT, [address, _WORD(4), among, nothing])


def _store_some(builder, value, address, among):
    if among is None:
        store(builder, value, address, 4)
    else:
        call(builder, f"llvm.masked.store.v{VECTOR}f32.p0", ir.VoidType(), [value, address, _WORD(4), among])
