"""What the loops that are written as instructions for LLVM share: vectors of 16 lanes, and arrays as arguments."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

VECTOR = 16  # elements of an instruction, where the processor has such wide ones
I64 = ir.IntType(64)
INT, FLOAT, SHORT, BITS = (
    ir.VectorType(t, VECTOR) for t in (ir.IntType(32), ir.FloatType(), ir.IntType(16), ir.IntType(1))
)


def number(value: int) -> Any:
    return ir.Constant(I64, value)


def every(value: int) -> Any:
    return ir.Constant(INT, [value] * VECTOR)


def every_float(value: float) -> Any:
    return ir.Constant(FLOAT, [value] * VECTOR)


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
        byte = ir.IntType(8).as_pointer()
        return self._address(self.builder.gep(self.builder.bitcast(array.data, byte), [first]), offset, element)

    def _address(self, data, offset, element):
        one = element.element if isinstance(element, ir.VectorType) else element
        place = self.builder.gep(self.builder.bitcast(data, one.as_pointer()), [offset])
        return self.builder.bitcast(place, element.as_pointer())

    def floats(self, place, offset):
        """A vector from element `offset` of array argument `place`."""
        return load(self.builder, self.at(place, offset, FLOAT), 4)

    def row_floats(self, place, row, offset):
        return load(self.builder, self.row(place, row, offset, FLOAT), 4)


def load(builder, address, align):
    loaded = builder.load(address)
    loaded.align = align
    return loaded


def store(builder, value, address, align):
    builder.store(value, address).align = align


def spread(builder, scalar):
    """A float32 in all lanes."""
    nothing = ir.Constant(FLOAT, ir.Undefined)
    one = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, every(0))


def call(builder, name, kind, arguments):
    """What LLVM's function `name` of result type `kind` returns."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type for a in arguments]), name)
    return builder.call(function, arguments)


def pick(builder, name, a, b):
    """umax or umin of two vectors of integers."""
    return call(builder, f"llvm.{name}.v{a.type.count}i{a.type.element.width}", a.type, [a, b])


def halved(builder, vector, pair):
    """The one value that `pair` (two vectors → a vector) leaves of a vector's lanes, as a tree."""
    lanes = width = vector.type.count
    while width > 1:
        width //= 2
        upper = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [(i + width) % lanes for i in range(lanes)])
        vector = pair(vector, builder.shuffle_vector(vector, vector, upper))
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))
