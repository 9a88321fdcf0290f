"""Sign-in: gradio's own OAuth against the Hub, on a Space and on this machine alike.

gradio signs visitors in for real only on a Space, where the platform supplies an OAuth client through environment
variables; anywhere else it mocks the sign-in: every visitor is whoever owns the machine's token. Both happen in
gradio.oauth, which reads the variables into module constants at import and asks `get_space()` which of the two to do.
It knows a Space by SYSTEM, which the platform does not set on a Docker Space: there `use_the_space_s_client` answers.
With the embedded Hub, `use_oauth_client` writes the same constants with that Hub's client and answers, too. Both do
so inside gradio.oauth only. The rest of gradio must not take this machine for a Space: its front end would fetch the
Space's header from the public Hub, and child processes would inherit SPACE_ID.

No redirect is rewritten: without SPACE_HOST gradio builds the redirect URI from the request, hence with http on
loopback. The session cookie is `Secure; SameSite=None`, and `SameSite=Lax` by plain http on this machine (guard.py).
It is signed with a key derived from the client secret and not encrypted, so a client secret must be as hard to guess as
a password wherever others can reach the port.

gradio asks at once for all scopes that the Space declares. `AskedScopes` leaves out those that a sign-in does not need;
a second sign-in (`sign_in_link`) asks for private models when a visitor picks one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from authlib.common.errors import AuthlibBaseError
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hubmerge.errors import HubmergeError, InternalError, LoginError
from hubmerge.hub.errors import translated
from hubmerge.settings import Settings
from workflows.app.format import el, join, link
from workflows.app.site import plain_page

log = logging.getLogger(__name__)
GATED, PRIVATE = "gated-repos", "read-repos"
# to make a repo and publish to it, to read gated parents, and to offer the person's organisations as owners
SIGN_IN_SCOPES = ("openid", "profile", "contribute-repos", GATED, "read-memberships")
SCOPES = (*SIGN_IN_SCOPES, PRIVATE)  # what the Space declares
BACK_MAX_CHARACTERS = 600  # of a page's query, to which a sign-in leads back; a browser keeps 4096 of a cookie
_LOGIN, _CALLBACK, _LOGOUT = "/login/huggingface", "/login/callback", "/logout"  # gradio's
_TOKEN = ("access_token", "scope", "expires_at")  # of a session, what gradio reads
_PERSON = ("name", "preferred_username", "profile", "picture")
_LAST_TRY = "3"  # gradio begins anew where the cookie of a sign-in is lost; after this it would give up without a word


@dataclass(frozen=True)
class OAuthClient:
    """An OAuth client that a provider knows: the embedded Hub's, or one registered for this machine."""

    provider: str  # where /.well-known/openid-configuration is
    client_id: str
    client_secret: str = field(repr=False)


def use_oauth_client(client: OAuthClient) -> None:
    """Let gradio sign visitors in with `client`. Call it before the app is built, and never on a Space."""
    address = urlsplit(client.provider)
    is_secure = address.scheme == "https" and bool(address.hostname)
    if not is_secure and not (address.scheme == "http" and Settings(endpoint=client.provider).is_loopback):
        raise LoginError(
            "an OAuth provider that is neither https nor on this machine",
            where=client.provider,
            next_step="Use an https address; a token must not travel in the clear.",
        )
    _set(
        OAUTH_CLIENT_ID=client.client_id,
        OAUTH_CLIENT_SECRET=client.client_secret,
        OAUTH_SCOPES=" ".join(SCOPES),
        OPENID_PROVIDER_URL=client.provider.rstrip("/"),
        get_space=lambda: "local/hubmerge",
    )


def use_the_space_s_client(space: str) -> None:
    """Let gradio sign visitors in with what the platform gives to the Space. Call it before the app is built."""
    _set(get_space=lambda: space)


def _set(**values: Any) -> None:
    import gradio.oauth

    for name, value in values.items():
        if not hasattr(gradio.oauth, name):
            # a renamed constant would silently bring back the mocked sign-in
            raise InternalError("this gradio keeps its OAuth settings elsewhere", where="gradio.oauth", expected=name)
        setattr(gradio.oauth, name, value)


def sign_in_link(back: str = "/", *, private: bool = False) -> str:
    """The address of a sign-in that returns to the page `back`; `private`: the sign-in covers private models."""
    more = f"&with={PRIVATE}" if private else ""
    return f"{_LOGIN}?_target_url={quote(back, safe='')}{more}"


class AskedScopes:
    """Wraps an ASGI app: a sign-in asks only for those of the declared scopes that its step needs.

    A visitor who refuses, or who signs in while the Hub is away, gets a page that says so and leads back. gradio alone
    would answer both with a server error.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in (_LOGIN, _CALLBACK, _LOGOUT):
            await self._app(scope, receive, send)
            return
        query, back = _asked(scope)
        scope = {**scope, "query_string": urlencode({**query, "_target_url": back}, doseq=True).encode()}
        if scope["path"] == _LOGOUT:
            await self._app(scope, receive, send)
            return
        no_cookie = query.get("_nb_redirects") == [_LAST_TRY] and "session" not in Request(scope).cookies
        if scope["path"] == _CALLBACK and ("error" in query or no_cookie):
            told = _not_signed_in(query, back) if "error" in query else _no_cookie(back)
            await told(scope, receive, send)
            return
        wanted = SCOPES if PRIVATE in query.get("with", ()) else SIGN_IN_SCOPES
        held: list[Message] = []  # an answer of 500, until it is known why

        async def narrowed(message: Message) -> None:
            if held or (message["type"] == "http.response.start" and message["status"] >= 500):
                held.append(message)
                return
            if message["type"] == "http.response.start" and scope["path"] == _LOGIN:
                headers = [(n, _narrow(v, wanted) if n == b"location" else v) for n, v in message.get("headers", ())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            with translated("a sign-in"):
                await self._app(scope, receive, narrowed)
        except (HubmergeError, AuthlibBaseError, JoseError) as error:
            log.warning("a sign-in ended: %s", error)
            why = "The clock of this server may be wrong" if isinstance(error, JoseError) else "The Hub does not answer"
            await _not_now(why, back)(scope, receive, send)
            return
        for message in held:
            await send(message)


class SmallSession:
    """Wraps gradio's app, within its sessions: of a sign-in they keep what gradio reads of it.

    The Hub also tells every organisation of the visitor, twice, and a browser drops a cookie of more than 4096 bytes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def small(message: Message) -> None:
            if message["type"] == "http.response.start" and (held := scope.get("session", {}).get("oauth_info")):
                person = {key: held["userinfo"].get(key, "") for key in _PERSON}
                scope["session"]["oauth_info"] = {**{key: held.get(key) for key in _TOKEN}, "userinfo": person}
            await send(message)

        await self._app(scope, receive, small)


def _asked(scope: Scope) -> tuple[dict[str, list[str]], str]:
    """What a sign-in or sign-out is asked for, and the page of this site that it leads back to.

    gradio's button appends the page's own query as it is. A long one is left out: the cookie that holds it during the
    sign-in would be lost, and the sign-in with it. So is the token by which the Hub's frame shows a private Space:
    gradio prints what a sign-in leads back to.
    """
    given = scope["query_string"].decode("latin-1")
    before, _, target = given.partition("_target_url=")
    if "?" in target and scope["path"] != _CALLBACK:
        query = {**parse_qs(before), "_target_url": [target]}
    else:
        query = parse_qs(given)
    back = _here(query.get("_target_url", ["/"])[-1])
    page, _, own = back.partition("?")
    own = "&".join(part for part in own.split("&") if not part.startswith("__sign="))
    return query, f"{page}?{own}" if 0 < len(own) <= BACK_MAX_CHARACTERS else page


def _not_signed_in(query: Mapping[str, Sequence[str]], back: str) -> HTMLResponse:
    """What the Hub sent a visitor back with instead of a sign-in, and the ways on."""
    if query["error"][-1] == "access_denied":
        why = "You declined on the Hub's page, so nothing was allowed and nothing has changed."
    else:
        why = f"The Hub did not sign you in: {query.get('error_description', query['error'])[-1][:200]}."
    browsing = "Searching and inspecting need no account; starting a merge does."
    ways = (link(back, "Back to the page where you were"), " or ", link(sign_in_link(back), "sign in"), ".")
    return _page(403, why, browsing, join(*ways))


def _no_cookie(back: str) -> HTMLResponse:
    why = "Your browser kept no cookie of this site, and without one nobody can be signed in."
    how = "A browser keeps it where the address begins with https, or is one of this machine; in a frame it may not."
    tab = el("a", "Open this site in a tab of its own", href=back, target="_blank")
    return _page(403, why, how, join(tab, " and sign in there."))


def _not_now(why: str, back: str) -> HTMLResponse:
    why = f"{why}, so nobody can sign in at the moment."
    kept = "Nothing is lost: jobs that were accepted go on."
    ways = (link(sign_in_link(back), "Try again"), " in a minute, or go ", link(back, "back to the page"), ".")
    return _page(503, why, kept, join(*ways))


def _page(status: int, *paragraphs: object) -> HTMLResponse:
    title, later = ("Not now", {"retry-after": "30"}) if status == 503 else ("You are not signed in", {})
    text = plain_page(title, *(el("p", each) for each in paragraphs))
    return HTMLResponse(text, status, {"cache-control": "no-store", **later})


def _here(target: str) -> str:
    """The page of this site for an address, whatever host the address names."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    return urlunsplit(("", "", "/" + parts.path.lstrip("/\\"), parts.query, ""))


def _narrow(location: bytes, wanted: tuple[str, ...]) -> bytes:
    """The address of the provider's page, with only the wanted scopes."""
    parts = urlsplit(location.decode("latin-1"))
    query = [
        (name, " ".join(s for s in value.split() if s in wanted) if name == "scope" else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return urlunsplit(parts._replace(query=urlencode(query))).encode("latin-1")
