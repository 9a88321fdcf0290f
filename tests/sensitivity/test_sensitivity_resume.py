"""Kills, cancels and resumes: the same bytes, no pair twice, nothing under the final name before it is complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sensitivity_helpers import PAIRS, compute

from hubmerge.errors import CancelledError, DiskError, NonFiniteError, SensitivityError, TargetExistsError
from hubmerge.sensitivity.compute import SquareSums


@pytest.fixture
def cancelled(folder, tmp_path) -> Path:
    """Where the file will be of a computation that was cancelled after two pairs."""
    with pytest.raises(CancelledError):
        compute(folder, tmp_path / "s.safetensors", progress=cancel_at(2))
    return tmp_path / "s.safetensors"


def cancel_at(pairs: int):
    def progress(stage, done, total, unit):
        if stage == "sensitivity" and done == pairs:
            raise CancelledError("the user cancelled")

    return progress


def begun_at(seen: list[int]):
    return lambda stage, done, total, unit: seen.append(done) if stage == "sensitivity" else None


@pytest.mark.parametrize("cancelled_at", [0, 1, 3, 5])
def test_a_cancelled_computation_goes_on_where_it_was(made, folder, tmp_path, cancelled_at):
    out = tmp_path / "s.safetensors"
    with pytest.raises(CancelledError):
        compute(folder, out, progress=cancel_at(cancelled_at))
    assert not out.exists()
    seen: list[int] = []
    compute(folder, out, progress=begun_at(seen))
    assert seen == list(range(cancelled_at, 6))
    assert out.read_bytes() == made.path.read_bytes()
    assert not out.with_name("s.safetensors.work").exists()


_CHILD = """
import os, signal, sys, torch
sys.path[:0] = [sys.argv[3]]
from pathlib import Path
from sensitivity_helpers import compute
from hubmerge.sensitivity.compute import SquareSums
torch.set_num_threads(1)
add, left = SquareSums.add, [55]
def killed(sums, name, gradient):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    add(sums, name, gradient)
SquareSums.add = killed
compute(Path(sys.argv[1]), Path(sys.argv[2]), checkpoint_every=2)
"""


def test_a_kill_in_the_middle_of_a_pair_costs_what_came_after_the_checkpoint(made, folder, tmp_path):
    out = tmp_path / "s.safetensors"
    here = Path(__file__).parent
    child = subprocess.run(  # 21 parameters per pair, so that the 55th gradient is of the third
        [sys.executable, "-c", _CHILD, str(folder), str(out), str(here)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here.parents[1])])},
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert not out.exists()
    seen: list[int] = []
    compute(folder, out, checkpoint_every=1, progress=begun_at(seen))
    assert seen[0] == 2
    assert out.read_bytes() == made.path.read_bytes()


def test_an_unfinished_computation_on_other_pairs_is_not_taken_up(folder, cancelled):
    with pytest.raises(TargetExistsError, match="unfinished"):
        compute(folder, cancelled, pairs=PAIRS[::-1])
    compute(folder, cancelled)


def test_a_file_of_another_computation_is_never_overwritten(folder, tmp_path):
    out = compute(folder, tmp_path / "s.safetensors").path
    before = out.read_bytes()
    for resume in (True, False):
        with pytest.raises(TargetExistsError, match="data_digest"):
            compute(folder, out, pairs=PAIRS[1:], resume=resume)
    (tmp_path / "text").write_text("something else entirely")
    with pytest.raises(TargetExistsError, match="another file is here"):
        compute(folder, tmp_path / "text", resume=False)
    assert out.read_bytes() == before
    assert (tmp_path / "text").read_text() == "something else entirely"


@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_somebody_else_where_it_would_work_is_left_alone(folder, tmp_path, resume):
    out = tmp_path / "s.safetensors"
    theirs = out.with_name("s.safetensors.work") / "thesis"
    theirs.mkdir(parents=True)
    (theirs / "chapter.tex").write_text("years of work")
    with pytest.raises(TargetExistsError, match=r"files of somebody else.*got thesis"):
        compute(folder, out, resume=resume)
    assert (theirs / "chapter.tex").read_text() == "years of work"


def test_two_processes_do_not_write_one_file(folder, tmp_path):
    work = tmp_path / "s.safetensors.work"
    work.mkdir()
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TargetExistsError, match="another process"):
            compute(folder, tmp_path / "s.safetensors")
    compute(folder, tmp_path / "s.safetensors")


def test_a_damaged_checkpoint_is_named(folder, cancelled):
    checkpoint = cancelled.with_name("s.safetensors.work") / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-4])
    with pytest.raises(SensitivityError, match="damaged"):
        compute(folder, cancelled)


def test_a_disk_that_is_too_small_is_told_before_the_first_pair(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    seen: list[int] = []
    with pytest.raises(DiskError, match="not enough disk"):
        compute(folder, tmp_path / "s.safetensors", progress=begun_at(seen))
    assert not seen


def test_a_square_that_overflows_names_its_tensor(folder, tmp_path, monkeypatch):
    real = SquareSums.add

    def add(self, name, gradient):
        real(self, name, gradient * 1e30 if name == "model.norm.weight" else gradient)

    monkeypatch.setattr(SquareSums, "add", add)
    with pytest.raises(NonFiniteError, match=r"model\.norm\.weight"):
        compute(folder, tmp_path / "s.safetensors")
    assert not (tmp_path / "s.safetensors").exists()
