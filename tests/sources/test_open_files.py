"""How shards on this machine are read: more than may be open, some that cannot be read, and the next part ahead."""

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


def test_a_file_that_is_read_in_parts_is_read_to_its_end_and_not_kept_open(model, monkeypatch):
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset, *_: preadv(file, [buffers[0][:7]], offset))
    before = os.listdir("/proc/self/fd")
    assert tail(ShardFiles(), model) == (Path(model.ref.id) / model.shards[0]).read_bytes()[-64:]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_is_checked_again_when_another_one_lies_in_its_place(model):
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
def test_a_shard_that_is_gone_is_told_from_a_machine_that_does_not_read(model, monkeypatch, refusal, kind, call):
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
def test_a_merge_of_more_shards_than_files_may_be_open(tmp_path):
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


@pytest.mark.parametrize(
    ("error", "count", "probes", "asked"),
    [
        # in parts that no system cuts off
        (errno.EAGAIN, COUNT, [2 * COUNT - 1], [131_072, 131_072, COUNT - 262_144]),
        (0, COUNT, [2 * COUNT - 1], []),
        (errno.EOPNOTSUPP, COUNT, [2 * COUNT - 1], []),
        (errno.EINVAL, COUNT, [2 * COUNT - 1], []),
        (errno.EAGAIN, 192, [], []),
        (None, COUNT, [], []),
    ],
    ids=["it is not there", "it is there", "no such question", "not of this file", "a small tensor", "no such flag"],
)
def test_the_next_chunk_is_asked_for_where_it_is_large_and_not_there(
    tmp_path, monkeypatch, error, count, probes, asked
):
    probed: list[int] = []
    hinted: list[tuple[int, int]] = []
    preadv = os.preadv

    def answered(file: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        if not flags:
            return preadv(file, buffers, offset)
        probed.append(offset)
        if error:
            raise OSError(error, os.strerror(error))
        return 1

    monkeypatch.setattr(os, "preadv", answered)
    monkeypatch.setattr(os, "posix_fadvise", lambda file, offset, size, advice: hinted.append((offset, size)))
    if error is None:
        monkeypatch.setattr(files_module, "_NO_WAIT", 0)
    model = opened(write_model(tmp_path, random_base(0, sizes=llama_shapes(layers=6, hidden=96, intermediate=256))))
    path, out = tmp_path / model.shards[0], bytearray(count)
    ShardFiles().read_into(path, model, model.shards[0], 0, memoryview(out))
    assert bytes(out) == path.read_bytes()[:count]
    assert probed == probes
    assert hinted == [(COUNT + sum(asked[:k]), size) for k, size in enumerate(asked)]
