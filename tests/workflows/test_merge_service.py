"""What the form's submissions promise: the same merge is one job, and one that is gone from the Hub is made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from hubmerge.errors import RecipeError
from hubmerge.localhub.process import LocalHubProcess
from hubmerge.settings import Settings
from hubmerge.ui.service import MergeRequest, Visitor
from workflows.jobs import State
from workflows.service import MergeService
from workflows.store import Store
from workflows.tokens import TokenVault

RECIPE = {"base": "zoo/base", "agents": ["zoo/math-agent", "zoo/tool-agent"], "method": "linear"}


@pytest.fixture(scope="module")
def zoo_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("hub"), zoo=True) as hub:
        yield hub


def test_a_merge_whose_repo_was_deleted_by_hand_is_made_again_and_one_that_is_there_is_not(
    zoo_hub: LocalHubProcess, store: Store
) -> None:
    token = zoo_hub.tokens["ada"]
    service = MergeService(Settings(endpoint=zoo_hub.endpoint), store, TokenVault([b"s" * 40]))
    ada = Visitor("ada", token, ("ada",))
    request = MergeRequest(RECIPE, "ada/merged", private=False)
    first = service.submit(request, ada)
    claimed = store.claim("worker")
    assert claimed is not None
    store.finish(claimed.id, claimed.fence, {"repo": "ada/merged"})

    api = HfApi(zoo_hub.endpoint, token)
    api.create_repo("ada/merged")
    manifest = json.dumps({"identity": claimed.id}).encode()
    api.upload_file(path_or_fileobj=manifest, path_in_repo="hubmerge.json", repo_id="ada/merged")
    assert service.submit(request, ada).state == State.DONE

    api.delete_repo("ada/merged")
    again = service.submit(request, ada)
    assert (again.id, again.state) == (first.id, State.QUEUED)
    assert store.claim("worker") is not None


def test_models_without_a_license_are_inspected_and_started_once_the_form_states_one(
    zoo_hub: LocalHubProcess, store: Store
) -> None:
    api = HfApi(zoo_hub.endpoint, zoo_hub.tokens["ada"])
    agents = ["zoo/math-agent", "zoo/open-agent"]
    api.create_repo("zoo/open-agent")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        content = Path(api.hf_hub_download("zoo/tool-agent", name)).read_bytes()
        api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id="zoo/open-agent")
    service = MergeService(Settings(endpoint=zoo_hub.endpoint), store, TokenVault([b"s" * 40]))
    ada = Visitor("ada", zoo_hub.tokens["ada"], ("ada",))
    recipe = {**RECIPE, "agents": agents}
    for license in (None, "", "apache-2.0", "other"):  # as the form does, before and after something was chosen
        assert service.inspect(recipe, ada, license).agents[1].license is None
    with pytest.raises(RecipeError, match="do not allow"):
        service.inspect(recipe, ada, "mit")
    with pytest.raises(RecipeError, match="must be chosen"):
        service.submit(MergeRequest(recipe, "ada/of-open", private=False), ada)
    job = service.submit(MergeRequest(recipe, "ada/of-open", private=False, license="apache-2.0"), ada)
    assert job.state == State.QUEUED
