"""`hubmerge watch`: one look, one turn, and on until it is interrupted with a worker that merges for real."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from processes import ROOT, act_as_ada, until
from watch_helpers import rule_data

from hubmerge.cli.main import main
from localhub.process import LocalHubProcess
from workflows import serve
from workflows.jobs.store import Store
from workflows.jobs.tokens import KEY_FILE
from workflows.watchers.ledger import Ledger


@pytest.fixture(autouse=True)
def watches_as_ada(local_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act_as_ada(monkeypatch, local_hub, tmp_path)
    monkeypatch.setenv("HUBMERGE_SECRET", "s")


def written(folder: Path, base: str, **changes: Any) -> str:
    data = rule_data(base=base, agents={"authors": ["ada"]}, target="ada/by-command-{set}", **changes)
    path = folder / f"{data['name']}.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_a_dry_run_prints_what_once_queues(agents, tmp_path, monkeypatch, capsys):
    base, names = agents.family(2)
    closed = agents.agent(base)
    agents.api.update_repo_settings(closed, private=True)
    odd = agents.agent(base)
    config = b'{"architectures": ["\\u001b[2J"]}'
    agents.api.upload_file(path_or_fileobj=config, path_in_repo="config.json", repo_id=odd)
    path = written(tmp_path, base)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / KEY_FILE).write_text("k" * 64)
    believed = list[str]()
    with monkeypatch.context() as asked:
        asked.setattr(serve, "recorded_scores", lambda s: believed.append((s.data_dir / KEY_FILE).read_text()))
        assert main(["watch", path, "--dry-run"]) == 0
    assert believed == ["k" * 64]  # or no score that it signed would count
    told = capsys.readouterr().out
    assert "watch would merge" in told
    assert r"got \x1b[2J" in told  # which would clear the terminal
    assert all(name in told for name in names)
    assert f"left out {closed}@" in told
    assert [kept.name for kept in (tmp_path / "data").iterdir()] == [KEY_FILE]
    store = Store(tmp_path / "data")
    assert main(["watch", path, "--dry-run"]) == 0
    assert Ledger(store).known("watch") == {}
    capsys.readouterr()
    assert main(["watch", path, "--once", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    [job] = store.list_jobs()
    assert document["job"] == job.id
    assert document["merge"]["target"] == job.payload["target"]
    assert {skip["model"]: skip["code"] for skip in document["skipped"]} == {closed: "closed", odd: "E_INCOMPATIBLE"}
    assert main(["watch", path, "--once"]) == 0
    assert "nothing new" in capsys.readouterr().out
    assert main(["watch", written(tmp_path, base, name="fixed", join={"fixed": [odd, "ada/none"]}), "--dry-run"]) == 0
    assert "left out ada/none: E_SOURCE: no such repo" in capsys.readouterr().out
    assert len(store.list_jobs()) == 1
    store.close()


def test_a_turn_that_was_not_possible_is_an_exit_code(tmp_path, capsys):
    assert main(["watch", written(tmp_path, "ada/never-made"), "--once"]) == 1
    assert "E_SOURCE" in capsys.readouterr().out


def test_wrong_rules_are_refused_before_anything_is_done(tmp_path, refused):
    wrong, right = written(tmp_path, "ada/x", name="wrong", budget=0), written(tmp_path, "ada/x")
    missing = str(tmp_path / "missing.yaml")
    for paths, told in (([wrong], "budget"), ([right, right], "one name"), ([missing], "got No such file")):
        message = refused("watch", *paths, "--once")
        assert message.startswith("hubmerge: E_RULE: ")
        assert told in message
    assert not (tmp_path / "data" / "jobs.sqlite3").exists()


ENDS_SOON = """
import sys
from hubmerge.cli.main import main
from workflows.jobs import process
process.END_AFTER_S = 0.5
main(["watch", sys.argv[1]])
"""


def test_a_silent_hub_does_not_keep_the_command_from_ending(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        command = [sys.executable, "-c", ENDS_SOON, written(tmp_path, "ada/base")]
        process = subprocess.Popen(command, cwd=ROOT)
        with silent.accept()[0]:  # it asks, and waits for minutes
            process.terminate()
            assert process.wait(60) == 1


@pytest.mark.parametrize(("token", "owner"), [("", "ada"), (None, "bob")], ids=["no token", "another's rule"])
def test_a_command_that_could_never_merge_does_not_begin_to_watch(tmp_path, monkeypatch, refused, token, owner):
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    stopped = Event()
    stopped.set()
    monkeypatch.setattr("workflows.jobs.process.told_to_stop", lambda: stopped)  # if it begins, it ends at once
    assert "E_LOGIN" in refused("watch", written(tmp_path, "ada/base", owner=owner))


def test_a_new_agent_is_merged_unattended(agents, local_hub, tmp_path):
    """The command as users run it: push with the real client, and a merged repo with a card follows."""
    base = agents.base()
    agents.agent(base)
    path = written(tmp_path, base, recipe={"method": "task_arithmetic"})
    command = [sys.executable, "-m", "hubmerge", "watch", path, "--every", "1"]
    with (tmp_path / "watch.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log)
    try:
        agents.agent(base)

        def merged() -> list[str]:
            assert process.poll() is None
            return [m.id for m in agents.api.list_models(author="ada", search="by-command")]

        [target] = until(merged)
        files = until(lambda: "hubmerge.json" in (files := agents.api.list_repo_files(target)) and files)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert {"README.md", "model.safetensors", "recipe.yaml"} <= set(files)
    text = (tmp_path / "watch.log").read_text()
    assert local_hub.tokens["ada"] not in text
