"""Randomness keyed by identity: the draw for an element is a function of (seed, purpose, tensor, index).

No stream is kept, so a chunk, a process or a resumed run draws the same bits. The generator is SplitMix64
(Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195) run as a counter: two mixing rounds, the second with a
second key, so that two tensors' sequences are not shifts of one another.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hubmerge.numerics.arrays import Array, cast, shifted

GOLDEN = 0x9E3779B97F4A7C15  # an element's number is multiplied by it
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of a mixing round


@dataclass(frozen=True)
class Key:
    first: int  # 64 bits
    second: int  # 64 bits


@lru_cache(1000)  # every chunk of a tensor asks for the same
def make_key(seed: int, *identity: str) -> Key:
    """The key of a sequence, e.g. make_key(seed, "rounding", tensor_name)."""
    digest = hashlib.blake2b(repr((int(seed), *identity)).encode(), digest_size=16, person=b"hubmerge-rng").digest()
    return Key(int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little"))


def draws(key: Key, start: int, count: int) -> NDArray[np.uint64]:
    """[count] uniform 64-bit integers for the elements start … start + count − 1 of a tensor."""
    return np.asarray(draws_of(np.arange(start, start + count, dtype=np.int64), key)).view(np.uint64)


def draws_of(elements: Array, key: Key) -> Array:
    """`draws` of elements by their numbers, int64, as int64 of the same bits: torch has no whole uint64. Sums and
    products wrap around alike."""
    x = elements * _signed(GOLDEN) + _signed(key.first)
    return _mix(_mix(x) ^ _signed(key.second))


def uniform(key: Key, start: int, count: int) -> NDArray[np.float32]:
    """[count] float32 in [0, 1), multiples of 2⁻²⁴: the upper bits of `draws`."""
    return np.asarray(uniform_of(np.arange(start, start + count, dtype=np.int64), key))


def uniform_of(elements: Array, key: Key) -> Array:
    """`uniform` of elements by their numbers, int64."""
    return cast(shifted(draws_of(elements, key), 40), "float32") * 2.0**-24


def _mix(x: Array) -> Array:
    x = (x ^ shifted(x, 30)) * _signed(FACTORS[0])
    x = (x ^ shifted(x, 27)) * _signed(FACTORS[1])
    return x ^ shifted(x, 31)


def _signed(value: int) -> int:
    """64 bits as int64 holds them."""
    return value - (1 << 64) if value >> 63 else value
