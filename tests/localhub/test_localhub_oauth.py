"""Sign-in: the code flow with PKCE, what the tokens are worth, and what a forged request gets."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from joserfc import jwt
from joserfc.jwk import KeySet
from oauth_helpers import REDIRECT, VERIFIER, authorize_query, exchange, sign_in, tokens_of
from processes import printed_by

from localhub.process import LocalHubProcess


def test_the_flow_ends_in_a_signed_identity_and_a_working_token(local_hub: LocalHubProcess) -> None:
    configuration = get_session().get(f"{local_hub.endpoint}/.well-known/openid-configuration").json()
    assert configuration["issuer"] == local_hub.endpoint
    back = sign_in(local_hub, "ada", orgs=["zoo"], scope="openid profile email contribute-repos read-memberships")
    assert (back["state"], back["_target_url"]) == (["a state & more"], ["/"])
    tokens = exchange(local_hub, back["code"][0]).json()
    keys = KeySet.import_key_set(get_session().get(configuration["jwks_uri"]).json())
    token = jwt.decode(tokens["id_token"], keys, algorithms=["RS256"])
    claims = token.claims
    assert (claims["iss"], claims["aud"]) == (local_hub.endpoint, local_hub.oauth["client_id"])
    assert (claims["preferred_username"], claims["nonce"], claims["email"]) == ("ada", "n-1", "ada@example.org")
    assert [org["preferred_username"] for org in claims["orgs"]] == ["zoo"]
    assert claims["exp"] - claims["iat"] == tokens["expires_in"] == 72 * 3600
    headers = {"Authorization": f"Bearer {tokens['access_token']}"}
    info = get_session().get(configuration["userinfo_endpoint"], headers=headers).json()
    assert (info["sub"], info["preferred_username"]) == (claims["sub"], "ada")
    assert HfApi(local_hub.endpoint, token=tokens["access_token"]).whoami()["name"] == "ada"


def test_a_code_works_once_and_only_with_its_verifier_and_redirect(local_hub: LocalHubProcess) -> None:
    code = sign_in(local_hub)["code"][0]
    assert exchange(local_hub, code).status_code == 200
    assert exchange(local_hub, code).json()["error"] == "invalid_grant"
    for wrong in (
        {"code_verifier": "another verifier that nobody hashed before......"},
        {"code_verifier": ""},
        {"redirect_uri": "http://127.0.0.1:9/elsewhere"},
    ):
        code = sign_in(local_hub)["code"][0]
        answer = exchange(local_hub, code, **wrong)
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")
        assert exchange(local_hub, code).status_code == 400  # the failed attempt used it up


def test_a_client_proves_itself_by_secret_or_pkce(local_hub: LocalHubProcess) -> None:
    assert exchange(local_hub, sign_in(local_hub)["code"][0], secret=False).status_code == 200
    without_pkce = {"code_challenge": None, "code_challenge_method": None}
    assert exchange(local_hub, sign_in(local_hub, **without_pkce)["code"][0]).status_code == 200
    code = sign_in(local_hub, **without_pkce)["code"][0]
    assert exchange(local_hub, code, secret=False).json()["error"] == "invalid_client"
    code = sign_in(local_hub)["code"][0]
    assert exchange(local_hub, code, client_secret="wrong-secret").status_code == 401
    basic = base64.b64encode(f"{local_hub.oauth['client_id']}:{local_hub.oauth['client_secret']}".encode()).decode()
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT, "code_verifier": VERIFIER}
    answer = get_session().post(
        f"{local_hub.endpoint}/oauth/token", data=form, headers={"Authorization": f"Basic {basic}"}
    )
    assert answer.status_code == 200


def test_a_refresh_gives_a_new_token_and_ends_the_old_one(local_hub: LocalHubProcess) -> None:
    old = tokens_of(local_hub)
    form = {"grant_type": "refresh_token", "refresh_token": old["refresh_token"], **local_hub.oauth}
    new = get_session().post(f"{local_hub.endpoint}/oauth/token", data=form).json()
    assert new["scope"] == old["scope"]
    assert HfApi(local_hub.endpoint, token=new["access_token"]).whoami()["name"] == "bob"
    with pytest.raises(HfHubHTTPError):
        HfApi(local_hub.endpoint, token=old["access_token"]).whoami()
    again = get_session().post(f"{local_hub.endpoint}/oauth/token", data=form)
    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": "javascript://127.0.0.1/x"},
        {"redirect_uri": "http://127.0.0.1@evil.example/"},
        {"redirect_uri": None},
        {"client_id": "another"},
        {"response_type": "token"},
        {"code_challenge_method": "plain"},
        {"scope": "openid root"},
    ],
)
def test_a_request_that_the_application_may_not_make_redirects_nowhere(
    local_hub: LocalHubProcess, changes: dict[str, str | None]
) -> None:
    query = authorize_query(local_hub, **changes)
    answer = get_session().get(f"{local_hub.endpoint}/oauth/authorize", params=query, follow_redirects=False)
    assert answer.status_code == 400
    assert "location" not in answer.headers


def test_a_consent_needs_the_id_of_a_page_that_was_shown(local_hub: LocalHubProcess) -> None:
    for request_id in ("", "guessed"):
        form = {"request_id": request_id, "user": "ada"}
        assert get_session().post(f"{local_hub.endpoint}/oauth/authorize", data=form).status_code == 400


def test_a_refusal_goes_back_without_a_code(local_hub: LocalHubProcess) -> None:
    back = sign_in(local_hub, "")  # the button that cancels
    assert (back["error"], "code" in back) == (["access_denied"], False)


def test_what_the_request_says_is_shown_as_text(local_hub: LocalHubProcess) -> None:
    query = authorize_query(local_hub, redirect_uri='http://127.0.0.1/"><script>alert(1)</script>')
    page = get_session().get(f"{local_hub.endpoint}/oauth/authorize", params=query)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_clients_own_oauth_routes_sign_a_user_in(local_hub: LocalHubProcess, tmp_path: Path) -> None:
    # In a process of its own, because the library reads its settings when it is imported.
    script = f"""
import fastapi, warnings
warnings.simplefilter("ignore")
from fastapi.testclient import TestClient
from huggingface_hub import attach_huggingface_oauth, parse_huggingface_oauth
from huggingface_hub.utils import get_session
app = fastapi.FastAPI()
attach_huggingface_oauth(app)

@app.get("/")
def who(request: fastapi.Request):
    info = parse_huggingface_oauth(request)
    return [info.user_info.preferred_username, [org.preferred_username for org in info.user_info.orgs or []]]

client = TestClient(app, base_url="https://testserver")
login = client.get("/oauth/huggingface/login", follow_redirects=False)
bearer = {{"Authorization": "Bearer {local_hub.tokens["ada"]}"}}
back = get_session().get(login.headers["location"], headers=bearer, follow_redirects=False)
assert back.status_code == 303, back.text
print(client.get(back.headers["location"]).json())
"""
    environment = {
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": local_hub.endpoint,
        "OPENID_PROVIDER_URL": local_hub.endpoint,
        "OAUTH_CLIENT_ID": local_hub.oauth["client_id"],
        "OAUTH_CLIENT_SECRET": local_hub.oauth["client_secret"],
        "OAUTH_SCOPES": "openid profile read-memberships",
        "SPACE_ID": "ada/space",
    }
    assert printed_by(script, **environment).strip() == "['ada', ['zoo']]"
