"""Redirects: where a server may lead the client, and who sees the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub.utils import _http
from scripted_hub import Answer, Request, ScriptedHub
from served_models import Clock

from hubmerge.errors import HubUnavailableError, PermissionDeniedError
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience


def test_a_redirect_on_the_same_hub_is_followed_with_the_token(server: ScriptedHub, hub: Hub):
    def bend(request: Request) -> Answer | None:
        if "/resolve/" in request.path and "moved" not in request.path:
            return Answer(307, headers={"Location": "/moved" + request.path})
        if request.path.startswith("/moved"):
            return server.honest(Request("GET", request.path.removeprefix("/moved"), request.headers))
        return None

    server.bend = bend
    assert hub.read_file(server.repo, server.sha, "config.json") == server.files["config.json"]
    assert [r.headers.get("authorization") for r in server.requests] == ["Bearer hf_canary_token"] * 2


def test_the_token_is_not_sent_to_another_origin(server: ScriptedHub, hub: Hub):
    with ScriptedHub(server.files) as storage:
        server.bend = lambda request: Answer(302, headers={"Location": storage.endpoint + request.path})
        expected = server.files["model.safetensors"][:8]
        assert hub.read_range(server.repo, server.sha, "model.safetensors", 0, 8) == expected
        (request,) = storage.requests
        assert request.range == (0, 7)
        assert not {"authorization", "cookie"} & set(request.headers)
        assert "hf_canary_token" not in str(request)


def test_redirects_in_a_circle_come_to_an_end(server: ScriptedHub, hub: Hub):
    server.bend = lambda request: Answer(302, headers={"Location": request.path})
    with pytest.raises(HubUnavailableError, match="too many redirects"):
        hub.read_file(server.repo, server.sha, "config.json")
    assert len(server.requests) == 5


@pytest.mark.parametrize("location", ["http://169.254.169.254/latest/", "https://example.org/x", "file:///etc/passwd"])
def test_a_local_hub_leads_to_no_other_machine(server: ScriptedHub, hub: Hub, location: str):
    server.bend = lambda request: Answer(302, headers={"Location": location})
    with pytest.raises(HubUnavailableError, match="another machine"):
        hub.read_file(server.repo, server.sha, "config.json")


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


@pytest.mark.parametrize(
    "addresses",
    [
        *("169.254.169.254", "10.0.0.7", "192.168.1.1", "172.16.0.1", "100.64.0.1", "127.0.0.1", "0.0.0.0"),
        *("::1", "fe80::1%eth0", "fd00::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "224.0.0.1"),
        "8.8.8.8 10.0.0.7",
    ],
)
def test_a_public_hub_does_not_lead_into_a_private_network(web: Web, addresses: str):
    web.addresses = {"inside.example": addresses.split()}
    lead_to(web, "https://inside.example/secret")
    with pytest.raises(HubUnavailableError, match="private network"):
        Hub("https://hub.example", "hf_canary_token").read_file("org/model", "a" * 40, "config.json")
    assert [r.url.host for r in web.requests] == ["hub.example"]


@pytest.mark.parametrize(
    "location", ["http://cdn.example/x", "http://hub.example/x", "ftp://cdn.example/x", "file:///x"]
)
def test_a_public_hub_leads_to_https_only(web: Web, location: str):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, location)
    with pytest.raises(HubUnavailableError, match="not https"):
        Hub("https://hub.example", "hf_canary_token").read_file("org/model", "a" * 40, "config.json")
    assert len(web.requests) == 1


def test_public_storage_is_read_without_the_token(web: Web):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, "https://cdn.example/x?X-Amz-Signature=abc")
    hub = Hub("https://hub.example", "hf_canary_token")
    assert hub.read_file("org/model", "a" * 40, "config.json") == b"content"
    first, second = web.requests
    assert first.headers["authorization"] == "Bearer hf_canary_token"
    assert "authorization" not in second.headers


@pytest.mark.parametrize("body", [b"", b"no"])
@pytest.mark.parametrize("status", [403, 404, 418, 503])
def test_neither_token_nor_signature_reaches_a_message(web: Web, clock: Clock, status: int, body: bytes):
    web.addresses = {"cdn.example": ["8.8.8.8"]}
    lead_to(web, "https://cdn.example/x?X-Amz-Signature=canary_signature")
    redirect = web.answer

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "hub.example":
            return redirect(request)
        return httpx2.Response(status, stream=httpx2.ByteStream(body))

    web.answer = answer
    hub = Hub("https://hub.example", "hf_canary_token", patience=Patience(sleep=clock))
    with pytest.raises((HubUnavailableError, PermissionDeniedError)) as caught:
        hub.read_file("org/model", "a" * 40, "config.json")
    shown = str(caught.value) + repr(caught.value) + repr(hub) + json.dumps(caught.value.as_dict())
    assert "canary" not in shown
    assert caught.value.__cause__ is None
