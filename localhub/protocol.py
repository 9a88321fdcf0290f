"""From an HTTP request to the function that answers it.

Routes are matched on the raw path, because the client escapes a revision or tree path into one segment
(`refs%2Fpr%2F1`) and frameworks unescape before they match. In a route, `{T}` stands for models, datasets
or spaces, `{P}` for the prefix of a download URL, `{id}` for a repo id, `{name}` for one escaped segment and
`{name*}` for the rest of the path. Every route is tried with a two-part repo id first, and with a bare name only
when none matched; a bare name exists nowhere and is answered with "repository not found".

Handlers are plain functions that run in a thread and return a response, or a value that becomes JSON. They
see a `Call`: the matched parts, the caller's identity, the body and the storage. Each runs in one transaction,
unless its route says otherwise, so that what it has checked still holds when it reads on or writes.
"""

import errno
import io
import json
import re
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from localhub.access import TYPES, Repo, can_take_part, find_repo, require_files, require_read, require_write
from localhub.http_errors import HubError, bad_request, forbidden, not_found
from localhub.store import Store
from localhub.tree import Trees
from localhub.users import Identity, Users, default_users

Json = dict[str, Any]
MOST_ITEMS = 10_000  # of a list or form in a body; clients send a few hundred at a time
_KINDS = {"": "model", **TYPES, "datasets/": "dataset", "spaces/": "space"}


@dataclass(frozen=True)
class Limits:
    """Sizes at which the wire protocol changes its manner, in bytes."""

    regular_bytes: int = 10 * 1024 * 1024  # larger files go to LFS
    multipart_bytes: int = 512 * 1024 * 1024  # larger LFS files are uploaded in parts
    part_bytes: int = 64 * 1024 * 1024
    body_bytes: int = 16 * 1024 * 1024  # of a JSON or form body
    commit_bytes: int = 2 * 1024 * 1024 * 1024  # of all the lines of a commit

    @property
    def line_bytes(self) -> int:
        """The most bytes of one line of a commit: a regular file in base64, and its path."""
        return self.regular_bytes * 4 // 3 + 64 * 1024


@dataclass(frozen=True)
class Hub:
    """The state that every handler works on."""

    store: Store
    trees: Trees
    users: Users
    limits: Limits = Limits()
    endpoint: str = ""  # the address under which the client of a request knows this server


def open_hub(data_dir: Path, users: Users | None = None, limits: Limits | None = None, *, endpoint: str = "") -> Hub:
    """The Hub of a data folder, without a server; `hub.store.close()` releases the folder."""
    store = Store(data_dir)
    return Hub(store, Trees(store), users or default_users(), limits or Limits(), endpoint)


@dataclass(frozen=True)
class Call:
    """One request on its way through a handler."""

    hub: Hub
    request: Request
    parts: Mapping[str, str]
    identity: Identity | None
    body: IO[bytes]

    @property
    def store(self) -> Store:
        return self.hub.store

    @property
    def users(self) -> Users:
        return self.hub.users

    @property
    def endpoint(self) -> str:
        return self.hub.endpoint

    @property
    def type(self) -> str:
        return _KINDS[next((self.parts[name] for name in "TP" if name in self.parts), "")]

    @cached_property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.request.url.query, keep_blank_values=True)

    def flag(self, name: str) -> bool:
        return self.query.get(name, ["0"])[-1].lower() in ("1", "true")

    def json(self) -> Json:
        """The body as a JSON object; an empty body or `null` is an empty object."""
        raw = self.body.read()
        value = parse_json(raw) if raw else {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise bad_request("The body must be a JSON object")
        return value

    def form(self) -> dict[str, list[str]]:
        try:
            return parse_qs(self.body.read().decode(), keep_blank_values=True, max_num_fields=MOST_ITEMS)
        except ValueError as error:  # no UTF-8, or too many fields
            raise bad_request("The body is not a form") from error

    def signed_in(self) -> Identity:
        if self.identity is None:
            raise HubError(401, "Invalid username or password.")
        return self.identity

    def participant(self) -> Identity:
        """The caller, whose token may comment and open pull requests."""
        me = self.signed_in()
        if not can_take_part(me):
            raise forbidden("This token may not take part in discussions")
        return me

    def repo(self, repo_type: str, full_name: str) -> Repo:
        """The repo of that id, which the caller may see."""
        return require_read(self.users, self.identity, find_repo(self.store, repo_type, full_name))

    def readable(self) -> Repo:
        """The repo of the path, which the caller may see."""
        return self.repo(self.type, self.parts["id"])

    def commit_of(self, repo: Repo) -> str:
        """The commit that the path names; the head of main where it names none."""
        return self.hub.trees.resolve(repo.id, self.parts.get("rev", "main"))

    def require_files(self, repo: Repo) -> None:
        """Refuse the files of a gated repo to those who were not let in."""
        require_files(self.store, self.users, self.identity, repo)

    def writable(self) -> Repo:
        """The repo of the path, which the caller may change."""
        repo = self.readable()
        require_write(self.users, self.identity, repo)
        return repo

    def window(self, size: int, *, most: int = 1000) -> tuple[int, int]:
        """The place of the first item that the request asks for, and the number of items, `size` if it names none."""
        return self.integer("cursor", 0, most=10**9), max(1, self.integer("limit", size, most=most))

    def page(self, items: list[Any], *, more: bool) -> Response:
        """One page of a listing; the link to the next one carries every parameter of this request."""
        response = JSONResponse(items)
        if more:
            query = {**self.query, "cursor": [str(self.window(0)[0] + len(items))]}
            path = self.request.scope["raw_path"].decode().partition("?")[0]
            url = f"{self.endpoint}{path}?{urlencode(query, doseq=True)}"
            response.headers["Link"] = f'<{url}>; rel="next"'
        return response

    def integer(self, name: str, default: int, *, most: int) -> int:
        """A non-negative number of the query, at most `most`."""
        text = self.query.get(name, [str(default)])[-1]
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise bad_request(f"{name} must be a number")
        return min(int(text), most)


Handler = Callable[[Call], Any]  # for the body "stream", one that is awaited
Registered = TypeVar("Registered", bound=Handler)


@dataclass(frozen=True)
class Route:
    method: str
    template: str
    two_part: re.Pattern[str]
    one_part: re.Pattern[str]
    handler: Handler
    body: str  # "small", "large" (spooled to disk) or "stream" (an async handler reads it)
    atomic: bool  # in one transaction, which reads where the method is GET


class Router:
    """The routes of one module, in the order in which they are tried."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def on(
        self, method: str, template: str, *, body: str = "small", atomic: bool = True
    ) -> Callable[[Registered], Registered]:
        def register(handler: Registered) -> Registered:
            two, one = _pattern(template, "[^/]+/[^/]+"), _pattern(template, "[^/]+")
            self.routes.append(Route(method, template, two, one, handler, body, atomic and body == "small"))
            return handler

        return register


def _pattern(template: str, repo_id: str) -> re.Pattern[str]:
    prefix = "(?!(?:api|oauth)/)(?:datasets/|spaces/)?"
    special = {"T": "|".join(TYPES), "P": prefix, "id": repo_id}

    def group(match: re.Match[str]) -> str:
        name, rest = match[1], match[2]
        return f"(?P<{name}>{special.get(name, '.*' if rest else '[^/]+')})"

    parts = re.split(r"(\{\w+\*?\})", template)
    return re.compile("".join(re.sub(r"\{(\w+)(\*?)\}", group, p) if p[:1] == "{" else re.escape(p) for p in parts))


def text_of(body: object, key: str) -> str:
    """A string that the body must hold."""
    value = body.get(key) if isinstance(body, dict) else None
    if not isinstance(value, str):
        raise bad_request(f"{key} must be a string")
    return value


def optional_text(body: Json, key: str) -> str | None:
    """A string that the body may hold."""
    return None if body.get(key) is None else text_of(body, key)


def optional_whole(body: Json, key: str) -> int | None:
    """A whole number that the body may hold; the database takes no larger ones than 64 bits hold."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**40:
        raise bad_request(f"{key} must be a whole number from 0 to {2**40}")
    return value


def list_of(body: Json, key: str) -> list[Any]:
    """A list that the body may hold."""
    items = body.get(key) or []
    if not isinstance(items, list) or len(items) > MOST_ITEMS:
        raise bad_request(f"{key} must be a list of at most {MOST_ITEMS} items")
    return items


def items_of(body: Json, key: str) -> list[Json]:
    """A list of objects that the body may hold."""
    items = list_of(body, key)
    if not all(isinstance(item, dict) for item in items):
        raise bad_request(f"{key} must be a list of objects")
    return items


def web_host(address: str) -> str:
    """The host of an http or https address; "" of anything else."""
    try:
        parts = urlsplit(address)
        return parts.hostname or "" if parts.scheme in ("http", "https") else ""
    except ValueError:  # brackets without an address in them, say
        return ""


def parse_json(raw: bytes) -> Any:
    """A JSON value all of whose strings can be written as UTF-8, which JSON itself does not promise."""
    try:
        value = json.loads(raw.decode())  # of bytes, the parser would take halves of characters
        if b"\\u" in raw:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {error}") from error


def match(routes: list[Route], method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route of a request; what is served nowhere here is 404, another method 405."""
    seen = False
    for attribute in ("two_part", "one_part"):
        for route in routes:
            found = getattr(route, attribute).fullmatch(path)
            if found and route.method == method:
                return route, {name: unquote(value or "") for name, value in found.groupdict().items()}
            seen = seen or found is not None
    if seen:
        raise HubError(405, "Method not allowed")
    raise not_found("The local Hub serves nothing at this address; docs/localhub.md says what it does and what not.")


def identify(hub: Hub, authorization: str | None) -> Identity | None:
    """The sender of the request; an unknown token is refused on every route."""
    if not authorization:
        return None
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return None  # e.g. the client authentication of an OAuth application
    known = hub.users.by_token(value.strip())
    if known:
        user, token = known
        return Identity(user, token.role)
    row = hub.store.row("SELECT * FROM oauth_tokens WHERE token = ?", value.strip())
    owner = hub.users.user(row["user"]) if row and row["expires"] > time.time() else None
    if row is None or owner is None:
        raise HubError(401, "Invalid credentials in Authorization header")
    return Identity(owner, "oauth", frozenset(row["scope"].split()), row["app"], frozenset(row["orgs"].split()))


async def answer(hub: Hub, routes: list[Route], request: Request) -> Response:
    """Match, read the body within its limit, run the handler, and turn what it returns into a response."""
    path = request.scope["raw_path"].decode("ascii", "replace").partition("?")[0]
    method = request.method
    hub = replace(hub, endpoint=f"{request.url.scheme}://{request.headers['host']}")
    try:
        route, parts = match(routes, "GET" if method == "HEAD" else method, path)
        identity = await run_in_threadpool(identify, hub, request.headers.get("authorization"))
        if route.body == "stream":
            result = await route.handler(Call(hub, request, parts, identity, io.BytesIO()))
        else:
            limit = hub.limits.commit_bytes if route.body == "large" else hub.limits.body_bytes
            with tempfile.SpooledTemporaryFile(max_size=8 * 1024 * 1024) as body:
                async for chunk in request.stream():
                    body.write(chunk)
                    if body.tell() > limit:
                        raise HubError(413, f"The body is larger than {limit} bytes")
                body.seek(0)
                result = await run_in_threadpool(_handled, route, Call(hub, request, parts, identity, body))
    except HubError as error:
        result = JSONResponse(error.body, error.status, headers=error.headers)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody is left to read it
    except (OSError, sqlite3.OperationalError) as error:
        if not _is_full_disk(error):
            raise
        words = "The disk of this Hub is full"
        result = JSONResponse({"error": words}, 507, headers={"X-Error-Message": words})
    response = result if isinstance(result, Response) else JSONResponse(result)
    response.headers["X-Request-Id"] = secrets.token_hex(8)  # the client shows it in its errors
    return response


def _handled(route: Route, call: Call) -> Any:
    if not route.atomic:
        return route.handler(call)
    with call.store.read() if route.method == "GET" else call.store.write():
        return route.handler(call)


def _is_full_disk(error: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return error.sqlite_errorcode == sqlite3.SQLITE_FULL
