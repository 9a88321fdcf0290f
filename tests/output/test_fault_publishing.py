"""What publishing promises when the way to the Hub is bad: one commit in the end, never two, never half of one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from publishing import Publication

from hubmerge.errors import HubUnavailableError, PermissionDeniedError
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
def test_trouble_at_any_step_ends_in_one_whole_commit(job, switch, route, trouble):
    rule = switch.add(route, TROUBLE[trouble])
    done = job.publish()
    assert switch.state(rule).fired == 1
    assert job.is_whole_in_one_commit()
    assert done.commit == job.api.model_info(job.name).sha


def test_a_pause_that_the_hub_asks_for_is_kept_when_writing_too(job, switch, client_pauses):
    for route in ("/api/repos/create", "/lfs-uploads/", COMMIT):
        switch.add(route, Status(status=429, rate_limit_reset_s=9))
    job.publish()
    assert len([pause for pause in (*job.hub.pauses, *client_pauses) if 9 <= pause <= 10]) == 3
    assert job.is_whole_in_one_commit()


@pytest.mark.parametrize("status", [500, 503, 507])
def test_a_hub_that_takes_nothing_leaves_no_commit_and_the_next_try_is_whole(job, switch, status):
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
def test_what_is_refused_for_good_is_asked_for_once_and_leaves_no_commit(job, switch, route, status, error):
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
def test_an_upload_that_came_too_late_for_its_signed_address_gets_another_one(job, switch, status, said):
    rule = switch.add("/lfs-uploads/", Status(status=status, message=said), times=2)
    addresses = switch.add("/info/lfs/objects/batch", Observe(), times=None)
    job.publish()
    assert switch.state(rule).fired == 2
    assert switch.state(addresses).seen >= 3
    assert job.is_whole_in_one_commit()


def test_uploads_that_are_ever_too_late_are_given_up_after_five_tries_with_growing_pauses(job, switch):
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


def test_a_lost_answer_behind_a_stale_head_makes_no_second_commit(job, switch):
    """After the commit the target still looks empty for a while, as on a replica that lags."""
    commits = switch.add(COMMIT, Observe(), methods=["POST"], times=None)
    switch.add(COMMIT, LostAnswer(), methods=["POST"])
    switch.add(f"/api/models/{job.name}$", StaleHead(), skip=3, times=2)  # missing, twice; made; then after the commit
    done = job.publish()
    assert job.is_whole_in_one_commit()
    assert done.commit == job.api.model_info(job.name).sha
    assert 2 <= switch.state(commits).seen <= 3
    assert job.hub.pauses, "a replica that lags is not asked again at once"


def test_a_head_that_stays_stale_is_given_up_after_pauses_and_the_next_try_finds_the_commit(job, switch):
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
    faulty_hub, tmp_path, name, switch, client_pauses
):
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
    faulty_hub, tmp_path, name, switch, client_pauses
):
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
def test_an_upload_in_parts_survives_trouble_at_every_step(hub_of_parts, tmp_path, name, client_pauses, step, trouble):
    with FaultSwitch(hub_of_parts.endpoint) as switch:
        job = Publication(hub_of_parts, tmp_path, name)
        rule = switch.add("/lfs-uploads/[0-9]+/[0-9a-f]+" + step, trouble)
        job.publish()
        assert switch.state(rule).fired == 1
        assert job.is_whole_in_one_commit()
