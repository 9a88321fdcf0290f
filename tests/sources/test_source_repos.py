"""Models on the embedded Hub are pinned to commits and read like folders; what cannot be had is named."""

import hashlib
from pathlib import Path

import pytest
from builders import random_base, read_model, sparse_agent, write_model
from huggingface_hub import HfApi
from plan_helpers import plan_of
from scripted_hub import ScriptedHub, error
from source_helpers import bytes_of, lora, on_hub, pair, write_adapter

from hubmerge.errors import (
    FormatError,
    GatedError,
    HubmergeError,
    HubUnavailableError,
    IncompatibleError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.open import open_model, open_models
from hubmerge.sources.reader import LocalOrFetched
from localhub.process import LocalHubProcess


@pytest.fixture
def repo(ada: HfApi, request: pytest.FixtureRequest, folder: Path) -> str:
    """A public model of ada, named after the test."""
    name = "ada/src-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    ada.create_repo(name)
    ada.upload_folder(repo_id=name, folder_path=folder)
    return name


@pytest.fixture
def bob(local_hub: LocalHubProcess, pauses: list[float]) -> Hub:
    """Somebody else than ada."""
    return Hub(local_hub.endpoint, local_hub.tokens["bob"], patience=Patience(sleep=pauses.append))


def test_a_repo_is_pinned_and_read_like_the_folder_it_came_from(bob, ada, repo, folder, tmp_path):
    model = on_hub(bob, repo)
    head = ada.model_info(repo).sha
    assert (model.ref.kind, model.ref.id, model.ref.sha, model.ref.requested) == ("hub", repo, head, "main")
    assert (
        model.files["model.safetensors"].sha256
        == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    )
    told: list[int] = []
    store = LocalOrFetched(bob, tmp_path / "cache", lambda name, count: told.append(count))
    for name, t in read_model(folder).items():
        assert bytes_of(model, name, store) == t.raw.tobytes()
    size = model.files["model.safetensors"].size
    assert sum(told[:2]) == size, "the first call fetches"
    assert set(told[2:]) == {size}, "later calls find it there"
    assert store.path(model, "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_tags_branches_and_commits_are_pinned_to_their_sha(bob, ada, repo):
    first = ada.model_info(repo).sha
    ada.create_tag(repo, tag="v1")
    ada.create_branch(repo, branch="exp/x")
    ada.upload_file(repo_id=repo, path_or_fileobj=b"more", path_in_repo="notes.txt")
    head = ada.model_info(repo).sha
    assert head != first
    shas = {name: on_hub(bob, f"{repo}{name}").ref.sha for name in ("", "@main", "@v1", "@exp/x", f"@{first}")}
    assert shas == {"": head, "@main": head, "@v1": first, "@exp/x": first, f"@{first}": first}


def test_a_gated_repo_says_how_to_get_in(bob, local_hub, ada, repo):
    ada.update_repo_settings(repo, gated="manual")
    with pytest.raises(GatedError, match="Ask for access"):
        on_hub(bob, repo)
    assert on_hub(Hub(local_hub.endpoint, local_hub.tokens["ada"]), repo).gated


def test_only_safetensors_is_opened_and_nothing_of_a_pickle_is_fetched(folder, pauses):
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".safetensors"}
    with ScriptedHub({**files, "pytorch_model.bin": b"\x80\x02}q\0."}) as server:
        with pytest.raises(FormatError, match=r"pytorch_model\.bin") as caught:
            on_hub(Hub(server.endpoint, patience=Patience(sleep=pauses.append)), "org/model@step/9")
        fetch = "hf download org/model --revision step/9 --local-dir org-model-step-9"
        assert f"name ./org-model-step-9: {fetch} && python -c" in str(caught.value), "two revisions share no folder"
        assert [path.rpartition("/")[2] for path in server.paths("resolve")] == ["config.json"]  # names the class


def test_an_adapter_that_names_its_base_as_before_it_was_renamed_or_a_copy_is_one_of_it(bob, ada, repo, tmp_path):
    """As Llama 3.1 was: the Hub leads from the old name to the new one, and answers with the new one alone. Adapters
    that were trained on unsloth's copies in 4 bits name these, whose cards name the model."""
    ada.move_repo(repo, now := f"{repo}-now")
    ada.create_repo(copy := f"{repo}-bnb-4bit")
    ada.upload_file(repo_id=copy, path_in_repo="README.md", path_or_fileobj=f"---\nbase_model: {repo}\n---\n".encode())
    agents = []
    for k, stated in enumerate((repo, copy, "ada/src-nowhere")):
        factors = pair("model.layers.0.self_attn.q_proj", *lora((16, 16), seed=k))
        agents.append(str(write_adapter(tmp_path / str(k), factors, base_model_name_or_path=stated)))
    plan = plan_of(repo, *agents[:2], hub=bob)
    assert [w.partition(": ")[2] for w in plan.warnings] == [
        f"its adapter_config.json names {stated}; it is applied to {now}" for stated in (repo, copy)
    ]
    with pytest.raises(IncompatibleError, match="an adapter of another model"):
        plan_of(now, *agents[1:], hub=bob)


def test_a_repo_made_anew_in_mid_job_is_noticed(bob, ada, repo, folder, tmp_path):
    model = on_hub(bob, repo)
    ada.delete_repo(repo)
    ada.create_repo(repo)
    ada.upload_folder(repo_id=repo, folder_path=write_model(tmp_path / "other", random_base(9)))
    with pytest.raises(SourceChangedError, match="no longer there"):
        LocalOrFetched(bob, tmp_path / "cache").path(model, "model.safetensors")
    with pytest.raises(SourceChangedError):
        bob.read_file(repo, model.ref.sha, "config.json")
    with pytest.raises(SourceChangedError):
        on_hub(bob, f"{repo}@{model.ref.sha}")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_repo_that_moved_on_is_still_read_at_its_pin(bob, ada, repo, folder, tmp_path):
    model = on_hub(bob, repo)
    ada.upload_folder(repo_id=repo, folder_path=write_model(tmp_path / "next", sparse_agent(random_base(0), 0.5, 1)))
    path = LocalOrFetched(bob, tmp_path / "cache").path(model, "model.safetensors")
    assert path.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_all_problems_of_several_models_are_raised_together(bob, ada, repo, folder, tmp_path):
    ada.update_repo_settings(repo, gated="manual")
    broken = write_model(tmp_path / "broken", random_base(0))
    (broken / "model.safetensors").write_bytes(b"{}")
    recipe = recipe_from_dict(
        {"base": str(folder), "agents": [repo, "ada/nothing-here", str(broken), "./no/folder"], "method": "ram"}
    )
    with pytest.raises(HubmergeError) as caught:
        open_models(recipe, bob, allow_local=True)
    assert [p.code for p in caught.value.problems] == ["E_GATED", "E_SOURCE", "E_HEADER", "E_SOURCE"]
    assert not caught.value.retryable
    for place in (repo, "ada/nothing-here", str(broken), "./no/folder"):
        assert place in str(caught.value)


def test_a_problem_that_no_retry_mends_decides_over_one_that_passes(server, hub, folder):
    server.bend = lambda request: error(503) if "api" in request.path else None
    content = {"base": "org/model", "agents": [str(folder), "./gone"], "method": "ram"}
    with pytest.raises(SourceNotFoundError) as caught:
        open_models(recipe_from_dict(content), hub, allow_local=True)
    assert [p.code for p in caught.value.problems] == ["E_HUB", "E_SOURCE"]
    with pytest.raises(HubUnavailableError) as passing:
        open_models(recipe_from_dict({**content, "agents": [str(folder)]}), hub, allow_local=True)
    assert passing.value.retryable


def test_a_folder_named_like_a_missing_repo_is_hinted_at(server, hub, tmp_path, monkeypatch):
    (tmp_path / "org" / "gone").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    server.bend = lambda request: error(404, "RepoNotFound")
    with pytest.raises(SourceNotFoundError, match=r"write \./org/gone"):
        open_model(ModelName.parse("org/gone"), hub, allow_local=True)
