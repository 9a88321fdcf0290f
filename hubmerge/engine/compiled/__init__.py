"""One fused pass per chunk, compiled; bit-equal to eager.py and counting.py.

A chunk is worked through block by block (passes.py), so that everything between the stored inputs and the
stored output stays in the first two cache levels. The method's kernel is the very function that runs eagerly:
called once with symbols, it tells its steps, which become a loop of vectors (kernel_trace.py); the pass around it is
the same for all methods. Floating point is strict (no fast-math, no contraction), which is why the bits agree.

numba compiles, once: the machine code is kept (kept_code.py) and called without numba (machine_code.py). Modules that
import it (adapters, passes, counts, rounding, magnitude_passes, vector_code, vectors and the loops made of them) are
imported to compile alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.counter_rng import Key
from hubmerge.dtypes import STORAGE
from hubmerge.engine.compiled import magnitude_counts
from hubmerge.engine.compiled.chunk_arrays import (
    COUNTERS,
    WORKSPACE,
    Counters,
    LoopCall,
    Workspace,
    addresses_of,
    stored_alike,
)
from hubmerge.engine.compiled.entries import Entry
from hubmerge.engine.compiled.kernel_loops import is_kept
from hubmerge.engine.compiled.kernel_trace import known
from hubmerge.engine.compiled.layout import BFLOAT16, FLOAT16, FLOAT32
from hubmerge.engine.compiled.machine_code import Kinds, Packed
from hubmerge.engine.counting import Counted
from hubmerge.engine.eager import COMPILED_AGENTS, ChunkInputs, ChunkOutput, Rule, compilable
from hubmerge.errors import InternalError
from hubmerge.sources.buffers import empty
from hubmerge.statistics.statistics import Counts, Tally, zero_result

MAX_AGENTS = COMPILED_AGENTS
_OUTPUTS = {"F32": FLOAT32, "BF16": BFLOAT16, "F16": FLOAT16}
_STORED: Kinds = ("uint64[1]", "uint64[1]", "bool", "int64", "float32")  # rows16, rows32, half, n, epsilon
_probe_pass = Entry("passes", "probe_pass", (*_STORED, COUNTERS, "float64[2]", WORKSPACE))
_overlap_pass = Entry("passes", "overlap_pass", (*_STORED, "int64[2]", WORKSPACE))
_merge_pass = Entry(
    "passes",
    "merge_pass",
    (
        "uint64", "uint64[1]", *_STORED, "bool", "int64", "bool", "bool", "bool", "uint64", "uint64", "int64",
        COUNTERS, "float64[2]", "int64[1]", "float64[2]", "uint16[1]", "float32[1]", "uint64[2]", "float32[2]",
        WORKSPACE,
    ),
)  # fmt: skip
_NOTHING, _NO_FLOATS, _NO_KEYS = Packed((0, 0)), Packed((0, 0, 0)), Packed((0, 0, 2))  # empty arrays
_no_result = cache(zero_result)  # its arrays are only read


@cache
def unavailable() -> str | None:
    """Why this machine has no machine code of the passes; None where it has. Compiles them where they are not kept."""
    try:
        _probe_pass.load()
        _merge_pass.load()
    except Exception as error:  # noqa: BLE001 (a compiler or a linker may raise anything; the eager pass needs neither)
        return f"{type(error).__name__}: {error}"
    return None


def compile_missing(tell: Callable[[int, int], None], *, overlaps: bool, ranking: str | None, stored: str) -> None:
    """Compile the passes that a merge needs and this machine does not have: of how many how many are done is told.

    `ranking`: what its threshold ranks, if it has one, among inputs that are `stored` so. What cannot be compiled is
    left, which `unavailable` tells.
    """
    needed = [_probe_pass, _merge_pass, *([_overlap_pass] if overlaps else [])]
    needed += magnitude_counts.passes(ranking, stored) if ranking is not None else []
    missing = [entry for entry in needed if not entry.is_there()]
    for number, entry in enumerate(missing):
        tell(number, len(missing))
        try:
            entry.load()
        except Exception:  # noqa: BLE001 (a compiler or a linker may raise anything)
            return
    if missing:
        tell(len(missing), len(missing))


def to_compile() -> frozenset[str]:
    """Which passes this machine has no code of yet: "merging", "overlaps", and "counting" magnitudes for a
    threshold."""
    there = {
        "merging": _probe_pass.is_there() and _merge_pass.is_there(),
        "overlaps": _overlap_pass.is_there(),
        "counting": magnitude_counts.is_there(),
    }
    return frozenset(name for name, is_there in there.items() if not is_there)


def has_loop(
    kernel: Callable[..., Any], inputs: int, per_agent: Sequence[Sequence[np.float32]], constants: Sequence[np.float32]
) -> bool:
    """Whether this machine has the loop that merge_pass calls for a kernel of so many inputs and such scalars."""
    columns, shared = (known(np.array(scalars, np.float32)) for scalars in (per_agent, constants))
    return is_kept(kernel, len(per_agent), inputs, columns, shared)


def supports(agents: int, dtype: str) -> bool:
    """What the compiled pass covers."""
    return compilable(agents, dtype)


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """eager.probe_chunk in one pass."""
    rows = _rows(chunk)
    agents = len(chunk.raws) - 1
    into, workspace = Counters(agents, len(chunk.raws[0])), Workspace.of_thread(agents, 0)
    _probe_pass(rows.of16, rows.of32, rows.half, into.elements, epsilon, into.words, into.sums_words, workspace.words)
    return into.counted()


def count_overlaps(chunk: ChunkInputs, epsilon: float) -> Counts:
    """eager.count_overlaps in one pass."""
    rows, agents = _rows(chunk), len(chunk.raws) - 1
    by_overlap = np.zeros((agents, agents + 1), np.int64)
    workspace = Workspace.of_thread(agents, 0)
    _overlap_pass(rows.of16, rows.of32, rows.half, len(chunk.raws[0]), epsilon, by_overlap, workspace.words)
    return by_overlap


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """eager.merge_chunk in one pass, for what `supports` says."""
    rows = _rows(chunk)
    agents, n = len(chunk.raws) - 1, len(chunk.raws[0])
    wide = dtype == "F32"
    into = Counters(agents, n, merged=True)
    out = empty(n, np.float32 if wide else np.uint16)
    keys = np.array([(k.first, k.second) for k in chunk.uniform_keys], np.uint64) if chunk.uniform_keys else _NO_KEYS
    sensitivities = np.stack(chunk.sensitivities) if chunk.sensitivities else _NO_FLOATS
    workspace = Workspace.of_thread(agents, len(chunk.uniform_keys) + len(chunk.sensitivities))
    loop = LoopCall.of_thread(rule, workspace)
    status = _merge_pass(
        loop.address, loop.words, rows.of16, rows.of32, rows.half, n, rule.epsilon, with_inputs, _OUTPUTS[dtype],
        not wide and chunk.dtypes[0] != dtype, rule.rounding == "stochastic", rule.both_roundings and not wide,
        key.first, key.second, chunk.start, into.words, into.sums_words, into.result_words, into.result_sums_words,
        _NOTHING if wide else out, out if wide else _NOTHING, keys, sensitivities, workspace.words,
    )  # fmt: skip
    if status != 0:
        raise InternalError("the compiled kernel of a method failed", got=f"status {status}")
    changed, rounded, nonfinite = into.result.tolist()
    tally = replace(_no_result(agents), elements=n, changed=changed, rounded=rounded, nonfinite=nonfinite)
    raw = out if wide else out.view(STORAGE[dtype])
    return ChunkOutput(raw, into.counted() if with_inputs else None, Counted(tally, into.result_sums))


@dataclass(frozen=True)
class _Rows:
    """Where the models' elements lie: all as 16 bits (F16 if `half`, else BF16), or all as float32."""

    of16: NDArray[np.uint64] | Packed
    of32: NDArray[np.uint64] | Packed
    half: bool
    kept: tuple[NDArray[Any], ...]  # they live as long


def _rows(chunk: ChunkInputs) -> _Rows:
    kept = stored_alike(chunk, "BF16", "F16", "F32")
    addresses = addresses_of(kept)
    if kept[0].itemsize == 2:
        return _Rows(addresses, _NOTHING, chunk.dtypes[0] == "F16", kept)
    return _Rows(_NOTHING, addresses, False, kept)
