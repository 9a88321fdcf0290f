"""Reading: the headers of downloads, trees and long histories."""

import hashlib
from random import Random

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import get_session
from raw_requests import commit_files

from localhub.store import Store
from localhub.tree import MAIN, File, Message, Trees

BYTES = bytes(range(256)) * 40
FILES = {"w.bin": BYTES, "dir/sub/a.txt": b"text", "dir/b c%é.txt": b"odd", "empty": b""}


@pytest.fixture
def filled(ada: HfApi, repo: str) -> str:
    """A repo with FILES."""
    commit_files(ada, repo, FILES)
    return repo


def test_head_tells_commit_digest_and_size(ada, filled):
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
def test_a_browser_is_told_a_few_harmless_types_and_runs_nothing(ada, repo, name, served):
    ada.upload_file(path_or_fileobj=b"{}", path_in_repo=name, repo_id=repo)
    answer = get_session().get(f"{ada.endpoint}/{repo}/resolve/main/{name}")
    assert answer.headers["content-type"] == served
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_tree_lists_folders_and_the_last_commit_of_each(ada, filled):
    first = ada.model_info(filled).sha
    second = ada.upload_file(path_or_fileobj=b"new", path_in_repo="dir/sub/z.txt", repo_id=filled).oid
    entries = {entry.path: entry for entry in ada.list_repo_tree(filled, recursive=True, expand=True)}
    assert set(entries) == {*FILES, ".gitattributes", "dir/sub/z.txt", "dir", "dir/sub"}
    last = {path: entry.last_commit.oid for path, entry in entries.items()}
    assert last["dir/sub/z.txt"] == last["dir/sub"] == last["dir"] == second
    assert last["dir/sub/a.txt"] == last["w.bin"] == first


def test_a_long_tree_and_a_long_history_come_in_pages(ada, repo):
    names = [f"f/{number:04d}" for number in range(1005)]
    commit_files(ada, repo, dict.fromkeys(names, b"x"))
    assert [entry.path for entry in ada.list_repo_tree(repo, "f")] == names
    for number in range(50):
        ada.upload_file(path_or_fileobj=b"%d" % number, path_in_repo="counter", repo_id=repo)
    titles = [commit.commit_id for commit in ada.list_repo_commits(repo)]
    assert len(titles) == len(set(titles)) == 52


def test_every_commit_of_a_long_history_reads_the_same_after_a_restart(tmp_path):
    """Every 65th change or so is stored as a whole tree, the others as differences."""
    store, held, shas = Store(tmp_path), [dict[str, File]()], list[str]()
    trees, random = Trees(store), Random(1)
    for number in range(140):
        path, file = f"{random.randrange(5)}.txt", File(f"{number:040x}", number)
        gone = path in held[-1] and random.random() < 0.3
        changes = {path: None if gone else file}
        held.append({p: f for p, f in {**held[-1], **changes}.items() if f})
        parent = shas[-1] if shas else None
        shas.append(trees.commit(1, changes, Message(str(number), "ada"), ref=MAIN, parent=parent))
    read = Trees(store)  # with an empty cache
    for sha, files in zip(shas, held[1:], strict=True):
        assert {path: entry.file for path, entry in read.at(1, sha).items()} == files
        assert all(entry.commit == shas[entry.size] for entry in read.at(1, sha).values())
    assert [commit.sha for commit in read.history(1, shas[-1])] == shas[::-1]
    store.close()


def test_a_revision_that_ends_in_a_space_is_missing_as_any_other(ada, repo):
    with pytest.raises(RevisionNotFoundError):
        ada.model_info(repo, revision="main ")  # which stands at the end of a header


def test_a_browser_that_asks_for_an_icon_gets_no_error(local_hub):
    assert get_session().get(f"{local_hub.endpoint}/favicon.ico").status_code == 204
