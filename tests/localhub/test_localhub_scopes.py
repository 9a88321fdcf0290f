"""What an OAuth token of each set of scopes may do, asked with the Hub's own client."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import get_session
from oauth_helpers import tokens_of
from raw_requests import status_of

from hubmerge.errors import GatedError
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import translated
from localhub.process import LocalHubProcess
from localhub.users import default_users

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


def test_gated_files_need_their_own_scope_even_for_who_was_let_in(
    gated: str, bob: HfApi, signed_in: SignedIn, tmp_path: Path
) -> None:
    assert fetched(bob, gated, tmp_path) == 200
    assert fetched(signed_in("gated-repos", "bob"), gated, tmp_path) == 200
    for scopes in ("", "contribute-repos", "read-repos", "read-repos contribute-repos write-repos manage-repos"):
        with pytest.raises(GatedRepoError, match="does not include gated") as refused:
            signed_in(scopes, "bob").hf_hub_download(gated, "file.txt", local_dir=tmp_path / "none")
        assert refused.value.response.status_code == 403
    assert signed_in("", "bob").model_info(gated).gated == "auto"  # what it is, anybody may know


def test_hubmerge_says_whether_the_token_or_its_owner_is_shut_out(
    local_hub: LocalHubProcess, gated: str, signed_in: SignedIn
) -> None:
    sha = str(signed_in("", "bob").model_info(gated).sha)
    for user, scopes, told in (
        ("bob", "contribute-repos", "the token does not cover gated ones"),
        ("carol", "gated-repos", "Ask for access on its page"),
    ):
        with pytest.raises(GatedError, match=told):
            Hub(local_hub.endpoint, str(signed_in(scopes, user).token)).read_file(gated, sha, "file.txt")


def test_what_the_real_hub_says_to_a_token_without_gated_repos_is_understood() -> None:
    answer = httpx2.Response(403, request=httpx2.Request("GET", "https://hub.example/org/llama"))
    words = "403 Forbidden: Please enable access to public gated repositories in your fine-grained token settings"
    with pytest.raises(GatedError, match="does not cover gated"), translated("org/llama"):
        raise HfHubHTTPError(words, response=answer)


def test_the_scope_alone_lets_nobody_in(gated: str, signed_in: SignedIn, tmp_path: Path) -> None:
    with pytest.raises(GatedRepoError, match="not in the authorized list"):
        signed_in("gated-repos", "carol").hf_hub_download(gated, "file.txt", local_dir=tmp_path)


@pytest.mark.parametrize(
    ("scopes", "status"),
    [("", 403), ("contribute-repos", 403), ("gated-repos", 200), ("read-repos", 200), ("write-repos", 200)],
)
def test_the_owner_s_gated_repo_is_one_of_the_person_s_repos(
    gated: str, signed_in: SignedIn, tmp_path: Path, scopes: str, status: int
) -> None:
    assert fetched(signed_in(scopes), gated, tmp_path) == status


def test_private_repos_are_missing_without_read_repos(
    ada: HfApi, fresh: Callable[[], str], signed_in: SignedIn, tmp_path: Path
) -> None:
    repo = made(ada, f"ada/{fresh()}", private=True)
    for scopes in ("", "gated-repos", "contribute-repos gated-repos read-memberships"):
        api = signed_in(scopes)
        with pytest.raises(RepositoryNotFoundError) as refused:
            api.model_info(repo)
        assert refused.value.response.status_code == 404
        assert fetched(api, repo, tmp_path) == 404
        assert repo not in [model.id for model in api.list_models(author="ada")]
    for scopes in ("read-repos", "write-repos", "manage-repos"):
        api = signed_in(scopes)
        assert api.model_info(repo).private
        assert fetched(api, repo, tmp_path) == 200
        assert repo in [model.id for model in api.list_models(author="ada")]


def test_a_private_gated_repo_of_the_person_needs_read_repos_only(
    ada: HfApi, fresh: Callable[[], str], signed_in: SignedIn, tmp_path: Path
) -> None:
    repo = made(ada, f"ada/{fresh()}", private=True, gated=True)
    assert fetched(signed_in("read-repos"), repo, tmp_path) == 200
    assert fetched(signed_in("gated-repos"), repo, tmp_path) == 404


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
def test_who_may_create_write_and_delete(
    ada: HfApi, fresh: Callable[[], str], signed_in: SignedIn, scopes: str, create: int, write: int, delete: int
) -> None:
    foreign, api = made(ada, f"ada/{fresh()}"), signed_in(scopes)
    assert status_of(api.create_repo, f"ada/{fresh()}") == create
    assert status_of(api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=foreign) == write
    assert status_of(api.update_repo_settings, foreign, gated="auto") == write
    assert status_of(api.move_repo, foreign, f"ada/{fresh()}") == delete
    if delete != 200:  # else it was moved
        assert status_of(api.delete_repo, foreign) == delete


def test_the_application_has_its_own_repos_whole(fresh: Callable[[], str], signed_in: SignedIn, tmp_path: Path) -> None:
    repo = made(signed_in("contribute-repos"), f"ada/{fresh()}", private=True)
    later = signed_in("contribute-repos")  # another sign-in at the same application
    assert fetched(later, repo, tmp_path) == 200
    for api, listed in ((later, True), (signed_in(""), False)):
        assert (repo in [model.id for model in api.list_models(author="ada")]) is listed
    assert status_of(later.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=repo) == 200
    assert status_of(later.delete_repo, repo) == 200


def test_organisations_are_told_only_with_the_scope_and_only_those_picked(signed_in: SignedIn) -> None:
    def orgs(api: HfApi) -> list[str]:
        return [org["name"] for org in api.whoami()["orgs"]]

    assert orgs(signed_in("read-memberships", orgs=("zoo",))) == ["zoo"]
    assert orgs(signed_in("read-memberships")) == []
    assert orgs(signed_in(EVERYTHING.replace("read-memberships", ""), orgs=("zoo",))) == []
    assert orgs(signed_in("read-memberships", "bob", ("zoo",))) == []  # who is not a member cannot pick it


def test_an_organisation_that_was_not_picked_is_out_of_reach(
    ada: HfApi, fresh: Callable[[], str], signed_in: SignedIn, tmp_path: Path
) -> None:
    private = made(ada, f"zoo/{fresh()}", private=True)
    public = made(ada, f"zoo/{fresh()}")
    without, with_zoo = signed_in(EVERYTHING), signed_in(EVERYTHING, orgs=("zoo",))
    assert fetched(without, private, tmp_path) == 404
    assert private not in [model.id for model in without.list_models(author="zoo")]
    assert status_of(without.create_repo, f"zoo/{fresh()}") == 403
    assert status_of(without.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=public) == 403
    assert fetched(with_zoo, private, tmp_path) == 200
    assert private in [model.id for model in with_zoo.list_models(author="zoo")]
    assert status_of(with_zoo.create_repo, f"zoo/{fresh()}") == 200
    assert status_of(with_zoo.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=public) == 200


def test_webhooks_and_the_mail_address_have_scopes_of_their_own(ada: HfApi, signed_in: SignedIn) -> None:
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


def test_an_application_asks_for_what_it_declared_and_its_tokens_last_as_long_as_it_said(tmp_path: Path) -> None:
    users = default_users().model_dump(mode="json")
    users["oauth"] |= {"scopes": ["contribute-repos"], "expiration_minutes": 43_200}
    (tmp_path / "users.json").write_text(json.dumps(users))
    with LocalHubProcess(tmp_path / "hub", users=tmp_path / "users.json") as hub:
        tokens = tokens_of(hub, "ada", scope="openid profile contribute-repos")
        assert tokens["expires_in"] == 30 * 24 * 3600
        query = {"response_type": "code", "client_id": hub.oauth["client_id"], "redirect_uri": "http://127.0.0.1:9/"}
        refused = get_session().get(f"{hub.endpoint}/oauth/authorize", params=query | {"scope": "openid read-repos"})
        assert (refused.status_code, "did not declare the scope read-repos" in refused.text) == (400, True)


@pytest.mark.parametrize("changes", [{"scopes": ["root"]}, {"expiration_minutes": 43_201}, {"expiration_minutes": 0}])
def test_a_declaration_that_the_hub_would_not_take_is_refused(changes: dict[str, Any]) -> None:
    users = default_users()
    with pytest.raises(ValueError):
        type(users.oauth).model_validate(users.oauth.model_dump() | changes)
