"""Tallies that add up: field by field with `+`, or many of them in place, with the same bits.

A tally is a frozen dataclass of integers, arrays and at most one histogram. Its counts add up to the same in any
grouping; its real sums are added in the order in which they come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, Self, TypeVar

import numpy as np

from hubmerge.statistics.histogram import Histogram, HistogramSum


class Addable:
    """Field-wise `+`; fields named in MAXIMA combine by maximum."""

    MAXIMA: tuple[str, ...] = ()
    SUMS: tuple[str, ...] = ()  # real numbers
    elements: int

    def __add__(self, other: Self) -> Self:
        return self.sum_of([self, other])

    @classmethod
    def sum_of(cls, parts: Sequence[Self]) -> Self:
        """The first of one or more plus the second, plus the third …"""
        total = TallySum(parts[0])
        for part in parts[1:]:
            total.add(part)
        return total.value()

    def to_json(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        def value(name: str, plain: Any) -> Any:
            if isinstance(plain, list):
                return np.array(plain, dtype=np.float64 if name in cls.SUMS else np.int64)
            return Histogram.from_json(plain) if isinstance(plain, dict) else plain

        return cls(**{name: value(name, plain) for name, plain in data.items()})


A = TypeVar("A", bound=Addable)


class TallySum(Generic[A]):
    """Tallies of one kind added up in place, in the order in which they come."""

    def __init__(self, first: A) -> None:
        self._kind = type(first)
        names = [f.name for f in fields(first)]  # type: ignore[arg-type]
        self._added = [name for name in names if name not in ("histogram", *first.MAXIMA)]
        self._histogram: HistogramSum | None = None
        self._begin(first)

    def _begin(self, first: A) -> None:
        self._values = {f.name: getattr(first, f.name) for f in fields(first)}  # type: ignore[arg-type]
        self._own = False  # a first tally is not changed

    def add(self, part: A) -> None:
        values = self._values
        if not values["elements"]:
            self._begin(part)
            return
        if not self._own:
            self._make_own()
        for name in self._added:
            values[name] += getattr(part, name)
        for name in self._kind.MAXIMA:
            np.maximum(values[name], getattr(part, name), out=values[name])
        if self._histogram is not None:
            self._histogram.add(part.histogram)  # type: ignore[attr-defined]

    def _make_own(self) -> None:
        self._own = True
        for name, value in self._values.items():
            if isinstance(value, np.ndarray):
                self._values[name] = value.copy()
            elif isinstance(value, Histogram) and self._histogram is None:
                self._histogram = HistogramSum()
                self._histogram.add(value)

    def value(self) -> A:
        """The sum so far."""
        self._own = False  # what is added from now on is added to copies
        if self._histogram is not None:
            self._values["histogram"] = self._histogram.value()
        return self._kind(**self._values)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.to_json() if isinstance(value, Histogram) else value
