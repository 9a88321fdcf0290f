"""Reading: downloads with ranges and cache headers, trees, snapshots, the file system and datasets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError
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


def test_a_range_is_answered_with_exactly_its_bytes_and_one_behind_the_end_with_the_size(
    ada: HfApi, filled: str
) -> None:
    def ask_for(range_: str) -> tuple[int, str, bytes]:
        answer = get_session().get(f"{ada.endpoint}/{filled}/resolve/main/w.bin", headers={"Range": f"bytes={range_}"})
        return answer.status_code, answer.headers["content-range"], answer.content

    assert ask_for("0-9") == (206, "bytes 0-9/10240", BYTES[:10])
    assert ask_for("100-") == (206, "bytes 100-10239/10240", BYTES[100:])
    assert ask_for("-7") == (206, "bytes 10233-10239/10240", BYTES[-7:])
    assert ask_for("10230-99999") == (206, "bytes 10230-10239/10240", BYTES[10230:])
    assert ask_for("0-0") == (206, "bytes 0-0/10240", BYTES[:1])
    assert ask_for("10240-")[:2] == (416, "bytes */10240")


def test_head_tells_commit_digest_and_size(ada: HfApi, filled: str) -> None:
    sha = ada.model_info(filled).sha
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


def test_a_snapshot_holds_every_file_of_the_commit(ada: HfApi, filled: str, tmp_path: Path) -> None:
    folder = Path(ada.snapshot_download(filled, cache_dir=tmp_path))
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(".gitattributes")
    assert found == FILES
    assert folder.name == ada.model_info(filled).sha


def test_missing_files_and_revisions_are_told_apart(ada: HfApi, filled: str, tmp_path: Path) -> None:
    with pytest.raises(EntryNotFoundError):
        ada.hf_hub_download(filled, "missing", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        ada.hf_hub_download(filled, "w.bin", revision="missing", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        ada.model_info(filled, revision="main ")  # which stands at the end of a header
    with pytest.raises(EntryNotFoundError):
        list(ada.list_repo_tree(filled, "missing"))
    assert ada.get_paths_info(filled, ["missing"]) == []


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


def test_the_file_system_reads_ranges_and_writes(ada: HfApi, filled: str) -> None:
    fs = HfFileSystem(endpoint=ada.endpoint, token=ada.token, skip_instance_cache=True, use_listings_cache=False)
    assert f"{filled}/dir/sub/a.txt" in fs.find(filled)
    with fs.open(f"{filled}/w.bin", "rb", cache_type="none") as file:
        file.seek(1000)
        assert file.read(10) == BYTES[1000:1010]
    with fs.open(f"{filled}/new.txt", "w") as file:
        file.write("written")
    assert fs.cat_file(f"{filled}/new.txt") == b"written"
    fs.rm(f"{filled}/new.txt")
    assert not fs.exists(f"{filled}/new.txt")


def test_safetensors_headers_are_read_by_range_and_counted(ada: HfApi, repo: str) -> None:
    header = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "scale": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [24, 25]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(25)
    ada.upload_file(path_or_fileobj=content, path_in_repo="model.safetensors", repo_id=repo)
    assert ada.get_safetensors_metadata(repo).parameter_count == {"F32": 6, "F8_E4M3": 1}
    assert ada.model_info(repo).safetensors.parameters == {"F32": 6, "F8_E4M3": 1}
    assert ada.model_info(repo).safetensors.total == 7
    broken = b"\xff" * 8 + b"not a header"
    ada.upload_file(path_or_fileobj=broken, path_in_repo="model.safetensors", repo_id=repo)
    assert ada.model_info(repo).safetensors is None


def test_a_browser_that_asks_for_an_icon_gets_no_error(local_hub: LocalHubProcess) -> None:
    assert get_session().get(f"{local_hub.endpoint}/favicon.ico").status_code == 204
