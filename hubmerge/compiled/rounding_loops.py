"""The loops over one block that draw, and that finish a BF16 output, written as LLVM code.

No array is checked for its bounds; the last elements of an array, fewer than VECTOR, are done under a mask.

    draw_uniform(first, second, index, n, out)

counter_rng.uniform of the elements index … index + n − 1 in out (float32, up to VECTOR − 1 elements more than n).

    finish_nearest(base, delta, n, recode, first, second, index, out, step, other_step, counts)
    finish_stochastic(…)           finish_nearest_and_other(…)           finish_stochastic_and_other(…)

base + delta (base where delta is 0) in float32, rounded to BF16 in out (uint16), what that moved from the base in step;
adds to counts int64[3] how many differ from the base (if `recode`, from the base rounded to the nearest BF16), how many
were rounded, how many are not finite. Draws are counter_rng's of the elements index …. `and_other`: what the other way
to round would have moved in other_step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.compiled.vectors import BITS, FLOAT, I64, INT, SHORT, VECTOR, Arguments, every, load, store

STEP = 0x9E3779B97F4A7C15  # of counter_rng's counter
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of its mixing
_HALF = VECTOR // 2
_LONG = ir.VectorType(I64, _HALF)
_MASK = ir.IntType(VECTOR)


def _longs(value):
    return ir.Constant(_LONG, [value & 0xFFFF_FFFF_FFFF_FFFF] * _HALF)


def _spread_long(builder, scalar):
    one = builder.insert_element(ir.Constant(_LONG, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), _HALF), [0] * _HALF)
    return builder.shuffle_vector(one, ir.Constant(_LONG, ir.Undefined), zeros)


class _Draws:
    """counter_rng.draws of VECTOR elements after the other."""

    def __init__(self, builder, first, second, index):
        self._builder, self._second = builder, _spread_long(builder, second)
        start = _spread_long(builder, builder.add(builder.mul(index, I64(STEP)), first))
        # of the even elements and of the odd ones, so that the upper halves of both are interleaved by one instruction
        self._counters = [
            cgutils.alloca_once_value(
                builder,
                builder.add(start, ir.Constant(_LONG, [STEP * (2 * i + odd) & (2**64 - 1) for i in range(_HALF)])),
            )
            for odd in range(2)
        ]

    def next(self):
        """The upper 32 bits of the next VECTOR draws."""
        builder, words = self._builder, []
        for counter in self._counters:
            x = builder.load(counter)
            builder.store(builder.add(x, _longs(VECTOR * STEP)), counter)
            x = self._multiplied(x)
            x = builder.xor(builder.xor(x, builder.lshr(x, _longs(31))), self._second)
            # the last step of mixing changes lower bits only
            words.append(builder.bitcast(self._multiplied(x), INT))
        upper = [half * VECTOR + 2 * i + 1 for i in range(_HALF) for half in range(2)]
        return builder.shuffle_vector(*words, ir.Constant(INT, upper))

    def _multiplied(self, x):
        for shift, factor in zip((30, 27), FACTORS, strict=True):
            x = self._builder.mul(self._builder.xor(x, self._builder.lshr(x, _longs(shift))), _longs(factor))
        return x


@intrinsic
def draw_uniform(typing, first, second, index, n, out):
    def generate(context, builder, signature, arguments):
        first, second, index, n, _ = arguments
        draws, unit = _Draws(builder, first, second, index), ir.Constant(FLOAT, [2.0**-24] * VECTOR)
        with cgutils.for_range_slice(builder, I64(0), n, I64(VECTOR), I64) as (i, _):
            whole = builder.sitofp(builder.lshr(draws.next(), every(8)), FLOAT)
            place = Arguments(context, builder, signature, arguments).at(4, i, FLOAT)
            store(builder, builder.fmul(whole, unit), place, 4)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64, types.int64, out), generate


def _nearest(builder, value):
    """Patterns whose upper halves are those of BF16: rounded to nearest, ties to even."""
    bits = builder.bitcast(value, INT)
    odd = builder.and_(builder.lshr(bits, every(16)), every(1))
    return _quiet(builder, value, builder.add(builder.add(bits, every(0x7FFF)), odd))


def _stochastic(builder, value, draw):
    """As _nearest, up with the probability of the lower half; what has none, as an infinity, stays."""
    return _quiet(builder, value, builder.add(builder.bitcast(value, INT), builder.lshr(draw, every(16))))


def _quiet(builder, value, bits):
    """Without the lower halves, and a NaN as dtypes.encode has it."""
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.and_(builder.select(nan, every(0x7FC00000), bits), every(0xFFFF0000))


def _finish(stochastic: bool, and_other: bool) -> Callable[..., Any]:
    def generate(context, builder, signature, arguments):
        _, _, n, recode, first, second, index, *_ = arguments
        draws = _Draws(builder, first, second, index) if stochastic or and_other else None
        totals = [cgutils.alloca_once_value(builder, I64(0)) for _ in range(3)]

        at = Arguments(context, builder, signature, arguments).at

        def finish(i, recoded, among):
            """VECTOR elements from i; of fewer, those `among` say."""
            base, update = (load(builder, at(place, i, FLOAT), 4) for place in (0, 1))
            still = builder.fcmp_ordered("==", update, ir.Constant(FLOAT, [0.0] * VECTOR))
            value = builder.select(still, base, builder.fadd(base, update))
            draw = None if draws is None else draws.next()
            bits = _stochastic(builder, value, draw) if stochastic else _nearest(builder, value)
            stored = builder.bitcast(bits, FLOAT)
            output = builder.trunc(builder.lshr(bits, every(16)), SHORT)
            if among is None:
                store(builder, output, at(7, i, SHORT), 2)
            else:
                arguments = [output, at(7, i, SHORT), ir.IntType(32)(2), builder.bitcast(among, BITS)]
                kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
                name = f"llvm.masked.store.v{VECTOR}i16.p0"
                builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
            store(builder, builder.fsub(stored, base), at(8, i, FLOAT), 4)
            if and_other:
                other = _nearest(builder, value) if stochastic else _stochastic(builder, value, draw)
                store(builder, builder.fsub(builder.bitcast(other, FLOAT), base), at(9, i, FLOAT), 4)
            before = builder.bitcast(_nearest(builder, base), FLOAT) if recoded else base
            infinite = builder.icmp_unsigned("==", builder.and_(bits, every(0x7F800000)), every(0x7F800000))
            changed, rounded = (builder.fcmp_unordered("!=", stored, known) for known in (before, value))
            for total, flags in zip(totals, (changed, rounded, infinite), strict=True):
                word = builder.bitcast(flags, _MASK)
                word = word if among is None else builder.and_(word, among)
                builder.store(builder.add(builder.load(total), builder.zext(builder.ctpop(word), I64)), total)

        def loop(recoded):
            left = builder.urem(n, I64(VECTOR))
            whole = builder.sub(n, left)
            with cgutils.for_range_slice(builder, I64(0), whole, I64(VECTOR), I64) as (i, _):
                finish(i, recoded, None)
            with builder.if_then(builder.icmp_unsigned("!=", left, I64(0))):
                ones = builder.shl(ir.IntType(32)(1), builder.trunc(left, ir.IntType(32)))
                finish(whole, recoded, builder.trunc(builder.sub(ones, ir.IntType(32)(1)), _MASK))

        with builder.if_else(recode) as (recoded, same):
            with recoded:
                loop(recoded=True)
            with same:
                loop(recoded=False)
        for number, total in enumerate(totals):
            address = at(10, I64(number), I64)
            builder.store(builder.add(builder.load(address), builder.load(total)), address)
        return context.get_dummy_value()

    return generate


def _signature(base, delta, out, step, other_step, counts):
    number = types.uint64
    return types.void(
        base, delta, types.int64, types.boolean, number, number, types.int64, out, step, other_step, counts
    )


@intrinsic
def finish_nearest(typing, base, delta, n, recode, first, second, index, out, step, other_step, counts):
    return _signature(base, delta, out, step, other_step, counts), _finish(stochastic=False, and_other=False)


@intrinsic
def finish_stochastic(typing, base, delta, n, recode, first, second, index, out, step, other_step, counts):
    return _signature(base, delta, out, step, other_step, counts), _finish(stochastic=True, and_other=False)


@intrinsic
def finish_nearest_and_other(typing, base, delta, n, recode, first, second, index, out, step, other_step, counts):
    return _signature(base, delta, out, step, other_step, counts), _finish(stochastic=False, and_other=True)


@intrinsic
def finish_stochastic_and_other(typing, base, delta, n, recode, first, second, index, out, step, other_step, counts):
    return _signature(base, delta, out, step, other_step, counts), _finish(stochastic=True, and_other=True)
