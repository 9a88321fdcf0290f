"""The passes over the inputs before the merge: what a method must know of the whole model.

    probe            counts of every tensor, for methods that scale by them
    find_thresholds  exact order statistics

A threshold over one tensor needs no pass of its own: the tensor is counted just before it is merged (steps.py). Only
where a GPU is lent by the second is it found here, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hubmerge.engine import definition
from hubmerge.engine.chunks import (
    Chunk,
    MagnitudesOf,
    StreamOptions,
    Thresholds,
    check_inputs,
    chunks_of,
    epsilon_of,
    magnitudes_of,
    read_chunk,
    runnable,
    with_draws,
)
from hubmerge.engine.counting import Counted, TensorFold, fold_inputs
from hubmerge.engine.progress import Observer
from hubmerge.engine.selection import BinCounts, Magnitudes, Selection, select
from hubmerge.engine.so_far import CountedSoFar
from hubmerge.engine.threads import in_order
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import Statistics, Tally, zero_tally

MAGNITUDE_BINS = 1 << 16  # at most, of selection.py's counts

CountChunk = Callable[[definition.ChunkInputs], BinCounts]


def probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model."""
    with runnable(options, observer).on_device(plan, observer.warning) as opened:
        if opened.engine is not None:
            opened.engine.check_counting(len(plan.agents))
        return _probe(plan, reader, opened, observer)


def _probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    epsilon = epsilon_of(plan)
    planned = [t for t in plan.tensors() if t.action == "merge"]
    mine = options.ranks.mine(planned)
    nothing = zero_tally(len(plan.agents))
    tallies = {t.name: nothing for t in mine}
    counted = CountedSoFar(observer, plan.labels)
    done, total = 0, sum(t.elements for t in mine)

    def count(chunk: Chunk) -> tuple[Chunk, Counted[Tally]]:
        module = options.module()
        return chunk, module.probe_chunk(read_chunk(reader, chunk), epsilon)

    def counted_chunks() -> Iterator[tuple[Chunk, Counted[Tally]]]:
        uncounted = deque(mine)
        while uncounted:
            now = options.lasting()

            def chunks(now: StreamOptions = now) -> Iterator[Chunk]:
                size = now.chunk(plan)
                while uncounted and options.lasting().engine is now.engine:
                    yield from chunks_of(uncounted.popleft(), size)

            yield from in_order(chunks(), count, now.workers(plan), reader.abandon)

    reader.expect(mine, again=True)
    for chunk, counts in counted_chunks():
        name = chunk.tensor.name
        if not chunk.start:
            fold = TensorFold(nothing, fold_inputs)
        fold.add(counts)
        done += chunk.count
        check_inputs(plan, name, counts.tally)
        if chunk.ends:
            tallies[name] = fold.tally()
            counted.add(name, tallies[name])
        counted.tell()
        observer.progress("probe", done, total, "elements")
        options.tell(observer.warning)
    tallies = options.ranks.tallies(tallies)
    return Statistics(plan.labels, epsilon, {t.name: tallies[t.name] for t in planned})


def find_thresholds(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none."""
    magnitudes_in, threshold = magnitudes_of(plan, options), plan.threshold
    if magnitudes_in is None or threshold is None:
        return {}
    options = replace(options, engine=None)  # no device counts these: the CPU's threads and chunks
    merged = [t for t in plan.tensors() if t.action == "merge"]
    if threshold.scope == "tensor":
        return _of_each_tensor(plan, merged, magnitudes_in, reader, options, observer)
    magnitudes = magnitudes_in(merged[0])  # one for all: a method lets it vary by tensor alone
    assert magnitudes is not None
    values = _of_model(plan, merged, magnitudes, reader, options, observer)
    return {t.name: values for t in merged}


def _of_each_tensor(
    plan: Plan,
    merged: Sequence[PlannedTensor],
    magnitudes_in: MagnitudesOf,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
) -> Thresholds:
    ranked = [t for t in merged if magnitudes_in(t) is not None]
    merged = options.ranks.mine(ranked)
    reader.expect([t for t in merged for _ in range(2)], again=True)
    done, total = 0, 2 * sum(t.elements for t in merged)
    found: dict[str, tuple[float, ...]] = {}

    def passes(tensor: PlannedTensor, magnitudes: Magnitudes, count: CountChunk) -> Iterator[BinCounts]:
        nonlocal done
        for chunk, counts in _counted([tensor], count, plan, magnitudes, reader, options):
            done += chunk.count
            observer.progress("select", done, total, "elements")
            yield counts

    for tensor in merged:
        end = done + 2 * tensor.elements
        if (magnitudes := magnitudes_in(tensor)) is not None:
            found[tensor.name] = select(magnitudes, len(plan.agents), partial(passes, tensor, magnitudes))
        if done < end:  # the first pass was enough
            done = end
            observer.progress("select", done, total, "elements")
            reader.consumed(tensor, tensor.elements)
    joined = options.ranks.joined(found)
    return {t.name: tuple(joined[t.name]) for t in plan.tensors() if t.name in joined}


def _of_model(
    plan: Plan,
    merged: Sequence[PlannedTensor],
    magnitudes: Magnitudes,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
) -> tuple[float, ...]:
    """One or two passes, whose tensors the processes share out."""
    ranks = options.ranks
    mine = ranks.mine(merged)
    share = sum(t.elements for t in mine)
    selection = Selection(magnitudes, len(plan.agents))
    done = 0

    def own() -> Iterator[BinCounts]:
        nonlocal done
        for chunk, counts in _counted(mine, selection.count, plan, magnitudes, reader, options):
            done += chunk.count
            observer.progress("select", done, 2 * share, "elements")
            yield counts

    while selection.values is None:
        reader.expect(mine, again=True)
        for counts in ranks.with_others(own(), (len(plan.agents), MAGNITUDE_BINS)):
            selection.add(counts)
        selection.end_pass()
    observer.progress("select", 2 * share, 2 * share, "elements")
    return selection.values


def _counted(
    tensors: Iterable[PlannedTensor],
    count: CountChunk,
    plan: Plan,
    magnitudes: Magnitudes,
    reader: TensorReader,
    options: StreamOptions,
) -> Iterator[tuple[Chunk, BinCounts]]:
    """What every chunk adds to a pass, in order."""

    def work(chunk: Chunk) -> tuple[Chunk, BinCounts]:
        with np.errstate(all="ignore"):
            return chunk, count(with_draws(plan, magnitudes, chunk, read_chunk(reader, chunk)))

    size = options.chunk(plan)
    chunks = (c for t in tensors for c in chunks_of(t, size))
    return in_order(chunks, work, options.workers(plan), reader.abandon)
