"""Finished shards on their way, as far as merges to the Hub (merge/test_merge_to_hub.py) do not show it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hubmerge.engine.sink import FinishedShard
from hubmerge.output import upload
from hubmerge.output.publish import Target, TargetState
from hubmerge.output.upload import ShardUploader


@pytest.fixture
def uploader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardUploader:
    """Of one finished shard, to a target that takes it as a plain file."""
    monkeypatch.setattr(upload, "ensure_target", lambda hub, target, identity: TargetState("empty"))
    hub: Any = SimpleNamespace(
        breakable=lambda: hub,
        preupload=lambda repo, path, name, **more: path.read_bytes(),
        is_uploaded=lambda operation: False,
    )
    shard = FinishedShard("0.safetensors", 1, "0" * 64, None, {})
    journal: Any = SimpleNamespace(shards={shard.filename: shard}, uploaded=set(), on_shard=None)
    (tmp_path / shard.filename).write_bytes(b"x")
    return ShardUploader(hub, Target("ada/x", False), "i", journal, tmp_path)


def test_what_the_target_takes_as_a_plain_file_stays_for_the_commit(uploader: ShardUploader, tmp_path: Path) -> None:
    with uploader:
        uploader.drain()
    assert [p.name for p in tmp_path.iterdir()] == ["0.safetensors"]


def test_what_an_upload_raised_is_raised_where_it_is_waited_for(uploader: ShardUploader, tmp_path: Path) -> None:
    (tmp_path / "0.safetensors").unlink()
    with uploader, pytest.raises(FileNotFoundError):
        uploader.drain()
