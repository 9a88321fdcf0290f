"""The client's login and cache: used on the command line, for the Hub that they belong to, and never written to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import random_base, recipe_dict, sparse_agent, write_model, write_parents
from huggingface_hub import HfApi, constants, snapshot_download
from processes import printed_by
from scripted_hub import ScriptedHub, error

from hubmerge.cli.main import main
from hubmerge.errors import HubmergeError
from hubmerge.hub.cache import ClientCache
from hubmerge.hub.client import Hub
from hubmerge.hub.login import hub_of_user, stored_token
from hubmerge.settings import DEFAULT_ENDPOINT, Settings

LOGIN = "hf_" + "c" * 34


# --- the login ---------------------------------------------------------------------------------------------------


@pytest.fixture
def signed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hf auth login` leaves it."""
    path = tmp_path / "token"
    path.write_text(LOGIN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("signed_in")
def test_the_clients_login_is_used_for_its_own_hub_and_sent_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_of_user(Settings(endpoint=DEFAULT_ENDPOINT)).token == LOGIN
    others = ("http://127.0.0.1:9", "http://localhost:7860", "https://mirror.example", "https://hf.co.evil.example")
    for endpoint in others:
        assert stored_token(endpoint) is None
        assert hub_of_user(Settings(endpoint=endpoint)).token is None
    own = Settings(endpoint="http://127.0.0.1:9", token="hf_stated_for_this")
    assert hub_of_user(own).token == "hf_stated_for_this", "HF_TOKEN says who somebody is anywhere"
    assert hub_of_user(own.model_copy(update={"endpoint": DEFAULT_ENDPOINT})).token == "hf_stated_for_this"
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert hub_of_user(Settings(endpoint=DEFAULT_ENDPOINT)).token is None


@pytest.mark.usefixtures("signed_in")
def test_no_request_to_an_embedded_hub_bears_the_clients_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base: org/base\nagents: [org/a, org/b]\nmethod: ram\n")
    with ScriptedHub({}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        assert main(["inspect", str(recipe)]) == 1
    assert len(server.requests) >= 3
    assert {request.headers.get("authorization") for request in server.requests} == {None}


def test_every_place_where_the_client_looks_for_a_token_counts(tmp_path: Path) -> None:
    code = (
        "from hubmerge.hub.login import hub_of_user; from hubmerge.settings import load_settings; "
        "print(hub_of_user(load_settings()).token)"
    )
    (tmp_path / "elsewhere").write_text("hf_of_a_path\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_of_the_home\n")
    for variables, token in (
        ({"HF_TOKEN": "hf_of_a_variable", "HF_HOME": str(tmp_path / "home")}, "hf_of_a_variable"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_of_the_old_one"}, "hf_of_the_old_one"),
        ({"HF_TOKEN_PATH": str(tmp_path / "elsewhere")}, "hf_of_a_path"),
        ({"HF_HOME": str(tmp_path / "home")}, "hf_of_the_home"),
        ({"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, "None"),
        ({"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"}, "None"),
        ({"HF_HOME": str(tmp_path)}, "None"),
    ):
        assert printed_by(code, **variables) == f"{token}\n", variables


@pytest.mark.parametrize("given", [{}, {"HF_OIDC_ID_TOKEN": "canary"}], ids=["no id token", "an answer in trouble"])
def test_a_job_of_a_ci_service_that_gets_no_token_is_told_so(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Trusted Publishers: the client exchanges the service's token for one of the Hub, or raises an error."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_ID_TOKEN", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HF_OIDC_RESOURCE": "org/model", **given}.items():
        monkeypatch.setenv(name, value)
    with ScriptedHub({}) as server:
        server.bend = lambda request: error(503, message="down")
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        with pytest.raises(HubmergeError, match="HF_OIDC_RESOURCE") as caught:
            hub_of_user(Settings(endpoint=DEFAULT_ENDPOINT)).whoami()
    assert caught.value.retryable == bool(given)
    assert "canary" not in str(caught.value)


# --- the cache ---------------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[Path, tuple[bytes, int, int]]:
    """Of every file: its bytes, when it was changed, and its links."""
    files = [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    return {p: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_nlink) for p in files}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "client-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def models(ada: HfApi, tmp_path: Path, name: str) -> Callable[[str], str]:
    """Names of repos of this test's own: a base and two agents in three shards."""
    for folder in write_parents(tmp_path, shards=3):
        ada.create_repo(f"{name}-{folder.name}")
        ada.upload_folder(repo_id=f"{name}-{folder.name}", folder_path=folder)
    return lambda part: f"{name}-{part}"


@pytest.fixture
def recipe(models: Callable[[str], str], tmp_path: Path) -> Path:
    path = tmp_path / "hub.yaml"
    path.write_text(json.dumps(recipe_dict(models("base"), [models("one"), models("two")])))
    return path


def fetch_all(
    ada: HfApi, models: Callable[[str], str], cache: Path, names: tuple[str, ...] = ("base", "one", "two")
) -> None:
    for name in names:
        snapshot_download(models(name), endpoint=ada.endpoint, token=ada.token, cache_dir=cache)


def merged(recipe: Path, out: str, *more: str) -> Path:
    folder = recipe.parent / out
    assert main(["merge", str(recipe), "--out", str(folder), *more]) == 0
    return folder


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "hubmerge.json").read_text()))


def fetched(folder: Path) -> int:
    return int(manifest(folder)["environment"]["fetch"]["bytes"])


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_what_the_client_has_downloaded_is_not_fetched_again_and_stays_as_it_is(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = merged(recipe, "fresh")
    assert fetched(fresh) > 0
    fetch_all(ada, models, cache)
    before = state(cache)
    capsys.readouterr()
    assert main(["inspect", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["download_bytes"] == 0
    for number, more in enumerate(([], ["--disk-budget", "0.00003"], ["--chunk-elements", "100", "--threads", "1"])):
        out = merged(recipe, f"cached{number}", *more)
        assert fetched(out) == 0
        assert not (out / ".hubmerge").exists()
        assert weights(out) == weights(fresh)
    assert main(["probe", str(recipe)]) == 0
    assert state(cache) == before


def test_a_damaged_file_of_the_cache_is_fetched_anew_and_left_as_it_is(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path
) -> None:
    fresh = merged(recipe, "fresh")
    fetch_all(ada, models, cache)
    [blob] = [p for p in cache.rglob("model-00002-of-00003.safetensors") if models("one").split("/")[1] in str(p)]
    whole = blob.resolve().read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    config = next(p for p in cache.rglob("config.json") if models("two").split("/")[1] in str(p)).resolve()
    for path, content in ((blob.resolve(), flipped), (config, b"{}")):
        path.chmod(0o644)
        path.write_bytes(content)
    before = state(cache)
    again = merged(recipe, "again")
    assert fetched(again) == len(whole)
    assert weights(again) == weights(fresh)
    assert state(cache) == before


def test_another_commit_in_the_cache_counts_for_nothing(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, tmp_path: Path
) -> None:
    fetch_all(ada, models, cache)
    moved = write_model(tmp_path / "moved", sparse_agent(random_base(0), 0.1, 9), shards=3)
    ada.upload_folder(repo_id=models("one"), folder_path=moved)
    assert fetched(merged(recipe, "out")) == sum(p.stat().st_size for p in moved.glob("*.safetensors"))


def test_offline_a_merge_needs_nothing_but_the_cache_and_is_the_same(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = manifest(merged(recipe, "online"))
    fetch_all(ada, models, cache)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    assert main(["inspect", str(recipe)]) == 0
    offline = manifest(merged(recipe, "offline"))
    for same in ("identity", "files", "license"):
        assert online[same] == offline[same]


def test_what_private_parents_hold_does_not_become_public_after_an_offline_merge(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:  # fmt: skip
    ada.update_repo_settings(models("one"), private=True)
    fetch_all(ada, models, cache)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    out = merged(recipe, "offline")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "a public merge would tell what private models or data hold" in refused("publish", out, models("merge"))
    assert main(["publish", str(out), models("merge"), "--private"]) == 0


def test_offline_what_is_not_in_the_cache_is_named_with_the_command_that_fetches_it(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str],
) -> None:  # fmt: skip
    fetch_all(ada, models, cache, ("base", "one"))
    ada.hf_hub_download(models("two"), "config.json", cache_dir=cache)
    shard = "model-00003-of-00003.safetensors"
    next(p for p in cache.rglob(shard) if models("one").split("/")[1] in str(p)).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    first, second = refused("merge", recipe, "--out", tmp_path / "out").splitlines()
    assert "E_SOURCE: HF_HUB_OFFLINE forbids the network" in first
    assert f"got it without {shard}" in first
    assert first.endswith(f"hf download {models('one')}")
    assert "got it without model.safetensors" in second
    assert not (tmp_path / "out").exists()
    assert main(["publish", str(tmp_path / "out"), "ada/x"]) == 1
    with pytest.raises(HubmergeError, match="HF_HUB_OFFLINE forbids the network") as caught:
        Hub(str(ada.endpoint), str(ada.token), cache=ClientCache()).whoami()
    assert not caught.value.problems[0].next_step.startswith("Check the connection")


@pytest.mark.parametrize(
    ("fetched", "told"),
    [
        (["config.json", "*.safetensors*"], "got it without README.md. Unset"),
        (["config.json", "*.safetensors", "*.md"], "got it without model.safetensors.index.json. Unset"),
        (["config.json", "*.safetensors*", "*.md"], "HF_HUB_OFFLINE forbids the network in tokenizer"),
    ],
    ids=["weights", "shards", "no tokenizer"],
)
def test_offline_a_model_of_which_a_part_was_fetched_is_not_taken_for_the_whole(
    ada: HfApi, models: Callable[[str], str], recipe: Path, cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], fetched: list[str], told: str,
) -> None:  # fmt: skip
    """Its license and its tokenizer would be gone from the merge."""
    fetch_all(ada, models, cache, ("one", "two"))
    snapshot_download(models("base"), endpoint=ada.endpoint, token=ada.token, cache_dir=cache, allow_patterns=fetched)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert told in refused("merge", recipe, "--out", tmp_path / "out")


def test_a_cached_card_or_index_without_measure_is_not_parsed(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--m" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    index = snapshot / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    (snapshot / "config.json").write_text("{}")
    (snapshot / "README.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "models--org--m" / "refs").mkdir()
    (tmp_path / "models--org--m" / "refs" / "main").write_text("a" * 40)
    cache = ClientCache(tmp_path)
    with pytest.raises(HubmergeError, match=r"model-1\.safetensors"):
        cache.state("org/m", None)
    os.truncate(index, 50_000_001)
    with pytest.raises(HubmergeError, match=r"it without model\.safetensors"):
        cache.state("org/m", None)
    (snapshot / "model.safetensors").touch()
    assert cache.state("org/m", None).license == "mit"
    os.truncate(snapshot / "README.md", 1_000_001)
    assert cache.state("org/m", None).license is None
