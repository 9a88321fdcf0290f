"""Repos and their discussions: who may make, see, change, move and delete them, as the real client finds them."""

from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import DiscussionComment, HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from raw_requests import ask, status_of


def test_whoami_tells_name_orgs_and_role_of_each_token(ada, bob, carol):
    me = ada.whoami()
    assert (me["name"], me["type"], me["auth"]["accessToken"]["role"]) == ("ada", "user", "write")
    assert [(org["name"], org["roleInOrg"]) for org in me["orgs"]] == [("zoo", "admin")]
    assert bob.whoami()["orgs"] == []
    assert carol.whoami()["auth"]["accessToken"]["role"] == "read"


def test_an_unknown_token_is_refused_even_for_a_public_repo(local_hub, repo):
    stranger = HfApi(local_hub.endpoint, token="hf_nobody_has_this_token")
    assert status_of(stranger.whoami) == status_of(stranger.model_info, repo) == 401


def test_a_taken_name_is_a_conflict_unless_it_may_exist(ada, repo):
    assert status_of(ada.create_repo, repo) == status_of(ada.create_repo, repo.upper()) == 409
    assert ada.create_repo(repo, exist_ok=True).repo_id == repo


def test_only_members_create_in_a_namespace_and_read_tokens_create_nowhere(ada, bob, carol, reader, fresh):
    for api, namespace in ((bob, "zoo"), (bob, "ada"), (carol, "carol"), (ada, "nobody-here"), (reader, "ada")):
        assert status_of(api.create_repo, f"{namespace}/{fresh()}") == 403


def test_what_the_hub_does_not_allow_or_could_not_keep_is_refused(ada, repo):
    def refused(path: str, **body: object) -> bool:
        return ask(ada, "POST", path, json=body).status_code == 400

    for name in ("-x", "x.", "a--b", "a..b", "x" * 97, "é"):
        assert refused("/api/repos/create", name=name)
    new, files = f"{repo.partition('/')[2]}-x", [{"path": "a", "content": "YQ==", "encoding": "base64"}]
    assert refused("/api/repos/create", name=new, files=files)
    assert refused("/api/repos/create", name=new, license="mit")
    assert refused("/api/repos/create", name=new, type="space", sdk="gradio", secrets=[{"key": "K", "value": "v"}])
    assert not ada.repo_exists(f"{repo}-x")
    assert refused(f"/api/models/{repo}/branch/empty", emptyBranch=True)
    assert refused(f"/api/models/{repo}/branch/HEAD")


def test_a_private_repo_exists_only_for_members(ada, bob, nobody, reader, fresh, tmp_path):
    repo = f"zoo/{fresh()}"
    older = {"name": repo, "private": True}  # the client of today says a visibility
    assert ask(ada, "POST", "/api/repos/create", json=older).status_code == 200
    ada.upload_file(path_or_fileobj=b"secret", path_in_repo="a.txt", repo_id=repo)
    assert reader.model_info(repo).private
    for api, code in ((bob, 404), (nobody, 401)):
        download = partial(api.hf_hub_download, filename="a.txt", cache_dir=tmp_path / str(code))
        for look in (api.model_info, api.list_repo_files, api.list_repo_refs, api.list_repo_commits, download):
            with pytest.raises(RepositoryNotFoundError) as hidden:
                look(repo)
            assert hidden.value.response.status_code == code
        assert status_of(list, api.get_repo_discussions(repo)) == code
        assert repo not in [model.id for model in api.list_models(author="zoo")]
    assert repo in [model.id for model in ada.list_models(author="zoo")]
    ada.update_repo_settings(repo, private=False)
    assert nobody.model_info(repo).private is False


def test_a_public_repo_is_written_by_members_only(ada, bob, nobody, repo):
    head = ada.model_info(repo).sha
    for api, code in ((bob, 403), (nobody, 401)):
        assert status_of(api.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=repo) == code
        assert status_of(api.create_branch, repo, branch="theirs") == code
        assert status_of(api.create_tag, repo, tag="theirs") == code
        assert status_of(api.update_repo_settings, repo, private=True) == code
        assert status_of(api.move_repo, repo, "bob/taken") == code
        assert status_of(api.delete_repo, repo) == status_of(api.super_squash_history, repo) == code
    info = ada.model_info(repo)
    assert (info.sha, info.private) == (head, False)


def test_a_moved_repo_answers_to_its_old_id_until_that_is_taken(ada, fresh, tmp_path):
    old, new = f"ada/{fresh()}", f"zoo/{fresh()}"
    ada.create_repo(old)
    ada.upload_file(path_or_fileobj=b"kept", path_in_repo="a.txt", repo_id=old)
    ada.move_repo(old, new)
    assert ada.model_info(old).id == new
    assert Path(ada.hf_hub_download(old, "a.txt", cache_dir=tmp_path)).read_bytes() == b"kept"
    ada.create_repo(old)
    assert ada.model_info(old).id == old
    assert ada.model_info(new).id == new


def test_a_deleted_repo_is_gone_and_its_name_is_free(ada, repo):
    first = ada.model_info(repo).sha
    ada.create_tag(repo, tag="v1")
    ada.delete_repo(repo)
    with pytest.raises(RepositoryNotFoundError):
        ada.model_info(repo)
    ada.create_repo(repo)
    assert ada.list_repo_refs(repo).tags == []
    with pytest.raises(RevisionNotFoundError):
        ada.model_info(repo, revision=first)


def test_nobody_else_edits_a_comment(ada, bob, carol, repo):
    talk = bob.create_discussion(repo, "Why this license?", description="Please say.", token=bob.token)
    said = ada.comment_discussion(repo, talk.num, "an answer")
    for api in (bob, carol):
        assert status_of(api.edit_discussion_comment, repo, talk.num, said.id, "other words") == 403
    events = ada.get_discussion_details(repo, talk.num).events
    assert [event.content for event in events if isinstance(event, DiscussionComment)][1] == "an answer"


def test_a_client_may_say_private_instead_of_a_visibility(ada, nobody, repo):
    def settings(**asked: object) -> dict[str, object]:
        answer = ask(ada, "PUT", f"/api/models/{repo}/settings", json=asked)
        assert answer.status_code == 200
        return dict(answer.json())

    assert settings(private=True) == {"visibility": "private", "private": True, "gated": False}
    with pytest.raises(RepositoryNotFoundError):
        nobody.model_info(repo)
    assert settings(gated="manual") == {"visibility": "private", "private": True, "gated": "manual"}
    assert settings(private=False) == {"visibility": "public", "private": False, "gated": "manual"}
    assert nobody.model_info(repo).gated == "manual"
    settings(private=True)
    assert settings(private=None, gated="auto") == {"visibility": "private", "private": True, "gated": "auto"}


@pytest.mark.parametrize("kept", ["space_secrets", "space_variables"])
def test_what_a_space_could_not_keep_is_refused_and_no_space_is_made(ada, fresh, kept):
    space, values = f"ada/{fresh()}", {kept: [{"key": "K", "value": "v"}]}
    assert status_of(ada.create_repo, space, repo_type="space", space_sdk="gradio", **values) == 400
    assert not ada.repo_exists(space, repo_type="space")
