"""An ASGI layer between the network and gradio, which takes away everything that no page here needs.

- A request from another site's page is anonymous: its cookies are dropped. gradio's session cookie is
  SameSite=None, since a Space lives in a frame, and gradio answers any origin with credentials allowed; without
  this, every website could start or cancel merges in the name of a visitor who is signed in here.
- Uploads, file proxies, recordings and stored links are closed. Nothing is uploaded here.
- A request body has a limit far above any recipe.
- Only this site and the Hub's pages may put it in a frame.
- On this machine, by plain http, the cookie is not marked Secure: WebKit drops such a one there.
"""

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1024 * 1024  # a recipe has at most 64 KB
CLOSED = (
    "/gradio_api/upload",
    "/gradio_api/upload_progress",
    "/gradio_api/proxy=",
    "/gradio_api/stream",
    "/gradio_api/process_recording",
    "/gradio_api/component_server",
    "/gradio_api/deep_link",
    "/gradio_api/run-history",
    "/gradio_api/vibe",
    "/gradio_api/undo-vibe",
    "/gradio_api/profiling",
    "/gradio_api/dev",
    "/monitoring",
)
_THIS_MACHINE = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:|$)")


class Guard:
    """Wraps an ASGI app. `hosts`: names of this site besides the one that a request says."""

    def __init__(self, app: ASGIApp, *, hub: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = (
            (b"content-security-policy", f"frame-ancestors 'self' {hub}".encode("ascii", "ignore")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"origin", b"host", b"content-length")}
        if scope["path"].startswith(CLOSED):
            await PlainTextResponse("not offered here", 404)(scope, receive, send)
            return
        if int(headers.get(b"content-length", b"0")) > MAX_BODY_BYTES:
            await PlainTextResponse("the request is too large", 413)(scope, receive, send)
            return
        if b"origin" in headers and not self._is_own(headers[b"origin"], headers.get(b"host", b"")):
            scope = {**scope, "headers": [(n, v) for n, v in scope["headers"] if n != b"cookie"]}

        is_plain = scope["scheme"] == "http" and _THIS_MACHINE.match(headers.get(b"host", b""))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [*message.get("headers", ()), *self._headers]
                if is_plain:
                    own = [(n, v.replace(b"samesite=none; secure", b"samesite=lax")) for n, v in own]
                message = {**message, "headers": own}
            await send(message)

        await self._app(scope, _capped(receive), with_headers)

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        netloc = urlsplit(origin.decode("latin-1")).netloc.lower()
        return bool(netloc) and (netloc == host.decode("latin-1").lower() or netloc in self._hosts)


def _capped(receive: Receive) -> Receive:
    """A body without a stated length ends as a disconnect once it passes the limit."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                return {"type": "http.disconnect"}
        return message

    return limited


def without_files(value: Any) -> Any:
    """`value` with nothing in it that gradio takes for a file, and no half of a character, which no answer can tell."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [without_files(one) for one in value]
    if not isinstance(value, dict):
        return value
    named = isinstance(value.get("path"), str)
    return {key: without_files(one) for key, one in value.items() if not (named and key == "meta")}
