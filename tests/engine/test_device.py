"""A device is opened, proves itself, works, and is left when it fails: chunks have the same bytes throughout.

Torch's CPU stands for the device.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from device_helpers import CPU, engine_here, pretend_a_device
from stream_helpers import NOWHERE, Watching, bytes_of, family_plan, plan_of, run, tallies, tensors_of, write_family
from test_fast import chunk_of, rule_of

from hubmerge.cli import main as cli
from hubmerge.cli.options import stream_options
from hubmerge.engine import definition, device, lanes, shard_work, stream, threads
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device import open_engine
from hubmerge.engine.distributed import Ranks
from hubmerge.engine.memory import DEVICE_LANES, HOST_THREADS, device_bytes, device_shares
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.engine.stream import MergeResult, probe
from hubmerge.errors import MemoryLimitError
from hubmerge.machine import resources
from hubmerge.machine.resources import device_there
from hubmerge.methods.wudi import Wudi
from hubmerge.numerics.counter_rng import make_key
from hubmerge.plan.plan import Plan
from hubmerge.settings import Settings
from hubmerge.sources.reader import LocalOrFetched, TensorReader

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
MEMORY = 80_000_000_000


class FakeCuda:
    """Two CUDA devices of which torch tells. `calls`: what it was asked, devices by index; `raises`: by function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.raises: dict[str, Exception] = {}
        monkeypatch.setattr(resources, "device_there", lambda: True)
        answers = {
            "is_available": True,
            "device_count": 2,
            "get_device_properties": SimpleNamespace(name="Fake H", total_memory=MEMORY),
            "set_per_process_memory_fraction": None,
            "reset_peak_memory_stats": None,
            "max_memory_reserved": 1_000_000,
            "empty_cache": None,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, partial(self._asked, name, answer))
        lane, merge = lanes.Lane, lanes.merge_on_device
        monkeypatch.setattr(lanes, "Lane", lambda place: self._asked("Lane", None, place) or lane(CPU))
        monkeypatch.setattr(lanes, "merge_on_device", lambda *a, **n: self._asked("merge", None) or merge(*a, **n))

    def _asked(self, name: str, answer: Any, *arguments: Any) -> Any:
        self.calls.append((name, *(a.index if isinstance(a, torch.device) else a for a in arguments)))
        if name in self.raises:
            raise self.raises[name]
        return answer

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a function."""
        return [arguments for called, *arguments in self.calls if called == name]  # type: ignore[misc]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_a_device(monkeypatch)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return family_plan(tmp_path, "ram_plus")


def watched(plan: Plan, out: Path, **options: Any) -> tuple[MergeResult, list[str]]:
    """A merge, and its warnings."""
    watching = Watching()
    return run(plan, out, observer=watching, **options), watching.messages


def merged(plan: Plan, out: Path, **options: Any) -> tuple[MergeResult, list[str]]:
    """The merge with a device, whose bytes and counts are those of a merge without; its warnings."""
    options = {"chunk": BLOCK, "threads": 3, "backend": "eager", "device": "cuda", **options}
    found, warnings = watched(plan, out, **options)
    wanted = run(plan, out.with_name(f"{out.name}-cpu"))
    assert bytes_of(out, plan) == bytes_of(out.with_name(f"{out.name}-cpu"), plan)
    assert tallies(found) == tallies(wanted)
    return found, warnings


def out_of_memory(*_: Any) -> Any:
    raise OUT_OF_MEMORY


class Second(Ranks):
    local_rank = 5  # of two devices, the second


def test_the_limit_is_what_the_options_say_and_a_driver_that_fails_in_the_end_costs_nothing(plan, tmp_path, cuda):
    cuda.raises["empty_cache"] = AssertionError("driver")
    assert merged(plan, tmp_path / "device", device_memory_bytes=8_000_000_000)[1] == []
    assert cuda.of("set_per_process_memory_fraction")[0] == [0.1, 0]


@pytest.mark.parametrize(
    ("ranks", "index", "memory"), [(Ranks(), 0, 0), (Second(), 1, 8_000_000_000)], ids=["alone", "second"]
)
def test_a_merge_opens_the_device_of_its_local_rank_with_its_limit_and_touches_no_other(
    plan, tmp_path, cuda, ranks, index, memory
):
    found, warnings = merged(plan, tmp_path / "device", ranks=ranks, device_memory_bytes=memory)
    assert warnings == []
    assert found.device["device"] == "Fake H"
    assert found.device["peak_device_bytes"] == 1_000_000
    share = (memory or DEVICE_BYTES) / MEMORY
    assert cuda.of("set_per_process_memory_fraction") == [[share, index], [1.0, index]]
    assert cuda.of("Lane") == [[index]] * DEVICE_LANES
    for name in ("get_device_properties", "reset_peak_memory_stats", "max_memory_reserved"):
        assert cuda.of(name) == [[index]]
    assert len(cuda.of("empty_cache")) == 1


@pytest.mark.parametrize("command", ["merge", "run"])
def test_the_command_line_sets_the_limit(command):
    more = {"merge": ["--out", "out"], "run": ["--to", "me/x"]}[command]
    for given, wanted in (([], 0), (["--device-memory", "0.5"], 500_000_000)):
        arguments = cli._parser().parse_args([command, "file.yaml", *more, *given])
        assert stream_options(arguments, Settings()).device_memory_bytes == wanted


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("device_count", OSError("no driver")),
        ("Lane", torch.AcceleratorError("CUDA error: invalid device ordinal", 101)),
        ("merge", OUT_OF_MEMORY),  # in the trial
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_device_that_cannot_be_opened_costs_one_warning_whatever_is_raised(plan, tmp_path, cuda, function, error):
    cuda.raises[function] = error
    found, [warning] = merged(plan, tmp_path / "device")
    assert "the CPU goes on" in warning
    assert str(error).splitlines()[0] in warning
    if not isinstance(error, RuntimeError):  # it may be a mistake of ours
        assert type(error).__name__ in warning
    assert str(error) in found.device["device_failed"]
    # the limit is the process's: gradients of the same process must not meet it
    assert (cuda.of("set_per_process_memory_fraction")[-1:] == [[1.0, 0]]) == (function != "device_count")


def test_chunks_fit_the_memory_they_are_given_and_too_little_for_one_block_is_a_reason_for_the_cpu(
    plan, tmp_path, here
):
    for agents in (2, 3, 8, 30):
        _, elements = device_shares(agents, StreamOptions())
        assert elements % BLOCK == 0
        assert elements * DEVICE_LANES * device_bytes(agents) <= DEVICE_BYTES
        assert device_shares(agents, StreamOptions(chunk_elements=10**9)) == device_shares(agents, StreamOptions())
    with pytest.raises(MemoryLimitError):
        device_shares(3, StreamOptions(device_memory_bytes=1_000_000))
    found, [warning] = merged(plan, tmp_path / "device", device_memory_bytes=1_000_000)
    assert "not even one block" in warning
    assert "got 1 MB" in found.device["device_failed"]


def test_the_page_says_how_large_a_chunk_is():
    page = " ".join((Path(__file__).parents[2] / "docs" / "gpu.md").read_text().split())
    millions = device_shares(3, StreamOptions())[1] / 1e6
    assert f"({millions:.1f} million elements with three agents)" in page


def test_no_device_means_the_cpu_and_only_who_asked_is_warned(tmp_path, monkeypatch):
    messages: list[str] = []
    opening: Any = partial(open_engine, agents=3, trials=[(device.COUNTING, "BF16")], whole=0, host=definition)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(resources, "device_there", lambda: False)
    for name in ("cpu", "auto"):
        assert opening(StreamOptions(device=name), warn=messages.append) == (None, {})
    assert messages == []
    assert opening(StreamOptions(device="cuda"), warn=messages.append) == (None, {})
    assert "no CUDA device" in messages[0]
    assert not device_there(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert device_there(tmp_path)


@pytest.mark.parametrize(
    ("method", "parameters", "name"),
    [("ram_plus", {}, "auto"), ("dare_ties", {"trim_scope": "tensor"}, "cuda")],  # there is no fast pass
    ids=str,
)
def test_a_merge_on_the_device_has_the_bytes_and_statistics_of_the_cpu(
    tmp_path, here, monkeypatch, method, parameters, name
):
    calls: list[int] = []
    on_device = lanes.merge_on_device
    monkeypatch.setattr(lanes, "merge_on_device", lambda *a, **n: (calls.append(1), on_device(*a, **n))[1])
    plan = family_plan(tmp_path, method, parameters=parameters)
    found, warnings = merged(plan, tmp_path / "device", device=name)
    assert warnings == []
    assert found.device["device"] == "cpu"
    assert len(calls) > 5


def test_threads_share_few_lanes_and_get_their_own_results():
    opened = engine_here()
    chunks = [chunk_of("linear", 2, BLOCK + n, start=n * BLOCK) for n in range(12)]
    rule, key = rule_of("linear", chunks[0], "stochastic"), make_key(0, "x")
    with ThreadPoolExecutor(2 * DEVICE_LANES) as pool:
        found = list(pool.map(lambda c: opened.merge_chunk(c, rule, "BF16", key, with_inputs=True), chunks))
    for chunk, output in zip(chunks, found, strict=True):
        assert output.bits() == definition.merge_chunk(chunk, rule, "BF16", key, with_inputs=True).bits()


@pytest.mark.parametrize("wrong", ["output", "counts"])
def test_a_device_that_computes_other_bits_is_not_used(plan, tmp_path, here, monkeypatch, wrong):
    exact = lanes.merge_on_device

    def contracted(*arguments: Any, **named: Any) -> Any:
        raw, counts = exact(*arguments, **named)
        if wrong == "output":
            raw.view(torch.int16)[1000] += 1  # as a fused multiply-add might round
        else:
            counts[-1] += 1  # the last bit of a sum
        return raw, counts

    monkeypatch.setattr(lanes, "merge_on_device", contracted)
    _, [warning] = merged(plan, tmp_path / "device")
    assert "other bits" in warning


def test_a_mistake_of_ours_is_not_taken_for_a_failing_device():
    opened = engine_here()
    chunk = chunk_of("linear", 2, 10, "F32")

    def wrong(*_: object) -> torch.Tensor:
        return torch.zeros(3) + torch.zeros(4)

    rule = replace(rule_of("linear", chunk, "nearest"), kernel=wrong)
    with pytest.raises(RuntimeError, match="size of tensor"):
        opened.merge_chunk(chunk, rule, "F32", make_key(0, "x"), with_inputs=False)
    assert opened.working


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of a machine with 16 cores; gives how many threads were asked for, in turn."""
    monkeypatch.setattr(resources, "cores", lambda: 16)
    asked: list[int] = []
    real = threads.in_order

    def counting(items: Any, work: Any, workers: int, abandon: Any) -> Any:
        asked.append(workers)
        return real(items, work, workers, abandon)

    for module in (shard_work, stream):
        monkeypatch.setattr(module, "in_order", counting)
    return asked


def test_a_probe_whose_device_fails_counts_the_rest_on_the_cpu(plan, tmp_path, here, monkeypatch):
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        options, watching = StreamOptions(BLOCK, 2, backend="eager"), Watching()
        wanted = probe(plan, reader, options, watching)
        monkeypatch.setattr(lanes, "count_on_device", out_of_memory)
        found = probe(plan, reader, replace(options, device="cuda"), watching)
    assert found.total.to_json() == wanted.total.to_json()
    assert len(watching.messages) == 1


def test_thresholds_are_found_by_all_cores_beside_a_device_that_works(tmp_path, here, many_cores):
    run(family_plan(tmp_path, "ties"), tmp_path / "out", threads=0, device="cuda")
    selecting, merging = many_cores[:-1], many_cores[-1]
    assert set(selecting) == {16}
    assert merging == HOST_THREADS


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, RuntimeError("CUDA error: device-side assert triggered")], ids=str)
@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize("good", [1, 4])  # chunks before the device fails; the first is the trial
def test_a_device_that_fails_is_left_at_a_chunk_with_one_warning_and_all_cores_work_on_what_follows(
    tmp_path, here, monkeypatch, many_cores, error, method, good
):
    plan = family_plan(tmp_path, method, max_shard_bytes=12_000)
    calls = []
    for name in ("merge_on_device", "count_on_device"):
        exact = getattr(lanes, name)

        def failing(*arguments: Any, on_device: Any = exact, **named: Any) -> Any:
            calls.append(1)
            if len(calls) > good:
                raise error
            return on_device(*arguments, **named)

        monkeypatch.setattr(lanes, name, failing)
    found, [warning] = merged(plan, tmp_path / "device", threads=0, parallel_shards=1)
    assert "CUDA" in warning
    assert found.device["device_failed"].startswith("CUDA")
    assert good < len(calls) <= good + HOST_THREADS  # what was in flight, and nothing after it
    of_the_device = many_cores[: len(plan.shards) + (method == "ram_plus")]
    assert of_the_device == sorted(of_the_device)
    assert set(of_the_device) == {HOST_THREADS, 16}


def test_auto_gives_chunks_to_the_fast_pass_and_asks_torch_for_nothing(plan, tmp_path, monkeypatch):
    def asked(*_: Any) -> Any:
        raise AssertionError("a device was asked for")

    monkeypatch.setattr(resources, "device_there", lambda: True)
    monkeypatch.setattr(device, "_place", asked)
    found, warnings = merged(plan, tmp_path / "out", device="auto", backend="auto")
    assert (found.device, warnings) == ({}, [])


@pytest.fixture
def whole(tmp_path: Path) -> Plan:
    write_family(tmp_path, dtype="F32")
    return plan_of(tmp_path, "wudi", parameters={"steps": 5, "lr": 1e-3})


def near(found: Path, wanted: Path, plan: Plan) -> bool:
    """Whether two merges differ by far less than the descent moves: Adam turns the last bits of single gradients into
    whole steps."""
    ours, theirs = tensors_of(found, plan), tensors_of(wanted, plan)
    return all(np.abs(ours[n] - theirs[n]).mean() < 1e-4 for n in theirs if theirs[n].size)


@pytest.mark.parametrize(("name", "backend"), [("auto", "auto"), ("cuda", "eager")])
def test_products_are_a_devices_and_all_else_is_counted_as_ever(whole, tmp_path, here, monkeypatch, name, backend):
    wanted = run(whole, tmp_path / "cpu")
    kinds: list[type] = []
    of_method = Wudi.merge_whole

    def seen(self: Any, deltas: Any, *arguments: Any) -> Any:
        kinds.append(type(deltas[0]))
        return of_method(self, deltas, *arguments)

    monkeypatch.setattr(Wudi, "merge_whole", seen)
    found, warnings = watched(whole, tmp_path / "device", device=name, backend=backend)
    assert warnings == []
    assert set(kinds) == {torch.Tensor}
    assert found.device["device"] == "cpu"  # torch's
    assert near(tmp_path / "device", tmp_path / "cpu", whole)
    assert found.statistics.total.to_json() == wanted.statistics.total.to_json()


def test_products_go_on_on_the_cpu_when_the_device_fails(whole, tmp_path, here, monkeypatch):
    run(whole, tmp_path / "cpu")
    there = device.Engine._there
    calls: list[int] = []

    def some(self: Any, stored: Any, dtype: str) -> Any:
        calls.append(1)
        return there(self, stored, dtype) if len(calls) < 8 else out_of_memory()

    monkeypatch.setattr(device.Engine, "_there", some)
    found, [warning] = watched(whole, tmp_path / "device", device="auto")
    assert "the CPU goes on: CUDA out of memory" in warning
    assert "CUDA out of memory" in found.device["device_failed"]
    assert near(tmp_path / "device", tmp_path / "cpu", whole)


def test_a_device_whose_products_are_those_of_tf32_is_not_used(whole, tmp_path, here, monkeypatch):
    exact = device.Engine._product

    def coarse(self: Any, x: Any, y: Any) -> Any:
        short = ((a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for a in (x, y))  # ten bits of a fraction
        return exact(self, *short)

    monkeypatch.setattr(device.Engine, "_product", coarse)
    _, [warning] = watched(whole, tmp_path / "out", device="auto")
    assert "less exact than float32" in warning


def test_a_tensor_that_exceeds_the_memory_that_was_named_is_merged_on_the_cpu(whole, tmp_path, here):
    found, [warning] = watched(whole, tmp_path / "out", device="auto", device_memory_bytes=10_000)
    assert "the largest tensor does not fit" in warning
    assert "device_failed" in found.device
