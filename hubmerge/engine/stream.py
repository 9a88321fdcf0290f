"""Streaming: every input read in fixed-size chunks, counted, merged, rounded once and written, in constant memory.

    merge           one recipe into one folder
    merge_variants  several recipes over the same models, each into a folder of its own, inputs read once for all
    probe           counts of every tensor, and no output

What a method must know of the whole model is counted in passes before the merge; what it must know of single tensors,
just before these are merged (shard_work.py).

The results of the chunks are taken in file order, hashed and written. Nothing about them depends on the chunk size
or on the number of threads: the kernel is element-wise, randomness is a function of the element's identity, and sums
have an order of their own (counting.py). What one chunk is and how it is worked on: chunks.py.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hubmerge.engine.backend import Backend, opened
from hubmerge.engine.bursts import Bursts
from hubmerge.engine.chunks import Chunk, Sensitivities, Thresholds, Work, check_inputs, chunks_of, read_chunk
from hubmerge.engine.counting import Counted, TensorFold
from hubmerge.engine.definition import BinCounts
from hubmerge.engine.distributed import of_all_devices
from hubmerge.engine.journal import Journal, plan_identity
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.parallel_shards import CountedSoFar, Overall, Relay, write_shards
from hubmerge.engine.progress import Observer
from hubmerge.engine.resume import check_reachable, share
from hubmerge.engine.rules import epsilon_of
from hubmerge.engine.selection import Selection
from hubmerge.engine.shard_work import Output, ShardTask, write_shard
from hubmerge.engine.sink import FinishedShard
from hubmerge.engine.threads import in_order
from hubmerge.errors import InternalError
from hubmerge.plan.plan import Plan
from hubmerge.sources import buffers
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import ResultTally, Statistics, Tally, zero_result, zero_tally

__all__ = ["MergeResult", "StreamOptions", "Variant", "layout_of", "merge", "merge_variants", "probe"]


@dataclass(frozen=True)
class MergeResult:
    """What a finished stream hands on."""

    shards: tuple[FinishedShard, ...]
    statistics: Statistics
    result: Mapping[str, ResultTally]  # by tensor, in plan order
    device: Mapping[str, Any] = field(default_factory=dict)  # Engine.facts, where a device was used

    @property
    def total(self) -> ResultTally:
        return ResultTally.sum_of([zero_result(len(self.statistics.agents)), *self.result.values()])


@dataclass(frozen=True)
class Variant:
    """One of several merges of the same models: its plan, its journal, its folder.

    `sensitivities`: per agent the tensors of its sensitivity file, for methods that weigh by them; the reader's
    models are the plan's followed by those files.
    """

    plan: Plan
    journal: Journal
    folder: Path
    sensitivities: tuple[Sensitivities, ...] = ()
    settle: Callable[[], None] = lambda: None  # returns when the finished shards are where they belong


def merge(
    plan: Plan, reader: TensorReader, journal: Journal, folder: Path, options: StreamOptions, observer: Observer
) -> MergeResult:
    """Write every shard that the journal does not hold; the probe first when the method needs it.

    Raises NonFiniteError for NaN or Inf in an input or the output, DiskError, CorruptError.
    """
    [result] = merge_variants([Variant(plan, journal, folder)], reader, options, observer)
    return result


def merge_variants(
    variants: Sequence[Variant], reader: TensorReader, options: StreamOptions, observer: Observer
) -> list[MergeResult]:
    """Merge the same models by several recipes, reading the inputs once for all of them.

    The plans must lay out the same tensors in the same shards: the same models, output dtype and ε.
    """
    plans, ranks = [variant.plan for variant in variants], options.ranks
    if len({layout_of(plan) for plan in plans}) > 1:
        raise InternalError("variants with other models, dtypes or ε cannot be merged in one pass")
    ranks.agree("the plan", plan_identity(plans[0]))
    with opened(plans, options, observer) as backend, closing(Bursts(options)) as bursts:
        statistics = _statistics(variants, reader, backend, observer)
        thresholds = [_thresholds(variant, reader, backend, observer) for variant in variants]
        _write(variants, statistics, thresholds, reader, backend, bursts, observer)
        device = of_all_devices(ranks.gather(backend.facts())) | bursts.facts
    return [replace(_collected(variant, statistics), device=device) for variant in variants]


def probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model."""
    with opened([plan], options, observer, merging=False) as backend:
        return count_model(plan, reader, backend, observer)


def count_model(plan: Plan, reader: TensorReader, backend: Backend, observer: Observer) -> Statistics:
    """`probe` with an open backend."""
    ranks, epsilon = backend.options.ranks, epsilon_of(plan)
    planned = [t for t in plan.tensors() if t.action == "merge"]
    mine = ranks.mine(planned)
    nothing = zero_tally(len(plan.agents))
    tallies = {t.name: nothing for t in mine}
    so_far = CountedSoFar(observer, plan.labels)
    done, total = 0, sum(t.elements for t in mine)

    def count(chunk: Chunk) -> tuple[Chunk, Counted[Tally]]:
        return chunk, backend.module.probe_chunk(read_chunk(reader, chunk), epsilon)

    reader.expect(mine, again=True)
    size = backend.chunk
    chunks = (chunk for tensor in mine for chunk in chunks_of(tensor, size))
    for chunk, counts in in_order(chunks, count, backend.threads, reader.abandon):
        name = chunk.tensor.name
        if not chunk.start:
            fold = TensorFold(nothing)
        fold.add(counts)
        done += chunk.count
        check_inputs(plan, name, counts.tally)
        if chunk.ends:
            tallies[name] = fold.tally()
            so_far.add(name, tallies[name])
        so_far.tell()
        observer.progress("probe", done, total, "elements")
        if backend.engine is not None:
            backend.engine.tell(observer.warning)
    tallies = ranks.tallies(tallies)
    return Statistics(plan.labels, epsilon, {t.name: tallies[t.name] for t in planned})


def find_thresholds(plan: Plan, reader: TensorReader, backend: Backend, observer: Observer) -> Thresholds:
    """The order statistics over the model that the method asks for, per tensor and agent; empty without one.

    They take one pass or two over the inputs, whose tensors the processes share out, on the CPU in any case.
    """
    threshold = plan.threshold
    if threshold is None or threshold.scope == "tensor":
        return {}
    ranks = backend.options.ranks
    merged = [t for t in plan.tensors() if t.action == "merge"]
    mine, work = ranks.mine(merged), Work(plan, backend, None)
    selection = Selection(threshold, len(plan.agents))
    done, share = 0, sum(t.elements for t in mine)

    def count(chunk: Chunk) -> tuple[Chunk, BinCounts]:
        return chunk, work.count(chunk, read_chunk(reader, chunk), selection)

    while selection.values is None:
        reader.expect(mine, again=True)
        chunks = (chunk for tensor in mine for chunk in chunks_of(tensor, backend.shares.chunk))
        for chunk, counts in in_order(chunks, count, backend.shares.threads, reader.abandon):
            selection.add(counts)
            done += chunk.count
            observer.progress("select", done, 2 * share, "elements")
        selection.end_pass(ranks.added)
    observer.progress("select", 2 * share, 2 * share, "elements")
    return dict.fromkeys((t.name for t in merged), selection.values)


def layout_of(plan: Plan) -> object:
    """Equal for plans that can be merged in one pass: the same models, shards, ignored names and ε."""
    models = (plan.base.ref, *(agent.ref for agent in plan.agents))
    return models, plan.recipe.ignore, epsilon_of(plan), tuple(s.header for s in plan.shards)


def _statistics(
    variants: Sequence[Variant], reader: TensorReader, backend: Backend, observer: Observer
) -> Statistics | None:
    """The statistics of the model, where a variant needs them or has them; None: they are counted while merging."""
    plan, ranks = variants[0].plan, backend.options.ranks
    kept = [v.journal.statistics for v in variants if v.journal.statistics is not None]
    known = ranks.known_tallies(kept[0] if kept else None)
    if known is None and not any(v.plan.overlap_scope == "model" for v in variants):
        return None
    unknowing = [v.journal for v in variants if v.journal.statistics is None]
    if known is None:
        known = count_model(plan, reader, backend, observer).tensors
    for journal in unknowing if ranks.rank == 0 else ():  # which keeps them for all
        journal.add_statistics(known)
    return Statistics(plan.labels, epsilon_of(plan), known)


def _thresholds(variant: Variant, reader: TensorReader, backend: Backend, observer: Observer) -> Thresholds:
    """Those over the model; what is ranked in each tensor by itself is counted before that is merged."""
    threshold = variant.plan.threshold
    if threshold is not None and threshold.scope == "tensor":
        return {}
    known = backend.options.ranks.first(variant.journal.thresholds)
    if known is None:
        known = find_thresholds(variant.plan, reader, backend, observer)
    if variant.journal.thresholds is None:
        variant.journal.add_thresholds({name: tuple(values) for name, values in known.items()})
    return variant.journal.thresholds or {}


def _write(
    variants: Sequence[Variant],
    statistics: Statistics | None,
    thresholds: Sequence[Thresholds],
    reader: TensorReader,
    backend: Backend,
    bursts: Bursts,
    observer: Observer,
) -> None:
    """Write this process's shards; when it returns, every process has written its own."""
    ranks, plan = backend.options.ranks, variants[0].plan
    outputs = [Output(v.plan, v.folder, v.sensitivities, t) for v, t in zip(variants, thresholds, strict=True)]
    tasks: list[ShardTask] = []
    unfinished: dict[int, list[Variant]] = {}  # shard → the variants that lack it
    for number, planned in ranks.mine(list(enumerate(plan.shards))):
        lacking = [k for k, v in enumerate(variants) if planned.filename not in v.journal.shards]
        if lacking:
            unfinished[number] = [variants[k] for k in lacking]
            tasks.append(ShardTask(tuple(outputs[k] for k in lacking), number, statistics))
    at_once = min(backend.shards_at_once, len(tasks) or 1)
    if any(variant.journal.on_shard for variant in variants):  # what is finished leaves the disk first
        at_once = 1

    def write(task: ShardTask, relay: Relay) -> list[FinishedShard]:
        shards = bursts.write(task, reader, backend, relay)
        try:
            return shards or write_shard(task, reader, backend, relay, max(1, backend.threads // at_once))
        finally:
            buffers.drop()

    reader.expect([tensor for task in tasks for tensor in task.readings()], again=False)
    others = plan.elements - sum(task.elements for task in tasks)
    overall = Overall(observer, plan.labels, others, plan.elements)
    for task, shards in write_shards(tasks, write, at_once, overall, reader.abandon):
        for variant, shard in zip(unfinished[task.number], shards, strict=True):
            variant.journal.add_shard(shard)
    for variant in variants:
        variant.settle()
        share(ranks, variant.journal)
        if ranks.rank == 0:
            check_reachable(ranks, variant.folder, variant.plan, variant.journal)


def _collected(variant: Variant, statistics: Statistics | None) -> MergeResult:
    plan = variant.plan
    shards = tuple(variant.journal.shards[s.filename] for s in plan.shards)
    if statistics is None:
        counted = {n: t for s in shards for n, t in (s.inputs or {}).items()}
        statistics = Statistics(plan.labels, epsilon_of(plan), counted)
    return MergeResult(shards, statistics, {n: t for s in shards for n, t in s.result.items()})
