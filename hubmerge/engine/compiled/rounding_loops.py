"""The loops over one block that draw, and that finish a BF16 output, written as LLVM code.

    draw_uniform(first, second, index, n, out)

counter_rng.uniform of the elements index … index + n − 1 in out (float32, up to VECTOR − 1 elements more than n).

    finish_bf16(base, delta, n, recode, stochastic, has_other, first, second, index, out, step, other_step, counts)

base + delta (base where delta is 0) in float32, rounded to BF16 in out[n] (uint16), what that moved from the base in
step; if `has_other`, what the other way to round would have moved in other_step; both float32, up to VECTOR − 1
elements more than n. Adds to counts int64[3] how many differ from the base (if `recode`, from the base rounded to the
nearest BF16), how many were rounded, how many are not finite. Draws are counter_rng's of the elements index …. No array
is checked for its bounds.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.counter_rng import FACTORS, GOLDEN
from hubmerge.engine.compiled.vectors import (
    FLOAT,
    I64,
    INT,
    SHORT,
    VECTOR,
    Arguments,
    every,
    for_vectors,
    how_many,
    spread,
    store,
    store_some,
)

_LONG = ir.VectorType(I64, VECTOR // 2)


class _Draws:
    """counter_rng.draws of VECTOR elements after the other."""

    def __init__(self, builder, first, second, index):
        self._builder, self._second = builder, spread(builder, second, _LONG.count)
        start = spread(builder, builder.add(builder.mul(index, I64(GOLDEN)), first), _LONG.count)
        # of the even elements and of the odd ones, so that the upper halves of both are interleaved by one instruction
        self._counters = []
        for odd in range(2):
            ahead = ir.Constant(_LONG, [GOLDEN * (2 * i + odd) % 2**64 for i in range(_LONG.count)])
            self._counters.append(cgutils.alloca_once_value(builder, builder.add(start, ahead)))

    def next(self):
        """The upper 32 bits of the next VECTOR draws, of which only the lowest is not theirs."""
        builder, words = self._builder, []
        for counter in self._counters:
            x = builder.load(counter)
            builder.store(builder.add(x, every(VECTOR * GOLDEN % 2**64, _LONG)), counter)
            x = self._multiplied(x)
            x = builder.xor(builder.xor(x, builder.lshr(x, every(31, _LONG))), self._second)
            # the last step of mixing, which is left out, changes the lower 33 bits only
            words.append(builder.bitcast(self._multiplied(x), INT))
        upper = [half * VECTOR + 2 * i + 1 for i in range(_LONG.count) for half in range(2)]
        return builder.shuffle_vector(*words, ir.Constant(INT, upper))

    def _multiplied(self, x):
        builder = self._builder
        for shift, factor in zip((30, 27), FACTORS, strict=True):
            x = builder.mul(builder.xor(x, builder.lshr(x, every(shift, _LONG))), every(factor, _LONG))
        return x


@intrinsic
def draw_uniform(typing, first, second, index, n, out):
    def generate(context, builder, signature, arguments):
        first, second, index, n, _ = arguments
        given, draws = Arguments(context, builder, signature, arguments), _Draws(builder, first, second, index)
        with cgutils.for_range_slice(builder, I64(0), n, I64(VECTOR), I64) as (i, _):
            whole = builder.sitofp(builder.lshr(draws.next(), every(8)), FLOAT)
            store(builder, builder.fmul(whole, every(2.0**-24, FLOAT)), given.at(4, i, FLOAT), 4)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64, types.int64, out), generate


def _rounded(builder, value, draw=None):
    """Patterns whose upper halves are those of BF16, a NaN's as dtypes.encode has it, the lower ones zero: to nearest,
    ties to even, or with a draw up with the probability of the lower half; what has none, as an infinity, stays."""
    bits = builder.bitcast(value, INT)
    if draw is None:
        odd = builder.and_(builder.lshr(bits, every(16)), every(1))
        bits = builder.add(builder.add(bits, every(0x7FFF)), odd)
    else:
        bits = builder.add(bits, builder.lshr(draw, every(16)))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.and_(builder.select(nan, every(0x7FC00000), bits), every(0xFFFF0000))


@intrinsic
def finish_bf16(
    typing, base, delta, n, recode, stochastic, has_other, first, second, index, out, step, other_step, counts
):
    def generate(context, builder, signature, arguments):
        _, _, n, *flags, first, second, index, _, _, _, _ = arguments
        given = Arguments(context, builder, signature, arguments)
        totals = [cgutils.alloca_once_value(builder, I64(0)) for _ in range(3)]

        def loop(recode, stochastic, has_other):
            draws = _Draws(builder, first, second, index) if stochastic or has_other else None

            def finish(i, among):
                base, update = given.floats(0, i), given.floats(1, i)
                still = builder.fcmp_ordered("==", update, every(0, FLOAT))
                value = builder.select(still, base, builder.fadd(base, update))
                draw = None if draws is None else draws.next()
                bits = _rounded(builder, value, draw if stochastic else None)
                stored = builder.bitcast(bits, FLOAT)
                output = builder.trunc(builder.lshr(bits, every(16)), SHORT)
                store_some(builder, output, given.at(9, i, SHORT), 2, among)
                store(builder, builder.fsub(stored, base), given.at(10, i, FLOAT), 4)
                if has_other:
                    other = builder.bitcast(_rounded(builder, value, None if stochastic else draw), FLOAT)
                    store(builder, builder.fsub(other, base), given.at(11, i, FLOAT), 4)
                before = builder.bitcast(_rounded(builder, base), FLOAT) if recode else base
                infinite = builder.icmp_unsigned("==", builder.and_(bits, every(0x7F800000)), every(0x7F800000))
                changed, rounded = (builder.fcmp_unordered("!=", stored, known) for known in (before, value))
                for total, found in zip(totals, (changed, rounded, infinite), strict=True):
                    found = found if among is None else builder.and_(found, among)
                    builder.store(builder.add(builder.load(total), how_many(builder, found)), total)

            for_vectors(builder, n, finish)

        _branches(builder, flags, loop)
        for place, total in enumerate(totals):
            address = given.at(12, I64(place), I64)
            builder.store(builder.add(builder.load(address), builder.load(total)), address)
        return context.get_dummy_value()

    flag, word, length = types.boolean, types.uint64, types.int64
    signature = types.void(base, delta, length, flag, flag, flag, word, word, length, out, step, other_step, counts)
    return signature, generate


def _branches(builder, flags, work, *known):
    """work(…) for the values of all flags, so that no element asks for them."""
    if not flags:
        work(*known)
        return
    with builder.if_else(flags[0]) as (yes, no):
        for value, branch in ((True, yes), (False, no)):
            with branch:
                _branches(builder, flags[1:], work, *known, value)
