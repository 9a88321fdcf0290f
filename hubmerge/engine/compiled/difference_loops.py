"""The differences of up to GROUPED agents from the base, and their magnitudes, as instructions for LLVM.

    split_bf16_1, _2, _3 (rows, first, start, n, epsilon, base, deltas, active, positive, short, long, found)
    flag_bf16_1, _2, _3  (rows, first, start, n, epsilon, active)
    split_float          (base, values, k, n, epsilon, deltas, active, positive, short, long, found)

The first read BF16 patterns of the base and of agents `first`, first + 1 … from element `start` of the rows that lie at
the addresses rows[model], and write base[n] and deltas[k, n], float32; the second write nothing but `active`; the last
one reads float32 for agent k. For each agent: active[k] and positive[k], a bit per element; the magnitudes that are
not zero packed into short[k] (those whose lower 16 bits are zero, which BF16 holds; their upper 16 bits, uint16) and
long[k] (the others, uint32), each with room for STEP more than n; found[k], int64[4]: how many are short, how many
long, the largest pattern, and the smallest one less 1 (of none: 2^32 − 1). n is a multiple of STEP; no array is checked
for its bounds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hubmerge.engine.compiled.vectors import (
    FLOAT,
    HALVES,
    I32,
    I64,
    INT,
    VECTOR,
    Arguments,
    compress,
    every,
    flags_of,
    halved,
    halves_of,
    how_many,
    lanewise,
    load,
    prefetch,
    spread,
    store,
)

STEP = HALVES.count  # elements of an instruction on 16-bit numbers
GROUPED = 3  # agents for whom all that a loop keeps fits the vector registers


class _Agent:
    """What is written of one agent, and what stays in registers until the end."""

    def __init__(self, builder, row) -> None:
        self._builder, self._row = builder, row  # row(name, element, offset) → address
        self._counts = {name: cgutils.alloca_once_value(builder, I64(0)) for name in ("short", "long")}
        none = {"largest": every(0), "least": every(0xFFFFFFFF)}
        self._longs = {name: cgutils.alloca_once_value(builder, value) for name, value in none.items()}
        none = {"largest": every(0, HALVES), "least": every(0xFFFF, HALVES)}
        self._shorts = {name: cgutils.alloca_once_value(builder, value) for name, value in none.items()}

    def take(self, at, deltas, epsilon):
        """Two vectors of differences from element `at`."""
        builder = self._builder
        magnitudes, actives, positives = [], [], []
        for part, delta in enumerate(deltas):
            store(builder, delta, self._row("deltas", FLOAT, builder.add(at, I64(part * VECTOR))), 4)
            magnitude = builder.and_(builder.bitcast(delta, INT), every(0x7FFFFFFF))
            active = _is_active(builder, magnitude, epsilon)
            magnitudes.append(magnitude)
            actives.append(active)
            positives.append(builder.and_(active, builder.fcmp_ordered(">", delta, every(0, FLOAT))))
        word = builder.udiv(at, I64(STEP))
        for name, flags in (("active", actives), ("positive", positives)):
            store(builder, _bits(builder, flags), self._row(name, I32, word), 4)
        upper = halves_of(builder, *magnitudes, upper=True)
        lower = builder.and_(builder.or_(*magnitudes), every(0xFFFF))
        some = flags_of(builder, builder.icmp_unsigned("!=", lower, every(0)))
        with builder.if_else(builder.icmp_unsigned("!=", some, ir.Constant(some.type, 0)), likely=False) as (yes, no):
            with yes:
                longs = [builder.icmp_unsigned("!=", builder.and_(m, every(0xFFFF)), every(0)) for m in magnitudes]
                for magnitude, long in zip(magnitudes, longs, strict=True):
                    masked = builder.select(long, magnitude, every(0))
                    self._extend(self._longs, masked, every(1))
                    self._pack("long", magnitude, long)
                all_longs = builder.bitcast(_bits(builder, longs), ir.VectorType(ir.IntType(1), STEP))
                self._short(builder.select(all_longs, every(0, HALVES), upper))
            with no:
                self._short(upper)

    def _short(self, upper):
        self._extend(self._shorts, upper, every(1, HALVES))
        self._pack("short", upper, self._builder.icmp_unsigned("!=", upper, every(0, HALVES)))

    def _extend(self, into, magnitude, one):
        builder = self._builder
        for name, how, value in (("largest", "umax", magnitude), ("least", "umin", builder.sub(magnitude, one))):
            builder.store(lanewise(builder, how, builder.load(into[name]), value), into[name])

    def _pack(self, name, values, which):
        builder, count = self._builder, self._counts[name]
        first = builder.load(count)
        address = self._row(name, values.type, first)
        store(builder, compress(builder, values, which), address, values.type.element.width // 8)
        builder.store(builder.add(first, how_many(builder, which)), count)

    def finish(self):
        """Write what was found."""
        builder = self._builder
        results = [builder.load(self._counts[name]) for name in ("short", "long")]
        for name, how in (("largest", "umax"), ("least", "umin")):
            pair = partial(lanewise, builder, how)
            short, long = (halved(builder, builder.load(kept[name]), pair) for kept in (self._shorts, self._longs))
            short = builder.shl(builder.zext(short, I64), I64(16))
            if name == "least":  # (u − 1) of an upper half u is pattern u·2^16 − 1; of none, more than any
                short = builder.add(short, I64(0xFFFF))
            long = builder.zext(long, I64)
            larger = builder.icmp_unsigned(">" if name == "largest" else "<", short, long)
            results.append(builder.select(larger, short, long))
        for place, result in enumerate(results):
            builder.store(result, self._row("found", I64, I64(place)))


class _Flagged:
    """Of an agent of which nothing else is wanted than where it is active."""

    def __init__(self, builder, row) -> None:
        self._builder, self._row = builder, row

    def take(self, at, deltas, epsilon):
        builder = self._builder
        magnitudes = [builder.and_(builder.bitcast(delta, INT), every(0x7FFFFFFF)) for delta in deltas]
        flags = [_is_active(builder, magnitude, epsilon) for magnitude in magnitudes]
        store(builder, _bits(builder, flags), self._row("active", I32, builder.udiv(at, I64(STEP))), 4)

    def finish(self):
        pass


def _is_active(builder, magnitude, epsilon):
    return builder.fcmp_ordered(">", builder.bitcast(magnitude, FLOAT), epsilon)


def _bits(builder, flags):
    """Two vectors' flags as one word."""
    first, second = (builder.zext(flags_of(builder, f), I32) for f in flags)
    return builder.or_(first, builder.shl(second, I32(VECTOR)))


def _agents(given, names, first, size, kind=_Agent):
    """`size` agents from `first`, whose rows are those of the arguments `names`."""
    builder = given.builder

    def of(k):
        return kind(builder, lambda name, element, offset: given.row(names[name], k, offset, element))

    return [of(builder.add(first, I64(k))) for k in range(size)]


_WRITTEN = ("deltas", "active", "positive", "short", "long", "found")


def _subtract(given, arguments, agents, store_base=lambda place, value: None):
    """The loop of the functions that read BF16, whose first five arguments are the same."""
    builder = given.builder
    first, start, n = arguments[1:4]
    epsilon = spread(builder, arguments[4])

    def source(model):
        address = builder.load(given.at(0, model, I64))
        address = builder.add(address, builder.mul(start, I64(2)))
        return builder.inttoptr(address, ir.IntType(16).as_pointer())

    def values(pointer, at):
        """Two vectors of float32."""
        place = builder.gep(pointer, [at])
        raw = load(builder, builder.bitcast(place, HALVES.as_pointer()), 2)
        prefetch(builder, builder.gep(place, [n]), 1)
        parts = []
        for part in range(2):
            mask = ir.Constant(INT, list(range(part * VECTOR, (part + 1) * VECTOR)))
            half = builder.zext(builder.shuffle_vector(raw, raw, mask), INT)
            parts.append(builder.bitcast(builder.shl(half, every(16)), FLOAT))
        return parts

    models = [I64(0), *(builder.add(first, I64(1 + k)) for k in range(len(agents)))]
    sources = [source(model) for model in models]
    with cgutils.for_range_slice(builder, I64(0), n, I64(STEP), I64) as (i, _):
        bases = values(sources[0], i)
        for part, value in enumerate(bases):
            store_base(builder.add(i, I64(part * VECTOR)), value)
        for agent, pointer in zip(agents, sources[1:], strict=True):
            deltas = [builder.fsub(v, b) for v, b in zip(values(pointer, i), bases, strict=True)]
            agent.take(i, deltas, epsilon)
    for agent in agents:
        agent.finish()


def _flag_of(size: int) -> Any:
    """flag_bf16_… of `size` agents."""

    @intrinsic
    def flag(typing, rows, first, start, n, epsilon, active):
        def generate(context, builder, signature, arguments):
            given = Arguments(context, builder, signature, arguments)
            _subtract(given, arguments, _agents(given, {"active": 5}, arguments[1], size, _Flagged))
            return context.get_dummy_value()

        return types.void(rows, types.int64, types.int64, types.int64, types.float32, active), generate

    return flag


def _split_of(size: int) -> Any:
    """split_bf16_… of `size` agents."""

    @intrinsic
    def split(typing, rows, first, start, n, epsilon, base, deltas, active, positive, short, long, found):
        def generate(context, builder, signature, arguments):
            given = Arguments(context, builder, signature, arguments)
            names = {name: 6 + place for place, name in enumerate(_WRITTEN)}
            agents = _agents(given, names, arguments[1], size)
            _subtract(
                given, arguments, agents, lambda place, value: store(builder, value, given.at(5, place, FLOAT), 4)
            )
            return context.get_dummy_value()

        signature = types.void(
            rows, types.int64, types.int64, types.int64, types.float32, base, deltas, active, positive, short, long,
            found,
        )  # fmt: skip
        return signature, generate

    return split


split_bf16_1, split_bf16_2, split_bf16_3 = map(_split_of, range(1, GROUPED + 1))
flag_bf16_1, flag_bf16_2, flag_bf16_3 = map(_flag_of, range(1, GROUPED + 1))


@intrinsic
def split_float(typing, base, values, k, n, epsilon, deltas, active, positive, short, long, found):
    def generate(context, builder, signature, arguments):
        given = Arguments(context, builder, signature, arguments)
        n, epsilon = arguments[3], spread(builder, arguments[4])
        names = {name: 5 + place for place, name in enumerate(_WRITTEN)}
        [agent] = _agents(given, names, arguments[2], 1)
        with cgutils.for_range_slice(builder, I64(0), n, I64(STEP), I64) as (i, _):
            places = i, builder.add(i, I64(VECTOR))
            agent.take(i, [builder.fsub(given.floats(1, at), given.floats(0, at)) for at in places], epsilon)
        agent.finish()
        return context.get_dummy_value()

    signature = types.void(
        base, values, types.int64, types.int64, types.float32, deltas, active, positive, short, long, found
    )
    return signature, generate
