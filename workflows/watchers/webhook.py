"""The route that the Hub's webhooks post to: POST /webhooks/hub.

    no secret header → 401    wrong → 403    body above 64 KB → 413    no JSON object → 400    else → 202

The Hub signs nothing: the secret is a bare header, which is compared in constant time before the body is read. A body
is only a hint. Pushes to main of model repos go to the inbox; everything else (pull requests, tags, deleted branches,
datasets, discussions) is answered and forgotten, so that the Hub does not send it again. The inbox is on disk before
the sender is answered. A delivery that is repeated before a tick has handled it is the same row.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import SecretStr
from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubmerge.errors import DiskError, LoginError
from hubmerge.hub.names import is_hub_id, is_sha
from hubmerge.text.wording import json_table
from workflows.jobs.jobs import DatabaseBusyError
from workflows.jobs.schema import DELIVERIES
from workflows.jobs.store import Store

PATH = "/webhooks/hub"
MAIN = "refs/heads/main"
MAX_BODY_BYTES = 64 * 1024
MAX_REFS = 100


class Push(NamedTuple):
    """A push to main that a delivery announces."""

    repo: str
    sha: str


class Inbox:
    """The deliveries in the job database; safe to use from several threads and processes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def receive(self, pushes: Sequence[Push]) -> int:
        """Store the new pushes in one transaction; returns their number."""
        statement = insert(DELIVERIES).on_conflict_do_nothing(index_elements=["repo", "ref", "sha"])
        with self._store.writing() as change:
            rows = [{**push._asdict(), "ref": MAIN, "received": change.now} for push in pushes]
            return sum(change.connection.execute(statement.values(row)).rowcount for row in rows)

    def pending(self, limit: int = 500) -> dict[int, str]:
        """The pushes that no tick has handled yet, oldest first: their numbers here, and the repos."""
        query = select(DELIVERIES.c.id, DELIVERIES.c.repo).order_by(DELIVERIES.c.id).limit(limit)
        with self._store.reading() as connection:
            return {row.id: row.repo for row in connection.execute(query)}

    def settle(self, deliveries: Iterable[int]) -> None:
        """Forget pushes that a tick handles; one that is sent again costs one more look."""
        with self._store.writing() as change:
            change.connection.execute(delete(DELIVERIES).where(DELIVERIES.c.id.in_(list(deliveries))))


def webhook_route(secret: SecretStr | None, inbox: Inbox) -> Route:
    """The route; LoginError without a secret, since anybody could post to it then."""
    # a header's value has no space around it, which a secret from a file may have
    expected = (secret.get_secret_value() if secret else "").strip().encode(errors="surrogateescape")
    if not expected:
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
        payload = json_table(body)
        if payload is None:
            return _answer(400, "a delivery is a JSON object")
        try:
            found = pushes(payload)
            stored = await run_in_threadpool(inbox.receive, found) if found else 0
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
        if isinstance(sha, str) and is_sha(sha) and item.get("ref") == MAIN:
            found.append(Push(name, sha))
    return tuple(dict.fromkeys(found))[:MAX_REFS]


async def _body(request: Request) -> bytes | None:
    """The body; None as soon as it is too long, whatever its header says."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)


def _answer(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
