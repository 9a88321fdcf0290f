"""What a model's page reads of its files on the Hub."""

from __future__ import annotations

import json

import pytest
from huggingface_hub import HfApi

from hubmerge.errors import SourceNotFoundError
from hubmerge.hub.client import Hub
from localhub.process import LocalHubProcess
from workflows import published
from workflows.published import published_model

REPO = "ada/published"


@pytest.fixture(scope="module")
def hub(local_hub: LocalHubProcess) -> Hub:
    api = HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    api.create_repo(REPO)
    files = {"README.md": b"---\nlicense: mit\n---\n# It\n", "hubmerge.json": json.dumps({"hubmerge": "1"}).encode()}
    for path, data in files.items():
        api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=REPO)
    return Hub(local_hub.endpoint, local_hub.tokens["ada"])


def test_card_and_report_come_with_the_commit_and_the_license(hub: Hub) -> None:
    model = published_model(hub, REPO, None)
    assert (model.id, len(model.sha), model.license, model.is_open) == (REPO, 40, "mit", True)
    assert model.card.endswith("# It\n")
    assert model.report == {"hubmerge": "1"}
    first = published_model(hub, REPO, HfApi(hub.endpoint).list_repo_commits(REPO)[-1].commit_id)
    assert "# It" not in first.card
    assert first.report == {}


def test_a_file_without_measure_is_left_out(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_READ_BYTES", 20)
    model = published_model(hub, REPO, None)
    assert model.card == ""
    assert model.report == {"hubmerge": "1"}


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[1]", b"\xff", b"{", b""])
def test_a_report_that_is_none_is_empty(hub: Hub, local_hub: LocalHubProcess, text: bytes) -> None:
    api = HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    name = f"ada/published-{len(text)}-{text[:1].hex()}x"
    api.create_repo(name)
    api.upload_file(path_or_fileobj=text, path_in_repo="hubmerge.json", repo_id=name)
    assert published_model(hub, name, None).report == {}


def test_a_private_model_is_read_with_its_owner_s_token_alone(hub: Hub, local_hub: LocalHubProcess) -> None:
    HfApi(local_hub.endpoint, token=local_hub.tokens["ada"]).create_repo("ada/private-one", private=True)
    assert not published_model(hub, "ada/private-one", None).is_open
    for token in (None, local_hub.tokens["bob"]):
        with pytest.raises(SourceNotFoundError):
            published_model(Hub(local_hub.endpoint, token), "ada/private-one", None)
