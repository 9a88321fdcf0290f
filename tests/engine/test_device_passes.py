"""The device's pass gives the definition's bits: every method, dtype, rounding and size, in torch on CPU and GPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from device_helpers import CPU, CUDA, DEVICES, ON_GPU, compare
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fast import DTYPES, ROUNDINGS, chunk_of, rule_of
from torch.profiler import ProfilerActivity, profile

from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.definition import ChunkInputs
from hubmerge.engine.device import Engine
from hubmerge.engine.lanes import Lane
from hubmerge.engine.memory import device_bytes
from hubmerge.engine.options import DEVICE_BYTES
from hubmerge.methods import registry
from hubmerge.methods.base import Each, Scope, one_by_one
from hubmerge.numerics.arrays import Array
from hubmerge.numerics.counter_rng import Key, draws, make_key
from hubmerge.numerics.dtypes import STORAGE, encode


@pytest.fixture(scope="module", params=DEVICES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = Engine(request.param, definition, memory_bytes=DEVICE_BYTES)
    yield opened
    opened.close()


ON_CPU = [("BF16", "BF16", method, "stochastic") for method in registry()]
ON_CPU += [(*dtypes, "ram_plus", rounding) for dtypes in DTYPES for rounding in ROUNDINGS]
EVERY = [(*dtypes, m, rounding) for dtypes in DTYPES for m in registry() for rounding in ROUNDINGS]


@pytest.mark.parametrize(
    ("engine", "stored", "output", "method", "rounding"),
    [
        *(pytest.param(CPU, *case, id="-".join(("cpu", *case))) for case in ON_CPU),
        *(pytest.param(CUDA, *case, id="-".join(("cuda", *case)), marks=ON_GPU) for case in EVERY),
    ],
    indirect=["engine"],
)
def test_every_method_gives_the_bits_of_the_definition(engine, method, rounding, stored, output):
    for n in (1, BLOCK, 20 * BLOCK + 65) if engine._cuda else (1, 2 * BLOCK + 65):
        chunk = chunk_of(method, 3, n, stored, start=2**40)
        rule = rule_of(method, chunk, rounding)
        compare(engine, chunk, rule, output)
        engine.prove(rule, 3, output)


@pytest.mark.parametrize("agents", [2, 9])
def test_any_number_of_agents_is_counted(engine, agents):
    chunk = chunk_of("ram_plus", agents, BLOCK + 1)
    compare(engine, chunk, rule_of("ram_plus", chunk, "stochastic"), "BF16")


@pytest.mark.parametrize("method", ["dare_ties", "sar"])  # with most beside the inputs
@pytest.mark.parametrize("agents", [2, 8, 20])
def test_a_chunk_takes_no_more_memory_than_it_was_planned_with(agents, method):
    """By torch's own account of what is taken and given back, on the CPU."""
    n = 8 * BLOCK
    chunk = chunk_of(method, agents, n, "F32")
    rule, lane = rule_of(method, chunk, "stochastic"), Lane(CPU)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        lane.merge(chunk, rule, "F16", make_key(0, "x"), with_inputs=True)
    events = seen.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    most = max(accumulate(size for _, size in changes))
    assert n * device_bytes(agents) // 2 < most <= n * device_bytes(agents)


def test_nan_and_infinity_are_counted_alike(engine):
    chunk = chunk_of("linear", 2, 5000, "F32")
    rule = rule_of("linear", chunk, "stochastic")
    chunk.raws[0][3], chunk.raws[1][4], chunk.raws[2][4999] = np.nan, np.inf, -np.inf
    for output in ("BF16", "F16", "F32"):
        found = engine.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
        assert found.inputs.tally.nonfinite.tolist() == [1, 1, 1]
        assert found.result.tally.nonfinite == 3


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=64), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("device", DEVICES)
def test_every_float_is_rounded_alike(device, dtype, rounding, values, seed):
    array = np.array(values, dtype=np.float32)
    random = draws(Key(seed, seed), 0, len(array))
    there = [torch.from_numpy(x.copy()).to(device) for x in (array, random.view(np.int64))]
    found = encode(there[0], dtype, rounding, there[1])
    wanted = encode(array, dtype, rounding, random)
    assert found.cpu().view(torch.uint8).numpy().view(STORAGE[dtype]).tobytes() == wanted.tobytes()


def test_the_products_of_a_whole_tensor_are_float32s_whatever_torch_was_told(engine):
    of_torch = torch.backends.cuda.matmul
    kept, of_torch.allow_tf32 = of_torch.allow_tf32, True
    try:
        engine.prove_products()
        assert of_torch.allow_tf32
        for shape in ((800, 120), (120, 800)) if engine._cuda else ((300, 40), (40, 300)):
            _check_products(engine, shape)
    finally:
        of_torch.allow_tf32 = kept


def _check_products(engine: Engine, shape: tuple[int, int]) -> None:
    method, rng = registry()["wudi"], np.random.default_rng(0)
    scope = Scope(method.parse_parameters({"steps": 100}), [1.0, 0.5, 1.0])
    values = [rng.normal(size=shape).astype(np.float32) * np.float32(0.01) for _ in range(4)]
    chunk = ChunkInputs(tuple(v.reshape(-1) for v in values), ("F32",) * 4, 0)

    def whole(deltas: Sequence[Array], each: Each) -> Array:
        return method.merge_whole([d.reshape(shape) for d in deltas], scope, each).reshape(-1)

    rule = replace(rule_of("linear", chunk, "nearest"), whole=whole)
    wanted = definition.whole_update(chunk, rule, one_by_one)
    found = engine.whole_update(chunk, rule, lambda: pytest.fail("the CPU was asked"))
    start = sum(w * (v - values[0]).reshape(-1) for w, v in zip(scope.weights, values[1:], strict=True))
    moved = np.abs(wanted - start)
    assert moved.max() > 5e-4
    assert np.abs(found - wanted).mean() < 1e-3 * moved.mean()
    assert np.abs(found - wanted).max() < 0.1 * moved.max()


def test_host_buffers_are_kept_from_chunk_to_chunk():
    lane, places = Lane(CPU), set()
    rule = rule_of("linear", chunk_of("linear", 2, 10), "nearest")
    for n in (BLOCK, BLOCK, 100, BLOCK):
        lane.merge(chunk_of("linear", 2, n), rule, "BF16", make_key(0, "x"), with_inputs=True)
        places.add((lane._in.buffer.data_ptr(), lane._out.buffer.data_ptr(), id(lane.there(rule))))
    assert len(places) == 1


def test_a_lane_with_a_stream_copies_in_once_and_back_what_came_of_it(monkeypatch):
    events: list[object] = []

    @contextmanager
    def entered(what: object) -> Iterator[None]:
        events.append(what)
        yield
        events.append("end")

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    lane = Lane(CPU)
    lane._stream = object()  # type: ignore[assignment]
    chunk = chunk_of("linear", 2, BLOCK + 1, "mixed")
    rule, key = rule_of("linear", chunk, "nearest"), make_key(0, "x")

    def work(inputs: definition.ChunkInputs) -> tuple[torch.Tensor, torch.Tensor]:
        begin, size = lane._on_device.buffer.data_ptr(), lane._on_device.buffer.numel()
        assert all(begin <= s.data_ptr() < begin + size for s in inputs.raws)  # the device's buffer, not the host's
        lane._in.buffer.zero_()  # the host's may be filled again
        return definition.merge(inputs, lane.there(rule), "BF16", key, with_inputs=False)

    copy = torch.Tensor.copy_

    def noted(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:  # each is waited for
        events.append("copy")
        return copy(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    raw, _ = lane.run(chunk, work)
    wanted = definition.merge_chunk(chunk, rule, "BF16", key, with_inputs=False)
    assert raw.tobytes() == wanted.raw.tobytes()
    assert events == [CPU, lane._stream, "copy", "copy", "copy", "end", "end"]  # its own device first
