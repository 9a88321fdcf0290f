"""Faults on demand: a broken network or a Hub in trouble, switched on and counted through one route (docs/localhub.md).

The route exists only on a Hub started with `--faults`. It takes JSON only, so that no web page can reach it with a
form. Faults sit around the whole application, between the server and the handlers: each one is a wrapper of an ASGI
application, so they work on every route alike and the handlers know nothing of them.

A connection is broken as a network does it: the bytes before the break are delivered, then comes a TCP reset. ASGI
has no word for that; uvicorn's `receive` is a method of an object that has the transport, and knows whether the client
has hung up.
"""

import array
import asyncio
import contextlib
import fcntl
import itertools
import re
import socket
import struct
import termios
from functools import partial
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localhub.fault_rules import (
    ADMIN_PATH,
    Delay,
    FaultRule,
    LostAnswer,
    Observe,
    Reset,
    RuleState,
    RuleStates,
    StaleHead,
    Stall,
    Status,
    WholeFile,
    WrongByte,
)
from localhub.tree import COMMITS_BACK

_FLUSH_TIMEOUT_S = 5.0  # a peer that does not read is cut off anyway
_CONNECTION = "localhub.connection"  # uvicorn's object, in the scope of a request
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST


async def _reset(scope: Scope) -> None:
    """Reset the connection of a request once the peer has what was sent so far."""
    transport = scope[_CONNECTION].transport
    if transport.is_closing():
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


class Faults:
    """The switches of a Hub and the wrapper that applies them. Runs on the event loop only."""

    def __init__(self) -> None:
        self._rules: list[RuleState] = []
        self._numbers = itertools.count(1)

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app` as it is with the faults that are switched on."""

        async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] == ADMIN_PATH:
                await app(scope, receive, send)
                return
            # a connection that was made to wait goes on in the context of the request that it waited for
            COMMITS_BACK.set(0)
            path = unquote(scope["raw_path"].decode("ascii", "replace").partition("?")[0])
            asked = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"range"), None)
            due = [state for state in self._rules if state.is_due(scope["method"], path, asked)]
            wrapped = app
            for state in reversed(due):
                wrapped = self._wrap(state, wrapped)
            connection = receive.__self__  # type: ignore[attr-defined]
            await wrapped({**scope, _CONNECTION: connection}, receive, send)

        return faulty

    # --- the admin route ---------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        """Show or change the rules; whatever is wrong with a body changes nothing."""
        if request.method == "GET":
            return JSONResponse(RuleStates(rules=tuple(self._rules)).model_dump(mode="json"))
        if request.method == "DELETE":
            self._rules = []
            return JSONResponse({})
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return JSONResponse({"error": "Content-Type must be application/json"}, 415)
        try:
            rule = FaultRule.model_validate_json(await request.body())
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return JSONResponse({"error": "Not a rule", "problems": problems}, 400)
        self._rules = [*self._rules, RuleState(id=next(self._numbers), rule=rule)]
        return JSONResponse({"id": self._rules[-1].id})

    # --- the faults --------------------------------------------------------------------------------------

    @staticmethod
    def _wrap(state: RuleState, app: ASGIApp) -> ASGIApp:
        """`app` struck by the fault of one rule."""
        fault = state.rule.fault
        match fault:
            case Observe():
                return app
            case Delay():
                return partial(_delayed, app, fault, state)
            case Stall():
                return partial(_stalled, app, fault, state)
            case Status():
                return _refusal(fault)
            case Reset(of="answer"):
                return partial(_answer_cut, app, fault)
            case Reset():
                return partial(_request_cut, app, fault)
            case LostAnswer():
                return partial(_answer_lost, app)
            case WholeFile():
                return partial(_whole, app)
            case WrongByte():
                return partial(_flipped, app, fault)
            case StaleHead():
                return partial(_stale, app, fault)


async def _stale(app: ASGIApp, fault: StaleHead, scope: Scope, receive: Receive, send: Send) -> None:
    COMMITS_BACK.set(fault.commits)
    await app(scope, receive, send)


async def _hangs_up(scope: Scope, seconds: float) -> bool:
    """Wait so long; whether the client of a request has hung up by then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not scope[_CONNECTION].disconnected and loop.time() < deadline:
        await asyncio.sleep(0.005)
    return bool(scope[_CONNECTION].disconnected)


async def _delayed(app: ASGIApp, fault: Delay, state: RuleState, scope: Scope, receive: Receive, send: Send) -> None:
    if await _hangs_up(scope, fault.seconds):
        state.left += 1
    else:
        await app(scope, receive, send)


async def _stalled(app: ASGIApp, fault: Stall, state: RuleState, scope: Scope, receive: Receive, send: Send) -> None:
    place, over = 0, False

    async def stalling(message: Message) -> None:
        nonlocal place, over
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        if not over and len(body) > (head := fault.at - place):
            await send({**message, "body": body[:head], "more_body": True})
            over = not await _hangs_up(scope, fault.seconds)
            message = {**message, "body": body[head:]}
        place += len(body)
        await send(message)

    try:
        await app(scope, receive, stalling)
    finally:  # whoever sends a file may be told first that nobody wants it any more
        state.left += scope[_CONNECTION].disconnected and not over


async def _break(scope: Scope, receive: Receive) -> None:
    """Reset the connection, and return when the server has noticed."""
    await _reset(scope)
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer_cut(app: ASGIApp, fault: Reset, scope: Scope, receive: Receive, send: Send) -> None:
    left, broken = fault.at, False

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
            await _reset(scope)

    await app(scope, receive, cutting)
    await _break(scope, receive)


async def _silent(message: Message) -> None:
    """Send nothing."""


async def _request_cut(app: ASGIApp, fault: Reset, scope: Scope, receive: Receive, send: Send) -> None:
    left, broken = fault.at, False

    async def cutting() -> Message:
        nonlocal left, broken
        message = await receive() if not broken else {"type": "http.disconnect"}
        left -= len(message.get("body", b""))
        if left < 0 or not message.get("more_body", False):
            broken = True  # all that came is lost, whether or not it was the whole
            return {"type": "http.disconnect"}
        return message

    await app(scope, cutting, _silent)
    await _break(scope, receive)


async def _answer_lost(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, _silent)
    await _break(scope, receive)


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
