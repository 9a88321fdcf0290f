"""One chunk, operation by operation in numpy: the definition of what a merge computes, and the fallback.

fast.py does the same in one pass and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.counter_rng import Key, draws, uniform
from hubmerge.dtypes import Float32, Rounding, decode, encode
from hubmerge.engine.counting import Counted, activity, count_inputs, count_result, overlaps_of
from hubmerge.statistics.statistics import Counts, ResultTally, Tally

Raw = NDArray[Any]


@dataclass(frozen=True)
class Rule:
    """How the elements of K agents become one; the same for every chunk of a tensor."""

    kernel: Callable[..., Any]  # methods.base.Method.kernel
    extras: tuple[str, ...]  # methods.base.Method.extras
    per_agent: tuple[tuple[np.float32, ...], ...]
    constants: tuple[np.float32, ...]
    epsilon: float  # an update is active above it
    rounding: Rounding
    both_roundings: bool  # also measure what the other rounding mode would have stored
    whole: bool = False  # the kernel takes a whole tensor at once, so only this pass can run it


@dataclass(frozen=True)
class ChunkInputs:
    """The stored elements of one chunk: the base's first, then the agents' in recipe order."""

    raws: tuple[Raw, ...]  # K+1 × [n], as stored (dtypes.STORAGE)
    dtypes: tuple[str, ...]  # safetensors' names
    start: int  # the chunk's first element within its tensor, a multiple of BLOCK
    uniform_keys: tuple[Key, ...] = ()  # per agent, when the method draws
    sensitivities: tuple[Float32, ...] = ()  # K × [n], when the method weighs by them


@dataclass(frozen=True)
class ChunkOutput:
    raw: Raw  # [n], as stored in the output's dtype
    inputs: Counted[Tally] | None
    result: Counted[ResultTally]

    def bits(self) -> object:
        """Equal where two outputs are the same to the last bit, statistics included."""
        counted: tuple[Counted[Any] | None, ...] = (self.inputs, self.result)
        return self.raw.tobytes(), [c and (c.sums.tobytes(), c.tally.to_json()) for c in counted]


def count_overlaps(chunk: ChunkInputs, epsilon: float) -> Counts:
    """Where the updates of one chunk meet: by_overlap of `probe_chunk`, [K, K+1]."""
    _, _, deltas = decoded(chunk)
    with np.errstate(all="ignore"):
        return overlaps_of(activity(deltas, epsilon))


def probe_chunk(chunk: ChunkInputs, epsilon: float) -> Counted[Tally]:
    """Count one chunk of the inputs."""
    base, agents, deltas = decoded(chunk)
    with np.errstate(all="ignore"):  # NaN and Inf are counted, not warned about
        return count_inputs(base, agents, deltas, activity(deltas, epsilon))


def merge_chunk(chunk: ChunkInputs, rule: Rule, dtype: str, key: Key, *, with_inputs: bool) -> ChunkOutput:
    """Merge and count one chunk into `dtype`; `key` is of the rounding draws."""
    base, agents, deltas = decoded(chunk)
    act = activity(deltas, rule.epsilon)
    with np.errstate(all="ignore"):
        delta = rule.kernel((*deltas, *_extras(chunk, rule)), rule.per_agent, rule.constants)
        # θ0 + 0 would turn −0 into +0; an unchanged element keeps the base's bits
        exact = np.where(delta == 0, base, base + delta)

        def rounded(mode: Rounding) -> Raw:
            random = draws(key, chunk.start, len(exact)) if mode == "stochastic" and dtype != "F32" else None
            return encode(exact, dtype, mode, random)

        raw = rounded(rule.rounding)
        stored = decode(raw, dtype)
        other = stored
        if rule.both_roundings and dtype != "F32":
            other = decode(rounded("nearest" if rule.rounding == "stochastic" else "stochastic"), dtype)
        stored_base = base
        if chunk.dtypes[0] != dtype:
            stored_base = decode(encode(base, dtype, "nearest", None), dtype)
        inputs = count_inputs(base, agents, deltas, act) if with_inputs else None
        return ChunkOutput(raw, inputs, count_result(base, deltas, act, delta, exact, stored, other, stored_base))


def merged(chunk: ChunkInputs, rule: Rule) -> Float32:
    """δ* of one chunk, before it is rounded."""
    _, _, deltas = decoded(chunk)
    with np.errstate(all="ignore"):
        delta: Float32 = rule.kernel((*deltas, *_extras(chunk, rule)), rule.per_agent, rule.constants)
        return delta


def _extras(chunk: ChunkInputs, rule: Rule) -> list[Float32]:
    found: list[Float32] = []
    for name in rule.extras:
        if name == "uniform":
            found += [uniform(key, chunk.start, len(chunk.raws[0])) for key in chunk.uniform_keys]
        else:
            found += chunk.sensitivities
    return found


def decoded(chunk: ChunkInputs) -> tuple[Float32, Sequence[Float32], list[Float32]]:
    """The base, the agents and their deltas, [n] float32 each."""
    values = [decode(raw, dtype) for raw, dtype in zip(chunk.raws, chunk.dtypes, strict=True)]
    with np.errstate(all="ignore"):
        return values[0], values[1:], [agent - values[0] for agent in values[1:]]
