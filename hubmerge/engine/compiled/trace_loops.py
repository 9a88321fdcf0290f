"""A kernel's trace (kernel_trace.py) as a loop over elements, VECTOR of them in every step, written as LLVM code."""

from __future__ import annotations

import struct
from typing import Any

from numba import types
from numba.extending import intrinsic

from hubmerge.engine.compiled.kernel_trace import COMPARISONS, Trace
from hubmerge.engine.compiled.vectors import (
    FLOAT,
    I64,
    Arguments,
    every,
    for_vectors,
    lanewise,
    load,
    load_some,
    spread,
    store_some,
)

_INPUTS, _PER_AGENT, _CONSTANTS, _N, _OUT = range(5)  # kernel_loops.LOOP


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
                        values.append(load_some(builder, address, 4, among))
                    else:
                        values.append(_step(builder, step, values))
                store_some(builder, values[trace.result], given.at(_OUT, i, FLOAT), 4, among)

            for_vectors(builder, arguments[_N], elements)
            return I64(0)

        return types.int64(inputs, per_agent, constants, types.int64, out), generate

    return loop


def _step(builder, step, values):
    operation = step[0]
    if operation == "literal":
        [value] = struct.unpack("<f", struct.pack("<I", step[1]))
        return every(value, FLOAT)
    operands = [values[k] for k in step[1:]]
    if operation in COMPARISONS:
        compare = builder.fcmp_unordered if operation == "ne" else builder.fcmp_ordered
        return compare(COMPARISONS[operation], *operands)
    if operation == "abs":
        return lanewise(builder, "fabs", *operands)
    made = {
        "add": builder.fadd, "sub": builder.fsub, "mul": builder.fmul, "div": builder.fdiv, "neg": builder.fneg,
        "where": builder.select, "and": builder.and_, "or": builder.or_, "xor": builder.xor, "not": builder.not_,
    }  # fmt: skip
    return made[operation](*operands)
