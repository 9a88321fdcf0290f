"""Webhooks: subscriptions, the queue of deliveries, and the worker that sends them.

A change queues one row per subscribed webhook in its own transaction, so a delivery exists exactly if the
change does. The worker sends pending rows after the commit, one webhook's rows in order, and records the
outcome. A receiver that does not answer 2xx is tried again after 1, 4 and 16 seconds; then the row is `failed`.
A restart goes on with what is pending, so a receiver may see a delivery twice.
"""

import http.client
import json
import math
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from localhub.access import Repo, can_read, tags_of
from localhub.http_errors import bad_request, forbidden, not_found
from localhub.protocol import Call, Hub, Json, Router, items_of, list_of, text_of, web_host
from localhub.store import Store, new_id, now
from localhub.users import Identity, Users, object_id

router = Router()
RETRY_AFTER_S = (1.0, 4.0, 16.0)
TIMEOUT_S = 10.0
_DOMAINS = ("repo", "discussion")
_FIELDS = ("url", "watched", "domains", "secret")
_WATCHED = ("user", "org", "model", "dataset", "space", "bucket")


def owner_id(users: Users, namespace: str) -> str:
    return object_id("org" if users.org(namespace) else "user", namespace)


def queue(hub: Hub, repo: Repo, action: str, scope: str, **more: Any) -> None:
    """Queue an event for every webhook that watches it, inside the caller's transaction.

    `more` goes into the payload.
    """
    hooks = [
        hook
        for hook in hub.store.rows("SELECT * FROM webhooks WHERE disabled = 0")
        if "repo" in json.loads(hook["domains"]) and _watches(hub, hook, repo)
    ]
    if not hooks:
        return
    described = {
        "type": repo.type,
        "name": repo.full_name,
        "id": repo.object_id,
        "private": repo.private,
        "url": {"web": f"{hub.endpoint}/{repo.path}", "api": f"{hub.endpoint}/api/{repo.type}s/{repo.full_name}"},
        "owner": {"id": owner_id(hub.users, repo.ns)},
        "tags": tags_of(hub.store, repo),
    }
    if head := hub.trees.head(repo.id):
        described["headSha"] = head
    payload = {"event": {"action": action, "scope": scope}, "repo": described, **more}
    for hook in hooks:
        text = json.dumps({**payload, "webhook": {"id": hook["id"], "version": 3}})
        hub.store.change("INSERT INTO deliveries (webhook, payload, date) VALUES (?, ?, ?)", hook["id"], text, now())
    hub.store.notify_deliveries()


def queue_refs(hub: Hub, repo: Repo, ref: str, old: str | None, new: str | None) -> None:
    """Queue the event of a ref that was created, moved or deleted."""
    queue(hub, repo, "update", "repo.content", updatedRefs=[{"ref": ref, "oldSha": old, "newSha": new}])


def _watches(hub: Hub, hook: sqlite3.Row, repo: Repo) -> bool:
    owner = hub.users.user(hook["owner"])
    if owner is None or not can_read(hub.users, Identity(owner, "read"), repo):
        return False
    kinds = {"user": repo.ns, "org": repo.ns, repo.type: repo.full_name}
    return any(kinds.get(item["type"], "").lower() == item["name"].lower() for item in json.loads(hook["watched"]))


# the settings API


def _shown(hook: sqlite3.Row) -> Json:
    return {
        "id": hook["id"],
        "url": hook["url"],
        "watched": json.loads(hook["watched"]),
        "domains": json.loads(hook["domains"]),
        "secret": hook["secret"],
        "disabled": bool(hook["disabled"]),
    }


def _owner(call: Call) -> str:
    """The caller, whose token may see or, by the method of the request, change their webhooks."""
    me = call.signed_in()
    allowed = "webhooks" in me.scopes if me.role == "oauth" else me.role == "write" or call.request.method == "GET"
    if not allowed:
        raise forbidden("This token may not see or change webhooks")
    return me.user.name


def _mine(call: Call) -> sqlite3.Row:
    hook = call.store.row("SELECT * FROM webhooks WHERE id = ? AND owner = ?", call.parts["hook"], _owner(call))
    if hook is None:
        raise not_found("Webhook not found")
    return hook


def _fields(call: Call, body: Json) -> dict[str, Any]:
    """The checked fields of a new or changed webhook; those that the body leaves out are absent."""
    fields: dict[str, Any] = {}
    if body.get("url") is not None:
        if not web_host(text_of(body, "url")):
            raise bad_request("The url of a webhook must be http or https")
        fields["url"] = body["url"]
    if body.get("watched"):
        watched = [{"type": text_of(item, "type"), "name": text_of(item, "name")} for item in items_of(body, "watched")]
        if any(item["type"] not in _WATCHED for item in watched):
            raise bad_request(f"A watched item has a type of {', '.join(_WATCHED)}")
        fields["watched"] = json.dumps(watched)
    if body.get("domains"):
        if any(domain not in _DOMAINS for domain in list_of(body, "domains")):
            raise bad_request(f"domains are {', '.join(_DOMAINS)}")
        fields["domains"] = json.dumps(body["domains"])
    if body.get("secret") is not None:
        secret = text_of(body, "secret")
        if not secret.isascii() or not secret.isprintable():
            raise bad_request("The secret must be printable ASCII, since it is sent in a header")
        fields["secret"] = secret
    return fields


@router.on("GET", "/api/settings/webhooks")
def list_webhooks(call: Call) -> list[Json]:
    me = _owner(call)
    return [_shown(row) for row in call.store.rows("SELECT * FROM webhooks WHERE owner = ? ORDER BY date", me)]


@router.on("POST", "/api/settings/webhooks")
def create_webhook(call: Call) -> Json:
    owner, fields = _owner(call), _fields(call, call.json())
    if "url" not in fields or "watched" not in fields:
        raise bad_request("A webhook needs a url and something to watch")
    fields = {"domains": json.dumps(_DOMAINS), "secret": None, **fields}
    [hook] = call.store.change(
        "INSERT INTO webhooks (id, owner, url, watched, domains, secret, date) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " RETURNING *",
        *(new_id(), owner, *(fields[name] for name in _FIELDS), now()),
    )
    return {"webhook": _shown(hook)}


@router.on("GET", "/api/settings/webhooks/{hook}")
def get_webhook(call: Call) -> Json:
    return {"webhook": _shown(_mine(call))}


@router.on("POST", "/api/settings/webhooks/{hook}")
def update_webhook(call: Call) -> Json:
    hook, fields = _mine(call), _fields(call, call.json())
    [changed] = call.store.change(
        "UPDATE webhooks SET url = ?, watched = ?, domains = ?, secret = ? WHERE id = ? RETURNING *",
        *(*(fields.get(name, hook[name]) for name in _FIELDS), hook["id"]),
    )
    return {"webhook": _shown(changed)}


@router.on("DELETE", "/api/settings/webhooks/{hook}")
def delete_webhook(call: Call) -> Json:
    hook = _mine(call)
    call.store.change("DELETE FROM webhooks WHERE id = ?", hook["id"])
    call.store.change("DELETE FROM deliveries WHERE webhook = ?", hook["id"])
    return {}


@router.on("POST", "/api/settings/webhooks/{hook}/{switch}")
def switch_webhook(call: Call) -> Json:
    hook, switch = _mine(call), call.parts["switch"]
    if switch not in ("enable", "disable"):
        raise not_found("There is no such action")
    call.store.change("UPDATE webhooks SET disabled = ? WHERE id = ?", switch == "disable", hook["id"])
    call.store.notify_deliveries()  # what was pending when it was disabled goes on
    return {"webhook": _shown(_mine(call))}


@router.on("GET", "/api/settings/webhooks/{hook}/deliveries")
def list_deliveries(call: Call) -> list[Json]:
    rows = call.store.rows(
        "SELECT id, state, attempts, status_code AS statusCode, error, date AS createdAt, finished_at AS finishedAt,"
        " payload FROM deliveries WHERE webhook = ? ORDER BY id DESC LIMIT ?",
        *(_mine(call)["id"], call.integer("limit", 100, most=1000)),
    )
    return [dict(row) | {"payload": json.loads(row["payload"])} for row in rows]


# delivery


# the oldest delivery that every webhook has to be sent
_OLDEST = """
SELECT d.*, w.url, w.secret FROM deliveries d JOIN webhooks w ON w.id = d.webhook WHERE w.disabled = 0
    AND d.id IN (SELECT min(id) FROM deliveries WHERE state = 'pending' GROUP BY webhook) ORDER BY d.id
"""


class DeliveryWorker:
    """Sends pending deliveries until it is stopped, one of each webhook at a time: no receiver delays another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        # by webhook: when it may be tried again, on the monotonic clock; endless while it is tried
        self._due: dict[str, float] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the requests under way; what is pending stays pending."""
        self._stopping.set()
        self._store.deliveries_ready.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        tries: dict[str, threading.Thread] = {}  # by webhook: the last one
        while not self._stopping.is_set():
            due = dict(self._due)  # before the rows: of a try that ends meanwhile, they show what was before it
            oldest = self._store.rows(_OLDEST)
            for row in oldest:
                hook = row["webhook"]
                if due.get(hook, 0.0) <= time.monotonic():
                    self._due[hook] = math.inf
                    tries[hook] = threading.Thread(target=self._try, args=(row,), daemon=True)
                    tries[hook].start()
            soonest = min((self._due[row["webhook"]] for row in oldest), default=math.inf)
            self._store.deliveries_ready.wait(None if soonest == math.inf else soonest - time.monotonic())
            self._store.deliveries_ready.clear()
        for thread in tries.values():
            thread.join()

    def _try(self, row: sqlite3.Row) -> None:
        """Try one delivery once; the pause before the next one of its webhook begins when that has ended."""
        pause = self._deliver(row)
        self._due[row["webhook"]] = time.monotonic() + pause
        self._store.deliveries_ready.set()

    def _deliver(self, row: sqlite3.Row) -> float:
        """Try one delivery once, and write down what came of it; the pause until the next one, in seconds."""
        status, error = send(row["url"], row["secret"], row["payload"])
        attempts = row["attempts"] + 1
        delivered = status is not None and 200 <= status < 300
        final = delivered or attempts > len(RETRY_AFTER_S)
        state = "delivered" if delivered else "failed" if final else "pending"
        columns = "state = ?, attempts = ?, status_code = ?, error = ?, finished_at = ?"
        values = (state, attempts, status, error, now() if final else None, row["id"])
        while True:
            try:
                self._store.change(f"UPDATE deliveries SET {columns} WHERE id = ?", *values)  # noqa: S608
                return 0.0 if final else RETRY_AFTER_S[attempts - 1]
            except sqlite3.OperationalError:  # the disk is full
                if self._stopping.wait(RETRY_AFTER_S[0]):
                    return 0.0


def send(url: str, secret: str | None, payload: str) -> tuple[int | None, str | None]:
    """POST one payload; the status, or what went wrong. Redirects are not followed."""
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Content-Type": "application/json", "User-Agent": "hubmerge-localhub"}
    if secret:
        headers["X-Webhook-Secret"] = secret
    try:
        with closing(connect(parts.hostname or "", parts.port, timeout=TIMEOUT_S)) as connection:
            connection.request("POST", path, payload.encode(), headers)
            return connection.getresponse().status, None
    except (OSError, http.client.HTTPException, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"
