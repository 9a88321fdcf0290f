"""The route that the Hub's webhooks post to: POST /webhooks/hub.

    no secret header → 401    wrong → 403    body above 64 KB → 413    no JSON object → 400    else → 202

The Hub signs nothing: the secret is a bare header, which is compared in constant time before the body is read. A body
is only a hint. Pushes to main of model repos go to the inbox; everything else (pull requests, tags, deleted branches,
datasets, discussions) is answered and forgotten, so that the Hub does not send it again.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubmerge.errors import DiskError, LoginError
from hubmerge.hub.names import is_hub_id
from workflows.jobs.jobs import DatabaseBusyError
from workflows.watchers.inbox import Inbox, Push

PATH = "/webhooks/hub"
MAIN = "refs/heads/main"
MAX_BODY_BYTES = 64 * 1024
MAX_REFS = 100
_SHA = re.compile(r"[0-9a-f]{40}")


def webhook_route(secret: SecretStr | None, inbox: Inbox) -> Route:
    """The route; LoginError without a secret, since anybody could post to it then."""
    expected = (secret.get_secret_value() if secret else "").encode()
    if not expected.strip():
        raise LoginError(
            "the webhook route needs a secret",
            where=PATH,
            next_step="Set HUBMERGE_WEBHOOK_SECRET to what the webhook's settings on the Hub say.",
        )

    async def receive(request: Request) -> Response:
        given = request.headers.get("x-webhook-secret")
        if given is None:
            return _answer(401, "the X-Webhook-Secret header is missing")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), expected):
            return _answer(403, "the secret is not the one set here")
        try:
            body = await _body(request)
        except ClientDisconnect:
            return _answer(400, "the body is not complete")
        if body is None:
            return _answer(413, f"a delivery has at most {MAX_BODY_BYTES} bytes")
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError):
            payload = None
        if not isinstance(payload, dict):
            return _answer(400, "a delivery is a JSON object")
        try:
            stored = await run_in_threadpool(inbox.receive, pushes(payload))
        except (DatabaseBusyError, DiskError):
            return _answer(503, "try again later")
        return JSONResponse({"stored": stored}, 202)

    return Route(PATH, receive, methods=["POST"], include_in_schema=False)


def pushes(payload: Mapping[str, Any]) -> tuple[Push, ...]:
    """The pushes to main of a model repo that a payload states; none where anything is not as it should be."""
    event, repo, refs = payload.get("event"), payload.get("repo"), payload.get("updatedRefs")
    if not (isinstance(event, dict) and isinstance(repo, dict) and isinstance(refs, list)):
        return ()
    name, scope = repo.get("name"), event.get("scope")
    if repo.get("type") != "model" or not isinstance(scope, str) or scope.partition(".")[0] != "repo":
        return ()
    if not isinstance(name, str) or "/" not in name or not is_hub_id(name):
        return ()
    found = []
    for item in refs:
        sha = item.get("newSha") if isinstance(item, dict) else None
        if isinstance(sha, str) and _SHA.fullmatch(sha) and item.get("ref") == MAIN:
            found.append(Push(name, MAIN, sha))
    return tuple(dict.fromkeys(found))[:MAX_REFS]


async def _body(request: Request) -> bytes | None:
    """The body; None as soon as it is too long, or its header says so."""
    stated = request.headers.get("content-length", "0")
    if not stated.isascii() or not stated.isdigit() or len(stated) > 18 or int(stated) > MAX_BODY_BYTES:
        return None
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _answer(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
