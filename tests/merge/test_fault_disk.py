"""A disk that fills at any moment: E_DISK, nothing half-made under a final name, and the next run completes it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from line import SHARDS, Line
from processes import as_ada
from small_disk import small_disk

from hubmerge.engine import journal, sink
from hubmerge.engine.journal import Journal
from hubmerge.errors import DiskError

REPO = Path(__file__).resolve().parents[2]
UNDER_A_LIMIT = """
import resource, sys
from hubmerge.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Enough for what the plan asks to be free."""
    with small_disk(tmp_path / "disk", megabytes=96) as folder:
        yield folder


def fill(folder: Path, leave: int) -> Path:
    """Somebody else's file, which leaves so many bytes free."""
    ballast = folder / "ballast"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    # what is fetched meanwhile may be faster
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range((free - leave) // 65536):
            file.write(bytes(65536))
    return ballast


def fill_when_fetched(folder: Path, inputs: Path, leave: int) -> None:
    """So that it is the output that the disk is too small for."""
    while len([*inputs.rglob("*.safetensors")]) < 3 * len(SHARDS):
        time.sleep(0.001)
    fill(folder, leave)


def whole_shards(line: Line) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (line.folder / "out").glob("*.safetensors")}


@pytest.mark.parametrize("stage", ["fetch", "merge"])
@pytest.mark.parametrize("left", [0, 200_000, 400_000])
def test_a_disk_that_fills_is_named_and_the_next_run_goes_on(line: Line, disk: Path, stage: str, left: int) -> None:
    line.folder = disk / "job"
    line.watcher.at["fetch"] = lambda: fill(disk, left)
    if stage == "merge":
        line.watcher.at = {"merge": lambda: fill_when_fetched(disk, line.folder / "inputs", left)}
    with pytest.raises(DiskError) as caught:
        line.to_folder()
    assert caught.value.code == "E_DISK"
    assert caught.value.retryable
    assert "No space left" in str(caught.value)
    assert str(disk) in caught.value.problems[0].where, "on which disk to make room"
    assert not (line.folder / "out" / "hubmerge.json").exists()
    before = whole_shards(line)
    if (stage, left) == ("merge", 400_000):
        assert before, "what was finished stays"
    (disk / "ballast").unlink()
    assert line.to_folder() == line.undisturbed
    assert before.items() <= whole_shards(line).items()


def test_a_limit_on_file_sizes_is_an_error_with_exit_code_1_and_the_command_goes_on_without_it(line: Line) -> None:
    """Inputs come in files of some 250 kB, the output is one of 1.1 MB."""
    (line.folder / "recipe.yaml").write_text(str(line.recipe))
    environment = {**os.environ, **as_ada(line.process, line.folder)}
    command = ["run", str(line.folder / "recipe.yaml"), "--to", line.target, "--license", "mit"]

    def run(*before: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *before, *command], env=environment, cwd=REPO, capture_output=True, text=True, check=False
        )

    refused = run("-c", UNDER_A_LIMIT, "400000")
    assert refused.returncode == 1
    assert "E_DISK" in refused.stderr
    assert "File too large" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not line.api.repo_exists(line.target)
    again = run("-m", "hubmerge")
    assert again.returncode == 0, again.stderr
    assert line.commits() == 1
    published = line.published()
    assert published["tokenizer.json"] == line.undisturbed["tokenizer.json"]
    assert "model.safetensors" in published


@pytest.mark.parametrize("call", range(12))
def test_an_error_at_any_sync_leaves_what_can_be_gone_on_with(
    line: Line, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Where a disk may say late that it is full: each sync of the journal and of the shards in turn."""
    synced = 0

    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def fsync(descriptor: int) -> None:
            nonlocal synced
            synced += 1
            if synced == call + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)

    with monkeypatch.context() as context:
        for module in (sink, journal):
            context.setattr(module, "os", FullDisk())
        with pytest.raises(DiskError, match="No space left"):
            line.to_folder()
    assert not list((line.folder / "out").rglob("*.tmp"))
    assert line.to_folder() == line.undisturbed


def test_a_journal_that_was_begun_and_not_written_is_begun_again(line: Line) -> None:
    """A kill between the creation of the journal and its first line, whole or torn."""
    path = line.folder / "out" / ".hubmerge" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event": "pla')
    prepared = line.prepare()
    Journal.open(line.folder / "out", prepared.plan)
    assert path.read_text().count('"plan"') == 1
    Journal.open(line.folder / "out", prepared.plan)
    assert path.read_text().count('"plan"') == 1
    assert line.to_folder() == line.undisturbed
