"""The code flow with PKCE at the embedded Hub, as a browser and an application go through it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from huggingface_hub.utils import get_session

from localhub.process import LocalHubProcess

REDIRECT = "http://127.0.0.1:9/login/callback?_target_url=%2F"
VERIFIER = "a-verifier-of-at-least-forty-three-characters-in-length"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


def authorize_query(hub: LocalHubProcess, **changes: str | None) -> dict[str, str]:
    query = {
        "response_type": "code",
        "client_id": hub.oauth["client_id"],
        "redirect_uri": REDIRECT,
        "scope": "openid profile email contribute-repos",
        "state": "a state & more",
        "nonce": "n-1",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
    }
    return {key: value for key, value in (query | changes).items() if value is not None}


def sign_in(
    hub: LocalHubProcess, user: str = "bob", *, orgs: Sequence[str] = (), **changes: str | None
) -> dict[str, list[str]]:
    """Go through the consent page as a browser would, with these organisations picked; the redirect's parameters."""
    page = get_session().get(f"{hub.endpoint}/oauth/authorize", params=authorize_query(hub, **changes))
    assert page.status_code == 200, page.text
    assert f'value="{user}"' in page.text
    request_id = re.search(r'name="request_id" value="([^"]+)"', page.text)
    assert request_id
    answer = get_session().post(
        f"{hub.endpoint}/oauth/authorize",
        data={"request_id": request_id[1], "user": user, "org": [f"{user}/{org}" for org in orgs]},
        follow_redirects=False,
    )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("http://127.0.0.1:9/login/callback?")
    return parse_qs(urlsplit(answer.headers["location"]).query)


def exchange(hub: LocalHubProcess, code: str, *, secret: bool = True, **changes: str) -> Any:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": REDIRECT,
        "client_id": hub.oauth["client_id"],
        "code_verifier": VERIFIER,
    }
    if secret:
        form["client_secret"] = hub.oauth["client_secret"]
    return get_session().post(f"{hub.endpoint}/oauth/token", data=form | changes)


def tokens_of(
    hub: LocalHubProcess, user: str = "bob", *, orgs: Sequence[str] = (), **changes: str | None
) -> dict[str, Any]:
    answer = exchange(hub, sign_in(hub, user, orgs=orgs, **changes)["code"][0])
    assert answer.status_code == 200, answer.text
    tokens: dict[str, Any] = answer.json()
    return tokens
