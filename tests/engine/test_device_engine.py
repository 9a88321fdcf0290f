"""The engine around the pass: lanes, bounded memory, a device that fails, and one that computes otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import engine_helpers
import pytest
import torch
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family
from test_fast import chunk_of, for_method, rule_of

from hubmerge import machine
from hubmerge.counter_rng import make_key
from hubmerge.engine import chunks, definition, device, lanes, memory
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device import Contest, Engine, Opened, open_engine
from hubmerge.engine.journal import Journal
from hubmerge.engine.memory import LANES, device_bytes, device_chunk
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import MergeResult, StreamOptions, merge
from hubmerge.errors import MemoryLimitError
from hubmerge.machine import device_there
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader


class Warned(Unobserved):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warning(self, message: str) -> None:
        self.messages.append(message)


def merged_on(opened: Engine, plan: Plan, out: Path) -> tuple[MergeResult, list[str]]:
    out.mkdir()
    observer = Warned()
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, out / "cache")) as reader:
        journal = Journal.open(out, plan, resume=False)
        options = StreamOptions(BLOCK, 3, backend="eager", engine=opened)
        return merge(plan, reader, journal, out, options, observer), observer.messages


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("ram_plus", {}), ("ram_plus", {"scope": "tensor"}), ("dare_ties", {}), ("wudi", {})],
    ids=str,
)
def test_a_merge_on_the_device_has_the_bytes_and_statistics_of_the_cpu(
    tmp_path: Path, method: str, parameters: dict[str, str]
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, method, parameters=parameters)
    wanted = run(plan, tmp_path / "cpu")
    found, warnings = merged_on(
        Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0), plan, tmp_path / "device"
    )
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert found.statistics.total.to_json() == wanted.statistics.total.to_json()
    assert found.total.to_json() == wanted.total.to_json()
    assert warnings == []
    assert found.device["device"] == "cpu"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: device-side assert triggered")]
)
@pytest.mark.parametrize("good", [1, 4])  # chunks before it fails; the first is the trial
def test_a_device_that_fails_is_left_at_a_chunk_with_one_warning_and_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, good: int
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram")
    run(plan, tmp_path / "cpu")
    calls = []
    on_device = lanes.merge_on_device

    def failing(*arguments, **named):
        calls.append(1)
        if len(calls) > good:
            raise error
        return on_device(*arguments, **named)

    monkeypatch.setattr(lanes, "merge_on_device", failing)
    found, warnings = merged_on(
        Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0), plan, tmp_path / "device"
    )
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert "CUDA" in warnings[0]
    assert found.device["device_failed"].startswith("CUDA")
    assert good < len(calls) <= good + 3  # what was in flight, and nothing after it


def test_a_device_that_counts_wrongly_is_not_used_for_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = lanes.merge_on_device

    def wrong(*arguments, **named):
        raw, counts = exact(*arguments, **named)
        counts[-1] += 1  # the last bit of a sum
        return raw, counts

    monkeypatch.setattr(lanes, "merge_on_device", wrong)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    wanted = run(plan, tmp_path / "cpu")
    found, warnings = merged_on(
        Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0), plan, tmp_path / "device"
    )
    assert found.statistics.total.to_json() == wanted.statistics.total.to_json()
    assert len(warnings) == 1


def test_a_mistake_of_ours_is_not_taken_for_a_failing_device() -> None:
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
    chunk = for_method(chunk_of(2, 10, ("F32",) * 3), "linear")

    def wrong(*_: object) -> torch.Tensor:
        return torch.zeros(3) + torch.zeros(4)

    rule = replace(rule_of("linear", chunk, "nearest"), kernel=wrong)
    with pytest.raises(RuntimeError, match="size of tensor"):
        opened.merge_chunk(chunk, rule, "F32", make_key(0, "x"), with_inputs=False)
    assert opened.working


def test_a_device_that_computes_other_bits_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = lanes.merge_on_device

    def contracted(*arguments, **named):
        raw, counts = exact(*arguments, **named)
        raw.view(torch.int16)[1000] += 1  # as a fused multiply-add might round
        return raw, counts

    monkeypatch.setattr(lanes, "merge_on_device", contracted)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram")
    run(plan, tmp_path / "cpu")
    _, warnings = merged_on(Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0), plan, tmp_path / "device")
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert "other bits" in warnings[0]


def test_threads_share_few_lanes_and_get_their_own_results() -> None:
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0, lanes=2)
    chunks = [for_method(chunk_of(2, BLOCK + n, ("BF16",) * 3, start=n * BLOCK), "linear") for n in range(12)]
    rule = rule_of("linear", chunks[0], "stochastic")
    key = make_key(0, "x")
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda c: opened.merge_chunk(c, rule, "BF16", key, with_inputs=True), chunks))
    for chunk, output in zip(chunks, found, strict=True):
        wanted = definition.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
        assert engine_helpers.bits(output) == engine_helpers.bits(wanted)


def test_host_buffers_are_kept_from_chunk_to_chunk() -> None:
    lane = lanes.Lane(torch.device("cpu"))
    rule = rule_of("linear", chunk_of(2, 10, ("BF16",) * 3), "nearest")
    places = set()
    for n in (BLOCK, BLOCK, 100, BLOCK):
        chunk = for_method(chunk_of(2, n, ("BF16",) * 3), "linear")
        lane.run(
            chunk, lambda i: definition.merge(i, rule, lane.scalars(rule), "BF16", make_key(0, "x"), with_inputs=True)
        )
        places.add((lane._in.buffer.data_ptr(), lane._out.buffer.data_ptr(), id(lane._scalars)))
    assert len(places) == 1


def test_chunks_fit_the_memory_they_are_given() -> None:
    for agents in (2, 3, 8, 30):
        elements = device_chunk(agents, memory.MEMORY_BYTES, LANES)
        assert elements % BLOCK == 0
        assert elements * LANES * device_bytes(agents) <= memory.MEMORY_BYTES
        assert elements <= device.MAX_ELEMENTS
    with pytest.raises(MemoryLimitError):
        device_chunk(3, 1_000_000, 3)


def test_the_page_says_how_large_a_chunk_is() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "gpu.md").read_text().split())
    millions = device_chunk(3, memory.MEMORY_BYTES, LANES) / 1e6
    assert f"({millions:.1f} million elements with three agents)" in page
    assert f"Chunks above {device.MAX_ELEMENTS:,} elements" in page


def test_no_device_means_the_cpu_and_only_who_asked_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_engine("cpu", 3, engine_helpers.host, messages.append) == Opened()
    monkeypatch.setattr(machine, "device_there", lambda: False)
    assert open_engine("auto", 3, engine_helpers.host, messages.append) == Opened()
    assert messages == []
    assert open_engine("cuda", 3, engine_helpers.host, messages.append) == Opened()
    assert "no CUDA device" in messages[0]
    assert not device_there(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert device_there(tmp_path)


@pytest.mark.parametrize("driver", ["works", "fails"])
def test_a_device_that_failed_gets_its_memory_back_all_the_same(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    """What ran out of memory is a healthy device, which others in this process may want."""
    told: list[object] = []

    def empty_cache() -> None:
        if driver == "fails":
            raise RuntimeError("CUDA error: unspecified launch failure")
        told.append("empty")

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append(share))
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
    opened._cuda = True
    opened._fail(torch.OutOfMemoryError("CUDA out of memory"))
    opened.close()
    assert told == (["empty", 1.0] if driver == "works" else [])


def test_a_lane_with_a_stream_copies_in_once_and_back_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @contextmanager
    def active(stream: object) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        events.append("device")
        yield
        events.append("device before")

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "stream", active)
    lane = lanes.Lane(torch.device("cpu"))
    lane._stream = object()
    chunk = for_method(chunk_of(2, BLOCK + 1, ("BF16", "F16", "F32")), "linear")
    rule, key = rule_of("linear", chunk, "nearest"), make_key(0, "x")

    def work(inputs: definition.ChunkInputs) -> tuple[torch.Tensor, torch.Tensor]:
        begin, size = lane._on_device.data_ptr(), lane._on_device.numel()
        assert all(begin <= s.data_ptr() < begin + size for s in inputs.raws)  # the device's buffer, not the host's
        lane._in.buffer.zero_()  # the host's may be filled again
        return definition.merge(inputs, rule, lane.scalars(rule), "BF16", key, with_inputs=False)

    copy = torch.Tensor.copy_

    def noted(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        events.append("copy")
        return copy(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    raw, _ = lane.run(chunk, work)
    wanted = definition.merge_chunk(chunk, rule, "BF16", key, with_inputs=False)
    assert raw is not None
    assert raw.tobytes() == wanted.raw.tobytes()
    assert events == ["device", "begin", "copy", "copy", "copy", "end", "device before"]


CONTEST = Contest(host_threads=2, host_chunk=BLOCK, device_threads=2, device_chunk=2 * BLOCK)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Seconds per element, by the size of the chunk that is merged; each measured chunk is really merged once."""
    monkeypatch.setattr(device, "_measured", {})
    told = {CONTEST.host_chunk: 2e-9, CONTEST.device_chunk: 1e-9}

    def measured(merge: Callable[[], object], chunk: definition.ChunkInputs, threads: int) -> float:
        merge()
        return told[len(chunk.raws[0])]

    monkeypatch.setattr(device, "seconds_per_element", measured)
    return told


@pytest.mark.parametrize("method", ["ram", "ram_plus", "ties"])
@pytest.mark.parametrize("device_s", [1e-9, 3e-9], ids=["faster", "slower"])
def test_auto_takes_the_faster_of_the_two_with_the_same_bytes(
    tmp_path: Path, rates: dict[int, float], method: str, device_s: float
) -> None:
    rates[CONTEST.device_chunk] = device_s
    write_family(tmp_path)
    plan = plan_of(tmp_path, method)
    run(plan, tmp_path / "cpu")
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0, contest=CONTEST)
    found, warnings = merged_on(opened, plan, tmp_path / "device")
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert warnings == []
    assert opened.working is (device_s < 2e-9)
    assert ("device_slower" in found.device) is (device_s > 2e-9)
    if not opened.working:
        assert found.device["device_slower"] == "cpu 3 ns per parameter, the CPU 2"


def test_a_process_measures_a_method_once(rates: dict[int, float]) -> None:
    chunk = for_method(chunk_of(2, 10, ("F32",) * 3), "linear")
    rule = rule_of("linear", chunk, "nearest")
    for _ in range(2):
        opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0, contest=CONTEST)
        opened.check(rule, 2, "F32")
        assert opened.working
        rates.clear()  # a second measurement would fail


def test_a_device_that_fails_in_the_contest_is_not_used(
    monkeypatch: pytest.MonkeyPatch, rates: dict[int, float]
) -> None:
    chunk = for_method(chunk_of(2, 10, ("F32",) * 3), "linear")
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0, contest=CONTEST)
    del rates[CONTEST.device_chunk]
    opened.check(rule_of("linear", chunk, "nearest"), 2, "F32")
    assert "device_failed" in opened.facts()


def test_the_contest_is_between_all_cores_and_the_threads_that_feed_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 16)
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram")
    asked: list[Contest | None] = []

    def opened(*_: object, contest: Contest | None, **__: object) -> Opened:
        asked.append(contest)
        return Opened()

    monkeypatch.setattr(chunks, "open_engine", opened)
    for name in ("auto", "cuda"):
        with StreamOptions(device=name).on_device(plan, print):
            pass
    [auto, named] = asked
    assert auto is not None
    assert (auto.host_threads, auto.device_threads) == (16, 8)
    assert auto.device_chunk > auto.host_chunk
    assert named is None  # who names a device gets it


def test_a_rate_is_of_all_threads_together() -> None:
    chunk = chunk_of(2, BLOCK, ("F32",) * 3)
    one, four = (device.seconds_per_element(lambda: time.sleep(0.02), chunk, threads) for threads in (1, 4))
    assert one >= 0.02 / BLOCK
    assert four < one / 2
