"""Order statistics of |δ| from one pass: a histogram that adds up exactly, and statistics of it with error bounds.

A bin holds the magnitudes whose float32 patterns agree in the exponent and the first MANTISSA_BITS of the mantissa:
it is narrower than RELATIVE_WIDTH = 2⁻⁵ of any normal value in it. Zeros have no bin; they are the elements that no bin
counts. Each bin keeps two integers: the number of its elements, and the sum of their offsets (pattern − the bin's first
pattern). The patterns of a bin are equally spaced, so the two give its L1 mass exactly; and integers add up in any
order, so chunks, tensors and processes cannot change a result.

A histogram does not say where the elements lie within a bin. Every statistic is therefore an interval over all elements
that fit the bins: the estimate is its midpoint, and the error, given with it, half its width. Where bin i holds the
shares nᵢ of the elements and mᵢ of the mass:

    Gini             error ≤ 2⁻⁵/8 · Σ nᵢ·mᵢ ≤ 2⁻⁸   a bin's mean difference is 0 at least; at most its mean lies
                                                     halfway between elements at both ends
    mass of the top  error ≤ 2⁻⁵/8 · mᵢ ≤ 2⁻⁸         open in the one bin i that the rank falls into
    L0 sparsity      error ≤ nᵢ/2                     open in the one bin i that the limit falls into

The bounds of the first two are for normal floats (from 2⁻¹²⁶); the error that comes with an estimate always holds.
It is 0 where the elements of a bin all sit at its lower end, as differences of a few bf16 ulps do. Double rounding
comes on top of all this.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = 5
LOW_BITS = 23 - MANTISSA_BITS  # of a pattern, within a bin
LAST = (1 << LOW_BITS) - 1  # the largest offset in a bin
BINS = 1 << (8 + MANTISSA_BITS)
RELATIVE_WIDTH = 2.0**-MANTISSA_BITS
MAX_ERROR = RELATIVE_WIDTH / 8  # of Gini and top mass

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Approximation:
    """The true value lies within `error` of `value`."""

    value: float
    error: float

    @classmethod
    def between(cls, low: float, high: float) -> Self:
        return cls((low + high) / 2, (high - low) / 2)


@dataclass(frozen=True, eq=False)
class Histogram:
    """The non-zero magnitudes of K agents by bin; bins that hold nothing are left out."""

    keys: Int64  # agent · BINS + bin, ascending
    counts: Int64  # elements in the bin
    offsets: Int64  # Σ of their patterns − the bin's first pattern

    @classmethod
    def from_dense(cls, counts: Int64, offsets: Int64) -> Self:
        """From arrays [K, BINS]."""
        flat = counts.reshape(-1)
        keys = np.flatnonzero(flat).astype(np.int64)
        return cls(keys, flat[keys], offsets.reshape(-1)[keys])

    @staticmethod
    def sum_of(parts: "Iterable[Histogram]") -> "Histogram":
        """All of them added up."""
        total = HistogramSum()
        for part in parts:
            total.add(part)
        return total.value()

    def of(self, agent: int, elements: int) -> "AgentMagnitudes":
        """One agent's magnitudes among `elements`, zeros included."""
        first, end = np.searchsorted(self.keys, [agent * BINS, (agent + 1) * BINS])
        part = slice(first, end)
        return AgentMagnitudes(elements, self.keys[part] - agent * BINS, self.counts[part], self.offsets[part])

    def to_json(self) -> dict[str, str]:
        """Keys as gaps, which are small; numbers as text that is made and read a hundred times faster than digits."""
        values = {"gaps": np.diff(self.keys, prepend=0), "counts": self.counts, "offsets": self.offsets}
        return {name: _as_text(array) for name, array in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        gaps, counts, offsets = (_from_text(data[name]) for name in ("gaps", "counts", "offsets"))
        return cls(np.cumsum(gaps), counts, offsets)


class HistogramSum:
    """Adds up many histograms in one array of all bins, which costs less than a new histogram for each."""

    def __init__(self) -> None:
        self._counts = self._offsets = np.zeros(0, np.int64)

    def add(self, part: Histogram) -> None:
        if not len(part.keys):
            return
        missing = int(part.keys[-1]) + 1 - len(self._counts)
        if missing > 0:
            more = np.zeros(-(-missing // BINS) * BINS, np.int64)
            self._counts, self._offsets = (np.concatenate([a, more]) for a in (self._counts, self._offsets))
        self._counts[part.keys] += part.counts  # no key occurs twice
        self._offsets[part.keys] += part.offsets

    def value(self) -> Histogram:
        """The sum so far."""
        keys = np.flatnonzero(self._counts).astype(np.int64)
        return Histogram(keys, self._counts[keys], self._offsets[keys])


def _as_text(values: Int64) -> str:
    """How many bytes the largest number takes, then the numbers in base64, little-endian."""
    size = max(1, -(-int(values.max(initial=0)).bit_length() // 8))
    numbers = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size]
    return f"{size}{b2a_base64(numbers.tobytes(), newline=False).decode('ascii')}"


def _from_text(text: str) -> Int64:
    """The numbers that `_as_text` wrote."""
    numbers = np.frombuffer(a2b_base64(text[1:]), np.uint8).reshape(-1, int(text[:1]))
    values = np.zeros((len(numbers), 8), np.uint8)
    values[:, : numbers.shape[1]] = numbers
    return values.view("<u8").reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class AgentMagnitudes:
    """|δ| of one agent over some elements; what is estimated is None where no element is non-zero."""

    elements: int
    bins: Int64  # ascending
    counts: Int64
    offsets: Int64

    @cached_property
    def _ulp(self) -> Float64:
        """The distance of neighbouring patterns in each bin."""
        return np.asarray(np.ldexp(1.0, np.maximum(self.bins >> MANTISSA_BITS, 1) - 150))

    @cached_property
    def _low(self) -> Float64:
        """Each bin's first value."""
        return np.asarray((self.bins << LOW_BITS).astype(np.uint32).view(np.float32), dtype=np.float64)

    @cached_property
    def mass(self) -> Float64:
        """Σ|δ| of each bin."""
        return self.counts * self._low + self.offsets * self._ulp

    @cached_property
    def l1(self) -> float:
        """Σ|δ|, exact but for the addition of the bins in float64."""
        return float(self.mass.sum())

    @property
    def _zeros(self) -> int:
        return self.elements - int(self.counts.sum())

    def gini(self) -> Approximation | None:
        """Σ_ij |x_i − x_j| / (2 n² x̄) of all elements; 0 where all are equal, (n − 1)/n where one alone is non-zero."""
        if not len(self.bins):
            return None
        n, mass = self.elements, self.l1
        smaller = self._zeros + np.cumsum(self.counts) - self.counts
        between = float((self.mass * (2 * smaller + self.counts - n)).sum()) / (n * mass)
        mean = self.offsets / self.counts
        spread = self.counts * self.counts.astype(np.float64) * mean * (LAST - mean) / LAST * self._ulp
        return Approximation.between(between, between + float(spread.sum()) / (n * mass))

    def top_mass(self, percent: int) -> Approximation | None:
        """Share of Σ|δ| in the largest ⌈percent·n/100⌉ elements."""
        if not len(self.bins):
            return None
        wanted = -(-self.elements * percent // 100)
        above = np.cumsum(self.counts[::-1])[::-1]  # elements in this bin and higher ones
        total = self.l1
        if wanted >= above[0]:
            return Approximation(1.0, 0.0)
        place = int(np.flatnonzero(above > wanted)[-1])
        taken = wanted - int(above[place] - self.counts[place])
        count, offset = int(self.counts[place]), int(self.offsets[place])
        # of count patterns that sum to offset, the largest `taken` sum to at least their mean's share
        least, most = taken * offset / count, min(taken * LAST, offset)
        certain = float(self.mass[place + 1 :].sum()) + taken * float(self._low[place])
        ulp = float(self._ulp[place])
        return Approximation.between((certain + least * ulp) / total, (certain + most * ulp) / total)

    def below(self, limit: float) -> Approximation | None:
        """Share of the elements with |δ| < limit, in exact arithmetic; limit > 0."""
        if not len(self.bins):
            return None
        single = np.float32(limit)
        if float(single) < limit:
            single = np.nextafter(single, np.float32(np.inf))
        pattern = int(single.view(np.uint32))  # |δ| < limit ⇔ its pattern is below this one
        place, inside = pattern >> LOW_BITS, pattern & LAST
        certain = self._zeros + int(self.counts[self.bins < place].sum())
        least = most = 0
        if inside and (at := np.flatnonzero(self.bins == place)).size:
            count, offset = int(self.counts[at[0]]), int(self.offsets[at[0]])
            # z elements with offsets of at most inside − 1 and the others of at least inside must sum to `offset`
            least = max(0, count - offset // inside)
            most = min(count, (count * LAST - offset) // (LAST - inside + 1))
        return Approximation.between((certain + least) / self.elements, (certain + most) / self.elements)
