"""Sign-in by the code flow with PKCE, what a forged request gets, and what a token of each set of scopes may do."""

import base64
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
from huggingface_hub.utils import get_session
from joserfc import jwt
from joserfc.jwk import KeySet
from raw_requests import status_of
from starlette.testclient import TestClient

from hubmerge.errors import GatedError
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import translated
from localhub.access import Repo, can_create, can_read, can_write, require_files, require_manage
from localhub.http_errors import HubError
from localhub.process import LocalHubProcess
from localhub.protocol import open_hub
from localhub.server import app_of
from localhub.users import Identity, Org, default_users

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
    [request_id] = re.findall(r'name="request_id" value="([^"]+)"', page.text)
    form = {"request_id": request_id, "user": user, "org": [f"{user}/{org}" for org in orgs]}
    answer = get_session().post(f"{hub.endpoint}/oauth/authorize", data=form, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("http://127.0.0.1:9/login/callback?")
    return parse_qs(urlsplit(answer.headers["location"]).query)


def exchange(hub: LocalHubProcess, code: str, *, secret: bool = True, **changes: str) -> Any:
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT, "code_verifier": VERIFIER}
    client = hub.oauth if secret else {"client_id": hub.oauth["client_id"]}
    return get_session().post(f"{hub.endpoint}/oauth/token", data=form | client | changes)


def tokens_of(
    hub: LocalHubProcess, user: str = "bob", *, orgs: Sequence[str] = (), **changes: str | None
) -> dict[str, Any]:
    answer = exchange(hub, sign_in(hub, user, orgs=orgs, **changes)["code"][0])
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_the_flow_ends_in_a_signed_identity_and_a_working_token(local_hub):
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


def test_a_code_works_once_and_only_with_its_verifier_and_redirect(local_hub):
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


def test_a_client_proves_itself_by_secret_or_pkce(local_hub):
    assert exchange(local_hub, sign_in(local_hub)["code"][0], secret=False).status_code == 200
    without_pkce = {"code_challenge": None, "code_challenge_method": None}
    assert exchange(local_hub, sign_in(local_hub, **without_pkce)["code"][0]).status_code == 200
    code = sign_in(local_hub, **without_pkce)["code"][0]
    assert exchange(local_hub, code, secret=False).json()["error"] == "invalid_client"
    code = sign_in(local_hub)["code"][0]
    assert exchange(local_hub, code, client_secret="wrong-secret").status_code == 401
    basic = base64.b64encode(f"{local_hub.oauth['client_id']}:{local_hub.oauth['client_secret']}".encode()).decode()
    form = {"grant_type": "authorization_code", "redirect_uri": REDIRECT, "code_verifier": VERIFIER}
    with_pkce, another = (sign_in(local_hub)["code"][0] for _ in range(2))
    for more, headers, status in (
        ({"code": code}, {"Authorization": f"Basic {basic}"}, 200),
        ({"code": with_pkce}, {}, 200),  # as the JavaScript of a page asks
        ({"code": another, "code_verifier": "of nobody"}, {}, 400),
        ({"code": sign_in(local_hub, **without_pkce)["code"][0]}, {}, 401),
        ({"code": sign_in(local_hub)["code"][0], "client_id": "another"}, {}, 401),
    ):
        answer = get_session().post(f"{local_hub.endpoint}/oauth/token", data=form | more, headers=headers)
        assert answer.status_code == status


def test_a_refresh_gives_a_new_token_and_ends_the_old_one(local_hub):
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
        {"redirect_uri": "http://["},
        {"redirect_uri": None},
        {"client_id": "another"},
        {"response_type": "token"},
        {"code_challenge_method": "plain"},
        {"scope": "openid root"},
    ],
)
def test_a_request_that_the_application_may_not_make_redirects_nowhere(local_hub, changes):
    query = authorize_query(local_hub, **changes)
    answer = get_session().get(f"{local_hub.endpoint}/oauth/authorize", params=query, follow_redirects=False)
    assert answer.status_code == 400
    assert "location" not in answer.headers


def test_a_consent_needs_the_id_of_a_page_that_was_shown(local_hub):
    for request_id in ("", "guessed"):
        form = {"request_id": request_id, "user": "ada"}
        assert get_session().post(f"{local_hub.endpoint}/oauth/authorize", data=form).status_code == 400


def test_a_refusal_goes_back_without_a_code(local_hub):
    back = sign_in(local_hub, "")  # the button that cancels
    assert (back["error"], "code" in back) == (["access_denied"], False)


def test_what_the_request_says_is_shown_as_text(local_hub):
    query = authorize_query(local_hub, redirect_uri='http://127.0.0.1/"><script>alert(1)</script>')
    page = get_session().get(f"{local_hub.endpoint}/oauth/authorize", params=query)
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_client_without_a_browser_is_answered_at_once(local_hub):
    url, bearer = f"{local_hub.endpoint}/oauth/authorize", {"Authorization": f"Bearer {local_hub.tokens['ada']}"}
    query = authorize_query(local_hub, scope="openid profile read-memberships")
    back = get_session().get(url, params=query, headers=bearer, follow_redirects=False).headers["location"]
    token = exchange(local_hub, parse_qs(urlsplit(back).query)["code"][0]).json()["access_token"]
    assert [org["name"] for org in HfApi(local_hub.endpoint, token=token).whoami()["orgs"]] == ["zoo"]


SignedIn = Callable[..., HfApi]
EVERYTHING = "read-repos contribute-repos write-repos manage-repos read-memberships gated-repos"


@pytest.fixture
def signed_in(local_hub: LocalHubProcess) -> SignedIn:
    """signed_in("gated-repos", user="ada", orgs=["zoo"]): a client with an OAuth token of those scopes."""

    def client(scopes: str, user: str = "ada", orgs: tuple[str, ...] = ()) -> HfApi:
        tokens = tokens_of(local_hub, user, orgs=orgs, scope=f"openid profile {scopes}".strip())
        assert tokens["scope"].split() == ["openid", "profile", *scopes.split()]
        return HfApi(local_hub.endpoint, token=tokens["access_token"])

    return client


def fetched(api: HfApi, repo_id: str, folder: Path, name: str = "file.txt") -> int:
    return status_of(api.hf_hub_download, repo_id, name, local_dir=tempfile.mkdtemp(dir=folder))


def made(api: HfApi, repo_id: str, *, private: bool = False, gated: bool = False) -> str:
    created = str(api.create_repo(repo_id, private=private).repo_id)
    api.upload_file(path_or_fileobj=b"content", path_in_repo="file.txt", repo_id=created)
    if gated:
        api.update_repo_settings(created, gated="auto")
    return created


@pytest.fixture
def gated(ada: HfApi, bob: HfApi, fresh: Callable[[], str]) -> str:
    """A public gated repo of ada's that bob was let into."""
    repo = made(ada, f"ada/{fresh()}", gated=True)
    ada.grant_access(repo, "bob")
    return repo


def test_gated_files_need_their_own_scope_even_for_who_was_let_in(gated, bob, nobody, signed_in, tmp_path):
    assert fetched(bob, gated, tmp_path) == 200
    with pytest.raises(GatedRepoError, match="Please log in"):
        nobody.hf_hub_download(gated, "file.txt", local_dir=tmp_path / "nobody")
    assert fetched(signed_in("gated-repos", "bob"), gated, tmp_path) == 200
    for scopes in ("", "contribute-repos", "read-repos", "read-repos contribute-repos write-repos manage-repos"):
        with pytest.raises(GatedRepoError, match="does not include gated") as refused:
            signed_in(scopes, "bob").hf_hub_download(gated, "file.txt", local_dir=tmp_path / "none")
        assert refused.value.response.status_code == 403
    with pytest.raises(GatedRepoError, match="not in the authorized list"):  # the scope alone lets nobody in
        signed_in("gated-repos", "carol").hf_hub_download(gated, "file.txt", local_dir=tmp_path)
    assert signed_in("", "bob").model_info(gated).gated == "auto"  # what it is, anybody may know


def test_hubmerge_says_whether_the_token_or_its_owner_is_shut_out(local_hub, gated, signed_in):
    sha = str(signed_in("", "bob").model_info(gated).sha)
    for user, scopes, told in (
        ("bob", "contribute-repos", "the token does not cover gated ones"),
        ("carol", "gated-repos", "Ask for access on its page"),
    ):
        with pytest.raises(GatedError, match=told):
            Hub(local_hub.endpoint, str(signed_in(scopes, user).token)).read_file(gated, sha, "file.txt")


def test_what_the_real_hub_says_to_a_token_without_gated_repos_is_understood():
    answer = httpx2.Response(403, request=httpx2.Request("GET", "https://hub.example/org/llama"))
    words = "403 Forbidden: Please enable access to public gated repositories in your fine-grained token settings"
    with pytest.raises(GatedError, match="does not cover gated"), translated("org/llama"):
        raise HfHubHTTPError(words, response=answer)


USERS = default_users()


def test_a_token_and_a_code_end_with_their_time_and_a_refresh_needs_the_secret(tmp_path):
    hub, app = open_hub(tmp_path), USERS.oauth
    request = {"redirect_uri": REDIRECT, "client_id": app.client_id, "scope": "openid profile"}
    for name, expires in (("old", time.time() - 1), ("new", time.time() + 60)):
        token = (f"hf_oauth_{name}", name, "ada", app.client_id, "openid profile", expires, "")
        hub.store.change("INSERT INTO oauth_tokens VALUES (?, ?, ?, ?, ?, ?, ?)", *token)
        hub.store.change("INSERT INTO oauth_codes VALUES (?, ?, ?, ?)", name, "ada", json.dumps(request), expires)
    with TestClient(app_of(hub), base_url="http://127.0.0.1") as client:
        for name, statuses in (("old", [401, 400]), ("new", [200, 200])):
            form = {"grant_type": "authorization_code", "code": name, "redirect_uri": REDIRECT}
            asked = client.get("/oauth/userinfo", headers={"Authorization": f"Bearer hf_oauth_{name}"})
            redeemed = client.post("/oauth/token", data=form, auth=(app.client_id, app.client_secret))
            assert [asked.status_code, redeemed.status_code] == statuses
        refresh = {"grant_type": "refresh_token", "refresh_token": "new"}
        assert client.post("/oauth/token", data=refresh).status_code == 401


PUBLIC = Repo(1, "model", "ada", "x", "public", "", "ada", None, "", "", None, 0, {}, {}, None, None)
PRIVATE, OF_APP = replace(PUBLIC, visibility="private"), replace(PUBLIC, visibility="private", app="app")


@pytest.mark.parametrize(
    ("scopes", "reads", "writes", "creates", "manages"),
    [
        ("", False, False, False, False),
        ("gated-repos read-memberships", False, False, False, False),
        ("read-repos", True, False, False, False),
        ("contribute-repos", False, False, True, False),
        ("write-repos", True, True, False, False),
        ("manage-repos", True, True, True, True),
    ],
)
def test_what_each_scope_lets_an_application_do_with_the_person_s_repos(scopes, reads, writes, creates, manages):
    me = Identity(USERS.user("ada"), "oauth", frozenset(scopes.split()), "app")
    assert can_read(USERS, me, PUBLIC)
    assert can_read(USERS, me, PRIVATE) is reads
    assert can_write(USERS, me, PRIVATE) is can_write(USERS, me, PUBLIC) is writes
    assert can_create(USERS, me, "ada") is creates
    own = "contribute-repos" in scopes  # those that it created are its own
    assert can_read(USERS, me, OF_APP) is (reads or own)
    assert can_write(USERS, me, OF_APP) is (writes or own)
    for repo, allowed in ((PRIVATE, manages), (OF_APP, manages or own)):
        with nullcontext() if allowed else pytest.raises(HubError):
            require_manage(USERS, me, repo)
    for repo in (PUBLIC, PRIVATE):  # a gated one of the person's is one of theirs
        with nullcontext() if reads or "gated-repos" in scopes else pytest.raises(HubError, match="does not include"):
            require_files(Mock(row=Mock(return_value=None)), USERS, me, replace(repo, gated="auto"))


def test_nobody_else_reads_what_is_neither_public_nor_private_as_spaces_of_an_older_data_folder_may_be():
    protected = replace(PUBLIC, type="space", visibility="protected")
    assert protected.private
    assert not can_read(USERS, None, protected)
    assert can_read(USERS, Identity(USERS.user("ada"), "write"), protected)


def test_a_contributor_writes_what_they_created_and_nothing_else_of_the_organisation():
    users = USERS.model_copy(update={"orgs": (Org(name="lab", members={"bob": "contributor"}),)})
    bob = Identity(users.user("bob"), "write")
    assert can_create(users, bob, "lab")
    assert [can_write(users, bob, replace(PUBLIC, ns="lab", creator=name)) for name in ("bob", "ada")] == [True, False]


def test_scopes_bind_in_requests_and_listings(ada, fresh, signed_in, tmp_path):
    repo = made(ada, f"ada/{fresh()}", private=True)
    for scopes, status, writing in (("gated-repos", 404, 404), ("read-repos", 200, 403)):
        api = signed_in(scopes)
        assert status_of(api.model_info, repo) == fetched(api, repo, tmp_path) == status
        assert (repo in [model.id for model in api.list_models(author="ada")]) is (status == 200)
        assert status_of(api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=repo) == writing
        assert status_of(api.delete_repo, repo) == writing
        assert status_of(api.create_repo, f"ada/{fresh()}") == 403


def test_the_application_has_its_own_repos_whole(fresh, signed_in, tmp_path):
    repo = made(signed_in("contribute-repos"), f"ada/{fresh()}", private=True)
    later = signed_in("contribute-repos")  # another sign-in at the same application
    assert fetched(later, repo, tmp_path) == 200
    for api, listed in ((later, True), (signed_in(""), False)):
        assert (repo in [model.id for model in api.list_models(author="ada")]) is listed
    assert status_of(later.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=repo) == 200
    assert status_of(later.delete_repo, repo) == 200


def test_organisations_are_told_only_with_the_scope_and_only_those_picked(signed_in):
    def orgs(api: HfApi) -> list[str]:
        return [org["name"] for org in api.whoami()["orgs"]]

    assert orgs(signed_in("read-memberships", orgs=("zoo",))) == ["zoo"]
    assert orgs(signed_in("read-memberships")) == []
    assert orgs(signed_in(EVERYTHING.replace("read-memberships", ""), orgs=("zoo",))) == []
    assert orgs(signed_in("read-memberships", "bob", ("zoo",))) == []  # who is not a member cannot pick it


def test_an_organisation_that_was_not_picked_is_out_of_reach(ada, fresh, signed_in, tmp_path):
    private, public = made(ada, f"zoo/{fresh()}", private=True), made(ada, f"zoo/{fresh()}")
    for orgs, reading, writing in (((), 404, 403), (("zoo",), 200, 200)):
        api = signed_in(EVERYTHING, orgs=orgs)
        assert fetched(api, private, tmp_path) == reading
        assert (private in [model.id for model in api.list_models(author="zoo")]) is (reading == 200)
        assert status_of(api.create_repo, f"zoo/{fresh()}") == writing
        assert status_of(api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=public) == writing


def test_webhooks_and_the_mail_address_have_scopes_of_their_own(ada, signed_in):
    hook = ada.create_webhook(
        url="http://127.0.0.1:9/", watched=[{"type": "user", "name": "ada"}], domains=["repo"], secret="s3cret-of-ada"
    )
    try:
        for scopes in ("", EVERYTHING):
            assert status_of(signed_in(scopes).list_webhooks) == 403
            assert status_of(signed_in(scopes).get_webhook, hook.id) == 403
            assert signed_in(scopes).whoami()["email"] is None
        assert hook.id in [known.id for known in signed_in("webhooks").list_webhooks()]
        assert signed_in("email").whoami()["email"] == "ada@example.org"
    finally:
        ada.delete_webhook(hook.id)


@pytest.mark.parametrize(
    ("scopes", "status"),
    [("", 403), ("contribute-repos", 403), ("gated-repos", 200), ("read-repos", 200), ("write-repos", 200)],
)
def test_the_owner_s_gated_repo_is_one_of_the_person_s_repos(gated, signed_in, tmp_path, scopes, status):
    assert fetched(signed_in(scopes), gated, tmp_path) == status


@pytest.mark.parametrize(
    ("scopes", "status"),
    [
        *((scopes, 404) for scopes in ("", "gated-repos", "contribute-repos gated-repos read-memberships")),
        *((scopes, 200) for scopes in ("read-repos", "write-repos", "manage-repos")),
    ],
)
def test_private_repos_are_missing_without_read_repos_though_they_are_gated(
    ada, fresh, signed_in, tmp_path, scopes, status
):
    repo, api = made(ada, f"ada/{fresh()}", private=True, gated=True), signed_in(scopes)
    assert status_of(api.model_info, repo) == fetched(api, repo, tmp_path) == status
    assert (repo in [model.id for model in api.list_models(author="ada")]) is (status == 200)


@pytest.mark.parametrize(
    ("scopes", "create", "write", "delete"),
    [
        ("", 403, 403, 403),
        ("read-repos gated-repos", 403, 403, 403),
        ("contribute-repos", 200, 403, 403),
        ("write-repos", 403, 200, 403),
        ("manage-repos", 200, 200, 200),
    ],
)
def test_who_may_create_write_and_delete(ada, fresh, signed_in, scopes, create, write, delete):
    foreign, api = made(ada, f"ada/{fresh()}"), signed_in(scopes)
    assert status_of(api.create_repo, f"ada/{fresh()}") == create
    assert status_of(api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=foreign) == write
    assert status_of(api.update_repo_settings, foreign, gated="auto") == write
    assert status_of(api.move_repo, foreign, f"ada/{fresh()}") == delete
    if delete != 200:  # else it was moved
        assert status_of(api.delete_repo, foreign) == delete


def test_an_application_s_tokens_last_as_long_as_the_users_file_says_and_no_scope_is_made_up(lab):
    assert tokens_of(lab, "dora", scope="openid profile contribute-repos")["expires_in"] == 30 * 24 * 3600
    query = authorize_query(lab, scope="openid root")
    refused = get_session().get(f"{lab.endpoint}/oauth/authorize", params=query)
    assert (refused.status_code, "There is no scope root" in refused.text) == (400, True)
