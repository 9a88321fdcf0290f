"""The counts of selection.py by the compiled passes of magnitude_passes.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.compiled.chunk_arrays import addresses_of, stored_alike
from hubmerge.engine.compiled.entries import Entry
from hubmerge.engine.compiled.layout import KEY_BINS, KEY_BLOCK, KEY_COPIES, KEY_WIDTH, KEYS, PRIVATE_BLOCK
from hubmerge.engine.compiled.machine_code import Kinds
from hubmerge.engine.eager import ChunkInputs
from hubmerge.methods.base import Threshold

_SCRATCH, _SPANS, _WANTED, _KEPT = "uint32[3]", "uint16[2]", "uint16[1]", "uint16[2]"


def _entries(function: str, kinds: Callable[[str], Kinds]) -> dict[np.dtype[Any], Entry]:
    """By the dtype of the elements: the base's, then the addresses of the agents'."""
    return {
        np.dtype(stored): Entry("magnitude_passes", function, (f"{stored}[1]", "uint64[1]", *kinds(stored)))
        for stored in ("uint16", "float32")
    }


_count_all = _entries(
    "count_all",
    lambda stored: (
        _WANTED, "bool", "uint64", "uint64[2]", "int64", _SCRATCH, _SPANS, _KEPT, f"{stored}[2]",
    ),
)  # fmt: skip
_count_private = _entries(
    "count_private",
    lambda _: ("float32", _WANTED, _SCRATCH, _SPANS, _KEPT, "float32[2]", "float32[1]", "uint8[1]"),
)
_add_copies = Entry("magnitude_passes", "add_copies", (_SCRATCH, _SPANS))
_take = Entry("magnitude_passes", "take", (_SCRATCH, _SPANS, "int64[2]"))
_thread = threading.local()  # .scratch: histograms, all zero between two passes


def passes(ranking: str, stored: str) -> list[Entry]:
    """What counts the magnitudes that a threshold ranks, of elements of a dtype of numpy."""
    counting = _count_private if ranking == "private" else _count_all
    return [counting[np.dtype(stored)], _add_copies, _take]


def is_there() -> bool:
    """Whether BF16 is counted without being compiled first."""
    return all(entry.is_there() for entry in (_count_all[np.dtype(np.uint16)], _add_copies, _take))


def count_magnitudes(
    chunk: ChunkInputs, wanted: Sequence[int], threshold: Threshold, epsilon: float, at_once: int = 1
) -> NDArray[np.int64]:
    """[m, 3] (row, bin, count) of the keys of the magnitudes that `threshold` ranks; a row per agent, or one.

    With one `wanted` key per row: of the lower halves of what has it; an even key has no such. `at_once`: agents whose
    histograms lie beside each other in memory.
    """
    base, *agents = stored_alike(chunk, "BF16", "F32")
    places, keys = addresses_of(agents), np.array(wanted, np.uint16)
    packed = np.empty((2, KEY_BLOCK + 2 * KEYS), np.uint16)
    if threshold.of == "private":
        magnitudes, nothing = np.empty((len(agents), PRIVATE_BLOCK), np.float32), np.zeros(PRIVATE_BLOCK, np.float32)
        active = np.empty(PRIVATE_BLOCK, np.uint8)
        scratch, spans = _histograms(1)
        _count_private[base.dtype](base, places, epsilon, keys, scratch, spans, packed, magnitudes, nothing, active)
        return _taken(scratch, spans)
    drop = threshold.of == "dropped"
    draw_keys = np.array([(k.first, k.second) for k in chunk.uniform_keys if drop], np.uint64).reshape(-1, 2)
    last, parts = np.empty((2, KEYS), base.dtype), []
    for some in _together([threshold.drop_of(k) for k in range(len(agents))], at_once):
        scratch, spans = _histograms(len(places[some]))
        _count_all[base.dtype](
            base, places[some], keys[some], drop, _bound(threshold.drop_of(some.start)), draw_keys[some], chunk.start,
            scratch, spans, packed, last,
        )  # fmt: skip
        parts.append(_taken(scratch, spans))
        parts[-1][:, 0] += some.start
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _together(drops: Sequence[float], at_once: int) -> Iterator[slice]:
    """Agents that follow each other and are counted in one pass: at most so many, of one drop."""
    first = 0
    for k in range(1, len(drops) + 1):
        if k == len(drops) or k - first == at_once or drops[k] != drops[first]:
            yield slice(first, k)
            first = k


def _taken(scratch: NDArray[np.uint32], spans: NDArray[np.uint16]) -> NDArray[np.int64]:
    """What stands in histograms, which are empty then."""
    found = np.empty((_add_copies(scratch, spans), 3), np.int64)
    _take(scratch, spans, found)
    return found


def _bound(p: float) -> np.uint64:
    """The smallest k with k · 2⁻²⁴ ≥ p, p being rounded to float32 as a kernel's constants are."""
    return np.uint64(ceil(float(np.float32(p)) * 2**24))


def _histograms(rows: int) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """This thread's histograms [rows, KEY_COPIES, bins], made once, since fresh pages cost more than counting; and the
    smallest and the largest bin of each so far."""
    needed = rows * KEY_COPIES * KEY_WIDTH
    kept: NDArray[np.uint32] | None = getattr(_thread, "scratch", None)
    if kept is None or kept.size < needed:
        kept = _thread.scratch = np.zeros(needed, np.uint32)
    spans = np.tile(np.array([KEY_BINS - 1, 0], np.uint16), (rows, 1))
    return kept[:needed].reshape(rows, KEY_COPIES, KEY_WIDTH), spans
