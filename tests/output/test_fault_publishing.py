"""What publishing promises when the way to the Hub is bad: one commit in the end, never two, never half of one.

A refused merge takes its empty repo away again, and never one that is anybody's: not even its own after a retry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from builders import T, read_model, write_model
from huggingface_hub import HfApi
from line import SHARDS, Line, Watcher, upload_family
from publishing import Publication

from hubmerge.errors import (
    CancelledError,
    HubmergeError,
    HubUnavailableError,
    NonFiniteError,
    PermissionDeniedError,
    SourceNotFoundError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import BranchMovedError, Patience, RefusedError, TooLateError
from hubmerge.output.publish import Published
from localhub.fault_rules import Delay, FaultSwitch, LostAnswer, Observe, Reset, StaleHead, Status
from localhub.process import LocalHubProcess

COMMIT = "/commit/main$"


@pytest.fixture
def job(faulty_hub: LocalHubProcess, tmp_path: Path, name: str, client_pauses: list[float]) -> Publication:
    return Publication(faulty_hub, tmp_path, name)


ROUTES = [
    *("/api/whoami-v2", "/api/models/ada/f-[0-9a-f]*$", "/api/repos/create", "/api/validate-yaml"),
    *("/api/models/.*/preupload/main", r"\.git/info/lfs/objects/batch", "/lfs-uploads/"),
    *(r"\.git/info/lfs/verify", COMMIT),
]
TROUBLE = {
    "429": Status(status=429, retry_after="7"),
    "503": Status(status=503),
    "reset-before": Reset(at=0, of="request"),
    "lost-answer": LostAnswer(),
    "half-an-answer": Reset(at=1),
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("route", ROUTES)
def test_trouble_at_any_step_ends_in_one_whole_commit(
    job: Publication, switch: FaultSwitch, route: str, trouble: str
) -> None:
    rule = switch.add(route, TROUBLE[trouble])
    done = job.publish()
    assert switch.state(rule).fired == 1
    assert job.is_whole_in_one_commit()
    assert done.commit == job.api.model_info(job.name).sha


def test_a_pause_that_the_hub_asks_for_is_kept_when_writing_too(
    job: Publication, switch: FaultSwitch, client_pauses: list[float]
) -> None:
    for route in ("/api/repos/create", "/lfs-uploads/", COMMIT):
        switch.add(route, Status(status=429, rate_limit_reset_s=9))
    job.publish()
    assert len([pause for pause in (*job.hub.pauses, *client_pauses) if 9 <= pause <= 10]) == 3
    assert job.is_whole_in_one_commit()


@pytest.mark.parametrize("status", [500, 503, 507])
def test_a_hub_that_takes_nothing_leaves_no_commit_and_the_next_try_is_whole(
    job: Publication, switch: FaultSwitch, status: int
) -> None:
    switch.add("/lfs-uploads/", Status(status=status, message="out of storage"), times=None)
    with pytest.raises(HubUnavailableError, match="out of storage") as caught:
        job.publish()
    assert caught.value.retryable
    assert job.titles() == ["initial commit"]
    switch.clear()
    job.publish()
    assert job.is_whole_in_one_commit()


@pytest.mark.parametrize(
    ("route", "status", "error"),
    [
        (COMMIT, 413, RefusedError),
        (COMMIT, 451, RefusedError),
        ("/lfs-uploads/", 400, RefusedError),
        ("/lfs-uploads/", 403, PermissionDeniedError),
    ],
)
def test_what_is_refused_for_good_is_asked_for_once_and_leaves_no_commit(
    job: Publication, switch: FaultSwitch, route: str, status: int, error: type[HubmergeError]
) -> None:
    rule = switch.add(route, Status(status=status, message="not here"), methods=["POST", "PUT"], times=None)
    with pytest.raises(error, match="not here") as caught:
        job.publish()
    assert not caught.value.retryable
    assert switch.state(rule).fired == 1
    assert not job.hub.pauses
    assert job.titles() == ["initial commit"]
    switch.clear()
    job.publish()
    assert job.is_whole_in_one_commit()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "<Error><Code>RequestTimeout</Code></Error>"),
        (403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"),
    ],
)
def test_an_upload_that_came_too_late_for_its_signed_address_gets_another_one(
    job: Publication, switch: FaultSwitch, status: int, said: str
) -> None:
    rule = switch.add("/lfs-uploads/", Status(status=status, message=said), times=2)
    addresses = switch.add("/info/lfs/objects/batch", Observe(), times=None)
    job.publish()
    assert switch.state(rule).fired == 2
    assert switch.state(addresses).seen >= 3
    assert job.is_whole_in_one_commit()


def test_uploads_that_are_ever_too_late_are_given_up_after_five_tries_with_growing_pauses(
    job: Publication, switch: FaultSwitch
) -> None:
    said = "<Error><Code>RequestTimeout</Code></Error>"
    switch.add("/lfs-uploads/", Status(status=400, message=said), times=60)
    with pytest.raises(TooLateError) as caught:
        job.publish()
    assert caught.value.retryable
    assert len(job.hub.pauses) == 4
    assert job.hub.pauses[3] > 2 * job.hub.pauses[0]  # from 0.25–0.5 s to 2–4 s
    switch.clear()
    job.publish()
    assert job.is_whole_in_one_commit()


def test_a_lost_answer_behind_a_stale_head_makes_no_second_commit(job: Publication, switch: FaultSwitch) -> None:
    """After the commit the target still looks empty for a while, as on a replica that lags."""
    commits = switch.add(COMMIT, Observe(), methods=["POST"], times=None)
    switch.add(COMMIT, LostAnswer(), methods=["POST"])
    switch.add(f"/api/models/{job.name}$", StaleHead(), skip=3, times=2)  # missing, twice; made; then after the commit
    done = job.publish()
    assert job.is_whole_in_one_commit()
    assert done.commit == job.api.model_info(job.name).sha
    assert 2 <= switch.state(commits).seen <= 3
    assert job.hub.pauses, "a replica that lags is not asked again at once"


def test_a_head_that_stays_stale_is_given_up_after_pauses_and_the_next_try_finds_the_commit(
    job: Publication, switch: FaultSwitch
) -> None:
    done = job.publish()
    # the client asks for the head in a way of its own when it finds nothing to change
    rule = switch.add(f"/api/models/{job.name}(/revision/main)?$", StaleHead(), times=None)
    with pytest.raises(BranchMovedError) as caught:
        job.publish()
    assert caught.value.retryable
    assert len(job.hub.pauses) == 4
    assert switch.state(rule).fired > 10
    switch.clear()
    assert job.is_whole_in_one_commit()
    assert job.publish() == done


def test_two_workers_that_publish_the_same_merge_at_once_make_one_commit(
    faulty_hub: LocalHubProcess, tmp_path: Path, name: str, switch: FaultSwitch, client_pauses: list[float]
) -> None:
    jobs = [Publication(faulty_hub, tmp_path, name) for _ in range(2)]
    jobs[0].api.create_repo(name)
    commits = switch.add(COMMIT, Observe(), methods=["POST"], times=None)
    switch.add(COMMIT, Delay(seconds=1), methods=["POST"])  # the first to come is overtaken
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(Publication.publish, jobs))
    assert done[0] == done[1]
    assert jobs[0].is_whole_in_one_commit()
    assert switch.state(commits).seen <= 2


def test_a_worker_that_was_overtaken_between_two_tries_finds_the_commit_of_the_other(
    faulty_hub: LocalHubProcess, tmp_path: Path, name: str, switch: FaultSwitch, client_pauses: list[float]
) -> None:
    slow, fast = (Publication(faulty_hub, tmp_path, name) for _ in range(2))
    overtaken: list[Published] = []
    slow.hub.patience = Patience(sleep=lambda seconds: overtaken.append(fast.publish()))
    switch.add(COMMIT, Status(status=503))
    assert [slow.publish()] == overtaken
    assert slow.is_whole_in_one_commit()


@pytest.fixture(scope="module")
def hub_of_parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    """A Hub that takes large files in parts."""
    options = ("--faults", "--multipart-bytes", "100000", "--part-bytes", "150000")
    with LocalHubProcess(tmp_path_factory.mktemp("parts"), options=options) as hub:
        yield hub


@pytest.mark.parametrize("step", ["/[1-9]$", "$"], ids=["part", "completion"])
@pytest.mark.parametrize(
    "trouble", [LostAnswer(), Status(status=503), Reset(at=10, of="request")], ids=lambda t: t.kind
)
def test_an_upload_in_parts_survives_trouble_at_every_step(
    hub_of_parts: LocalHubProcess, tmp_path: Path, name: str, client_pauses: list[float], step: str, trouble: Any
) -> None:
    with FaultSwitch(hub_of_parts.endpoint) as switch:
        job = Publication(hub_of_parts, tmp_path, name)
        rule = switch.add("/lfs-uploads/[0-9]+/[0-9a-f]+" + step, trouble)
        job.publish()
        assert switch.state(rule).fired == 1
        assert job.is_whole_in_one_commit()


DELETE = "/api/repos/delete$"
GATE = "model.layers.5.mlp.up_proj.weight"  # in the last shard


@pytest.fixture(scope="module")
def broken(faulty_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe whose second agent has one NaN near the end of its weights."""
    api = HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])
    folder = tmp_path_factory.mktemp("broken")
    recipe = upload_family(api, folder, f"ada/{folder.name}-")
    tensors = read_model(folder / "two")
    raw = tensors[GATE].raw.copy()
    raw.reshape(-1)[5] = np.uint16(0x7FC0)
    write_model(folder / "two", {**tensors, GATE: T("BF16", raw.shape, raw)}, shards=len(SHARDS))
    api.upload_folder(repo_id=recipe["agents"][1], folder_path=folder / "two")
    return {**recipe, "method": "linear"}


class Once(Watcher):
    """Acts once, as soon as it is time: by default when the merge has made its target."""

    def __init__(self, time: Callable[[], bool]) -> None:
        super().__init__()
        self.time, self.seen = time, self._look
        self.act: Callable[[], object] | None = None

    def _look(self, stage: str) -> None:
        if self.act is not None and self.time():
            act, self.act = self.act, None
            act()


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
    run.watcher.act = Mock(side_effect=error("now"))
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

    run.watcher.time, run.watcher.act = made.is_set, Mock(side_effect=CancelledError("now"))
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
