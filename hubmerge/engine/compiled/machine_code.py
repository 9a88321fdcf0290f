"""Machine code that Python calls: one address, one argument, no compiler.

Code is a function of 64-bit words, which are written side by side: two of its own (its result, and where numba would
describe an exception), then per argument one for a number, or for an array its address and its shape. What the words
mean is said by `kinds`: the names of numpy's scalar types, "uint16[2]" for a C-contiguous array of two dimensions, or
a tuple of kinds for a tuple. adapters.py makes such a function of one that numba compiles; numba's own way in, which
asks every argument for its type, takes three times as long and needs numba.

The code is an object file, which LLVM (llvmlite, without numba) links into this process, every one in a name space of
its own. ctypes calls it without the interpreter's lock.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Sequence
from ctypes import CFUNCTYPE, addressof, c_char, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numpy.typing import NDArray

Kind = str | tuple[Any, ...]  # a tuple of kinds
Kinds = tuple[Kind, ...]

OWN_WORDS = 2  # result, exception
_WORD = 0xFFFF_FFFF_FFFF_FFFF
_FUNCTION = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)
_numbers = count()
_engines = threading.Lock()


@dataclass(frozen=True)
class ObjectCode:
    """What a compiler leaves."""

    symbol: str
    image: bytes


class Packed(tuple[int, ...]):
    """The words of an argument that is passed again and again; whoever made it keeps the arrays."""

    __slots__ = ()

    @classmethod
    def of(cls, kind: Kind, value: Any) -> Packed:
        return cls(_packed((kind,), (value,)))


class LinkError(Exception):
    """LLVM cannot link this object into this process."""


class Code:
    """An object file that lies in memory, to be called with values of `kinds`; returns an integer."""

    def __init__(self, made: ObjectCode, kinds: Kinds) -> None:
        library = binding.JITLibraryBuilder().add_object_img(made.image).add_current_process()
        try:
            self._library = library.export_symbol(made.symbol).link(_engine(), f"hubmerge-{next(_numbers)}")
        except RuntimeError as error:
            raise LinkError(str(error)) from None
        self.address: int = self._library[made.symbol]
        self._function = _FUNCTION(self.address)
        self._kinds = kinds

    def words(self, *values: Any) -> array[int]:
        """A call's words; they hold addresses of arrays, which must live as long."""
        return array("Q", [0] * OWN_WORDS + _packed(self._kinds, values))

    def __call__(self, *values: Any) -> int:
        words = self.words(*values)
        place = words.buffer_info()[0]
        status = self._function(place, place + 8, place + 8 * OWN_WORDS)
        if status != 0:  # compiled code has no exceptions but those of numba's own checks, which no input reaches
            raise RuntimeError(f"compiled code ended with status {status}")
        return words[0] if words[0] >> 63 == 0 else words[0] - (1 << 64)


def length(kind: Kind) -> int:
    """How many words a value takes."""
    if isinstance(kind, tuple):
        return sum(map(length, kind))
    return 1 + _dimensions(kind)


@cache
def _dimensions(kind: str) -> int:
    return int(kind.partition("[")[2].rstrip("]") or 0)


@cache
def _dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(kind.partition("[")[0])


def _packed(kinds: Kinds, values: Sequence[Any]) -> list[int]:
    words: list[int] = []
    for kind, value in zip(kinds, values, strict=True):
        if type(value) is Packed:
            words += value
        elif isinstance(kind, tuple):
            words += _packed(kind, value)
        elif dimensions := _dimensions(kind):
            if value.dtype != _dtype(kind) or value.ndim != dimensions or not value.flags.c_contiguous:
                raise TypeError(f"not C-contiguous {kind}: {value.dtype}{list(value.shape)}")
            words.append(address_of(value))
            words += value.shape
        elif kind == "float32":
            words.append(_float32_bits(float(value)))
        else:
            words.append(int(value) & _WORD)
    return words


def address_of(values: NDArray[Any]) -> int:
    """Of a contiguous array's elements; numpy's own ways take three times as long."""
    try:
        return addressof(c_char.from_buffer(values.data))
    except (TypeError, ValueError):  # read-only, or empty
        return int(values.ctypes.data)


def _float32_bits(value: float) -> int:
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _engine() -> Any:
    with _engines:
        return _only_engine()


@cache
def _only_engine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler(suppress_errors=True)
