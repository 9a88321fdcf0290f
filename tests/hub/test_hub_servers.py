"""Servers that lie, break or lead elsewhere: no byte is taken that was not asked for; nobody else sees the token."""

import gzip
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http
from processes import Beside, printed_by
from scripted_hub import Answer, Request, ScriptedHub, error
from served_models import fetch, weights

from hubmerge.errors import (
    CorruptError,
    DiskError,
    FormatError,
    HubUnavailableError,
    LoginError,
    PermissionDeniedError,
    SourceChangedError,
    SourceNotFoundError,
)
from hubmerge.hub import client
from hubmerge.hub.cache import ClientCache
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience, TransientHubError, asked_pause_s, tell_retries
from hubmerge.hub.login import stored_token
from hubmerge.hub.names import FileInfo, blob_id
from hubmerge.settings import DEFAULT_ENDPOINT

STATED = ["", "bytes 0-8/13512", "bytes 1-8/13512", "bytes 0-7", "bytes 00-7/13512", "x"]
UNNAMED_SOURCE = {
    "task": {"type": "t"},
    "dataset": {"type": "d", "name": "n"},
    "metrics": [{"type": "x", "value": 1}],
    "source": {"name": "a"},
}


@pytest.mark.parametrize(
    ("status", "stated"), [*((206, stated) for stated in STATED), (200, "bytes 0-7/13512"), (200, "")]
)
def test_another_range_than_the_one_asked_for_and_a_whole_file_in_its_place_are_refused(
    server, hub, pauses, status, stated
):
    server.bend = lambda request: Answer(status, b"12345678", {"Content-Range": stated} if stated else {})
    with pytest.raises(HubUnavailableError, match="did not answer the byte range"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)
    assert pauses == [], "a server that does not know ranges will not learn it in a second"


@pytest.mark.parametrize("chunked", [False, True])
def test_more_bytes_than_asked_for_are_not_taken(server, hub, chunked):
    headers = {"Content-Range": "bytes 0-7/13512"}
    server.bend = lambda request: Answer(206, b"x" * 5_000_000, headers, chunked=chunked)
    with pytest.raises(FormatError, match="more than was asked for"):
        hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8)
    server.bend = lambda request: Answer(200, b"x" * 5_000_000, chunked=chunked)
    with pytest.raises(FormatError, match="more than was asked for"):
        hub.read_file(server.repo, server.sha, "config.json", 1000)


def test_compressed_answers_are_refused(server, hub):
    server.bend = lambda request: Answer(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
    with pytest.raises(HubUnavailableError, match="compresses"):
        hub.read_file(server.repo, server.sha, "config.json")
    assert server.requests[-1].headers["accept-encoding"] == "identity"


def test_too_few_bytes_are_asked_for_again(server, hub, pauses):
    assert hub.read_range(server.repo, server.sha, "model.safetensors", 8, 8) == b""
    assert server.requests == [], "an empty range asks nobody"
    answers = [Answer(206, b"1234", {"Content-Range": "bytes 0-7/13512"}), Answer(503), None]
    server.bend = lambda request: answers.pop(0)
    expected = server.files["model.safetensors"][:8]
    assert hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8) == expected
    assert len(pauses) == 2


def test_a_range_is_read_into_memory_that_is_there(server, hub, pauses):
    """From its start again where it broke off, and never beyond its end."""
    answers = [Answer(206, b"1234", {"Content-Range": "bytes 8-15/13512"}), None]
    server.bend = lambda request: answers.pop(0)
    out = bytearray(b"." * 16)
    hub.read_range_into(server.repo, server.sha, "model.safetensors", 8, memoryview(out)[4:12])
    assert bytes(out) == b"...." + server.files["model.safetensors"][8:16] + b"...."
    server.bend = lambda request: Answer(206, b"1" * 99, {"Content-Range": "bytes 8-15/13512"})
    with pytest.raises(FormatError, match="more than was asked for"):
        hub.read_range_into(server.repo, server.sha, "model.safetensors", 8, memoryview(out)[4:12])
    assert bytes(out[12:]) == b"...."


def test_a_download_that_breaks_off_goes_on_at_the_byte(server, hub, tmp_path, pauses):
    content = server.files["model.safetensors"]
    cuts = [1000, 5, 7000]

    def bend(request: Request) -> Answer | None:
        if not cuts or request.range is None:
            return None
        return Answer(**{**vars(server.honest(request)), "sent": cuts.pop(0)})

    server.bend = bend
    assert fetch(hub, server, tmp_path).read_bytes() == content
    starts = [r.range[0] for r in server.requests if r.range]
    assert starts == [0, 1000, 1005, 8005]
    assert len(pauses) == 3
    assert not list(tmp_path.rglob("*.partial"))


def leave(server: ScriptedHub, folder: Path, content: bytes, suffix: str = ".partial") -> None:
    """What an earlier process left of a download."""
    (folder / server.sha).mkdir()
    (folder / server.sha / f"model.safetensors{suffix}").write_bytes(content)


def corrupted(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def not_in_lfs(server: ScriptedHub) -> FileInfo:
    """The same weights in a repo whose .gitattributes does not name them."""
    file = weights(server)
    return replace(file, sha256=None, blob=blob_id(server.files[file.path]))


STATED_AS = pytest.mark.parametrize("stated", [weights, not_in_lfs])


@STATED_AS
@pytest.mark.parametrize("left", [0, 4321, None])
def test_corrupt_bytes_leave_no_file_under_the_final_name(server, hub, tmp_path, left, stated):
    """Served so, whatever of them lies there already."""
    file = stated(server)
    server.files["model.safetensors"] = corrupted(server.files["model.safetensors"])
    leave(server, tmp_path, server.files["model.safetensors"][:left])
    with pytest.raises(CorruptError) as caught:
        fetch(hub, server, tmp_path, file)
    assert caught.value.code == "E_CORRUPT"
    assert not any(p.is_file() for p in (tmp_path / server.sha).rglob("*")), "neither the file nor a partial one"


@STATED_AS
@pytest.mark.parametrize(
    ("name", "left", "starts"),
    [
        (".partial", lambda whole: whole[:4321], [4321]),  # of a killed process
        (".partial", lambda whole: corrupted(whole[:4321]), [4321, 0]),
        (".partial", corrupted, [0]),
        (".partial", lambda whole: whole + b"x", [0]),
        ("", lambda whole: whole, []),
        ("", corrupted, [0]),
    ],
)
def test_what_an_earlier_run_fetched_is_used_if_it_is_what_the_hub_states_and_fetched_again_if_not(
    server, hub, tmp_path, name, left, starts, stated
):
    content = server.files["model.safetensors"]
    leave(server, tmp_path, left(content), name)
    told: list[int] = []
    path = hub.download(server.repo, server.sha, stated(server), tmp_path, told.append)
    assert path.read_bytes() == content
    assert not list(tmp_path.rglob("*.partial"))
    assert [r.range for r in server.requests] == [(start, len(content) - 1) for start in starts]
    lay_there = len(left(content))
    assert told[0] == (lay_there if lay_there <= len(content) else 0)
    assert sum(told) % len(content) == 0  # once, or once more where what lay there was of no use


@STATED_AS
def test_a_damaged_file_of_the_client_s_is_fetched(server, hub, tmp_path, stated):
    content = server.files["model.safetensors"]
    file = replace(stated(server), here=tmp_path / "here")
    for lies_there, asked in ((content, 0), (corrupted(content), 1)):
        (tmp_path / "here").write_bytes(lies_there)
        assert fetch(hub, server, tmp_path, file).read_bytes() == content
        assert len(server.requests) == asked


def test_a_download_does_not_wait_for_a_server_that_sends_a_byte_at_a_time(server, hub, tmp_path):
    server.bend = lambda request: Answer(**{**vars(server.honest(request)), "sent": 1})
    with pytest.raises(TransientHubError):
        fetch(hub, server, tmp_path)
    assert len(server.requests) == 5


def test_a_full_disk_is_told_from_a_broken_network(server, hub, tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        fetch(hub, server, tmp_path)
    assert len(server.requests) == 1


def test_a_file_name_cannot_lead_out_of_the_cache(server, hub, tmp_path):
    for path in ("../x.safetensors", "/etc/passwd", "a/../../b", "a\\b", "a\0b", ""):
        with pytest.raises(FormatError, match="leads elsewhere"):
            fetch(hub, server, tmp_path, FileInfo(path, 4, None))
    assert server.requests == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 522])
def test_what_passes_is_repeated_with_growing_random_pauses(server, hub, pauses, status):
    server.bend = lambda request: error(status)
    with pytest.raises(TransientHubError, match=str(status)):
        hub.repo_state("org/model")
    assert len(server.requests) == 5
    limits = [0.5, 1.0, 2.0, 4.0]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, limits, strict=True))
    assert not any(pause in limits for pause in pauses), "drawn at random"


@pytest.mark.parametrize(
    ("status", "advice"), [(400, "refused again"), (405, "refused again"), (409, "later"), (451, "refused again")]
)
def test_what_does_not_pass_is_not_repeated_and_nobody_is_told_to_repeat_what_is_refused(server, hub, status, advice):
    server.bend = lambda request: error(status)
    with pytest.raises(HubUnavailableError) as caught:
        hub.repo_state("org/model")
    assert len(server.requests) == 1
    assert advice in str(caught.value)


def test_the_pause_that_a_server_asks_for_is_read_and_one_that_makes_no_sense_is_not():
    policy = {"ratelimit-policy": '"fixed window";"api";q=500;w=300'}
    for headers, seconds in (
        ({"retry-after": "7"}, 7.0),
        ({"ratelimit": '"api";r=0;t=42', **policy}, 42.0),
        ({"ratelimit": '"api";r=5;t=42', **policy}, None),
        ({"retry-after": "3", "ratelimit": '"api";r=0;t=42'}, 3.0),
        *(({"retry-after": odd}, None) for odd in ("soon", "-5", "9" * 400, "Wed, 21 Oct 2099 07:28:00 GMT")),
        *(({"ratelimit": f'"api";r=0;t={"9" * digits}'}, None) for digits in (400, 5000)),
    ):
        assert asked_pause_s(headers) == seconds


def test_the_pause_that_a_server_asks_for_is_kept(server, hub, pauses):
    answers: list[Answer | None] = [error(429, Retry_After="7"), None]
    server.bend = lambda request: answers.pop(0)
    hub.read_file(server.repo, server.sha, "config.json")
    (pause,) = pauses
    assert 7 <= pause <= 8


def test_a_pause_too_long_for_a_request_is_left_to_the_job(server, hub, pauses):
    server.bend = lambda request: error(429, RateLimit='"api";r=0;t=290')
    with pytest.raises(TransientHubError) as caught:
        hub.repo_state("org/model")
    assert caught.value.retryable
    assert caught.value.after_s == 290
    assert pauses == []


def test_the_bytes_of_a_merge_wait_for_the_end_of_the_hub_s_window_and_a_program_is_told_of_it_and_of_nothing_beside(
    server, hub, pauses, monkeypatch, capsys
):
    for name in ("", "hubmerge.hub.errors", "huggingface_hub.utils._http"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    monkeypatch.setattr(logging.getLogger("huggingface_hub.utils._http"), "propagate", True)
    told: list[str] = []
    tell_retries(told.append)
    answers: list[Answer | None] = [error(429, RateLimit='"resolvers";r=0;t=290'), None]
    server.bend = lambda request: answers.pop(0)
    hub.breakable().repo_state("org/model")
    [pause] = pauses
    assert 290 <= pause <= 291
    assert ["asks for a pause of 290 s" in line for line in told] == [True]
    assert capsys.readouterr().err == ""


def test_a_pause_beyond_the_hub_s_window_or_the_asker_s_time_is_waited_for_by_nobody(server, hub, pauses, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: pytest.fail("the client waits"))
    lost = partial(hub.missing_uploads, files=[("0" * 64, 1)])
    for status, encoding in ((429, ""), (503, ""), (429, "gzip")):
        server.bend = lambda request, status=status, encoding=encoding: replace(
            error(status, Retry_After="3600", Content_Encoding=encoding),
            body=gzip.compress(b'{"error": "busy"}') if encoding else b"busy",
        )
        for ask in (hub.breakable().repo_state, hub.head, hub.search_models, lost):
            with pytest.raises(TransientHubError) as caught:
                ask("org/model")
            assert caught.value.after_s == 3600
    server.bend = lambda request: error(429, Retry_After="20")
    hub.patience = replace(hub.patience, until=time.monotonic() + 10)
    for asked in (hub, hub.breakable()):
        with pytest.raises(TransientHubError):
            asked.repo_state("org/model")
    assert pauses == []


def test_a_hub_that_is_not_there_is_worth_a_retry(pauses):
    with pytest.raises(TransientHubError, match="cannot be reached") as caught:
        Hub("http://127.0.0.1:9", patience=Patience(sleep=pauses.append)).repo_state("org/model")
    assert caught.value.retryable
    assert len(pauses) == 4
    with pytest.raises(TransientHubError, match=r"cannot be reached in http://127\.0\.0\.1:9: got"):
        Hub("http://127.0.0.1:9", "hf_token", patience=Patience(sleep=pauses.append)).whoami()


ASKS: dict[str, Callable[[Hub], object]] = {
    "whoami": Hub.whoami,
    "head": lambda hub: hub.head("org/model"),
    "state": lambda hub: hub.repo_state("org/model"),
    "search": lambda hub: hub.search_models("x"),
    "lineage": Hub.find_models,
    "tree": lambda hub: hub.tree("org/model", "a" * 40),
    "history": lambda hub: hub.find_commit("org/model", "x"),
    "creation": lambda hub: hub.create_repo("org/model", private=True),
}


@pytest.mark.usefixtures("client_pauses")
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_hub_that_takes_a_question_and_says_nothing_is_not_waited_for_without_end(ask, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes what comes
        hub = Hub(f"http://127.0.0.1:{silent.getsockname()[1]}", "hf_x", patience=Patience(tries=1))
        error = Beside(lambda: ask(hub)).ended_with(15.0)
    assert isinstance(error, TransientHubError)
    assert "ReadTimeout" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"id":"org/model","sha":"abc","siblings":[]}',
        b'{"id":"../x","sha":"' + b"a" * 40 + b'"}',
        b'{"name":"ada","orgs":["zoo"]}',
        b'{"id":"org/model","sha":7}',
        *(
            b'{"id":"org/model","sha":"' + b"a" * 40 + b'",' + more + b"}"
            for more in (b'"siblings":[{"rfilename":3}]', b'"siblings":[{"rfilename":"a","size":"1"}]', b'"siblings":7')
        ),
    ],
)
def test_an_answer_without_sense_is_no_crash(server, hub, body):
    server.bend = lambda request: Answer(200, body, {"Content-Type": "application/json"})
    for ask in (
        lambda: hub.repo_state("org/model"),
        hub.whoami,
        lambda: hub.missing_uploads("org/model", [("a" * 64, 1)]),
    ):
        with pytest.raises(HubUnavailableError):
            ask()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"error": {"code": 507, "message": "out of storage"}}, "does not take a file .* `out of storage"),
        ({"actions": {"upload": {"href": "", "header": {"chunk_size": "x"}}}}, "makes no sense .* `chunk_size`"),
    ],
)
def test_a_file_that_the_hub_does_not_take_is_told_with_its_reason(server, hub, folder, said, told):
    """Both come from the client as errors of its own."""
    path = folder / "model.safetensors"
    mode = {"path": path.name, "uploadMode": "lfs", "shouldIgnore": False, "oid": None}
    body = json.dumps({"files": [mode], "objects": [{"oid": weights(server).sha256, "size": 1, **said}]}).encode()
    server.bend = lambda request: Answer(body=body)
    with pytest.raises(HubUnavailableError, match=told):
        hub.preupload("org/model", path, path.name)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_the_client_s_that_cannot_be_read_is_fetched(server, tmp_path, monkeypatch, name):
    """One of another user's, or one that was deleted since."""
    here = tmp_path / "models--org--model" / "snapshots" / server.sha / name
    here.parent.mkdir(parents=True)
    here.write_bytes(server.files[name])
    hub = Hub(server.endpoint, cache=ClientCache(tmp_path))
    assert hub.repo_state(server.repo).files[name].here == here
    read = {
        "model.safetensors": lambda: hub.read_range(server.repo, server.sha, name, 0, 8),
        "config.json": lambda: hub.read_file(server.repo, server.sha, name),
    }[name]
    server.requests.clear()
    expected = read()
    assert server.requests == []

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert read() == expected
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"tags": 5},
        {"model-index": [{"name": "a", "results": [UNNAMED_SOURCE]}]},
        {"ignore_metadata_errors": 1},
        {"model-index": "x"},
    ],
    ids=str,
)
def test_a_card_that_the_client_cannot_read_keeps_nobody_from_its_repo(server, hub, damage):
    server.card = {"license": "mit", **damage}
    assert hub.repo_state("org/model").license == "mit"
    server.card = "x"
    assert hub.repo_state("org/model").card == {}


def test_a_pinned_commit_is_not_swapped_for_another(server, hub):
    with pytest.raises(HubUnavailableError, match="another commit"):
        hub.repo_state("org/model", "b" * 40)


def test_an_error_page_without_end_is_not_read_to_its_end(server, hub):
    server.bend = lambda request: (
        error(404, "EntryNotFound", "x" * 60_000)
        if "api" in request.path
        else Answer(404, b"x" * 50_000_000, {"X-Error-Code": "EntryNotFound"})
    )
    with pytest.raises(SourceChangedError) as caught:
        hub.read_file(server.repo, server.sha, "config.json")
    assert len(str(caught.value)) < 1000
    assert server.hung_up.wait(timeout=30)


def test_a_redirect_on_the_same_hub_is_followed_with_the_token(server, hub):
    def bend(request: Request) -> Answer | None:
        if "/resolve/" in request.path and "moved" not in request.path:
            return Answer(307, headers={"Location": "/moved" + request.path})
        if request.path.startswith("/moved"):
            return server.honest(Request("GET", request.path.removeprefix("/moved"), request.headers))
        return None

    server.bend = bend
    assert hub.read_file(server.repo, server.sha, "config.json") == server.files["config.json"]
    assert [r.headers.get("authorization") for r in server.requests] == ["Bearer hf_canary_token"] * 2


def test_the_token_is_not_sent_to_another_origin(server, hub):
    with ScriptedHub(server.files) as storage:
        server.bend = lambda request: Answer(302, headers={"Location": storage.endpoint + request.path})
        expected = server.files["model.safetensors"][:8]
        assert hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8) == expected
        (request,) = storage.requests
        assert request.range == (0, 7)
        assert not {"authorization", "cookie"} & set(request.headers)
        assert "hf_canary_token" not in str(request)


def test_redirects_in_a_circle_come_to_an_end(server, hub):
    server.bend = lambda request: Answer(302, headers={"Location": request.path})
    with pytest.raises(HubUnavailableError, match="too many redirects"):
        hub.read_file(server.repo, server.sha, "config.json")
    assert len(server.requests) == 5


def test_a_local_hub_leads_to_no_other_machine(server, hub):
    for location in ("http://169.254.169.254/latest/", "https://example.org/x", "file:///etc/passwd"):
        server.bend = lambda request, location=location: Answer(302, headers={"Location": location})
        with pytest.raises(HubUnavailableError, match="another machine"):
            hub.read_file(server.repo, server.sha, "config.json")


def test_threads_that_connect_at_once_set_the_client_up_once(monkeypatch):
    """Setting it up closes the connections that another thread has just got."""
    set_up, factories = huggingface_hub.set_client_factory, []

    def slow(factory: Any) -> None:
        factories.append(factory)
        time.sleep(0.05)
        set_up(factory)

    monkeypatch.setattr(huggingface_hub, "set_client_factory", slow)
    client._set_timeouts.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        for asked in [pool.submit(client._limit_waiting) for _ in range(8)]:
            asked.result()
    assert len(factories) == 1


class Web:
    """The whole Internet as a function; nothing leaves this process."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.answer: Callable[[httpx2.Request], httpx2.Response] = lambda request: httpx2.Response(404)
        self.addresses: dict[str, list[str]] = {}

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self.answer(request)

    def resolve(self, host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in self.addresses[host]]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    web = Web()
    Hub("https://hub.example").connect()  # its own client factory is set once, by the first Hub that connects
    before = _http._GLOBAL_CLIENT_FACTORY
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(web.handle)))
    monkeypatch.setattr("hubmerge.hub.transfer.socket.getaddrinfo", web.resolve)
    yield web
    huggingface_hub.set_client_factory(before)


def lead_to(web: Web, location: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "hub.example" and request.url.scheme == "https":
            return httpx2.Response(302, headers={"Location": location})
        return httpx2.Response(200, stream=httpx2.ByteStream(b"content"))

    web.answer = answer


PRIVATE = (
    *("169.254.169.254", "10.0.0.7", "192.168.1.1", "172.16.0.1", "100.64.0.1", "127.0.0.1", "0.0.0.0"),
    *("::1", "fe80::1%eth0", "fd00::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "224.0.0.1"),
    "8.8.8.8 10.0.0.7",
)


@pytest.mark.parametrize(
    ("location", "addresses", "told"),
    [
        *(("https://inside.example/secret", addresses, "private network") for addresses in PRIVATE),
        *((f"http://{host}.example/x", "8.8.8.8", "not https") for host in ("inside", "hub")),
        *((location, "8.8.8.8", "not https") for location in ("ftp://inside.example/x", "file:///x")),
    ],
)
def test_a_public_hub_leads_to_https_in_the_internet_alone(web, location, addresses, told):
    web.addresses = {"inside.example": addresses.split(), "hub.example": ["8.8.4.4"]}
    lead_to(web, location)
    with pytest.raises(HubUnavailableError, match=told):
        Hub("https://hub.example", "hf_canary_token").read_file("org/model", "a" * 40, "config.json")
    assert [r.url.host for r in web.requests] == ["hub.example"]


def test_a_private_hub_may_lead_to_its_own_network(web):
    web.addresses = {"hub.example": ["10.0.0.1"], "cdn.example": ["10.0.0.2"]}
    lead_to(web, "https://cdn.example/x")
    assert Hub("https://hub.example").read_file("org/model", "a" * 40, "config.json") == b"content"


@pytest.mark.parametrize("proxy", ["HTTPS_PROXY", "all_proxy", None])
def test_storage_whose_name_a_proxy_alone_can_look_up_is_read_through_it(web, pauses, monkeypatch, proxy):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("hubmerge.hub.transfer.socket.getaddrinfo", unknown)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    lead_to(web, "https://cdn.example/x")
    hub = Hub("https://hub.example", patience=Patience(sleep=pauses.append))
    if proxy is None:
        with pytest.raises(TransientHubError, match="Name or service not known"):
            hub.read_file("org/model", "a" * 40, "config.json")
        return
    monkeypatch.setenv(proxy, "http://proxy.example:3128")
    assert hub.read_file("org/model", "a" * 40, "config.json") == b"content"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("HTTPS_PROXY", "socks5://u:s3cret@h:1", "E_SETTINGS: a proxy of a kind that cannot be used"),
        ("HTTPS_PROXY", "http://u:s3/cret@h:1", "E_HUB: a request that cannot be sent"),
        ("ALL_PROXY", "socks://u:s3cret@h:1", "E_SETTINGS: a proxy of a kind that cannot be used"),  # as GNOME sets it
        ("SSL_CERT_FILE", "/nowhere", "Name a file with the network's certificates in SSL_CERT_FILE."),
    ],
)
def test_a_way_out_that_cannot_be_used_is_told_without_its_password(name, value, told):
    code = """
from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
try:
    Hub("https://hub.example", patience=Patience(tries=1)).head("org/model")
except HubmergeError as error:
    print(error)
"""
    said = printed_by(code, **{name: value})
    assert told in said
    assert "s3" not in said


@pytest.mark.parametrize(("scheme", "status"), [("https", 0), ("http", 407)])
def test_a_proxy_that_refuses_its_user_is_named(web, scheme, status):
    """In the way to an https address it refuses the tunnel; else its answer stands for the Hub's."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if not status:
            raise httpx2.ProxyError("407 Proxy Authentication Required")
        return httpx2.Response(status)

    web.answer = answer
    with pytest.raises(HubUnavailableError, match=r"407.*Check the proxy, and its user and password in HTTPS_PROXY"):
        Hub(f"{scheme}://hub.example", patience=Patience(tries=1)).head("org/model")


@pytest.mark.parametrize(
    ("known", "after"),
    [("", "127.0.0.1,localhost,::1"), ("cdn.example,localhost", "cdn.example,localhost,127.0.0.1,::1"), ("*", "*")],
)
def test_a_hub_on_this_machine_is_asked_past_every_proxy(server, known, after):
    code = """
import os, sys
from hubmerge.hub.client import Hub
for _ in range(2):
    print(Hub(sys.argv[1]).head("org/model"), os.environ["no_proxy"])
"""
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    said = printed_by(code, server.endpoint, **proxies, NO_PROXY="not.read.beside.the.other", no_proxy=known)
    assert said.splitlines() == [f"{server.sha} {after}"] * 2


@pytest.mark.parametrize("words", ["Invalid credentials in Authorization header", "The token is expired", ""])
def test_a_token_that_ends_is_told_from_a_repo_that_is_gone_whatever_words_the_hub_has_for_it(web, words):
    """To a signed-in request a missing repo is 404; the client takes most of what is 401 for a missing repo."""
    headers = {"X-Error-Message": words} if words else {}
    web.answer = lambda request: httpx2.Response(401, headers=headers, stream=httpx2.ByteStream(b""))
    hub = Hub("https://hub.example", "hf_canary_token")
    for ask in (lambda: hub.head("org/model"), lambda: hub.read_file("org/model", "a" * 40, "config.json")):
        with pytest.raises(LoginError, match="not valid or has expired"):
            ask()


def test_a_login_that_a_windows_shell_wrote_is_named(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("hf_canary_token", encoding="utf-16")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(LoginError, match=rf"no text in {tmp_path}/token\. Write the token into it as UTF-8"):
        stored_token(DEFAULT_ENDPOINT)


def test_a_login_that_cannot_be_read_is_named_and_a_home_that_is_no_folder_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path))  # as Docker mounts a file that is not there
    with pytest.raises(LoginError, match=rf"cannot be used in {tmp_path}: got Is a directory\. Set HF_TOKEN"):
        stored_token(DEFAULT_ENDPOINT)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/dev/null/.cache/huggingface/token")
    assert stored_token(DEFAULT_ENDPOINT) is None


@pytest.mark.parametrize(
    ("token", "code"), [("", ""), ("", "RepoNotFound"), ("hf_canary_token", "RepoNotFound")], ids=str
)
def test_a_repo_that_the_hub_does_not_show_is_missing_to_whom_it_does_not_show_it(web, token, code):
    web.answer = lambda request: httpx2.Response(401, headers={"X-Error-Code": code} if code else {})
    with pytest.raises(SourceNotFoundError, match="no such repo, or one that you may not read"):
        Hub("https://hub.example", token).head("org/model")


@pytest.mark.parametrize("body", [b"", b"no"])
@pytest.mark.parametrize("status", [403, 404, 418, 503])
def test_neither_token_nor_signature_reaches_a_message(web, pauses, status, body):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, "https://cdn.example/x?X-Amz-Signature=canary_signature")
    redirect = web.answer

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "hub.example":
            return redirect(request)
        return httpx2.Response(status, stream=httpx2.ByteStream(body))

    web.answer = answer
    hub = Hub("https://hub.example", "hf_canary_token", patience=Patience(sleep=pauses.append))
    with pytest.raises((HubUnavailableError, PermissionDeniedError)) as caught:
        hub.read_file("org/model", "a" * 40, "config.json")
    shown = str(caught.value) + repr(caught.value) + repr(hub) + json.dumps(caught.value.as_dict())
    assert "canary" not in shown
    assert caught.value.__cause__ is None
