"""Writing one output shard, of one merge or of several over the same models.

Chunks are counted and merged by a few threads (chunks.py); their results are taken in the order of the steps, which is
that of the file: folded into the shard's statistics, hashed and written.

A method may need an exact order statistic of each tensor (selection.py), or to know where updates meet in it. Then a
group of tensors, whose inputs still lie in the page cache, is counted before it is merged:

    counted:  t0 t0 t1         t2 ..
    merged:             t0 t0 t1      t2 ..

No bit of the result depends on the groups.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hubmerge.engine.backend import Backend
from hubmerge.engine.chunks import (
    Chunk,
    Sensitivities,
    Thresholds,
    Work,
    check_inputs,
    chunks_of,
    read_chunk,
    with_sensitivities,
)
from hubmerge.engine.counting import TensorFold
from hubmerge.engine.definition import BinCounts, ChunkOutput, Rule
from hubmerge.engine.parallel_shards import Relay
from hubmerge.engine.rules import is_whole
from hubmerge.engine.selection import Selection
from hubmerge.engine.sink import FinishedShard, ShardWriter
from hubmerge.engine.threads import in_order
from hubmerge.errors import NonFiniteError
from hubmerge.plan.plan import Plan, PlannedShard, PlannedTensor
from hubmerge.sources.derived import DerivedTensor
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import TensorReader, sources_of
from hubmerge.statistics.statistics import Counts, Overlaps, ResultTally, Statistics, zero_result, zero_tally

GROUP_BYTES = 256 * 1024 * 1024  # of inputs that are counted together


@dataclass(frozen=True)
class Output:
    """What writing a shard needs to know of a variant."""

    plan: Plan
    folder: Path
    sensitivities: tuple[Sensitivities, ...]
    thresholds: Thresholds  # over the whole model


@dataclass(frozen=True)
class ShardTask:
    """One shard of every output that lacks it; plain data, which a burst gets.

    `statistics`: of the model, where an output needs them; None: they are counted with the shard.
    """

    outputs: tuple[Output, ...]
    number: int
    statistics: Statistics | None

    @property
    def plan(self) -> Plan:
        return self.outputs[0].plan

    @property
    def shard(self) -> PlannedShard:
        return self.plan.shards[self.number]

    @property
    def elements(self) -> int:
        return sum(t.elements for t in self.shard.tensors)

    @property
    def with_overlaps(self) -> bool:
        """Whether an output needs to know where updates meet in each tensor."""
        return self.statistics is None and any(o.plan.overlap_scope == "tensor" for o in self.outputs)

    def is_whole(self, tensor: PlannedTensor) -> bool:
        """True where a tensor must be one chunk."""
        return any(is_whole(o.plan, tensor) for o in self.outputs)

    def passes(self, tensor: PlannedTensor) -> int:
        """How often a tensor is counted before it is merged, at most."""
        if tensor.action != "merge" or not tensor.elements:
            return 0
        thresholds = (o.plan.threshold_of(tensor) for o in self.outputs)
        return 2 if any(t is not None and t.scope == "tensor" for t in thresholds) else int(self.with_overlaps)

    def groups(self) -> Iterator[list[PlannedTensor]]:
        """The shard's tensors in order, so many together as are counted together.

        A group keeps to the same files, none of which may have to be fetched again for it."""
        group: list[PlannedTensor] = []
        size, files = 0, set[tuple[int, str]]()
        for tensor in self.shard.tensors:
            own_size = _input_bytes(tensor)
            own_files = {(m, part.shard) for k, stored in enumerate(tensor.inputs) for m, part in sources_of(k, stored)}
            if group and (size + own_size > GROUP_BYTES or own_files != files):
                yield group
                group, size = [], 0
            group.append(tensor)
            size, files = size + own_size, own_files
        if group:
            yield group

    def readings(self) -> Iterator[PlannedTensor]:
        """The tensors that `write_shard` reads, in their order, as often as it may have to."""
        for group in self.groups():
            for number in (1, 2):
                yield from (t for t in group if self.passes(t) >= number)
            yield from group


class Step(NamedTuple):
    """A chunk to be counted, or merged by `rules`, one per output (None: the tensor is copied)."""

    chunk: Chunk
    counting: "Counting | None"
    rules: Sequence[Rule | None] = ()


class Result(NamedTuple):
    step: Step
    counts: Sequence[BinCounts | None] = ()  # per output, if it counted
    overlaps: Counts | None = None  # [K, K+1]
    merged: Sequence[ChunkOutput] = ()  # per output, if it merged


@dataclass
class Counting:
    """What was counted of a tensor before it is merged, so far."""

    selections: list[Selection | None]  # per output
    with_overlaps: bool
    overlaps: Counts | None = None

    @property
    def left(self) -> list[Selection | None]:
        """The selections that need this pass."""
        return [s if s is not None and s.values is None else None for s in self.selections]

    def take(self, result: Result) -> None:
        """Results come in the order of the chunks."""
        if result.overlaps is not None:
            self.overlaps = result.overlaps if self.overlaps is None else self.overlaps + result.overlaps
        for selection, counts in zip(self.selections, result.counts, strict=True):
            if selection is not None and counts is not None:
                selection.add(counts)
                if result.step.chunk.ends:
                    selection.end_pass()


class ShardWork:
    """The steps of one shard, for any thread, and what was counted so far, for the thread that takes their results."""

    def __init__(self, task: ShardTask, reader: TensorReader, backend: Backend) -> None:
        self._task = task
        self._reader = reader
        self._chunk = backend.chunk
        self._works = [Work(o.plan, backend, task.statistics) for o in task.outputs]
        self._sensitivities = next((o.sensitivities for o in task.outputs if o.sensitivities), ())
        self._counted_now = self._in_flight = 0  # steps whose results have not been taken: to be counted, and all
        self._whole_at_once = 1 if backend.engine is None else 2  # a device multiplies while the next one is read

    def counting_steps(
        self, tensors: Sequence[PlannedTensor]
    ) -> Generator[Step | None, None, list[tuple[PlannedTensor, Counting]]]:
        """Count what outputs must know of these tensors; None waits for a result. All is counted when it ends."""
        counted = [
            (tensor, Counting([work.selection(tensor) for work in self._works], self._task.with_overlaps))
            for tensor in tensors
            if self._task.passes(tensor)
        ]
        for number in (1, 2):
            for tensor, counting in counted:
                if number == 1 or any(counting.left):
                    for chunk in chunks_of(tensor, self._chunk):
                        self._counted_now += 1
                        self._in_flight += 1
                        yield Step(chunk, counting)
                elif self._task.passes(tensor) == 2:
                    self._reader.consumed(tensor, tensor.elements)  # which is read once less
            while self._counted_now:
                yield None
            for _, counting in counted:
                counting.with_overlaps = False
        return counted

    def steps(self) -> Iterator[Step | None]:
        """Count and merge every tensor of the shard."""
        for group in self._task.groups():
            counted = {tensor.name: counting for tensor, counting in (yield from self.counting_steps(group))}
            for tensor in (t for t in group if t.elements):
                counting = counted.get(tensor.name) or Counting([None] * len(self._works), with_overlaps=False)
                overlaps = None if counting.overlaps is None else Overlaps(counting.overlaps)
                rules = []
                for work, output, own in zip(self._works, self._task.outputs, counting.selections, strict=True):
                    thresholds = output.thresholds.get(tensor.name) or (own and own.values) or ()
                    rules.append(work.rule(tensor, thresholds, overlaps))
                whole = self._task.is_whole(tensor)
                while whole and self._in_flight >= self._whole_at_once:  # it is large, and may take all threads
                    yield None
                for chunk in chunks_of(tensor, tensor.elements if whole else self._chunk):
                    self._in_flight += 1
                    yield Step(chunk, None, rules)

    def run(self, step: Step) -> Result:
        """In any thread."""
        chunk, counting = step.chunk, step.counting
        stored = read_chunk(self._reader, chunk)
        if counting is not None:
            ranking = zip(self._works, counting.left, strict=True)
            counts = [None if s is None else w.count(chunk, stored, s) for w, s in ranking]
            return Result(step, counts, self._works[0].count_overlaps(stored) if counting.with_overlaps else None)
        stored = with_sensitivities(self._reader, chunk, stored, self._sensitivities)
        with_inputs = self._task.statistics is None  # they are counted once, with the first output
        merging = enumerate(zip(self._works, step.rules, strict=True))
        merged = [w.merge(chunk, stored, r, with_inputs=with_inputs and i == 0) for i, (w, r) in merging]
        return Result(step, merged=merged)

    def took(self, result: Result) -> None:
        """A result was taken in its order."""
        self._in_flight -= 1
        if result.step.counting is not None:
            self._counted_now -= 1
            result.step.counting.take(result)


def write_shard(
    task: ShardTask, reader: TensorReader, backend: Backend, relay: Relay, workers: int
) -> list[FinishedShard]:
    """Write the shard of every output, with so many threads."""
    work, tallies = ShardWork(task, reader, backend), _Tallies(task, relay)
    done = 0
    with ExitStack() as stack:
        keep = backend.options.sink == "disk"
        writers = [
            stack.enter_context(ShardWriter(o.folder, o.plan.shards[task.number], len(task.outputs), keep=keep))
            for o in task.outputs
        ]
        for result in in_order(work.steps(), work.run, workers, reader.abandon):
            work.took(result)
            if result.merged:
                tallies.add(result.step.chunk, result.merged)
                for item, writer in zip(result.merged, writers, strict=True):
                    writer.write(item.data)
                done += result.step.chunk.count
            relay.merged(done)
            if backend.engine is not None:
                backend.engine.tell(relay.warning)
        return [
            FinishedShard(task.shard.filename, *writer.finish(), tallies.inputs, result)
            for writer, result in zip(writers, tallies.results, strict=True)
        ]


class _Tallies:
    """What was counted of a shard's tensors; chunks come in the file's order."""

    def __init__(self, task: ShardTask, relay: Relay) -> None:
        self._plan = task.plan
        self._counted = relay.counted
        agents = len(self._plan.agents)
        merged = [t.name for t in task.shard.tensors if t.action == "merge"]
        self._zero, self._zero_result = zero_tally(agents), zero_result(agents)
        self.inputs = dict.fromkeys(merged, self._zero) if task.statistics is None else None
        self.results = [dict.fromkeys(merged, self._zero_result) for _ in task.outputs]

    def add(self, chunk: Chunk, merged: Sequence[ChunkOutput]) -> None:
        """The results of a chunk, one per output; NonFiniteError names what is not finite."""
        name, ends = chunk.tensor.name, chunk.ends
        if not chunk.start:
            self._fold_in = TensorFold(self._zero)
            self._folds_out = [TensorFold(self._zero_result) for _ in merged]
        if self.inputs is not None and (counts := merged[0].inputs) is not None:
            self._fold_in.add(counts)
            check_inputs(self._plan, name, counts.tally)
            if ends:
                self.inputs[name] = self._fold_in.tally()
                self._counted(name, self.inputs[name])
        for item, fold, result in zip(merged, self._folds_out, self.results, strict=True):
            if item.result is not None:
                fold.add(item.result)
                _check_result(chunk.tensor, item.result.tally)
                if ends:
                    result[name] = fold.tally()


def _check_result(tensor: PlannedTensor, tally: ResultTally) -> None:
    if tally.nonfinite:
        smaller = "Choose smaller weights, or remove the agent whose update of this tensor is this large."
        raise NonFiniteError(
            "the merge overflows the output's dtype",
            where=tensor.name,
            expected=f"finite values of {tensor.dtype}",
            got=f"{tally.nonfinite} NaN or Inf",
            next_step="Choose dtype: float32 or bfloat16." if tensor.dtype == "F16" else smaller,
        )


def _input_bytes(tensor: PlannedTensor) -> int:
    """Of all inputs as they are read: what is computed is float32."""
    each = (4 if isinstance(t, DerivedTensor) else DTYPE_BYTES[t.entry.dtype] for t in tensor.inputs)
    return tensor.elements * sum(each)
