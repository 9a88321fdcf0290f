"""The fetching process: rows as any reader of the Hub would load them, and a reason where they cannot be."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets_by_hand import publish
from huggingface_hub import HfApi
from processes import Beside, printed_by

from hubmerge.errors import EvaluationError, HubUnavailableError, MachineFaultError, MemoryLimitError
from hubmerge.evaluation import fetch as fetch_module
from hubmerge.evaluation.suites import pin
from hubmerge.evaluation.tasks import Task, registry
from hubmerge.hub.client import Hub
from hubmerge.isolation.child import ChildJob, fresh_environment, run_child
from hubmerge.isolation.in_child import WallLimitError
from localhub.fault_rules import Status

NOWHERE = "http://127.0.0.1:9"
TASK = {"repo": "org/data", "revision": "a" * 40, "subset": None, "split": "test", "few_shot_split": None}
TASK |= {"name": "gsm8k"}


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Callable[..., list[Mapping[str, Any]]]:
    """Fetch one task's rows in a process of its own; the rows of its split."""

    def run(repo: str, commit: str, *, home_name: str = "home", **changes: Any) -> list[Mapping[str, Any]]:
        folder, own = tmp_path / "rows", {"repo": repo, "revision": commit, **changes}
        spec = {**TASK, "limit": None, "expands": False, "folder": str(folder), **own}
        home = tmp_path / home_name
        told = {"token": hub.token, "cache": str(home), "tasks": [spec]}
        environment = fresh_environment(home, hub.endpoint, network=True)
        run_child(ChildJob(fetch_module.MODULE, told, environment, home / "log", 120.0, "the data"), lambda event: None)
        with pa.memory_map(str(next((folder / spec["split"]).glob("*.arrow")))) as source:
            rows: list[Mapping[str, Any]] = pa.ipc.open_stream(source).read_all().to_pylist()
        state = json.loads((folder / spec["split"] / "state.json").read_text())
        assert len(state["_data_files"]) == 1
        return rows

    return run


LINES = b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(10))


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [({"limit": 3}, range(3)), ({"limit": 3, "expands": True}, range(10))],  # a task that builds its own questions
)
def test_as_many_rows_of_the_commit_as_are_asked(fetch, hub, name, changes, numbers):
    api = HfApi(hub.endpoint, token=hub.token)
    sha = publish(api, name, {"test.jsonl": LINES})
    publish(api, name, {"test.jsonl": b'{"n": 99}\n'})
    assert [row["n"] for row in fetch(name, sha, **changes)] == list(numbers)


def test_processes_share_a_store_and_clear_what_killed_ones_left(fetch, hub, name, tmp_path):
    (tmp_path / "rows.1.partial" / "test").mkdir(parents=True)
    sha = publish(HfApi(hub.endpoint, token=hub.token), name, {"test.jsonl": LINES})
    both = [Beside(partial(fetch, name, sha, home_name=home)) for home in ("one", "another")]
    assert [each.ended_with(120.0) for each in both] == [None, None]
    assert sorted(path.name for path in tmp_path.glob("rows*")) == ["rows"]


def test_a_full_disk_is_no_fault_of_the_dataset(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module, "load_split", full)
    with pytest.raises(OSError, match="No space left"):
        fetch_module._fetch_task(TASK, tmp_path / "rows", None, tmp_path)


EACH = """
import json, sys, time
from pathlib import Path
from hubmerge.errors import HubmergeError
from hubmerge.evaluation.fetch import _fetch_task
time.sleep = lambda seconds: None  # no client pauses between two tries
for number, (task, token) in enumerate(json.load(sys.stdin)):
    folder = Path(sys.argv[1], str(number))
    try:
        _fetch_task(task, folder, token, Path(sys.argv[1], "cache"))
        print("fetched")
    except HubmergeError as error:
        print(str(error).splitlines()[0] if not folder.exists() else "half-fetched")
"""


def said_of(tasks: list[tuple[dict[str, Any], str | None]], endpoint: str, folder: Path) -> list[str]:
    """What one fetching process says of each task, which it reads with the token beside it."""
    environment = fresh_environment(folder / "home", endpoint, network=True)
    return printed_by(EACH, str(folder), given=json.dumps(tasks), **environment).splitlines()


def test_what_cannot_be_read_is_refused_and_an_expired_token_is_no_fault_of_it(hub, name, tmp_path):
    data, images = {"test.jsonl": LINES}, {"test/a.png": b"\x89PNG no image", "test/b.png": b"\x89PNG"}
    cases: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
        (data, {"split": "validation"}, "E_EVALUATION.*validation"),
        (data, {"subset": "no-such-subset"}, "E_EVALUATION.*no-such-subset"),
        (data, {"revision": "0" * 40}, "E_EVALUATION.*cannot be read"),
        ({"test.jsonl": b'{"n": 1}\n{"n": [torn'}, {}, "E_EVALUATION.*cannot be read"),
        ({"notes.md": b"nothing here"}, {}, "E_"),
        ({"test.txt": b""}, {}, "E_"),
        (images, {}, "E_EVALUATION.*format that is not read"),
        (data, {"token": None}, "E_EVALUATION.*cannot be read"),
        (data, {"token": "hf_" + "x" * 34}, "E_LOGIN.*has expired"),
        (data, {}, "fetched"),
    ]
    asked = []
    for number, (files, changes, _) in enumerate(cases):
        repo = f"{name}-{number}"
        commit = publish(HfApi(hub.endpoint, token=hub.token), repo, files, private=True)
        task = {**TASK, "repo": repo, "revision": commit, "limit": None, "expands": False, **changes}
        asked.append((task, changes.get("token", hub.token)))
    told = said_of(asked, hub.endpoint, tmp_path)
    assert [(line, case) for line, case in zip(told, cases, strict=True) if not re.match(case[2], line)] == []


@pytest.mark.parametrize("task", [name for name, task in registry().items() if isinstance(task, Task)])
def test_rows_of_other_columns_are_the_dataset_s_fault_and_no_model_s(task):
    with pytest.raises(EvaluationError, match=f"not those that the task asks in org/data, {task}: got"):
        fetch_module._check(task, [{"n": 1}, {"n": 2}], "org/data")


def test_too_many_rows_are_refused_before_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "MAX_ROWS", 2)
    monkeypatch.setattr(fetch_module, "load_split", lambda *_, **__: [1, 2, 3])
    with pytest.raises(
        EvaluationError, match="a dataset is too long in org/data@aaaaaaaaaaaa: expected at most 2 rows"
    ):
        fetch_module._fetch_task(TASK, tmp_path / "rows", None, tmp_path)
    assert not (tmp_path / "rows").exists()


def test_a_hub_that_is_away_is_an_outage_and_no_fault_of_the_dataset(faulty_hub, switch, tmp_path):
    switch.add("/", Status(status=522), times=None)  # of a gateway
    for away in (NOWHERE, faulty_hub.endpoint):
        [said] = said_of([({**TASK, "limit": None}, "hf_" + "x" * 34)], away, tmp_path)
        assert re.match(f"{HubUnavailableError.code}: .*did not answer when a dataset was read", said)


def test_nobody_but_the_hub_is_told_what_is_fetched(tmp_path):
    """The library counts downloads at another host, by the dataset's name."""
    code = (
        "from unittest.mock import patch; from datasets import load\n"
        "with patch.object(load, 'get_session') as session: load.increase_load_count('org/secret')\n"
        "print(session.mock_calls)"
    )
    assert printed_by(code, **fresh_environment(tmp_path / "home", NOWHERE, network=True)) == "[]\n"


@pytest.mark.parametrize("ended", [MemoryLimitError("killed"), WallLimitError("too slow")], ids=lambda e: e.what)
def test_a_fetching_that_the_machine_ended_is_tried_again(hub, tmp_path, monkeypatch, ended):
    def run(*_: object) -> None:
        raise ended

    monkeypatch.setattr(fetch_module, "run_child", run)
    with pytest.raises(MachineFaultError, match=ended.what) as fault:
        fetch_module.fetch_rows(pin("zoo", hub), tmp_path, hub, tmp_path, 9.0, lambda _: None)
    assert fault.value.retryable


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without a name")
def test_a_child_of_a_user_without_a_name_has_one_which_torch_asks_for(tmp_path):
    code = "import getpass, os; os.setuid(54321); print(getpass.getuser())"
    environment = fresh_environment(tmp_path / "home", NOWHERE, network=False)
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == f"uid_{os.getuid()}\n"
