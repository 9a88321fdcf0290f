"""The passes over the inputs before the merge: what a method must know of the whole model.

    probe            counts of every tensor, for methods that scale by them
    find_thresholds  exact order statistics

A threshold over one tensor needs no pass of its own: the tensor is counted just before it is merged (steps.py). Only
where a GPU is lent by the second is it found here, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hubmerge.engine import eager
from hubmerge.engine.chunks import (
    Chunk,
    MagnitudesOf,
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
from hubmerge.engine.counting import Counted, fold_inputs
from hubmerge.engine.folding import TensorFold
from hubmerge.engine.in_order import in_order
from hubmerge.engine.ranked import Ranked, addable, sparse
from hubmerge.engine.selection import Counts, Magnitudes, Selection, select
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import Statistics, Tally, zero_tally
from hubmerge.statistics.tally_sums import ToldSum

KEEPING_S = 3.0  # of a probe that is killed, at most so much and the tensor at hand are counted again
MAGNITUDE_BINS = 1 << 16  # at most, of selection.py's counts

CountChunk = Callable[[eager.ChunkInputs], Counts]


def probe(
    plan: Plan,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    known: Mapping[str, Tally] | None = None,
    keep: Callable[[Mapping[str, Tally]], None] = lambda tallies: None,
) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model.

    Tensors that any process has `known` are not read again; `keep` is given every few seconds, and at the end of this
    process's share, those that were counted meanwhile.
    """
    with runnable(options, plan, observer).on_device(plan, observer.warning) as opened:
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
    everyones = {name for names in options.ranks.gather(sorted(known)) for name in names}
    left = options.ranks.mine([t for t in planned if t.name not in everyones])
    nothing = zero_tally(len(plan.agents))
    mine = {t.name for t in left}.union(known)
    tallies = {t.name: known.get(t.name, nothing) for t in planned if t.name in mine}
    counted = ToldSum(Tally.sum_of([nothing, *known.values()]), observer.counted)
    done = sum(t.elements for t in planned if t.name in known)
    total = done + sum(t.elements for t in left)
    unkept: dict[str, Tally] = {}
    next_keeping = time.monotonic() + KEEPING_S

    def count(chunk: Chunk) -> tuple[Chunk, Counted[Tally]]:
        module = options.module(len(plan.agents), "F32")
        return chunk, module.probe_chunk(read_chunk(reader, chunk), epsilon)

    def counted_chunks() -> Iterator[tuple[Chunk, Counted[Tally]]]:
        uncounted = deque(left)
        while uncounted:
            now = options.lasting()

            def chunks(now: StreamOptions = now) -> Iterator[Chunk]:
                size = now.chunk(plan)
                while uncounted and options.lasting().engine is now.engine:
                    yield from chunks_of(uncounted.popleft(), size)

            yield from in_order(chunks(), count, now.workers(plan), reader.abandon)

    reader.expect(left, again=True)
    for chunk, counts in counted_chunks():
        name = chunk.tensor.name
        if not chunk.start:
            fold = TensorFold(tallies[name], fold_inputs)
        fold.add(counts)
        done += chunk.count
        check_inputs(plan, name, counts.tally)
        if chunk.ends:
            tally = fold.tally()
            tallies[name] = unkept[name] = tally.packed_among(plan.merged_tensors)
            if time.monotonic() >= next_keeping:
                keep(unkept)
                unkept = {}
                next_keeping = time.monotonic() + KEEPING_S
            counted.add(tally, last=done == total)
        observer.progress("probe", done, total)
        options.tell(observer.warning)
    if unkept:
        keep(unkept)
    tallies = options.ranks.tallies(tallies)
    return Statistics(plan.labels, epsilon, {t.name: tallies[t.name] for t in planned})


def find_thresholds(
    plan: Plan,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    known: Ranked | None = None,
    keep: Callable[[Ranked], None] = lambda ranked: None,
) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none.

    A threshold over the model goes on from what is `known`, and `keep` is given every few seconds what is known then.
    """
    magnitudes_in, threshold = magnitudes_of(plan, options), plan.threshold
    if magnitudes_in is None or threshold is None:
        return {}
    options = replace(options, engine=None)  # no device counts these: the CPU's threads and chunks
    merged = [t for t in plan.tensors() if t.action == "merge"]
    if threshold.scope == "tensor":
        return _of_each_tensor(plan, merged, magnitudes_in, reader, options, observer)
    magnitudes = magnitudes_in(merged[0])  # one for all: a method lets it vary by tensor alone
    assert magnitudes is not None
    values = _of_model(plan, magnitudes, reader, options, observer, known or Ranked(), keep)
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

    def passes(tensor: PlannedTensor, magnitudes: Magnitudes, count: CountChunk) -> Iterator[Counts]:
        nonlocal done
        for chunk, counts in _counted([tensor], count, plan, magnitudes, reader, options):
            done += chunk.count
            observer.progress("select", done, total)
            yield counts

    for tensor in merged:
        end = done + 2 * tensor.elements
        if (magnitudes := magnitudes_in(tensor)) is not None:
            found[tensor.name] = select(magnitudes, len(plan.agents), partial(passes, tensor, magnitudes))
        if done < end:  # the first pass was enough
            done = end
            observer.progress("select", done, total)
            reader.consumed(tensor, tensor.elements)
    joined = options.ranks.joined(found)
    return {t.name: tuple(joined[t.name]) for t in plan.tensors() if t.name in joined}


def _of_model(
    plan: Plan,
    magnitudes: Magnitudes,
    reader: TensorReader,
    options: StreamOptions,
    observer: Observer,
    known: Ranked,
    keep: Callable[[Ranked], None],
) -> tuple[float, ...]:
    """Tensors that any process knows are not counted again; the others are shared out anew in every pass."""
    ranks = options.ranks
    tensors = list(plan.tensors())
    place_of = {t.name: place for place, t in enumerate(tensors)}
    everyones = [Ranked.from_json(one) for one in ranks.gather(known.without_counts().to_json())]
    chosen = addable(everyones)
    selection = Selection(magnitudes, len(plan.agents), everyones[chosen.index(True)].keys)
    known = known if chosen[ranks.rank] else Ranked(selection.keys)
    counted = {int(p) for one, is_chosen in zip(everyones, chosen, strict=True) if is_chosen for p in one.places}
    share = -(-sum(t.elements for t in tensors if t.action == "merge") // ranks.size)  # about, of each process
    next_keeping = time.monotonic() + KEEPING_S

    def own(left: list[PlannedTensor], known: Ranked) -> Iterator[Counts]:
        nonlocal next_keeping
        yield known.counts
        places, remaining = known.places.tolist(), sum(t.elements for t in left)
        for chunk, counts in _counted(left, selection.count, plan, magnitudes, reader, options):
            remaining -= chunk.count
            done = (share if selection.keys else 0) + max(0, share - remaining)
            observer.progress("select", done, 2 * share)
            yield counts
            if chunk.ends:
                places.append(place_of[chunk.tensor.name])
                if time.monotonic() >= next_keeping:
                    keep(Ranked(selection.keys, np.sort(places), sparse(selection.total)))
                    next_keeping = time.monotonic() + KEEPING_S

    while selection.values is None:
        left = [t for t in tensors if t.action == "merge" and place_of[t.name] not in counted]
        left = ranks.mine(left)
        reader.expect(left, again=True)
        for counts in ranks.with_others(own(left, known), (len(plan.agents), MAGNITUDE_BINS)):
            selection.add(counts)
        selection.end_pass()
        if selection.values is None:
            known, counted = Ranked(selection.keys), set()
            keep(known)
    observer.progress("select", 2 * share, 2 * share)
    return selection.values


def _counted(
    tensors: Iterable[PlannedTensor],
    count: CountChunk,
    plan: Plan,
    magnitudes: Magnitudes,
    reader: TensorReader,
    options: StreamOptions,
) -> Iterator[tuple[Chunk, Counts]]:
    """What every chunk adds to a pass, in order."""

    def work(chunk: Chunk) -> tuple[Chunk, Counts]:
        with np.errstate(all="ignore"):
            return chunk, count(with_draws(plan, magnitudes, chunk, read_chunk(reader, chunk)))

    size = options.chunk(plan)
    chunks = (c for t in tensors for c in chunks_of(t, size))
    return in_order(chunks, work, options.workers(plan), reader.abandon)
