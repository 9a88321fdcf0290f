"""How a block ends, as instructions for LLVM.

    finish_bf16(base, delta, n, out, exact, step, counts)

base + delta (base where delta is 0) in float32, rounded to the nearest BF16 in out (uint16), what that moved from the
base in step; adds to counts int64[3] how many differ from the base, how many were rounded, how many are not finite;
n is a multiple of VECTOR. No array is checked for its bounds.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.compiled.vectors import FLOAT, I64, INT, SHORT, VECTOR, Arguments, every, every_float, number, store


@intrinsic
def finish_bf16(typing, base, delta, n, out, exact, step, counts):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)
        totals = [cgutils.alloca_once_value(builder, number(0)) for _ in range(3)]
        with cgutils.for_range_slice(builder, number(0), arguments[2], number(VECTOR), I64) as (i, _):
            first, update = (given.floats(place, i) for place in (0, 1))
            still = builder.fcmp_ordered("==", update, every_float(0))
            value = builder.select(still, first, builder.fadd(first, update))
            bits = builder.bitcast(value, INT)
            odd = builder.and_(builder.lshr(bits, every(16)), every(1))
            near = builder.lshr(builder.add(builder.add(bits, every(0x7FFF)), odd), every(16))
            near = builder.select(builder.fcmp_unordered("uno", value, value), every(0x7FC0), near)
            stored = builder.bitcast(builder.shl(near, every(16)), FLOAT)
            store(builder, builder.trunc(near, SHORT), given.at(3, i, SHORT), 2)
            store(builder, value, given.at(4, i, FLOAT), 4)
            store(builder, builder.fsub(stored, first), given.at(5, i, FLOAT), 4)
            infinite = builder.icmp_unsigned("==", builder.and_(near, every(0x7F80)), every(0x7F80))
            changed, rounded = (builder.fcmp_unordered("!=", stored, before) for before in (first, value))
            for total, flags in zip(totals, (changed, rounded, infinite), strict=True):
                more = builder.zext(builder.ctpop(builder.bitcast(flags, ir.IntType(VECTOR))), I64)
                builder.store(builder.add(builder.load(total), more), total)
        for place, total in enumerate(totals):
            address = given.at(6, number(place), I64)
            builder.store(builder.add(builder.load(address), builder.load(total)), address)
        return context.get_dummy_value()

    return types.void(base, delta, types.int64, out, exact, step, counts), generate
