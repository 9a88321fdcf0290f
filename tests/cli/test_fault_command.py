"""What a stranger does wrong at the command line: named in one line, exit code 1 or 2, no traceback, no secret."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from hubmerge.cli.main import main
from hubmerge.errors import HubmergeError, LoginError, Problem, SettingsError
from hubmerge.hub.client import Hub
from localhub.process import LocalHubProcess

REPO = Path(__file__).resolve().parents[2]
CANARY = "hf_canary"


@pytest.fixture
def hub_recipe(tmp_path: Path, family: dict[str, Any]) -> Path:
    path = tmp_path / "hub.yaml"
    path.write_text(json.dumps(family))
    return path


@pytest.mark.parametrize("option", ["--threads", "--chunk-elements", "--disk-budget", "--device-memory"])
@pytest.mark.parametrize("value", ["0", "-1", "abc", "", "nan", "1e400"])
def test_an_option_that_is_no_such_number_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["merge", "recipe.yaml", "--out", "out", f"{option}={value}"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{option}: must be a " in message


@pytest.mark.parametrize("port", ["-1", "65536", "99999999999999999999", "http"])
def test_a_port_that_cannot_be_is_wrong_usage(capsys: pytest.CaptureFixture[str], port: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["localhub", f"--port={port}", "--data", str(tmp_path)])
    assert stopped.value.code == 2
    assert "from 0 to 65535" in capsys.readouterr().err


def test_a_file_as_the_data_folder_of_the_local_hub_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("somebody's")
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["localhub", "--data", str(data)]) == 1
        assert capsys.readouterr().err.startswith("hubmerge: E_DISK: ")
    assert (tmp_path / "file").read_text() == "somebody's"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RANK", "first"), ("WORLD_SIZE", "0"), ("SPACES_ZERO_GPU", "perhaps"), ("HUBMERGE_JOBS_PER_USER", "-1")],
)
def test_a_setting_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["methods"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("hubmerge: E_SETTINGS: ")
    assert variable in message


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "ftp://host",
        "http://",
        "http://[bad",
        "http://127.0.0.1:99999",
        "http://a:b@127.0.0.1",
        "http://h?x",
    ],
)
def test_an_address_of_no_hub_is_refused_at_once_and_no_password_shown(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="HF_ENDPOINT") as error:
        Hub(endpoint.replace("a:b@", f"ada:{CANARY}@"))
    assert CANARY not in str(error.value)


@pytest.mark.parametrize(
    "token", [f"{CANARY}\nx", f"{CANARY}\rx", f"{CANARY} x", f"{CANARY}ä", f"\x00{CANARY}", f"{CANARY}\x7f"]
)
def test_a_token_that_no_header_can_hold_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(LoginError) as error:
        Hub("http://127.0.0.1:9", token)
    assert CANARY not in json.dumps(error.value.as_dict())


def test_a_line_break_after_a_token_does_no_harm(faulty_hub: LocalHubProcess) -> None:
    hub = Hub(faulty_hub.endpoint, f" {faulty_hub.tokens['ada']}\r\n")
    assert hub.whoami().name == "ada"
    assert Hub(faulty_hub.endpoint, " \n").token is None


def test_an_upload_that_is_tried_again_is_logged_without_its_signature(
    faulty_hub: LocalHubProcess, caplog: pytest.LogCaptureFixture
) -> None:
    Hub(faulty_hub.endpoint).connect()
    client = logging.getLogger("huggingface_hub.utils._http")
    with caplog.at_level(logging.WARNING, logger=client.name):
        client.addHandler(caplog.handler)
        client.warning("'timeout' thrown while requesting PUT https://s3.example/lfs/ab?X-Amz-Signature=%s&x=1", CANARY)
        client.removeHandler(caplog.handler)
    assert CANARY not in caplog.text
    assert "https://s3.example/lfs/ab" in caplog.text


def test_what_strangers_write_does_not_steer_the_terminal() -> None:
    hostile = "a\x1b[2J\r\nE_OK: done\u202e\x9b\ud800 é 漢"
    for error in (HubmergeError(hostile, where=hostile, got=hostile), Problem("E_X", hostile)):
        assert str(error).isprintable()
        assert "é 漢" in str(error)
        str(error).encode()


def test_memory_that_does_not_suffice_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted() -> Any:
        raise MemoryError

    monkeypatch.setattr("hubmerge.methods.registry", exhausted)
    assert main(["methods"]) == 1
    assert capsys.readouterr().err.startswith("hubmerge: E_TOO_BIG: ")


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hubmerge", "methods"]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, cwd=REPO, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_were_closed_merges_the_same(recipe_file: Path, tmp_path: Path, closed: str) -> None:
    command = [sys.executable, "-m", "hubmerge", "merge", str(recipe_file), "--out"]
    folders = [tmp_path / "open", tmp_path / "closed"]
    subprocess.run([*command, str(folders[0])], cwd=REPO, check=True, capture_output=True)
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command, str(folders[1])], cwd=REPO, check=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_open_in_processes_that_a_command_starts(closed: str) -> None:
    code = (
        "import subprocess, sys; from hubmerge import __main__ as m; m._open_standard_streams(); "
        "sys.exit(subprocess.call(['sh', '-c', 'true <&0 && true >&1 && true >&2']))"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=REPO, check=False).returncode == 0


def test_a_probe_keeps_to_its_disk_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], faulty_hub: LocalHubProcess, hub_recipe: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", faulty_hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", faulty_hub.tokens["ada"])
    assert main(["probe", str(hub_recipe)]) == 0
    unlimited = capsys.readouterr().out

    def download(*arguments: Any) -> Path:
        raise AssertionError("a shard of 250 kB does not fit in")

    monkeypatch.setattr(Hub, "download", download)
    assert main(["probe", str(hub_recipe), "--disk-budget", "0.0001"]) == 0
    assert capsys.readouterr().out == unlimited


def test_a_budget_that_is_too_small_is_told_in_sizes_that_differ(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["merge", str(recipe_file), "--out", str(tmp_path / "out"), "--disk-budget", "1e-6"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("hubmerge: E_DISK: ")
    assert "got 1.00 kB" in message
    assert "0.00" not in message


def test_a_terminal_without_greek_letters_is_written_to_all_the_same() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hubmerge", "methods"]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=REPO, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"ram_plus" in done.stdout


def test_a_finished_folder_of_which_a_shard_is_damaged_is_not_published(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faulty_hub: LocalHubProcess,
    recipe_file: Path,
    tmp_path: Path,
    name: str,
) -> None:
    out = tmp_path / "out"
    assert main(["merge", str(recipe_file), "--out", str(out)]) == 0
    shard = out / "model.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setenv("HF_ENDPOINT", faulty_hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", faulty_hub.tokens["ada"])
    assert main(["publish", str(out), name]) == 1
    assert "E_CORRUPT" in capsys.readouterr().err
    assert not HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"]).repo_exists(name)
    shard.write_bytes(whole)
    assert main(["publish", str(out), name]) == 0


def test_threads_that_cannot_be_started_are_a_shortage_that_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        assert main(["merge", str(recipe_file), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "E_TOO_BIG: no further thread can be started" in message
    assert "ulimit" in message
    assert main(["merge", str(recipe_file), "--out", str(tmp_path / "out"), "--resume"]) == 0


def test_another_error_of_the_program_is_not_taken_for_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> int:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("hubmerge.cli.main.load_settings", broken)
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["methods"])
