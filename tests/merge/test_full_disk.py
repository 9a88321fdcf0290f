"""A disk that fills at any moment: E_DISK, nothing half-made or published, and the next run goes on.

The disk says so where it does say so: when room is taken for a shard, in the middle of its bytes after it took a part
of them, and in the middle of a download (on a disk of its own).
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from builders import recipe_dict, write_parents
from line import SHARDS, Line, Watcher, threads_left
from processes import as_ada, python
from small_disk import small_disk

from hubmerge.engine import journal, sink, uncached
from hubmerge.engine.journal import Journal
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import DiskError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.plan.disk import output_need, used_bytes
from hubmerge.recipe.recipe import recipe_from_dict


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SmallDisk:
    """Stands for `os`: `room` bytes of output fit on it, and as many shards as `shards`; it is full after `syncs`."""

    def __init__(self, room: int = 10**12, shards: int = 10**6, syncs: int = 10**6) -> None:
        self.room = room
        self.shards = shards
        self.syncs = syncs

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def posix_fallocate(self, file: int, offset: int, size: int) -> None:
        self.shards -= 1
        if self.shards < 0:
            raise full()
        os.posix_fallocate(file, offset, size)

    def fsync(self, file: int) -> None:
        self.syncs -= 1
        if self.syncs == -1:
            raise full()
        os.fsync(file)

    def write(self, file: int, view: memoryview) -> int:
        if not self.room:
            raise full()
        part = view[: self.room]
        self.room -= len(part)
        return os.write(file, part)


@pytest.mark.parametrize(
    "disk",
    [{"shards": 0}, {"shards": 2}, {"room": 0}, {"room": 100_000}, {"room": 600_000}, {"room": 1_000_000}],
    ids=str,
)
def test_a_disk_that_fills_while_shards_are_written(line, disk):
    full_disk = pytest.raises(DiskError, match="No space left")
    with patch.object(uncached, "os", SmallDisk(**disk)), full_disk as caught:
        line.to_hub()
    assert caught.value.retryable
    assert threads_left() == []
    assert not [*line.out.rglob("*.tmp")]
    assert not line.api.repo_exists(line.target) or line.commits() == 0
    line.arrives()
    assert not [*line.folder.rglob("*.safetensors")]


def test_a_budget_for_all_merges_counts_what_an_earlier_run_has_finished(tmp_path):
    folders = write_parents(tmp_path)
    recipes = [recipe_from_dict(recipe_dict(folders[0], folders[1:], method)) for method in ("ram", "linear")]
    hub, outs = Hub("http://127.0.0.1:9"), [tmp_path / "ram", tmp_path / "linear"]
    merges = list(zip(prepare_variants(recipes, hub, Request(allow_local=True)), outs, strict=True))

    def merge(count: int, budget: int) -> None:
        options, cache = StreamOptions(threads=1, backend="eager"), tmp_path / "in"
        merge_to_folders(merges[:count], hub, replace(options, cache=cache, disk_budget=budget), Watcher())

    one = output_need(merges[0][0].plan, uploaded=False)
    merge(1, one)
    there = used_bytes(outs[:1])
    with pytest.raises(DiskError, match="too small for the output"):
        merge(2, there + one - 1)
    assert not (outs[1] / "model.safetensors").exists()
    merge(2, there + one)
    assert all((out / "model.safetensors").is_file() for out in outs)


UNDER_A_LIMIT = """
import resource, sys
from hubmerge.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


# --- a disk of its own, into a folder ----------------------------------------------------------------------------


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
    return {p.name: p.read_bytes() for p in line.out.glob("*.safetensors")}


@pytest.mark.parametrize("stage", ["fetch", "merge"])
@pytest.mark.parametrize("left", [0, 200_000, 400_000])
def test_a_disk_that_fills_is_named_and_the_next_run_goes_on(line, disk, stage, left):
    line.folder = disk / "job"
    line.watcher.at["fetch"] = lambda: fill(disk, left)
    if stage == "merge":
        line.watcher.at = {"merge": lambda: fill_when_fetched(disk, line.folder / "inputs", left)}
    with pytest.raises(DiskError, match="No space left") as caught:
        line.to_folder()
    assert caught.value.retryable
    assert str(disk) in caught.value.problems[0].where, "on which disk to make room"
    assert not (line.out / "hubmerge.json").exists()
    before = whole_shards(line)
    if (stage, left) == ("merge", 400_000):
        assert before, "what was finished stays"
    (disk / "ballast").unlink()
    assert line.to_folder() == line.undisturbed
    assert before.items() <= whole_shards(line).items()


def test_a_limit_on_file_sizes_is_an_error_with_exit_code_1_and_the_command_goes_on_without_it(line):
    """Inputs come in files of some 250 kB, the output is one of 1.1 MB."""
    (line.folder / "recipe.yaml").write_text(str(line.recipe))
    command = ["run", str(line.folder / "recipe.yaml"), "--to", line.target, "--license", "mit"]
    variables = as_ada(line.process, line.folder)
    refused = python("-c", UNDER_A_LIMIT, "400000", *command, **variables)
    assert refused.returncode == 1
    assert "E_DISK" in refused.stderr
    assert "File too large" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not line.api.repo_exists(line.target)
    again = python("-m", "hubmerge", *command, **variables)
    assert again.returncode == 0, again.stderr
    assert line.commits() == 1
    published = line.published()
    assert published["tokenizer.json"] == line.undisturbed["tokenizer.json"]
    assert "model.safetensors" in published


@pytest.mark.parametrize("call", range(12))
def test_an_error_at_any_sync_leaves_what_can_be_gone_on_with(line, call):
    """Where a disk may say late that it is full: each sync of the journal and of the shards in turn."""
    disk = SmallDisk(syncs=call)
    full_disk = pytest.raises(DiskError, match="No space left")
    with patch.object(sink, "os", disk), patch.object(journal, "os", disk), full_disk:
        line.to_folder()
    assert not list(line.out.rglob("*.tmp"))
    assert line.to_folder() == line.undisturbed


def test_a_journal_that_was_begun_and_not_written_is_begun_again(line):
    """A kill between the creation of the journal and its first line, whole or torn."""
    path = line.out / ".hubmerge" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"event": "pla')
    prepared = line.prepare()
    Journal.open(line.out, prepared.plan)
    assert path.read_text().count('"plan"') == 1
    Journal.open(line.out, prepared.plan)
    assert path.read_text().count('"plan"') == 1
    assert line.to_folder() == line.undisturbed
