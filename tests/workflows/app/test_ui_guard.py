"""The layer before gradio: foreign pages are anonymous, uploads are closed, bodies and frames are bounded."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from workflows.app.guard import MAX_BODY_BYTES, Guard

HOST = "127.0.0.1:7860"


async def told(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers with what it was sent."""
    request = Request(scope, receive)
    try:
        size = len(await request.body())
    except ClientDisconnect:
        size = None
    await JSONResponse({"size": size, **request.headers})(scope, receive, send)


SITE = TestClient(Guard(told, hub="https://hub.example", hosts=["ada-merge.hf.space"]), base_url=f"http://{HOST}")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:7861", "http://127.0.0.1"])
def test_a_request_from_another_site_loses_its_cookies(origin: str) -> None:
    answer = SITE.get("/", headers={"origin": origin, "cookie": "session=s"})
    assert answer.status_code == 200
    assert "cookie" not in answer.json()


@pytest.mark.parametrize("origin", [f"http://{HOST}", "https://ada-merge.hf.space", None])
def test_a_request_of_these_pages_or_of_a_program_keeps_them(origin: str | None) -> None:
    headers = {"cookie": "session=s"} | ({"origin": origin} if origin else {})
    assert SITE.get("/", headers=headers).json()["cookie"] == "session=s"


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/proxy=http://169.254.169.254/", "/monitoring"])
def test_what_no_page_needs_is_closed(path: str) -> None:
    answer = SITE.get(path)
    assert (answer.status_code, answer.text) == (404, "not offered here")


def test_a_body_above_the_limit_is_refused_whether_its_length_is_stated_or_not() -> None:
    assert SITE.post("/", content=b"x" * MAX_BODY_BYTES).json()["size"] == MAX_BODY_BYTES
    assert SITE.post("/", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    parts = [b"x" * MAX_BODY_BYTES, b"x"]
    assert SITE.post("/", content=iter(parts[:1])).json()["size"] == MAX_BODY_BYTES
    assert SITE.post("/", content=iter(parts)).json()["size"] is None


def test_only_this_site_and_the_hub_may_frame_it() -> None:
    assert SITE.get("/").headers["content-security-policy"] == "frame-ancestors 'self' https://hub.example"
