"""The client's login and cache: used on the command line, for the Hub that they belong to, and never written to."""

import json
import os
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
def test_the_clients_login_is_used_for_its_own_hub_and_sent_to_no_other(monkeypatch):
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
def test_no_request_to_an_embedded_hub_bears_the_clients_login(monkeypatch, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base: org/base\nagents: [org/a, org/b]\nmethod: ram\n")
    with ScriptedHub({}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        assert main(["inspect", str(recipe)]) == 1
    assert len(server.requests) >= 3
    assert {request.headers.get("authorization") for request in server.requests} == {None}


def test_every_place_where_the_client_looks_for_a_token_counts(tmp_path):
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
        ({"HF_HOME": str(tmp_path)}, "None"),
    ):
        assert printed_by(code, **variables) == f"{token}\n", variables


@pytest.mark.parametrize("given", [{}, {"HF_OIDC_ID_TOKEN": "canary"}], ids=["no id token", "an answer in trouble"])
def test_a_job_of_a_ci_service_that_gets_no_token_is_told_so(monkeypatch, given):
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


class Models:
    """A base and two agents in three shards each, in repos of a test's own, and the recipe of their merge."""

    def __init__(self, ada: HfApi, folder: Path, name: str) -> None:
        self.ada, self.folder, self.cache = ada, folder, folder / "client-cache"
        self.base, self.one, self.two = (f"{name}-{part}" for part in ("base", "one", "two"))
        for repo, path in zip((self.base, self.one, self.two), write_parents(folder, shards=3), strict=True):
            ada.create_repo(repo)
            ada.upload_folder(repo_id=repo, folder_path=path)
        self.recipe = folder / "hub.yaml"
        self.recipe.write_text(json.dumps(recipe_dict(self.base, [self.one, self.two])))

    def fetch(self, *repos: str, **options: Any) -> None:
        """As the client does into its cache; without names, all of them."""
        for repo in repos or (self.base, self.one, self.two):
            snapshot_download(repo, endpoint=self.ada.endpoint, token=self.ada.token, cache_dir=self.cache, **options)

    def cached(self, repo: str, file: str) -> Path:
        [path] = self.cache.glob(f"models--{repo.replace('/', '--')}/snapshots/*/{file}")
        return path

    def merged(self, out: str, *more: str) -> Path:
        assert main(["merge", str(self.recipe), "--out", str(self.folder / out), *more]) == 0
        return self.folder / out


@pytest.fixture
def models(ada: HfApi, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Models:
    made = Models(ada, tmp_path, name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(made.cache))
    return made


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "hubmerge.json").read_text()))


def fetched(folder: Path) -> int:
    return int(manifest(folder)["environment"]["fetch"]["bytes"])


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_what_the_client_has_downloaded_is_not_fetched_again_and_stays_as_it_is(models, done):
    fresh = models.merged("fresh")
    assert fetched(fresh) > 0
    models.fetch()
    before = state(models.cache)
    assert json.loads(done("inspect", models.recipe, "--json").out)["download_bytes"] == 0
    for number, more in enumerate(([], ["--disk-budget", "0.00003"], ["--chunk-elements", "100", "--threads", "1"])):
        out = models.merged(f"cached{number}", *more)
        assert fetched(out) == 0
        assert not (out / ".hubmerge").exists()
        assert weights(out) == weights(fresh)
    assert main(["probe", str(models.recipe)]) == 0
    assert state(models.cache) == before


def test_a_damaged_file_of_the_cache_is_fetched_anew_and_left_as_it_is(models):
    fresh = models.merged("fresh")
    models.fetch()
    blob = models.cached(models.one, "model-00002-of-00003.safetensors").resolve()
    whole = blob.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for path, content in ((blob, flipped), (models.cached(models.two, "config.json").resolve(), b"{}")):
        path.chmod(0o644)
        path.write_bytes(content)
    before = state(models.cache)
    again = models.merged("again")
    assert fetched(again) == len(whole)
    assert weights(again) == weights(fresh)
    assert state(models.cache) == before


def test_another_commit_in_the_cache_counts_for_nothing(models):
    models.fetch()
    moved = write_model(models.folder / "moved", sparse_agent(random_base(0), 0.1, 9), shards=3)
    models.ada.upload_folder(repo_id=models.one, folder_path=moved)
    assert fetched(models.merged("out")) == sum(p.stat().st_size for p in moved.glob("*.safetensors"))


def test_offline_a_merge_needs_nothing_but_the_cache_and_is_the_same(models, monkeypatch):
    online = manifest(models.merged("online"))
    models.fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    assert main(["inspect", str(models.recipe)]) == 0
    offline = manifest(models.merged("offline"))
    for same in ("identity", "files", "license"):
        assert online[same] == offline[same]


def test_what_private_parents_hold_does_not_become_public_after_an_offline_merge(models, monkeypatch, refused):
    models.ada.update_repo_settings(models.one, private=True)
    models.fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    out, target = models.merged("offline"), f"{models.base}-merge"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "a public merge would tell what private models or data hold" in refused("publish", out, target)
    assert main(["publish", str(out), target, "--private"]) == 0


def test_offline_what_is_not_in_the_cache_is_named_with_the_command_that_fetches_it(models, monkeypatch, refused):
    models.fetch(models.base, models.one)
    models.ada.hf_hub_download(models.two, "config.json", cache_dir=models.cache)
    shard, out = "model-00003-of-00003.safetensors", models.folder / "out"
    models.cached(models.one, shard).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    first, second = refused("merge", models.recipe, "--out", out).splitlines()
    assert "E_SOURCE: HF_HUB_OFFLINE forbids the network" in first
    assert f"got it without {shard}" in first
    assert first.endswith(f"hf download {models.one}")
    assert "got it without model.safetensors" in second
    assert not out.exists()
    assert main(["publish", str(out), "ada/x"]) == 1
    with pytest.raises(HubmergeError, match="HF_HUB_OFFLINE forbids the network") as caught:
        Hub(str(models.ada.endpoint), str(models.ada.token), cache=ClientCache()).whoami()
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
    models, monkeypatch, refused, fetched, told
):
    """Its license and its tokenizer would be gone from the merge."""
    models.fetch(models.one, models.two)
    models.fetch(models.base, allow_patterns=fetched)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert told in refused("merge", models.recipe, "--out", models.folder / "out")


def test_a_cached_card_or_index_without_measure_is_not_parsed(tmp_path):
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
