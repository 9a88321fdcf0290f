"""One commit with everything, never two, and never into a repo that holds something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, lfs

from hubmerge.engine.progress import Unobserved
from hubmerge.errors import (
    CorruptError,
    HubUnavailableError,
    LoginError,
    PermissionDeniedError,
    RecipeError,
    TargetExistsError,
)
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import BranchMovedError, Patience, TransientHubError
from hubmerge.output.publish import Published, Target, check_target, publish
from localhub.process import LocalHubProcess

IDENTITY = "1f" * 32
TITLE = "Merge 2 agents with RAM"


class Watched(Hub):
    """A Hub whose writing steps a test can watch and break."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        self.pauses: list[float] = []
        self.commits = 0
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        super().__init__(endpoint, token, patience=Patience(sleep=self.pauses.append))

    def commit(self, *args: Any, **more: Any) -> str:
        self.commits += 1
        self.before_commit()
        sha = super().commit(*args, **more)
        self.after_commit()
        return sha


@pytest.fixture
def hub(local_hub: LocalHubProcess) -> Watched:
    return Watched(local_hub.endpoint, local_hub.tokens["ada"])


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 5000)
    return paths


def files(identity: str = IDENTITY) -> dict[str, bytes]:
    return {
        "README.md": b"---\nlicense: mit\n---\n# A merge\n",
        "config.json": b"{}",
        "licenses/a/LICENSE": b"MIT",
        "hubmerge.json": json.dumps({"identity": identity}).encode(),
    }


def send(hub: Hub, name: str, shards: list[Path], *, private: bool = False, identity: str = IDENTITY) -> Published:
    return publish(hub, Target(name, private), identity, TITLE, shards, files(identity), Unobserved())


def titles(ada: HfApi, name: str) -> list[str]:
    return [c.title for c in ada.list_repo_commits(name)]


def fail(error: Exception) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def test_everything_goes_up_in_one_commit(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    told: list[tuple[object, ...]] = []

    class Noting(Unobserved):
        def progress(self, *news: object) -> None:
            told.append(news)

    done = publish(hub, Target(name, False), IDENTITY, TITLE, shards, files(), Noting())
    assert done == Published(name, ada.model_info(name).sha or "", f"{hub.endpoint}/{name}")
    assert titles(ada, name)[0] == f"{TITLE} [hubmerge {IDENTITY[:16]}]"
    assert len(titles(ada, name)) == 2, "the first is the Hub's own, which made the repo"
    assert told[-1] == ("commit", 0, 0, "")
    assert {("publish", 5000, 10000, "B"), ("publish", 10000, 10000, "B")} <= set(told)
    assert {news[0] for news in told} == {"publish", "commit"}
    assert [news[1] for news in told[:-1]] == sorted(news[1] for news in told[:-1]), "the bytes sent only grow"
    info = ada.model_info(name, files_metadata=True)
    assert {s.rfilename for s in info.siblings or ()} == {*files(), *(p.name for p in shards), ".gitattributes"}
    hashes = {s.rfilename: s.lfs.sha256 for s in info.siblings or () if s.lfs}
    assert hashes == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in shards}
    for path, content in files().items():
        assert hub.read_file(name, done.commit, path) == content
    assert not info.private


def test_publishing_again_finds_the_same_commit(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    first = send(hub, name, shards)
    assert send(hub, name, shards) == first
    ada.upload_file(repo_id=name, path_or_fileobj=b"thanks", path_in_repo="notes.txt")
    assert send(hub, name, shards) == first, "what the owner added later changes nothing"
    assert hub.commits == 1
    assert sum("hubmerge" in t for t in titles(ada, name)) == 1


@pytest.mark.parametrize(
    "error",
    [HubUnavailableError("the answer was lost"), TransientHubError("the connection broke"), BranchMovedError("412")],
)
def test_a_lost_answer_to_the_commit_makes_no_second_commit(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], error: HubUnavailableError
):
    hub.after_commit = fail(error)
    done = send(hub, name, shards)
    assert done.commit == ada.model_info(name).sha
    assert hub.commits == 1
    assert len(titles(ada, name)) == 2
    assert hub.pauses == []


@pytest.mark.parametrize(("moment", "commits"), [("before_commit", 2), ("after_commit", 1)])
def test_a_process_killed_before_the_commit_goes_on_and_one_killed_after_it_finds_it_when_it_comes_back(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], moment: str, commits: int
):
    setattr(hub, moment, fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        send(hub, name, shards)
    setattr(hub, moment, lambda: None)
    assert send(hub, name, shards).commit == ada.model_info(name).sha
    assert hub.commits == commits
    assert len(titles(ada, name)) == 2


def test_a_hub_in_trouble_is_tried_five_times_with_pauses(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    hub.before_commit = fail(TransientHubError("503"))
    with pytest.raises(TransientHubError):
        send(hub, name, shards)
    assert hub.commits == 5
    assert len(hub.pauses) == 4
    assert len(titles(ada, name)) == 1
    hub.before_commit = lambda: None
    assert send(hub, name, shards).commit == ada.model_info(name).sha


def test_a_branch_that_moved_harmlessly_is_followed(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    def race() -> None:
        hub.before_commit = lambda: None
        ada.upload_file(repo_id=name, path_or_fileobj=b"*.bin filter=lfs\n", path_in_repo=".gitattributes")

    hub.before_commit = race
    done = send(hub, name, shards)
    assert hub.commits == 2
    assert hub.pauses == []
    assert done.commit == ada.model_info(name).sha
    assert sum("hubmerge" in t for t in titles(ada, name)) == 1
    assert hub.read_file(name, done.commit, ".gitattributes") == b"*.bin filter=lfs\n"


def test_a_branch_that_moves_every_time_is_followed_five_times(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    hub.before_commit = lambda: (
        ada.upload_file(repo_id=name, path_or_fileobj=b"%d" % hub.commits, path_in_repo=".gitattributes") and None
    )
    with pytest.raises(BranchMovedError):
        send(hub, name, shards)
    assert hub.commits == 5
    assert hub.pauses == []
    assert set(ada.list_repo_files(name)) == {".gitattributes"}


def test_foreign_content_that_arrives_meanwhile_is_not_touched(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    hub.before_commit = lambda: (
        ada.upload_file(repo_id=name, path_or_fileobj=b"mine", path_in_repo="model.txt") and None
    )
    with pytest.raises(TargetExistsError):
        send(hub, name, shards)
    assert hub.commits == 1
    assert set(ada.list_repo_files(name)) == {".gitattributes", "model.txt"}


def test_a_repo_with_anything_else_in_it_is_refused_and_untouched(
    hub: Watched, ada: HfApi, name: str, shards: list[Path]
):
    ada.create_repo(name)
    ada.upload_file(repo_id=name, path_or_fileobj=b"precious", path_in_repo="thesis.txt")
    head = ada.model_info(name).sha
    with pytest.raises(TargetExistsError, match=r"thesis\.txt") as caught:
        send(hub, name, shards)
    assert caught.value.code == "E_TARGET_EXISTS"
    assert ada.model_info(name).sha == head
    assert hub.commits == 0


@pytest.mark.parametrize(
    "manifest",
    [json.dumps({"identity": "2e" * 32}).encode(), b"{}", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"identity":null}'],
)
def test_another_merge_or_a_broken_manifest_is_foreign_content(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], manifest: bytes
):
    name += hashlib.sha256(manifest).hexdigest()[:4]
    ada.create_repo(name)
    ada.upload_file(repo_id=name, path_or_fileobj=manifest, path_in_repo="hubmerge.json")
    head = ada.model_info(name).sha
    with pytest.raises(TargetExistsError):
        send(hub, name, shards)
    assert ada.model_info(name).sha == head


def test_an_empty_repo_is_used(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    ada.create_repo(name)
    assert check_target(hub, Target(name, False), IDENTITY).state == "empty"
    assert send(hub, name, shards).commit == ada.model_info(name).sha


def test_a_private_merge_is_made_in_a_private_repo(
    local_hub: LocalHubProcess, hub: Watched, ada: HfApi, name: str, shards: list[Path]
):
    send(hub, name, shards, private=True)
    assert ada.model_info(name).private
    assert not Hub(local_hub.endpoint, local_hub.tokens["bob"]).exists(name)


def test_private_stays_private(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    ada.create_repo(name, private=True)
    send(hub, name, shards, private=False)
    assert ada.model_info(name).private


def test_a_private_merge_does_not_go_into_a_public_repo(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    ada.create_repo(name, private=False)
    with pytest.raises(TargetExistsError, match="public"):
        send(hub, name, shards, private=True)
    assert hub.commits == 0
    assert set(ada.list_repo_files(name)) == {".gitattributes"}


def test_a_public_repo_that_appears_meanwhile_is_not_used_for_a_private_merge(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], monkeypatch: pytest.MonkeyPatch
):
    # someone made it between the look and the making, which "exists already, fine" would hide
    made = Watched.create_repo

    def race(self: Watched, repo: str, *, private: bool) -> None:
        ada.create_repo(repo, private=False)
        made(self, repo, private=private)

    monkeypatch.setattr(Watched, "create_repo", race)
    with pytest.raises(TargetExistsError, match="public"):
        send(hub, name, shards, private=True)
    assert set(ada.list_repo_files(name)) == {".gitattributes"}


@pytest.mark.parametrize("target", ["bob/merge", "nobody/merge", "Ada/merge"])
def test_a_namespace_of_someone_else_is_refused_before_anything_is_sent(hub: Watched, shards: list[Path], target: str):
    with pytest.raises(PermissionDeniedError, match="cannot write to this namespace") as caught:
        send(hub, target, shards)
    assert caught.value.code == "E_PERMISSION"
    assert hub.commits == 0
    assert not hub.exists("bob/merge")


def test_an_organisation_that_one_may_write_to_is_a_namespace(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    target = name.replace("ada/", "zoo/")
    assert send(hub, target, shards).commit == ada.model_info(target).sha


def test_a_token_that_may_only_read_is_refused_before_anything_is_sent(
    local_hub: LocalHubProcess, ada: HfApi, name: str, shards: list[Path]
):
    reader = Watched(local_hub.endpoint, local_hub.tokens["ada_read"])
    with pytest.raises(PermissionDeniedError, match="may only read"):
        send(reader, name, shards)
    ada.create_repo(name)
    with pytest.raises(PermissionDeniedError, match="may only read"):
        send(reader, name, shards)
    assert set(ada.list_repo_files(name)) == {".gitattributes"}


def test_nobody_publishes_without_signing_in(local_hub: LocalHubProcess, name: str, shards: list[Path]):
    with pytest.raises(LoginError):
        send(Watched(local_hub.endpoint, None), name, shards)
    with pytest.raises(LoginError):
        send(Watched(local_hub.endpoint, "hf_not_a_token"), name, shards)


@pytest.mark.parametrize(
    "target", ["merge", "ada/", "/merge", "ada/a/b", "ada/..", "ada/a--b", "ada/<b>", "", "ada/x y"]
)
def test_a_target_that_is_no_repo_name_is_refused(hub: Watched, shards: list[Path], target: str):
    with pytest.raises(RecipeError, match="not a repo's name"):
        send(hub, target, shards)


def test_a_repo_deleted_in_the_middle_is_not_made_anew(hub: Watched, ada: HfApi, name: str, shards: list[Path]):
    def delete() -> None:
        ada.delete_repo(name)
        raise TransientHubError("503")

    hub.before_commit = delete
    with pytest.raises(TransientHubError):
        send(hub, name, shards)
    assert hub.commits == 1
    assert not hub.exists(name)


def test_bytes_that_the_hub_has_are_not_sent_again(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], monkeypatch: pytest.MonkeyPatch
):
    sent: list[str] = []
    upload = lfs._upload_single_part

    def watched(operation: Any, upload_url: str) -> None:
        sent.append(operation.path_in_repo)
        upload(operation=operation, upload_url=upload_url)

    monkeypatch.setattr(lfs, "_upload_single_part", watched)
    shards[1].write_bytes(IDENTITY.encode() + name.encode())
    shards[0].write_bytes(name.encode() + IDENTITY.encode())
    hub.before_commit = fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        send(hub, name, shards)
    assert sent == [p.name for p in shards]
    hub.before_commit = lambda: None
    send(hub, name, shards)
    assert sent == [p.name for p in shards]


def test_the_progress_of_every_shard_follows_the_shards_before_it(
    hub: Watched, name: str, shards: list[Path], monkeypatch: pytest.MonkeyPatch
):
    """Each shard is told about in the middle, which time alone decides otherwise."""
    told: list[tuple[object, ...]] = []
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in shards}

    class Noting(Unobserved):
        def progress(self, *news: object) -> None:
            told.append(news)

    def halfway(repo: str, path: Path, file: str, *, sha256: str | None, sent: Callable[[int], None]) -> Any:
        assert sha256 == digests[file], "a file that was verified is not hashed again"
        sent(2500)
        return preupload(repo, path, file, sha256=sha256)

    preupload = hub.preupload
    monkeypatch.setattr(hub, "preupload", halfway)
    monkeypatch.setattr("hubmerge.output.publish._TOLD_EVERY_S", 0.0)
    publish(hub, Target(name, False), IDENTITY, TITLE, shards, files(), Noting(), digests=digests)
    assert told == [
        ("verify", 5000, 10000, "B"),
        ("verify", 10000, 10000, "B"),
        ("publish", 2500, 10000, "B"),
        ("publish", 5000, 10000, "B"),
        ("publish", 7500, 10000, "B"),
        ("publish", 10000, 10000, "B"),
        ("commit", 0, 0, ""),
    ]


@pytest.mark.parametrize("damage", ["another byte", "gone"])
def test_a_shard_that_is_not_what_its_manifest_says_is_refused_before_the_repo_is_made(
    hub: Watched, name: str, shards: list[Path], damage: str
):
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in shards}
    if damage == "gone":
        shards[1].unlink()
    else:
        shards[1].write_bytes(b"\0" + shards[1].read_bytes()[1:])
    with pytest.raises(CorruptError, match=shards[1].name):
        publish(hub, Target(name, False), IDENTITY, TITLE, shards, files(), Unobserved(), digests=digests)
    assert not hub.exists(name)
    assert hub.commits == 0


def test_a_manifest_without_measure_is_foreign_content(
    hub: Watched, ada: HfApi, name: str, shards: list[Path], monkeypatch: pytest.MonkeyPatch
):
    own = json.dumps({"identity": IDENTITY}).encode()
    ada.create_repo(name)
    ada.upload_file(repo_id=name, path_or_fileobj=own, path_in_repo="hubmerge.json")
    assert send(hub, name, shards).repo == name
    monkeypatch.setattr("hubmerge.output.publish._MAX_MANIFEST_BYTES", len(own) - 1)
    with pytest.raises(TargetExistsError):
        send(hub, name, shards)
