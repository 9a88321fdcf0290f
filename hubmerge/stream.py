"""Streaming: every input read in fixed-size chunks, counted, merged, rounded once and written, in constant memory.

    merge           one recipe into one folder
    merge_variants  several recipes over the same models, each into a folder of its own, inputs read once for all

The results of the chunks are taken in file order, hashed and written. Nothing about them depends on the chunk size
or on the number of threads: the kernel is element-wise, randomness is a function of the element's identity, and sums
have an order of their own (counting.py). What one chunk is and how it is worked on: chunks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubmerge import buffers, eager
from hubmerge.chunks import (
    Chunk,
    Done,
    Observer,
    Sensitivities,
    Silent,
    StreamOptions,
    Thresholds,
    Work,
    chunks_of,
    draw_keys,
    epsilon_of,
    in_order,
    read_chunk,
)
from hubmerge.counting import fold_inputs, fold_result
from hubmerge.distributed import ALONE
from hubmerge.errors import InternalError, NonFiniteError
from hubmerge.folding import TensorFold
from hubmerge.methods import get_method
from hubmerge.parallel_shards import Overall, write_shards
from hubmerge.plan import Plan, PlannedTensor
from hubmerge.rank_folders import adopt, check_complete, collect
from hubmerge.selection import Magnitudes, select
from hubmerge.sink import FinishedShard, Journal, ShardWriter, plan_identity
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics import ResultTally, Statistics, Tally, zero_result, zero_tally

MAGNITUDE_BINS = 1 << 16  # at most, of selection.py's counts

CountChunk = Callable[[eager.ChunkInputs], NDArray[np.int64]]

__all__ = [
    "MergeResult",
    "Observer",
    "Silent",
    "StreamOptions",
    "Variant",
    "layout_of",
    "merge",
    "merge_variants",
    "probe",
]


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


@dataclass(frozen=True)
class Output:
    """What writing a shard needs to know of a variant; plain data."""

    plan: Plan
    folder: Path
    sensitivities: tuple[Sensitivities, ...]
    thresholds: Thresholds


def probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model."""
    with options.on_device(observer.warning) as opened:
        if opened.engine is not None:
            opened.engine.check_counting(len(plan.agents))
        return _probe(plan, reader, opened, observer)


def _probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    epsilon = epsilon_of(plan)
    planned = [t for t in plan.tensors() if t.action == "merge"]
    merged = options.ranks.mine(planned, lambda t: t.elements)
    tallies = {t.name: zero_tally(len(plan.agents)) for t in merged}
    counted = zero_tally(len(plan.agents))
    done, total = 0, sum(t.elements for t in merged)

    def count(chunk: Chunk) -> tuple[Chunk, Done]:
        module = options.module(len(plan.agents), "F32")
        return chunk, Done(b"", module.probe_chunk(read_chunk(reader, chunk), epsilon), None)

    reader.expect(merged, again=True)
    chunks = (c for t in merged for c in chunks_of(t, options.chunk(plan)))
    for chunk, item in in_order(chunks, count, options.workers, reader.abandon):
        name = chunk.tensor.name
        assert item.inputs is not None
        if not chunk.start:
            fold = TensorFold(tallies[name], fold_inputs)
        fold.add(item.inputs)
        done += chunk.count
        _check_inputs(plan, name, item.inputs.tally)
        if chunk.ends:
            tallies[name] = fold.tally()
            counted = counted + tallies[name]
            observer.counted(counted)
        observer.progress("probe", done, total)
        options.tell(observer.warning)
    tallies = options.ranks.tallies(tallies)
    return Statistics(plan.labels, epsilon, {t.name: tallies[t.name] for t in planned})


def find_thresholds(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none."""
    method = get_method(plan.recipe.method)
    wanted = method.threshold(method.parse_parameters(plan.recipe.parameters))
    if wanted is None:
        return {}
    magnitudes = Magnitudes(wanted, epsilon_of(plan), compiled=options.backend != "eager")
    merged = [t for t in plan.tensors() if t.action == "merge"]
    merged = options.ranks.mine(merged, lambda t: t.elements)
    by_tensor = wanted.scope == "tensor"
    groups = [[t] for t in merged] if by_tensor else [merged]
    if by_tensor:
        reader.expect([t for t in merged for _ in range(2)], again=True)
    done, total = 0, 2 * sum(t.elements for t in merged)
    found: dict[str, tuple[float, ...]] = {}
    everyones = ALONE if by_tensor else options.ranks

    def own(group: list[PlannedTensor], count: CountChunk) -> Iterator[NDArray[np.int64]]:
        nonlocal done
        chunks = (c for t in group for c in chunks_of(t, options.chunk(plan)))

        def work(chunk: Chunk) -> tuple[int, NDArray[np.int64]]:
            stored = read_chunk(reader, chunk)
            if wanted.of == "dropped":
                stored = replace(stored, uniform_keys=draw_keys(plan, chunk.tensor))
            with np.errstate(all="ignore"):
                return chunk.count, count(stored)

        for elements, counted in in_order(chunks, work, options.workers, reader.abandon):
            done += elements
            observer.progress("select", done, total)
            yield counted

    def passes(group: list[PlannedTensor], count: CountChunk) -> Iterator[NDArray[np.int64]]:
        if not by_tensor:
            reader.expect(group, again=True)
        return everyones.with_others(own(group, count), (len(plan.agents), MAGNITUDE_BINS))

    for group in groups:
        end = done + 2 * sum(t.elements for t in group)
        values = select(magnitudes, len(plan.agents), partial(passes, group))
        found |= {t.name: values for t in group}
        if done < end:  # the first pass was enough
            done = end
            observer.progress("select", done, total)
            if by_tensor:
                reader.consumed(group[0], group[0].elements)
    joined = options.ranks.joined(found)
    return {t.name: tuple(joined[t.name]) for t in plan.tensors() if t.name in joined}


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
    first = variants[0]
    for variant in variants[1:]:
        if layout_of(variant.plan) != layout_of(first.plan):
            raise InternalError("variants with other models, dtypes or ε cannot be merged in one pass")
    options.ranks.agree("the plan", plan_identity(first.plan))
    with options.on_device(observer.warning) as opened:
        statistics = merge_share(variants, reader, opened, observer)
        device = {} if opened.engine is None else opened.engine.facts()
        if opened.bursts is not None:
            device |= opened.bursts.facts
    for variant in variants:
        adopt(variant.folder, variant.plan, variant.journal)
        check_complete(variant.folder, variant.plan, variant.journal)
    return [replace(_collected(variant, statistics), device=device) for variant in variants]


def merge_share(
    variants: Sequence[Variant], reader: TensorReader, options: StreamOptions, observer: Observer
) -> Statistics | None:
    """Write this process's share of the shards; when it returns, every process has written its own.

    Returns the probe's statistics, where there was one.
    """
    ranks, plan = options.ranks, variants[0].plan
    statistics = _statistics(variants, reader, options, observer)
    thresholds = [_thresholds(variant, reader, options, observer) for variant in variants]
    finished = [set(ranks.first(sorted(v.journal.shards))) for v in variants]
    left = [s for s in plan.shards if any(s.filename not in names for names in finished)]
    mine = ranks.mine(left, lambda s: s.size)
    reader.expect([t for s in mine for t in s.tensors], again=False)
    numbers = [number for number, shard in enumerate(plan.shards) if shard in mine]
    at_once = min(options.shards_at_once(plan), len(numbers) or 1)
    if any(variant.journal.on_shard for variant in variants):  # what is finished leaves the disk first
        at_once = 1

    def open_in(number: int) -> list[tuple[Variant, Thresholds]]:
        name = plan.shards[number].filename
        return [(v, t) for v, t, names in zip(variants, thresholds, finished, strict=True) if name not in names]

    def elements(number: int) -> int:
        return sum(t.elements for t in plan.shards[number].tensors)

    def write(number: int, watching: Observer) -> list[FinishedShard]:
        outputs = [Output(v.plan, v.folder, v.sensitivities, t) for v, t in open_in(number)]
        if options.bursts is not None:
            lent = options.bursts.write(outputs, number, reader, options, watching, observer.warning, statistics)
            if lent is not None:
                return lent
        return write_shard(outputs, number, reader, options, watching, statistics, options.workers // at_once)

    overall = Overall(observer, sum(map(elements, set(range(len(plan.shards))) - set(numbers))), plan.elements)
    for number, written in write_shards(numbers, elements, write, at_once, overall, reader.abandon):
        for (variant, _), finished_shard in zip(open_in(number), written, strict=True):
            variant.journal.add_shard(finished_shard)
    for variant in variants:
        variant.settle()
        collect(ranks, variant.journal)
    return statistics


def layout_of(plan: Plan) -> object:
    """Equal for plans that can be merged in one pass: the same models, shards and ε."""
    return plan.base.ref, tuple(a.ref for a in plan.agents), epsilon_of(plan), tuple(s.header for s in plan.shards)


def _statistics(
    variants: Sequence[Variant], reader: TensorReader, options: StreamOptions, observer: Observer
) -> Statistics | None:
    """The probe's statistics when any variant needs them; None: they are counted while merging."""
    plan = variants[0].plan
    if not any(get_method(v.plan.recipe.method).needs_statistics for v in variants):
        return None
    known = next((v.journal.statistics for v in variants if v.journal.statistics is not None), None)
    known = options.ranks.known_tallies(known)
    tensors = known if known is not None else probe(plan, reader, options, observer).tensors
    for variant in variants:
        if variant.journal.statistics is None:
            variant.journal.add_statistics(tensors)
    return Statistics(plan.labels, epsilon_of(plan), tensors)


def _thresholds(variant: Variant, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    known = options.ranks.first(variant.journal.thresholds)
    if known is None:
        known = find_thresholds(variant.plan, reader, options, observer)
    if variant.journal.thresholds is None:
        variant.journal.add_thresholds({name: tuple(values) for name, values in known.items()})
    return variant.journal.thresholds or {}


def write_shard(
    outputs: Sequence[Output],
    number: int,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    statistics: Statistics | None,
    workers: int = 0,
) -> list[FinishedShard]:
    """Write shard `number` of every output, with `workers` threads; 0: with all of the options."""
    plan = outputs[0].plan
    shard = plan.shards[number]
    done, total = 0, sum(t.elements for t in shard.tensors)
    agents = len(plan.agents)
    merged = [t.name for t in shard.tensors if t.action == "merge"]
    inputs = {name: zero_tally(agents) for name in merged} if statistics is None else None
    results = [{name: zero_result(agents) for name in merged} for _ in outputs]
    counted = zero_tally(agents)
    measured = next((o.sensitivities for o in outputs if o.sensitivities), ())
    works = [Work(o.plan, options, statistics, o.thresholds) for o in outputs]
    whole = any(work.takes_wholes for work in works)

    def run(chunk: Chunk) -> tuple[Chunk, list[Done]]:
        stored = read_chunk(reader, chunk, measured)
        # the inputs are counted once, with the first variant
        return chunk, [w(chunk, stored, with_inputs=inputs is not None and i == 0) for i, w in enumerate(works)]

    with ExitStack() as stack:
        stack.callback(buffers.drop)
        writers = [stack.enter_context(ShardWriter(o.folder, o.plan.shards[number])) for o in outputs]
        chunks = (
            c for t in shard.tensors for c in chunks_of(t, max(w.chunk_of(t, options.chunk(plan)) for w in works))
        )
        # a whole tensor is large: no more than two at a time
        for chunk, items in in_order(chunks, run, 1 if whole else workers or options.workers, reader.abandon):
            name = chunk.tensor.name
            if not chunk.start:
                fold_in = TensorFold(zero_tally(agents), fold_inputs)
                folds_out = [TensorFold(zero_result(agents), fold_result) for _ in outputs]
            if inputs is not None and (counts := items[0].inputs) is not None:
                fold_in.add(counts)
                _check_inputs(plan, name, counts.tally)
                if chunk.ends:
                    inputs[name] = fold_in.tally()
                    counted = counted + inputs[name]
                    observer.counted(counted)
            for item, writer, fold_out, result in zip(items, writers, folds_out, results, strict=True):
                writer.write(item.data)
                if item.result is not None:
                    fold_out.add(item.result)
                    _check_result(name, item.result.tally)
                    if chunk.ends:
                        result[name] = fold_out.tally()
            done += chunk.count
            observer.progress("merge", done, total)
            options.tell(observer.warning)
        return [
            FinishedShard(shard.filename, *writer.finish(), inputs, result)
            for writer, result in zip(writers, results, strict=True)
        ]


def _collected(variant: Variant, statistics: Statistics | None) -> MergeResult:
    plan = variant.plan
    shards = tuple(variant.journal.shards[s.filename] for s in plan.shards)
    if statistics is None:
        counted = {n: t for s in shards for n, t in (s.inputs or {}).items()}
        statistics = Statistics(plan.labels, epsilon_of(plan), counted)
    return MergeResult(shards, statistics, {n: t for s in shards for n, t in s.result.items()})


def _check_result(name: str, tally: ResultTally) -> None:
    if tally.nonfinite:
        raise NonFiniteError(
            "the merge overflows the output's dtype",
            where=name,
            expected="finite values",
            got=f"{tally.nonfinite} NaN or Inf",
            next_step="Choose dtype: float32 or bfloat16.",
        )


def _check_inputs(plan: Plan, name: str, tally: Tally) -> None:
    for model, bad in zip(plan.models, tally.nonfinite, strict=True):
        if bad:
            raise NonFiniteError(
                "NaN or Inf in an input",
                where=f"{name} of {model.ref}",
                expected="finite values",
                got=f"{bad} so far",
                next_step=f"Remove {model.ref.id}: it is broken.",
            )
