"""Commits: regular and large files, copies, order, conflicts, pull requests, and what a refused one leaves behind."""

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from raw_requests import ask, batch, commit_files, header, large, post_commit, regular, status_of

from localhub.process import LocalHubProcess


def contents(api: HfApi, repo: str, path: str, revision: str = "main") -> bytes:
    answer = ask(api, "GET", f"/{repo}/resolve/{revision}/{path}")
    answer.raise_for_status()
    return answer.content


def test_file_ids_are_those_of_git_and_of_the_content(ada, repo):
    # The ids of git come from `git hash-object` and `git mktree` on the same content.
    commit_files(ada, repo, {"d/hello.txt": b"hello\n", "w.bin": b"weights"})
    text, weights = ada.get_paths_info(repo, ["d/hello.txt", "w.bin"])
    assert text.blob_id == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert text.lfs is None
    assert weights.lfs.sha256 == hashlib.sha256(b"weights").hexdigest()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize 7\n" % weights.lfs.sha256.encode()
    assert weights.lfs.pointer_size == len(pointer)
    assert weights.blob_id == hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
    (folder,) = (entry for entry in ada.list_repo_tree(repo) if entry.path == "d")
    body = b"100644 hello.txt\0" + bytes.fromhex("ce013625030ba8dba906f756967f9e9ca394464a")
    assert folder.tree_id == hashlib.sha1(b"tree %d\0" % len(body) + body).hexdigest()


def test_of_two_commits_on_one_parent_exactly_one_wins(ada, repo):
    parent = ada.model_info(repo).sha

    def push(number: int) -> int:
        return post_commit(ada, repo, header(parentCommit=parent), regular(f"{number}.txt")).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(push, range(8)))
    assert codes == [200] + [412] * 7
    assert len(ada.list_repo_commits(repo)) == 2


def test_operations_apply_in_their_order(ada, repo):
    ada.upload_file(path_or_fileobj=b"old", path_in_repo="a", repo_id=repo)
    post_commit(ada, repo, header(), {"key": "deletedFile", "value": {"path": "a"}}, regular("a/b"))
    assert "a/b" in ada.list_repo_files(repo)
    said = header(summary="title\n\nwith a body")
    post_commit(ada, repo, said, regular("ab"), {"key": "deletedFolder", "value": {"path": "a/"}})
    assert sorted(ada.list_repo_files(repo)) == [".gitattributes", "ab"]
    assert ada.list_repo_commits(repo)[0].message == "with a body"


@pytest.mark.parametrize(
    "path",
    # each would leave the repo, or the folder that it is unpacked to, on one platform or another
    [
        *["../x", "..\\x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/.", ".git/config", "a/.GIT/x", "C:\\x"],
        *["\\\\h\\x", "nul\0", "line\nbreak", "x" * 1001],
    ],
)
def test_a_path_that_leaves_the_repo_is_refused_with_422(ada, repo, path):
    head = ada.model_info(repo).sha
    assert post_commit(ada, repo, header(), regular("fine.txt"), regular(path)).status_code == 422
    assert ada.model_info(repo).sha == head
    sizes = {"files": [{"path": path, "sample": "", "size": 1}]}
    assert ask(ada, "POST", f"/api/models/{repo}/preupload/main", json=sizes).status_code == 422


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([regular("a")], 400),  # no header
        ([header(), {"key": "unknown", "value": {"path": "a"}}], 400),
        ([header(), ["not", "an", "object"]], 400),
        ([header(), {"key": "file", "value": {"path": "a", "content": "%%%", "encoding": "base64"}}], 400),
        ([header(), {"key": "file", "value": {"path": "a\ud800", "content": "", "encoding": "base64"}}], 400),
        ([header(), {"key": "file", "value": {"path": 7, "content": ""}}], 400),
        ([header(), large("a", "0" * 64, 1)], 422),
        ([header(), large("a", "../../x", 1)], 422),
        ([header(), {"key": "deletedFile", "value": {"path": "missing"}}], 404),
        ([header(), regular("a"), regular("a/b")], 422),
        ([header(summary=None), regular("a")], 400),
    ],
)
def test_a_malformed_commit_changes_nothing(ada, repo, lines, code):
    head = ada.model_info(repo).sha
    assert post_commit(ada, repo, *lines).status_code == code
    assert ada.model_info(repo).sha == head


def test_an_upload_must_have_the_promised_digest_and_size(ada, repo):
    digest = hashlib.sha256(b"promised").hexdigest()
    actions = batch(ada, repo, digest, 8)["actions"]
    verify = actions["verify"]["href"].removeprefix(ada.endpoint)
    for wrong in (b"another!", b"short", b"much longer than it was promised"):
        assert get_session().put(actions["upload"]["href"], content=wrong).status_code in (400, 413)
    check = {"oid": digest, "size": 8}
    assert ask(ada, "POST", verify, json=check).status_code == 404
    assert get_session().put(actions["upload"]["href"], content=b"promised").status_code == 200
    assert ask(ada, "POST", verify, json=check).status_code == 200
    assert ask(ada, "POST", verify, json={**check, "size": 9}).status_code == 404
    assert "actions" not in batch(ada, repo, digest, 8)  # what is stored is not asked for again


def test_a_large_file_uploads_in_parts(tmp_path):
    content = hashlib.sha256(b"seed").digest() * 10_000  # 320,000 bytes: 4 parts, the last one shorter
    options = ["--multipart-bytes", "200000", "--part-bytes", "100000"]
    with LocalHubProcess(tmp_path / "data", options=options) as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["bob"])
        repo = api.create_repo("bob/parts").repo_id
        api.upload_file(path_or_fileobj=io.BytesIO(content), path_in_repo="w.bin", repo_id=repo)
        assert contents(api, repo, "w.bin") == content
        assert list((tmp_path / "data" / "tmp").iterdir()) == []
        # A completion that names too few parts, or comes before they are there, makes no object.
        digest = hashlib.sha256(content + b"!").hexdigest()
        upload = batch(api, repo, digest, 320_001, "multipart")["actions"]["upload"]
        assert sorted(upload["header"]) == ["00001", "00002", "00003", "00004", "chunk_size"]
        for numbers in ([1, 2, 3], [1, 2, 3, 4], ["1", None], []):
            done = {"oid": digest, "parts": [{"partNumber": n, "etag": "e"} for n in numbers]}
            assert get_session().post(upload["href"], json=done).status_code == 400


def test_gitattributes_and_content_decide_what_is_large(ada, repo):
    commit_files(ada, repo, {"a.onnx": b"name", "b.dat": b"its\0content", "c.md": b"text", "empty.bin": b""})
    large = {entry.path: entry.lfs is not None for entry in ada.list_repo_tree(repo)}
    assert large == {".gitattributes": False, "a.onnx": True, "b.dat": True, "c.md": False, "empty.bin": False}
    commit_files(ada, repo, {".gitattributes": b"*.md filter=lfs diff=lfs merge=lfs -text\n*.md.md -filter\n"})
    commit_files(ada, repo, {"d.md": b"now large", "d.md.md": b"but not this"})
    assert [file.lfs is not None for file in ada.get_paths_info(repo, ["d.md", "d.md.md"])] == [True, False]


def test_a_pull_request_is_reviewed_and_merged_by_the_owner(ada, bob, repo):
    ada.upload_file(path_or_fileobj=b"base", path_in_repo="a.txt", repo_id=repo)
    proposal = commit_files(bob, repo, {"b.txt": b"from bob"}, create_pr=True)
    assert (proposal.pr_num, proposal.pr_revision) == (1, "refs/pr/1")
    assert [r.name for r in ada.list_repo_refs(repo, include_pull_requests=True).pull_requests or ()] == ["1"]
    bob.upload_file(path_or_fileobj=b"more", path_in_repo="c.txt", repo_id=repo, revision="refs/pr/1")
    assert "b.txt" not in ada.list_repo_files(repo)
    details = ada.get_discussion_details(repo, 1)
    assert (details.status, details.author, details.target_branch) == ("open", "bob", "refs/heads/main")
    assert [event.type for event in details.events] == ["comment", "commit", "commit"]
    assert status_of(bob.merge_pull_request, repo, 1) == 403
    assert status_of(bob.upload_file, path_or_fileobj=b"x", path_in_repo="x", repo_id=repo) == 403
    ada.upload_file(path_or_fileobj=b"meanwhile", path_in_repo="d.txt", repo_id=repo)
    ada.merge_pull_request(repo, 1, comment="thanks")
    assert sorted(ada.list_repo_files(repo)) == [".gitattributes", "a.txt", "b.txt", "c.txt", "d.txt"]
    assert ada.get_discussion_details(repo, 1).status == "merged"


@pytest.mark.parametrize("theirs", ["a.txt", "a.txt/b.txt"])  # another text, or a folder in the file's place
def test_a_pull_request_in_conflict_is_not_merged(ada, repo, theirs):
    commit_files(ada, repo, {theirs: b"theirs"}, create_pr=True)
    head = ada.upload_file(path_or_fileobj=b"ours", path_in_repo="a.txt", repo_id=repo).oid
    assert ada.get_discussion_details(repo, 1).conflicting_files == ["a.txt"]
    with pytest.raises(HfHubHTTPError, match=r"a\.txt"):
        ada.merge_pull_request(repo, 1)
    assert status_of(ada.merge_pull_request, repo, 1) == 409
    assert ada.model_info(repo).sha == head


def test_large_files_are_listed_once_and_deleted_from_every_branch_and_commit(ada, repo):
    commit_files(ada, repo, {"a.bin": b"\0one", "b.bin": b"\0two"})
    ada.create_branch(repo, branch="dev")
    one, two = sorted(ada.list_lfs_files(repo), key=lambda file: file.filename)
    assert (one.filename, one.ref, one.size, two.filename) == ("a.bin", "refs/heads/main", 4, "b.bin")
    earlier = str(ada.model_info(repo).sha)
    ada.permanently_delete_lfs_files(repo, [one], rewrite_history=False)
    assert contents(ada, repo, "b.bin", revision=earlier) == b"\0two"
    assert ask(ada, "GET", f"/{repo}/resolve/{earlier}/a.bin").status_code == 404
    for revision in ("main", "dev"):
        assert {*ada.list_repo_files(repo, revision=revision)} == {".gitattributes", "b.bin"}


def test_an_invalid_card_is_refused_before_the_commit_and_in_one_that_skips_the_client_s_check(ada, repo):
    # the client's HTTP library takes no header of a hundred kilobytes
    card = f"---\nlicense: {[f'mine-{number}' for number in range(200)]}\n---\n".encode()
    with pytest.raises(ValueError, match=r"(?s)Invalid metadata.*must be one of"):
        ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo)
    refused = post_commit(ada, repo, header(), regular("README.md", card))
    assert (refused.status_code, refused.json()["error"].count("must be one of")) == (400, 200)
    assert "Invalid metadata in README.md" in refused.text
    in_a_folder = post_commit(ada, repo, header(), regular("docs/README.md", card))
    assert in_a_folder.status_code == 200  # no card


def test_a_plain_commit_of_a_binary_file_is_refused_and_names_it(ada, repo):
    head = ada.model_info(repo).sha
    binary = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    lines = [regular("fine.txt"), regular("a.png", binary), regular("deep/b.dat", b"a\0b")]
    refused = post_commit(ada, repo, header(), *lines)
    assert refused.status_code == 400
    assert "Offending files: a.png, deep/b.dat" in refused.text
    assert ada.model_info(repo).sha == head
    ada.upload_file(path_or_fileobj=binary, path_in_repo="a.png", repo_id=repo)  # the client asks first, and uses LFS
    [info] = ada.get_paths_info(repo, "a.png")
    assert info.lfs.size == len(binary)
