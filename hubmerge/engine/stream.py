"""Streaming: every input read in fixed-size chunks, counted, merged, rounded once and written, in constant memory.

    merge           one recipe into one folder
    merge_variants  several recipes over the same models, each into a folder of its own, inputs read once for all

The results of the chunks are taken in file order, hashed and written. Nothing about them depends on the chunk size
or on the number of threads: the kernel is element-wise, randomness is a function of the element's identity, and sums
have an order of their own (counting.py). What one chunk is and how it is worked on: chunks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hubmerge.engine.chunks import (
    Sensitivities,
    StreamOptions,
    Thresholds,
    Work,
    epsilon_of,
    runnable,
)
from hubmerge.engine.distributed import check_reachable, of_all_devices, share
from hubmerge.engine.first_passes import find_thresholds, probe
from hubmerge.engine.journal import Journal, plan_identity
from hubmerge.engine.parallel_shards import Overall, Relay, write_shards
from hubmerge.engine.progress import Observer
from hubmerge.engine.shard_work import Output, readings, write_shard
from hubmerge.engine.sink import FinishedShard
from hubmerge.engine.steps import ranked_by_tensor
from hubmerge.errors import InternalError
from hubmerge.plan.plan import Plan
from hubmerge.sources import buffers
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import ResultTally, Statistics, zero_result

__all__ = [
    "MergeResult",
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
    options = replace(options, beside=tuple(variant.plan for variant in variants[1:]))
    options.ranks.agree("the plan", plan_identity(first.plan))
    with runnable(options, observer).on_device(first.plan, observer.warning) as opened:
        statistics = _statistics(variants, reader, opened, observer)
        thresholds = [_thresholds(variant, reader, opened, observer) for variant in variants]
        _write(variants, statistics, thresholds, reader, opened, observer)
        device = of_all_devices(options.ranks.gather(opened.device_facts()))
    if options.bursts is not None:
        device |= options.bursts.facts
    return [replace(_collected(variant, statistics), device=device) for variant in variants]


def _write(
    variants: Sequence[Variant],
    statistics: Statistics | None,
    thresholds: Sequence[Thresholds],
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
) -> None:
    """Write this process's shards; when it returns, every process has written its own."""
    ranks, plan = options.ranks, variants[0].plan
    outputs = [Output(v.plan, v.folder, v.sensitivities, t) for v, t in zip(variants, thresholds, strict=True)]
    finished = [set(v.journal.shards) for v in variants]
    mine = ranks.mine(list(enumerate(plan.shards)))
    numbers = [number for number, shard in mine if any(shard.filename not in names for names in finished)]
    if numbers:
        _try_device(outputs, options, statistics)
        options.tell(observer.warning)
    used = options.lasting()
    at_once = min(used.shards_at_once(plan), len(numbers) or 1)
    if any(variant.journal.on_shard for variant in variants):  # what is finished leaves the disk first
        at_once = 1

    def open_in(number: int) -> list[tuple[Variant, Output]]:
        name = plan.shards[number].filename
        return [(v, o) for v, o, names in zip(variants, outputs, finished, strict=True) if name not in names]

    def outputs_of(number: int) -> list[Output]:
        return [output for _, output in open_in(number)]

    def elements(number: int) -> int:
        return sum(t.elements for t in plan.shards[number].tensors)

    def workers() -> int:
        return max(1, used.workers(plan) // at_once)

    def expect(numbers: Sequence[int]) -> None:
        reader.expect(
            [t for n in numbers for t in readings(outputs_of(n), n, used, statistics, workers())], again=False
        )

    def write(number: int, relay: Relay) -> list[FinishedShard]:
        nonlocal used
        if (now := options.lasting()).engine is not used.engine:  # other chunks may be read more or less often
            used = now
            expect(numbers[numbers.index(number) :])
        outputs = outputs_of(number)
        if options.bursts is not None:
            lent = options.bursts.write(outputs, number, reader, options, relay, observer.warning, statistics)
            if lent is not None:
                return lent
        try:
            return write_shard(outputs, number, reader, used, relay, statistics, workers())
        finally:
            buffers.drop()

    expect(numbers)
    others = sum(map(elements, set(range(len(plan.shards))) - set(numbers)))
    overall = Overall(observer, plan.labels, others, plan.elements)
    for number, written in write_shards(numbers, elements, write, at_once, overall, reader.abandon):
        for (variant, _), finished_shard in zip(open_in(number), written, strict=True):
            variant.journal.add_shard(finished_shard)
    for variant in variants:
        variant.settle()
        share(ranks, variant.journal)
        if ranks.rank == 0:
            check_reachable(ranks, variant.folder, variant.plan, variant.journal)


def _try_device(outputs: Sequence[Output], options: StreamOptions, statistics: Statistics | None) -> None:
    """Have the device prove itself before the work is shared out among threads, which the CPU would have more of.

    Where tensors are counted before they are merged, its first rule is known only when the first one was counted.
    """
    for output in outputs if options.engine is not None else ():
        plan, work = output.plan, Work(output.plan, options, statistics)
        overlaps = statistics is None and plan.overlap_scope == "tensor"
        if overlaps or (not output.thresholds and ranked_by_tensor(plan, options) is not None):
            continue
        for tensor in {t.dtype: t for t in plan.tensors() if t.action == "merge" and t.elements}.values():
            work.rule(tensor, output.thresholds.get(tensor.name, ()))


def layout_of(plan: Plan) -> object:
    """Equal for plans that can be merged in one pass: the same models, shards, ignored names and ε."""
    models = (plan.base.ref, *(agent.ref for agent in plan.agents))
    return models, plan.recipe.ignore, epsilon_of(plan), tuple(s.header for s in plan.shards)


def _statistics(
    variants: Sequence[Variant], reader: TensorReader, options: StreamOptions, observer: Observer
) -> Statistics | None:
    """The probe's statistics when any variant needs them, or has them; None: they are counted while merging.

    Where a GPU is lent by the second, what a method needs of each tensor is counted before, too.
    """
    plan = variants[0].plan
    known = next((v.journal.statistics for v in variants if v.journal.statistics is not None), None)
    known = options.ranks.known_tallies(known)
    needed = {v.plan.overlap_scope for v in variants}
    if known is None and "model" not in needed and not ("tensor" in needed and options.bursts is not None):
        return None
    unknowing = [v.journal for v in variants if v.journal.statistics is None]

    if known is None:
        known = probe(plan, reader, options, observer).tensors
    for journal in unknowing if options.ranks.rank == 0 else ():  # which keeps them for all
        journal.add_statistics(known)
    return Statistics(plan.labels, epsilon_of(plan), known)


def _thresholds(variant: Variant, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    if options.bursts is None and ranked_by_tensor(variant.plan, options) is not None:  # found tensor by tensor
        return {}
    known = options.ranks.first(variant.journal.thresholds)
    if known is None:
        known = find_thresholds(variant.plan, reader, options, observer)
    if variant.journal.thresholds is None:
        variant.journal.add_thresholds({name: tuple(values) for name, values in known.items()})
    return variant.journal.thresholds or {}


def _collected(variant: Variant, statistics: Statistics | None) -> MergeResult:
    plan = variant.plan
    shards = tuple(variant.journal.shards[s.filename] for s in plan.shards)
    if statistics is None:
        counted = {n: t for s in shards for n, t in (s.inputs or {}).items()}
        statistics = Statistics(plan.labels, epsilon_of(plan), counted)
    return MergeResult(shards, statistics, {n: t for s in shards for n, t in s.result.items()})
