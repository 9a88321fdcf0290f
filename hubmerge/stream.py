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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubmerge import eager
from hubmerge.chunks import (
    Chunk,
    Done,
    Observer,
    Sensitivities,
    Silent,
    StreamOptions,
    Thresholds,
    Work,
    backend_module,
    chunks_of,
    draw_keys,
    epsilon_of,
    in_order,
    read_chunk,
)
from hubmerge.counting import fold_inputs, fold_result
from hubmerge.errors import InternalError, NonFiniteError
from hubmerge.methods import get_method
from hubmerge.plan import Plan, PlannedTensor
from hubmerge.selection import Magnitudes, select
from hubmerge.sink import FinishedShard, Journal, ShardWriter
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics import ResultTally, Statistics, Tally, zero_result, zero_tally

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

    @property
    def total(self) -> ResultTally:
        total = zero_result(len(self.statistics.agents))
        for tally in self.result.values():
            total = total + tally
        return total


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


def probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model."""
    epsilon = epsilon_of(plan)
    merged = [t for t in plan.tensors() if t.action == "merge"]
    tallies = {t.name: zero_tally(len(plan.agents)) for t in merged}
    counted = zero_tally(len(plan.agents))
    done, total = 0, sum(t.elements for t in merged)
    module = backend_module(options.backend, len(plan.agents), "F32")

    def count(chunk: Chunk) -> tuple[Chunk, Done]:
        return chunk, Done(b"", module.probe_chunk(read_chunk(reader, chunk), epsilon), None)

    chunks = (c for t in merged for c in chunks_of(t, options.chunk(plan)))
    for chunk, item in in_order(chunks, count, options.workers):
        name = chunk.tensor.name
        assert item.inputs is not None
        tallies[name] = fold_inputs(tallies[name], item.inputs)
        done += chunk.count
        _check_inputs(plan, name, tallies[name])
        if chunk.ends:
            counted = counted + tallies[name]
            observer.counted(counted)
        observer.progress("probe", done, total)
    return Statistics(plan.labels, epsilon, tallies)


def find_thresholds(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none."""
    method = get_method(plan.recipe.method)
    wanted = method.threshold(method.parse_parameters(plan.recipe.parameters))
    if wanted is None:
        return {}
    magnitudes = Magnitudes(wanted, epsilon_of(plan))
    merged = [t for t in plan.tensors() if t.action == "merge"]
    groups = [merged] if wanted.scope == "model" else [[t] for t in merged]
    done, total = 0, 2 * sum(t.elements for t in merged)
    found: dict[str, tuple[float, ...]] = {}
    for group in groups:

        def passes(
            count: Callable[[eager.ChunkInputs], NDArray[np.int64]], group: list[PlannedTensor] = group
        ) -> Iterator[NDArray[np.int64]]:
            nonlocal done
            chunks = (c for t in group for c in chunks_of(t, options.chunk(plan)))

            def work(chunk: Chunk) -> tuple[int, NDArray[np.int64]]:
                stored = read_chunk(reader, chunk)
                if wanted.of == "dropped":
                    stored = replace(stored, uniform_keys=draw_keys(plan, chunk.tensor))
                with np.errstate(all="ignore"):
                    return chunk.count, count(stored)

            for elements, counted in in_order(chunks, work, options.workers):
                done += elements
                observer.progress("select", done, total)
                yield counted

        values = select(magnitudes, len(plan.agents), passes)
        found |= {t.name: values for t in group}
    return found


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
    statistics = _statistics(variants, reader, options, observer)
    thresholds = [_thresholds(variant, reader, options, observer) for variant in variants]
    done = 0
    for number, shard in enumerate(first.plan.shards):
        open_variants = [
            (v, t) for v, t in zip(variants, thresholds, strict=True) if shard.filename not in v.journal.shards
        ]
        if open_variants:
            _merge_shard(open_variants, number, reader, options, observer, statistics, done)
        done += sum(t.elements for t in shard.tensors)
    return [_collected(variant, statistics) for variant in variants]


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
    tensors = known if known is not None else probe(plan, reader, options, observer).tensors
    for variant in variants:
        if variant.journal.statistics is None:
            variant.journal.add_statistics(tensors)
    return Statistics(plan.labels, epsilon_of(plan), tensors)


def _thresholds(variant: Variant, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    if variant.journal.thresholds is None:
        variant.journal.add_thresholds(find_thresholds(variant.plan, reader, options, observer))
    return variant.journal.thresholds or {}


def _merge_shard(
    variants: Sequence[tuple[Variant, Thresholds]],
    number: int,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    statistics: Statistics | None,
    done: int,
) -> None:
    """Write shard `number` of every variant and journal it."""
    plan = variants[0][0].plan
    shard = plan.shards[number]
    total = plan.elements
    agents = len(plan.agents)
    merged = [t.name for t in shard.tensors if t.action == "merge"]
    inputs = {name: zero_tally(agents) for name in merged} if statistics is None else None
    results = [{name: zero_result(agents) for name in merged} for _ in variants]
    counted = zero_tally(agents)
    measured = next((v.sensitivities for v, _ in variants if v.sensitivities), ())
    works = [Work(v.plan, options, statistics, t) for v, t in variants]
    whole = any(work.takes_wholes for work in works)

    def run(chunk: Chunk) -> tuple[Chunk, list[Done]]:
        stored = read_chunk(reader, chunk, measured)
        # the inputs are counted once, with the first variant
        return chunk, [w(chunk, stored, with_inputs=inputs is not None and i == 0) for i, w in enumerate(works)]

    with ExitStack() as stack:
        writers = [stack.enter_context(ShardWriter(v.folder, v.plan.shards[number])) for v, _ in variants]
        chunks = (
            c for t in shard.tensors for c in chunks_of(t, max(w.chunk_of(t, options.chunk(plan)) for w in works))
        )
        # a whole tensor is large: no more than two at a time
        for chunk, items in in_order(chunks, run, 1 if whole else options.workers):
            name = chunk.tensor.name
            if inputs is not None and items[0].inputs is not None:
                inputs[name] = fold_inputs(inputs[name], items[0].inputs)
                _check_inputs(plan, name, inputs[name])
                if chunk.ends:
                    counted = counted + inputs[name]
                    observer.counted(counted)
            for item, writer, result in zip(items, writers, results, strict=True):
                writer.write(item.data)
                if item.result is not None:
                    result[name] = fold_result(result[name], item.result)
                    _check_result(name, result[name])
            done += chunk.count
            observer.progress("merge", done, total)
        for (variant, _), writer, result in zip(variants, writers, results, strict=True):
            size, sha256 = writer.finish()
            variant.journal.add_shard(FinishedShard(shard.filename, size, sha256, inputs, result))


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
