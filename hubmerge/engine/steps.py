"""The order in which the chunks of a shard are worked on, where tensors are counted before they are merged.

A method may need an exact order statistic of each tensor (selection.py), or to know where updates meet in it: every
chunk is counted first and merged then.
Counting runs ahead of merging, as far as it takes for no thread to wait for the end of a tensor; and what counting has
read is kept for merging, as far as memory allows (memory.py). A tensor that is larger is read again, and is not counted
ahead.

    counted:  t0 t0 t1 t1 .. t2 .. t2 .. t3
    merged:               t0 .. t0 .. t1 ..

Steps are made in the caller's thread from the results that it took in order; what is kept, and when, depends on
nothing else, and no bit of the result depends on it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hubmerge.engine.chunks import Chunk, MagnitudesOf, StreamOptions, chunks_of, magnitudes_of
from hubmerge.engine.definition import ChunkInputs, Rule
from hubmerge.engine.selection import BinCounts, Magnitudes, Selection
from hubmerge.plan.plan import Plan, PlannedShard, PlannedTensor
from hubmerge.sources.derived import DerivedTensor
from hubmerge.sources.header import DTYPE_BYTES
from hubmerge.sources.reader import Scratch
from hubmerge.statistics.statistics import Counts, Overlaps

AHEAD = 2  # chunks that are counted ahead, per thread: as many as it has in flight (threads.py)

ChunkOf = Callable[[PlannedTensor], int]  # elements
# of thresholds, per output, and of the tensor's overlaps
RulesOf = Callable[[PlannedTensor, Sequence[tuple[float, ...]], Overlaps | None], Sequence[Rule | None]]


class Kept(Scratch):
    """The inputs of one chunk from its counting to its merging, and their memory, which another chunk gets then."""

    inputs: ChunkInputs | None = None


class Step(NamedTuple):
    """A chunk to be counted by `counting` or merged by `rules`, each per output; one of the two is empty."""

    chunk: Chunk
    counting: Sequence[Selection | None] = ()  # None: the output ranks nothing, or nothing more
    overlaps: bool = False  # whether counting tells where updates meet, too
    rules: Sequence[Rule | None] = ()  # None: the tensor is copied
    kept: Kept | None = None  # where its inputs lie or are to lie


@dataclass(frozen=True)
class CountedTensors:
    """Which tensors of a shard are counted before they are merged, and what of them is kept.

    ranked    per output what is ranked in a tensor by itself; None where nothing is in any
    overlaps  whether an output needs to know where updates meet in a tensor
    room      how many chunks' inputs are kept at once
    """

    chunk_of: ChunkOf
    ranked: tuple[MagnitudesOf | None, ...]
    overlaps: bool
    room: int

    @classmethod
    def of(
        cls,
        tensors: Sequence[PlannedTensor],
        chunk_of: ChunkOf,
        ranked: Sequence[MagnitudesOf | None],
        kept_bytes: int,
        workers: int,
        *,
        overlaps: bool = False,
    ) -> CountedTensors:
        """With room for a whole tensor and what `workers` threads count meanwhile, in at most `kept_bytes`."""
        nothing_kept = cls(chunk_of, tuple(ranked), overlaps, 0)
        counted = [t for t in tensors if t in nothing_kept]
        return replace(nothing_kept, room=_room(counted, chunk_of, kept_bytes, AHEAD * workers))

    def __contains__(self, tensor: PlannedTensor) -> bool:
        return _is_counted(tensor) and (self.overlaps or any(self.magnitudes(tensor)))

    def magnitudes(self, tensor: PlannedTensor) -> list[Magnitudes | None]:
        """What is ranked in it, per output."""
        return [of and of(tensor) for of in self.ranked]

    def keeps(self, tensor: PlannedTensor) -> bool:
        return -(-tensor.elements // self.chunk_of(tensor)) <= self.room

    def readings(self, tensors: Sequence[PlannedTensor]) -> list[PlannedTensor]:
        """`tensors`, each as often as it may have to be read."""
        unkept = 1 + self.passes
        return [t for t in tensors for _ in range(1 if t not in self or self.keeps(t) else unkept)]

    @property
    def passes(self) -> int:
        """Over a counted tensor before it is merged, at most."""
        return 2 if any(self.ranked) else 1


class Steps:
    """An iterator over the steps of a shard, which is told of every result in order (`took`).

    It yields None where nothing can be begun before a result has been taken.

    rules_of  asked once per tensor, when it is counted
    unread    told of a tensor that is read once less than `CountedTensors.readings` says
    """

    def __init__(
        self,
        tensors: Sequence[PlannedTensor],
        counted: CountedTensors,
        rules_of: RulesOf,
        unread: Callable[[PlannedTensor], None],
    ) -> None:
        self._tensors = tensors
        self._counted = counted
        self._rules_of = rules_of
        self._unread = unread
        self._uncounted = deque(c for t in tensors if t in counted for c in chunks_of(t, counted.chunk_of(t)))
        self._selections = {
            t.name: [None if m is None else Selection(m, len(t.inputs) - 1) for m in counted.magnitudes(t)]
            for t in tensors
            if t in counted
        }
        self._free = [Kept() for _ in range(counted.room)]
        self._kept: dict[tuple[str, int], Kept] = {}
        self._passes: Counter[str] = Counter()  # counted to the end
        self._overlaps: dict[str, Counts] = {}  # [K, K+1]

    def took(self, step: Step, counts: Sequence[BinCounts | None] = (), overlaps: Counts | None = None) -> None:
        """The result of a step was taken; `counts` per output, if it counted, and `overlaps` [K, K+1]."""
        name = step.chunk.tensor.name
        if overlaps is not None:
            self._overlaps[name] = overlaps + self._overlaps.get(name, 0)
        for selection, counted in zip(step.counting, counts, strict=True):
            if selection is not None and counted is not None:
                selection.add(counted)
                if step.chunk.ends:
                    selection.end_pass()
        if step.counting:
            self._passes[name] += step.chunk.ends
        elif step.kept is not None:
            step.kept.inputs = None
            self._free.append(step.kept)

    def __iter__(self) -> Iterator[Step | None]:
        for tensor in self._tensors:
            if not tensor.elements:
                continue
            if tensor in self._counted:
                yield from self._count_ahead(tensor)
                yield from self._finish_counting(tensor)
            selections = self._selections.pop(tensor.name, [])
            overlaps = self._overlaps.pop(tensor.name, None)
            thresholds = [(s and s.values) or () for s in selections]
            rules = self._rules_of(tensor, thresholds, None if overlaps is None else Overlaps(overlaps))
            for chunk in chunks_of(tensor, self._counted.chunk_of(tensor)):
                yield Step(chunk, rules=rules, kept=self._kept.pop((tensor.name, chunk.start), None))
                yield from self._count_ahead()

    def _count_ahead(self, current: PlannedTensor | None = None) -> Iterator[Step | None]:
        """First passes as far as there is room; all of `current`'s in any case."""
        while self._uncounted:
            chunk = self._uncounted[0]
            tensor, kept = chunk.tensor, None
            if self._counted.keeps(tensor) and self._free:
                kept = self._kept[tensor.name, chunk.start] = self._free.pop()
            elif tensor is not current:
                return
            elif self._counted.keeps(tensor):
                yield None
                continue
            self._uncounted.popleft()
            yield Step(chunk, self._selections[tensor.name], self._counted.overlaps, kept=kept)

    def _finish_counting(self, tensor: PlannedTensor) -> Iterator[Step | None]:
        """Until its thresholds are known; by a second pass over it only where the first was not enough."""
        while not self._passes[tensor.name]:
            yield None
        left = [s if s is not None and s.values is None else None for s in self._selections[tensor.name]]
        if any(left):
            for chunk in chunks_of(tensor, self._counted.chunk_of(tensor)):
                yield Step(chunk, left, kept=self._kept.get((tensor.name, chunk.start)))
            while self._passes[tensor.name] < 2:
                yield None
        elif self._counted.passes > 1 and not self._counted.keeps(tensor):
            self._unread(tensor)


def ranked_by_tensor(plan: Plan, options: StreamOptions) -> MagnitudesOf | None:
    """What is ranked in a tensor by itself; None where nothing is in any."""
    threshold = plan.threshold
    return magnitudes_of(plan, options) if threshold is not None and threshold.scope == "tensor" else None


def kept_bytes(plan: Plan, options: StreamOptions) -> int:
    """What is held in memory from counting to merging, at most."""
    of_shard = max((_most_kept(shard.tensors, counted) for shard, counted in _all_counted(plan, options)), default=0)
    return of_shard * _at_once(plan, options)


def read_bytes(plan: Plan, options: StreamOptions) -> int:
    """What is read of the inputs in all passes: of tensors that are kept, once."""
    total = plan.passes * plan.input_bytes
    for shard, counted in _all_counted(plan, options):
        kept = sum(t.elements * _element_bytes(t) for t in shard.tensors if t in counted and counted.keeps(t))
        total -= (plan.passes - 1) * kept
    return max(total, plan.input_bytes)


def _all_counted(plan: Plan, options: StreamOptions) -> Iterator[tuple[PlannedShard, CountedTensors]]:
    together = (plan, *options.beside)
    ranked, scopes = [ranked_by_tensor(one, options) for one in together], {one.overlap_scope for one in together}
    overlaps = "tensor" in scopes and "model" not in scopes  # which a probe tells
    size, most, everyone = options.chunk(plan), options.shares(plan).kept_bytes, options.workers(plan)
    workers = max(1, everyone // _at_once(plan, options))
    for shard in plan.shards if overlaps or any(ranked) else ():
        share = most * workers // everyone
        yield shard, CountedTensors.of(shard.tensors, lambda _: size, ranked, share, workers, overlaps=overlaps)


def _at_once(plan: Plan, options: StreamOptions) -> int:
    """Shards that are written at once."""
    return max(1, min(options.shards_at_once(plan), len(plan.shards)))


def _most_kept(tensors: Sequence[PlannedTensor], counted: CountedTensors) -> int:
    """Bytes that are kept at once, at most."""
    kept = [t for t in tensors if t in counted and counted.keeps(t)]
    largest = max((min(counted.chunk_of(t), t.elements) * _element_bytes(t) for t in kept), default=0)
    return min(counted.room * largest, sum(t.elements * _element_bytes(t) for t in kept))


def _is_counted(tensor: PlannedTensor) -> bool:
    return tensor.action == "merge" and tensor.elements > 0


def _room(tensors: Sequence[PlannedTensor], chunk_of: ChunkOf, most: int, ahead: int) -> int:
    """How many chunks' inputs are kept: of the largest tensor that fits into `most` bytes, and `ahead`."""
    sizes = [(min(chunk_of(t), t.elements) * _element_bytes(t), -(-t.elements // chunk_of(t))) for t in tensors]
    largest = max((size for size, _ in sizes), default=0)
    if not largest:
        return 0
    fitting = min(most // largest, sum(chunks for _, chunks in sizes))
    return min(fitting, max((chunks for _, chunks in sizes if chunks <= fitting), default=0) + ahead)


def _element_bytes(tensor: PlannedTensor) -> int:
    """Of all inputs as they are read: what is computed is float32."""
    return sum(4 if isinstance(t, DerivedTensor) else DTYPE_BYTES[t.entry.dtype] for t in tensor.inputs)
