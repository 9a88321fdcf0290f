"""What one user must not reach of another's, and what must not stop the Hub for everybody."""

import errno
import fcntl
import hashlib
import inspect
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.utils import get_session
from processes import Beside
from raw_requests import ask, batch, header, large, post_commit, regular, status_of
from starlette.testclient import TestClient

from hubmerge.errors import HubUnavailableError
from localhub.access import find_repo
from localhub.commits import Operation, apply
from localhub.protocol import Hub, Route, open_hub
from localhub.seed import seed_folder
from localhub.server import ROUTES, app_of
from localhub.store import Store
from localhub.tree import MAIN, File, Message, Tree

LARGE = b"\0secret weights of somebody else\0" * 40
SHA256 = hashlib.sha256(LARGE).hexdigest()
ADA = {"Authorization": "Bearer hf_local_ada_write_000000000000"}


@pytest.fixture
def secret(ada: HfApi, fresh: Callable[[], str]) -> str:
    """A private repo of ada's with a large file."""
    repo = str(ada.create_repo(f"ada/{fresh()}", private=True).repo_id)
    ada.upload_file(path_or_fileobj=LARGE, path_in_repo="model.bin", repo_id=repo)
    return repo


# blobs


@pytest.mark.usefixtures("secret")
def test_a_digest_alone_gives_nobody_the_content(bob, bobs):
    assert post_commit(bob, bobs, header(), large("m", SHA256, len(LARGE))).status_code == 422


def test_an_upload_belongs_to_its_repo_and_tells_nothing_of_another_s_objects(ada, bob, secret, bobs):
    href = batch(bob, bobs, SHA256, len(LARGE))["actions"]["upload"]["href"]
    number = int(ask(ada, "GET", f"/api/models/{secret}").json()["_id"], 16)
    own = int(re.search(r"/lfs-uploads/(\d+)/", href)[1])  # type: ignore[index]
    for other in {number, own - 1, 1} - {own}:
        elsewhere = href.replace(f"/lfs-uploads/{own}/", f"/lfs-uploads/{other}/")
        assert get_session().post(elsewhere, json={"parts": []}).status_code == 404
        assert get_session().put(elsewhere, content=LARGE).status_code == 404
    assert get_session().put(href, content=LARGE).status_code == 200


def test_who_only_reads_does_not_learn_which_objects_were_uploaded(ada, carol, repo):
    ada.preupload_lfs_files(repo, [CommitOperationAdd("x.bin", io.BytesIO(LARGE))])
    body = {"oid": SHA256, "size": len(LARGE)}
    assert ask(ada, "POST", f"/{repo}.git/info/lfs/verify", json=body).status_code == 200
    assert ask(carol, "POST", f"/{repo}.git/info/lfs/verify", json=body).status_code == 403


# the data folder


def test_files_of_somebody_else_are_no_unfinished_uploads(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "thesis.txt").write_text("years of work")
    with pytest.raises(HubUnavailableError, match="not of a local Hub"):
        Store(tmp_path)
    (tmp_path / "notes.txt").write_text("more")
    with pytest.raises(HubUnavailableError, match=r"notes\.txt"):
        Store(tmp_path)
    assert (tmp_path / "tmp" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "tmp"]


def test_a_folder_of_a_hub_is_emptied_of_unfinished_uploads_alone(tmp_path):
    Store(tmp_path / "hub").close()
    (tmp_path / "hub" / "tmp" / "half").write_text("x")
    (tmp_path / "hub" / "mine.txt").write_text("x")
    Store(tmp_path / "hub").close()
    assert list((tmp_path / "hub" / "tmp").iterdir()) == []
    assert (tmp_path / "hub" / "mine.txt").exists()


@pytest.mark.parametrize("spoil", ["a link as tmp", "no database", "a folder as database", "no locks"])
def test_a_data_folder_that_cannot_be_used_is_refused_with_the_reason(tmp_path, spoil, monkeypatch):
    data, database = tmp_path / "hub", tmp_path / "hub" / "hub.sqlite3"
    Store(data).close()
    if spoil == "no locks":  # as some network disks

        def flock(*given: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
    elif spoil == "a link as tmp":
        (data / "tmp").rename(tmp_path / "elsewhere")
        (data / "tmp").symlink_to(tmp_path / "elsewhere")
    else:
        database.unlink()
        database.write_text("a text, not a database") if spoil == "no database" else database.mkdir()
    with pytest.raises(HubUnavailableError, match=r"data folder cannot be used in .*/hub: got .*(database|/tmp|locks)"):
        Store(data)


# what strangers upload


def test_one_card_does_not_stop_the_listings(ada, repo):
    card = b"---\nscore: .nan\n2024-01-01: x\nnested: {2024-01-01: .inf}\nmodel-index: [{name: .nan}]\n---\n"
    assert post_commit(ada, repo, header(), regular("README.md", card)).status_code == 200
    for query in ("full=1&cardData=1", "expand=cardData&expand=model-index", "author=ada&full=1&config=1"):
        assert ask(ada, "GET", f"/api/models?{query}").status_code == 200
    assert ask(ada, "GET", f"/api/models/{repo}").json()["cardData"]["nested"] == {"2024-01-01": None}


@pytest.mark.parametrize(
    "config",
    [
        *(b'{"architectures": [NaN]}', b'{"architectures": ["a", {"b": 1e999}]}', b'{"architectures": ["\\ud800"]}'),
        *(b'{"model_type": "\\ud800"}', b'{"architectures": ["a", ' + b"[" * 900 + b"]" * 900 + b"]}"),
    ],
    ids=["no number", "an infinity inside", "half a character", "half a character as a tag", "deep"],
)
def test_one_config_does_not_stop_the_listings(ada, repo, config):
    assert post_commit(ada, repo, header(), regular("config.json", config)).status_code == 200
    for query in ("?config=1&full=1", f"/{repo}", "?expand=config&expand=tags"):
        assert ask(ada, "GET", f"/api/models{query}").status_code == 200


def test_one_preupload_does_not_stop_the_hub(ada, repo):
    def answer(patterns: str, count: int = 1, path: str = "a" * 900) -> int:
        body = {"gitIgnore": patterns, "files": [{"path": f"{path}{n}", "size": 1, "sample": ""} for n in range(count)]}
        return int(ask(ada, "POST", f"/api/models/{repo}/preupload/main", json=body, timeout=20).status_code)

    assert answer("a*" * 400 + "b") == 200
    assert answer("**/" * 300 + "x") == 200
    assert answer("x\n" * 100_000) == 400
    assert answer("x\n" * 30_000, count=256) == 400
    assert answer("", count=1001, path="a") == 400


def test_thousands_of_folders_are_deleted_at_once(hub):
    repo = find_repo(hub.store, "model", "ada/repo")

    def commit(operations: list[Operation]) -> None:
        apply(hub, repo, operations, Message("m", "ada"), ref=MAIN, head=str(hub.trees.head(repo.id)))

    commit([Operation(f"f{number}/a", File("0" * 40, 1)) for number in range(10_000)])
    begun = time.process_time()
    commit([Operation(f"f{number}", None, folder=True) for number in range(10_000)])
    assert time.process_time() - begun < 2.0
    assert {*hub.trees.at(repo.id, str(hub.trees.head(repo.id)))} == {".gitattributes", "a.txt"}


def test_a_line_of_a_commit_is_bounded(ada, repo):
    head = ada.model_info(repo).sha
    line = json.dumps({"key": "header", "value": {"summary": "s"}}).encode() + b"\n"
    endless = line + b'{"key": "file", "value": {"path": "x", "content": "' + b"a" * 15_000_000
    assert ask(ada, "POST", f"/api/models/{repo}/commit/main", content=endless).status_code == 413
    assert ada.model_info(repo).sha == head


def test_the_number_of_things_in_a_request_is_bounded(ada, repo):
    def post(path: str, **body: Any) -> int:
        return int(ask(ada, "POST", path, **body).status_code)

    line = json.dumps({"key": "deletedFile", "value": {"path": "x"}}).encode() + b"\n"
    assert post(f"/api/models/{repo}/commit/main", content=line * 100_001) == 413
    assert post(f"/api/models/{repo}/paths-info/main", data={"paths": ["x"] * 10_001}) == 400
    huge = {"operation": "upload", "objects": [{"oid": "0" * 64, "size": 2**40 + 1}]}
    assert post(f"/{repo}.git/info/lfs/objects/batch", json=huge) == 422
    objects = [{"oid": "0" * 64, "size": 1}] * 10_001
    assert post(f"/{repo}.git/info/lfs/objects/batch", json={"operation": "upload", "objects": objects}) == 400
    parts = {"operation": "upload", "transfers": ["multipart"], "objects": [{"oid": "0" * 64, "size": 2**40}] * 4}
    assert post(f"/{repo}.git/info/lfs/objects/batch", json=parts) == 422  # 65,536 addresses
    assert post(f"/api/models/{repo}/lfs-files/batch", json={"deletions": {"sha": ["x"] * 10_001}}) == 400
    hook = {"url": "http://127.0.0.1:1/", "watched": [{"type": "user", "name": "ada"}], "domains": ["repo"] * 10_001}
    assert post("/api/settings/webhooks", json=hook) == 400
    assert post("/api/repos/create", content=b'{"name": "' + b"x" * (17 << 20) + b'"}') == 413


# names of branches


def test_no_branch_or_tag_is_named_like_a_commit_or_another_ref(ada, repo):
    sha = ada.model_info(repo).sha
    for name in (sha, "0" * 40, "ABCDEF0123" * 4, "refs/heads/main", "refs/x"):
        assert status_of(ada.create_branch, repo, branch=name) == status_of(ada.create_tag, repo, tag=name) == 400
    ada.create_branch(repo, branch="deadbeef")  # a short one is no commit's own


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    opened = open_hub(tmp_path / "hub")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("first")
    seed_folder(opened, "ada/repo", "model", tmp_path / "files", author="ada", message="first")
    yield opened
    opened.store.close()


# several requests at once


def test_what_a_request_has_checked_still_holds_when_it_writes(client, hub):
    with hub.store.write():
        asking = Beside(lambda: client.put("/api/models/ada/repo/settings", json={"private": True}))
        time.sleep(0.3)  # it waits for its turn
        hub.store.change("UPDATE repos SET gated = 'manual'")
    assert asking.ended_with() is None
    found = client.get("/api/models/ada/repo").json()
    assert (found["private"], found["gated"]) == (True, "manual")


def test_a_repo_that_is_deleted_while_somebody_reads_it_is_read_as_it_was(client, hub, monkeypatch):
    at = hub.trees.at

    def at_last(repo: int, sha: str) -> Tree:
        tree = at(repo, sha)
        client.request("DELETE", "/api/repos/delete", json={"name": "repo"})
        return tree

    monkeypatch.setattr(hub.trees, "at", at_last)
    listed = client.get("/api/models/ada/repo/tree/main?expand=true").json()
    assert [entry["lastCommit"]["title"] for entry in listed] == ["initial commit", "first"]
    assert client.get("/api/models/ada/repo/tree/main").status_code == 404


# malformed requests

STRANGE: tuple[Any, ...] = (None, True, -1, 2**70, "", "\ud800", "../x\0", [None], {})
LINE: dict[str, Any] = {"path": "p", "content": "", "encoding": "base64", "oid": "0" * 64, "size": 1, "summary": "s"}
TEXTS = "tag title comment key value secret requestId description content message gitIgnore"
GOOD: dict[str, Any] = {
    **dict.fromkeys(TEXTS.split(), "text"),
    **dict.fromkeys(("private", "pullRequest"), True),
    "name": "two",
    "type": "model",
    "organization": "ada",
    "url": "http://127.0.0.1:1",
    "watched": [{"type": "user", "name": "ada"}],
    "domains": ["repo"],
    "fromRepo": "ada/repo",
    "toRepo": "ada/zz",
    "sdk": "gradio",
    "operation": "upload",
    "transfers": ["multipart"],
    "user": "bob",
    "status": "accepted",
    "deletions": {"sha": ["x"]},
    "visibility": "private",
    "gated": "auto",
    "startingPoint": "main",
    "oid": "0" * 64,
    "size": 1,
    "files": [{"path": "p", "sample": "", "size": 1}],
    "objects": [{"oid": "0" * 64, "size": 2**30}],  # in parts
    "parts": [{"partNumber": 1, "etag": "x"}],
}


def changed(value: Any) -> Iterator[Any]:
    """`value` with one part of it made strange."""
    yield from STRANGE
    if isinstance(value, list):
        yield from ([item] for item in changed(value[0]))
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: strange} for strange in changed(part))


def bodies(route: Route) -> Iterator[bytes]:
    yield from (b"", b"null", b"[]", b"1", b"{", b"\xff", b'{"a":' + b"[" * 50_000)
    if route.template.endswith("/commit/{rev}"):
        header = json.dumps({"key": "header", "value": {"summary": "s"}})
        for kind in ("header", "file", "lfsFile", "deletedFile"):
            for line in changed({"key": kind, "value": {**LINE, "description": "d", "parentCommit": ""}}):
                yield f"{header}\n{json.dumps(line)}".encode()
        return
    read = inspect.getsource(inspect.getmodule(route.handler) or route.handler)
    good = {key: value for key, value in GOOD.items() if f'"{key}"' in read}
    for key, value in good.items():
        yield from (json.dumps({**good, key: strange}).encode() for strange in changed(value))


def address(template: str, filler: str) -> str:
    known = {"T": "models", "P": "", "rev": "main", "ref": "main", "num": "1", "id": "ada/repo"}
    return re.sub(r"\{(\w+)\*?\}", lambda m: known.get(m[1], filler), template)


@pytest.fixture
def client(hub: Hub) -> Iterator[TestClient]:
    with TestClient(app_of(hub), base_url="http://127.0.0.1", raise_server_exceptions=False, headers=ADA) as client:
        yield client


CHANGING = [route for route in ROUTES if route.method != "GET"]


@pytest.mark.slow
@pytest.mark.parametrize("route", CHANGING, ids=lambda route: f"{route.method} {route.template}".replace("/", " "))
def test_no_body_is_a_fault_of_the_server(client, route):
    for body in bodies(route):
        answer = client.request(route.method, address(route.template, "x"), content=body)
        assert answer.status_code < 500, body[:300]
        if answer.status_code == 200 and "/api/repos/" in route.template:  # it moved or deleted the repo
            client.post("/api/repos/create", json={"name": "repo"})


STRANGE_PARTS = ("%FF", "%00", "%ED%A0%80", "..%2f", "1" * 400, "-1")
STRANGE_QUERIES = (
    "limit=99999999999999999999&cursor=%FF",
    "search=%00%FF&author=%ED%A0%80&filter=%00&sort=likes",
    "expand[]=x&expand=sha&p=1e9&type=x&status=x",
    "response_type=code&client_id=%00&redirect_uri=http://[",
    "response_type=code&client_id=00000000-0000-4000-8000-10ca1b0b0001&redirect_uri=http://127.0.0.1:99999/%ED%A0%80"
    "&scope=openid&state=%ED%A0%80",
)


@pytest.mark.slow
def test_no_address_is_a_fault_of_the_server(client):
    for route in ROUTES:
        if route.method != "GET":
            continue
        for part in (*STRANGE_PARTS, "x"):
            for query in STRANGE_QUERIES if part == "x" else ("",):
                path = f"{address(route.template, part)}?{query}"
                assert client.get(path, follow_redirects=False).status_code < 500, path
                strange_repo = path.replace("ada/repo", f"{part}/{part}")
                assert client.get(strange_repo, follow_redirects=False).status_code < 500, strange_repo


def test_a_commit_s_id_means_the_commit_whatever_a_branch_is_called(hub, tmp_path):
    first = hub.trees.resolve(1, "main")
    (tmp_path / "files" / "a.txt").write_text("second")
    second = seed_folder(hub, "ada/repo", "model", tmp_path / "files", author="ada", message="second")
    # as a folder of an earlier version may hold it
    hub.store.change("INSERT INTO refs VALUES (1, ?, ?, NULL)", f"refs/heads/{first}", second)
    assert hub.trees.resolve(1, first) == first


@pytest.mark.parametrize(
    "value", ["bytes=99999999999999999999999-", "bytes=-", "x", "bytes=1-0", "bytes=0-0,5-9", "bytes=-0"]
)
def test_no_range_is_a_fault_of_the_server(client, value):
    answer = client.get("/ada/repo/resolve/main/a.txt", headers={"Range": value})
    assert answer.status_code in (200, 206, 400, 416)
