"""Cancelling ends an upload that is under way, through LFS and through Xet, and leaves no thread behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from huggingface_hub import HfApi, constants
from line import Killed, Line, threads_left
from processes import Beside, until
from scripted_hub import Answer, Request, ScriptedHub

from hubmerge.errors import CancelledError, HubUnavailableError
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.hub.transfer import BreakableFile
from localhub.fault_rules import Delay, FaultSwitch, Status
from localhub.process import LocalHubProcess

GIVEN_UP_S = 20.0  # after which an upload that nobody ends goes on, and the test fails


class Endless:
    """Uploads that come to no end by themselves: their file has always one more byte to be waited for."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gave_up = False
        self._read = BreakableFile.read

    def read(self, file: BreakableFile, size: int | None = -1) -> bytes:
        self.begun.set()
        until = time.monotonic() + GIVEN_UP_S
        while not self.gave_up and time.monotonic() < until:
            file._check(file.tell())
            time.sleep(0.002)
        self.gave_up = True
        return self._read(file, size)


@pytest.fixture
def endless() -> Iterator[Endless]:
    made = Endless()
    with patch.object(BreakableFile, "read", lambda file, size=-1: made.read(file, size)):
        yield made


@pytest.mark.parametrize("end", [CancelledError, KeyboardInterrupt, Killed])
def test_cancelling_breaks_a_running_upload_off_and_the_next_run_goes_on(
    line: Line, endless: Endless, end: type[BaseException]
) -> None:
    def seen(stage: str) -> None:
        if endless.begun.is_set():
            raise end("enough")

    line.watcher.seen = seen
    with pytest.raises(end):
        line.to_hub()
    assert not endless.gave_up
    assert threads_left() == []
    assert line.commits() == 0
    assert line.finished_shards() >= 1, "what was not uploaded is still here"
    line.watcher.seen = lambda stage: None
    with patch.object(BreakableFile, "read", endless._read):
        line.arrives()


def test_an_error_that_a_retry_may_mend_lets_the_running_upload_come_to_its_end(
    line: Line, switch: FaultSwitch
) -> None:
    """The journal then has one shard more that needs no second upload."""
    switch.add("/lfs-uploads/", Delay(seconds=0.5))

    def seen(stage: str) -> None:
        if line.finished_shards():
            raise HubUnavailableError("something passing")

    line.watcher.seen = seen
    with pytest.raises(HubUnavailableError):
        line.to_hub()
    assert threads_left() == []
    assert '"uploaded"' in (line.out / ".hubmerge" / "journal.jsonl").read_text()


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    options = ("--multipart-bytes", "100000", "--part-bytes", "50000")
    with LocalHubProcess(tmp_path_factory.mktemp("parts"), options=options) as hub:
        yield hub


def test_an_upload_in_parts_is_broken_off_between_two_reads_too(in_parts: LocalHubProcess, tmp_path: Path) -> None:
    HfApi(in_parts.endpoint, token=in_parts.tokens["ada"]).create_repo("ada/parts")
    hub = Hub(in_parts.endpoint, in_parts.tokens["ada"]).breakable()
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(range(256)) * 2000)
    reads = [0]
    read = BreakableFile.read

    def counted(file: BreakableFile, size: int | None = -1) -> bytes:
        reads[0] += 1
        if reads[0] == 3:
            hub.break_off()
        return read(file, size)

    with patch.object(BreakableFile, "read", counted), pytest.raises(CancelledError):
        hub.preupload("ada/parts", path, path.name)
    assert reads[0] == 3
    again = Hub(in_parts.endpoint, in_parts.tokens["ada"]).breakable()
    assert again.is_uploaded(again.preupload("ada/parts", path, path.name))


def test_a_pause_between_two_tries_ends_with_the_upload(faulty_hub: LocalHubProcess, switch: FaultSwitch) -> None:
    hub = Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"], patience=Patience()).breakable()
    rule = switch.add("/api/models/ada/nothing$", Status(status=503, retry_after="50"), times=None)
    asking = Beside(lambda: hub.repo_state("ada/nothing"))
    until(lambda: switch.state(rule).fired)
    hub.break_off()
    assert isinstance(asking.ended_with(GIVEN_UP_S), CancelledError)
    with pytest.raises(CancelledError):
        hub.repo_state("ada/nothing")
    assert switch.state(rule).seen == 1, "nothing is begun any more"


def test_other_users_of_the_same_hub_are_not_broken_off(line: Line) -> None:
    hub = Hub(line.process.endpoint, line.process.tokens["ada"])
    broken, other = hub.breakable(), hub.breakable()
    sha = hub.head("ada/one")
    broken.break_off()
    for user in (hub, other, broken.unbreakable()):
        assert user.whoami().name == "ada"
        assert len(user.read_range("ada/one", sha, "config.json", 0, 10)) == 10
    for request in (broken.whoami, lambda: broken.read_range("ada/one", sha, "config.json", 0, 10)):
        with pytest.raises(CancelledError):
            request()


@pytest.fixture
def stalled() -> Iterator[ScriptedHub]:
    """A Hub that sends every large file to a Xet storage which never answers."""
    over = threading.Event()

    def bend(request: Request) -> Answer:
        if "/preupload/" in request.path:
            path = json.loads(request.body)["files"][0]["path"]
            answer = {"files": [{"path": path, "uploadMode": "lfs", "shouldIgnore": False, "oid": None}]}
            return Answer(body=json.dumps(answer).encode())
        if "/xet-write-token/" not in request.path:
            over.wait()
        token = {"Cas-Url": server.endpoint, "Access-Token": "t", "Token-Expiration": str(int(time.time()) + 3600)}
        return Answer(body=b"{}", headers={f"X-Xet-{name}": value for name, value in token.items()})

    with ScriptedHub({}) as server:
        server.bend = bend
        yield server
        over.set()


def test_an_upload_to_xet_is_broken_off(stalled: ScriptedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(stalled.endpoint, "hf_token").breakable()
    hub.connect()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2_000_000))
    uploading = Beside(lambda: hub.preupload("ada/x", path, path.name, sha256="0" * 64))
    until(lambda: stalled.paths("/xet-write-token/"))
    for _ in range(100):
        hub.break_off()
        uploading.join(0.2)
        if not uploading.is_alive():
            break
    assert isinstance(uploading.ended_with(), CancelledError)
