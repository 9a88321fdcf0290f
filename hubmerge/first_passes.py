"""The passes over the inputs before the merge: what a method must know of the whole model.

    probe            counts of every tensor, for methods that scale by them
    find_thresholds  exact order statistics

A threshold over one tensor needs no pass of its own: the tensor is counted just before it is merged (steps.py). Only
where a GPU is lent by the second is it found here, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hubmerge import eager
from hubmerge.chunks import (
    Chunk,
    Done,
    Observer,
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
from hubmerge.counting import fold_inputs
from hubmerge.distributed import ALONE
from hubmerge.folding import TensorFold
from hubmerge.in_order import in_order
from hubmerge.plan import Plan, PlannedTensor
from hubmerge.selection import select
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics import Statistics, Tally, zero_tally

KEEPING_S = 3.0  # of a probe that is killed, at most so much and the tensor at hand are counted again
MAGNITUDE_BINS = 1 << 16  # at most, of selection.py's counts

CountChunk = Callable[[eager.ChunkInputs], NDArray[np.int64]]


def probe(
    plan: Plan,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    known: Mapping[str, Tally] | None = None,
    keep: Callable[[Mapping[str, Tally]], None] = lambda tallies: None,
) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model.

    Tensors that are `known` are not read again; `keep` is given every few seconds those that were counted meanwhile.
    """
    with runnable(options, plan, observer.warning).on_device(plan, observer.warning) as opened:
        if opened.engine is not None:
            opened.engine.check_counting(len(plan.agents))
        return _probe(plan, reader, opened, observer, known or {}, keep)


def _probe(
    plan: Plan,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    known: Mapping[str, Tally],
    keep: Callable[[Mapping[str, Tally]], None],
) -> Statistics:
    epsilon = epsilon_of(plan)
    planned = [t for t in plan.tensors() if t.action == "merge"]
    merged = options.ranks.mine(planned, lambda t: t.elements)
    nothing = zero_tally(len(plan.agents))
    tallies = {t.name: known.get(t.name, nothing) for t in merged}
    left = [t for t in merged if t.name not in known]
    counted = Tally.sum_of([nothing, *tallies.values()])
    total = sum(t.elements for t in merged)
    done = total - sum(t.elements for t in left)
    unkept: dict[str, Tally] = {}
    next_keeping = time.monotonic() + KEEPING_S

    def count(chunk: Chunk) -> tuple[Chunk, Done]:
        module = options.module(len(plan.agents), "F32")
        return chunk, Done(b"", module.probe_chunk(read_chunk(reader, chunk), epsilon), None)

    def counted_chunks() -> Iterator[tuple[Chunk, Done]]:
        uncounted = deque(left)
        while uncounted:
            now = options.lasting()

            def chunks(now: StreamOptions = now) -> Iterator[Chunk]:
                size = now.chunk(plan)
                while uncounted and options.lasting().engine is now.engine:
                    yield from chunks_of(uncounted.popleft(), size)

            yield from in_order(chunks(), count, now.workers(plan), reader.abandon)

    reader.expect(left, again=True)
    for chunk, item in counted_chunks():
        name = chunk.tensor.name
        assert item.inputs is not None
        if not chunk.start:
            fold = TensorFold(tallies[name], fold_inputs)
        fold.add(item.inputs)
        done += chunk.count
        check_inputs(plan, name, item.inputs.tally)
        if chunk.ends:
            tally = fold.tally()
            tallies[name] = unkept[name] = tally.packed_among(plan.merged_tensors)
            if time.monotonic() >= next_keeping:
                keep(unkept)
                unkept = {}
                next_keeping = time.monotonic() + KEEPING_S
            counted = counted + tally
            observer.counted(counted)
        observer.progress("probe", done, total)
        options.tell(observer.warning)
    tallies = options.ranks.tallies(tallies)
    return Statistics(plan.labels, epsilon, {t.name: tallies[t.name] for t in planned})


def find_thresholds(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none."""
    magnitudes = magnitudes_of(plan, options)
    if magnitudes is None:
        return {}
    options = replace(options, engine=None)  # no device counts these: the CPU's threads and chunks
    merged = [t for t in plan.tensors() if t.action == "merge"]
    merged = options.ranks.mine(merged, lambda t: t.elements)
    by_tensor = magnitudes.threshold.scope == "tensor"
    groups = [[t] for t in merged] if by_tensor else [merged]
    if by_tensor:
        reader.expect([t for t in merged for _ in range(2)], again=True)
    done, total = 0, 2 * sum(t.elements for t in merged)
    found: dict[str, tuple[float, ...]] = {}
    everyones = ALONE if by_tensor else options.ranks
    size, workers = options.chunk(plan), options.workers(plan)

    def own(group: list[PlannedTensor], count: CountChunk) -> Iterator[NDArray[np.int64]]:
        nonlocal done
        chunks = (c for t in group for c in chunks_of(t, size))

        def work(chunk: Chunk) -> tuple[int, NDArray[np.int64]]:
            with np.errstate(all="ignore"):
                return chunk.count, count(with_draws(plan, magnitudes, chunk, read_chunk(reader, chunk)))

        for elements, counted in in_order(chunks, work, workers, reader.abandon):
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
