"""The route through real HTTP: who is let in, what is kept, and that the same delivery is kept once."""

import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr
from watch_helpers import SECRET, payload, post, serving

from hubmerge.errors import DiskError, LoginError
from workflows.jobs.store import Store
from workflows.watchers.webhook import MAX_BODY_BYTES, PATH, Inbox, Push, pushes, webhook_route

SHA = "a" * 40


@pytest.fixture
def inbox(store: Store) -> Inbox:
    return Inbox(store)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, SimpleNamespace]]:
    """One server for all tests, and what stands for the inbox in it."""
    kept = SimpleNamespace()
    with serving([webhook_route(SecretStr(f"{SECRET}\n"), kept)]) as url:  # from a file, as secrets often come
        yield url, kept


@pytest.fixture
def served(server: tuple[str, SimpleNamespace], inbox: Inbox) -> str:
    url, kept = server
    kept.receive = inbox.receive
    return url


@pytest.mark.parametrize("secret", [None, SecretStr(""), SecretStr("  ")])
def test_without_a_secret_there_is_no_route(inbox, secret):
    with pytest.raises(LoginError, match="needs a secret"):
        webhook_route(secret, inbox)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {SECRET}"}, 401),
        ({"X-Webhook-Secret": ""}, 403),
        ({"X-Webhook-Secret": SECRET[:-1]}, 403),
        ({"X-Webhook-Secret": SECRET + "x"}, 403),
        ({"X-Webhook-Secret": SECRET.upper()}, 403),
        ({"X-Webhook-Secret": b"\xff" * 10}, 403),
    ],
)
def test_a_forged_delivery_is_refused(served, inbox, headers, status):
    assert post(served, payload("zoo/agent", SHA), headers)[0] == status
    assert inbox.pending() == {}


def test_a_stranger_s_body_is_not_read(served):
    """The answer comes before the body: without the secret nobody makes the server hold bytes."""
    parts = urlsplit(served)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as raw:
        raw.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe", b"[" * 30_000, b"1" * 30_000])
def test_what_is_no_json_object_is_refused(served, inbox, body):
    assert post(served, body)[0] == 400
    assert inbox.pending() == {}


def test_a_body_above_the_limit_is_refused_stated_or_not(served, inbox):
    most = {**payload("zoo/agent", SHA), "filler": ""}
    filler = MAX_BODY_BYTES - len(json.dumps(most))
    fits = json.dumps({**most, "filler": "x" * filler}).encode()
    assert len(fits) == MAX_BODY_BYTES
    assert post(served, fits + b" ")[0] == 413
    assert post(served, iter([fits, b" "]))[0] == 413
    assert inbox.pending() == {}
    assert post(served, fits)[0] == 202
    assert post(served, iter([fits[:100], fits[100:]]))[0] == 202


def test_an_endless_body_ends_at_the_limit(served):
    parts = urlsplit(served)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as raw:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Webhook-Secret: {SECRET}\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.sendall(head.encode())
        for _ in range(9):  # 72 KiB, and no end
            raw.sendall(b"2000\r\n" + b" " * 0x2000 + b"\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_other_methods_are_not_offered(served):
    assert post(served, b"", method="GET")[0] == 405


@pytest.mark.parametrize(
    "changes",
    [
        {"updatedRefs": [{"ref": "refs/pr/1", "oldSha": None, "newSha": SHA}]},
        {"updatedRefs": [{"ref": "refs/heads/main", "oldSha": SHA, "newSha": None}]},
        {"updatedRefs": [{"ref": "refs/heads/dev", "oldSha": None, "newSha": SHA}]},
        {"updatedRefs": [{"ref": "refs/tags/main", "oldSha": None, "newSha": SHA}]},
        {"updatedRefs": [{"ref": "refs/heads/main", "newSha": SHA.upper()}]},
        {"updatedRefs": [{"ref": "refs/heads/main", "newSha": 7}, "x", None, []]},
        {"updatedRefs": {"ref": "refs/heads/main", "newSha": SHA}},
        {"updatedRefs": None},
        {"event": {"action": "create", "scope": "discussion"}},
        {"event": {"action": "create", "scope": ["repo"]}},
        {"event": "repo"},
        {"repo": {"type": "dataset", "name": "zoo/agent"}},
        {"repo": {"type": "model", "name": "../etc/passwd"}},
        {"repo": {"type": "model", "name": "agent"}},
        {"repo": {"type": "model", "name": "https://evil/zoo/agent"}},
        {"repo": {"type": "model", "name": 7}},
        {"repo": None},
    ],
)
def test_what_is_no_push_to_main_of_a_model_is_forgotten(served, inbox, changes):
    assert post(served, {**payload("zoo/agent", SHA), **changes}) == (202, {"stored": 0})
    assert inbox.pending() == {}


def test_a_thousand_refs_in_one_delivery_are_few_rows_wherever_main_stands_among_them(inbox):
    others = [{"ref": f"refs/heads/b{n}", "newSha": SHA} for n in range(300)]
    refs = [{"ref": "refs/heads/main", "newSha": f"{n:040x}"} for n in range(1000)]
    found = pushes(payload("zoo/agent", SHA, updatedRefs=others + refs))
    assert len(found) == 100
    assert inbox.receive(found) == 100
    assert inbox.receive(found) == 0


def test_a_delivery_waits_once_until_it_is_handled(inbox):
    old, new = (Push("zoo/agent", c * 40) for c in "ab")
    assert inbox.receive([old, old]) == 1
    handled = list(inbox.pending())
    assert inbox.receive([old, new]) == 1
    inbox.settle(handled)
    assert len(inbox.pending()) == 1
    assert inbox.receive([new]) == 0


def test_a_delivery_that_cannot_be_kept_is_to_be_sent_again(server):
    url, kept = server
    kept.receive = Mock(side_effect=DiskError("the job database cannot be written"))
    assert post(url, payload("zoo/agent", SHA))[0] == 503
