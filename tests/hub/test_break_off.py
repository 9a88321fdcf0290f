"""Cancelling ends an upload, through LFS or Xet, and a download; no thread is left, and the next run goes on.

Of a Hub that says nothing a command does not wait longer than a few seconds. The faults hold for minutes, and what is
not broken off within GIVEN_UP_S fails its test.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

import pytest
from huggingface_hub import HfApi, constants
from line import OUT_SHARD_BYTES, Killed, threads_left
from processes import ROOT, Beside, as_ada, printed_by, until
from scripted_hub import Answer, Request, ScriptedHub, error

from hubmerge.errors import CancelledError, HubUnavailableError, LoginError, PermissionDeniedError
from hubmerge.hub import transfer as hub_bytes
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience, RefusedError
from hubmerge.hub.transfer import BreakableFile
from hubmerge.hub.writing import _watched, bytes_read
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from localhub.fault_rules import Delay, FaultSwitch, Stall, Status
from localhub.process import LocalHubProcess

GIVEN_UP_S = 30.0
COMPILED_S = 300.0  # a command that finds no kept machine code makes it first


@pytest.mark.parametrize("end", [CancelledError, KeyboardInterrupt, Killed])
def test_whatever_ends_a_merge_breaks_a_running_upload_off_and_the_next_run_goes_on(line, end):
    begun, broken_off = threading.Event(), threading.Event()

    def endless(file: BreakableFile, size: int | None = -1) -> bytes:
        begun.set()
        try:
            return until(lambda: file._check(file.tell()), seconds=GIVEN_UP_S)
        except CancelledError:
            broken_off.set()
            raise

    def seen(stage: str) -> None:
        if begun.is_set():
            raise end("enough")

    line.watcher.seen = seen
    with patch.object(BreakableFile, "read", endless), pytest.raises(end):
        line.to_hub()
    assert broken_off.is_set()
    assert threads_left() == []
    assert line.commits() == 0
    assert line.finished_shards() >= 1, "what was not uploaded is still here"
    line.watcher.seen = lambda stage: None
    line.arrives()


def test_an_error_that_a_retry_may_mend_lets_the_running_upload_come_to_its_end(line, switch):
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


def test_an_upload_in_parts_is_broken_off_between_two_reads_too(in_parts, tmp_path):
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


def test_a_pause_between_two_tries_ends_with_the_upload(faulty_hub, switch):
    hub = Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"], patience=Patience()).breakable()
    rule = switch.add("/api/models/ada/nothing$", Status(status=503, retry_after="50"), times=None)
    asking = Beside(lambda: hub.repo_state("ada/nothing"))
    until(lambda: switch.state(rule).fired)
    hub.break_off()
    assert isinstance(asking.ended_with(GIVEN_UP_S), CancelledError)
    with pytest.raises(CancelledError):
        hub.repo_state("ada/nothing")
    assert switch.state(rule).seen == 1, "nothing is begun any more"


def test_other_users_of_the_same_hub_are_not_broken_off(line):
    hub = Hub(line.process.endpoint, line.process.tokens["ada"])
    broken, other = hub.breakable(), hub.breakable()
    sha = hub.head("ada/one")
    broken.break_off()
    for user in (hub, other):
        assert user.whoami().name == "ada"
        assert len(user.read_range("ada/one", sha, "config.json", 0, 10)) == 10
    for request in (broken.whoami, lambda: broken.read_range("ada/one", sha, "config.json", 0, 10)):
        with pytest.raises(CancelledError):
            request()


def sent_to_xet(request: Request) -> Answer | None:
    """The answer that sends a file to Xet."""
    if "/preupload/" not in request.path:
        return None
    path = json.loads(request.body)["files"][0]["path"]
    answer = {"files": [{"path": path, "uploadMode": "lfs", "shouldIgnore": False, "oid": None}]}
    return Answer(body=json.dumps(answer).encode())


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2_000_000))
    return path


def test_how_far_an_upload_is_can_be_seen_whoever_reads_the_file(weights):
    seen_as = weights.parent / "folder"
    seen_as.symlink_to(weights.parent)
    assert bytes_read(weights) == 0
    with weights.open("rb", buffering=0) as file:
        file.read(1_500_000)
        assert bytes_read(weights) == bytes_read(seen_as / weights.name) == 1_500_000
    assert bytes_read(weights) == bytes_read(weights.parent / "nothing") == 0


def test_how_far_an_upload_is_never_goes_back_when_the_file_is_closed_before_its_end(weights):
    told: list[int] = []
    with _watched(weights, told.append, []):
        with weights.open("rb", buffering=0) as file:
            file.read(1_000_000)
            until(lambda: 1_000_000 in told)
        until(lambda: told.count(told[-1]) == 3)
    assert told == sorted(told)


@pytest.mark.parametrize(("given", "taken"), [({}, "8"), ({"HF_XET_CLIENT_AC_MAX_UPLOAD_CONCURRENCY": "3"}, "3")])
def test_uploads_to_xet_hold_few_blocks_in_memory_unless_somebody_wants_more(given, taken):
    script = """
        from hubmerge.hub.client import Hub
        Hub("https://hub.example").connect()
        from hf_xet import XetConfig
        print(dict(XetConfig().items())["client.ac_max_upload_concurrency"])
    """
    assert printed_by(dedent(script), **given).strip() == taken


@pytest.fixture
def xet() -> Iterator[ScriptedHub]:
    with ScriptedHub({}) as server, patch.object(constants, "HF_HUB_DISABLE_XET", True):
        yield server


def hub_with_xet(server: ScriptedHub) -> Hub:
    """Its client uses Xet, as that of the public Hub does, once a test has the fixture `xet`."""
    hub = Hub(server.endpoint, "hf_token").breakable()
    hub.connect()
    constants.HF_HUB_DISABLE_XET = False
    return hub


def storage_that_never_answers(xet: ScriptedHub) -> tuple[threading.Event, threading.Event]:
    """Two events: the storage was asked; it may answer after all."""
    asked, over = threading.Event(), threading.Event()

    def bend(request: Request) -> Answer:
        if "/xet-write-token/" not in request.path and "/preupload/" not in request.path:
            asked.set()
            over.wait()
        token = {"casUrl": xet.endpoint, "accessToken": "t", "exp": int(time.time()) + 3600}
        return sent_to_xet(request) or Answer(body=json.dumps(token).encode())

    xet.bend = bend
    return asked, over


def test_an_upload_to_xet_is_broken_off_while_its_storage_never_answers(xet, weights):
    asked, over = storage_that_never_answers(xet)
    hub = hub_with_xet(xet)
    uploading = Beside(lambda: hub.preupload("ada/x", weights, weights.name, sha256="0" * 64))
    assert asked.wait(60)
    for _ in range(100):
        hub.break_off()
        uploading.join(0.2)
        if not uploading.is_alive():
            break
    over.set()
    assert isinstance(uploading.ended_with(), CancelledError)


@pytest.mark.parametrize("broken_off", [True, False])
def test_an_interrupt_is_a_cancelling_only_where_the_upload_to_xet_was_broken_off(
    xet, weights, monkeypatch, broken_off
):
    hub = hub_with_xet(xet)

    def interrupted(*_: object, **__: object) -> None:
        if broken_off:
            hub.break_off()
        raise KeyboardInterrupt  # as hf_xet ends an upload whose session is aborted, now and then

    monkeypatch.setattr(hub._api, "preupload_lfs_files", interrupted)
    with pytest.raises(CancelledError if broken_off else KeyboardInterrupt):
        hub.preupload("ada/x", weights, weights.name, sha256="0" * 64)


def test_an_upload_to_xet_says_how_far_it_is_and_whoever_is_told_can_end_it(xet, weights):
    _, over = storage_that_never_answers(xet)
    told: list[int] = []

    def sent(position: int) -> None:
        told.append(position)
        if len(told) == 5:
            raise CancelledError("enough")

    try:
        with pytest.raises(CancelledError, match="enough"):
            hub_with_xet(xet).preupload("ada/x", weights, weights.name, sha256="0" * 64, sent=sent)
    finally:
        over.set()
    assert told == sorted(told)
    assert told[-1] == 2_000_000


@pytest.mark.parametrize(
    ("status", "words", "refusal"),
    [
        (401, "Invalid credentials in Authorization header", LoginError),
        (403, "You don't have write access", PermissionDeniedError),
        (403, "Private repository storage limit reached, please upgrade your plan", RefusedError),
        (403, "Your storage patterns tripped our internal systems!", RefusedError),
    ],
)
def test_what_the_hub_refuses_to_xet_is_told_in_its_words_and_is_no_trouble_of_the_connection(
    xet, weights, status, words, refusal
):
    xet.bend = lambda request: sent_to_xet(request) or error(status, message=words)
    with pytest.raises(refusal) as caught:
        hub_with_xet(xet).preupload("ada/x", weights, weights.name, sha256="0" * 64)
    assert status == 401 or words in str(caught.value)
    assert not caught.value.retryable
    assert "onnection" not in str(caught.value)


STALL_AT = 50_000
HEADERS = 1  # the first read of a shard is that of its header
NAME = "model-00003-of-00005.safetensors"
SHARD = rf"/ada/one/resolve/[0-9a-f]{{40}}/{NAME}$"


def fired(switch: FaultSwitch, rule: int) -> bool:
    return bool(switch.state(rule).fired)


@pytest.fixture
def patient(faulty_hub: LocalHubProcess, undisturbed: object) -> Iterator[Hub]:
    """Waits as long as it is asked to."""
    hub = Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"], patience=Patience()).breakable()
    yield hub
    hub.hang_up()


@pytest.fixture
def model(faulty_hub: LocalHubProcess, undisturbed: object) -> Model:
    hub = Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"])
    return open_model(ModelName.parse("ada/one"), hub, allow_local=False)


def test_a_download_is_broken_off_with_the_next_bytes_and_the_next_one_goes_on_where_it_was(
    faulty_hub, patient, model, switch, tmp_path
):
    file, told = model.files[NAME], [0]

    def progress(count: int) -> None:
        told[0] += count
        if told[0]:
            patient.hang_up()

    with pytest.raises(CancelledError):
        patient.download("ada/one", model.ref.sha, file, tmp_path, progress)
    assert 0 < told[0] < file.size
    assert {p.name: p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()} == {NAME + ".partial": told[0]}
    rule = switch.add(SHARD, Delay(seconds=0))
    hub = Hub(faulty_hub.endpoint, faulty_hub.tokens["ada"])
    hub.download("ada/one", model.ref.sha, file, tmp_path, lambda count: None)
    assert switch.state(rule).requests[0].range == f"bytes={told[0]}-{file.size - 1}"


def test_a_download_is_broken_off_while_it_reads_what_an_earlier_one_left(patient, model, tmp_path, monkeypatch):
    partial = tmp_path / model.ref.sha / (NAME + ".partial")
    partial.parent.mkdir()
    partial.write_bytes(bytes(100_000))
    hashed: list[int] = []

    class Digest:
        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            patient.hang_up()

    monkeypatch.setattr(hub_bytes, "COPY_BYTES", 1000)
    monkeypatch.setattr(hub_bytes, "stated_digest", lambda file: (None, Digest()))
    with pytest.raises(CancelledError):
        patient.download("ada/one", model.ref.sha, model.files[NAME], tmp_path, lambda count: None)
    assert hashed == [1000]


@pytest.mark.parametrize("inputs", [10**9, 0], ids=["whole", "ranges"])
@pytest.mark.parametrize("end", [CancelledError, KeyboardInterrupt])
def test_a_cancelled_merge_ends_at_once_and_the_next_run_goes_on(line, switch, inputs, end):
    line.hub = Hub(line.process.endpoint, line.process.tokens["ada"])
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    fault = Status(status=503, retry_after="50")
    rule = switch.add(SHARD.replace(NAME, "model-00001-of-00005.safetensors"), fault, times=None, skip=HEADERS)

    def seen(stage: str) -> None:
        if fired(switch, rule):
            raise end("enough")

    line.watcher.seen = seen
    assert isinstance(Beside(line.to_hub).ended_with(GIVEN_UP_S), end)
    assert threads_left() == []
    assert not line.api.repo_exists(line.target)
    switch.clear()
    line.watcher.seen = lambda stage: None
    line.arrives()


@pytest.mark.parametrize("when", ["header", "whole", "ranges"])
def test_ctrl_c_ends_a_command_whose_merge_waits_for_the_hub(line, switch, tmp_path, when):
    """A thread that waits for bytes of a silent Hub is left behind after a few seconds."""
    inputs = 10_000 if when == "ranges" else 10**9
    budget = line.prepare().plan.output_bytes + inputs
    # a shard that is read by ranges is read once for its checksum before it is merged
    rule = switch.add(SHARD, Stall(at=STALL_AT), skip={"header": 0, "whole": HEADERS, "ranges": HEADERS + 1}[when])
    (tmp_path / "recipe.yaml").write_text(str(line.recipe | {"method": "linear"}))
    environment = {**os.environ, **as_ada(line.process, tmp_path)}
    command = [sys.executable, "-m", "hubmerge", "run", str(tmp_path / "recipe.yaml"), "--to", line.target]
    command += ["--license", "mit", "--disk-budget", f"{budget / 1e9:.9f}"]
    running = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        until(lambda: running.poll() is not None or fired(switch, rule), "nothing was asked", COMPILED_S)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=GIVEN_UP_S)
    finally:
        running.kill()
    assert running.returncode == 1
    last = output.splitlines()[-1]  # which also says whether what waited for the network was left
    assert last.startswith(b"hubmerge: interrupted; the same command goes on"), "without a trace"
    until(lambda: switch.state(rule).left == switch.state(rule).fired, "the server still has a client", GIVEN_UP_S)
    assert not line.api.repo_exists(line.target)
