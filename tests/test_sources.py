"""Models are opened from headers alone, pinned, and never trusted: folders, the embedded Hub, and servers that lie."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from builders import T, llama_config, random_base, read_model, sparse_agent, tensor, write_index, write_model
from huggingface_hub import HfApi
from huggingface_hub.utils import _http
from scripted_hub import Answer, Request, ScriptedHub, error

from hubmerge.errors import (
    CorruptError,
    DiskError,
    FormatError,
    GatedError,
    HeaderError,
    HubmergeError,
    HubUnavailableError,
    IndexFileError,
    LoginError,
    PermissionDeniedError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.hub import Hub
from hubmerge.hub_errors import Patience, TransientHubError
from hubmerge.localhub.process import LocalHubProcess
from hubmerge.recipe import ModelName, recipe_from_dict
from hubmerge.sources.base import FileInfo, Model
from hubmerge.sources.open import open_model, open_models
from hubmerge.sources.reader import LocalOrFetched, TensorReader

NOWHERE = Hub("http://127.0.0.1:9")


class Clock:
    """Stands for time.sleep and remembers the pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", random_base(0))


@pytest.fixture
def server(folder: Path) -> Iterator[ScriptedHub]:
    with ScriptedHub({p.name: p.read_bytes() for p in folder.iterdir()}) as running:
        yield running


@pytest.fixture
def hub(server: ScriptedHub, clock: Clock) -> Hub:
    return Hub(server.endpoint, "hf_canary_token", patience=Patience(sleep=clock))


def opened(path: Path) -> Model:
    return open_model(ModelName.parse(str(path)), NOWHERE, allow_local=True)


def on_hub(hub: Hub, name: str) -> Model:
    return open_model(ModelName.parse(name), hub, allow_local=False)


def bytes_of(model: Model, name: str, store: LocalOrFetched) -> bytes:
    with TensorReader([model], store) as reader:
        stored = model.tensors[name]
        return reader.raw(0, stored, 0, stored.entry.elements).tobytes()


# --- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_is_read_bit_for_bit(tmp_path: Path, shards: int):
    tensors: dict[str, T] = {**random_base(0), "ids": tensor([3, 1, 2], "I64"), "one": tensor(2.5, "F16")}
    model = opened(write_model(tmp_path / "m", tensors, shards=shards))
    assert model.ref.kind == "local"
    assert len(model.shards) == shards
    assert set(model.tensors) == set(tensors)
    store = LocalOrFetched(NOWHERE, tmp_path / "cache")
    for name, t in tensors.items():
        entry = model.tensors[name].entry
        assert (entry.dtype, entry.shape) == (t.dtype, t.shape)
        assert bytes_of(model, name, store) == t.raw.tobytes()


def test_a_folder_is_pinned_by_what_it_holds(tmp_path: Path):
    base = random_base(0)
    first, same = write_model(tmp_path / "a", base), write_model(tmp_path / "b", base)
    times = os.stat(first / "model.safetensors")
    os.utime(same / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    pin = opened(first).ref.sha
    assert len(pin) == 40
    assert opened(same).ref.sha == pin == opened(first).ref.sha
    os.utime(same / "model.safetensors", ns=(1, 1))
    assert opened(same).ref.sha != pin
    (first / "config.json").write_text(json.dumps(llama_config(base, rope_theta=1.0)))
    assert opened(first).ref.sha != pin


def test_a_license_is_read_from_a_local_card_and_a_broken_card_says_nothing(tmp_path: Path):
    cards = {
        b"---\nlicense: apache-2.0\ntags: [x]\n---\n# Hi": "apache-2.0",
        b"---\r\nlicense: mit\r\n---\r\n": "mit",
        b"---\nlicense: [mit]\n---\n": None,
        b"---\nlicense: &a mit\nother: *a\n---\n": None,
        b"---\n[" + b"[" * 5000 + b"\n---\n": None,
        b"# no front matter": None,
        b"\xff\xfe---": None,
    }
    for number, (content, license_name) in enumerate(cards.items()):
        path = write_model(tmp_path / str(number), random_base(0), files={"README.md": content})
        assert opened(path).license == license_name


@pytest.mark.parametrize("change", ["longer", "empty", "gone"])
def test_a_folder_that_changed_under_the_reader_is_noticed(tmp_path: Path, folder: Path, change: str):
    model = opened(folder)
    path = folder / "model.safetensors"
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"x" if change == "longer" else b"")
    with pytest.raises(SourceChangedError, match=r"model\.safetensors of"):
        bytes_of(model, "model.norm.weight", LocalOrFetched(NOWHERE, tmp_path))


def test_a_single_file_goes_before_an_index_as_in_transformers(tmp_path: Path):
    path = write_model(tmp_path / "m", random_base(0), shards=2)
    write_model(path, random_base(1))
    assert opened(path).shards == ("model.safetensors",)


def test_folders_are_refused_where_they_are_not_allowed(folder: Path):
    with pytest.raises(SourceNotFoundError, match="cannot be used here"):
        open_model(ModelName.parse(str(folder)), NOWHERE, allow_local=False)


def test_a_folder_that_is_missing_is_named():
    with pytest.raises(SourceNotFoundError, match="no such folder"):
        opened(Path("/nowhere/at/all"))


# --- files that are not what they should be ----------------------------------------------------------------------


def refuse_folder(kind: type[HubmergeError], path: Path) -> str:
    with pytest.raises(kind) as caught:
        opened(path)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", HeaderError),
        (b"\x10\0\0\0\0\0\0\0{}", HeaderError),
        (struct.pack("<Q", 2**63) + b"{}" * 100, HeaderError),
        (struct.pack("<Q", 25_000_001) + b"{}" * 100, HeaderError),
        (b"PK\x03\x04" + b"\0" * 100, HeaderError),
        (b"\x80\x02}q\x00." + b"\0" * 100, HeaderError),
        (struct.pack("<Q", 16) + b'{"a":' + b"[" * 11 + b"\0" * 64, HeaderError),
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(folder: Path, content: bytes, kind: type[HubmergeError]):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors in" in refuse_folder(kind, folder)


def test_a_truncated_file_is_refused(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "cover the file" in refuse_folder(HeaderError, folder)


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"a":"' + b"x" * 5_000_000 + b'"}',
    ],
)
def test_a_config_that_is_no_small_json_object_is_refused(folder: Path, config: bytes):
    (folder / "config.json").write_bytes(config)
    refuse_folder(FormatError, folder)


def test_a_model_without_a_config_is_refused(folder: Path):
    (folder / "config.json").unlink()
    assert "no config.json" in refuse_folder(FormatError, folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "https://example.org/x.safetensors",
        "sub/model-00001-of-00002.safetensors",
        "model-00003-of-00002.safetensors",
        "config.json",
        "model.bin",
        "a\0.safetensors",
        ".hidden.safetensors",
        "\u202emodel.safetensors",
        "",
        None,
        1,
        ["model-00001-of-00002.safetensors"],
        {},
    ],
)
def test_an_index_may_only_name_shards_that_are_there(tmp_path: Path, shard: Any):
    base = random_base(0)
    path = write_model(tmp_path / "m", base, shards=2)
    write_index(path, {**dict.fromkeys(base, "model-00001-of-00002.safetensors"), "model.norm.weight": shard})
    assert "the index names a file that is not a shard" in refuse_folder(IndexFileError, path)


def test_a_hostile_index_sends_no_request(tmp_path: Path, clock: Clock):
    base = random_base(0)
    path = write_model(tmp_path / "m", base, shards=2)
    for shard in ("../../etc/passwd", "http://127.0.0.1/x.safetensors", "gone.safetensors"):
        write_index(path, {**dict.fromkeys(base, "model-00001-of-00002.safetensors"), "model.norm.weight": shard})
        with ScriptedHub({p.name: p.read_bytes() for p in path.iterdir()}) as server:
            with pytest.raises(IndexFileError):
                on_hub(Hub(server.endpoint, patience=Patience(sleep=clock)), "org/model")
            assert server.paths("resolve") == [f"/org/model/resolve/{'a' * 40}/model.safetensors.index.json"]


def test_an_index_that_names_a_tensor_its_shard_lacks_is_refused(tmp_path: Path):
    base = random_base(0)
    names = list(base)
    path = write_model(tmp_path / "m", base, shards=2)
    right = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    for changed in ({names[0]: "model-00002-of-00002.safetensors"}, {"ghost": "model-00001-of-00002.safetensors"}):
        write_index(path, {**right, **changed})
        assert "does not hold" in refuse_folder(IndexFileError, path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    base = random_base(0)
    path = write_model(tmp_path / "m", base, shards=2)
    (path / "model-00002-of-00002.safetensors").write_bytes((path / "model-00001-of-00002.safetensors").read_bytes())
    assert "two shards" in refuse_folder(IndexFileError, path)


@pytest.mark.parametrize("index", [b"{}", b'{"weight_map":{}}', b'{"weight_map":[]}', b'{"weight_map":null}'])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, index: bytes):
    path = write_model(tmp_path / "m", random_base(0), shards=2, files={"model.safetensors.index.json": index})
    refuse_folder(IndexFileError, path)


def test_an_index_of_a_million_lists_is_not_even_parsed(tmp_path: Path):
    bomb = b'{"weight_map":[' + b"[]," * 2_000_000 + b"[]]}"
    path = write_model(tmp_path / "m", random_base(0), shards=2, files={"model.safetensors.index.json": bomb})
    assert "holds too much" in refuse_folder(FormatError, path)


def test_what_the_index_leaves_out_is_no_part_of_the_model(tmp_path: Path):
    base = random_base(0)
    path = write_model(tmp_path / "m", base, shards=2)
    weight_map = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    del weight_map["model.norm.weight"]
    write_index(path, weight_map)
    assert set(opened(path).tensors) == set(base) - {"model.norm.weight"}


# --- the embedded Hub --------------------------------------------------------------------------------------------


@pytest.fixture
def ada(local_hub: LocalHubProcess) -> HfApi:
    return HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])


@pytest.fixture
def repo(ada: HfApi, request: pytest.FixtureRequest, folder: Path) -> str:
    """A public model of ada, named after the test."""
    name = "ada/src-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    ada.create_repo(name)
    ada.upload_folder(repo_id=name, folder_path=folder)
    return name


def bob(local_hub: LocalHubProcess, clock: Clock | None = None) -> Hub:
    return Hub(local_hub.endpoint, local_hub.tokens["bob"], patience=Patience(sleep=clock or Clock()))


def test_a_repo_is_pinned_and_read_like_the_folder_it_came_from(
    local_hub: LocalHubProcess, ada: HfApi, repo: str, folder: Path, tmp_path: Path
):
    hub = bob(local_hub)
    model = on_hub(hub, repo)
    head = ada.model_info(repo).sha
    assert (model.ref.kind, model.ref.id, model.ref.sha, model.ref.requested) == ("hub", repo, head, "main")
    assert (
        model.files["model.safetensors"].sha256
        == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    )
    told: list[int] = []
    store = LocalOrFetched(hub, tmp_path / "cache", lambda name, count: told.append(count))
    for name, t in read_model(folder).items():
        assert bytes_of(model, name, store) == t.raw.tobytes()
    size = model.files["model.safetensors"].size
    assert sum(told[:2]) == size, "the first call fetches"
    assert set(told[2:]) == {size}, "later calls find it there"
    assert store.path(model, "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_tags_branches_and_commits_are_pinned_to_their_sha(local_hub: LocalHubProcess, ada: HfApi, repo: str):
    first = ada.model_info(repo).sha
    ada.create_tag(repo, tag="v1")
    ada.create_branch(repo, branch="exp/x")
    ada.upload_file(repo_id=repo, path_or_fileobj=b"more", path_in_repo="notes.txt")
    head = ada.model_info(repo).sha
    assert head != first
    hub = bob(local_hub)
    shas = {name: on_hub(hub, f"{repo}{name}").ref.sha for name in ("", "@main", "@v1", "@exp/x", f"@{first}")}
    assert shas == {"": head, "@main": head, "@v1": first, "@exp/x": first, f"@{first}": first}


@pytest.mark.parametrize(
    ("name", "words"),
    [("ada/nothing-here", "no such repo"), ("nobody/nothing", "no such repo"), ("{repo}@gone", "no such revision")],
)
def test_what_is_not_there_is_named(local_hub: LocalHubProcess, repo: str, name: str, words: str):
    with pytest.raises(SourceNotFoundError, match=words) as caught:
        on_hub(bob(local_hub), name.format(repo=repo))
    assert name.format(repo=repo) in str(caught.value)


def test_a_private_repo_of_someone_else_is_as_good_as_missing(local_hub: LocalHubProcess, ada: HfApi, repo: str):
    ada.update_repo_settings(repo, private=True)
    for hub in (bob(local_hub), Hub(local_hub.endpoint)):
        with pytest.raises(SourceNotFoundError, match="or one that you may not read"):
            on_hub(hub, repo)
    assert on_hub(Hub(local_hub.endpoint, local_hub.tokens["ada"]), repo).private


def test_a_gated_repo_says_how_to_get_in(local_hub: LocalHubProcess, ada: HfApi, repo: str):
    ada.update_repo_settings(repo, gated="manual")
    with pytest.raises(GatedError, match="Ask for access"):
        on_hub(bob(local_hub), repo)
    assert on_hub(Hub(local_hub.endpoint, local_hub.tokens["ada"]), repo).gated


def test_a_token_that_is_not_valid_is_told_from_a_missing_repo(local_hub: LocalHubProcess, repo: str):
    with pytest.raises(LoginError):
        on_hub(Hub(local_hub.endpoint, "hf_wrong_token"), repo)


def test_only_safetensors_is_opened_and_nothing_of_a_pickle_is_fetched(folder: Path, clock: Clock):
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".safetensors"}
    with ScriptedHub({**files, "pytorch_model.bin": b"\x80\x02}q\0."}) as server:
        with pytest.raises(FormatError, match=r"pytorch_model\.bin"):
            on_hub(Hub(server.endpoint, patience=Patience(sleep=clock)), "org/model")
        assert server.paths("resolve") == []


def test_a_repo_made_anew_in_mid_job_is_noticed(
    local_hub: LocalHubProcess, ada: HfApi, repo: str, folder: Path, tmp_path: Path
):
    hub = bob(local_hub)
    model = on_hub(hub, repo)
    ada.delete_repo(repo)
    ada.create_repo(repo)
    ada.upload_folder(repo_id=repo, folder_path=write_model(tmp_path / "other", random_base(9)))
    with pytest.raises(SourceChangedError, match="no longer there"):
        LocalOrFetched(hub, tmp_path / "cache").path(model, "model.safetensors")
    with pytest.raises(SourceChangedError):
        hub.read_file(repo, model.ref.sha, "config.json")
    with pytest.raises(SourceChangedError):
        on_hub(hub, f"{repo}@{model.ref.sha}")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_repo_that_moved_on_is_still_read_at_its_pin(
    local_hub: LocalHubProcess, ada: HfApi, repo: str, folder: Path, tmp_path: Path
):
    hub = bob(local_hub)
    model = on_hub(hub, repo)
    ada.upload_folder(repo_id=repo, folder_path=write_model(tmp_path / "next", sparse_agent(random_base(0), 0.5, 1)))
    path = LocalOrFetched(hub, tmp_path / "cache").path(model, "model.safetensors")
    assert path.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_all_problems_of_several_models_are_raised_together(
    local_hub: LocalHubProcess, ada: HfApi, repo: str, folder: Path, tmp_path: Path
):
    ada.update_repo_settings(repo, gated="manual")
    broken = write_model(tmp_path / "broken", random_base(0))
    (broken / "model.safetensors").write_bytes(b"{}")
    recipe = recipe_from_dict(
        {"base": str(folder), "agents": [repo, "ada/nothing-here", str(broken), "./no/folder"], "method": "ram"}
    )
    with pytest.raises(HubmergeError) as caught:
        open_models(recipe, bob(local_hub), allow_local=True)
    assert [p.code for p in caught.value.problems] == ["E_GATED", "E_SOURCE", "E_HEADER", "E_SOURCE"]
    assert not caught.value.retryable
    for place in (repo, "ada/nothing-here", str(broken), "./no/folder"):
        assert place in str(caught.value)


def test_a_problem_that_no_retry_mends_decides_over_one_that_passes(server: ScriptedHub, hub: Hub, folder: Path):
    server.bend = lambda request: error(503) if "api" in request.path else None
    content = {"base": "org/model", "agents": [str(folder), "./gone"], "method": "ram"}
    with pytest.raises(SourceNotFoundError) as caught:
        open_models(recipe_from_dict(content), hub, allow_local=True)
    assert [p.code for p in caught.value.problems] == ["E_HUB", "E_SOURCE"]
    with pytest.raises(HubUnavailableError) as passing:
        open_models(recipe_from_dict({**content, "agents": [str(folder)]}), hub, allow_local=True)
    assert passing.value.retryable


def test_a_folder_named_like_a_missing_repo_is_hinted_at(
    server: ScriptedHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "org" / "gone").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    server.bend = lambda request: error(404, "RepoNotFound")
    with pytest.raises(SourceNotFoundError, match=r"write \./org/gone"):
        open_model(ModelName.parse("org/gone"), hub, allow_local=True)


# --- servers that lie or break -----------------------------------------------------------------------------------


def weights(server: ScriptedHub) -> FileInfo:
    content = server.files["model.safetensors"]
    return FileInfo("model.safetensors", len(content), hashlib.sha256(content).hexdigest())


def fetch(hub: Hub, server: ScriptedHub, folder: Path, file: FileInfo | None = None) -> Path:
    return hub.download(server.repo, server.sha, file or weights(server), folder, lambda count: None)


def test_a_whole_file_in_place_of_a_range_is_not_read(server: ScriptedHub, hub: Hub, clock: Clock):
    server.bend = lambda request: Answer(200, server.files["model.safetensors"]) if "resolve" in request.path else None
    with pytest.raises(HubUnavailableError, match="did not answer the byte range"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)
    assert clock.pauses == [], "a server that does not know ranges will not learn it in a second"


@pytest.mark.parametrize("stated", ["", "bytes 0-8/13512", "bytes 1-8/13512", "bytes 0-7", "bytes 00-7/13512", "x"])
def test_another_range_than_the_one_asked_for_is_refused(server: ScriptedHub, hub: Hub, stated: str):
    server.bend = lambda request: Answer(206, b"12345678", {"Content-Range": stated})
    with pytest.raises(HubUnavailableError, match="did not answer the byte range"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)


def test_a_range_under_the_status_of_a_whole_file_is_refused(server: ScriptedHub, hub: Hub):
    server.bend = lambda request: Answer(200, b"12345678", {"Content-Range": "bytes 0-7/13512"})
    with pytest.raises(HubUnavailableError, match="did not answer the byte range"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)


@pytest.mark.parametrize("chunked", [False, True])
def test_more_bytes_than_asked_for_are_not_taken(server: ScriptedHub, hub: Hub, chunked: bool):
    headers = {"Content-Range": "bytes 0-7/13512"}
    server.bend = lambda request: Answer(206, b"x" * 5_000_000, headers, chunked=chunked)
    with pytest.raises(FormatError, match="more than was asked for"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)
    server.bend = lambda request: Answer(200, b"x" * 5_000_000, chunked=chunked)
    with pytest.raises(FormatError, match="more than was asked for"):
        hub.read_file(server.repo, server.sha, "config.json", 1000)


def test_compressed_answers_are_refused(server: ScriptedHub, hub: Hub):
    server.bend = lambda request: Answer(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
    with pytest.raises(HubUnavailableError, match="compresses"):
        hub.read_file(server.repo, server.sha, "config.json")
    assert server.requests[-1].headers["accept-encoding"] == "identity"


def test_too_few_bytes_are_asked_for_again(server: ScriptedHub, hub: Hub, clock: Clock):
    answers = [Answer(206, b"1234", {"Content-Range": "bytes 0-7/13512"}), Answer(503), None]
    server.bend = lambda request: answers.pop(0)
    expected = server.files["model.safetensors"][:8]
    assert hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8) == expected
    assert len(clock.pauses) == 2


def test_an_empty_range_asks_nobody(server: ScriptedHub, hub: Hub):
    assert hub.read_range(server.repo, server.sha, "model.safetensors", 8, 8) == b""
    assert server.requests == []


def test_a_download_that_breaks_off_goes_on_at_the_byte(server: ScriptedHub, hub: Hub, tmp_path: Path, clock: Clock):
    content = server.files["model.safetensors"]
    cuts = [1000, 5, 7000]

    def bend(request: Request) -> Answer | None:
        if not cuts or request.range is None:
            return None
        return Answer(**{**vars(server.honest(request)), "sent": cuts.pop(0)})

    server.bend = bend
    assert fetch(hub, server, tmp_path).read_bytes() == content
    starts = [r.range[0] for r in server.requests if r.range]
    assert starts == [0, 1000, 1005, 8005]
    assert len(clock.pauses) == 3
    assert not list(tmp_path.rglob("*.partial"))


def test_a_download_that_a_killed_process_began_is_completed(server: ScriptedHub, hub: Hub, tmp_path: Path):
    content = server.files["model.safetensors"]
    partial = tmp_path / server.sha / "model.safetensors.partial"
    partial.parent.mkdir()
    partial.write_bytes(content[:4321])
    told: list[int] = []
    path = hub.download(server.repo, server.sha, weights(server), tmp_path, told.append)
    assert path.read_bytes() == content
    assert [r.range for r in server.requests] == [(4321, len(content) - 1)]
    assert sum(told) == len(content)


def test_a_partial_file_that_is_too_long_is_begun_anew(server: ScriptedHub, hub: Hub, tmp_path: Path):
    content = server.files["model.safetensors"]
    partial = tmp_path / server.sha / "model.safetensors.partial"
    partial.parent.mkdir()
    partial.write_bytes(content + b"x")
    assert fetch(hub, server, tmp_path).read_bytes() == content


@pytest.mark.parametrize("where", ["served", "left by another"])
def test_corrupt_bytes_leave_no_file_under_the_final_name(server: ScriptedHub, hub: Hub, tmp_path: Path, where: str):
    file = weights(server)
    content = bytearray(server.files["model.safetensors"])
    content[-1] ^= 1
    if where == "served":
        server.files["model.safetensors"] = bytes(content)
    else:
        partial = tmp_path / server.sha / "model.safetensors.partial"
        partial.parent.mkdir()
        partial.write_bytes(bytes(content))
    with pytest.raises(CorruptError) as caught:
        fetch(hub, server, tmp_path, file)
    assert caught.value.code == "E_CORRUPT"
    assert not any(p.is_file() for p in (tmp_path / server.sha).rglob("*")), "neither the file nor a partial one"
    if where != "served":
        assert fetch(hub, server, tmp_path, file).read_bytes() == server.files["model.safetensors"]


def test_a_download_does_not_wait_for_a_server_that_sends_a_byte_at_a_time(
    server: ScriptedHub, hub: Hub, tmp_path: Path
):
    server.bend = lambda request: Answer(**{**vars(server.honest(request)), "sent": 1})
    with pytest.raises(TransientHubError):
        fetch(hub, server, tmp_path)
    assert len(server.requests) == 5


def test_a_full_disk_is_told_from_a_broken_network(
    server: ScriptedHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        fetch(hub, server, tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("path", ["../x.safetensors", "/etc/passwd", "a/../../b", "a\\b", "a\0b", ""])
def test_a_file_name_cannot_lead_out_of_the_cache(server: ScriptedHub, hub: Hub, tmp_path: Path, path: str):
    with pytest.raises(FormatError, match="leads elsewhere"):
        fetch(hub, server, tmp_path, FileInfo(path, 4, None))
    assert server.requests == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_passes_is_repeated_with_growing_random_pauses(server: ScriptedHub, hub: Hub, clock: Clock, status: int):
    server.bend = lambda request: error(status)
    with pytest.raises(TransientHubError, match=str(status)):
        hub.repo_state("org/model")
    assert len(server.requests) == 5
    limits = [0.5, 1.0, 2.0, 4.0]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(clock.pauses, limits, strict=True))
    assert not any(pause in limits for pause in clock.pauses), "drawn at random"


@pytest.mark.parametrize("status", [400, 405, 409, 422])
def test_what_does_not_pass_is_not_repeated(server: ScriptedHub, hub: Hub, status: int):
    server.bend = lambda request: error(status)
    with pytest.raises(HubUnavailableError):
        hub.repo_state("org/model")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "0"}, 0.0),
        ({"RateLimit": '"api";r=0;t=42', "RateLimit_Policy": '"fixed window";"api";q=500;w=300'}, 42.0),
        ({"Retry_After": "3", "RateLimit": '"api";r=0;t=42'}, 3.0),
    ],
)
def test_the_pause_that_a_server_asks_for_is_kept(
    server: ScriptedHub, hub: Hub, clock: Clock, headers: dict[str, str], seconds: float
):
    answers: list[Answer | None] = [error(429, **headers), None]
    server.bend = lambda request: answers.pop(0)
    hub.read_file(server.repo, server.sha, "config.json")
    (pause,) = clock.pauses
    assert seconds <= pause <= seconds + 1


def test_a_pause_too_long_for_a_request_is_left_to_the_job(server: ScriptedHub, hub: Hub, clock: Clock):
    server.bend = lambda request: error(429, RateLimit='"api";r=0;t=290')
    with pytest.raises(TransientHubError) as caught:
        hub.repo_state("org/model")
    assert caught.value.retryable
    assert caught.value.after_s == 290
    assert clock.pauses == []


@pytest.mark.parametrize("asked", ["soon", "-5", "Wed, 99 Foo 2015", "9" * 400, "1e3"])
def test_a_pause_that_makes_no_sense_is_ignored(server: ScriptedHub, hub: Hub, clock: Clock, asked: str):
    answers: list[Answer | None] = [error(503, Retry_After=asked), None]
    server.bend = lambda request: answers.pop(0)
    hub.repo_state("org/model")
    assert clock.pauses[0] <= 0.5


def test_a_pause_may_be_given_as_a_date(server: ScriptedHub, hub: Hub, clock: Clock):
    answers: list[Answer | None] = [error(503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), None]
    server.bend = lambda request: answers.pop(0)
    hub.repo_state("org/model")
    assert 0 <= clock.pauses[0] <= 1, "a date that is over asks for no pause"


def test_a_hub_that_is_not_there_is_worth_a_retry(clock: Clock):
    with pytest.raises(TransientHubError, match="cannot be reached") as caught:
        Hub("http://127.0.0.1:9", patience=Patience(sleep=clock)).repo_state("org/model")
    assert caught.value.retryable
    assert len(clock.pauses) == 4


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"id":"org/model","sha":"abc","siblings":[]}',
        b'{"id":"../x","sha":"' + b"a" * 40 + b'"}',
    ],
)
def test_an_answer_without_sense_is_no_crash(server: ScriptedHub, hub: Hub, body: bytes):
    server.bend = lambda request: Answer(200, body, {"Content-Type": "application/json"})
    with pytest.raises(HubUnavailableError):
        hub.repo_state("org/model")


def test_a_pinned_commit_is_not_swapped_for_another(server: ScriptedHub, hub: Hub):
    with pytest.raises(HubUnavailableError, match="another commit"):
        hub.repo_state("org/model", "b" * 40)


def test_an_error_page_without_end_is_not_read_to_its_end(server: ScriptedHub, hub: Hub):
    server.bend = lambda request: (
        error(404, "EntryNotFound", "x" * 60_000)
        if "api" in request.path
        else Answer(404, b"x" * 50_000_000, {"X-Error-Code": "EntryNotFound"})
    )
    with pytest.raises(SourceChangedError) as caught:
        hub.read_file(server.repo, server.sha, "config.json")
    assert len(str(caught.value)) < 1000
    assert server.hung_up.wait(timeout=30)


# --- redirects, and who sees the token ---------------------------------------------------------------------------


def test_a_redirect_on_the_same_hub_is_followed_with_the_token(server: ScriptedHub, hub: Hub):
    def bend(request: Request) -> Answer | None:
        if "/resolve/" in request.path and "moved" not in request.path:
            return Answer(307, headers={"Location": "/moved" + request.path})
        if request.path.startswith("/moved"):
            return server.honest(Request("GET", request.path.removeprefix("/moved"), request.headers))
        return None

    server.bend = bend
    assert hub.read_file(server.repo, server.sha, "config.json") == server.files["config.json"]
    assert [r.headers.get("authorization") for r in server.requests] == ["Bearer hf_canary_token"] * 2


def test_the_token_is_not_sent_to_another_origin(server: ScriptedHub, hub: Hub):
    with ScriptedHub(server.files) as storage:
        server.bend = lambda request: Answer(302, headers={"Location": storage.endpoint + request.path})
        expected = server.files["model.safetensors"][:8]
        assert hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8) == expected
        (request,) = storage.requests
        assert request.range == (0, 7)
        assert not {"authorization", "cookie"} & set(request.headers)
        assert "hf_canary_token" not in str(request)


def test_redirects_in_a_circle_come_to_an_end(server: ScriptedHub, hub: Hub):
    server.bend = lambda request: Answer(302, headers={"Location": request.path})
    with pytest.raises(HubUnavailableError, match="too many redirects"):
        hub.read_file(server.repo, server.sha, "config.json")
    assert len(server.requests) == 5


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/", "https://example.org/x", "file:///etc/passwd"])
def test_a_local_hub_leads_to_no_other_machine(server: ScriptedHub, hub: Hub, location: str):
    server.bend = lambda request: Answer(302, headers={"Location": location})
    with pytest.raises(HubUnavailableError, match="another machine"):
        hub.read_file(server.repo, server.sha, "config.json")


class Web:
    """The whole Internet as a function; nothing leaves this process."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.answer: Callable[[httpx2.Request], httpx2.Response] = lambda request: httpx2.Response(404)
        self.addresses: dict[str, list[str]] = {}

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self.answer(request)

    def resolve(self, host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in self.addresses[host]]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    web = Web()
    Hub("https://hub.example").connect()  # its own client factory is set once, by the first Hub that connects
    before = _http._GLOBAL_CLIENT_FACTORY
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(web.handle)))
    monkeypatch.setattr("hubmerge.hub_bytes.socket.getaddrinfo", web.resolve)
    yield web
    huggingface_hub.set_client_factory(before)


def lead_to(web: Web, location: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "hub.example" and request.url.scheme == "https":
            return httpx2.Response(302, headers={"Location": location})
        return httpx2.Response(200, stream=httpx2.ByteStream(b"content"))

    web.answer = answer


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("metadata.example", ["169.254.169.254"]),
        ("inside.example", ["10.0.0.7"]),
        ("inside.example", ["192.168.1.1"]),
        ("inside.example", ["172.16.0.1"]),
        ("inside.example", ["100.64.0.1"]),
        ("inside.example", ["127.0.0.1"]),
        ("inside.example", ["0.0.0.0"]),
        ("inside.example", ["::1"]),
        ("inside.example", ["fe80::1%eth0"]),
        ("inside.example", ["fd00::1"]),
        ("inside.example", ["::ffff:169.254.169.254"]),
        ("inside.example", ["64:ff9b::a9fe:a9fe"]),
        ("inside.example", ["224.0.0.1"]),
        ("mixed.example", ["8.8.8.8", "10.0.0.7"]),
    ],
)
def test_a_public_hub_does_not_lead_into_a_private_network(web: Web, host: str, addresses: list[str]):
    web.addresses = {host: addresses}
    lead_to(web, f"https://{host}/secret")
    with pytest.raises(HubUnavailableError, match="private network"):
        Hub("https://hub.example", "hf_canary_token").read_file("org/model", "a" * 40, "config.json")
    assert [r.url.host for r in web.requests] == ["hub.example"]


@pytest.mark.parametrize(
    "location", ["http://cdn.example/x", "http://hub.example/x", "ftp://cdn.example/x", "file:///x"]
)
def test_a_public_hub_leads_to_https_only(web: Web, location: str):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, location)
    with pytest.raises(HubUnavailableError, match="not https"):
        Hub("https://hub.example", "hf_canary_token").read_file("org/model", "a" * 40, "config.json")
    assert len(web.requests) == 1


def test_public_storage_is_read_without_the_token(web: Web):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, "https://cdn.example/x?X-Amz-Signature=abc")
    hub = Hub("https://hub.example", "hf_canary_token")
    assert hub.read_file("org/model", "a" * 40, "config.json") == b"content"
    first, second = web.requests
    assert first.headers["authorization"] == "Bearer hf_canary_token"
    assert "authorization" not in second.headers


@pytest.mark.parametrize("body", [b"", b"no"])
@pytest.mark.parametrize("status", [403, 404, 418, 503])
def test_neither_token_nor_signature_reaches_a_message(web: Web, clock: Clock, status: int, body: bytes):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, "https://cdn.example/x?X-Amz-Signature=canary_signature")
    redirect = web.answer

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "hub.example":
            return redirect(request)
        return httpx2.Response(status, stream=httpx2.ByteStream(body))

    web.answer = answer
    hub = Hub("https://hub.example", "hf_canary_token", patience=Patience(sleep=clock))
    with pytest.raises((HubUnavailableError, PermissionDeniedError)) as caught:
        hub.read_file("org/model", "a" * 40, "config.json")
    shown = str(caught.value) + repr(caught.value) + repr(hub) + json.dumps(caught.value.as_dict())
    assert "canary" not in shown
    assert caught.value.__cause__ is None
