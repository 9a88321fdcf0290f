"""The switches themselves, seen by a client that knows nothing but HTTP."""

import http.client
import json
import time
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from huggingface_hub import HfApi
from processes import until
from raw_requests import commit_files, exchange, whole

from hubmerge.errors import HubUnavailableError
from localhub.fault_rules import (
    ADMIN_PATH,
    Delay,
    FaultSwitch,
    LostAnswer,
    Observe,
    Reset,
    StaleHead,
    Stall,
    Status,
    WholeFile,
    WrongByte,
)
from localhub.process import LocalHubProcess

CONTENT = bytes(range(256)) * 4000  # a megabyte: more than one write of the server


@pytest.fixture
def ada(faulty_hub: LocalHubProcess) -> HfApi:
    return HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])


@pytest.fixture
def path(ada: HfApi, name: str) -> str:
    """The address of a file with CONTENT."""
    ada.create_repo(name)
    ada.upload_file(repo_id=name, path_or_fileobj=CONTENT, path_in_repo="file.bin")
    return f"/{name}/resolve/main/file.bin"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_without_the_option_there_is_no_such_route(local_hub, method):
    answer = whole(local_hub, method, ADMIN_PATH, b'{"path": "x", "fault": {"kind": "observe"}}')
    assert answer.status == 404
    with pytest.raises(HubUnavailableError, match="--faults"):
        FaultSwitch(local_hub.endpoint).states()


GOOD: dict[str, Any] = {"path": "/x", "fault": {"kind": "reset", "at": 5}}
WRONG = (
    *({"surprise": 1}, {"path": "("}, {"methods": ["get"]}, {"methods": "GET"}, {"skip": -1}, {"times": 0}),
    *({"times": True}, {"times": "1"}),
)


def test_a_rule_that_is_none_is_refused_and_changes_nothing(faulty_hub, switch):
    switch.add("/other", Observe())
    before = switch.states()
    faults = [{"fault": {"kind": kind, **more}} for kind, wrong in FAULTS.items() for more in wrong]
    bodies = [json.dumps({**GOOD, **change}).encode() for change in (*WRONG, *faults)]
    for body in (b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"path": "/x"}', *bodies):
        answer = whole(faulty_hub, "POST", ADMIN_PATH, body, Content_Type="application/json")
        assert answer.status == 400, body[:200]
    assert switch.states() == before


def test_a_form_of_a_web_page_and_a_rebound_name_do_not_reach_the_switches(faulty_hub, switch):
    rule = json.dumps(GOOD).encode()
    assert whole(faulty_hub, "POST", ADMIN_PATH, rule, Content_Type="text/plain").status == 415
    evil = whole(faulty_hub, "POST", ADMIN_PATH, rule, Content_Type="application/json", Host="evil.example")
    assert evil.status == 421
    assert switch.states() == ()


def test_rules_are_counted_skipped_and_used_up_each_for_itself(faulty_hub, switch, path):
    second = switch.add("/resolve/", Status(status=503), methods=["GET"], skip=1, times=2)
    every = switch.add(r"file\.bin$", Observe(), times=None)
    assert [whole(faulty_hub, "GET", path).status for _ in range(5)] == [200, 503, 503, 200, 200]
    assert whole(faulty_hub, "HEAD", path).status == 200
    whole(faulty_hub, "GET", path, Range="bytes=1-2")
    state = switch.state(second)
    assert (state.seen, state.fired) == (6, 2)
    assert [r.hit for r in state.requests] == [False, True, True, False, False, False]
    state = switch.state(every)
    assert (state.seen, state.fired) == (7, 7)
    assert (state.requests[-1].method, state.requests[-1].path, state.requests[-1].range) == ("GET", path, "bytes=1-2")
    switch.clear()
    assert switch.states() == ()


@pytest.mark.parametrize("at", [0, 1, 70_000, 999_999])
def test_a_reset_delivers_the_bytes_before_it_and_no_more(faulty_hub, switch, path, at):
    switch.add("/resolve/", Reset(at=at))
    answer, error = exchange(faulty_hub, "GET", path)
    assert (answer.status, answer.body) == (200, CONTENT[:at])
    assert isinstance(error, ConnectionResetError)
    assert whole(faulty_hub, "GET", path).body == CONTENT


@pytest.mark.parametrize(
    ("fault", "titles"),
    [(Reset(at=100, of="request"), ["initial commit"]), (LostAnswer(), ["files", "initial commit"])],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_reset_upload_changes_nothing_and_a_lost_answer_leaves_the_commit(switch, ada, name, fault, titles):
    ada.create_repo(name)
    rule = switch.add("/commit/main", fault, methods=["POST"])
    with pytest.raises(Exception, match=r"[Rr]eset|[Bb]roken|[Dd]isconnect"):
        commit_files(ada, name, {"a.txt": b"a" * 5000})
    assert switch.state(rule).fired == 1
    assert [c.title for c in ada.list_repo_commits(name)] == titles


@pytest.mark.parametrize("fault", [Delay(seconds=0.2), Stall(at=70_000, seconds=0.2)], ids=lambda f: f.kind)
def test_a_delayed_request_is_handled_and_a_stalled_body_goes_on(faulty_hub, switch, path, fault):
    rule = switch.add("/resolve/", fault)
    begun = time.monotonic()
    assert whole(faulty_hub, "GET", path).body == CONTENT
    assert time.monotonic() - begun >= 0.2
    assert (switch.state(rule).fired, switch.state(rule).left) == (1, 0)


def test_a_stale_head_is_an_earlier_commit_of_main_everywhere(faulty_hub, switch, ada, name):
    ada.create_repo(name)
    for number in (1, 2):
        ada.upload_file(repo_id=name, path_or_fileobj=str(number).encode(), path_in_repo="n.txt")
    second, first, initial = (c.commit_id for c in ada.list_repo_commits(name))
    switch.add(name, StaleHead(), times=None)
    assert ada.model_info(name).sha == first
    assert ada.model_info(name, revision="main").sha == first
    assert whole(faulty_hub, "GET", f"/{name}/resolve/main/n.txt").body == b"1"
    assert [c.commit_id for c in ada.list_repo_commits(name)] == [first, initial]
    assert {f.path for f in ada.list_repo_tree(name)} == {".gitattributes", "n.txt"}
    assert ada.model_info(name, revision=second).sha == second, "a pinned commit is what it is"
    switch.clear()
    switch.add(name, StaleHead(commits=50), times=None)
    assert ada.model_info(name).sha == initial
    assert whole(faulty_hub, "GET", f"/{name}/resolve/main/n.txt").status == 404


def test_several_faults_of_one_request_all_apply(faulty_hub, switch, path):
    switch.add("/resolve/", Reset(at=100))
    switch.add("/resolve/", WrongByte(at=3))
    switch.add("/resolve/", WholeFile())
    answer, error = exchange(faulty_hub, "GET", path, Range="bytes=50-60")
    assert isinstance(error, ConnectionResetError)
    assert answer.body == CONTENT[:3] + bytes([CONTENT[3] ^ 0xFF]) + CONTENT[4:100]
    switch.add("/resolve/", WrongByte(at=53, mask=1))  # of the file, not of the range
    assert whole(faulty_hub, "GET", path, Range="bytes=50-53").body == CONTENT[50:53] + bytes([CONTENT[53] ^ 1])


FAULTS = {
    "earthquake": ({},),
    "reset": ({}, {"at": -1}, {"at": 1.5}, {"at": 1, "of": "mind"}),
    "delay": ({"seconds": -1}, {"seconds": float("nan")}),
    "status": ({"status": 200}, {"status": 600}),
    "wrong_byte": ({"at": 1, "mask": 0},),
    "stale_head": ({"commits": 0},),
}


def test_a_range_is_answered_with_the_whole_file(faulty_hub, switch, path):
    switch.add("/resolve/", WholeFile())
    answer = whole(faulty_hub, "GET", path, Range="bytes=10-19")
    assert (answer.status, answer.body) == (200, CONTENT)
    assert whole(faulty_hub, "GET", path, Range="bytes=10-19").status == 206


@pytest.mark.parametrize(("range_", "first"), [(None, 0), ("bytes=600000-600009", 600_000), ("bytes=0-9", 0)])
def test_a_wrong_byte_stands_at_its_place_in_the_file(faulty_hub, switch, path, range_, first):
    switch.add("/resolve/", WrongByte(at=600_003, mask=1))
    body = whole(faulty_hub, "GET", path, **({"Range": range_} if range_ else {})).body
    right = CONTENT[first : first + len(body)]
    wrong = [first + i for i, (a, b) in enumerate(zip(body, right, strict=True)) if a != b]
    assert wrong == ([600_003] if first + len(body) > 600_003 else [])
    assert all(body[i - first] == CONTENT[i] ^ 1 for i in wrong)


def test_a_refusal_carries_what_a_client_is_to_obey(faulty_hub, switch, path):
    fault = Status(status=429, retry_after="7", rate_limit_reset_s=9, message="slow dówn")
    switch.add("/resolve/", fault)
    answer = whole(faulty_hub, "GET", path)
    assert answer.status == 429
    assert (answer.headers["retry-after"], answer.headers["ratelimit"]) == ("7", '"api";r=0;t=9')
    assert json.loads(answer.body)["error"] == "slow dówn"


@pytest.mark.parametrize("fault", [Delay(seconds=600), Stall(at=70_000)], ids=lambda f: f.kind)
def test_a_client_that_hangs_up_while_it_waits_is_counted(faulty_hub, switch, path, fault):
    rule = switch.add("/resolve/", fault)
    connection = http.client.HTTPConnection(faulty_hub.endpoint.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    if isinstance(fault, Stall):
        assert connection.getresponse().read(70_000) == CONTENT[:70_000]
    until(lambda: switch.state(rule).fired)
    assert switch.state(rule).left == 0
    connection.close()
    until(lambda: switch.state(rule).left == 1)  # which the server takes a moment to see
    assert whole(faulty_hub, "GET", path).body == CONTENT


def test_a_stale_answer_is_the_only_one_on_a_connection_that_the_server_made_wait(faulty_hub, ada, switch, path, name):
    rule = switch.add("/preupload/", StaleHead())
    address = urlsplit(faulty_hub.endpoint).netloc
    headers = {"Authorization": f"Bearer {faulty_hub.tokens['ada']}", "Content-Type": "application/json"}
    files = [{"path": f"{n}.txt", "size": 1, "sample": ""} for n in range(5000)]  # more than the server takes ahead
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request("POST", f"/api/models/{name}/preupload/main", json.dumps({"files": files}), headers)
        connection.getresponse().read()
        assert switch.state(rule).fired == 1
        connection.request("GET", f"/api/models/{name}", headers=headers)
        assert json.loads(connection.getresponse().read())["sha"] == ada.list_repo_commits(name)[0].commit_id
