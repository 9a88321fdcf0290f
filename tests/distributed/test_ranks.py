"""Sharing out one merge: several ranks as threads, exchanging plain JSON, give what one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from rank_threads import Thread, ranks_of
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family

from hubmerge.engine.distributed import ALONE, ProcessLostError, Ranks, assign, refuse_several
from hubmerge.engine.journal import Journal, plan_identity
from hubmerge.engine.rank_folders import claim, rank_folder, take_over
from hubmerge.engine.stream import MergeResult, Silent, StreamOptions, Variant, merge, merge_share, merge_variants
from hubmerge.errors import RecipeError, SettingsError
from hubmerge.output.helper import share_sensitivities
from hubmerge.sensitivity.file import SensitivityMetadata, read_sensitivity, write_tensors
from hubmerge.settings import load_settings
from hubmerge.sources.reader import LocalOrFetched, TensorReader


def merged_by(size: int, plan: Any, out: Path) -> MergeResult:
    def work(ranks: Thread) -> MergeResult | None:
        own = rank_folder(out, ranks.rank) if ranks.rank else out
        options = StreamOptions(4096, 1, backend="eager", ranks=ranks)
        if ranks.rank:
            ranks.agree("the plan", plan_identity(plan))
        with TensorReader(plan.models, LocalOrFetched(NOWHERE, own / "cache")) as reader:
            journal = Journal.open(own, plan, resume=False)
            if ranks.rank:
                merge_share([Variant(plan, journal, own)], reader, options, Silent())
                return None
            return merge_variants([Variant(plan, journal, own)], reader, options, Silent())[0]

    out.mkdir(parents=True)
    with ThreadPoolExecutor(size) as pool:
        return next(r for r in pool.map(work, ranks_of(size)) if r is not None)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("ram", {}),
        ("ram_plus", {}),
        ("ram_plus", {"scope": "tensor"}),
        ("ties", {"density": 0.3}),
        ("ties", {"density": 0.3, "trim_scope": "tensor"}),
        (
            "ties",
            {"density": [0.3, 1.0], "trim_scope": "tensor", "lambda": [{"filter": "mlp", "value": 2}, {"value": 1}]},
        ),
        ("dare_ties", {"density": 0.4, "p": 0.3}),
        ("ram_quantile", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [2, 7])  # 7: more ranks than shards
def test_several_ranks_give_the_bytes_and_statistics_of_one(
    tmp_path: Path, method: str, parameters: dict[str, Any], size: int
) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, method, parameters=parameters, max_shard_bytes=12_000)
    one = run(plan, tmp_path / "one")
    several = merged_by(size, plan, tmp_path / "several")
    assert len(plan.shards) >= 3
    assert bytes_of(tmp_path / "several", plan) == bytes_of(tmp_path / "one", plan)
    assert several.statistics.total.to_json() == one.statistics.total.to_json()
    assert list(several.statistics.tensors) == list(one.statistics.tensors)
    assert several.total.to_json() == one.total.to_json()
    assert [s.sha256 for s in several.shards] == [s.sha256 for s in one.shards]


def test_one_process_adopts_what_helpers_of_a_killed_merge_have_finished(tmp_path: Path) -> None:
    write_family(tmp_path)
    plan = plan_of(tmp_path, "ram", max_shard_bytes=12_000)
    one, out = run(plan, tmp_path / "one"), tmp_path / "out"
    run(plan, rank_folder(out, 3))  # as if a helper had written all shards
    written = {s.filename: (rank_folder(out, 3) / s.filename).stat().st_mtime_ns for s in plan.shards}
    out.mkdir(exist_ok=True)
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, out / "cache")) as reader:
        journal = Journal.open(out, plan, resume=False)
        take_over(ALONE, out, plan, journal)
        assert not rank_folder(out, 3).exists()
        adopted = merge(plan, reader, journal, out, StreamOptions(4096, 1, backend="eager"), Silent())
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
    assert adopted.total.to_json() == one.total.to_json()
    assert {s.filename: (out / s.filename).stat().st_mtime_ns for s in plan.shards} == written


def test_a_process_that_lost_the_others_keeps_its_folder_until_it_ends(tmp_path: Path) -> None:
    write_family(tmp_path)
    plan, out = plan_of(tmp_path, "ram", max_shard_bytes=12_000), tmp_path / "out"
    lost = ranks_of(2)[1]
    claim(lost, rank_folder(out, 1))
    journal = Journal.open(out, plan, resume=False)
    with pytest.raises(ProcessLostError, match=f"still at work here .*rank-1: got process {os.getpid()} on"):
        take_over(ALONE, out, plan, journal)
    lost.held.close()
    take_over(ALONE, out, plan, journal)
    take_over(ALONE, out, plan, journal)  # one process on its own claims nothing for itself


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from hubmerge.engine.distributed import ALONE
from hubmerge.errors import DiskError
from hubmerge.engine.rank_folders import claim
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    claim(ALONE, Path(sys.argv[1]))
except DiskError as error:
    print(error.code)
"""


def test_a_full_disk_is_told_as_such_when_a_folder_is_claimed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "E_DISK\n"


def test_the_largest_goes_first_to_whoever_has_least() -> None:
    assert assign([5, 1, 4, 3, 3], 2) == [0, 1, 1, 1, 0]
    assert assign([2, 9, 4, 3], 2) == [1, 0, 1, 1]
    assert assign([1, 1, 1], 5) == [0, 1, 2]
    assert assign([], 3) == []


def test_one_process_exchanges_nothing() -> None:
    parts = [np.array([[0, 3, 2]]), np.array([[1, 3, 5]])]
    assert ALONE.gather(7) == [7]
    assert list(ALONE.with_others(iter(parts), (2, 8))) == parts
    assert ALONE.mine([3, 1], lambda n: n) == [3, 1]


def test_counts_of_others_are_added_once() -> None:
    def work(ranks: Thread) -> int:
        own = iter([np.array([[0, ranks.rank, 1], [1, 5, 10]]), np.array([[1, 5, 1]])])
        total = np.zeros((2, 8), dtype=np.int64)
        for part in ranks.with_others(own, (2, 8)):
            np.add.at(total, (part[:, 0], part[:, 1]), part[:, 2])
        assert total[0].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
        return int(total[1, 5])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, ranks_of(3))) == [33, 33, 33]


def test_processes_that_resolved_other_commits_refuse() -> None:
    def work(ranks: Thread) -> str:
        with pytest.raises(ProcessLostError) as refused:
            ranks.agree("the plan", f"commit{ranks.rank}")
        return str(refused.value)

    with ThreadPoolExecutor(2) as pool:
        assert all("commit0, commit1" in text for text in pool.map(work, ranks_of(2)))


def test_a_helper_that_would_weigh_by_another_file_than_rank_0_refuses(tmp_path: Path) -> None:
    """Two machines, each with a file of that name; then a machine without."""
    facts = {"hubmerge": "1", "torch": "2", "transformers": "4", "model_id": "a", "model_sha": "0" * 40}
    more = {"model_weights": "", "data": "d", "data_digest": "0" * 64, "pairs": 1, "max_tokens": 2, "prompt": "p"}
    metadata = SensitivityMetadata(**facts, **more, answer="a", dtype="float32", device="cpu")
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        values = np.array([1.0, number], dtype=np.float32)
        write_tensors(tmp_path / name / "f.safetensors", {"w": (2,)}, metadata.to_strings(), [("w", values)])
    agent = SimpleNamespace(sensitivity=None)
    plan: Any = SimpleNamespace(recipe=SimpleNamespace(method="fisher", agents=[agent]))
    file = read_sensitivity(tmp_path / "one" / "f.safetensors")

    def share(ranks: Ranks, folder: str) -> str:
        try:
            return str(share_sensitivities(ranks, plan, tmp_path / folder, () if ranks.rank else (file,))[0].path)
        except ProcessLostError as refused:
            return str(refused)

    def both(folder: str) -> list[str]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(share, ranks_of(2), ("one", folder)))

    assert both("one") == [str(file.path), str(file.path)]
    assert all("do not agree on the sensitivities" in text for text in both("two"))
    assert share_sensitivities(ALONE, plan, tmp_path, (file,)) == (file,)

    first, second = ranks_of(2)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(first.first, ["f.safetensors"])
        assert "not where this process looks for it" in share(second, "nowhere")
        told.result()


def test_launchers_and_mpi_tell_the_rank_and_other_commands_refuse_several() -> None:
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
