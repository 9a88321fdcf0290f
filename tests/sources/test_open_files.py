"""More shards than a process may have open, and files that the machine refuses to read."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from builders import random_base, recipe_dict, write_model, write_parents
from hub_helpers import opened

from hubmerge.errors import DiskError, HubmergeError, SourceChangedError
from hubmerge.sources import files as files_module
from hubmerge.sources.base import Model
from hubmerge.sources.files import OpenFiles

SHARDS = 6


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return opened(write_model(tmp_path / "m", random_base(0), shards=SHARDS))


def tail(files: OpenFiles, model: Model, shard: str) -> bytes:
    out = bytearray(64)
    path = Path(model.ref.id) / shard
    files.read_into(path, model, shard, model.files[shard].size - 64, memoryview(out))
    return bytes(out)


def stored(model: Model, shard: str) -> bytes:
    return (Path(model.ref.id) / shard).read_bytes()[-64:]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_more_files_stay_open_than_are_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "KEPT_FILES", 2)
    before = descriptors()
    files = OpenFiles()
    for shard in [*model.shards, *reversed(model.shards)]:
        assert tail(files, model, shard) == stored(model, shard)
        assert descriptors() <= before + 2
    files.close()
    assert descriptors() == before


def test_those_that_were_read_last_stay_open(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "KEPT_FILES", 2)
    files = OpenFiles()
    first, second, third = model.shards[:3]
    for shard in (first, second, first, third):
        tail(files, model, shard)
    (Path(model.ref.id) / first).unlink()
    (Path(model.ref.id) / second).unlink()
    tail(files, model, first)
    with pytest.raises(SourceChangedError, match="No such file"):
        tail(files, model, second)
    files.close()


def test_where_no_more_can_be_opened_others_are_given_up(model: Model) -> None:
    files = OpenFiles()
    held, more = model.shards[:2], model.shards[2]
    for shard in held:
        tail(files, model, shard)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    least_free = os.dup(0)
    os.close(least_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least_free, limits[1]))
    try:
        got = tail(files, model, more)
        files.close()
        kept = [os.dup(0) for _ in held]  # somebody else's now
        with pytest.raises(DiskError, match=r"Too many open files\. Raise the limit on open files \(ulimit -n\)"):
            tail(files, model, more)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for descriptor in kept:
        os.close(descriptor)
    assert got == stored(model, more)


def test_a_file_that_is_given_up_while_it_is_read_is_read_to_its_end(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number must not go to another file meanwhile."""
    files = OpenFiles()
    shard = model.shards[0]

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def preadv(file: int, buffers: list[memoryview], offset: int) -> int:
            files.forget(Path(model.ref.id) / shard)
            with open("/dev/zero", "rb"):
                return os.preadv(file, [buffers[0][:7]], offset)

    monkeypatch.setattr(files_module, "os", Interrupted())
    assert tail(files, model, shard) == stored(model, shard)


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
    def refuse(*arguments: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return refuse if name == call else getattr(os, name)

    monkeypatch.setattr(files_module, "os", Refusing())
    with pytest.raises(HubmergeError) as caught:
        tail(OpenFiles(), model, model.shards[0])
    assert type(caught.value) is kind
    assert caught.value.retryable == (kind is DiskError)
    assert os.strerror(refusal) in str(caught.value)


def test_a_merge_of_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    folders = write_parents(tmp_path, shards=20)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(str(recipe_dict(folders[0], folders[1:])))

    def merge(kept: int, out: str) -> bytes:
        code = f"""
import resource, sys
from hubmerge.sources import files as files_module
from hubmerge.cli.main import main
files_module.KEPT_FILES = {kept}
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.exit(main(sys.argv[1:]))
"""
        command = [sys.executable, "-c", code, "merge", str(recipe), "--out", str(tmp_path / out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        return (tmp_path / out / "model.safetensors").read_bytes()

    assert merge(4, "few") == merge(16, "some")
