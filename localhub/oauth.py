"""Sign-in with the local Hub: OpenID Connect with the authorization-code flow.

GET /oauth/authorize shows a page on which one picks a local user (or, with a Bearer token, answers for that
token's user at once), and redirects back with a code that lives for a minute and works once. The code is
exchanged for an access token, a refresh token and an id_token signed with RS256; the key pair is made on
first use and kept. PKCE with S256 is checked whenever the request brought a challenge.

The page also lets the person pick the organisations that the application may act in; a token reaches no other. An
application gets the scopes that it asks for, and may ask for more by a second authorization.

A redirect goes only to the hosts of the registered application, and the consent form carries an unguessable
request id, so no foreign page can submit it.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from html import escape
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from localhub.access import orgs_shown
from localhub.http_errors import HubError, bad_request
from localhub.protocol import Call, Json, Router, web_host
from localhub.store import Store
from localhub.users import SCOPES, Identity, User, object_id

router = Router()
REQUEST_LIFETIME_S = 600
CODE_LIFETIME_S = 60
_KEPT = ("client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge")
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
}


@router.on("GET", "/.well-known/openid-configuration")
def configuration(call: Call) -> Json:
    base = call.endpoint
    return {
        "issuer": base,
        "authorization_endpoint": f"{base}/oauth/authorize",
        "token_endpoint": f"{base}/oauth/token",
        "userinfo_endpoint": f"{base}/oauth/userinfo",
        "jwks_uri": f"{base}/.well-known/jwks.json",
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "scopes_supported": list(SCOPES),
        "code_challenge_methods_supported": ["S256"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
        "claims_supported": ["sub", "name", "preferred_username", "profile", "picture", "email", "orgs"],
    }


@router.on("GET", "/.well-known/jwks.json")
def jwks(call: Call) -> Json:
    key = _signing_key(call.store)
    return {"keys": [key.as_dict(private=False, kid=key.thumbprint())]}


# authorize


@router.on("GET", "/oauth/authorize")
def authorize(call: Call) -> Response:
    request = _authorization_request(call)
    if call.identity is not None:
        orgs = [org.name for org, _ in call.users.orgs_of(call.identity.user.name)]
        return _redirect_with_code(call, request, call.identity.user, orgs)
    request_id = secrets.token_urlsafe(32)
    values = (request_id, json.dumps(request), time.time() + REQUEST_LIFETIME_S)
    call.store.change("DELETE FROM oauth_requests WHERE expires < ?", time.time())
    call.store.change("INSERT INTO oauth_requests VALUES (?, ?, ?)", *values)
    users = "".join(_choice(call, user) for user in call.users.users if user.tokens)
    host = urlsplit(request["redirect_uri"]).netloc
    wanted = "".join(f"<li>{escape(SCOPES[name])} <small>({name})</small></li>" for name in request["scope"].split())
    return HTMLResponse(
        _PAGE.format(host=escape(host), scope=wanted, id=request_id, users=users), headers=_PAGE_HEADERS
    )


def _choice(call: Call, user: User) -> str:
    """One user with the organisations that the application may act in as them."""
    name = escape(user.name)
    orgs = "".join(
        f'<label><input type="checkbox" name="org" value="{name}/{escape(org.name)}" checked> also in the organisation'
        f" {escape(org.name)}</label>"
        for org, _ in call.users.orgs_of(user.name)
    )
    title = f"{escape(user.fullname or user.name)} <small>@{name}</small>"
    return f'<button name="user" value="{name}">{title}</button>{orgs}'


@router.on("POST", "/oauth/authorize")
def consent(call: Call) -> Response:
    fields = call.form()
    form = {key: values[-1] for key, values in fields.items()}
    sql = "DELETE FROM oauth_requests WHERE id = ? AND expires > ? RETURNING request"
    shown = call.store.change(sql, form.get("request_id"), time.time())
    if not shown:
        raise bad_request("This sign-in is unknown or too old; start again from the application")
    request = json.loads(shown[0]["request"])
    user = call.users.user(form.get("user", ""))
    if user is None or not user.tokens:  # nobody acts as the owner of copied datasets
        return _back(request, {"error": "access_denied", "error_description": "The user refused"})
    picked = {value.partition("/")[2] for value in fields.get("org", []) if value.startswith(f"{user.name}/")}
    return _redirect_with_code(
        call, request, user, [org.name for org, _ in call.users.orgs_of(user.name) if org.name in picked]
    )


def _authorization_request(call: Call) -> dict[str, str]:
    """The checked parameters; nothing is ever redirected to a place that the application did not register."""
    query = {key: values[-1] for key, values in call.query.items()}
    app = call.users.oauth
    if query.get("client_id") != app.client_id:
        raise bad_request("Unknown client_id")
    if web_host(query.get("redirect_uri", "")) not in app.redirect_hosts:
        raise bad_request(f"redirect_uri must be http or https on one of {', '.join(app.redirect_hosts)}")
    if query.get("response_type") != "code":
        raise bad_request("response_type must be code")
    if "code_challenge" in query and query.get("code_challenge_method") != "S256":
        raise bad_request("code_challenge_method must be S256")
    scope = query.get("scope") or "openid profile"
    if foreign := [name for name in scope.split() if name not in SCOPES]:
        raise bad_request(f"There is no scope {' '.join(foreign)}")
    return {name: query[name] for name in _KEPT if name in query} | {"scope": scope}


def _redirect_with_code(call: Call, request: dict[str, str], user: User, orgs: list[str]) -> Response:
    code, request = secrets.token_urlsafe(32), request | {"orgs": " ".join(orgs)}
    call.store.change("DELETE FROM oauth_codes WHERE expires < ?", time.time())
    values = (code, user.name, json.dumps(request), time.time() + CODE_LIFETIME_S)
    call.store.change("INSERT INTO oauth_codes VALUES (?, ?, ?, ?)", *values)
    return _back(request, {"code": code})


def _back(request: dict[str, str], answer: dict[str, str]) -> Response:
    parts = urlsplit(request["redirect_uri"])
    state = {"state": request["state"]} if "state" in request else {}
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *{**answer, **state}.items()])
    return RedirectResponse(urlunsplit(parts._replace(query=query)), 303, headers={"Cache-Control": "no-store"})


# token


def _refuse(error: str, description: str, status: int = 400) -> HubError:
    return HubError(status, error, body={"error": error, "error_description": description})


@router.on("POST", "/oauth/token", atomic=False)
def token(call: Call) -> Response:
    """Not in one transaction: a code stays used up where its use is refused."""
    form = {key: values[-1] for key, values in call.form().items()}
    authenticated = _authenticate_client(call, form)
    grant = form.get("grant_type")
    if grant == "authorization_code":
        user, request = _redeem_code(call, form, authenticated=authenticated)
    elif grant == "refresh_token":
        if not authenticated:
            raise _refuse("invalid_client", "A refresh needs the client secret", 401)
        sql = "DELETE FROM oauth_tokens WHERE refresh = ? RETURNING user, app AS client_id, scope, orgs"
        request = dict(next(iter(call.store.change(sql, form.get("refresh_token"))), {}))
        user = call.users.user(request.get("user", ""))
    else:
        raise _refuse("unsupported_grant_type", "grant_type must be authorization_code or refresh_token")
    if user is None:
        raise _refuse("invalid_grant", "The code or token is unknown, used or expired")
    return _issue(call, user, request)


def _authenticate_client(call: Call, form: dict[str, str]) -> bool:
    """Whether the application proved its secret; without one it must use PKCE, with a wrong one it is refused.

    It need not name itself: the code is its own, and a page's JavaScript (@huggingface/hub) sends nothing else.
    """
    app = call.users.oauth
    header = call.request.headers.get("authorization", "")
    client_id, secret = form.get("client_id", app.client_id), form.get("client_secret", "")
    if header.lower().startswith("basic "):
        try:
            client_id, _, secret = map(unquote, base64.b64decode(header[6:]).decode().partition(":"))
        except ValueError as error:
            raise _refuse("invalid_client", "The Authorization header is malformed", 401) from error
    if client_id != app.client_id or (secret and not hmac.compare_digest(secret.encode(), app.client_secret.encode())):
        raise _refuse("invalid_client", "Unknown client or wrong secret", 401)
    return bool(secret)


def _redeem_code(call: Call, form: dict[str, str], *, authenticated: bool) -> tuple[User | None, dict[str, str]]:
    # a code is gone with its first use, whether that succeeds or not
    sql = "DELETE FROM oauth_codes WHERE code = ? AND expires > ? RETURNING *"
    rows = call.store.change(sql, form.get("code"), time.time())
    if not rows:
        return None, {}
    request: dict[str, str] = json.loads(rows[0]["request"])
    if request["redirect_uri"] != form.get("redirect_uri"):
        raise _refuse("invalid_grant", "redirect_uri differs from the one of the authorization")
    challenge = request.get("code_challenge")
    if challenge is not None:
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if not hmac.compare_digest(base64.urlsafe_b64encode(verifier).rstrip(b"="), challenge.encode()):
            raise _refuse("invalid_grant", "code_verifier does not match the challenge")
    elif not authenticated:
        raise _refuse("invalid_client", "The client needs its secret or PKCE", 401)
    return call.users.user(rows[0]["user"]), request


def _issue(call: Call, user: User, request: dict[str, str]) -> Response:
    access, refresh = f"hf_oauth_{secrets.token_urlsafe(32)}", f"hf_refresh_{secrets.token_urlsafe(32)}"
    scopes, client_id = request["scope"].split(), request["client_id"]
    lifetime_s = call.users.oauth.expiration_minutes * 60
    orgs, expires = request.get("orgs", ""), time.time() + lifetime_s
    values = (access, refresh, user.name, client_id, request["scope"], expires, orgs)
    call.store.change("INSERT INTO oauth_tokens VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
    answer: Json = {"access_token": access, "token_type": "bearer", "expires_in": lifetime_s}
    answer |= {"scope": request["scope"], "refresh_token": refresh}
    if "openid" in scopes:
        issued = int(time.time())
        times = {"iat": issued, "exp": issued + lifetime_s}
        nonce = {"nonce": request["nonce"]} if "nonce" in request else {}
        claims = {"iss": call.endpoint, "aud": client_id, **times, **nonce}
        me = Identity(user, "oauth", frozenset(scopes), client_id, frozenset(orgs.split()))
        from joserfc import jwt

        key = _signing_key(call.store)
        head = {"alg": "RS256", "typ": "JWT", "kid": key.thumbprint()}
        answer["id_token"] = jwt.encode(head, claims | _claims(call, me), key)
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


@router.on("GET", "/oauth/userinfo")
def userinfo(call: Call) -> Json:
    return _claims(call, call.signed_in())


def _claims(call: Call, me: Identity) -> Json:
    user, scopes = me.user, me.scopes if me.role == "oauth" else frozenset({"profile", "email"})
    claims: Json = {"sub": object_id("user", user.name)}
    if "profile" in scopes:
        claims |= {
            "name": user.fullname or user.name,
            "preferred_username": user.name,
            "profile": f"{call.endpoint}/{user.name}",
            "picture": f"{call.endpoint}/avatars/{user.name}.svg",
            "website": "",
            "isPro": False,
            "canPay": False,
            "orgs": [
                {
                    "sub": object_id("org", org.name),
                    "name": org.fullname or org.name,
                    "preferred_username": org.name,
                    "picture": f"{call.endpoint}/avatars/{org.name}.svg",
                    "isEnterprise": False,
                    "canPay": False,
                    "roleInOrg": role,
                }
                for org, role in orgs_shown(call.users, me)
            ],
        }
    if "email" in scopes and user.email:
        claims |= {"email": user.email, "email_verified": True}
    return claims


# signing; joserfc is imported on first use, since most runs never sign


def _signing_key(store: Store) -> Any:
    from joserfc.jwk import RSAKey

    with store.write():
        row = store.row("SELECT value FROM meta WHERE key = 'oauth_key'")
        if row:
            return RSAKey.import_key(row["value"], {"use": "sig", "alg": "RS256"})
        key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"})
        store.change("INSERT INTO meta VALUES ('oauth_key', ?)", key.as_pem(private=True).decode())
    return key


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in to the local Hub</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 26rem; margin: 12vh auto; padding: 0 1rem; }}
button {{ display: block; width: 100%; margin: .5rem 0; padding: .7rem 1rem; font: inherit; text-align: left;
  border: 1px solid #bbb; border-radius: .5rem; background: #fff; cursor: pointer; }}
button:hover, button:focus {{ border-color: #06c; }}
small {{ color: #555; }}
label {{ display: block; margin: 0 0 .8rem .7rem; }}
</style></head><body><main>
<h1>Sign in to the local Hub</h1>
<p><strong>{host}</strong> asks to sign you in, and to be allowed to:</p>
<ul>{scope}</ul>
<form method="post" action="/oauth/authorize">
<input type="hidden" name="request_id" value="{id}">
{users}
<button name="user" value="">Cancel</button>
</form></main></body></html>
"""
