"""A refused merge takes its empty repo away again, and never one that is anybody's: not even its own after a retry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from builders import T, llama_shapes, random_base, sparse_agent, write_model
from huggingface_hub import HfApi
from line import Line, Watcher

from hubmerge.errors import CancelledError, HubUnavailableError, NonFiniteError, SourceNotFoundError
from hubmerge.hub.client import Hub
from localhub.fault_rules import FaultSwitch, LostAnswer, Observe, Status
from localhub.process import LocalHubProcess

DELETE = "/api/repos/delete$"
GATE = "model.layers.5.mlp.up_proj.weight"  # in the last shard


@pytest.fixture(scope="module")
def broken(faulty_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe whose second agent has one NaN near the end of its weights."""
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    folder = tmp_path_factory.mktemp("broken")
    base = random_base(3, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40))
    bad = dict(sparse_agent(base, 0.3, 2))
    raw = bad[GATE].raw.copy()
    raw.reshape(-1)[5] = np.uint16(0x7FC0)
    bad[GATE] = T("BF16", bad[GATE].shape, raw)
    for name, tensors in {"base": base, "one": sparse_agent(base, 0.2, 1), "bad": bad}.items():
        write_model(folder / name, tensors, shards=3)
        api.create_repo(f"ada/broken-{name}", exist_ok=True)  # where tests of two modules take turns
        api.upload_folder(repo_id=f"ada/broken-{name}", folder_path=folder / name)
    return {"base": "ada/broken-base", "agents": ["ada/broken-one", "ada/broken-bad"], "method": "linear"}


class Once(Watcher):
    """Acts once, as soon as it is time: by default when the merge has made its target."""

    def __init__(self, time: Callable[[], bool]) -> None:
        super().__init__()
        self.time, self.seen = time, self._look
        self.act: Callable[[], object] | None = None
        self.warnings: list[str] = []

    def _look(self, stage: str) -> None:
        if self.act is not None and self.time():
            act, self.act = self.act, None
            act()

    def warning(self, message: str) -> None:
        self.warnings.append(message)


class Run(Line):
    """A merge to the Hub, which can be run again as a worker would."""

    watcher: Once

    def __post_init__(self) -> None:
        super().__post_init__()
        self.watcher = Once((self.out / ".hubmerge" / "created.json").exists)

    def is_refused(self) -> None:
        with pytest.raises(NonFiniteError, match=GATE):
            self.to_hub()

    def as_a_worker(self) -> None:
        """Tried once more where an upload came while the repo was being made anew."""
        try:
            self.to_hub()
        except HubUnavailableError:
            self.to_hub()

    def is_there(self) -> bool:
        return self.api.repo_exists(self.target)


@pytest.fixture
def run(faulty_hub: LocalHubProcess, tmp_path: Path, broken: dict[str, Any], name: str, switch: FaultSwitch) -> Run:
    return Run(faulty_hub, tmp_path, dict(broken), name)


def test_a_merge_that_is_refused_after_its_first_shard_leaves_no_repo_behind(run: Run) -> None:
    run.is_refused()
    assert '"uploaded"' in (run.out / ".hubmerge" / "journal.jsonl").read_text()
    assert not run.is_there()
    run.is_refused()
    assert not run.is_there()
    assert run.watcher.warnings == []


def test_a_merge_that_is_refused_before_its_first_shard_makes_none(run: Run, switch: FaultSwitch) -> None:
    run.recipe["method"] = "ram_plus"  # measures everything first
    made = switch.add("/api/repos/create$", Observe(), times=None)
    run.is_refused()
    assert switch.state(made).seen == 0


TOUCHES = {
    "a file": lambda api, repo: api.upload_file(path_or_fileobj=b"x", path_in_repo="mine.txt", repo_id=repo),
    "a file that was removed again": lambda api, repo: (
        api.upload_file(path_or_fileobj=b"x", path_in_repo="mine.txt", repo_id=repo),
        api.delete_file("mine.txt", repo),
    ),
    "a branch": lambda api, repo: api.create_branch(repo, branch="mine"),
    "a tag": lambda api, repo: api.create_tag(repo, tag="v0"),
    "a word": lambda api, repo: api.create_discussion(repo, "When will it be there?"),
    "a pull request": lambda api, repo: api.create_discussion(repo, "Take this", pull_request=True),
    "made private": lambda api, repo: api.update_repo_settings(repo, private=True),
    "gated": lambda api, repo: api.update_repo_settings(repo, gated="auto"),
    "moved": lambda api, repo: api.move_repo(repo, repo + "-moved"),
    "made anew": lambda api, repo: (api.delete_repo(repo), api.create_repo(repo)),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_repo_that_anybody_has_touched_since_stays(run: Run, switch: FaultSwitch, touch: str) -> None:
    deleted = switch.add(DELETE, Observe(), times=None)
    run.watcher.act = lambda: TOUCHES[touch](run.api, run.target)
    with pytest.raises((NonFiniteError, SourceNotFoundError)):
        run.as_a_worker()
    assert run.watcher.act is None
    assert run.is_there()
    assert switch.state(deleted).seen == (touch == "made anew"), "by the one who made it anew"


def test_an_empty_repo_that_was_there_before_stays(run: Run, switch: FaultSwitch) -> None:
    run.api.create_repo(run.target)
    deleted = switch.add(DELETE, Observe(), times=None)
    run.is_refused()
    assert run.is_there()
    assert switch.state(deleted).seen == 0


def test_a_repo_of_which_nobody_knows_who_made_it_stays(run: Run, switch: FaultSwitch) -> None:
    lost = switch.add("/api/repos/create$", LostAnswer())
    run.is_refused()
    assert switch.state(lost).fired == 1
    assert run.is_there()


@pytest.mark.parametrize("error", [HubUnavailableError, CancelledError, KeyboardInterrupt])
def test_after_a_cancellation_or_an_error_that_passes_the_repo_stays_and_the_next_run_decides(
    run: Run, switch: FaultSwitch, error: type[BaseException]
) -> None:
    deleted = switch.add(DELETE, Observe(), times=None)

    def end() -> None:
        raise error("now")

    run.watcher.act = end
    with pytest.raises(error):
        run.to_hub()
    assert run.is_there()
    assert switch.state(deleted).seen == 0
    run.is_refused()
    assert not run.is_there(), "made by the first try of this very job"


def test_a_cancellation_right_after_the_repo_was_made_does_not_forget_who_made_it(run: Run) -> None:
    create, made = Hub.create_repo, threading.Event()

    def slow(hub: Hub, repo: str, *, private: bool) -> bool:
        result = create(hub, repo, private=private)
        made.set()
        assert hub.patience.stopped.wait(20)
        return result

    def end() -> None:
        raise CancelledError("now")

    run.watcher.time, run.watcher.act = made.is_set, end
    with patch.object(Hub, "create_repo", slow), pytest.raises(CancelledError):
        run.to_hub()
    assert made.is_set()
    assert run.is_there()
    run.is_refused()
    assert not run.is_there()


def test_a_hub_that_does_not_let_it_go_is_told_of_and_hides_no_refusal(run: Run, switch: FaultSwitch) -> None:
    switch.add(DELETE, Status(status=403))
    run.is_refused()
    assert run.is_there()
    assert [w for w in run.watcher.warnings if run.target in w and "could not be removed" in w]
