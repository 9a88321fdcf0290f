"""What the loops that are written as instructions for LLVM share: vectors of 16 lanes, and arrays as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

VECTOR = 16  # elements of an instruction, where the processor has such wide ones
I32, I64 = ir.IntType(32), ir.IntType(64)
INT, FLOAT, SHORT, BITS = (ir.VectorType(t, VECTOR) for t in (I32, ir.FloatType(), ir.IntType(16), ir.IntType(1)))
HALVES = ir.VectorType(ir.IntType(16), 2 * VECTOR)  # as many bytes as INT
_MASK = ir.IntType(VECTOR)
_BYTES = ir.IntType(8).as_pointer()


def every(value: float, kind: Any = INT) -> Any:
    """A constant in all lanes of a vector type."""
    return ir.Constant(kind, [value] * kind.count)


class Arguments:
    """The arguments of one call; arrays are C-contiguous and not checked for their bounds."""

    def __init__(self, context, builder, signature, arguments):
        self.builder = builder
        self._arrays = {
            place: context.make_array(kind)(context, builder, arguments[place])
            for place, kind in enumerate(signature.args)
            if hasattr(kind, "layout")
        }

    def at(self, place, offset, element):
        """Address of element `offset` of array argument `place`, as that of an `element`, or of a vector of them."""
        return self._address(self._arrays[place].data, offset, element)

    def row(self, place, row, offset, element):
        """`at`, in a row of an array of two dimensions."""
        array = self._arrays[place]
        first = self.builder.mul(row, cgutils.unpack_tuple(self.builder, array.strides)[0])
        return self._address(self.builder.gep(self.builder.bitcast(array.data, _BYTES), [first]), offset, element)

    def _address(self, data, offset, element):
        one = element.element if isinstance(element, ir.VectorType) else element
        place = self.builder.gep(self.builder.bitcast(data, one.as_pointer()), [offset])
        return self.builder.bitcast(place, element.as_pointer())

    def floats(self, place, offset):
        """A vector from element `offset` of array argument `place`."""
        return load(self.builder, self.at(place, offset, FLOAT), 4)

    def row_floats(self, place, row, offset):
        """`floats`, in a row of an array of two dimensions."""
        return load(self.builder, self.row(place, row, offset, FLOAT), 4)


def load(builder, address, align):
    loaded = builder.load(address)
    loaded.align = align
    return loaded


def store(builder, value, address, align):
    builder.store(value, address).align = align


def load_some(builder, address, align, among):
    """`load`; of a vector, only the lanes that BITS `among` flag, unless it is None, and zeros in the others."""
    if among is None:
        return load(builder, address, align)
    kind = address.type.pointee
    return _call(builder, f"llvm.masked.load.{_name(kind)}.p0", kind, [address, I32(align), among, every(0, kind)])


def store_some(builder, value, address, align, among):
    """`store`; of a vector, only the lanes that BITS `among` flag, unless it is None."""
    if among is None:
        store(builder, value, address, align)
    else:
        name = f"llvm.masked.store.{_name(value.type)}.p0"
        _call(builder, name, ir.VoidType(), [value, address, I32(align), among])


def for_vectors(builder, n, work: Callable[[Any, Any], None]) -> None:
    """work(i, among) for every VECTOR of n elements from i; among (BITS) flags those of fewer at the end, else None."""
    left = builder.urem(n, I64(VECTOR))
    whole = builder.sub(n, left)
    with cgutils.for_range_slice(builder, I64(0), whole, I64(VECTOR), I64) as (i, _):
        work(i, None)
    with builder.if_then(builder.icmp_unsigned("!=", left, I64(0))):
        ones = builder.sub(builder.shl(I32(1), builder.trunc(left, I32)), I32(1))
        work(whole, builder.bitcast(builder.trunc(ones, _MASK), BITS))


def prefetch(builder, address, level):
    """Ask for what will be read soon into the cache of `level` 1 to 3; an address that is not ours does no harm."""
    read, locality, data = I32(0), I32(4 - level), I32(1)
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [builder.bitcast(address, _BYTES), read, locality, data])


def spread(builder, scalar, lanes=VECTOR):
    """A scalar in all lanes of a vector."""
    nothing = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    one = builder.insert_element(nothing, scalar, I32(0))
    return builder.shuffle_vector(one, nothing, every(0, ir.VectorType(I32, lanes)))


def halves_of(builder, first, second, *, upper):
    """The upper halves of the 32-bit elements of two vectors, or the lower ones."""
    which = ir.Constant(ir.VectorType(I32, HALVES.count), [2 * i + upper for i in range(HALVES.count)])
    return builder.shuffle_vector(builder.bitcast(first, HALVES), builder.bitcast(second, HALVES), which)


def flags_of(builder, bits):
    """A vector of flags as one integer of as many bits."""
    return builder.bitcast(bits, ir.IntType(bits.type.count))


def how_many(builder, bits):
    """How many flags of a vector are set, int64."""
    return builder.zext(builder.ctpop(flags_of(builder, bits)), I64)


def compress(builder, values, which):
    """The lanes that are flagged, one beside the other; zeros behind them."""
    name = f"llvm.experimental.vector.compress.{_name(values.type)}"
    return _call(builder, name, values.type, [values, which, every(0, values.type)])


def lanewise(builder, name, *vectors):
    """What LLVM's function `name` (umax, fabs, …) of vectors of one type gives of that type."""
    kind = vectors[0].type
    return _call(builder, f"llvm.{name}.{_name(kind)}", kind, vectors)


def halved(builder, vector, pair):
    """The one value that `pair` (two vectors → a vector) leaves of a vector's lanes, as a tree."""
    lanes = width = vector.type.count
    while width > 1:
        width //= 2
        upper = ir.Constant(ir.VectorType(I32, lanes), [(i + width) % lanes for i in range(lanes)])
        vector = pair(vector, builder.shuffle_vector(vector, vector, upper))
    return builder.extract_element(vector, I32(0))


def _name(vector):
    """Of a vector type, in the names of LLVM's functions."""
    return f"v{vector.count}{vector.element.intrinsic_name}"


def _call(builder, name, kind, arguments):
    """What LLVM's function `name` of result type `kind` returns."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type for a in arguments]), name)
    return builder.call(function, arguments)
