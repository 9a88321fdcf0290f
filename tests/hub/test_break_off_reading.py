"""Cancelling ends what is being fetched with its next bytes or its pause, and the next run goes on.

Of a Hub that says nothing a command does not wait longer than a few seconds. The faults hold for minutes, and what is
not broken off within GIVEN_UP_S fails its test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from line import OUT_SHARD_BYTES, Line, threads_left
from processes import ROOT, Beside, as_ada, until

from hubmerge.errors import CancelledError
from hubmerge.hub import transfer as hub_bytes
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from localhub.fault_rules import Delay, FaultSwitch, Stall, Status
from localhub.process import LocalHubProcess

GIVEN_UP_S = 30.0
COMPILED_S = 300.0  # a command that finds no kept machine code makes it first
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
    faulty_hub: LocalHubProcess, patient: Hub, model: Model, switch: FaultSwitch, tmp_path: Path
) -> None:
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


def test_a_download_is_broken_off_while_it_reads_what_an_earlier_one_left(
    patient: Hub, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / model.ref.sha / (NAME + ".partial")
    partial.parent.mkdir()
    partial.write_bytes(bytes(100_000))
    hashed: list[int] = []

    class Digest:
        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            patient.hang_up()

    monkeypatch.setattr(hub_bytes, "COPY_BYTES", 1000)
    monkeypatch.setattr(hub_bytes, "hashlib", SimpleNamespace(sha256=Digest))
    with pytest.raises(CancelledError):
        patient.download("ada/one", model.ref.sha, model.files[NAME], tmp_path, lambda count: None)
    assert hashed == [1000]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("inputs", [10**9, 0], ids=["whole", "ranges"])
@pytest.mark.parametrize("end", [CancelledError, KeyboardInterrupt])
def test_a_cancelled_merge_ends_at_once_and_the_next_run_goes_on(
    line: Line, switch: FaultSwitch, status: int, inputs: int, end: type[BaseException]
) -> None:
    line.hub = Hub(line.process.endpoint, line.process.tokens["ada"])
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    fault = Status(status=status, retry_after="50")
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
def test_ctrl_c_ends_a_command_whose_merge_waits_for_the_hub(
    line: Line, switch: FaultSwitch, tmp_path: Path, when: str
) -> None:
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
