"""The order of a shard's steps: a tensor is counted before it is merged, and read as seldom as memory allows.

The driver below stands for in_order: it takes results late, as threads give them, and never has more than `depth` open.
A step's work is done as soon as it is made (`early`), or at the last moment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import tensor, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family

from hubmerge.engine import memory, shard_work
from hubmerge.engine.chunks import MagnitudesOf
from hubmerge.engine.definition import ChunkInputs
from hubmerge.engine.journal import Journal
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.selection import BinCounts, Magnitudes
from hubmerge.engine.steps import AHEAD, CountedTensors, Step, Steps, kept_bytes, read_bytes
from hubmerge.engine.stream import StreamOptions, merge
from hubmerge.methods.base import Threshold
from hubmerge.plan.plan import Plan, PlannedTensor
from hubmerge.sources.base import StoredTensor
from hubmerge.sources.header import TensorEntry
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.statistics.statistics import Overlaps

SIZE = 4  # elements of a chunk
BYTES = 4 * 2 * SIZE  # of a chunk of two models in float32
_MEDIAN = Magnitudes(Threshold("delta", "tensor", lambda n: max(1, n // 2)), 0.0, fast=False)
_ALL = Magnitudes(Threshold("delta", "tensor", lambda n: n), 0.0, fast=False)


def MEDIAN(tensor: PlannedTensor) -> Magnitudes | None:
    return _MEDIAN


def ALL(tensor: PlannedTensor) -> Magnitudes | None:
    return _ALL


def planned(sizes: Sequence[int], copied: Sequence[int] = ()) -> list[PlannedTensor]:
    def stored(elements: int) -> StoredTensor:
        return StoredTensor("x", TensorEntry("t", "F32", (elements,), 0, 4 * elements))

    return [
        PlannedTensor(f"t{i}", (n,), "F32", "copy" if i in copied else "merge", 0, 0, (stored(n), stored(n)))
        for i, n in enumerate(sizes)
    ]


class Driven:
    """What became of the steps, one after the other."""

    def __init__(
        self,
        tensors: list[PlannedTensor],
        values: Mapping[str, np.ndarray],
        room: int,
        depth: int,
        ranked: Sequence[MagnitudesOf | None] = (MEDIAN, None, ALL),
        *,
        early: bool = True,
        overlaps: bool = False,
    ) -> None:
        self.order: list[tuple[str, str, int]] = []  # what, tensor, start
        self.found: dict[str, list[tuple[float, ...]]] = {}
        self.overlaps: dict[str, list[list[int]] | None] = {}
        self.unread: list[str] = []
        self.most_kept = 0
        self.reads: Counter[str] = Counter()  # elements
        self.counted = CountedTensors.of(
            tensors, lambda tensor: SIZE, ranked, room * BYTES, workers=room, overlaps=overlaps
        )
        self._values = values
        steps = Steps(tensors, self.counted, self._rules_of, lambda t: self.unread.append(t.name))
        pending: deque[tuple[Step, list[BinCounts | None]]] = deque()
        held: set[int] = set()

        def take() -> None:
            step, counts = pending.popleft()  # IndexError where nothing could ever come of waiting
            if step.counting:
                assert step.kept is None or step.kept.inputs is not None
                met = np.array([[0, np.count_nonzero(self._delta(step))]]) if step.overlaps else None
                steps.took(step, counts if early else self._counts(step), met)
            else:
                if step.kept is not None:
                    assert step.kept.inputs is not None
                    assert step.kept.inputs.start == step.chunk.start
                    held.discard(id(step.kept))
                steps.took(step)

        for step in steps:
            if step is None:
                take()
                continue
            stored = None if step.kept is None else step.kept.inputs
            if stored is None:
                self.reads[step.chunk.tensor.name] += step.chunk.count
                if step.kept is not None:
                    step.kept.inputs = self._inputs(step)
                    held.add(id(step.kept))
                    self.most_kept = max(self.most_kept, len(held))
            what = "count" if step.counting else "merge"
            self.order.append((what, step.chunk.tensor.name, step.chunk.start))
            pending.append((step, self._counts(step) if early else []))
            if len(pending) == depth:
                take()
        while pending:
            take()

    def _rules_of(
        self, tensor: PlannedTensor, found: Sequence[tuple[float, ...]], overlaps: Overlaps | None
    ) -> list[None]:
        self.overlaps[tensor.name] = None if overlaps is None else overlaps.by_overlap.tolist()
        self.found[tensor.name] = list(found)
        return [None]

    def _delta(self, step: Step) -> np.ndarray:
        return self._values[step.chunk.tensor.name][step.chunk.start : step.chunk.start + step.chunk.count]

    def _inputs(self, step: Step) -> ChunkInputs:
        delta = self._delta(step)
        return ChunkInputs((np.zeros_like(delta), delta), ("F32", "F32"), step.chunk.start)

    def _counts(self, step: Step) -> list[BinCounts | None]:
        return [None if s is None else s.count(self._inputs(step)) for s in step.counting]


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5 * SIZE), max_size=7),
    room=st.integers(0, 9),
    depth=st.integers(1, 6),
    copied=st.sets(st.integers(0, 6)),
    short=st.booleans(),
    early=st.booleans(),
)
def test_every_tensor_is_counted_then_merged_with_its_own_thresholds_whatever_fits(
    sizes: list[int], room: int, depth: int, copied: set[int], short: bool, early: bool
) -> None:
    tensors = planned(sizes, sorted(copied))
    rng = np.random.default_rng(len(sizes))
    # multiples of a power of two are told apart by one pass; most other values need two
    values = {t.name: (rng.integers(-9, 9, t.elements) * (0.5 if short else 0.1)).astype(np.float32) for t in tensors}
    driven = Driven(tensors, values, room, depth, early=early)
    assert driven.most_kept <= driven.counted.room
    assert driven.counted.room * min(SIZE, max((t.elements for t in tensors if t in driven.counted), default=0)) <= (
        room * SIZE
    )
    merged = [(name, start) for what, name, start in driven.order if what == "merge"]
    assert merged == [(t.name, start) for t in tensors for start in range(0, t.elements, SIZE)]
    expected = Counter(t.name for t in driven.counted.readings(tensors))
    for t in tensors:
        if not t.elements:
            continue
        passes = Counter(start for what, name, start in driven.order if (what, name) == ("count", t.name))
        if t.action == "copy":
            assert not passes
            assert driven.found[t.name] == []
            assert driven.reads[t.name] == t.elements
            continue
        assert set(passes) == set(range(0, t.elements, SIZE))
        assert len(set(passes.values())) == 1
        ranked = np.sort(np.abs(values[t.name]))[::-1]
        median, nothing, smallest = driven.found[t.name]
        assert (median, nothing, smallest) == ((ranked[max(1, t.elements // 2) - 1],), (), (ranked[-1],))
        first_merge = driven.order.index(("merge", t.name, 0))
        assert all(driven.order.index(("count", t.name, start)) < first_merge for start in passes)
        # what was announced is what was read, or said not to be needed
        assert driven.reads[t.name] == t.elements * (expected[t.name] - driven.unread.count(t.name))
        assert driven.reads[t.name] == t.elements or not driven.counted.keeps(t)


def test_what_fits_is_counted_while_the_tensor_before_it_is_merged() -> None:
    tensors = planned([2 * SIZE, 2 * SIZE])
    values = {t.name: np.ones(t.elements, np.float32) for t in tensors}
    order = Driven(tensors, values, room=3, depth=2).order
    assert order.index(("count", "t1", 0)) < order.index(("merge", "t0", 0))
    assert order.index(("count", "t1", SIZE)) > order.index(("merge", "t0", 0))


def test_a_tensor_that_does_not_fit_is_read_again_and_not_counted_ahead() -> None:
    tensors = planned([SIZE, 4 * SIZE, SIZE])
    values = {t.name: np.ones(t.elements, np.float32) for t in tensors}
    driven = Driven(tensors, values, room=3, depth=2)
    assert driven.reads == {"t0": SIZE, "t1": 8 * SIZE, "t2": SIZE}
    assert driven.order.index(("count", "t1", 0)) > driven.order.index(("merge", "t0", 0))
    assert driven.order.index(("count", "t2", 0)) < driven.order.index(("merge", "t1", 0))
    assert driven.unread == ["t1"]


def test_a_tensor_that_fills_the_room_is_read_once_and_one_of_a_chunk_more_is_not_kept() -> None:
    for chunks, reads in ((3, 1), (4, 2)):
        tensors = planned([chunks * SIZE])
        driven = Driven(tensors, {"t0": np.ones(chunks * SIZE, np.float32)}, room=3, depth=2)
        assert driven.reads == {"t0": reads * chunks * SIZE}


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("ranked", [(None,), (MEDIAN, None)])
def test_where_updates_meet_is_told_of_a_tensor_before_it_is_merged(
    ranked: Sequence[MagnitudesOf | None], depth: int
) -> None:
    sizes = [9, 1, 0, 30, 8]
    tensors = planned(sizes, copied=[4])
    values = {t.name: (np.arange(t.elements) % 3).astype(np.float32) for t in tensors}
    driven = Driven(tensors, values, room=4, depth=depth, ranked=ranked, overlaps=True)
    assert driven.overlaps == {
        t.name: [[0, np.count_nonzero(values[t.name])]] if t.action == "merge" else None for t in tensors if t.elements
    }
    for name in ("t0", "t1", "t3"):
        steps = [what for what, tensor, _ in driven.order if tensor == name]
        assert steps == sorted(steps)  # "count" before "merge"
    assert driven.reads == {"t0": 9, "t1": 1, "t3": 60, "t4": 8}  # t3 is not kept
    readings = driven.counted.readings(tensors)
    assert [t.name for t in readings].count("t3") == (2 if ranked == (None,) else 3)
    assert driven.unread == ([] if ranked == (None,) else ["t3"])


def test_there_is_no_more_room_than_there_are_chunks() -> None:
    tensors = planned([2 * SIZE + 1, 1, 0, SIZE], copied=[3])
    assert CountedTensors.of(tensors, lambda tensor: SIZE, [MEDIAN], 10**12, 2).room == 4
    assert CountedTensors.of(tensors, lambda tensor: SIZE, [None], 10**12, 2, overlaps=True).room == 4
    assert CountedTensors.of(tensors, lambda tensor: SIZE, [None], 10**12, 2).room == 0


def test_there_is_room_for_the_largest_tensor_that_fits_and_for_what_the_threads_count_meanwhile() -> None:
    tensors = planned([5 * SIZE, 2 * SIZE, *[SIZE] * 90, 9 * SIZE])
    for fits, workers, room in ((8, 1, 7), (8, 2, 8), (100, 1, 11), (100, 8, 25), (4, 1, 4), (1, 1, 1)):
        assert CountedTensors.of(tensors, lambda tensor: SIZE, [MEDIAN], fits * BYTES, workers).room == room


def test_threads_that_write_several_shards_at_once_share_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    for name in ("base", "agent0", "agent1"):
        write_model(tmp_path / name, {"a": tensor(rng.integers(-9, 9, 40_960) / 8, "BF16")})
    plan = plan_of(tmp_path, "ties", agents=2, parameters={"trim_scope": "tensor"})
    outputs = [shard_work.Output(plan, tmp_path, (), {})]
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * 2 * 40_960)
    for workers, readings in ((4, 1), (3, 3), (1, 3)):
        assert len(shard_work.readings(outputs, 0, StreamOptions(4096, 4), None, workers)) == readings


def test_the_bits_do_not_depend_on_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_family(tmp_path)
    for method, parameters in [
        ("ties", {"trim_scope": "tensor"}),
        ("ram_quantile", {}),
        ("dare_ties", {"p": 0.3}),
        ("ram_plus", {"scope": "tensor"}),
    ]:
        plan = plan_of(tmp_path, method, parameters=parameters)
        found = []
        for room in (0, 60_000, 10**9):
            monkeypatch.setattr(memory, "KEPT_BYTES", room)
            result = run(plan, tmp_path / f"{method}{room}")
            counted = {name: tally.to_json() for name, tally in result.statistics.tensors.items()}
            found.append((bytes_of(tmp_path / f"{method}{room}", plan), counted))
        assert found[0] == found[1] == found[2]


class Reading(LocalOrFetched):
    """A store that counts the bytes that are read."""

    total = 0

    def read_into(self, model: object, shard: str, offset: int, out: memoryview) -> None:
        super().read_into(model, shard, offset, out)  # type: ignore[arg-type]
        self.total += out.nbytes


@pytest.mark.parametrize(("method", "scoped"), [("ties", "trim_scope"), ("ram_plus", "scope")])
def test_inputs_that_fit_into_memory_are_read_once_for_what_is_counted_of_each_tensor(
    tmp_path: Path, method: str, scoped: str
) -> None:
    rng = np.random.default_rng(1)
    for name in ("base", "agent0", "agent1"):
        write_model(tmp_path / name, {n: tensor(rng.integers(-9, 9, 50_000) / 8, "BF16") for n in ("a", "b")})
    options = StreamOptions(4096, 2)
    for scope, passes in (("tensor", 1), ("model", 2)):
        plan = plan_of(tmp_path, method, agents=2, parameters={scoped: scope})
        store = Reading(NOWHERE, tmp_path / "cache")
        out = tmp_path / f"out_{scope}"
        out.mkdir()
        with TensorReader(plan.models, store) as reader:
            merge(plan, reader, Journal.open(out, plan, resume=False), out, options, Unobserved())
        assert store.total == 3 * 2 * 2 * 50_000 * passes
        headers = sum(header.bytes for model in plan.models for header in model.headers.values())
        assert 0 <= read_bytes(plan, options) - store.total <= 2 * headers
        chunks = 13 + AHEAD * 2  # of a tensor, and what two threads count of the other
        assert kept_bytes(plan, options) == (chunks * 4096 * 3 * 2 if scope == "tensor" else 0)


@pytest.mark.parametrize(("method", "scoped"), [("ties", "trim_scope"), ("ram_plus", "scope")])
def test_what_is_read_is_foretold_where_some_tensors_are_kept_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, scoped: str
) -> None:
    rng = np.random.default_rng(1)
    for name in ("base", "agent0", "agent1"):
        values = {n: tensor(rng.integers(-9, 9, size) / 8, "BF16") for n, size in (("a", 50_000), ("b", 20_000))}
        write_model(tmp_path / name, values)
    plan = plan_of(tmp_path, method, agents=2, parameters={scoped: "tensor"})
    options, out = StreamOptions(4096, 2), tmp_path / "out"
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * 2 * 4096 * 6)  # six chunks: b has five, a has thirteen
    out.mkdir()
    store = Reading(NOWHERE, tmp_path / "cache")
    with TensorReader(plan.models, store) as reader:
        merge(plan, reader, Journal.open(out, plan, resume=False), out, options, Unobserved())
    assert store.total == 3 * 2 * (2 * 50_000 + 20_000)
    headers = sum(header.bytes for model in plan.models for header in model.headers.values())
    assert 0 <= read_bytes(plan, options) - store.total <= 2 * headers


def test_what_is_kept_is_foretold_of_recipes_in_one_pass_whichever_comes_first(tmp_path: Path) -> None:
    write_family(tmp_path)
    recipes = {"ram": {}, "ties": {"trim_scope": "tensor"}, "ram_plus": {"scope": "tensor"}, "ram_plus_soft": {}}
    ram, ranks, meets, probes = (plan_of(tmp_path, method, parameters=p) for method, p in recipes.items())

    def kept(*plans: Plan) -> int:
        return kept_bytes(plans[0], StreamOptions(4096, 2, beside=plans[1:]))

    assert kept(ram) == kept(ram, probes) == 0
    assert kept(ram, ranks) == kept(ranks, ram) == kept(ranks) > 0
    assert kept(ram, meets) == kept(meets, ram) == kept(meets) > 0
    assert kept(meets, probes) == kept(probes, meets) == 0  # a probe tells what is needed of each tensor, too
