"""Commits: regular and large files, copies, order, conflicts, pull requests, and what a refused one leaves behind."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, HfApi
from huggingface_hub.errors import FileDuplicationError, HfHubHTTPError
from huggingface_hub.utils import get_session
from raw_requests import ask, batch, commit_files, copy_large_file, header, large, post_commit, regular, status_of
from starlette.testclient import TestClient

from localhub.process import LocalHubProcess
from localhub.protocol import Limits, open_hub
from localhub.server import app_of


def contents(api: HfApi, repo: str, path: str, revision: str = "main") -> bytes:
    answer = ask(api, "GET", f"/{repo}/resolve/{revision}/{path}")
    answer.raise_for_status()
    return answer.content


def test_file_ids_are_those_of_git_and_of_the_content(ada: HfApi, repo: str) -> None:
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


def test_of_two_commits_on_one_parent_exactly_one_wins(ada: HfApi, repo: str) -> None:
    parent = ada.model_info(repo).sha

    def push(number: int) -> int:
        return post_commit(ada, repo, header(parentCommit=parent), regular(f"{number}.txt")).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(push, range(8)))
    assert codes == [200] + [412] * 7
    assert len(ada.list_repo_commits(repo)) == 2


def test_operations_apply_in_their_order(ada: HfApi, repo: str) -> None:
    ada.upload_file(path_or_fileobj=b"old", path_in_repo="a", repo_id=repo)
    post_commit(ada, repo, header(), {"key": "deletedFile", "value": {"path": "a"}}, regular("a/b"))
    assert "a/b" in ada.list_repo_files(repo)
    said = header(summary="title\n\nwith a body")
    post_commit(ada, repo, said, regular("c"), {"key": "deletedFolder", "value": {"path": "a/"}})
    assert sorted(ada.list_repo_files(repo)) == [".gitattributes", "c"]
    assert ada.list_repo_commits(repo)[0].message == "with a body"


@pytest.mark.parametrize(
    "path",
    # each would leave the repo, or the folder that it is unpacked to, on one platform or another
    [
        *["../x", "..\\x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/.", ".git/config", "a/.GIT/x", "C:\\x"],
        *["\\\\h\\x", "nul\0", "line\nbreak", "x" * 1001],
    ],
)
def test_a_path_that_leaves_the_repo_is_refused_with_422(ada: HfApi, repo: str, path: str) -> None:
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
def test_a_malformed_commit_changes_nothing(ada: HfApi, repo: str, lines: list[object], code: int) -> None:
    head = ada.model_info(repo).sha
    assert post_commit(ada, repo, *lines).status_code == code
    assert ada.model_info(repo).sha == head


def test_an_upload_must_have_the_promised_digest_and_size(ada: HfApi, repo: str) -> None:
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


def test_a_large_file_uploads_in_parts(tmp_path: Path) -> None:
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


def test_two_completions_of_one_upload_make_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may ask again before its first question is answered."""
    hub = open_hub(tmp_path / "hub", limits=Limits(multipart_bytes=4, part_bytes=4))
    headers = {"Authorization": f"Bearer {hub.users.first_tokens()['ada']}"}
    with TestClient(app_of(hub), base_url="http://127.0.0.1", headers=headers) as client:
        client.post("/api/repos/create", json={"name": "parts"})
        file = {"oid": hashlib.sha256(b"onetwo").hexdigest(), "size": 6}
        asked = {"operation": "upload", "transfers": ["multipart"], "objects": [file]}
        [found] = client.post("/ada/parts.git/info/lfs/objects/batch", json=asked).json()["objects"]
        upload = found["actions"]["upload"]
        for number, part in ((1, b"onet"), (2, b"wo")):
            client.put(upload["header"][f"{number:05d}"], content=part)
        copy, codes = shutil.copyfileobj, list[int]()

        def complete() -> None:
            codes.append(client.post(upload["href"], json={"parts": [{"partNumber": n} for n in (1, 2)]}).status_code)

        def another_is_faster(*given: Any) -> None:
            monkeypatch.setattr(shutil, "copyfileobj", copy)
            complete()
            copy(*given)

        monkeypatch.setattr(shutil, "copyfileobj", another_is_faster)
        complete()
        assert codes == [200, 200]
        assert not [*(tmp_path / "hub" / "tmp").iterdir()]
        complete()
        assert codes.pop() == 200


def test_gitattributes_and_content_decide_what_is_large(ada: HfApi, repo: str) -> None:
    commit_files(ada, repo, {"a.onnx": b"name", "b.dat": b"its\0content", "c.md": b"text", "empty.bin": b""})
    large = {entry.path: entry.lfs is not None for entry in ada.list_repo_tree(repo)}
    assert large == {".gitattributes": False, "a.onnx": True, "b.dat": True, "c.md": False, "empty.bin": False}
    commit_files(ada, repo, {".gitattributes": b"*.md filter=lfs diff=lfs merge=lfs -text\n*.md.md -filter\n"})
    commit_files(ada, repo, {"d.md": b"now large", "d.md.md": b"but not this"})
    assert [file.lfs is not None for file in ada.get_paths_info(repo, ["d.md", "d.md.md"])] == [True, False]


def test_a_pull_request_is_reviewed_and_merged_by_the_owner(ada: HfApi, bob: HfApi, repo: str) -> None:
    ada.upload_file(path_or_fileobj=b"base", path_in_repo="a.txt", repo_id=repo)
    proposal = commit_files(bob, repo, {"b.txt": b"from bob"}, create_pr=True)
    assert (proposal.pr_num, proposal.pr_revision) == (1, "refs/pr/1")
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
def test_a_pull_request_in_conflict_is_not_merged(ada: HfApi, repo: str, theirs: str) -> None:
    commit_files(ada, repo, {theirs: b"theirs"}, create_pr=True)
    head = ada.upload_file(path_or_fileobj=b"ours", path_in_repo="a.txt", repo_id=repo).oid
    assert ada.get_discussion_details(repo, 1).conflicting_files == ["a.txt"]
    with pytest.raises(HfHubHTTPError, match=r"a\.txt"):
        ada.merge_pull_request(repo, 1)
    assert status_of(ada.merge_pull_request, repo, 1) == 409
    assert ada.model_info(repo).sha == head


def test_large_files_are_listed_once_and_deleted_from_every_branch_and_commit(ada: HfApi, repo: str) -> None:
    commit_files(ada, repo, {"a.bin": b"\0one", "b.bin": b"\0two"})
    ada.create_branch(repo, branch="dev")
    one, two = sorted(ada.list_lfs_files(repo), key=lambda file: file.filename)
    assert (one.filename, one.ref, one.size, two.filename) == ("a.bin", "refs/heads/main", 4, "b.bin")
    earlier = str(ada.model_info(repo).sha)
    ada.permanently_delete_lfs_files(repo, [one], rewrite_history=False)
    assert contents(ada, repo, "b.bin", revision=earlier) == b"\0two"
    assert ask(ada, "GET", f"/{repo}/resolve/{earlier}/a.bin").status_code == 404
    assert copy_large_file(ada, repo, repo, one.oid).json()["failed"]
    for revision in ("main", "dev"):
        assert {*ada.list_repo_files(repo, revision=revision)} == {".gitattributes", "b.bin"}


@pytest.mark.parametrize(
    ("kind", "line", "said", "times"),
    [
        # the client's HTTP library takes no header of a hundred kilobytes
        ("model", f"license: {[f'mine-{number}' for number in range(200)]}", "must be one of", 200),
        ("space", f"short_description: {'x' * 61}", "at most 60 characters", 1),
    ],
)
def test_an_invalid_card_is_refused_before_the_commit_and_in_one_that_skips_the_client_s_check(
    ada: HfApi, fresh: Callable[[], str], kind: str, line: str, said: str, times: int
) -> None:
    sdk = "gradio" if kind == "space" else None
    repo = ada.create_repo(f"ada/{fresh()}", repo_type=kind, space_sdk=sdk).repo_id
    card = f"---\n{line}\n---\n".encode()
    with pytest.raises(ValueError, match=f"(?s)Invalid metadata.*{said}"):
        ada.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo, repo_type=kind)
    refused = post_commit(ada, f"../{kind}s/{repo}", header(), regular("README.md", card))
    assert (refused.status_code, refused.json()["error"].count(said)) == (400, times)
    assert "Invalid metadata in README.md" in refused.text
    in_a_folder = post_commit(ada, f"../{kind}s/{repo}", header(), regular("docs/README.md", card))
    assert in_a_folder.status_code == 200  # no card


def test_a_plain_commit_of_a_binary_file_is_refused_and_names_it(ada: HfApi, repo: str) -> None:
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


LARGE, SMALL = b"\0large" * 3000, b"small"


@pytest.fixture
def source(ada: HfApi, repo: str) -> str:
    commit_files(ada, repo, {"w.bin": LARGE, "s.txt": SMALL})
    return repo


@pytest.fixture
def target(ada: HfApi, fresh: Callable[[], str]) -> str:
    return ada.create_repo(f"ada/{fresh()}").repo_id


def copy(api: HfApi, source: str, target: str, path: str = "w.bin", revision: str = "main") -> Any:
    operation = CommitOperationCopy(path, path, src_revision=revision, src_repo_id=source, src_repo_type="model")
    return api.create_commit(target, [operation], commit_message="copy")


def holds(api: HfApi, repo: str, content: bytes) -> bool:
    """Whether a commit to `repo` could name the content."""
    return "actions" not in batch(api, repo, hashlib.sha256(content).hexdigest(), len(content))


def test_a_large_file_is_copied_without_its_bytes_and_a_small_one_by_its_content(
    ada: HfApi, source: str, target: str
) -> None:
    for path, content in (("w.bin", LARGE), ("s.txt", SMALL)):
        copy(ada, source, target, path)
        [copied], [original] = (ada.get_paths_info(repo, [path]) for repo in (target, source))
        assert (copied.lfs, copied.blob_id) == (original.lfs, original.blob_id)
        assert contents(ada, target, path) == content
    sha = str(ada.model_info(source).sha)
    ada.delete_file("w.bin", source)
    ada.delete_file("w.bin", target)
    copy(ada, source, target, revision=sha)  # of an older commit
    assert ada.file_exists(target, "w.bin")


def test_only_paths_info_names_the_other_storage(ada: HfApi, source: str) -> None:
    """A tree that did would send snapshots there."""
    assert ada.get_paths_info(source, ["w.bin"])[0].xet_hash
    assert not ada.get_paths_info(source, ["s.txt"])[0].xet_hash
    assert not any(getattr(entry, "xet_hash", None) for entry in ada.list_repo_tree(source, recursive=True))


def test_what_was_uploaded_but_never_committed_cannot_be_copied(ada: HfApi, source: str, target: str) -> None:
    hidden = b"\0hidden" * 3000
    ada.preupload_lfs_files(source, [CommitOperationAdd("hidden.bin", hidden)])
    assert holds(ada, source, hidden)
    assert copy_large_file(ada, source, target, hashlib.sha256(hidden).hexdigest()).json()["failed"]
    assert not holds(ada, target, hidden)


def test_a_digest_alone_gives_nobody_a_file_and_the_client_is_told_which_cannot_be_copied(
    ada: HfApi, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.hf_api import RepoFile

    make = RepoFile.__init__

    def odd(self: RepoFile, **values: Any) -> None:
        make(self, **values)
        self.xet_hash = "0" * 64

    monkeypatch.setattr(RepoFile, "__init__", odd)
    with pytest.raises(FileDuplicationError, match="Not a file of this repo"):
        copy(ada, source, target)
    assert not holds(ada, target, LARGE)


def test_nobody_copies_from_what_they_cannot_read_or_to_what_they_cannot_write(
    ada: HfApi, bob: HfApi, carol: HfApi, source: str, target: str, bobs: str, fresh: Callable[[], str]
) -> None:
    copy(bob, source, bobs)  # a public source
    assert status_of(copy, bob, source, target) == status_of(copy, carol, source, target) == 403
    ada.update_repo_settings(source, private=True)
    second = bob.create_repo(f"bob/{fresh()}").repo_id
    assert copy_large_file(bob, source, second, hashlib.sha256(LARGE).hexdigest()).status_code == 404
    assert not holds(bob, second, LARGE)


def test_the_files_of_a_gated_repo_are_copied_only_by_those_who_were_let_in(
    ada: HfApi, bob: HfApi, source: str, bobs: str
) -> None:
    ada.update_repo_settings(source, gated="manual")
    assert status_of(copy, bob, source, bobs) == 403
    assert not holds(bob, bobs, LARGE)


def test_a_private_file_is_not_copied_to_where_others_may_read_it(
    ada: HfApi, source: str, target: str, fresh: Callable[[], str]
) -> None:
    ada.update_repo_settings(source, private=True)
    assert status_of(copy, ada, source, target) == 403
    assert not holds(ada, target, LARGE)
    hidden = ada.create_repo(f"ada/{fresh()}", private=True).repo_id
    copy(ada, source, hidden)
    assert holds(ada, hidden, LARGE)
