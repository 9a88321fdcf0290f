"""How shards on this machine are read: more than may be open, some that cannot be read, and the next part ahead."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import llama_shapes, random_base, recipe_dict, write_model, write_parents
from plan_helpers import opened

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
):
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset, *_: preadv(file, [buffers[0][:7]], offset))
    before = os.listdir("/proc/self/fd")
    assert tail(ShardFiles(), model) == (Path(model.ref.id) / model.shards[0]).read_bytes()[-64:]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_is_checked_again_when_another_one_lies_in_its_place(model: Model):
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
        *((number, DiskError) for number in (errno.EIO, errno.EMFILE, errno.ENOMEM)),
        *((number, SourceChangedError) for number in (errno.ENOENT, errno.EACCES, errno.ESTALE)),
    ],
)
@pytest.mark.parametrize("call", ["open", "preadv", "fstat"])
def test_a_shard_that_is_gone_is_told_from_a_machine_that_does_not_read(
    model: Model, monkeypatch: pytest.MonkeyPatch, refusal: int, kind: type[HubmergeError], call: str
):
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    with monkeypatch.context() as context:
        context.setattr(files_module if call == "open" else os, call, refuse, raising=False)
        with pytest.raises(HubmergeError) as caught:
            tail(ShardFiles(), model)
    assert type(caught.value) is kind
    assert caught.value.retryable == (kind is DiskError)
    assert os.strerror(refusal) in str(caught.value)
    assert ("ulimit -n" in str(caught.value)) == (refusal == errno.EMFILE)


@pytest.mark.slow
def test_a_merge_of_more_shards_than_files_may_be_open(tmp_path: Path):
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


# --- what follows in a file is asked for while what was read is computed on, where it is not there yet -------------

COUNT = 300_000  # bytes of a chunk: two requests and a part


class Kernel:
    """Stands for `os`: says of the page cache what it is told, and notes what is asked for."""

    def __init__(self, error: int) -> None:
        self._error = error
        self.read: list[tuple[int, int]] = []
        self.probed: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def preadv(self, file: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        if not flags:
            self.read.append((offset, len(buffers[0])))
            return os.preadv(file, buffers, offset)
        assert flags == os.RWF_NOWAIT
        self.probed.append(offset)
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        return 1

    def posix_fadvise(self, file: int, offset: int, count: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.asked.append((offset, count))


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, offset: int, count: int) -> None:
    """Read a part of a model's shard, rightly."""
    sizes = llama_shapes(layers=6, hidden=96, intermediate=256)
    model = opened(write_model(folder, random_base(0, sizes=sizes)))
    path = folder / model.shards[0]
    monkeypatch.setattr(files_module, "os", kernel)
    out = bytearray(count)
    ShardFiles().read_into(path, model, model.shards[0], offset, memoryview(out))
    assert bytes(out) == path.read_bytes()[offset : offset + count]


def test_the_next_chunk_is_asked_for_in_parts_that_no_system_cuts_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = Kernel(errno.EAGAIN)
    read(tmp_path, monkeypatch, kernel, 1000, COUNT)
    begin = 1000 + COUNT
    assert kernel.probed == [begin + COUNT - 1]
    assert kernel.asked == [(begin, 131_072), (begin + 131_072, 131_072), (begin + 262_144, COUNT - 262_144)]


@pytest.mark.parametrize(
    ("error", "count", "asks"),
    [(0, COUNT, 1), (errno.EOPNOTSUPP, COUNT, 1), (errno.EINVAL, COUNT, 1), (errno.EAGAIN, 192, 0)],
    ids=["it is there", "no such question", "not of this file", "a small tensor"],
)
def test_what_is_there_small_or_cannot_be_known_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, count: int, asks: int
):
    kernel = Kernel(error)
    read(tmp_path, monkeypatch, kernel, 0, count)
    assert (len(kernel.probed), kernel.asked) == (asks, [])


def test_a_system_that_cannot_be_asked_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = Kernel(errno.EAGAIN)
    monkeypatch.setattr(files_module, "_NO_WAIT", 0)
    read(tmp_path, monkeypatch, kernel, 0, COUNT)
    assert (kernel.probed, kernel.asked) == ([], [])
    assert kernel.read == [(0, COUNT)], "the question would be a reading"
