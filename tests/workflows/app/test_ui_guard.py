"""The layer before gradio: foreign pages are anonymous, uploads are closed, bodies and frames are bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from workflows.app.guard import MAX_BODY_BYTES, Guard

HOST = "127.0.0.1:7860"


def ask(
    headers: Mapping[str, str], path: str = "/gradio_api/queue/join", body: tuple[bytes, ...] = ()
) -> dict[str, Any]:
    """What the app behind the guard saw, and what came back."""
    seen: dict[str, Any] = {"messages": []}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen["headers"] = dict(scope["headers"])
        seen["messages"] = [await receive() for _ in body]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    chunks = iter(body)

    async def receive() -> Any:
        return {"type": "http.request", "body": next(chunks), "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen["status"], seen["answer"] = message["status"], dict(message["headers"])

    raw = [(name.encode(), value.encode()) for name, value in {"host": HOST, **headers}.items()]
    guard = Guard(app, hub="https://hub.example", hosts=("ada-merge.hf.space",))
    call = guard({"type": "http", "path": path, "headers": raw}, receive, send)
    with pytest.raises(StopIteration):  # nothing here waits, so one step runs it to its end
        call.send(None)
    return seen


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:7861", "http://127.0.0.1"])
def test_a_request_from_another_site_loses_its_cookies(origin: str) -> None:
    seen = ask({"origin": origin, "cookie": "session=s"})
    assert seen["status"] == 200
    assert b"cookie" not in seen["headers"]


@pytest.mark.parametrize("origin", [f"http://{HOST}", "https://ada-merge.hf.space", None])
def test_a_request_of_these_pages_or_of_a_program_keeps_them(origin: str | None) -> None:
    seen = ask({"cookie": "session=s"} | ({"origin": origin} if origin else {}))
    assert seen["headers"][b"cookie"] == b"session=s"


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/proxy=http://169.254.169.254/", "/monitoring"])
def test_what_no_page_needs_is_closed(path: str) -> None:
    seen = ask({}, path)
    assert seen["status"] == 404
    assert "headers" not in seen


def test_a_body_above_the_limit_is_refused_whether_its_length_is_stated_or_not() -> None:
    assert ask({"content-length": str(MAX_BODY_BYTES + 1)})["status"] == 413
    half = b"x" * (MAX_BODY_BYTES // 2)
    kinds = [message["type"] for message in ask({}, body=(half, half, b"x"))["messages"]]
    assert kinds == ["http.request", "http.request", "http.disconnect"]


def test_only_this_site_and_the_hub_may_frame_it() -> None:
    assert ask({})["answer"][b"content-security-policy"] == b"frame-ancestors 'self' https://hub.example"
