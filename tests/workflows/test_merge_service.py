"""What the form's submissions promise: the same merge is one job, and one that is gone from the Hub is made again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from huggingface_hub import HfApi

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
