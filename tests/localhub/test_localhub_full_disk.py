"""A Hub whose disk is full says so, keeps what it has, and goes on when there is room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from raw_requests import commit_files, status_of
from small_disk import small_disk

from localhub.process import LocalHubProcess

MB = 1024 * 1024


def test_what_does_not_fit_is_refused_with_the_reason_and_taken_when_there_is_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
