"""Faults on demand: a broken network or a Hub in trouble, switched on and counted through one route.

    GET     /api/faults   the rules, how often each matched and fired, and the requests that matched
    POST    /api/faults   add one rule (its JSON: fault_rules.FaultRule); answers its number
    PUT     /api/faults   replace all rules: {"rules": […]}
    DELETE  /api/faults   none any more

The route exists only on a Hub started with `--faults`. It takes JSON only, so that no web page can reach it with a
form. Faults sit around the whole application, between the server and the handlers: each one is a wrapper of an ASGI
application, so they work on every route alike and the handlers know nothing of them.

A connection is broken as a network does it: the bytes before the break are delivered, then comes a TCP reset. ASGI
has no word for that; `Connections` remembers the transport of every connection by its peer's address.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import re
import socket
import struct
import termios
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from localhub.access import TYPES, find_repo
from localhub.fault_rules import (
    ADMIN_PATH,
    KEPT_REQUESTS,
    Delay,
    FaultRule,
    LostAnswer,
    Observe,
    Reset,
    Rules,
    RuleState,
    RuleStates,
    SeenRequest,
    StaleHead,
    Stall,
    Status,
    WholeFile,
    WrongByte,
)
from localhub.protocol import Hub
from localhub.tree import MAIN

_MAX_BODY_BYTES = 1024 * 1024
_MAX_RULES = 1000
_FLUSH_TIMEOUT_S = 5.0  # a peer that does not read is cut off anyway
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST
_ON_MAIN = re.compile(
    r"(?P<before>/api/(?P<T>models|datasets|spaces)/(?P<id>[^/]+/[^/]+))"
    r"(?:(?P<verb>/(?:revision|tree|paths-info|commits)/main)(?P<rest>|/.*))?"
)
_FILE_ON_MAIN = re.compile(
    r"(?P<before>/(?:(?P<T>datasets|spaces)/)?(?!api/)(?P<id>[^/]+/[^/]+))(?P<verb>/resolve/main)(?P<rest>/.*)"
)


class Connections:
    """The open connections of a server, which can be reset, or end by themselves."""

    def __init__(self) -> None:
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}
        self._ended: dict[tuple[str, int], asyncio.Event] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The server's protocol class, which keeps this registry."""
        transports, ended = self._transports, self._ended

        class Protocol(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client:
                    transports[self.client] = transport
                    ended[self.client] = asyncio.Event()

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client:
                    transports.pop(self.client, None)
                    if event := ended.pop(self.client, None):
                        event.set()
                super().connection_lost(exc)

        return Protocol

    def ended(self, scope: Scope) -> asyncio.Event:
        """Set when the connection of a request has ended."""
        event = self._ended.get(tuple(scope["client"] or ()))
        if event is None:
            event = asyncio.Event()
            event.set()
        return event

    async def reset(self, scope: Scope) -> None:
        """Reset the connection of a request once the peer has what was sent so far."""
        transport = self._transports.get(tuple(scope["client"] or ()))
        if transport is None or transport.is_closing():
            return
        connection = transport.get_extra_info("socket")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FLUSH_TIMEOUT_S
        while (transport.get_write_buffer_size() or _unacknowledged(connection)) and loop.time() < deadline:
            await asyncio.sleep(0.002)
        if not transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()


def _unacknowledged(connection: Any) -> int:
    """Bytes that the peer's kernel has not taken yet; 0 where the kernel cannot tell."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    return count[0]


@dataclass
class _Counted:
    id: int
    rule: FaultRule
    pattern: re.Pattern[str]
    seen: int = 0
    fired: int = 0
    left: int = 0
    requests: deque[SeenRequest] = field(default_factory=lambda: deque(maxlen=KEPT_REQUESTS))

    def is_due(self, method: str, path: str, range_: str | None) -> bool:
        """Count a request; whether it is hit."""
        if (self.rule.methods and method not in self.rule.methods) or not self.pattern.search(path):
            return False
        self.seen += 1
        hit = self.seen > self.rule.skip and (self.rule.times is None or self.fired < self.rule.times)
        self.fired += hit
        self.requests.append(SeenRequest(method=method, path=path, range=range_, hit=hit))
        return hit


class Faults:
    """The switches of one Hub and the wrapper that applies them. Runs on the event loop only."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rules: list[_Counted] = []
        self._next = 1
        self.connections = Connections()

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app` as it is with the faults that are switched on."""

        async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] == ADMIN_PATH:
                await app(scope, receive, send)
                return
            path = unquote(scope["raw_path"].decode("ascii", "replace").partition("?")[0])
            asked = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"range"), None)
            due = [counted for counted in self._rules if counted.is_due(scope["method"], path, asked)]
            wrapped = app
            for counted in reversed(due):
                wrapped = self._wrap(counted, wrapped)
            await wrapped(scope, receive, send)

        return faulty

    # --- the admin route ---------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        """Show or change the rules; whatever is wrong with a body changes nothing."""
        if request.method == "GET":
            return JSONResponse(RuleStates(rules=tuple(map(_state, self._rules))).model_dump(mode="json"))
        if request.method == "DELETE":
            self._rules = []
            return JSONResponse({})
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "Content-Type must be application/json"}, 415)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                return JSONResponse({"error": f"The body is larger than {_MAX_BODY_BYTES} bytes"}, 413)
        try:
            if request.method == "PUT":
                return self._replace(Rules.model_validate_json(bytes(body)).rules)
            return self._append(FaultRule.model_validate_json(bytes(body)))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return JSONResponse({"error": "Not a rule", "problems": problems}, 400)

    def _append(self, rule: FaultRule) -> Response:
        if len(self._rules) >= _MAX_RULES:
            return JSONResponse({"error": f"There are {_MAX_RULES} rules already"}, 400)
        self._rules.append(self._counted(rule))
        return JSONResponse({"id": self._rules[-1].id})

    def _replace(self, rules: tuple[FaultRule, ...]) -> Response:
        self._rules = [self._counted(rule) for rule in rules]
        return JSONResponse({"ids": [counted.id for counted in self._rules]})

    def _counted(self, rule: FaultRule) -> _Counted:
        self._next += 1
        return _Counted(self._next - 1, rule, re.compile(rule.path))

    # --- the faults --------------------------------------------------------------------------------------

    def _wrap(self, counted: _Counted, app: ASGIApp) -> ASGIApp:
        """`app` struck by the fault of one rule."""
        fault = counted.rule.fault
        match fault:
            case Observe():
                return app
            case Delay():
                return partial(self._delayed, app, fault.seconds, counted)
            case Stall():
                return partial(self._stalled, app, fault, counted)
            case Status():
                return _refusal(fault)
            case Reset(of="answer"):
                return partial(self._answer_cut, app, fault.at)
            case Reset():
                return partial(self._request_cut, app, fault.at)
            case LostAnswer():
                return partial(self._answer_lost, app)
            case WholeFile():
                return partial(_whole, app)
            case WrongByte():
                return partial(_flipped, app, fault)
            case StaleHead():
                return partial(self._stale, app, fault.commits)

    async def _delayed(
        self, app: ASGIApp, seconds: float, counted: _Counted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if await _within(seconds, self.connections.ended(scope)):
            counted.left += 1
        else:
            await app(scope, receive, send)

    async def _stalled(
        self, app: ASGIApp, fault: Stall, counted: _Counted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        ended = self.connections.ended(scope)
        place, over = 0, False

        async def stalling(message: Message) -> None:
            nonlocal place, over
            body = message.get("body", b"") if message["type"] == "http.response.body" else b""
            if not over and len(body) > (head := fault.at - place):
                await send({**message, "body": body[:head], "more_body": True})
                over = not await _within(fault.seconds, ended)
                message = {**message, "body": body[head:]}
            place += len(body)
            await send(message)

        try:
            await app(scope, receive, stalling)
        finally:  # whoever sends a file may be told first that nobody wants it any more
            counted.left += ended.is_set() and not over

    async def _break(self, scope: Scope, receive: Receive) -> None:
        """Reset the connection, and return when the server has noticed."""
        await self.connections.reset(scope)
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _answer_cut(self, app: ASGIApp, at: int, scope: Scope, receive: Receive, send: Send) -> None:
        left, broken = at, False

        async def cutting(message: Message) -> None:
            nonlocal left, broken
            if broken:
                return
            if message["type"] == "http.response.body":
                body = message.get("body", b"")[:left]
                left -= len(body)
                broken = left == 0
                message = {**message, "body": body, "more_body": True}
            await send(message)
            if broken:
                await self.connections.reset(scope)

        await app(scope, receive, cutting)
        await self._break(scope, receive)

    async def _request_cut(self, app: ASGIApp, at: int, scope: Scope, receive: Receive, send: Send) -> None:
        left, broken = at, False

        async def cutting() -> Message:
            nonlocal left, broken
            message = await receive() if not broken else {"type": "http.disconnect"}
            left -= len(message.get("body", b""))
            if left < 0 or not message.get("more_body", False):
                broken = True  # all that came is lost, whether or not it was the whole
                return {"type": "http.disconnect"}
            return message

        async def silent(message: Message) -> None:
            pass

        await app(scope, cutting, silent)
        await self._break(scope, receive)

    async def _answer_lost(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def silent(message: Message) -> None:
            pass

        await app(scope, receive, silent)
        await self._break(scope, receive)

    async def _stale(self, app: ASGIApp, commits: int, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        found = _ON_MAIN.fullmatch(path) or _FILE_ON_MAIN.fullmatch(path)
        sha = await run_in_threadpool(self._earlier, found, commits) if found else None
        if found and sha:
            verb = (found["verb"] or "/revision/main").replace("main", sha)
            scope = {**scope, "raw_path": f"{found['before']}{verb}{found['rest'] or ''}".encode()}
        await app(scope, receive, send)

    def _earlier(self, found: re.Match[str], commits: int) -> str | None:
        """The head of main as of so many commits ago."""
        repo = find_repo(self._hub.store, TYPES[found["T"] or "models"], unquote(found["id"]))
        head = self._hub.trees.head(repo.id, MAIN) if repo else None
        if repo is None or head is None:
            return None
        return self._hub.trees.history(repo.id, head, limit=commits + 1)[-1].sha


def _state(counted: _Counted) -> RuleState:
    return RuleState(
        id=counted.id,
        rule=counted.rule,
        seen=counted.seen,
        fired=counted.fired,
        left=counted.left,
        requests=tuple(counted.requests),
    )


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Wait so long for `event`; whether it came."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def _refusal(fault: Status) -> ASGIApp:
    headers = {"X-Error-Message": "".join(c if " " <= c <= "~" else "?" for c in fault.message)}
    if fault.retry_after is not None:
        headers["Retry-After"] = fault.retry_after
    if fault.rate_limit_reset_s is not None:
        headers["RateLimit"] = f'"api";r=0;t={fault.rate_limit_reset_s}'
    return JSONResponse({"error": fault.message}, fault.status, headers=headers)


async def _whole(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"range", b"if-range")]
    await app({**scope, "headers": headers}, receive, send)


async def _flipped(app: ASGIApp, fault: WrongByte, scope: Scope, receive: Receive, send: Send) -> None:
    place = 0  # of the next byte, in the file

    async def flipping(message: Message) -> None:
        nonlocal place
        if message["type"] == "http.response.start":
            stated = next((v for k, v in message["headers"] if k.lower() == b"content-range"), b"")
            if begins := re.match(rb"bytes (\d+)-", stated):
                place = int(begins[1])
        elif message["type"] == "http.response.body":
            body = bytearray(message.get("body", b""))
            if place <= fault.at < place + len(body):
                body[fault.at - place] ^= fault.mask
            place += len(body)
            message = {**message, "body": bytes(body)}
        await send(message)

    await app(scope, receive, flipping)
