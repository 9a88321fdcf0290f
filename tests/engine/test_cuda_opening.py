"""Opening a CUDA device and falling back from it, through torch's own Python functions over a faked lowest level."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_helpers
import pytest
import torch
from cuda_fake import MEMORY, FakeCuda
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family
from test_device_engine import Warned
from test_fast import chunk_of, for_method, rule_of

from hubmerge import machine
from hubmerge.cli import main as cli
from hubmerge.cli.flags import stream_options
from hubmerge.engine import device, lanes, threads
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device import Engine, open_engine
from hubmerge.engine.distributed import Ranks
from hubmerge.engine.first_passes import find_thresholds
from hubmerge.engine.journal import Journal
from hubmerge.engine.memory import LANES, MEMORY_BYTES
from hubmerge.engine.stream import MergeResult, StreamOptions, merge, probe
from hubmerge.plan.plan import Plan
from hubmerge.settings import Settings
from hubmerge.sources.reader import LocalOrFetched, TensorReader


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(machine, "device_there", lambda: True)
    return FakeCuda(monkeypatch)


def merged(plan: Plan, out: Path, **options: Any) -> tuple[MergeResult, list[str]]:
    out.mkdir()
    observer = Warned()
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, out / "cache")) as reader:
        stream = StreamOptions(backend="eager", **{"chunk_elements": BLOCK, "threads": 3, "device": "cuda", **options})
        found = merge(plan, reader, Journal.open(out, plan, resume=False), out, stream, observer)
    return found, observer.messages


class Second(Ranks):
    local_rank = 5  # of two devices, the second


@pytest.mark.parametrize(("ranks", "index"), [(Ranks(), 0), (Second(), 1)], ids=["alone", "second"])
def test_a_merge_opens_the_device_of_its_local_rank_and_touches_no_other(
    tmp_path: Path, cuda: FakeCuda, ranks: Ranks, index: int
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run(plan, tmp_path / "cpu")
    cuda.calls.clear()
    found, warnings = merged(plan, tmp_path / "device", ranks=ranks)
    assert warnings == []
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert found.device["device"] == f"Fake H{index}"
    assert found.device["peak_device_bytes"] == 1_000_000 + index
    share = MEMORY_BYTES / MEMORY
    assert cuda.of("_cuda_setMemoryFraction") == [[share, index], [1.0, index]]
    assert cuda.of("_cuda_resetPeakMemoryStats") == [[index]]
    assert len(cuda.of("_cuda_emptyCache")) == 1
    # no stream of another device is ever made current again: that would open a context there
    assert {device for _, device, _ in cuda.of("_cuda_setStream")} == {index}
    assert {device for _, device in cuda.tensors} == {index, -1}
    assert len({thread for thread, _ in cuda.tensors}) > 1


def test_no_copy_outlives_its_chunk_so_that_pinned_memory_is_freed_without_asking_the_device(
    tmp_path: Path, cuda: FakeCuda
) -> None:
    """torch would record an event on a stream that may have failed, in a destructor: that ends the process."""
    write_family(tmp_path)
    merged(plan_of(tmp_path, "ram_plus"), tmp_path / "device")
    assert len(cuda.copies) > 3 * LANES
    assert not any(cuda.copies)


def test_the_limit_is_what_the_options_say(tmp_path: Path, cuda: FakeCuda) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "linear")
    merged(plan, tmp_path / "device", device_memory_bytes=8_000_000_000)
    assert cuda.of("_cuda_setMemoryFraction")[0] == [0.1, 0]


@pytest.mark.parametrize("command", ["merge", "run", "probe", "sweep"])
def test_the_command_line_sets_the_limit(command: str) -> None:
    more = {"merge": ["--out", "out"], "run": ["--to", "me/x"], "probe": [], "sweep": ["--out", "out"]}[command]
    for given, wanted in (([], MEMORY_BYTES), (["--device-memory", "0.5"], 500_000_000)):
        arguments = cli._parser().parse_args([command, "file.yaml", *more, *given])
        assert stream_options(arguments, Settings()).device_memory_bytes == wanted


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("_cuda_init", RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu.")),
        ("_cuda_getDeviceCount", OSError("no driver")),
        ("_get_device_properties", AssertionError("Invalid device id")),
        ("_cuda_setMemoryFraction", ValueError("Expected a torch.device with a specified index or an integer")),
        ("_cuda_resetPeakMemoryStats", TypeError("invalid argument")),
        ("_cuda_exchangeDevice", torch.AcceleratorError("CUDA error: invalid device ordinal", 101)),
        ("torch.empty", torch.OutOfMemoryError("CUDA out of memory")),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_device_that_cannot_be_opened_costs_one_warning_whatever_is_raised(
    tmp_path: Path, cuda: FakeCuda, device: str, function: str, error: Exception
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run(plan, tmp_path / "cpu")
    cuda.raises[function] = error
    found, warnings = merged(plan, tmp_path / "device", device=device)
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert "the CPU goes on" in warnings[0]
    assert str(error).splitlines()[0] in warnings[0]
    if not isinstance(error, RuntimeError):  # it may be a mistake of ours
        assert type(error).__name__ in warnings[0]
    assert str(error) in found.device["device_failed"]


def test_a_device_that_does_not_open_gets_its_memory_back(cuda: FakeCuda) -> None:
    """The limit is the process's: gradients of the same process must not meet it."""
    cuda.raises["torch.empty"] = RuntimeError("CUDA error: unspecified launch failure")
    messages: list[str] = []
    assert open_engine("cuda", 3, engine_helpers.host, messages.append).engine is None
    assert [fraction for fraction, _ in cuda.of("_cuda_setMemoryFraction")] == [MEMORY_BYTES / MEMORY, 1.0]


@pytest.mark.parametrize("error", [TypeError("full() got an unexpected keyword"), RuntimeError("size of tensor a")])
def test_a_trial_may_fail_in_any_way(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram_plus")
    run(plan, tmp_path / "cpu")
    cuda.raises["torch.full"] = error  # a rule's scalars
    found, warnings = merged(plan, tmp_path / "device")
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert str(error) in warnings[0]
    assert str(error) in found.device["device_failed"]
    assert found.device["device"] == "cpu"


def test_a_driver_that_fails_in_the_end_costs_nothing(tmp_path: Path, cuda: FakeCuda) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "linear")
    cuda.raises["_cuda_emptyCache"] = AssertionError("driver")
    assert merged(plan, tmp_path / "device")[1] == []


def test_too_little_memory_for_one_block_is_a_reason_for_the_cpu(tmp_path: Path, cuda: FakeCuda) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "linear")
    found, [warning] = merged(plan, tmp_path / "device", device="cuda", device_memory_bytes=1_000_000)
    assert "not even one block" in warning
    assert "got 1 MB" in found.device["device_failed"]


def test_chunks_that_the_device_does_not_take_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
    monkeypatch.setattr(device, "MAX_ELEMENTS", BLOCK)
    chunk = for_method(chunk_of(2, BLOCK + 1, ("F32",) * 3), "linear")
    messages: list[str] = []
    for _ in range(3):
        engine_helpers.compare(opened, chunk, rule_of("linear", chunk, "nearest"), "F32")
        opened.tell(messages.append)
    [message] = messages
    assert f"{BLOCK:,} elements are merged on the CPU" in message


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of a machine with 16 cores; gives how many threads were asked for, in turn."""
    monkeypatch.setattr(machine, "cores", lambda: 16)
    asked: list[int] = []
    real = threads.in_order

    def counting(items: Any, work: Any, workers: int, abandon: Any) -> Any:
        asked.append(workers)
        return real(items, work, workers, abandon)

    for name in ("hubmerge.engine.shard_work.in_order", "hubmerge.engine.first_passes.in_order"):
        monkeypatch.setattr(name, counting)
    return asked


@pytest.mark.parametrize("method", ["ram", "ram_plus"])
@pytest.mark.parametrize("good", [0, 1, 3])  # chunks before the device fails; the first is a trial
def test_all_cores_work_once_the_device_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_cores: list[int], method: str, good: int
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, method, max_shard_bytes=12_000)
    run(plan, tmp_path / "cpu")
    many_cores.clear()
    calls = []
    for name in ("merge_on_device", "count_on_device"):
        on_device = getattr(lanes, name)

        def failing(*arguments: Any, on_device: Any = on_device, **named: Any) -> Any:
            calls.append(1)
            if len(calls) > good:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return on_device(*arguments, **named)

        monkeypatch.setattr(lanes, name, failing)
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
    _, warnings = merged(plan, tmp_path / "device", threads=0, engine=opened, parallel_shards=1)
    assert bytes_of(tmp_path / "device", plan) == bytes_of(tmp_path / "cpu", plan)
    assert len(warnings) == 1
    assert many_cores == sorted(many_cores)
    assert set(many_cores) == ({8, 16} if good else {16})  # a trial comes before any thread


def test_a_probe_whose_device_fails_goes_on_with_all_cores_at_the_next_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_cores: list[int]
) -> None:
    write_family(tmp_path, sizes={f"model.layers.{n}.weight": (4, BLOCK) for n in range(12)})
    plan = plan_of(tmp_path, "ram_plus")
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        options = StreamOptions(BLOCK, backend="eager")
        wanted = probe(plan, reader, options, Warned())
        many_cores.clear()

        def failing(*_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(lanes, "count_on_device", failing)
        opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
        found = probe(plan, reader, replace(options, engine=opened), Warned())
    assert found.total.to_json() == wanted.total.to_json()
    assert many_cores == [8, 16]


def test_thresholds_are_found_by_all_cores_beside_a_device_that_works(tmp_path: Path, many_cores: list[int]) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ties")
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
        find_thresholds(plan, reader, StreamOptions(backend="eager", engine=opened), Warned())
    assert opened.working
    assert set(many_cores) == {16}


def test_what_is_left_is_announced_again_once_other_chunks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ties", parameters={"trim_scope": "tensor"}, max_shard_bytes=12_000)
    expected: list[list[str]] = []
    monkeypatch.setattr(TensorReader, "expect", lambda _, tensors, again: expected.append([t.name for t in tensors]))

    def failing(*arguments: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(lanes, "merge_on_device", failing)
    merged(plan, tmp_path / "device", engine=Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0))
    first = len(plan.shards[0].tensors)  # merged when the device fails, as its thresholds were not known before
    assert len(expected) == 2
    assert expected[1] == expected[0][first:] != []


def test_a_device_that_failed_leaves_chunks_of_the_cpus_size(tmp_path: Path) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram")
    opened = Engine(torch.device("cpu"), engine_helpers.host, memory_bytes=0)
    options = StreamOptions(device="cuda", engine=opened)
    assert options.lasting() is options
    large = options.chunk(plan)
    opened._fail("gone")
    after = options.lasting()
    assert after.engine is None
    assert after.chunk(plan) == replace(options, engine=None).chunk(plan) < large
