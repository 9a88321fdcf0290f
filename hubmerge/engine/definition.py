"""One chunk, operation by operation, in numpy or torch: the definition of what a merge computes.

fast.py does the same in one pass and must give the same bits. In torch this runs on a device; numpy is the fallback
of a machine without a compiler. What equal bits rest on, on any device:

- Each operation called here is one rounded IEEE operation per element. Products and sums are operations of their own,
  so that nothing can be contracted into a fused multiply-add; that is why this is not compiled: Triton contracts by
  default.
- torch's integers are signed. Sums and products wrap around alike; right shifts are made logical by a mask.
- Nothing waits for a device: there is no branch on a value and no result is looked at.

The bits of a NaN differ between devices. They reach no file: a NaN in an input or the output ends the merge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.counting import BLOCK, Counted, Read, activity, input_counts, overlaps_of, result_counts
from hubmerge.errors import InternalError
from hubmerge.methods.base import Each, Method, Scope, Threshold
from hubmerge.numerics.arrays import Array, concat, numbers, stack, where
from hubmerge.numerics.counter_rng import Key, draws_of, make_key, uniform_of
from hubmerge.numerics.dtypes import Float32, Rounding, decode, encode
from hubmerge.statistics.statistics import Counts, ResultTally, Tally

LOWER_BITS = 16  # of the 31 bits of a magnitude; 15 upper ones
_LOWER = (1 << LOWER_BITS) - 1

Raw = NDArray[Any]
BinCounts = NDArray[np.int64]  # [m, 3]: row, bin, how often, of the bins that are not empty


@dataclass(frozen=True)
class Rule:
    """How the elements of K agents become one; the same for every chunk of a tensor.

    Scalars are numpy's float32, or tensors on a device, where dividing by a number of the host would multiply by its
    reciprocal.
    """

    kernel: Callable[..., Any]  # methods.base.Method.kernel
    extras: tuple[str, ...]  # methods.base.Method.extras
    per_agent: tuple[tuple[Any, ...], ...]
    constants: tuple[Any, ...]
    epsilon: Any  # an update is active above it
    rounding: Rounding
    both_roundings: bool  # also measure what the other rounding mode would have stored
    whole: Callable[[Sequence[Array], Each], Array] | None = None  # δ* [n] of a whole tensor, in the kernel's place

    @classmethod
    def of(cls, method: Method, scope: Scope, epsilon: float, rounding: Rounding, *, both_roundings: bool) -> Self:
        """The method's, whose scalars are computed in float64 and rounded to float32 here."""
        per_agent = tuple(tuple(np.float32(v) for v in row) for row in method.per_agent(scope))
        constants = tuple(np.float32(v) for v in method.constants(scope))
        return cls(method.kernel, method.extras, per_agent, constants, epsilon, rounding, both_roundings)


@dataclass(frozen=True)
class ChunkInputs:
    """The stored elements of one chunk: the base's first, then the agents' in recipe order."""

    raws: tuple[Raw, ...]  # K+1 × [n], as stored (dtypes.STORAGE)
    dtypes: tuple[str, ...]  # safetensors' names
    start: int  # the chunk's first element within its tensor, a multiple of BLOCK
    uniform_keys: tuple[Key, ...] = ()  # per agent, when the method draws
    sensitivities: tuple[Float32, ...] = ()  # K × [n], when the method weighs by them
    given: Float32 | None = None  # [n], δ* where it was computed for the whole tensor


@dataclass(frozen=True)
class ChunkOutput:
    """One chunk of the output and what was counted; the counts are None where there was nothing to count."""

    raw: Raw  # [n], as stored in the output's dtype
    inputs: Counted[Tally] | None = None
    result: Counted[ResultTally] | None = None

    @property
    def data(self) -> memoryview:
        """Its bytes."""
        return np.ascontiguousarray(self.raw).data.cast("B") if self.raw.size else memoryview(b"")

    def bits(self) -> object:
        """Equal where two outputs are the same to the last bit, statistics included."""
        counted: tuple[Counted[Any] | None, ...] = (self.inputs, self.result)
        return self.raw.tobytes(), [c and (c.sums.tobytes(), c.tally.to_json()) for c in counted]


def count(chunk: ChunkInputs, epsilon: Any) -> Array:
    """A chunk of the inputs as the vector that counting.Read reads; ε is a scalar as a `Rule` has it."""
    values, deltas = decoded(chunk)
    return concat(input_counts(values, deltas, activity(deltas, epsilon)))


def merge(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> tuple[Array, Array]:
    """The output as stored in `dtype`, and the vector of its counts with, where asked for, the inputs' behind them;
    `key` is of the rounding draws."""
    values, deltas = decoded(chunk)
    act = activity(deltas, rule.epsilon)
    base = values[0]
    delta = chunk.given
    if delta is None:
        delta = _update(deltas, chunk, rule)
    # θ0 + 0 would turn −0 into +0; an unchanged element keeps the base's bits
    exact = where(delta == 0, base, base + delta)

    def rounded(mode: Rounding) -> Array:
        drawn = mode == "stochastic" and dtype != "F32"
        return encode(exact, dtype, mode, draws_of(_elements(chunk), key) if drawn else None)

    raw = rounded(rule.rounding)
    stored = decode(raw, dtype)
    other = stored
    if rule.both_roundings and dtype != "F32":
        other = decode(rounded("nearest" if rule.rounding == "stochastic" else "stochastic"), dtype)
    stored_base = base
    if chunk.dtypes[0] != dtype:
        stored_base = decode(encode(base, dtype, "nearest", None), dtype)
    counts = result_counts(base, deltas, act, delta, exact, stored, other, stored_base)
    if with_inputs:
        counts += input_counts(values, deltas, act)
    return raw, concat(counts)


def decoded(chunk: ChunkInputs) -> tuple[Array, Array]:
    """The models' elements [K+1, n] and the agents' deltas [K, n], float32."""
    values = stack([decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True)])
    with np.errstate(all="ignore"):
        return values, values[1:] - values[0]


def whole_update(chunk: ChunkInputs, rule: Rule, each: Each) -> Array:
    """δ* [n], float32, of a chunk that is a whole tensor."""
    assert rule.whole is not None
    deltas = decoded(chunk)[1]
    return _checked(rule.whole(tuple(deltas), each), deltas[0], rule.whole)


def _update(deltas: Array, chunk: ChunkInputs, rule: Rule) -> Array:
    """δ* [n] of the rule's kernel."""
    inputs = list(deltas)
    for name in rule.extras:
        inputs += _uniform(chunk) if name == "uniform" else chunk.sensitivities
    return _checked(rule.kernel(tuple(inputs), rule.per_agent, rule.constants), deltas[0], rule.kernel)


def _checked(delta: Array, like: Array, method: Callable[..., Array]) -> Array:
    """δ* that a method gave, which may be somebody's own: pass.c reads it as so many float32."""
    dtype, shape = getattr(delta, "dtype", type(delta).__name__), getattr(delta, "shape", ())
    if (dtype, shape) != (like.dtype, like.shape):
        raise InternalError(
            "a method gives other arrays than it gets",
            where=f"{method.__module__}.{method.__qualname__}",
            expected=f"{like.dtype} {list(like.shape)}",
            got=f"{dtype} {list(shape)}",
            next_step="δ* has as many as δk; a number or an array of numpy's float64 makes float64 of what it meets.",
        )
    return delta


def _uniform(chunk: ChunkInputs) -> list[Array]:
    """Each agent's draws in [0, 1)."""
    return [uniform_of(_elements(chunk), key) for key in chunk.uniform_keys]


def _elements(chunk: ChunkInputs) -> Array:
    return numbers(chunk.start, len(chunk.raws[0]), chunk.raws[0])


def count_overlaps(chunk: ChunkInputs, epsilon: float) -> Counts:
    """Where the updates of one chunk meet: by_overlap of `probe_chunk`, [K, K+1]."""
    with np.errstate(all="ignore"):
        return np.asarray(overlaps_of(activity(decoded(chunk)[1], epsilon)))


def count_magnitudes(chunk: ChunkInputs, wanted: Sequence[int], threshold: Threshold, epsilon: float) -> BinCounts:
    """How often which key (selection.py) is among the magnitudes that `threshold` ranks: a row per agent, or one of all
    for "private".

    With one `wanted` key per row: the lower halves of what has it, if it is odd.
    """
    found = []
    for number, row in enumerate(_ranked(chunk, threshold, epsilon)):
        bits = np.ascontiguousarray(row).view(np.uint32)
        counted = keys = (bits >> LOWER_BITS << 1) | ((bits & _LOWER) != 0)
        if wanted:
            counted = bits[(keys == wanted[number]) & (keys % 2 == 1)] & _LOWER
        filled = np.bincount(counted, minlength=1)
        place = np.flatnonzero(filled)
        found.append(np.stack([np.full_like(place, number), place, filled[place]], axis=1))
    return np.concatenate(found)


def _ranked(chunk: ChunkInputs, threshold: Threshold, epsilon: float) -> list[Float32]:
    """The magnitudes that `threshold` ranks, by row; those of a drop are not rescaled yet."""
    _, deltas = decoded(chunk)
    if threshold.of == "private":
        with np.errstate(all="ignore"):
            act = activity(deltas, epsilon)
        alone = act.count == 1
        return [np.concatenate([np.abs(d[alone & m]) for d, m in zip(deltas, act.masks, strict=True)])]
    if threshold.of == "dropped":
        drops = [np.float32(threshold.drop_of(k)) for k in range(len(deltas))]
        deltas = [where(u >= p, d, np.float32(0)) for u, p, d in zip(_uniform(chunk), drops, deltas, strict=True)]
    return [np.abs(d) for d in deltas]


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """Count one chunk of the inputs, in numpy."""
    with np.errstate(all="ignore"):  # NaN and Inf are counted, not warned about
        return Read(count(chunk, epsilon), len(chunk.raws[0])).inputs(len(chunk.raws) - 1)


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """Merge and count one chunk into `dtype`, in numpy; `key` is of the rounding draws."""
    with np.errstate(all="ignore"):
        raw, counts = merge(chunk, rule, dtype, key, with_inputs=with_inputs)
    return read_output(raw, counts, len(chunk.raws) - 1, with_inputs=with_inputs)


def read_output(raw: Raw, counts: Counts, agents: int, *, with_inputs: bool) -> ChunkOutput:
    read = Read(counts, len(raw))
    result = read.result(agents)
    return ChunkOutput(raw, read.inputs(agents) if with_inputs else None, result)


def kernel_update(chunk: ChunkInputs, rule: Rule) -> Float32:
    """δ* [n] of one chunk by the rule's kernel, in numpy."""
    with np.errstate(all="ignore"):
        return np.asarray(_update(decoded(chunk)[1], chunk, rule))


def has_these_bits(merging: Callable[..., ChunkOutput], rule: Rule, agents: int, dtype: str) -> bool:
    """Whether another `merge_chunk` gives the same of a small chunk with what machines differ in: subnormals, both
    zeros, ties, many exponents."""
    n = 2 * BLOCK + BLOCK // 2 + 1
    rng = np.random.default_rng(agents)
    base = np.ldexp(rng.standard_normal(n), rng.integers(-12, 1, n)).astype(np.float32)
    base[:64], base[64:128] = -0.0, 1e-41
    values = [base]
    for _ in range(agents):
        step = np.ldexp(rng.standard_normal(n), rng.integers(-16, -4, n)).astype(np.float32)
        step[32:96] = 3e-42
        values.append(np.where(rng.random(n) < 0.5, base + step, base).astype(np.float32))
    raws = tuple(encode(v, dtype, "nearest", None) for v in values)
    chunk = ChunkInputs(
        raws,
        (dtype,) * (agents + 1),
        3 * BLOCK,
        tuple(make_key(2, "trial", str(k)) for k in range(agents)) if "uniform" in rule.extras else (),
        tuple(np.abs(decode(raw, dtype)) for raw in raws[1:]) if "sensitivity" in rule.extras else (),
    )
    ours, theirs = (m(chunk, rule, dtype, make_key(1, "trial"), with_inputs=True) for m in (merge_chunk, merging))
    return ours.bits() == theirs.bits()
