"""The passes over the inputs before the merge: what a method must know of the whole model.

    count_model      counts of every tensor, for methods that scale by them; `probe` is this alone
    find_thresholds  exact order statistics over the model

What a method must know of single tensors is counted just before they are merged (shard_work.py).
"""

from __future__ import annotations

from hubmerge.engine.backend import Backend, opened
from hubmerge.engine.chunks import Chunk, Thresholds, Work, check_inputs, chunks_of, read_chunk
from hubmerge.engine.counting import Counted, TensorFold, fold_inputs
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.parallel_shards import CountedSoFar
from hubmerge.engine.progress import Observer
from hubmerge.engine.rules import epsilon_of
from hubmerge.engine.selection import BinCounts, Magnitudes, Selection
from hubmerge.engine.threads import in_order
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics.statistics import Statistics, Tally, zero_tally


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
            fold = TensorFold(nothing, fold_inputs)
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
    ranks, agents = backend.options.ranks, len(plan.agents)
    merged = [t for t in plan.tensors() if t.action == "merge"]
    mine, work = ranks.mine(merged), Work(plan, backend, None)
    selection = Selection(Magnitudes(threshold, epsilon_of(plan), fast=backend.fast), agents)
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
