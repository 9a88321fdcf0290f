"""More shards than a process may have open, and files that the machine refuses to read."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import random_base, recipe_dict, write_model, write_parents
from hub_helpers import opened

from hubmerge.errors import DiskError, HubmergeError, SourceChangedError
from hubmerge.sources import folder as files_module
from hubmerge.sources.base import Model
from hubmerge.sources.folder import ShardFiles


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return opened(write_model(tmp_path / "m", random_base(0)))


def tail(files: ShardFiles, model: Model) -> bytes:
    """The last bytes of the model's shard."""
    [shard], out = model.shards, bytearray(64)
    files.read_into(Path(model.ref.id) / shard, model, shard, model.files[shard].size - 64, memoryview(out))
    return bytes(out)


def test_a_file_that_is_read_in_parts_is_read_to_its_end_and_not_kept_open(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def preadv(file: int, buffers: list[memoryview], offset: int) -> int:
            return os.preadv(file, [buffers[0][:7]], offset)

    monkeypatch.setattr(files_module, "os", Interrupted())
    before = os.listdir("/proc/self/fd")
    assert tail(ShardFiles(), model) == (Path(model.ref.id) / model.shards[0]).read_bytes()[-64:]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_is_checked_again_when_another_one_lies_in_its_place(model: Model) -> None:
    files, path = ShardFiles(), Path(model.ref.id) / model.shards[0]
    tail(files, model)
    other = path.read_bytes().replace(b".q_proj.", b".x_proj.")
    path.unlink()
    path.write_bytes(other)
    with pytest.raises(SourceChangedError, match="changed its header"):
        tail(files, model)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (errno.EIO, DiskError),
        (errno.EMFILE, DiskError),
        (errno.ENOMEM, DiskError),
        (errno.ENOENT, SourceChangedError),
        (errno.EACCES, SourceChangedError),
        (errno.ESTALE, SourceChangedError),
    ],
)
@pytest.mark.parametrize("call", ["open", "preadv", "fstat"])
def test_a_shard_that_is_gone_is_told_from_a_machine_that_does_not_read(
    model: Model, monkeypatch: pytest.MonkeyPatch, refusal: int, kind: type[HubmergeError], call: str
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return refuse if name == call else getattr(os, name)

    if call == "open":
        monkeypatch.setattr(files_module, "open", refuse, raising=False)
    monkeypatch.setattr(files_module, "os", Refusing())
    with pytest.raises(HubmergeError) as caught:
        tail(ShardFiles(), model)
    assert type(caught.value) is kind
    assert caught.value.retryable == (kind is DiskError)
    assert os.strerror(refusal) in str(caught.value)
    assert ("ulimit -n" in str(caught.value)) == (refusal == errno.EMFILE)


def test_a_merge_of_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    folders = write_parents(tmp_path, shards=20)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(str(recipe_dict(folders[0], folders[1:])))
    code = """
import resource, sys
from hubmerge.cli.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "merge", str(recipe), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
