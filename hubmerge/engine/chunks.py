"""The work on one chunk, an element range of one tensor: from stored inputs to stored output, in any thread."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge.engine.backend import Backend
from hubmerge.engine.definition import BinCounts, ChunkInputs, ChunkOutput, Rule
from hubmerge.engine.rules import draw_keys, epsilon_of, rule_of
from hubmerge.engine.selection import Selection
from hubmerge.errors import IncompatibleError, NonFiniteError
from hubmerge.numerics.counter_rng import make_key
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.base import StoredTensor
from hubmerge.sources.buffers import placed
from hubmerge.sources.derived import BorrowedTensor
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import Counts, Overlaps, Statistics, Tally

Sensitivities = Mapping[str, StoredTensor]  # tensor → where its sensitivity lies
Thresholds = Mapping[str, tuple[float, ...]]  # tensor → one per agent

_COUNTER = "num_batches_tracked"  # of a BatchNorm, which every training moves


@dataclass(frozen=True)
class Chunk:
    tensor: PlannedTensor
    start: int
    count: int

    @property
    def ends(self) -> bool:
        """True for the last chunk of its tensor."""
        return self.start + self.count == self.tensor.elements


class Work:
    """One recipe's work on a chunk; called from several threads, holds nothing that changes."""

    def __init__(self, plan: Plan, backend: Backend, statistics: Statistics | None) -> None:
        self.plan = plan
        self._backend = backend
        self._statistics = statistics
        self._model = None if statistics is None else statistics.total.overlaps

    def rule(self, tensor: PlannedTensor, thresholds: tuple[float, ...], overlaps: Overlaps | None) -> Rule | None:
        """`rule_of`; `overlaps` of the tensor, where the model's statistics are not there."""
        if self._statistics is not None and tensor.action == "merge":
            overlaps = self._statistics.tensors[tensor.name].overlaps
        return rule_of(self.plan, tensor, thresholds, self._model, overlaps)

    def selection(self, tensor: PlannedTensor) -> Selection | None:
        """What finds the thresholds of a tensor by itself; None where the method ranks nothing in it."""
        threshold = self.plan.threshold_of(tensor) if tensor.action == "merge" and tensor.elements else None
        if threshold is None or threshold.scope == "model":
            return None
        return Selection(threshold, len(self.plan.agents))

    def count_overlaps(self, stored: ChunkInputs) -> Counts:
        """Where the updates of a chunk meet, [K, K+1]; on the CPU, as `count`."""
        return np.asarray(self._backend.cpu.count_overlaps(stored, epsilon_of(self.plan)))

    def count(self, chunk: Chunk, stored: ChunkInputs, selection: Selection) -> BinCounts:
        """What a chunk adds to the counts of a selection."""
        if selection.threshold.of == "dropped":
            stored = replace(stored, uniform_keys=draw_keys(self.plan, chunk.tensor))
        found: BinCounts = self._backend.cpu.count_magnitudes(
            stored, selection.wanted, selection.threshold, epsilon_of(self.plan)
        )
        return found

    def merge(self, chunk: Chunk, stored: ChunkInputs, rule: Rule | None, *, with_inputs: bool) -> ChunkOutput:
        tensor = chunk.tensor
        if rule is None:
            return ChunkOutput(self._copied(chunk, stored))
        if "uniform" in rule.extras:
            stored = replace(stored, uniform_keys=draw_keys(self.plan, tensor))
        if stored.sensitivities and "sensitivity" not in rule.extras:
            stored = replace(stored, sensitivities=())
        module = self._backend.module
        if rule.whole is not None:
            stored, module = replace(stored, given=self._backend.whole_update(stored, rule)), self._backend.cpu
        key = make_key(self.plan.recipe.seed, "rounding", tensor.drawn_as)
        with placed(tensor.begin + chunk.start * DTYPE_BYTES[tensor.dtype]):
            merged: ChunkOutput = module.merge_chunk(stored, rule, tensor.dtype, key, with_inputs=with_inputs)
        return merged

    def _copied(self, chunk: Chunk, stored: ChunkInputs) -> NDArray[np.generic]:
        for model, raw in zip(self.plan.agents, stored.raws[1:], strict=False):  # `read_chunk` may leave them out
            if not np.array_equal(raw, stored.raws[0]):
                step = f"Remove {model.ref.id}."
                if chunk.tensor.name.endswith(_COUNTER):
                    step = f'No result needs it: put this line into the recipe: ignore: ["*{_COUNTER}"].'
                raise IncompatibleError(
                    "a tensor of integers differs from the base's and cannot be merged",
                    where=f"{chunk.tensor.name} of {model.ref}",
                    next_step=step,
                )
        return stored.raws[0].copy()  # it is written after this thread has read the next chunk


def read_chunk(reader: TensorReader, chunk: Chunk) -> ChunkInputs:
    """The stored elements of a chunk, which may lie in a buffer of this thread until it reads the next one."""
    inputs = chunk.tensor.inputs
    if chunk.tensor.action == "copy" and all(isinstance(t, BorrowedTensor) for t in inputs[1:]):
        inputs = inputs[:1]  # everybody has the base's
    raws = reader.rows(inputs, chunk.start, chunk.count)
    dtypes = tuple(t.entry.dtype for t in inputs)
    reader.consumed(chunk.tensor, chunk.count)
    return ChunkInputs(raws, dtypes, chunk.start)


def with_sensitivities(
    reader: TensorReader, chunk: Chunk, stored: ChunkInputs, sensitivities: Sequence[Sensitivities]
) -> ChunkInputs:
    """And what the agents' sensitivity files say of these elements; each file is a model behind the inputs'."""
    if not sensitivities or chunk.tensor.action == "copy":
        return stored
    own = [tensor.entry.name for tensor in chunk.tensor.inputs[1:]]  # as the agents' checkpoints have it
    measured: Any = tuple(
        reader.raw(len(stored.raws) + k, file.get(chunk.tensor.name) or file[own[k]], chunk.start, chunk.count)
        for k, file in enumerate(sensitivities)
    )
    return replace(stored, sensitivities=measured)


def chunks_of(tensor: PlannedTensor, size: int) -> Iterator[Chunk]:
    for start in range(0, tensor.elements, size):
        yield Chunk(tensor, start, min(size, tensor.elements - start))


def check_inputs(plan: Plan, name: str, tally: Tally) -> None:
    """NonFiniteError names the model."""
    if not any(tally.nonfinite.tolist()):
        return
    for model, bad in zip(plan.models, tally.nonfinite, strict=True):
        if bad:
            step = f"Remove {model.ref.id}: it is broken."
            if model is plan.base:  # as the -inf of a mask may be meant
                line = json.dumps([*plan.recipe.ignore, name])
                step = f"To keep the base's, as of a mask, put this line into the recipe: ignore: {line}. Otherwise: "
                step += "choose another base, this one is broken."
            raise NonFiniteError(
                "NaN or Inf in an input",
                where=f"{name} of {model.ref}",
                expected="finite values",
                got=f"{bad} so far",
                next_step=step,
            )
