"""Streaming: fixed-size chunks of all inputs through the method's kernel, in constant memory.

A chunk is read from every input, decoded to float32, turned into deltas, merged, rounded once and counted, by
one of a few threads; the results are taken in file order, hashed and written. At most two chunks per thread
exist at any time, so memory does not grow with the model or its largest tensor. Nothing about the result
depends on the chunk size or on the number of threads: the kernel is element-wise, randomness is a function of
the element's identity, and sums have an order of their own (counting.py).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubmerge import eager
from hubmerge.counter_rng import Key, make_key
from hubmerge.counting import BLOCK, Counted, Float32, fold_inputs, fold_result
from hubmerge.errors import IncompatibleError, NonFiniteError
from hubmerge.methods import Method, get_method
from hubmerge.methods.base import EPSILON, Scope
from hubmerge.plan import Plan, PlannedShard, PlannedTensor
from hubmerge.selection import Magnitudes, select
from hubmerge.sink import FinishedShard, Journal, ShardWriter
from hubmerge.sources.reader import TensorReader
from hubmerge.statistics import ResultTally, Statistics, Tally, zero_result, zero_tally

DEFAULT_CHUNK = 256 * 1024  # elements: large enough to hide the cost per chunk, a few MB per thread

Backend = Literal["auto", "eager"]
Thresholds = Mapping[str, tuple[float, ...]]  # tensor → one per agent


class Observer(Protocol):
    """Watches a stream from outside; both methods are called in the caller's thread and may raise to cancel."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` elements of stage "probe" or "merge"."""

    def counted(self, total: Tally) -> None:
        """The statistics of all tensors counted so far."""


class Silent:
    """An observer that looks away."""

    def progress(self, stage: str, done: int, total: int) -> None:
        pass

    def counted(self, total: Tally) -> None:
        pass


@dataclass(frozen=True)
class StreamOptions:
    """How, never what: no field changes a bit of the result."""

    chunk_elements: int = DEFAULT_CHUNK
    threads: int = 0  # 0: one per core
    backend: Backend = "auto"  # "eager": never compile

    @property
    def chunk(self) -> int:
        """The chunk size, rounded up to whole blocks."""
        return max(BLOCK, -(-self.chunk_elements // BLOCK) * BLOCK)

    @property
    def workers(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


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
class _Chunk:
    tensor: PlannedTensor
    start: int
    count: int

    @property
    def ends(self) -> bool:
        """True for the last chunk of its tensor."""
        return self.start + self.count == self.tensor.elements


@dataclass(frozen=True)
class _Done:
    chunk: _Chunk
    data: bytes | memoryview
    inputs: Counted[Tally] | None
    result: Counted[ResultTally] | None


def probe(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Statistics:
    """One pass over the inputs for their statistics; NonFiniteError names tensor and model."""
    epsilon = _epsilon(plan)
    tallies: dict[str, Tally] = {}
    counted = zero_tally(len(plan.agents))
    done = 0
    total = plan.elements

    module = _module(options.backend, len(plan.agents), "F32")

    def count(chunk: _Chunk) -> _Done:
        return _Done(chunk, b"", module.probe_chunk(_read(plan, reader, chunk), epsilon), None)

    for tensor in plan.tensors():
        if tensor.action == "merge":
            tallies[tensor.name] = zero_tally(len(plan.agents))
    chunks = (c for t in plan.tensors() if t.action == "merge" for c in _chunks(t, options.chunk))
    for item in _in_order(chunks, count, options.workers):
        name = item.chunk.tensor.name
        assert item.inputs is not None
        tallies[name] = fold_inputs(tallies[name], item.inputs)
        done += item.chunk.count
        _check_inputs(plan, name, tallies[name])
        if item.chunk.ends:
            counted = counted + tallies[name]
            observer.counted(counted)
        observer.progress("probe", done, total)
    return Statistics(plan.labels, epsilon, tallies)


def merge(
    plan: Plan,
    reader: TensorReader,
    journal: Journal,
    folder: Path,
    options: StreamOptions,
    observer: Observer,
    shard_done: Callable[[FinishedShard], None] = lambda shard: None,
) -> MergeResult:
    """Write every shard that the journal does not hold; the probe first when the method needs it.

    Raises NonFiniteError for NaN or Inf in an input or the output, DiskError, CorruptError.
    """
    method = get_method(plan.recipe.method)
    statistics: Statistics | None = None
    if method.needs_statistics:
        if journal.statistics is None:
            journal.add_statistics(probe(plan, reader, options, observer).tensors)
        assert journal.statistics is not None
        statistics = Statistics(plan.labels, _epsilon(plan), journal.statistics)
    if journal.thresholds is None:
        journal.add_thresholds(find_thresholds(plan, reader, options, observer))
    thresholds = journal.thresholds or {}
    done = sum(t.elements for s in plan.shards if s.filename in journal.shards for t in s.tensors)
    for shard in plan.shards:
        finished = journal.shards.get(shard.filename)
        if finished is None:
            finished = _merge_shard(plan, reader, shard, folder, options, observer, statistics, thresholds, done)
            journal.add_shard(finished)
            done += sum(t.elements for t in shard.tensors)
        shard_done(finished)
    shards = tuple(journal.shards[s.filename] for s in plan.shards)
    if statistics is None:
        counted = {n: t for s in shards for n, t in (s.inputs or {}).items()}
        statistics = Statistics(plan.labels, _epsilon(plan), counted)
    return MergeResult(shards, statistics, {n: t for s in shards for n, t in s.result.items()})


def _merge_shard(
    plan: Plan,
    reader: TensorReader,
    shard: PlannedShard,
    folder: Path,
    options: StreamOptions,
    observer: Observer,
    statistics: Statistics | None,
    thresholds: Thresholds,
    done: int,
) -> FinishedShard:
    k = len(plan.agents)
    merged = [t for t in shard.tensors if t.action == "merge"]
    inputs = {t.name: zero_tally(k) for t in merged} if statistics is None else None
    result = {t.name: zero_result(k) for t in merged}
    counted = zero_tally(k)
    work = _Work(plan, reader, options, statistics, thresholds)
    total = plan.elements
    with ShardWriter(folder, shard) as writer:
        chunks = (c for t in shard.tensors for c in _chunks(t, work.chunk_of(t, options.chunk)))
        # a whole tensor is large: no more than two at a time
        for item in _in_order(chunks, work, 1 if work.takes_wholes else options.workers):
            name = item.chunk.tensor.name
            writer.write(item.data)
            if inputs is not None and item.inputs is not None:
                inputs[name] = fold_inputs(inputs[name], item.inputs)
                _check_inputs(plan, name, inputs[name])
                if item.chunk.ends:
                    counted = counted + inputs[name]
                    observer.counted(counted)
            if item.result is not None:
                result[name] = fold_result(result[name], item.result)
                if result[name].nonfinite:
                    raise NonFiniteError(
                        "the merge overflows the output's dtype",
                        where=name,
                        expected="finite values",
                        got=f"{result[name].nonfinite} NaN or Inf",
                        next_step="Choose dtype: float32 or bfloat16.",
                    )
            done += item.chunk.count
            observer.progress("merge", done, total)
        size, sha256 = writer.finish()
    return FinishedShard(shard.filename, size, sha256, inputs, result)


class _Work:
    """One chunk from bytes to bytes; called from several threads, holds nothing that changes."""

    def __init__(
        self,
        plan: Plan,
        reader: TensorReader,
        options: StreamOptions,
        statistics: Statistics | None,
        thresholds: Thresholds,
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._backend = options.backend
        self._with_inputs = statistics is None
        self._rules = _rules(plan, statistics, thresholds)
        self.takes_wholes = any(rule.whole for rule in self._rules.values())

    def chunk_of(self, tensor: PlannedTensor, elements: int) -> int:
        """How much of a tensor is one chunk."""
        whole = tensor.action == "merge" and self._rules[tensor.name].whole
        return max(tensor.elements, 1) if whole else elements

    def __call__(self, chunk: _Chunk) -> _Done:
        tensor = chunk.tensor
        if tensor.action == "copy":
            return _Done(chunk, _bytes(self._copied(chunk)), None, None)
        inputs = _read(self._plan, self._reader, chunk)
        key = make_key(self._plan.recipe.seed, "rounding", tensor.name)
        rule = self._rules[tensor.name]
        module = eager if rule.whole else _module(self._backend, len(inputs.raws) - 1, tensor.dtype)
        out = module.merge_chunk(inputs, rule, tensor.dtype, key, with_inputs=self._with_inputs)
        return _Done(chunk, _bytes(out.raw), out.inputs, out.result)

    def _copied(self, chunk: _Chunk) -> NDArray[np.generic]:
        raws = _read(self._plan, self._reader, chunk).raws
        for model, raw in zip(self._plan.agents, raws[1:], strict=True):
            if not np.array_equal(raw, raws[0]):
                raise IncompatibleError(
                    "a tensor of integers differs from the base's and cannot be merged",
                    where=f"{chunk.tensor.name} of {model.ref}",
                    next_step=f"Remove {model.ref.id}.",
                )
        return raws[0]


def _rules(plan: Plan, statistics: Statistics | None, thresholds: Thresholds) -> dict[str, eager.Rule]:
    """The rule of every merged tensor; its scalars are computed in float64 and rounded to float32 here."""
    method = get_method(plan.recipe.method)
    parameters = method.parse_parameters(plan.recipe.parameters)
    model = None if statistics is None else statistics.total
    rules = {}
    for tensor in plan.tensors():
        if tensor.action != "merge":
            continue
        counted = None if statistics is None else statistics.tensors[tensor.name]
        scope = Scope(parameters, plan.recipe.weights, model, counted, thresholds.get(tensor.name, ()))
        whole = method.needs_whole(tensor.name, tensor.shape)
        rules[tensor.name] = eager.Rule(
            kernel=_whole(method, tensor, scope) if whole else method.kernel,
            whole=whole,
            extras=method.extras,
            per_agent=tuple(tuple(np.float32(v) for v in row) for row in method.per_agent(scope)),
            constants=tuple(np.float32(v) for v in method.constants(scope)),
            epsilon=_epsilon(plan),
            rounding=plan.rounding,
            both_roundings=method.rescales,
        )
    return rules


def _whole(method: Method, tensor: PlannedTensor, scope: Scope) -> Callable[..., Float32]:
    """A whole-tensor merge in the form of a kernel over one chunk that is the tensor."""

    def kernel(inputs: Sequence[Float32], per_agent: Any, constants: Any) -> Float32:
        deltas = [d.reshape(tensor.shape) for d in inputs[: len(per_agent)]]
        return np.ascontiguousarray(method.merge_whole(deltas, scope)).reshape(-1)

    return kernel


def find_thresholds(plan: Plan, reader: TensorReader, options: StreamOptions, observer: Observer) -> Thresholds:
    """The exact order statistics that the method asks for, per tensor and agent; empty when it asks for none."""
    method = get_method(plan.recipe.method)
    wanted = method.threshold(method.parse_parameters(plan.recipe.parameters))
    if wanted is None:
        return {}
    magnitudes = Magnitudes(wanted, _epsilon(plan))
    merged = [t for t in plan.tensors() if t.action == "merge"]
    groups = [merged] if wanted.scope == "model" else [[t] for t in merged]
    done, total = 0, 2 * sum(t.elements for t in merged)
    found: dict[str, tuple[float, ...]] = {}
    for group in groups:

        def passes(
            count: Callable[[eager.ChunkInputs], NDArray[np.int64]], group: list[PlannedTensor] = group
        ) -> Iterator[NDArray[np.int64]]:
            nonlocal done
            chunks = (c for t in group for c in _chunks(t, options.chunk))

            def work(chunk: _Chunk) -> tuple[int, NDArray[np.int64]]:
                with np.errstate(all="ignore"):
                    return chunk.count, count(_read(plan, reader, chunk))

            for elements, counted in _in_order(chunks, work, options.workers):
                done += elements
                observer.progress("select", done, total)
                yield counted

        values = select(magnitudes, len(plan.agents), passes)
        found |= {t.name: values for t in group}
    return found


def _read(plan: Plan, reader: TensorReader, chunk: _Chunk) -> eager.ChunkInputs:
    tensor = chunk.tensor
    raws = tuple(reader.raw(k, stored, chunk.start, chunk.count) for k, stored in enumerate(tensor.inputs))
    keys: tuple[Key, ...] = ()
    if "uniform" in get_method(plan.recipe.method).extras:
        seed = plan.recipe.seed
        keys = tuple(make_key(seed, "uniform", str(k), tensor.name) for k in range(len(plan.agents)))
    return eager.ChunkInputs(raws, tuple(t.entry.dtype for t in tensor.inputs), chunk.start, keys)


def _module(backend: Backend, agents: int, dtype: str) -> Any:
    """eager or compiled; the choice changes no bit."""
    if backend == "eager":
        return eager
    from hubmerge import compiled  # numba takes half a second to import

    return compiled if compiled.supports(agents, dtype) else eager


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


def _epsilon(plan: Plan) -> float:
    return float(plan.recipe.parameters.get("epsilon", EPSILON))


def _chunks(tensor: PlannedTensor, size: int) -> Iterator[_Chunk]:
    for start in range(0, tensor.elements, size):
        yield _Chunk(tensor, start, min(size, tensor.elements - start))


def _bytes(raw: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(raw).data.cast("B") if raw.size else memoryview(b"")


A = TypeVar("A")
B = TypeVar("B")


def _in_order(items: Iterable[A], work: Callable[[A], B], workers: int) -> Iterator[B]:
    """`work` over `items` in several threads, results in the items' order, at most two per thread in flight."""
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="hubmerge-stream") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
