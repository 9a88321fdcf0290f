"""The device's pass gives the definition's bits: every method, dtype, rounding and size, in torch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pytest
import torch
from device_helpers import CPU, compare, engine_here
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fast import chunk_of, rule_of
from torch.profiler import ProfilerActivity, profile

from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device import Engine
from hubmerge.engine.lanes import Lane
from hubmerge.engine.memory import device_bytes
from hubmerge.methods import registry
from hubmerge.numerics.counter_rng import Key, draws, make_key
from hubmerge.numerics.dtypes import STORAGE, encode


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = engine_here()
    yield opened
    opened.close()


@pytest.mark.parametrize("method", list(registry()))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(
    ("stored", "output"), [("BF16", "BF16"), ("F32", "F32"), ("F16", "F16"), ("mixed", "F16"), ("BF16", "F32")]
)
def test_every_method_gives_the_bits_of_the_definition(
    engine: Engine, method: str, rounding: str, stored: str, output: str
) -> None:
    for n in (1, 2 * BLOCK + 65):
        chunk = chunk_of(method, 3, n, stored, start=2**40)
        compare(engine, chunk, rule_of(method, chunk, rounding), output)


@pytest.mark.parametrize("agents", [2, 9])
def test_any_number_of_agents_is_counted(engine: Engine, agents: int) -> None:
    chunk = chunk_of("ram_plus", agents, BLOCK + 1)
    compare(engine, chunk, rule_of("ram_plus", chunk, "stochastic"), "BF16")


@pytest.mark.parametrize("method", ["dare_ties", "sar"])  # with most beside the inputs
@pytest.mark.parametrize("agents", [2, 8, 20])
def test_a_chunk_takes_no_more_memory_than_it_was_planned_with(agents: int, method: str) -> None:
    """By torch's own account of what is taken and given back, on the CPU."""
    n = 8 * BLOCK
    chunk = chunk_of(method, agents, n, "F32")
    rule, lane = rule_of(method, chunk, "stochastic"), Lane(CPU)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        lane.merge(chunk, rule, "F16", make_key(0, "x"), with_inputs=True)
    events = seen.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    most = max(accumulate(size for _, size in changes))
    assert n * device_bytes(agents) // 2 < most <= n * device_bytes(agents)


def test_nan_and_infinity_are_counted_alike(engine: Engine) -> None:
    chunk = chunk_of("linear", 2, 5000, "F32")
    rule = rule_of("linear", chunk, "stochastic")
    chunk.raws[0][3], chunk.raws[1][4], chunk.raws[2][4999] = np.nan, np.inf, -np.inf
    for output in ("BF16", "F16", "F32"):
        found = engine.merge_chunk(chunk, rule, output, make_key(0, "x"), with_inputs=True)
        assert found.inputs.tally.nonfinite.tolist() == [1, 1, 1]
        assert found.result.tally.nonfinite == 3


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=64), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_float_is_rounded_alike(dtype: str, rounding: str, values: list[float], seed: int) -> None:
    array = np.array(values, dtype=np.float32)
    random = draws(Key(seed, seed), 0, len(array))
    found = encode(torch.from_numpy(array.copy()), dtype, rounding, torch.from_numpy(random.view(np.int64).copy()))
    wanted = encode(array, dtype, rounding, random)
    assert found.view(torch.uint8).numpy().view(STORAGE[dtype]).tobytes() == wanted.tobytes()


def test_host_buffers_are_kept_from_chunk_to_chunk() -> None:
    lane, places = Lane(CPU), set()
    rule = rule_of("linear", chunk_of("linear", 2, 10), "nearest")
    for n in (BLOCK, BLOCK, 100, BLOCK):
        lane.merge(chunk_of("linear", 2, n), rule, "BF16", make_key(0, "x"), with_inputs=True)
        places.add((lane._in.buffer.data_ptr(), lane._out.buffer.data_ptr(), id(lane.there(rule))))
    assert len(places) == 1


def test_a_lane_with_a_stream_copies_in_once_and_back_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @contextmanager
    def entered(what: object) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    lane = Lane(CPU)
    lane._stream = object()  # type: ignore[assignment]
    chunk = chunk_of("linear", 2, BLOCK + 1, "mixed")
    rule, key = rule_of("linear", chunk, "nearest"), make_key(0, "x")

    def work(inputs: definition.ChunkInputs) -> tuple[torch.Tensor, torch.Tensor]:
        begin, size = lane._on_device.data_ptr(), lane._on_device.numel()
        assert all(begin <= s.data_ptr() < begin + size for s in inputs.raws)  # the device's buffer, not the host's
        lane._in.buffer.zero_()  # the host's may be filled again
        return definition.merge(inputs, lane.there(rule), "BF16", key, with_inputs=False)

    copy = torch.Tensor.copy_

    def noted(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        events.append("copy")
        return copy(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    raw, _ = lane.run(chunk, work)
    wanted = definition.merge_chunk(chunk, rule, "BF16", key, with_inputs=False)
    assert raw.tobytes() == wanted.raw.tobytes()
    assert events == ["begin", "begin", "copy", "copy", "copy", "end", "end"]
