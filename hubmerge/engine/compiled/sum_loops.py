"""Sums over one block, as instructions for LLVM, in float32 in counting.block_sums's order, returned as float64.

    powers_1, powers_2 (x, k, n, out)     Σx, Σx³, Σx⁴, Σx² of agent k; of k + 1 too, and Σx·y of both
    dots_2 (x, k, other, n, out)          Σx·y of agent k, and of k + 1, with `other`
    regions (x, k, alone, shared, merged, step, n, out)
                                          Σx², Σx·merged, Σx·step of agent k where alone; Σx², Σx·merged where shared
    masked_dot (x, k, mask, step, n)      → Σx·step of agent k where masked

x[K, n] float32; masks are bits, 64 elements to a word; n is a multiple of GROUP rows; rows that a last block lacks are
zeros. Lanes stay in registers: of more sums at a time they would not. No array is checked for its bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.engine.compiled.vectors import BITS, FLOAT, I64, VECTOR, Arguments, every, halved, load
from hubmerge.engine.counting import GROUP, LANES

_COLUMNS = LANES // VECTOR  # vectors side by side: the lanes of a sum


def _sums(builder, n, quantities, products, together=1):
    """float64 sums of `quantities` products in block_sums's order, over so many columns together as registers allow;
    products(offsets of GROUP rows) yields, quantity by quantity, a vector for each row."""
    lanes = [[cgutils.alloca_once_value(builder, every(0, FLOAT)) for _ in range(quantities)] for _ in range(_COLUMNS)]
    for first in range(0, _COLUMNS, together):
        with cgutils.for_range_slice(builder, I64(first * VECTOR), n, I64(LANES * GROUP), I64) as (i, _):
            for part, column in enumerate(lanes[first : first + together]):
                rows = [builder.add(i, I64(row * LANES + part * VECTOR)) for row in range(GROUP)]
                for lane, (a, b, c, d) in zip(column, products(rows), strict=True):
                    group = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
                    builder.store(builder.fadd(builder.load(lane), group), lane)
    totals = []
    for a, b, c, d in zip(*lanes, strict=True):
        one, other = (builder.fadd(builder.load(x), builder.load(y)) for x, y in ((a, c), (b, d)))
        totals.append(builder.fpext(halved(builder, builder.fadd(one, other), builder.fadd), ir.DoubleType()))
    return totals


def _keep(given, place, totals):
    for k, total in enumerate(totals):
        given.builder.store(total, given.at(place, I64(k), ir.DoubleType()))


def _mask(given, place, offset):
    """The flags of 16 elements from `offset` in argument `place`."""
    kind = ir.IntType(VECTOR)
    word = load(given.builder, given.at(place, given.builder.udiv(offset, I64(VECTOR)), kind), 2)
    return given.builder.bitcast(word, BITS)


def _powers_of(size: int) -> Any:
    """powers_… of `size` agents."""

    @intrinsic
    def powers(typing, x, k, n, out):
        def generate(context, builder, signature, arguments):
            given = Arguments(context, builder, signature, arguments)
            agents = [builder.add(arguments[1], I64(k)) for k in range(size)]

            def products(rows):
                values = [[given.row_floats(0, agent, row) for row in rows] for agent in agents]
                for own in values:
                    squares = [builder.fmul(v, v) for v in own]
                    yield own
                    yield [builder.fmul(s, v) for s, v in zip(squares, own, strict=True)]
                    yield [builder.fmul(s, s) for s in squares]
                    yield squares
                for a in range(size):
                    for b in range(a + 1, size):
                        yield [builder.fmul(v, w) for v, w in zip(values[a], values[b], strict=True)]

            _keep(given, 3, _sums(builder, arguments[2], 4 * size + size * (size - 1) // 2, products))
            return context.get_dummy_value()

        return types.void(x, types.int64, types.int64, out), generate

    return powers


powers_1, powers_2 = map(_powers_of, (1, 2))


@intrinsic
def dots_2(typing, x, k, other, n, out):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)

        def products(rows):
            others = [given.row_floats(0, arguments[2], row) for row in rows]
            for part in range(2):
                agent = builder.add(arguments[1], I64(part))
                own = [given.row_floats(0, agent, row) for row in rows]
                yield [builder.fmul(v, w) for v, w in zip(own, others, strict=True)]

        _keep(given, 4, _sums(builder, arguments[3], 2, products, together=_COLUMNS))
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, types.int64, out), generate


@intrinsic
def regions(typing, x, k, alone, shared, merged, step, n, out):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)
        agent = arguments[1]

        def products(rows):
            merged, moved = ([given.floats(place, row) for row in rows] for place in (4, 5))
            only, both = ([_mask(given, place, row) for row in rows] for place in (2, 3))
            own = [given.row_floats(0, agent, row) for row in rows]
            square = [builder.fmul(v, v) for v in own]
            kept, stored = ([builder.fmul(v, w) for v, w in zip(own, o, strict=True)] for o in (merged, moved))
            for where, what in ((only, square), (only, kept), (only, stored), (both, square), (both, kept)):
                yield [builder.select(m, v, every(0, FLOAT)) for m, v in zip(where, what, strict=True)]

        _keep(given, 7, _sums(builder, arguments[6], 5, products, together=2))
        return context.get_dummy_value()

    return types.void(x, types.int64, alone, shared, merged, step, types.int64, out), generate


@intrinsic
def masked_dot(typing, x, k, mask, step, n):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)

        def products(rows):
            moved = [builder.fmul(given.row_floats(0, arguments[1], row), given.floats(3, row)) for row in rows]
            yield [builder.select(_mask(given, 2, row), v, every(0, FLOAT)) for row, v in zip(rows, moved, strict=True)]

        return _sums(builder, arguments[4], 1, products, together=_COLUMNS)[0]

    return types.float64(x, types.int64, mask, step, types.int64), generate
