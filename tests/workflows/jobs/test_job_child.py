"""The child by itself: one document in, JSON lines out, and an end for every way a pipeline can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import job_pipelines
import pytest
from job_helpers import HERE, is_alive, job_spec
from processes import ROOT, until
from pydantic import SecretStr

from hubmerge.errors import HubUnavailableError
from hubmerge.isolation.scrub import Scrubber
from workflows.jobs.child import run_job
from workflows.jobs.protocol import JobSpec, Statistics, decoded, encode

TOKEN = "hf_CaNaRyTokenThatNobodyMayEverSee"


def spec(workdir: Path, **payload: Any) -> JobSpec:
    given = {"token": SecretStr(TOKEN), "workdir": workdir, "endpoint": "http://localhost"}
    return job_spec(workdir.parent, payload=payload, **given)


def start(function: str, document: bytes, *arguments: str) -> subprocess.Popen[bytes]:
    """A child that was told its job; its input stays open."""
    command = [sys.executable, "-m", "workflows.jobs.child", "--pipeline", f"job_pipelines:{function}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE)))}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    child = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **pipes)
    child.stdin.write(document)
    child.stdin.flush()
    return child


def test_a_document_that_is_no_job_is_refused_without_being_shown(tmp_path: Path) -> None:
    child = start("steps", spec(tmp_path).to_line().replace(b'"attempt": 1', b'"attempt": "one"'))
    out, err = child.communicate()
    assert child.returncode == 1
    assert out == b""
    assert b"attempt" in err
    assert TOKEN.encode() not in err


UNREADABLE = ValueError("a library's own words")
UNREADABLE.__cause__ = OSError(5, "Input/output error", "/data/shard")


@pytest.mark.parametrize(
    ("raised", "code", "retryable", "said"),
    [
        (HubUnavailableError("the Hub answered 503"), "E_HUB", True, "503"),
        (OSError(28, "No space left on device", "/data/shard"), "E_DISK", True, "the disk is full in /data/shard"),
        (UNREADABLE, "E_DISK", True, "the disk fails in /data/shard"),
        (MemoryError("2 TB"), "E_TOO_BIG", True, "2 TB"),
        (SystemExit(0), "E_INTERNAL", False, "SystemExit: 0"),
        (None, "E_INTERNAL", False, "ended without a result"),
    ],
)
def test_a_failure_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException | None,
    code: str,
    retryable: bool,
    said: str,
) -> None:
    if raised is not None:
        monkeypatch.setattr(job_pipelines, "no_result", Mock(side_effect=raised))
    sent: list[Any] = []
    events: Any = SimpleNamespace(send=sent.append, has_result=False)
    assert run_job(spec(tmp_path), "job_pipelines:no_result", events, Scrubber(None)) == 1
    assert (sent[-1].code, sent[-1].retryable) == (code, retryable)
    assert said in sent[-1].message
    assert "Traceback" in capsys.readouterr().err


def test_a_cancellation_after_the_result_comes_too_late(tmp_path: Path) -> None:
    child = start("cancelled_with_the_result", spec(tmp_path / "w").to_line())
    assert json.loads(child.stdout.readline()) == {"type": "result", "values": {"commit": "abc"}}
    assert child.wait() == 0
    child.communicate()


@pytest.mark.parametrize("end", ["the pipe closes", "the heartbeat stops", "the child is killed"])
def test_a_guarded_child_and_its_helpers_end_together(tmp_path: Path, end: str) -> None:
    pids = tmp_path / "pids"
    document = spec(tmp_path / "w", pids=str(pids), gate=str(tmp_path / "gate")).to_line()
    child = start("helper_process", document, "--guard-seconds", "0.5" if end == "the heartbeat stops" else "600")
    main, helper = map(int, until(lambda: pids.exists() and pids.read_text()).split())
    if end == "the pipe closes":
        child.stdin.close()
        child.stdin = None
    elif end == "the child is killed":
        child.kill()
    until(lambda: not is_alive(main) and not is_alive(helper))
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def test_an_attempt_waits_until_the_one_before_has_left_the_folder(tmp_path: Path) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    document = spec(tmp_path / "w", trace=str(trace), gate=str(gate)).to_line()
    first = start("steps", document)
    journal = tmp_path / "w" / "journal"
    until(lambda: journal.exists() and len(journal.read_text().split()) == 5)
    second = start("steps", document)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(1)
    assert len(trace.read_text().splitlines()) == 1
    first.kill()
    until(lambda: len(trace.read_text().splitlines()) == 2)
    gate.touch()
    assert second.wait() == 0
    for child in (first, second):
        child.communicate()
    assert "OVERLAP" not in trace.read_text()
    assert (tmp_path / "w" / "journal").read_text().split() == [str(n) for n in range(10)]


def test_what_json_has_no_number_for_becomes_null() -> None:
    line = Statistics(values={"a": float("nan"), "b": [float("inf")]})
    assert list(decoded([encode(line).encode()])) == [Statistics(values={"a": None, "b": [None]})]


def test_a_spec_shows_its_token_and_its_key_on_the_wire_only(tmp_path: Path) -> None:
    document = spec(tmp_path).model_copy(update={"signing_key": SecretStr("5" * 64)})
    for secret in (TOKEN, "5" * 64):
        assert secret in document.to_line().decode()
        assert secret not in repr(document) + str(document) + document.model_dump_json()
    assert JobSpec.model_validate_json(document.to_line()) == document
