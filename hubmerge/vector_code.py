"""What numba's own language lacks, as instructions for LLVM, which spells them out where the processor has none.

    pack_nonzero(source, start, target, place)              → how many
    pack_equal(source, start, target, place, shift, value)  → how many

look at VECTOR patterns (uint32) from source[start] without their sign bits, and write those that are not zero (of
those: whose upper bits, from `shift`, equal `value`) to target[place:] in their order. VECTOR elements of target are
overwritten. Neither array is checked for its bounds.

    to_half(value)   float32 → F16 bits (uint16), to nearest, ties to even
    from_half(bits)  F16 bits → float32

numba keeps compiled code on disk and would not notice a change of this file: empty its cache after one.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

VECTOR = 16
_WORDS = ir.VectorType(ir.IntType(32), VECTOR)
_FLAGS = ir.VectorType(ir.IntType(1), VECTOR)


def _all(value):
    return ir.Constant(_WORDS, [value] * VECTOR)


def _generate(context, builder, signature, arguments, wanted):
    """Code that packs the elements for which `wanted` (vector → flags) holds."""

    def at(array, place):
        data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
        return builder.bitcast(builder.gep(data, [arguments[place]]), _WORDS.as_pointer())

    stored = builder.load(at(0, 1))
    stored.align = 4
    magnitudes = builder.and_(stored, _all(0x7FFFFFFF))
    found = builder.and_(builder.icmp_unsigned("!=", magnitudes, _all(0)), wanted(magnitudes))
    compress = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_WORDS, [_WORDS, _FLAGS, _WORDS]),
        f"llvm.experimental.vector.compress.v{VECTOR}i32",
    )
    builder.store(builder.call(compress, [magnitudes, found, _all(0)]), at(2, 3)).align = 4
    return builder.zext(builder.ctpop(builder.bitcast(found, ir.IntType(VECTOR))), ir.IntType(64))


@intrinsic
def pack_nonzero(typing, source, start, target, place):
    signature = types.int64(source, types.int64, target, types.int64)

    def generate(context, builder, signature, arguments):
        everything = ir.Constant(_FLAGS, [1] * VECTOR)
        return _generate(context, builder, signature, arguments, lambda magnitudes: everything)

    return signature, generate


@intrinsic
def pack_equal(typing, source, start, target, place, shift, value):
    signature = types.int64(source, types.int64, target, types.int64, types.uint32, types.uint32)

    def generate(context, builder, signature, arguments):
        def same(magnitudes):
            shift, value = (_spread(builder, argument) for argument in arguments[4:])
            return builder.icmp_unsigned("==", builder.lshr(magnitudes, shift), value)

        return _generate(context, builder, signature, arguments, same)

    return signature, generate


def _spread(builder, scalar):
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(_WORDS, ir.Undefined), _all(0))


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
