"""Copies of large files between repos: what the client asks for, and what nobody gets by asking."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, HfApi
from huggingface_hub.errors import FileDuplicationError
from huggingface_hub.utils import get_session
from raw_requests import ask, batch, commit_files, status_of, xet_hash_of

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


def duplicate(api: HfApi, source: str, target: str, **file: str) -> Any:
    body = {"target": {"type": "model", "name": target}, "files": [file]}
    return ask(api, "POST", f"/api/models/{source}/lfs-files/duplicate", json=body)


def test_a_large_file_is_copied_without_its_bytes_and_a_small_one_by_its_content(
    ada: HfApi, source: str, target: str
) -> None:
    for path, content in (("w.bin", LARGE), ("s.txt", SMALL)):
        copy(ada, source, target, path)
        [copied], [original] = (ada.get_paths_info(repo, [path]) for repo in (target, source))
        assert (copied.lfs, copied.blob_id) == (original.lfs, original.blob_id)
        assert get_session().get(f"{ada.endpoint}/{target}/resolve/main/{path}").content == content


def test_a_file_of_an_older_commit_can_be_copied(ada: HfApi, source: str, target: str) -> None:
    sha = ada.model_info(source).sha
    ada.delete_file("w.bin", source)
    copy(ada, source, target, revision=str(sha))
    assert ada.file_exists(target, "w.bin")


def test_only_paths_info_names_the_other_storage(ada: HfApi, source: str) -> None:
    """A tree that did would send snapshots there."""
    assert ada.get_paths_info(source, ["w.bin"])[0].xet_hash
    assert not ada.get_paths_info(source, ["s.txt"])[0].xet_hash
    assert not any(getattr(entry, "xet_hash", None) for entry in ada.list_repo_tree(source, recursive=True))


def test_a_digest_alone_gives_nobody_a_file(ada: HfApi, source: str, target: str) -> None:
    sha256 = hashlib.sha256(LARGE).hexdigest()
    answer = duplicate(ada, source, target, xetHash=sha256, sha256=sha256)
    assert [f["sha256"] for f in answer.json()["failed"]] == [sha256]
    assert not holds(ada, target, LARGE)


def test_what_was_uploaded_but_never_committed_cannot_be_copied(ada: HfApi, source: str, target: str) -> None:
    hidden = b"\0hidden" * 3000
    ada.preupload_lfs_files(source, [CommitOperationAdd("hidden.bin", hidden)])
    assert holds(ada, source, hidden)
    sha256 = hashlib.sha256(hidden).hexdigest()
    assert duplicate(ada, source, target, xetHash=xet_hash_of(sha256), sha256=sha256).json()["failed"]
    assert not holds(ada, target, hidden)


def test_the_client_is_told_which_file_cannot_be_copied(
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


def test_nobody_copies_from_what_they_cannot_read_or_to_what_they_cannot_write(
    ada: HfApi, bob: HfApi, carol: HfApi, source: str, target: str, fresh: Callable[[], str]
) -> None:
    mine = bob.create_repo(f"bob/{fresh()}").repo_id
    copy(bob, source, mine)  # a public source
    assert status_of(copy, bob, source, target) == status_of(copy, carol, source, target) == 403
    ada.update_repo_settings(source, private=True)
    second = bob.create_repo(f"bob/{fresh()}").repo_id
    sha256 = hashlib.sha256(LARGE).hexdigest()
    assert duplicate(bob, source, second, xetHash=xet_hash_of(sha256), sha256=sha256).status_code == 404
    assert not holds(bob, second, LARGE)


def test_the_files_of_a_gated_repo_are_copied_only_by_those_who_were_let_in(
    ada: HfApi, bob: HfApi, source: str, fresh: Callable[[], str]
) -> None:
    ada.update_repo_settings(source, gated="manual")
    mine = bob.create_repo(f"bob/{fresh()}").repo_id
    assert status_of(copy, bob, source, mine) == 403
    assert not holds(bob, mine, LARGE)


def test_a_private_file_is_not_copied_to_where_others_may_read_it(
    ada: HfApi, source: str, target: str, fresh: Callable[[], str]
) -> None:
    ada.update_repo_settings(source, private=True)
    assert status_of(copy, ada, source, target) == 403
    assert not holds(ada, target, LARGE)
    hidden = ada.create_repo(f"ada/{fresh()}", private=True).repo_id
    copy(ada, source, hidden)
    assert holds(ada, hidden, LARGE)
