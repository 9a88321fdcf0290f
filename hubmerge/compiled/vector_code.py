"""What numba's own language lacks, as instructions for LLVM, which spells them out where the processor has none.

    pack_keys(base, agent, start, keys, places, place)             → how many
    pack_lower(base, agent, start, wanted, lower, places, place)   → how many
    pack_words(source, start, target, place)                       → how many

look at KEYS elements and write uint16 in their order, with places (uint16; or None) of the elements beside them, KEYS
of either. The first two look at agent − base from `start`, both BF16 patterns (uint16) or float32, rounded to float32:
at the keys (selection.py) that are not zero; at the lower halves of those whose key is `wanted`. The last looks at
words (uint16) that are not zero. No array is checked for its bounds.

    widen(value)     BF16 pattern (uint16) or float32 → float32
    to_half(value)   float32 → F16 bits (uint16), to nearest, ties to even
    from_half(bits)  F16 bits → float32
    from_bits(x)     uint32 pattern → float32
    popcount(word)   bits set in a uint64
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.compiled.layout import KEYS

VECTOR = 16
AHEAD = 4096  # elements
_WORDS = ir.VectorType(ir.IntType(32), VECTOR)
_FLOATS = ir.VectorType(ir.FloatType(), VECTOR)
_HALVES = ir.VectorType(ir.IntType(16), KEYS)


def _all(value):
    return ir.Constant(_WORDS, [value] * VECTOR)


def _halves(value):
    return ir.Constant(_HALVES, [value] * KEYS)


def _spread_half(builder, scalar):
    one = builder.insert_element(ir.Constant(_HALVES, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), KEYS), [0] * KEYS)
    return builder.shuffle_vector(one, ir.Constant(_HALVES, ir.Undefined), zeros)


class _Arrays:
    """The array arguments of one call."""

    def __init__(self, context, builder, signature, arguments):
        self._context, self._builder, self._signature, self._arguments = context, builder, signature, arguments

    def is_none(self, array):
        return isinstance(self._signature.args[array], types.NoneType)

    def dtype(self, array):
        return self._signature.args[array].dtype

    def load(self, array, offset, vector):
        """`vector` from element `offset` of argument `array`."""
        loaded = self._builder.load(self._address(array, offset, vector))
        loaded.align = self.dtype(array).bitwidth // 8
        return loaded

    def prefetch(self, array, offset):
        """Ask for what lies AHEAD of element `offset` of argument `array` and may be behind its end: a chunk's rows
        are read by turns, and at every turn the processor would have to notice anew that a row is read in order."""
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        fetch = cgutils.get_or_insert_function(
            self._builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0"
        )
        ahead = self._builder.add(offset, ir.Constant(offset.type, AHEAD))
        address = self._builder.bitcast(self._address(array, ahead, ir.IntType(8)), byte)
        self._builder.call(fetch, [address, number(0), number(2), number(1)])  # to read, into the second level, data

    def pack(self, halves, found, array, offset):
        """The halves that are flagged, to element `offset` of argument `array`."""
        compress = cgutils.get_or_insert_function(
            self._builder.module,
            ir.FunctionType(_HALVES, [_HALVES, found.type, _HALVES]),
            f"llvm.experimental.vector.compress.v{KEYS}i16",
        )
        packed = self._builder.call(compress, [halves, found, _halves(0)])
        self._builder.store(packed, self._address(array, offset, _HALVES)).align = 2

    def _address(self, array, offset, vector):
        arguments = self._arguments
        data = self._context.make_array(self._signature.args[array])(
            self._context, self._builder, arguments[array]
        ).data
        return self._builder.bitcast(self._builder.gep(data, [offset]), vector.as_pointer())


def _how_many(builder, found):
    return builder.zext(builder.ctpop(builder.bitcast(found, ir.IntType(KEYS))), ir.IntType(64))


def _differences(builder, arrays, start):
    """Upper and lower halves of the patterns of arguments 1 − 0, KEYS elements from `start`."""
    if arrays.dtype(0) == types.uint16:
        # two BF16 in a word: the odd element is the word without the even one, the even one is shifted to its place
        for array in range(2):
            arrays.prefetch(array, start)
        base, agent = (arrays.load(array, start, _WORDS) for array in range(2))
        odd, even = (
            builder.bitcast(
                builder.fsub(builder.bitcast(of(agent), _FLOATS), builder.bitcast(of(base), _FLOATS)), _WORDS
            )
            for of in (
                lambda words: builder.and_(words, _all(0xFFFF0000)),
                lambda words: builder.shl(words, _all(16)),
            )
        )
        upper = builder.or_(builder.and_(odd, _all(0xFFFF0000)), builder.lshr(even, _all(16)))
        lower = builder.or_(builder.shl(odd, _all(16)), builder.and_(even, _all(0xFFFF)))
        return builder.bitcast(upper, _HALVES), builder.bitcast(lower, _HALVES)
    places = start, builder.add(start, ir.Constant(start.type, VECTOR))
    for array in range(2):
        for place in places:
            arrays.prefetch(array, place)
    first, second = (
        builder.bitcast(builder.fsub(arrays.load(1, place, _FLOATS), arrays.load(0, place, _FLOATS)), _HALVES)
        for place in places
    )
    return tuple(
        builder.shuffle_vector(
            first,
            second,
            ir.Constant(ir.VectorType(ir.IntType(32), KEYS), [2 * i + half for i in range(KEYS)]),
        )
        for half in (1, 0)
    )


def _keys(builder, upper, lower):
    """Twice the upper half, which leaves out the sign, and 1 where the lower half is not zero."""
    some = builder.icmp_unsigned("!=", lower, _halves(0))
    return builder.or_(builder.add(upper, upper), builder.zext(some, _HALVES))


def _pack_places(builder, arrays, start, found, array, offset):
    if not arrays.is_none(array):
        first = _spread_half(builder, builder.trunc(start, ir.IntType(16)))
        arrays.pack(builder.add(first, ir.Constant(_HALVES, list(range(KEYS)))), found, array, offset)


@intrinsic
def pack_keys(typing, base, agent, start, keys, places, place):
    signature = types.int64(base, agent, types.int64, keys, places, types.int64)

    def generate(context, builder, signature, arguments):
        arrays, start, place = _Arrays(context, builder, signature, arguments), arguments[2], arguments[5]
        key = _keys(builder, *_differences(builder, arrays, start))
        found = builder.icmp_unsigned("!=", key, _halves(0))
        arrays.pack(key, found, 3, place)
        _pack_places(builder, arrays, start, found, 4, place)
        return _how_many(builder, found)

    return signature, generate


@intrinsic
def pack_lower(typing, base, agent, start, wanted, lower, places, place):
    signature = types.int64(base, agent, types.int64, types.uint16, lower, places, types.int64)

    def generate(context, builder, signature, arguments):
        arrays, start, place = _Arrays(context, builder, signature, arguments), arguments[2], arguments[6]
        upper, lower = _differences(builder, arrays, start)
        found = builder.icmp_unsigned("==", _keys(builder, upper, lower), _spread_half(builder, arguments[3]))
        arrays.pack(lower, found, 4, place)
        _pack_places(builder, arrays, start, found, 5, place)
        return _how_many(builder, found)

    return signature, generate


@intrinsic
def pack_words(typing, source, start, target, place):
    signature = types.int64(source, types.int64, target, types.int64)

    def generate(context, builder, signature, arguments):
        arrays = _Arrays(context, builder, signature, arguments)
        words = arrays.load(0, arguments[1], _HALVES)
        found = builder.icmp_unsigned("!=", words, _halves(0))
        arrays.pack(words, found, 2, arguments[3])
        return _how_many(builder, found)

    return signature, generate


@intrinsic
def widen(typing, value):
    def generate(context, builder, signature, arguments):
        if signature.args[0] == types.float32:
            return arguments[0]
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], word), word(16)), ir.FloatType())

    return types.float32(value), generate


@intrinsic
def to_half(typing, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def from_half(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def from_bits(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def popcount(typing, word):
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])
