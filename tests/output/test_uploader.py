"""Finished shards on their way: deleted when the target holds them and the journal says so, two on the disk at most."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hubmerge.engine.sink import FinishedShard
from hubmerge.output import upload
from hubmerge.output.publish import Target, TargetState
from hubmerge.output.upload import ShardUploader


class Journaled:
    """The part of `Journal` that an uploader uses; notes which files were there when it was told."""

    def __init__(self, folder: Path, shards: int = 0) -> None:
        self.folder = folder
        self.shards = {s.filename: s for s in (finished(folder, n) for n in range(shards))}
        self.uploaded: set[str] = set()
        self.on_shard: Any = None
        self.there: dict[str, bool] = {}

    def add_uploaded(self, filename: str) -> None:
        self.uploaded.add(filename)
        self.there[filename] = (self.folder / filename).exists()


class Takes:
    """The part of `Hub` that an uploader uses. `gate`: what every upload waits for."""

    def __init__(self, *, large: bool = True) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.large = large

    def breakable(self) -> Takes:
        return self

    def preupload(self, repo: str, path: Path, name: str, *, sha256: str, sent: Any = None) -> str:
        self.gate.wait()
        path.read_bytes()
        return name

    def is_uploaded(self, operation: str) -> bool:
        return self.large


def finished(folder: Path, number: int) -> FinishedShard:
    (folder / f"{number}.safetensors").write_bytes(b"x")
    return FinishedShard(f"{number}.safetensors", 1, "0" * 64, None, {})


@pytest.fixture(autouse=True)
def a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "ensure_target", lambda hub, target, identity: TargetState("empty"))


def uploader(hub: Takes, journal: Journaled, **more: Any) -> ShardUploader:
    return ShardUploader(hub, Target("ada/x", False), "i", journal, journal.folder, **more)  # type: ignore[arg-type]


def test_a_file_is_there_until_the_journal_says_that_the_target_holds_it(tmp_path: Path) -> None:
    journal = Journaled(tmp_path)
    with uploader(Takes(), journal) as uploading:
        for number in range(3):
            uploading.finished(finished(tmp_path, number))
        uploading.drain()
    assert journal.there == {f"{n}.safetensors": True for n in range(3)}
    assert list(tmp_path.iterdir()) == []


def test_what_the_target_takes_as_a_plain_file_stays_for_the_commit(tmp_path: Path) -> None:
    journal = Journaled(tmp_path)
    with uploader(Takes(large=False), journal) as uploading:
        uploading.finished(finished(tmp_path, 0))
        uploading.drain()
    assert journal.uploaded == set()
    assert [p.name for p in tmp_path.iterdir()] == ["0.safetensors"]


@pytest.mark.parametrize("left", [0, 2, 3])
def test_merging_waits_while_a_shard_that_was_finished_before_is_on_its_way(tmp_path: Path, left: int) -> None:
    """Also one of an earlier run."""
    hub, journal = Takes(), Journaled(tmp_path, left)
    waited: list[int] = []

    def waiting() -> None:
        waited.append(len(list(tmp_path.iterdir())))
        hub.gate.set()

    hub.gate.clear()
    with uploader(hub, journal, waiting=waiting) as uploading:
        try:
            if left:
                uploading.catch_up()
            else:
                uploading.finished(finished(tmp_path, 0))
                assert not waited
                uploading.finished(finished(tmp_path, 1))
            assert waited
            assert waited[0] == (left or 2)
            assert len(list(tmp_path.iterdir())) <= 1
        finally:
            hub.gate.set()


def test_what_an_earlier_run_had_noted_but_not_deleted_goes_and_is_not_sent_again(tmp_path: Path) -> None:
    journal = Journaled(tmp_path, 2)
    journal.uploaded.add("0.safetensors")
    with uploader(Takes(), journal) as uploading:
        assert not (tmp_path / "0.safetensors").exists()
        uploading.drain()
        assert journal.on_shard is not None
    assert list(journal.there) == ["1.safetensors"]
    assert journal.on_shard is None


def test_what_an_upload_raised_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    journal = Journaled(tmp_path, 1)
    (tmp_path / "0.safetensors").unlink()
    with uploader(Takes(), journal) as uploading, pytest.raises(FileNotFoundError):
        uploading.drain()
    assert journal.uploaded == set()
