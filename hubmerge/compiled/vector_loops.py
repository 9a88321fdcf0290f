"""The loops over one block that decide a merge's speed, written as LLVM code.

numba's own vectoriser keeps a sum's lanes in memory and turns masks of 16 bits into masks of 32 by detours; here lanes
stay in registers and one word of 16 bits is the mask of 16 elements. All arrays are C-contiguous, none is checked for
its bounds. A block is a multiple of ROWS elements long; rows that a last block lacks are zeros.

    split_bf16(base, raw, start, n, epsilon, delta, active, positive, short, long, found)
    split_float(base, values, n, epsilon, delta, active, positive, short, long, found)

differences of an agent (BF16 patterns, or float32) from the base: delta float32; active and positive, one uint16 of
flags per 16 elements; the magnitudes that are not zero packed into short (those whose lower 16 bits are zero, which
BF16 holds) and long (the others), uint32, VECTOR more than n; found int64[4]: how many are short, how many long, the
largest pattern, and the smallest one less 1 (of none: 2^32 − 1).

    powers(x, n, out)                                  Σx, Σx³, Σx⁴, Σx²
    dot(x, y, n)                                       → Σx·y
    regions(own, alone, shared, merged, step, n, out)  Σo², Σo·m, Σo·s where alone, Σo², Σo·m where shared
    masked_dot(own, mask, step, n)                     → Σo·s where masked

sums in float32 in counting.block_sums's order, returned as float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR = 16  # elements of an instruction, where the processor has such wide ones
COLUMNS = 4  # vectors side by side: the lanes of a sum
GROUP = 4  # rows that are added to each other before they are added to a lane
_INT, _FLOAT, _SHORT, _BIT = (
    ir.VectorType(t, VECTOR) for t in (ir.IntType(32), ir.FloatType(), ir.IntType(16), ir.IntType(1))
)
_I64 = ir.IntType(64)


def _pointer(context, builder, signature, arguments, place, offset, element):
    """Address of element `offset` of array argument `place`, as that of an `element`, or of a vector of elements."""
    data = context.make_array(signature.args[place])(context, builder, arguments[place]).data
    one = element.element if isinstance(element, ir.VectorType) else element
    return builder.bitcast(builder.gep(builder.bitcast(data, one.as_pointer()), [offset]), element.as_pointer())


def _load(builder, address, align):
    loaded = builder.load(address)
    loaded.align = align
    return loaded


def _store(builder, value, address, align):
    builder.store(value, address).align = align


def _prefetch(builder, address):
    """Ask for what will be read soon; an address that is not ours does no harm."""
    number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    settings = [ir.Constant(number, value) for value in (0, 3, 1)]  # to read, from data, into the first cache
    builder.call(function, [builder.bitcast(address, byte), *settings])


def _spread(builder, scalar, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(_INT, [0] * VECTOR))


def _all(value):
    return ir.Constant(_INT, [value] * VECTOR)


def _call(builder, name, kind, arguments):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type for a in arguments]), name)
    return builder.call(function, arguments)


def _pick(builder, name, a, b):
    return _call(builder, f"llvm.{name}.v{VECTOR}i32", _INT, [a, b])


def _lowest(builder, vector, pick):
    """The one value of 16 that `pick` (two vectors → a vector) leaves."""
    width = VECTOR
    while width > 1:
        width //= 2
        upper = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [(i + width) % VECTOR for i in range(VECTOR)])
        vector = pick(vector, builder.shuffle_vector(vector, vector, upper))
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _split(bf16: bool) -> Callable[..., Any]:
    shift = 1 if bf16 else 0  # the argument `start`

    def generate(context, builder, signature, arguments):
        n, epsilon = arguments[2 + shift], _spread(builder, arguments[3 + shift], _FLOAT)
        start = arguments[2] if bf16 else ir.Constant(_I64, 0)
        zero = ir.Constant(_FLOAT, [0.0] * VECTOR)

        def at(place, offset, element):
            return _pointer(context, builder, signature, arguments, place, offset, element)

        counts = [cgutils.alloca_once_value(builder, ir.Constant(_I64, 0)) for _ in range(2)]
        largest, least = (cgutils.alloca_once_value(builder, _all(value)) for value in (0, 0xFFFFFFFF))

        def pack(magnitude, which, place, count):
            packed = _call(
                builder, f"llvm.experimental.vector.compress.v{VECTOR}i32", _INT, [magnitude, which, _all(0)]
            )
            first = builder.load(count)
            _store(builder, packed, at(place, first, _INT), 4)
            more = builder.ctpop(builder.bitcast(which, ir.IntType(VECTOR)))
            builder.store(builder.add(first, builder.zext(more, _I64)), count)

        step = ir.Constant(_I64, VECTOR)
        with cgutils.for_range_slice(builder, ir.Constant(_I64, 0), n, step, _I64) as (i, _):
            if bf16:
                raw = _load(builder, at(1, builder.add(start, i), _SHORT), 2)
                value = builder.bitcast(builder.shl(builder.zext(raw, _INT), _all(16)), _FLOAT)
                _prefetch(builder, at(1, builder.add(builder.add(start, i), n), _SHORT))
            else:
                value = _load(builder, at(1, i, _FLOAT), 4)
            delta = builder.fsub(value, _load(builder, at(0, i, _FLOAT), 4))
            _store(builder, delta, at(4 + shift, i, _FLOAT), 4)
            magnitude = builder.and_(builder.bitcast(delta, _INT), _all(0x7FFFFFFF))
            active = builder.fcmp_ordered(">", builder.bitcast(magnitude, _FLOAT), epsilon)
            positive = builder.and_(active, builder.fcmp_ordered(">", delta, zero))
            word = builder.udiv(i, step)
            for place, flags in ((5 + shift, active), (6 + shift, positive)):
                _store(builder, builder.bitcast(flags, ir.IntType(VECTOR)), at(place, word, ir.IntType(VECTOR)), 2)
            builder.store(_pick(builder, "umax", builder.load(largest), magnitude), largest)
            builder.store(_pick(builder, "umin", builder.load(least), builder.sub(magnitude, _all(1))), least)
            long = builder.icmp_unsigned("!=", builder.and_(magnitude, _all(0xFFFF)), _all(0))
            nonzero = builder.icmp_unsigned("!=", magnitude, _all(0))
            pack(magnitude, builder.and_(nonzero, builder.not_(long)), 7 + shift, counts[0])
            word = builder.bitcast(long, ir.IntType(VECTOR))
            with builder.if_then(builder.icmp_unsigned("!=", word, ir.Constant(ir.IntType(VECTOR), 0))):
                pack(magnitude, long, 8 + shift, counts[1])
        results = [builder.load(count) for count in counts]
        for name, vector in (("umax", largest), ("umin", least)):
            pick = partial(_pick, builder, name)
            results.append(builder.zext(_lowest(builder, builder.load(vector), pick), _I64))
        for number, result in enumerate(results):
            builder.store(result, at(9 + shift, ir.Constant(_I64, number), _I64))
        return context.get_dummy_value()

    return generate


@intrinsic
def split_bf16(typing, base, raw, start, n, epsilon, delta, active, positive, short, long, found):
    signature = types.void(
        base, raw, types.int64, types.int64, types.float32, delta, active, positive, short, long, found
    )  # fmt: skip
    return signature, _split(bf16=True)


@intrinsic
def split_float(typing, base, values, n, epsilon, delta, active, positive, short, long, found):
    signature = types.void(base, values, types.int64, types.float32, delta, active, positive, short, long, found)
    return signature, _split(bf16=False)


def _sums(builder, n, quantities, products):
    """float64 sums of `quantities` products in block_sums's order; products(offset) → so many vectors at an offset."""
    zero = ir.Constant(_FLOAT, [0.0] * VECTOR)
    lanes = [[cgutils.alloca_once_value(builder, zero) for _ in range(quantities)] for _ in range(COLUMNS)]
    width = VECTOR * COLUMNS
    for column in range(COLUMNS):
        step = ir.Constant(_I64, width * GROUP)
        with cgutils.for_range_slice(builder, ir.Constant(_I64, column * VECTOR), n, step, _I64) as (i, _):
            rows = [products(builder.add(i, ir.Constant(_I64, row * width))) for row in range(GROUP)]
            for quantity in range(quantities):
                a, b, c, d = (row[quantity] for row in rows)
                group = builder.fadd(builder.fadd(a, b), builder.fadd(c, d))
                builder.store(builder.fadd(builder.load(lanes[column][quantity]), group), lanes[column][quantity])
    totals = []
    for quantity in range(quantities):
        a, b, c, d = (builder.load(lanes[column][quantity]) for column in range(COLUMNS))
        total = builder.fadd(builder.fadd(a, c), builder.fadd(b, d))
        totals.append(builder.fpext(_lowest(builder, total, builder.fadd), ir.DoubleType()))
    return totals


def _at(context, builder, signature, arguments):
    def load(place, offset):
        return _load(builder, _pointer(context, builder, signature, arguments, place, offset, _FLOAT), 4)

    def flags(place, offset):
        word = builder.udiv(offset, ir.Constant(_I64, VECTOR))
        address = _pointer(context, builder, signature, arguments, place, word, ir.IntType(VECTOR))
        return builder.bitcast(_load(builder, address, 2), _BIT)

    return load, flags


def _keep(context, builder, signature, arguments, place, totals):
    for number, total in enumerate(totals):
        address = _pointer(context, builder, signature, arguments, place, ir.Constant(_I64, number), ir.DoubleType())
        builder.store(total, address)
    return context.get_dummy_value()


@intrinsic
def powers(typing, x, n, out):
    def generate(context, builder, signature, arguments):
        load, _ = _at(context, builder, signature, arguments)

        def products(offset):
            value = load(0, offset)
            square = builder.fmul(value, value)
            return value, builder.fmul(square, value), builder.fmul(square, square), square

        return _keep(context, builder, signature, arguments, 2, _sums(builder, arguments[1], 4, products))

    return types.void(x, types.int64, out), generate


@intrinsic
def dot(typing, x, y, n):
    def generate(context, builder, signature, arguments):
        load, _ = _at(context, builder, signature, arguments)

        def products(offset):
            return (builder.fmul(load(0, offset), load(1, offset)),)

        return _sums(builder, arguments[2], 1, products)[0]

    return types.float64(x, y, types.int64), generate


@intrinsic
def masked_dot(typing, own, mask, step, n):
    def generate(context, builder, signature, arguments):
        load, flags = _at(context, builder, signature, arguments)
        zero = ir.Constant(_FLOAT, [0.0] * VECTOR)

        def products(offset):
            return (builder.select(flags(1, offset), builder.fmul(load(0, offset), load(2, offset)), zero),)

        return _sums(builder, arguments[3], 1, products)[0]

    return types.float64(own, mask, step, types.int64), generate


@intrinsic
def regions(typing, own, alone, shared, merged, step, n, out):
    def generate(context, builder, signature, arguments):
        load, flags = _at(context, builder, signature, arguments)
        zero = ir.Constant(_FLOAT, [0.0] * VECTOR)

        def products(offset):
            value = load(0, offset)
            square, kept = builder.fmul(value, value), builder.fmul(value, load(3, offset))
            moved = builder.fmul(value, load(4, offset))
            only, both = flags(1, offset), flags(2, offset)
            masked = ((only, square), (only, kept), (only, moved), (both, square), (both, kept))
            return tuple(builder.select(mask, product, zero) for mask, product in masked)

        return _keep(context, builder, signature, arguments, 6, _sums(builder, arguments[5], 5, products))

    return types.void(own, alone, shared, merged, step, types.int64, out), generate
