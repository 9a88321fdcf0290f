"""A Hub whose disk is full says so, keeps what it has, and goes on when there is room."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from processes import until
from raw_requests import ask, commit_files, status_of
from small_disk import small_disk

from localhub.process import LocalHubProcess

MB = 1024 * 1024


def test_what_does_not_fit_is_refused_with_the_reason_and_taken_when_there_is_room(tmp_path, capfd):
    with small_disk(tmp_path / "disk", megabytes=8) as disk, LocalHubProcess(disk / "hub") as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["ada"])
        api.create_repo("ada/full")
        with pytest.raises(RuntimeError) as failed:
            api.preupload_lfs_files("ada/full", [CommitOperationAdd("large.safetensors", os.urandom(12 * MB))])
        refused = failed.value.__cause__
        assert isinstance(refused, HfHubHTTPError)
        assert (refused.response.status_code, "The disk of this Hub is full" in str(refused)) == (507, True)
        assert not [*(disk / "hub" / "tmp").iterdir()]

        head = api.model_info("ada/full").sha
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            file.write(bytes(9 * MB))  # as much of it as there is room for
        files = {f"{n}.txt": os.urandom(20_000) for n in range(20)}
        assert status_of(commit_files, api, "ada/full", files) == 507
        assert api.model_info("ada/full").sha == head
        assert "Traceback" not in capfd.readouterr().err

        ballast.unlink()
        assert commit_files(api, "ada/full", files).oid == api.model_info("ada/full").sha
        assert len(api.list_repo_commits("ada/full")) == 2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=8) as folder:
        yield folder


@pytest.fixture
def api(disk: Path) -> Iterator[HfApi]:
    with LocalHubProcess(disk / "hub") as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["ada"])
        api.create_repo("ada/full")
        yield api


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(9 * MB))  # as much of it as there is room for
    return ballast


def test_an_upload_that_does_not_fit_is_refused_with_the_reason(api, disk, capfd):
    large = os.urandom(12 * MB)
    with pytest.raises(RuntimeError) as failed:
        api.preupload_lfs_files("ada/full", [CommitOperationAdd("large.safetensors", large)])
    refused = failed.value.__cause__
    assert isinstance(refused, HfHubHTTPError)
    assert refused.response.status_code == 507
    assert "The disk of this Hub is full" in str(refused)
    assert "Traceback" not in capfd.readouterr().err
    assert not [*(disk / "hub" / "tmp").iterdir()]
    api.upload_file(repo_id="ada/full", path_in_repo="small.safetensors", path_or_fileobj=large[:MB])
    assert Path(api.hf_hub_download("ada/full", "small.safetensors")).read_bytes() == large[:MB]


def test_deliveries_go_on_when_there_is_room_again(api, disk, receiver, capfd):
    """The disk fills up while one is under way, so that its outcome cannot be written down."""
    take, ballast = receiver.bend, list[Path]()

    def fill_and_take(request):
        if not ballast:
            ballast.append(fill(disk))
        return take(request)

    receiver.bend = fill_and_take
    hook = api.create_webhook(url=receiver.url, watched=[{"type": "model", "name": "ada/full"}], domains=["repo"])
    api.upload_file(repo_id="ada/full", path_in_repo="a.txt", path_or_fileobj=b"1")
    receiver.next()
    time.sleep(0.5)  # in which it tries to
    ballast[0].unlink()
    new = api.upload_file(repo_id="ada/full", path_in_repo="a.txt", path_or_fileobj=b"2").oid
    assert json.loads(receiver.next().body)["repo"]["headSha"] == new

    def states() -> list[str]:
        found = ask(api, "GET", f"/api/settings/webhooks/{hook.id}/deliveries").json()
        return [delivery["state"] for delivery in found]

    until(lambda: states() == ["delivered", "delivered"])
    assert "Traceback" not in capfd.readouterr().err
