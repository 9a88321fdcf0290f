"""How far the passes over the model are that count for a threshold, so that one that is killed goes on where it was.

What is known is one value whatever the number of tensors: a sum of sparse counts and which tensors are in it. It is
replaced every few seconds rather than added to, so that neither memory nor the file grows with the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.selection import BINS, Counts
from hubmerge.statistics.histogram import as_text, from_text

Places = NDArray[np.int64]


def _no_places() -> Places:
    return np.zeros(0, np.int64)


def _no_counts() -> Counts:
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True, eq=False)
class Ranked:
    """What has been counted in the pass at hand.

    keys    per row what the first pass found: the key, and the rank within it; nothing while that pass goes on
    places  the counted tensors, by their numbers in the plan, ascending
    counts  [m, 3]: row, bin, how often, of these tensors together
    """

    keys: tuple[tuple[int, int], ...] = ()
    places: Places = field(default_factory=_no_places)
    counts: Counts = field(default_factory=_no_counts)

    def without_counts(self) -> Self:
        return type(self)(self.keys, self.places)

    def to_json(self) -> dict[str, Any]:
        bins = self.counts[:, 0] * BINS + self.counts[:, 1]
        return {
            "keys": [list(key) for key in self.keys],
            "places": as_text(np.diff(self.places, prepend=0)),
            "gaps": as_text(np.diff(bins, prepend=0)),
            "counts": as_text(self.counts[:, 2]),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        keys = tuple((int(key), int(rank)) for key, rank in data["keys"])
        bins = np.cumsum(from_text(data["gaps"]))
        counts = np.stack([bins // BINS, bins % BINS, from_text(data["counts"])], axis=1)
        return cls(keys, np.cumsum(from_text(data["places"])), counts)


def addable(known: Sequence[Ranked]) -> list[bool]:
    """Which of what several processes know adds up: of the furthest pass, and no tensor twice."""
    furthest = max(bool(one.keys) for one in known)
    chosen, counted = [], _no_places()
    for one in known:
        chosen.append(bool(one.keys) == furthest and not np.isin(one.places, counted).any())
        if chosen[-1]:
            counted = np.concatenate([counted, one.places])
    return chosen


def joined(known: Sequence[Ranked]) -> Ranked:
    """What of it adds up, in one."""
    parts = [one for one, chosen in zip(known, addable(known), strict=True) if chosen]
    rows = max((int(one.counts[:, 0].max(initial=-1)) for one in parts), default=-1) + 1
    total = np.zeros((rows, BINS), np.int64)
    for one in parts:
        total[one.counts[:, 0], one.counts[:, 1]] += one.counts[:, 2]
    return Ranked(parts[0].keys, np.sort(np.concatenate([one.places for one in parts])), sparse(total))


def sparse(dense: Counts) -> Counts:
    """[m, 3] of a count per row and bin."""
    rows, bins = np.nonzero(dense)
    return np.stack([rows, bins, dense[rows, bins]], axis=1)
