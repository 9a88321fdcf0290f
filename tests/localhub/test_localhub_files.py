"""Reading: the headers of downloads, trees and long histories."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import get_session
from raw_requests import commit_files

from localhub.process import LocalHubProcess

BYTES = bytes(range(256)) * 40
FILES = {"w.bin": BYTES, "dir/sub/a.txt": b"text", "dir/b c%é.txt": b"odd", "empty": b""}


@pytest.fixture
def filled(ada: HfApi, repo: str) -> str:
    """A repo with FILES."""
    commit_files(ada, repo, FILES)
    return repo


def test_head_tells_commit_digest_and_size(ada: HfApi, filled: str) -> None:
    sha = ada.model_info(filled).sha
    assert ada.model_info(filled, revision="HEAD").sha == sha
    for path, etag, size in (
        ("w.bin", hashlib.sha256(BYTES).hexdigest(), 10240),
        ("dir/sub/a.txt", hashlib.sha1(b"blob 4\0text").hexdigest(), 4),
        ("empty", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", 0),
    ):
        answer = get_session().head(f"{ada.endpoint}/{filled}/resolve/main/{path}")
        assert answer.status_code == 200
        assert answer.headers["etag"] == f'"{etag}"'
        assert int(answer.headers["content-length"]) == size
        assert answer.headers["x-repo-commit"] == sha
        assert answer.content == b""
    missing = get_session().head(f"{ada.endpoint}/{filled}/resolve/main/missing")
    assert (missing.status_code, missing.headers["x-repo-commit"]) == (404, sha)


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("a.svg", "image/svg+xml"),
        ("a.html", "text/plain; charset=utf-8"),
        ("a.xhtml", "text/plain; charset=utf-8"),
        ("a.mht", "application/octet-stream"),  # a web page, too
        ("a.swf", "application/octet-stream"),
        ("a.safetensors", "application/octet-stream"),
        ("a.png", "image/png"),
        ("config.json", "application/json"),
    ],
)
def test_a_browser_is_told_a_few_harmless_types_and_runs_nothing(ada: HfApi, repo: str, name: str, served: str) -> None:
    ada.upload_file(path_or_fileobj=b"{}", path_in_repo=name, repo_id=repo)
    answer = get_session().get(f"{ada.endpoint}/{repo}/resolve/main/{name}")
    assert answer.headers["content-type"] == served
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_revision_that_ends_in_a_space_is_missing_as_any_other(ada: HfApi, repo: str) -> None:
    with pytest.raises(RevisionNotFoundError):
        ada.model_info(repo, revision="main ")  # which stands at the end of a header


def test_a_tree_lists_folders_and_the_last_commit_of_each(ada: HfApi, filled: str) -> None:
    first = ada.model_info(filled).sha
    second = ada.upload_file(path_or_fileobj=b"new", path_in_repo="dir/sub/z.txt", repo_id=filled).oid
    entries = {entry.path: entry for entry in ada.list_repo_tree(filled, recursive=True, expand=True)}
    assert set(entries) == {*FILES, ".gitattributes", "dir/sub/z.txt", "dir", "dir/sub"}
    last = {path: entry.last_commit.oid for path, entry in entries.items()}
    assert last["dir/sub/z.txt"] == last["dir/sub"] == last["dir"] == second
    assert last["dir/sub/a.txt"] == last["w.bin"] == first


def test_a_long_tree_and_a_long_history_come_in_pages(ada: HfApi, repo: str) -> None:
    names = [f"f/{number:04d}" for number in range(1005)]
    commit_files(ada, repo, dict.fromkeys(names, b"x"))
    assert [entry.path for entry in ada.list_repo_tree(repo, "f")] == names
    for number in range(60):
        ada.upload_file(path_or_fileobj=b"%d" % number, path_in_repo="counter", repo_id=repo)
    titles = [commit.commit_id for commit in ada.list_repo_commits(repo)]
    assert len(titles) == len(set(titles)) == 62


@pytest.mark.slow
def test_an_old_commit_reads_the_same_after_a_long_history_and_a_restart(tmp_path: Path) -> None:
    # Every 65th change or so is stored as a whole tree, the others as differences. The restart empties the
    # cache of trees, so all of them are read from the database.
    def files(number: int) -> dict[str, bytes]:
        """What commit `number` holds, by plain counting: file k has the last number that leaves k modulo 3."""
        return {f"{k}.txt": b"%d" % (number - (number - k) % 3) for k in range(min(number + 1, 3))}

    with LocalHubProcess(tmp_path / "data") as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["bob"])
        repo = api.create_repo("bob/long").repo_id
        oids = [
            api.upload_file(path_or_fileobj=b"%d" % number, path_in_repo=f"{number % 3}.txt", repo_id=repo).oid
            for number in range(140)
        ]
    with LocalHubProcess(tmp_path / "data") as hub:
        api = HfApi(hub.endpoint, token=hub.tokens["bob"])
        for number in (139, 0, 1, 2, 62, 63, 64, 65, 66, 128, 129, 130, 131):
            entries = {entry.path: entry for entry in api.list_repo_tree(repo, revision=oids[number], expand=True)}
            entries.pop(".gitattributes")
            assert {path: entry.size for path, entry in entries.items()} == {
                path: len(content) for path, content in files(number).items()
            }
            for path, content in files(number).items():
                assert entries[path].last_commit.oid == oids[int(content)]
                url = f"{hub.endpoint}/{repo}/resolve/{oids[number]}/{path}"
                assert get_session().get(url).content == content


def test_a_browser_that_asks_for_an_icon_gets_no_error(local_hub: LocalHubProcess) -> None:
    assert get_session().get(f"{local_hub.endpoint}/favicon.ico").status_code == 204
