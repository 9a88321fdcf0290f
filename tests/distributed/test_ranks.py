"""Sharing out one merge: several ranks as threads, exchanging plain JSON, give what one gives."""

import signal
from contextlib import ExitStack
from pathlib import Path
from threading import BrokenBarrierError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from line import Watcher
from rank_threads import merged_by, ranks_of, together
from stream_helpers import Watching, bytes_of, family_plan, run, sensitivity_metadata, tallies

from hubmerge.engine import device
from hubmerge.engine.distributed import ALONE, ProcessLostError, Ranks, join, of_all_devices, refuse_several
from hubmerge.engine.resume import own, own_cache, resumed
from hubmerge.engine.sink import sole_owner
from hubmerge.engine.stream import MergeResult
from hubmerge.errors import FolderInUseError, RecipeError, SettingsError, TargetExistsError
from hubmerge.methods import registry
from hubmerge.sensitivity.file import read_sensitivity, write_tensors
from hubmerge.sensitivity.of_plan import same_files
from hubmerge.settings import load_settings


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        *((method.name, {}) for method in registry().values() if "sensitivity" not in method.extras),
        ("ram_plus", {"scope": "tensor"}),
        ("ties", {"density": [0.3, 1.0], "trim_scope": "tensor"}),
    ],
    ids=str,
)
def test_several_ranks_give_the_bytes_and_statistics_of_one(tmp_path, method, parameters):
    size = 7 if method in ("ram", "ties") else 2  # more ranks than shards
    plan = family_plan(tmp_path, method, parameters=parameters, max_shard_bytes=12_000)
    one = run(plan, tmp_path / "one")
    found = merged_by(size, plan, tmp_path / "several")
    several = found[0]
    assert 2 < len(plan.shards) < 7
    assert bytes_of(tmp_path / "several", plan) == bytes_of(tmp_path / "one", plan)
    assert tallies(several) == tallies(one)
    assert list(several.statistics.tensors) == list(one.statistics.tensors)
    assert [[s.sha256 for s in each.shards] for each in found] == [[s.sha256 for s in one.shards]] * size


@pytest.mark.parametrize(
    ("method", "sizes"), [("ram", (2, 1)), ("ram_plus", (1, 3)), ("ties", (3, 2, 1)), ("ram_plus", (2, 2))], ids=str
)
def test_a_merge_goes_on_with_any_number_of_processes_and_makes_no_finished_shard_again(tmp_path, method, sizes):
    plan, out = family_plan(tmp_path, method, max_shard_bytes=6_000), tmp_path / "out"
    one = run(plan, tmp_path / "one")
    kept: dict[str, int] = {}
    for size in sizes[:-1]:
        ended = merged_by(size, plan, out, shards=1)
        assert {type(error) for error in ended} <= {RuntimeError, BrokenBarrierError}
        there = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
        assert kept.items() <= there.items()
        assert len(there) > len(kept)
        kept = there
    assert len(kept) < len(plan.shards)
    finished = merged_by(sizes[-1], plan, out)
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    for each in finished:
        assert tallies(each) == tallies(one)


def test_a_shard_whose_bytes_have_changed_is_made_again_by_whoever_has_it_now(tmp_path):
    plan, out = family_plan(tmp_path, "ram", max_shard_bytes=6_000), tmp_path / "out"
    run(plan, tmp_path / "one")
    merged_by(2, plan, out)
    changed = out / plan.shards[1].filename
    changed.write_bytes(bytes(changed.stat().st_size))
    assert all(isinstance(each, MergeResult) for each in merged_by(3, plan, out))
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)


def test_a_folder_in_which_a_process_of_an_earlier_run_still_works_is_refused(tmp_path):
    plan, out = family_plan(tmp_path, "ram", max_shard_bytes=12_000), tmp_path / "out"
    with sole_owner(out, 1), ExitStack() as held, pytest.raises(FolderInUseError, match="another process is merging"):
        own([out], held, ALONE)
    assert isinstance(merged_by(1, plan, out)[0], MergeResult)


def test_rank_0_alone_finds_out_that_a_folder_is_somebody_elses_and_leaves_nothing_there(tmp_path):
    plan, out = family_plan(tmp_path, "ram"), tmp_path / "out"
    out.mkdir()
    (out / "theirs.txt").write_text("theirs")
    first, second = ranks_of(2)
    with ExitStack() as held:
        own([out], held, first)
        with pytest.raises(TargetExistsError, match="not empty"):
            resumed([(plan, out)], held, first, lambda done, total: None)
    own([out], ExitStack(), second)
    assert [path.name for path in out.iterdir()] == ["theirs.txt"]


def test_inputs_that_more_processes_had_fetched_are_removed_by_fewer(tmp_path):
    for name in ("inputs", "inputs-1", "inputs-7", "inputs-old"):
        (tmp_path / name).mkdir()
    assert together(2, lambda ranks: own_cache(tmp_path / "inputs", ranks).name) == ["inputs", "inputs-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "inputs-1", "inputs-old"]


def test_processes_that_resolved_other_commits_refuse():
    refused = together(2, lambda ranks: ranks.agree("the plan", f"commit{ranks.rank}"))
    assert all(isinstance(error, ProcessLostError) and "commit0, commit1" in str(error) for error in refused)


def test_a_process_that_would_weigh_by_another_file_than_rank_0_refuses(tmp_path):
    """Two machines, each with a file of that name; then a machine without."""
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        values = np.array([1.0, number], dtype=np.float32)
        write_tensors(
            tmp_path / name / "f.safetensors", {"w": (2,)}, sensitivity_metadata().to_strings(), [("w", values)]
        )
    agent = SimpleNamespace(sensitivity=None)
    plan: Any = SimpleNamespace(recipe=SimpleNamespace(method="fisher", agents=[agent]))
    file = read_sensitivity(tmp_path / "one" / "f.safetensors")

    def share(ranks: Ranks, folder: str) -> Path:
        return same_files(ranks, plan, tmp_path / folder, () if ranks.rank else (file,))[0].path

    def both(folder: str) -> list[Any]:
        return together(2, lambda ranks: share(ranks, folder if ranks.rank else "one"))

    assert both("one") == [file.path, file.path]
    assert all("do not agree on the sensitivities" in str(error) for error in both("two"))
    assert same_files(ALONE, plan, tmp_path, (file,)) == (file,)
    told = together(2, lambda ranks: share(ranks, "nowhere") if ranks.rank else ranks.first(["f.safetensors"]))
    assert "not where this process looks for it" in str(told[1])


def test_launchers_and_mpi_tell_the_rank_and_other_commands_refuse_several():
    assert load_settings({}).world_size == 1
    torchrun = load_settings({"RANK": "1", "WORLD_SIZE": "4", "PMI_RANK": "3"})
    assert (torchrun.rank, torchrun.world_size) == (1, 4)
    mpi = load_settings({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"})
    assert (mpi.rank, mpi.world_size) == (2, 3)
    assert torchrun.local_rank is None
    assert load_settings({"LOCAL_RANK": "3"}).local_rank == 3
    assert load_settings({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "RANK": "9"}).local_rank == 1
    with pytest.raises(SettingsError, match="LOCAL_RANK"):
        load_settings({"LOCAL_RANK": "-1"})
    refuse_several(load_settings({}), "sweep")
    with pytest.raises(RecipeError, match="launcher"):
        refuse_several(mpi, "sweep")


def test_processes_that_do_not_know_where_to_meet_are_told_so(monkeypatch):
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    watcher = Watcher()
    mpi = load_settings({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    with pytest.raises(SettingsError, match=r"where to meet.*MASTER_ADDR expected, but not set"), join(mpi, watcher):
        pass
    assert watcher.stages == ["join"], "the wait for the others has a name"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Ctrl-C clears up again"


def test_the_facts_of_all_devices_become_one_report():
    facts = [
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 5},
        {"device": "cpu", "torch": "2.13.0", "device_failed": "CUDA out of memory"},
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 7},
    ]
    assert of_all_devices(facts) == {
        "device": "H200, cpu",
        "torch": "2.13.0",
        "peak_device_bytes": 7,
        "device_failed": "rank 1: CUDA out of memory",
    }
    assert of_all_devices([facts[1]]) == facts[1]
    assert of_all_devices([{}, {}]) == {}


@pytest.mark.slow
def test_a_device_that_fails_is_told_by_its_rank_and_stands_in_the_report(tmp_path, monkeypatch):
    import torch

    plan, out = family_plan(tmp_path, "ram_plus", max_shard_bytes=12_000), tmp_path / "out"
    run(plan, tmp_path / "one")

    def place(local_rank: int) -> Any:
        if local_rank:
            raise RuntimeError("CUDA error: no context")
        return torch.device("cpu")

    monkeypatch.setattr(device, "_place", place)

    watching = Watching()
    found = merged_by(2, plan, out, observer=watching, device="cuda")
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
    [warning] = watching.messages
    assert warning.startswith("rank 1: the CUDA device cannot be used")
    for each in found:
        assert each.device["device_failed"] == "rank 1: CUDA error: no context"
        assert each.device["device"] == "cpu"
