"""Models in folders are opened from headers alone, pinned by what they hold, and never trusted."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import T, llama_config, random_base, tensor, write_index, write_model
from plan_helpers import NOWHERE, opened
from scripted_hub import ScriptedHub
from source_helpers import bytes_of, on_hub, refuse_folder

from hubmerge.errors import (
    FormatError,
    HeaderError,
    HubmergeError,
    IndexFileError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.folder import UnchangedFolders, folder_digest, list_folder
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched

INDEX = "model.safetensors.index.json"
FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
BASE = random_base(0)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", BASE, shards=2)


def test_a_folder_is_read_bit_for_bit(tmp_path):
    tensors: dict[str, T] = {**BASE, "ids": tensor([3, 1, 2], "I64"), "one": tensor(2.5, "F16")}
    model = opened(write_model(tmp_path / "m", tensors, shards=3))
    assert (model.ref.kind, len(model.shards)) == ("local", 3)
    assert set(model.tensors) == set(tensors)
    store = LocalOrFetched(NOWHERE, tmp_path / "cache")
    for name, t in tensors.items():
        entry = model.tensors[name].entry
        assert (entry.dtype, entry.shape) == (t.dtype, t.shape)
        assert bytes_of(model, name, store) == t.raw.tobytes()


def test_a_folder_is_pinned_by_what_it_holds(tmp_path):
    first, same = write_model(tmp_path / "a", BASE), write_model(tmp_path / "b", BASE)
    times = os.stat(first / "model.safetensors")
    os.utime(same / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    pin = opened(first).ref.sha
    assert len(pin) == 40
    assert opened(same).ref.sha == pin == opened(first).ref.sha
    os.utime(same / "model.safetensors", ns=(1, 1))
    assert opened(same).ref.sha != pin
    (first / "config.json").write_text(json.dumps(llama_config(BASE, rope_theta=1.0)))
    assert opened(first).ref.sha != pin


def test_folders_of_equal_sizes_and_times_have_pins_of_their_own(tmp_path):
    """As all files of an unpacked archive have one time."""
    folders = [write_model(tmp_path / str(seed), random_base(seed), shards=2) for seed in (0, 1)]
    shards = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    for path in shards:
        os.utime(path, ns=(1, 1))
    assert [path.stat().st_size for path in shards[:2]] == [path.stat().st_size for path in shards[2:]]
    first, other = opened(folders[0]), opened(folders[1])
    assert first.headers == other.headers
    assert first.ref.sha != other.ref.sha
    for path in shards[:2]:  # changed in place, with the old time
        path.write_bytes((folders[1] / path.name).read_bytes())
        os.utime(path, ns=(1, 1))
    assert opened(folders[0]).ref.sha == other.ref.sha


@pytest.mark.parametrize(("shards", "most"), [(1, 65), (100, 100)])
def test_a_pin_reads_few_blocks_of_a_large_model_and_any_of_them_tells(tmp_path, monkeypatch, shards, most):
    read: list[int] = []
    pread = os.pread

    def counted(file: int, count: int, offset: int) -> bytes:
        read.append(offset)
        return pread(file, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    (tmp_path / "config.json").touch()
    names = [f"{number}.safetensors" for number in range(shards)]
    for name in names:
        (tmp_path / name).write_bytes(struct.pack("<Q", 2) + b"{}")
        os.truncate(tmp_path / name, 10 + 2**36 // shards)  # of holes
        os.utime(tmp_path / name, ns=(1, 1))
    pin = folder_digest(tmp_path, "config.json", names)
    assert shards <= len(read) <= most
    last = read[-1]
    with (tmp_path / names[-1]).open("r+b") as file:
        file.seek(last + 4095)
        file.write(b"x")
    os.utime(tmp_path / names[-1], ns=(1, 1))
    assert folder_digest(tmp_path, "config.json", names) != pin


def test_a_license_is_read_from_a_local_card_and_a_broken_card_says_nothing(tmp_path):
    cards = {
        b"---\nlicense: apache-2.0\ntags: [x]\n---\n# Hi": "apache-2.0",
        b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n": "mit",
        b"\n---\nlicense: mit\n---\n": "mit",  # as Qwen2.5-VL's begins
        b"---\nlicense: [mit, cc-by-nc-4.0]\n---\n": "mit and cc-by-nc-4.0",
        b"---\nlicense: &a mit\nother: *a\n---\n": None,
        b"---\n[" + b"[" * 5000 + b"\n---\n": None,
        b"\xff\xfe---": None,
        b"---\nlicense: mit\nx: %s\n---\n" % (b"a" * 70_000): None,  # of which the first 64 KiB are read
    }
    for number, (content, license_name) in enumerate(cards.items()):
        path = write_model(tmp_path / str(number), BASE, files={"README.md": content})
        assert opened(path).license == license_name


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "longer": lambda content: content + b"x",
    "empty": lambda content: b"",
    "another header of the same size": lambda content: content.replace(b".q_proj.", b".x_proj."),
}


@pytest.mark.parametrize("change", [*CHANGES.values(), None], ids=[*CHANGES, "gone"])
def test_a_folder_that_changed_under_the_reader_is_noticed(tmp_path, folder, change):
    model = opened(folder)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))
    with pytest.raises(SourceChangedError, match=r"model\.safetensors of"):
        bytes_of(model, "model.norm.weight", LocalOrFetched(NOWHERE, tmp_path))
    with pytest.raises(SourceChangedError, match="a folder was changed while it was merged"):
        UnchangedFolders([model])


def test_a_single_file_goes_before_an_index_as_in_transformers(sharded):
    assert opened(write_model(sharded, random_base(1))).shards == ("model.safetensors",)


def test_folders_are_refused_where_they_are_not_allowed(folder):
    with pytest.raises(SourceNotFoundError, match=r"cannot be used here.*without a folder in the repo"):
        open_model(ModelName.parse(str(folder)), NOWHERE, allow_local=False)


NO_SAFETENSORS = (
    b"",
    b"\x10\0\0\0\0\0\0\0{}",
    struct.pack("<Q", 2**63) + b"{}" * 100,
    struct.pack("<Q", 25_000_001) + b"{}" * 100,
    b"PK\x03\x04" + b"\0" * 100,
    b"\x80\x02}q\x00." + b"\0" * 100,
    struct.pack("<Q", 16) + b'{"a":' + b"[" * 11 + b"\0" * 64,
)
NO_SMALL_OBJECT = (
    *(b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b'{"a":' + b"9" * 101 + b"}"),
    b'{"a":[' + b"[]," * 1_000_000 + b"[]]}",
    b'{"a":"' + b"x" * 5_000_000 + b'"}',
)
NO_WEIGHT_MAP = (b"{}", b'{"weight_map":{}}', b'{"weight_map":[]}', b'{"weight_map":null}')
BOMB = b'{"weight_map":[' + b"[]," * 2_000_000 + b"[]]}"  # it is not even parsed
BROKEN: list[tuple[str, bytes, type[HubmergeError], str]] = [
    *(("model.safetensors", content, HeaderError, "model.safetensors in") for content in NO_SAFETENSORS),
    *(("config.json", content, FormatError, "config.json") for content in NO_SMALL_OBJECT),
    *((INDEX, content, IndexFileError, "no weight_map") for content in NO_WEIGHT_MAP),
    (INDEX, BOMB, FormatError, "holds too much"),
]


@pytest.mark.parametrize(("name", "content", "kind", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_refused(sharded, name, content, kind, words):
    (sharded / name).write_bytes(content)
    assert words in refuse_folder(kind, sharded)


def test_an_index_may_only_name_shards_that_are_there(sharded):
    (sharded / ".hidden.safetensors").touch()
    odd: list[Any] = ["/etc/passwd", "..", "model.bin", "\u202emodel.safetensors", 1, {}]
    odd += ["../../etc/passwd", "https://example.org/x.safetensors", f"sub/{FIRST}", ".hidden.safetensors"]
    for shard in (*odd, "model-00003-of-00002.safetensors", "config.json", "a\0.safetensors", "", None, [FIRST]):
        write_index(sharded, {**dict.fromkeys(BASE, FIRST), "model.norm.weight": shard})
        told = refuse_folder(IndexFileError, sharded)
        assert "the index names a file that is not a shard" in told
        assert told.endswith("Fetch the whole model, with all of its shards.")


def test_a_hostile_index_sends_no_request(sharded, pauses):
    for shard in ("../../etc/passwd", "http://127.0.0.1/x.safetensors", "gone.safetensors"):
        write_index(sharded, {**dict.fromkeys(BASE, FIRST), "model.norm.weight": shard})
        with ScriptedHub({p.name: p.read_bytes() for p in sharded.iterdir()}) as server:
            with pytest.raises(IndexFileError):
                on_hub(Hub(server.endpoint, patience=Patience(sleep=pauses.append)), "org/model")
            assert server.paths("resolve") == [f"/org/model/resolve/{'a' * 40}/model.safetensors.index.json"]


def test_an_index_that_names_a_tensor_its_shard_lacks_is_refused(sharded):
    right = json.loads((sharded / INDEX).read_text())["weight_map"]
    for changed in ({next(iter(BASE)): SECOND}, {"ghost": FIRST}):
        write_index(sharded, {**right, **changed})
        assert "does not hold" in refuse_folder(IndexFileError, sharded)


def test_a_tensor_in_two_shards_is_refused_and_safetensors_that_transformers_would_not_load_are_named(sharded):
    (sharded / SECOND).write_bytes((sharded / FIRST).read_bytes())
    assert "two shards" in refuse_folder(IndexFileError, sharded)
    (sharded / INDEX).unlink()
    assert f"got {FIRST}, {SECOND}. Fetch the whole model, its index too" in refuse_folder(FormatError, sharded)


def test_what_the_index_leaves_out_of_a_shard_is_part_of_the_model_as_in_transformers(sharded):
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    del weight_map["model.norm.weight"]
    write_index(sharded, weight_map)
    assert set(opened(sharded).tensors) == set(BASE)


def test_an_index_too_large_or_of_too_many_shards_is_refused(sharded):
    names = [f"model-{n:05}.safetensors" for n in range(2001)]
    for name in names:
        (sharded / name).touch()
    write_index(sharded, {f"t{n}": name for n, name in enumerate(names)})
    assert "too many shards" in refuse_folder(IndexFileError, sharded)
    os.truncate(sharded / INDEX, 50_000_001)
    assert "the index is too large" in refuse_folder(IndexFileError, sharded)


def test_a_model_of_too_many_tensors_is_refused(sharded, monkeypatch):
    monkeypatch.setattr("hubmerge.sources.open.MAX_TENSORS", len(BASE) - 1)
    assert f"the model has too many tensors in {sharded}" in refuse_folder(HeaderError, sharded)


def test_folders_four_deep_are_no_part_of_a_model(tmp_path):
    for name in ("a/b/c/seen", "a/b/c/d/unseen"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(list_folder(tmp_path)[0]) == ["a/b/c/seen"]


def test_a_repo_of_more_files_than_the_hub_advises_is_refused(server, hub, monkeypatch):
    monkeypatch.setattr("hubmerge.hub.client.MAX_FILES", len(server.files))
    assert len(hub.repo_state(server.repo).files) == len(server.files)
    monkeypatch.setattr("hubmerge.hub.client.MAX_FILES", len(server.files) - 1)
    with pytest.raises(FormatError, match="too many files in a repo"):
        hub.repo_state(server.repo)
