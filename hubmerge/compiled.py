"""One fused pass per chunk, compiled by numba; bit-equal to eager.py and counting.py.

A chunk is worked through block by block, so that everything between the stored inputs and the stored output
stays in the first two cache levels. The method's kernel is the very function that runs eagerly: called with one
scalar per agent inside a generated loop, it is vectorised; the pass around it is the same for all methods and
kept on disk. Floating point is strict (no fast-math, no contraction), which is why the bits agree.

Counting by pattern: bit k of an element's pattern says that agent k is active, bit K + k that its update is
positive. A histogram of patterns holds every count across agents at once. It has 4^K bins, hence a limit to K.

Counting magnitudes: the non-zero patterns of a block are packed together first, so that a sparse agent costs no
more than the scan; then one 64-bit addition per element adds 1 to a bin's count (upper 24 bits) and the element's
offset to the bin's sum (lower 40). `_FLUSH` blocks fit before either half can overflow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from llvmlite.binding import set_option  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from hubmerge.counter_rng import Key
from hubmerge.counting import BLOCK, LANES, Counted
from hubmerge.dtypes import decode
from hubmerge.eager import COMPILED_AGENTS, ChunkInputs, ChunkOutput, Rule, compilable
from hubmerge.histogram import BINS, LAST, LOW_BITS, Histogram
from hubmerge.methods import ops
from hubmerge.statistics import ResultTally, Tally, zero_result, zero_tally

MAX_AGENTS = COMPILED_AGENTS
_FLUSH = 512  # blocks; 2^21 elements of offsets below 2^18 stay below 2^40
_COUNT_SHIFT = 40
_COPIES = 4  # of the histogram of patterns: most elements share one bin, and each addition waits for the last one
_one_compiles = threading.Lock()
_STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False}


@overload(ops.where)
def _where(condition, yes, no):
    return lambda condition, yes, no: yes if condition else no


@overload(ops.absolute)
def _absolute(x):
    return lambda x: abs(x)


@njit(**_STRICT, cache=True)
def _load(raw16, raw32, start, stop, values):
    """One block of every model as float32 into values[K+1, n]; raw16 holds BF16, else raw32 the values."""
    n = stop - start
    for k in range(values.shape[0]):
        if raw16.shape[0] > 0:
            source = raw16[k, start:stop]
            bits = values[k, :n].view(np.uint32)
            for i in range(n):
                bits[i] = np.uint32(source[i]) << np.uint32(16)
        else:
            values[k, :n] = raw32[k, start:stop]


@njit(**_STRICT, cache=True)
def _differences(values, n, epsilon, deltas, pattern):
    """deltas[K, n] = agents − base, and the pattern of every element."""
    agents = deltas.shape[0]
    base = values[0]
    for k in range(agents):
        agent = values[k + 1]
        delta = deltas[k]
        active_bit, positive_bit = np.uint16(1 << k), np.uint16(1 << (agents + k))
        for i in range(n):
            d = agent[i] - base[i]
            delta[i] = d
            bits = active_bit | (positive_bit if d > np.float32(0) else np.uint16(0))
            own = bits if abs(d) > epsilon else np.uint16(0)
            pattern[i] = own if k == 0 else pattern[i] | own


@njit(**_STRICT, cache=True)
def _dot(x, y, n):
    """Σ x·y of one block in float64: LANES sums over its rows, then a halving tree (counting.block_sums)."""
    lanes = np.zeros(LANES)
    rows = n // LANES
    for row in range(rows):
        left, right = x[row * LANES : (row + 1) * LANES], y[row * LANES : (row + 1) * LANES]
        for lane in range(LANES):
            lanes[lane] += np.float64(left[lane]) * np.float64(right[lane])
    for i in range(rows * LANES, n):
        lanes[i - rows * LANES] += np.float64(x[i]) * np.float64(y[i])
    return _tree(lanes)


@njit(**_STRICT, cache=True)
def _powers(x, n, lanes, out):
    """Σ|x|, Σx, Σx³, Σx⁴ and Σx² of one block into out[5], in _dot's order; lanes[5, LANES] is scratch."""
    lanes[:] = 0.0
    size, first, third, fourth, second = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    rows = n // LANES
    for row in range(rows):
        part = x[row * LANES : (row + 1) * LANES]
        for lane in range(LANES):
            d = np.float64(part[lane])
            square = d * d
            size[lane] += abs(d)
            first[lane] += d
            third[lane] += square * d
            fourth[lane] += square * square
            second[lane] += square
    for i in range(rows * LANES, n):
        d = np.float64(x[i])
        square = d * d
        lane = i - rows * LANES
        size[lane] += abs(d)
        first[lane] += d
        third[lane] += square * d
        fourth[lane] += square * square
        second[lane] += square
    for power in range(5):
        out[power] = _tree(lanes[power])


@njit(**_STRICT, cache=True)
def _count_magnitudes(delta, n, kept, packed):
    """Adds the non-zero magnitudes of one block to packed[BINS] and returns how many; kept[BLOCK] is scratch."""
    bits = delta[:n].view(np.uint32)
    found = np.int64(0)
    for i in range(n):
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        kept[found] = magnitude
        found += np.int64(magnitude != 0)
    one = np.uint64(1 << _COUNT_SHIFT)
    for i in range(found):
        packed[kept[i] >> np.uint32(LOW_BITS)] += one + np.uint64(kept[i] & np.uint32(LAST))
    return found


@njit(**_STRICT, cache=True)
def _flush(packed, magnitudes):
    """Moves packed[K, BINS] into magnitudes[2, K, BINS]: counts and offsets."""
    for k in range(packed.shape[0]):
        for i in range(packed.shape[1]):
            both = packed[k, i]
            if both != 0:
                magnitudes[0, k, i] += np.int64(both >> np.uint64(_COUNT_SHIFT))
                magnitudes[1, k, i] += np.int64(both & np.uint64((1 << _COUNT_SHIFT) - 1))
                packed[k, i] = 0


@njit(**_STRICT, cache=True)
def _tree(lanes):
    half = LANES // 2
    while half > 0:
        for i in range(half):
            lanes[i] += lanes[i + half]
        half //= 2
    return lanes[0]


@njit(**_STRICT, cache=True)
def _nonfinite(x, n):
    bits = x[:n].view(np.uint32)
    exponent = np.uint32(0x7F800000)
    found = np.int32(0)
    for i in range(n):
        found += np.int32((bits[i] & exponent) == exponent)
    return found


@njit(**_STRICT, cache=True)
def _count_inputs(values, deltas, pattern, n, histogram, identical, nonfinite, max_abs, packed, sums):
    """Counts and sums of one block of the inputs; `sums` in the order of counting.count_inputs."""
    agents = deltas.shape[0]
    kept, largest = np.empty(BLOCK, np.uint32), np.zeros(1, np.uint32)
    lanes, powers, squares = np.empty((5, LANES)), np.empty(5), np.empty(agents)
    whole = n - n % _COPIES
    for i in range(0, whole, _COPIES):
        for copy in range(_COPIES):
            histogram[copy, pattern[i + copy]] += 1
    for i in range(whole, n):
        histogram[0, pattern[i]] += 1
    finite = True
    for k in range(agents):
        delta = deltas[k]
        # as integers: the order of non-negative floats is that of their patterns, and only this is vectorised
        magnitudes = delta[:n].view(np.uint32)
        most = np.uint32(0)
        for i in range(n):
            most = max(most, magnitudes[i] & np.uint32(0x7FFFFFFF))
        largest[0] = most
        finite = finite and bool(most < np.uint32(0x7F800000))
        max_abs[k] = max(max_abs[k], np.float64(largest.view(np.float32)[0]))
        identical[k] += n - _count_magnitudes(delta, n, kept, packed[k])
        _powers(delta, n, lanes, powers)
        for power in range(4):
            sums[power * agents + k] = powers[power]
        squares[k] = powers[4]
    if not finite:  # a difference is finite only between finite values
        for k in range(agents + 1):
            nonfinite[k] += _nonfinite(values[k], n)
    row = 4 * agents
    for a in range(agents):
        for b in range(a, agents):
            sums[row] = squares[a] if a == b else _dot(deltas[a], deltas[b], n)
            row += 1


@njit(**_STRICT, cache=True)
def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**_STRICT, cache=True)
def _draw_uniform(first, second, index, n, out):
    """counter_rng.uniform."""
    for i in range(n):
        x = (np.uint64(index) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15) + first
        out[i] = np.float32(_mix(_mix(x) ^ second) >> np.uint64(40)) * np.float32(2.0**-24)


@njit(**_STRICT, cache=True)
def _round_bf16(exact, n, stochastic, first, second, index, stored, out):
    """exact[n] float32 → BF16 bits in out[n] and their values in stored[n] (dtypes.encode, decode)."""
    bits, back = exact[:n].view(np.uint32), stored[:n].view(np.uint32)
    high = np.uint32(16)
    if stochastic:
        for i in range(n):
            x = (np.uint64(index) + np.uint64(i)) * np.uint64(0x9E3779B97F4A7C15) + first
            up = np.uint32(_mix(_mix(x) ^ second) >> np.uint64(48))
            special = (bits[i] & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
            rounded = bits[i] >> high if special else (bits[i] + up) >> high
            quiet = np.uint32(0x7FC0) if exact[i] != exact[i] else rounded
            out[i] = np.uint16(quiet)
            back[i] = quiet << high
    else:
        for i in range(n):
            rounded = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> high) & np.uint32(1))) >> high
            quiet = np.uint32(0x7FC0) if exact[i] != exact[i] else rounded
            out[i] = np.uint16(quiet)
            back[i] = quiet << high


@njit(**_STRICT, cache=True)
def _sum_regions(update, pattern, delta, step, other_step, active, bit, n, has_other, lanes, out):
    """The six sums of ResultTally.SUMS of one agent and block into out[6], each in _dot's order."""
    lanes[:] = 0.0
    unique_norm, unique_kept, unique_stored, unique_other, shared_norm, shared_kept = (
        lanes[0], lanes[1], lanes[2], lanes[3], lanes[4], lanes[5],
    )  # fmt: skip
    for row in range((n + LANES - 1) // LANES):
        first, last = row * LANES, min(n, (row + 1) * LANES)
        updates, patterns = update[first:last], pattern[first:last]
        merged, steps = delta[first:last], step[first:last]
        for i in range(last - first):
            mask = patterns[i] & active
            own, result = np.float64(updates[i]), np.float64(merged[i])
            alone = own if mask == bit else 0.0
            several = own if (mask & bit) != 0 and mask != bit else 0.0
            unique_norm[i] += alone * alone
            unique_kept[i] += alone * result
            unique_stored[i] += alone * steps[i]
            shared_norm[i] += several * several
            shared_kept[i] += several * result
        if has_other:
            others = other_step[first:last]
            for i in range(last - first):
                alone = np.float64(updates[i]) if (patterns[i] & active) == bit else 0.0
                unique_other[i] += alone * others[i]
    for number in range(6):
        out[number] = _tree(lanes[number])
    if not has_other:
        out[3] = out[2]


@njit(**_STRICT, cache=True)
def _count_result(
    base, stored_base, deltas, pattern, delta, exact, stored, other, n, has_other, counts, sums, step, other_step
):
    """Counts and sums of one block of the output; `sums` in the order of ResultTally.SUMS, K rows each."""
    agents = deltas.shape[0]
    changed, rounded = np.int32(0), np.int32(0)
    for i in range(n):
        changed += np.int32(stored[i] != stored_base[i])
    for i in range(n):
        rounded += np.int32(stored[i] != exact[i])
    counts[0] += changed
    counts[1] += rounded
    counts[2] += _nonfinite(stored, n)
    for i in range(n):
        step[i] = np.float64(stored[i]) - np.float64(base[i])
    if has_other:
        for i in range(n):
            other_step[i] = np.float64(other[i]) - np.float64(base[i])
    active = np.uint16((1 << agents) - 1)
    lanes = np.empty((6, LANES))
    for k in range(agents):
        _sum_regions(
            deltas[k], pattern, delta, step, other_step, active, np.uint16(1 << k), n, has_other, lanes,
            sums[k::agents],
        )  # fmt: skip


@njit(**_STRICT, cache=True)
def _probe_pass(raw16, raw32, n, epsilon, agents, histogram, identical, nonfinite, max_abs, magnitudes, sums):
    values = np.empty((agents + 1, BLOCK), np.float32)
    deltas = np.empty((agents, BLOCK), np.float32)
    pattern = np.empty(BLOCK, np.uint16)
    packed = np.zeros((agents, BINS), np.uint64)
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
        _load(raw16, raw32, start, stop, values)
        _differences(values, m, epsilon, deltas, pattern)
        _count_inputs(values, deltas, pattern, m, histogram, identical, nonfinite, max_abs, packed, sums[:, block])
        if (block + 1) % _FLUSH == 0:
            _flush(packed, magnitudes)
    _flush(packed, magnitudes)


_APPLY = types.void(
    types.float32[:, ::1], types.float32[:, ::1], types.float32[::1], types.int64, types.float32[::1]
)  # fmt: skip
_MERGE = types.void(
    types.FunctionType(_APPLY),
    types.uint16[:, ::1], types.float32[:, ::1], types.int64, types.float32, types.float32[:, ::1],
    types.float32[::1], types.boolean, types.boolean, types.boolean, types.boolean, types.boolean,
    types.uint64, types.uint64, types.int64, types.int64[:, ::1], types.int64[::1], types.int64[::1],
    types.float64[::1], types.int64[:, :, ::1], types.float64[:, ::1], types.int64[::1], types.float64[:, ::1],
    types.uint16[::1], types.float32[::1], types.uint64[:, ::1], types.float32[:, ::1],
)  # fmt: skip


# The signature is given so that the machine code can be kept on disk: `apply` is a pointer, not a part of it.
@njit(_MERGE, **_STRICT, cache=True)
def _merge_pass(
    apply, raw16, raw32, n, epsilon, per_agent, constants, count_inputs, to_bf16, base_to_bf16, stochastic, has_other,
    first, second, index, histogram, identical, nonfinite, max_abs, magnitudes, in_sums, counts, out_sums, out16, out32,
    uniform_keys, sensitivities,
):  # fmt: skip
    agents = per_agent.shape[0]
    values = np.empty((agents + 1, BLOCK), np.float32)
    draws = uniform_keys.shape[0]
    inputs = np.empty((agents + draws + sensitivities.shape[0], BLOCK), np.float32)
    deltas = inputs[:agents]
    pattern = np.empty(BLOCK, np.uint16)
    delta, exact = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    stored, other = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    unused = np.empty(BLOCK, np.uint16)
    stored_base = np.empty(BLOCK, np.float32)
    step, other_step = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.float64)
    packed = np.zeros((agents if count_inputs else 0, BINS), np.uint64)
    for block in range((n + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        stop = min(n, start + BLOCK)
        m = stop - start
        _load(raw16, raw32, start, stop, values)
        _differences(values, m, epsilon, deltas, pattern)
        base = values[0]
        if count_inputs:
            _count_inputs(
                values, deltas, pattern, m, histogram, identical, nonfinite, max_abs, packed, in_sums[:, block]
            )
            if (block + 1) % _FLUSH == 0:
                _flush(packed, magnitudes)
        for k in range(draws):
            _draw_uniform(uniform_keys[k, 0], uniform_keys[k, 1], index + start, m, inputs[agents + k])
        for k in range(sensitivities.shape[0]):
            inputs[agents + draws + k, :m] = sensitivities[k, start:stop]
        apply(inputs, per_agent, constants, m, delta)
        for i in range(m):
            exact[i] = base[i] if delta[i] == np.float32(0) else base[i] + delta[i]
        if to_bf16:
            _round_bf16(exact, m, stochastic, first, second, index + start, stored, out16[start:stop])
            if has_other:
                _round_bf16(exact, m, not stochastic, first, second, index + start, other, unused)
        else:
            stored[:m] = exact[:m]
            out32[start:stop] = exact[:m]
        if base_to_bf16:
            _round_bf16(base, m, False, first, second, 0, stored_base, unused)
        else:
            stored_base[:m] = base[:m]
        _count_result(
            base, stored_base, deltas, pattern, delta, exact, stored, other, m, has_other, counts,
            out_sums[:, block], step, other_step,
        )  # fmt: skip
    _flush(packed, magnitudes)


def _apply(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Callable[..., Any]:
    with _one_compiles:  # the first chunks of all threads ask at once
        return _loop(kernel, agents, inputs, columns, constants)


@cache
def _loop(kernel: Callable[..., Any], agents: int, inputs: int, columns: int, constants: int) -> Callable[..., Any]:
    """A loop over elements around `kernel`. Generated, so that the values of an element and the scalars are named
    and the compiler sees no array of pointers: only then is the loop vectorised."""
    rows = "; ".join(f"r{k} = inputs[{k}]" for k in range(inputs))
    element = ", ".join(f"r{k}[i]" for k in range(inputs))
    scalars = ", ".join("(" + "".join(f"per_agent[{k}, {c}], " for c in range(columns)) + ")" for k in range(agents))
    shared = "".join(f"constants[{c}], " for c in range(constants))
    source = (
        f"def loop(inputs, per_agent, constants, n, out):\n"
        f"    {rows}\n"
        f"    scalars = ({scalars},)\n"
        f"    shared = ({shared})\n"
        f"    for i in range(n):\n"
        f"        out[i] = kernel(({element},), scalars, shared)\n"
    )
    scope: dict[str, Any] = {"kernel": njit(**_STRICT)(kernel)}
    exec(source, scope)  # noqa: S102 (the text is made above from four integers)
    # a kernel's loop over five agents or more stays a loop otherwise, and then that over elements is not vectorised
    set_option("hubmerge", "-unroll-threshold=8000")
    try:
        return njit(_APPLY, **_STRICT)(scope["loop"])
    finally:
        set_option("hubmerge", "-unroll-threshold=300")  # LLVM's own at this level, for the passes


class _InputCounters:
    def __init__(self, agents: int, elements: int) -> None:
        blocks = -(-elements // BLOCK)
        self.elements = elements
        self.histogram = np.zeros((_COPIES, 4**agents), dtype=np.int64)
        self.identical = np.zeros(agents, dtype=np.int64)
        self.nonfinite = np.zeros(agents + 1, dtype=np.int64)
        self.max_abs = np.zeros(agents)
        self.magnitudes = np.zeros((2, agents, BINS), dtype=np.int64)
        self.sums = np.zeros((4 * agents + agents * (agents + 1) // 2, blocks))

    def counted(self) -> Counted[Tally]:
        return Counted(_tally(self), self.sums)


def _tally(counters: _InputCounters) -> Tally:
    """Every count across agents from the histogram of patterns."""
    k = len(counters.identical)
    total = counters.histogram.sum(axis=0)
    bins = np.flatnonzero(total)  # with many agents most patterns never occur
    h = total[bins]
    active = [(bins >> a) & 1 for a in range(k)]
    positive = [(bins >> (k + a)) & 1 for a in range(k)]
    c = sum(active, start=np.zeros_like(bins))
    up = sum((a & p for a, p in zip(active, positive, strict=True)), start=np.zeros_like(bins))
    return replace(
        zero_tally(k),
        elements=counters.elements,
        changed=_per(h[a == 1].sum() for a in active),
        identical=counters.identical,
        overlap=_per(h[c == j].sum() for j in range(k + 1)),
        by_overlap=np.stack([_per(h[(a == 1) & (c == j)].sum() for j in range(k + 1)) for a in active]),
        pair_active=np.stack([_per(h[(a & b) == 1].sum() for b in active) for a in active]),
        pair_agree=np.stack(
            [
                _per(h[((a & b) == 1) & (p == q)].sum() for b, q in zip(active, positive, strict=True))
                for a, p in zip(active, positive, strict=True)
            ]
        ),
        conflict=int(h[(up > 0) & (up < c)].sum()),
        nonfinite=counters.nonfinite,
        max_abs=counters.max_abs,
        histogram=Histogram.from_dense(counters.magnitudes[0], counters.magnitudes[1]),
    )


def _per(values: Iterable[Any]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)


def supports(agents: int, dtype: str) -> bool:
    """What the compiled pass covers."""
    return compilable(agents, dtype)


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """eager.probe_chunk in one pass."""
    raw16, raw32 = _stacked(chunk)
    agents = len(chunk.raws) - 1
    into = _InputCounters(agents, len(chunk.raws[0]))
    _probe_pass(
        raw16, raw32, into.elements, np.float32(epsilon), agents, into.histogram, into.identical, into.nonfinite,
        into.max_abs, into.magnitudes, into.sums,
    )  # fmt: skip
    return into.counted()


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """eager.merge_chunk in one pass, for what `supports` says."""
    raw16, raw32 = _stacked(chunk)
    agents = len(chunk.raws) - 1
    n = len(chunk.raws[0])
    to_bf16 = dtype == "BF16"
    into = _InputCounters(agents, n)
    counts = np.zeros(3, dtype=np.int64)
    sums = np.zeros((len(ResultTally.SUMS) * agents, -(-n // BLOCK)))
    out16 = np.empty(n if to_bf16 else 0, dtype=np.uint16)
    out32 = np.empty(0 if to_bf16 else n, dtype=np.float32)
    per_agent = np.array(rule.per_agent, dtype=np.float32)
    constants = np.array(rule.constants, dtype=np.float32)
    keys = np.array([(k.first, k.second) for k in chunk.uniform_keys], dtype=np.uint64).reshape(-1, 2)
    sensitivities = np.empty((0, n), dtype=np.float32)
    if chunk.sensitivities:
        sensitivities = np.stack(chunk.sensitivities)
    _merge_pass(
        _apply(rule.kernel, agents, agents * (1 + len(rule.extras)), per_agent.shape[1], len(constants)),
        raw16, raw32, n, np.float32(rule.epsilon), per_agent, constants, with_inputs, to_bf16,
        to_bf16 and chunk.dtypes[0] != dtype, rule.rounding == "stochastic", rule.both_roundings and to_bf16,
        np.uint64(key.first), np.uint64(key.second), chunk.start, into.histogram, into.identical, into.nonfinite,
        into.max_abs, into.magnitudes, into.sums, counts, sums, out16, out32, keys, sensitivities,
    )  # fmt: skip
    zero = zero_result(agents)
    tally = replace(zero, elements=n, changed=int(counts[0]), rounded=int(counts[1]), nonfinite=int(counts[2]))
    return ChunkOutput(out16 if to_bf16 else out32, into.counted() if with_inputs else None, Counted(tally, sums))


def _stacked(chunk: ChunkInputs) -> tuple[NDArray[np.uint16], NDArray[np.float32]]:
    """The stored elements as one array [K+1, n]: BF16 throughout as it is, anything else as float32."""
    kinds = set(chunk.dtypes)
    if kinds == {"BF16"}:
        return _rows(chunk), np.empty((0, 0), dtype=np.float32)
    if kinds == {"F32"}:
        return np.empty((0, 0), dtype=np.uint16), _rows(chunk)
    values = [decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True)]
    return np.empty((0, 0), dtype=np.uint16), np.stack(values)


def _rows(chunk: ChunkInputs) -> NDArray[Any]:
    return np.stack(chunk.raws) if chunk.stacked is None else chunk.stacked
