"""Writing one output shard, of one merge or of several over the same models.

Every chunk is read, counted or merged by a few threads (chunks.py), in the order of steps.py; its results are taken
in that order, which is the file's: folded into the shard's statistics, hashed and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hubmerge.engine.chunks import (
    Chunk,
    Done,
    Sensitivities,
    StreamOptions,
    Thresholds,
    Work,
    check_inputs,
    is_whole,
    read_chunk,
    with_sensitivities,
)
from hubmerge.engine.counting import TensorFold, fold_inputs, fold_result
from hubmerge.engine.definition import Rule
from hubmerge.engine.parallel_shards import Relay
from hubmerge.engine.selection import BinCounts
from hubmerge.engine.sink import FinishedShard, NullShardWriter, ShardWriter
from hubmerge.engine.steps import CountedTensors, Step, Steps, ranked_by_tensor
from hubmerge.engine.threads import in_order
from hubmerge.errors import NonFiniteError
from hubmerge.plan.plan import Plan, PlannedShard, PlannedTensor
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import Counts, Overlaps, ResultTally, Statistics, Tally, zero_result, zero_tally


@dataclass(frozen=True)
class Output:
    """What writing a shard needs to know of a variant; plain data."""

    plan: Plan
    folder: Path
    sensitivities: tuple[Sensitivities, ...]
    thresholds: Thresholds


class _Result(NamedTuple):
    """What a step gave."""

    step: Step
    counts: Sequence[BinCounts | None] = ()  # per output, if it counted
    overlaps: Counts | None = None
    merged: Sequence[Done] = ()  # per output, if it merged


def readings(
    outputs: Sequence[Output], number: int, options: StreamOptions, statistics: Statistics | None, workers: int
) -> list[PlannedTensor]:
    """The tensors that `write_shard` reads, in their order, as often as it may have to."""
    tensors = outputs[0].plan.shards[number].tensors
    return _counted(outputs, number, options, statistics, workers).readings(tensors)


def write_shard(
    outputs: Sequence[Output],
    number: int,
    reader: TensorReader,
    options: StreamOptions,
    relay: Relay,
    statistics: Statistics | None,
    workers: int = 0,
) -> list[FinishedShard]:
    """Write shard `number` of every output, with `workers` threads; 0: with all of the options.

    `statistics`: of the model, where an output needs them; None: they are counted here.
    """
    plan = outputs[0].plan
    shard = plan.shards[number]
    workers = workers or options.workers(plan)
    measured = next((o.sensitivities for o in outputs if o.sensitivities), ())
    works = [Work(o.plan, options, statistics) for o in outputs]
    with_inputs = statistics is None  # they are counted once, with the first output
    tallies = _Tallies(plan, shard, len(outputs), with_inputs=with_inputs, told=relay.counted)

    def rules_of(
        tensor: PlannedTensor, found: Sequence[tuple[float, ...]], overlaps: Overlaps | None
    ) -> list[Rule | None]:
        known = [output.thresholds.get(tensor.name, ()) for output in outputs]
        return [
            work.rule(tensor, mine or own, overlaps)
            for work, mine, own in zip(works, known, found or known, strict=True)
        ]

    def run(step: Step) -> _Result:
        chunk, kept = step.chunk, step.kept
        stored = None if kept is None else kept.inputs
        if stored is None:
            stored = read_chunk(reader, chunk, kept)
            if kept is not None:
                kept.inputs = stored
        if step.counting:
            counting = zip(works, step.counting, strict=True)
            counts = [None if s is None else work.count(chunk, stored, s) for work, s in counting]
            return _Result(step, counts, works[0].count_overlaps(stored) if step.overlaps else None)
        stored = with_sensitivities(reader, chunk, stored, measured)
        merging = enumerate(zip(works, step.rules, strict=True))
        merged = [w(chunk, stored, r, with_inputs=with_inputs and i == 0) for i, (w, r) in merging]
        return _Result(step, merged=merged)

    steps = Steps(
        shard.tensors,
        _counted(outputs, number, options, statistics, workers),
        rules_of,
        unread=lambda tensor: reader.consumed(tensor, tensor.elements),
    )
    whole = any(is_whole(o.plan, t) for o in outputs for t in shard.tensors)
    done = 0
    with ExitStack() as stack:
        writers = [_opened(stack, o.folder, o.plan.shards[number], options, len(outputs)) for o in outputs]
        # a whole tensor is large: no more than two at a time
        for step, counts, overlaps, merged in in_order(steps, run, 1 if whole else workers, reader.abandon):
            steps.took(step, counts, overlaps)
            if merged:
                tallies.add(step.chunk, merged)
                for item, writer in zip(merged, writers, strict=True):
                    writer.write(item.data)
                done += step.chunk.count
            relay.merged(done)
            options.tell(relay.warning)
        return [
            FinishedShard(shard.filename, *writer.finish(), tallies.inputs, result)
            for writer, result in zip(writers, tallies.results, strict=True)
        ]


def _opened(
    stack: ExitStack, folder: Path, shard: PlannedShard, options: StreamOptions, outputs: int
) -> ShardWriter | NullShardWriter:
    if options.sink == "null":
        return stack.enter_context(NullShardWriter(folder, shard))
    return stack.enter_context(ShardWriter(folder, shard, outputs))


class _Tallies:
    """What was counted of a shard's tensors; chunks come in the file's order."""

    def __init__(
        self, plan: Plan, shard: PlannedShard, outputs: int, *, with_inputs: bool, told: Callable[[str, Tally], None]
    ) -> None:
        agents = len(plan.agents)
        merged = [t.name for t in shard.tensors if t.action == "merge"]
        self._zero = zero_tally(agents)
        self._zero_result = zero_result(agents)
        self.inputs = dict.fromkeys(merged, self._zero) if with_inputs else None
        self.results = [dict.fromkeys(merged, self._zero_result) for _ in range(outputs)]
        self._plan = plan
        self._told = told

    def add(self, chunk: Chunk, merged: Sequence[Done]) -> None:
        """The results of a chunk, one per output; NonFiniteError names what is not finite."""
        name, ends = chunk.tensor.name, chunk.ends
        if not chunk.start:
            self._fold_in = TensorFold(self._zero, fold_inputs)
            self._folds_out = [TensorFold(self._zero_result, fold_result) for _ in merged]
        if self.inputs is not None and (counts := merged[0].inputs) is not None:
            self._fold_in.add(counts)
            check_inputs(self._plan, name, counts.tally)
            if ends:
                self.inputs[name] = self._fold_in.tally()
                self._told(name, self.inputs[name])
        for item, fold, result in zip(merged, self._folds_out, self.results, strict=True):
            if item.result is not None:
                fold.add(item.result)
                _check_result(name, item.result.tally)
                if ends:
                    result[name] = fold.tally()


def _counted(
    outputs: Sequence[Output], number: int, options: StreamOptions, statistics: Statistics | None, workers: int
) -> CountedTensors:
    plan = outputs[0].plan
    size = options.chunk(plan)

    def chunk_of(tensor: PlannedTensor) -> int:
        return max(tensor.elements, 1) if any(is_whole(o.plan, tensor) for o in outputs) else size

    ranked = [None if o.thresholds else ranked_by_tensor(o.plan, options) for o in outputs]
    overlaps = statistics is None and any(o.plan.overlap_scope == "tensor" for o in outputs)
    kept, everyone = options.shares(plan).kept_bytes, max(workers, options.workers(plan))
    return CountedTensors.of(
        plan.shards[number].tensors, chunk_of, ranked, kept * workers // everyone, workers, overlaps=overlaps
    )


def _check_result(name: str, tally: ResultTally) -> None:
    if tally.nonfinite:
        raise NonFiniteError(
            "the merge overflows the output's dtype",
            where=name,
            expected="finite values",
            got=f"{tally.nonfinite} NaN or Inf",
            next_step="Choose dtype: float32 or bfloat16.",
        )
