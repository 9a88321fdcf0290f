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
from numba.extending import intrinsic

from hubmerge.engine.compiled.layout import KEYS
from hubmerge.engine.compiled.vectors import (
    FLOAT,
    HALVES,
    I64,
    INT,
    VECTOR,
    Arguments,
    compress,
    every,
    halves_of,
    how_many,
    load,
    prefetch,
    spread,
    store,
)

_AHEAD = 4096  # elements


def _differences(given, start, stored):
    """Upper and lower halves of the patterns of array arguments 1 − 0 of dtype `stored`, KEYS elements from `start`."""
    builder = given.builder

    def minus(agent, base):
        return builder.bitcast(builder.fsub(builder.bitcast(agent, FLOAT), builder.bitcast(base, FLOAT)), INT)

    if stored == types.uint16:
        # two BF16 in a word: the odd element is the word without the even one, the even one is shifted to its place
        _fetch_ahead(given, start, HALVES)
        base, agent = (builder.bitcast(load(builder, given.at(place, start, HALVES), 2), INT) for place in (0, 1))
        odd = minus(*(builder.and_(words, every(0xFFFF0000)) for words in (agent, base)))
        even = minus(*(builder.shl(words, every(16)) for words in (agent, base)))
        upper = builder.or_(builder.and_(odd, every(0xFFFF0000)), builder.lshr(even, every(16)))
        lower = builder.or_(builder.shl(odd, every(16)), builder.and_(even, every(0xFFFF)))
        return builder.bitcast(upper, HALVES), builder.bitcast(lower, HALVES)
    places = start, builder.add(start, I64(VECTOR))
    for place in places:
        _fetch_ahead(given, place, FLOAT)
    parts = [builder.fsub(given.floats(1, place), given.floats(0, place)) for place in places]
    return halves_of(builder, *parts, upper=True), halves_of(builder, *parts, upper=False)


def _fetch_ahead(given, offset, kind):
    """Ask for what lies _AHEAD of element `offset` of array arguments 0 and 1 and may be behind their ends: a chunk's
    rows are read by turns, and at every turn the processor would have to notice anew that a row is read in order."""
    ahead = given.builder.add(offset, I64(_AHEAD))
    for place in (0, 1):
        prefetch(given.builder, given.at(place, ahead, kind), 2)


def _keys(builder, upper, lower):
    """Twice the upper half, which leaves out the sign, and 1 where the lower half is not zero."""
    some = builder.icmp_unsigned("!=", lower, every(0, HALVES))
    return builder.or_(builder.add(upper, upper), builder.zext(some, HALVES))


def _pack(given, values, found, target, place):
    """The values that are flagged, to element `place` of array argument `target`; how many."""
    store(given.builder, compress(given.builder, values, found), given.at(target, place, HALVES), 2)
    return how_many(given.builder, found)


def _pack_places(given, start, found, target, place):
    first = spread(given.builder, given.builder.trunc(start, HALVES.element), KEYS)
    _pack(given, given.builder.add(first, ir.Constant(HALVES, list(range(KEYS)))), found, target, place)


@intrinsic
def pack_keys(typing, base, agent, start, keys, places, place):
    def generate(context, builder, signature, arguments):
        given, start, to = Arguments(context, builder, signature, arguments), arguments[2], arguments[5]
        key = _keys(builder, *_differences(given, start, base.dtype))
        found = builder.icmp_unsigned("!=", key, every(0, HALVES))
        count = _pack(given, key, found, 3, to)
        if places != types.none:
            _pack_places(given, start, found, 4, to)
        return count

    return types.int64(base, agent, types.int64, keys, places, types.int64), generate


@intrinsic
def pack_lower(typing, base, agent, start, wanted, lower, places, place):
    def generate(context, builder, signature, arguments):
        given, start, to = Arguments(context, builder, signature, arguments), arguments[2], arguments[6]
        upper, lower = _differences(given, start, base.dtype)
        found = builder.icmp_unsigned("==", _keys(builder, upper, lower), spread(builder, arguments[3], KEYS))
        count = _pack(given, lower, found, 4, to)
        if places != types.none:
            _pack_places(given, start, found, 5, to)
        return count

    return types.int64(base, agent, types.int64, types.uint16, lower, places, types.int64), generate


@intrinsic
def pack_words(typing, source, start, target, place):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)
        words = load(builder, given.at(0, arguments[1], HALVES), 2)
        found = builder.icmp_unsigned("!=", words, every(0, HALVES))
        return _pack(given, words, found, 2, arguments[3])

    return types.int64(source, types.int64, target, types.int64), generate


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
