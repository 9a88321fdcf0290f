"""One commit with everything, never two, and never into a repo that holds something else; shards on their way to it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import lfs
from publishing import IDENTITY, Publication, Watched
from report_helpers import report_of
from stream_helpers import Watching

from hubmerge.engine.sink import FinishedShard
from hubmerge.errors import CorruptError, PermissionDeniedError, RecipeError, SourceNotFoundError, TargetExistsError
from hubmerge.hub.errors import BranchMovedError, RefusedError, TransientHubError
from hubmerge.output import upload
from hubmerge.output.publish import MAX_MANIFEST_BYTES, Published, Target, TargetState
from hubmerge.output.upload import ShardUploader
from hubmerge.text.wording import json_file
from localhub.process import LocalHubProcess


@pytest.fixture
def job(local_hub: LocalHubProcess, tmp_path: Path, name: str) -> Publication:
    return Publication(local_hub, tmp_path, name)


def test_everything_goes_up_in_one_public_commit_which_publishing_again_finds(job):
    done = job.publish()
    assert done == Published(job.name, job.head(), f"{job.hub.endpoint}/{job.name}")
    assert job.is_whole_in_one_commit()
    assert not job.api.model_info(job.name).private
    assert job.publish() == done
    job.add("notes.txt", b"thanks")
    assert job.publish() == done, "what the owner added later changes nothing"
    assert job.hub.commits == 1


def test_a_gitignore_that_goes_along_keeps_no_other_file_back(job):
    job.files |= {".gitignore": b"*.safetensors\n*.json\n*.txt\nlicenses/\n", "notes.txt": b"mine"}
    job.publish()
    assert job.there() == {*job.files, *(path.name for path in job.shards), ".gitattributes"}


def test_a_hub_in_trouble_is_tried_five_times_with_pauses(job):
    job.hub.before_commit = Mock(side_effect=TransientHubError("503"))
    with pytest.raises(TransientHubError):
        job.publish()
    assert (job.hub.commits, len(job.hub.pauses)) == (5, 4)
    assert job.titles() == ["initial commit"]
    job.hub.before_commit = lambda: None
    assert job.publish().commit == job.head()


def test_a_branch_that_moved_harmlessly_is_followed(job):
    def race() -> None:
        job.hub.before_commit = lambda: None
        job.add(".gitattributes", b"*.bin filter=lfs\n")

    job.hub.before_commit = race
    done = job.publish()
    assert (job.hub.commits, job.hub.pauses) == (2, [])
    assert done.commit == job.head()
    assert sum("hubmerge" in t for t in job.titles()) == 1
    assert job.hub.read_file(job.name, done.commit, ".gitattributes") == b"*.bin filter=lfs\n"


def test_a_branch_that_moves_every_time_is_followed_five_times(job):
    job.hub.before_commit = lambda: job.add(".gitattributes", b"%d" % job.hub.commits)
    with pytest.raises(BranchMovedError):
        job.publish()
    assert (job.hub.commits, job.hub.pauses) == (5, [])
    assert job.there() == {".gitattributes"}


def test_foreign_content_that_arrives_meanwhile_is_not_touched(job):
    job.hub.before_commit = lambda: job.add("model.txt", b"mine")
    with pytest.raises(TargetExistsError):
        job.publish()
    assert job.hub.commits == 1
    assert job.there() == {".gitattributes", "model.txt"}


def test_a_card_that_the_hub_does_not_take_is_refused_once_with_the_reason(job):
    job.files["README.md"] = b"---\nlicense: my-own\n---\n"
    with pytest.raises(RefusedError, match=r'Invalid metadata in README\.md.* "license" must be one of'):
        job.publish()
    assert (job.hub.commits, job.hub.pauses) == (1, [])


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("thesis.txt", b"precious"),
        ("hubmerge.json", json.dumps({"identity": "2e" * 32}).encode()),
        *(("hubmerge.json", broken) for broken in (b'{"identity":null}', b"{}", b"[]", b"{", b"\xff", b"[" * 100_000)),
    ],
)
def test_other_files_another_merge_or_a_broken_manifest_are_refused_and_untouched(job, path, content):
    job.name += hashlib.sha256(content).hexdigest()[:4]
    job.api.create_repo(job.name)
    job.add(path, content)
    head = job.head()
    with pytest.raises(TargetExistsError, match=path.replace(".", r"\.")) as caught:
        job.publish()
    assert caught.value.code == "E_TARGET_EXISTS"
    assert (job.head(), job.hub.commits) == (head, 0)


def test_a_target_that_was_renamed_is_named_as_it_is_now(job):
    job.publish()
    job.api.move_repo(job.name, f"{job.name}-now")
    job.add("hubmerge.json", b"{}")
    with pytest.raises(TargetExistsError, match=f"of {job.name}-now, to which this name leads"):
        job.publish()


@pytest.mark.parametrize("there_before", [False, True])
def test_a_private_merge_is_made_in_a_private_repo_and_a_private_repo_stays_private(job, there_before):
    if there_before:
        job.api.create_repo(job.name, private=True)
    done = job.publish(private=not there_before)
    assert job.publish(private=False) == done
    assert job.api.model_info(job.name).private


@pytest.mark.parametrize("moment", ["before", "between the look and the making"])
def test_a_private_merge_does_not_go_into_a_public_repo(job, moment, monkeypatch):
    made = Watched.create_repo

    def race(self: Watched, repo: str, *, private: bool) -> bool:
        job.api.create_repo(repo, private=False)  # which "exists already, fine" would hide
        return made(self, repo, private=private)

    if moment == "before":
        job.api.create_repo(job.name, private=False)
    else:
        monkeypatch.setattr(Watched, "create_repo", race)
    with pytest.raises(TargetExistsError, match="public"):
        job.publish(private=True)
    assert job.hub.commits == 0
    assert job.there() == {".gitattributes"}


def test_the_same_merge_in_a_public_repo_does_not_stand_for_a_private_one(job):
    job.publish()
    with pytest.raises(TargetExistsError, match="the target is public, and a private one was asked for"):
        job.publish(private=True)
    assert job.hub.commits == 1


def test_a_private_repo_that_the_sign_in_may_not_read_is_refused_for_good(job, monkeypatch):
    job.api.create_repo(job.name, private=True)

    def unseen(repo: str) -> Any:
        raise SourceNotFoundError("no such repo, or one that you may not read", where=repo)

    monkeypatch.setattr(job.hub, "repo_state", unseen)
    with pytest.raises(TargetExistsError, match=r"may not read it.*Choose another name") as caught:
        job.publish()
    assert not caught.value.retryable
    assert job.hub.commits == 0


@pytest.mark.parametrize("target", ["bob/merge", "nobody/merge", "Ada/merge"])
def test_a_namespace_of_someone_else_is_refused_before_anything_is_sent(job, target):
    with pytest.raises(PermissionDeniedError, match="cannot write to this namespace") as caught:
        job.publish(name=target)
    assert caught.value.code == "E_PERMISSION"
    assert job.hub.commits == 0
    assert not job.api.repo_exists("bob/merge")


def test_an_organisation_that_one_may_write_to_is_a_namespace(job):
    job.name = job.name.replace("ada/", "zoo/")
    assert job.publish().commit == job.head()


def test_a_token_that_may_only_read_is_refused_also_where_the_repo_is_there(job, local_hub):
    job.api.create_repo(job.name)
    job.hub = Watched(local_hub, "ada_read")
    with pytest.raises(PermissionDeniedError, match="may only read"):
        job.publish()
    assert job.there() == {".gitattributes"}


@pytest.mark.parametrize(
    "target", ["merge", "ada/", "/merge", "ada/a/b", "ada/..", "ada/a--b", "ada/<b>", "ada/x y", "ada/x.git"]
)
def test_a_target_that_is_no_repo_name_is_refused(job, target):
    with pytest.raises(RecipeError, match="not a repo's name"):
        job.publish(name=target)


def test_a_repo_deleted_in_the_middle_is_not_made_anew(job):
    def delete() -> None:
        job.api.delete_repo(job.name)
        raise TransientHubError("503")

    job.hub.before_commit = delete
    with pytest.raises(TransientHubError):
        job.publish()
    assert job.hub.commits == 1
    assert not job.api.repo_exists(job.name)


def test_bytes_that_the_hub_has_are_not_sent_again(job, monkeypatch):
    sent: list[str] = []
    upload = lfs._upload_single_part

    def watched(operation: Any, upload_url: str) -> None:
        sent.append(operation.path_in_repo)
        upload(operation=operation, upload_url=upload_url)

    monkeypatch.setattr(lfs, "_upload_single_part", watched)
    job.hub.before_commit = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        job.publish()
    assert sent == [p.name for p in job.shards]
    job.hub.before_commit = lambda: None
    job.publish()
    assert sent == [p.name for p in job.shards]


def test_the_progress_of_every_shard_follows_the_shards_before_it(job, monkeypatch):
    noting, preupload = Watching(), job.hub.preupload

    def halfway(repo: str, path: Path, file: str, *, sha256: str | None, sent: Callable[[int], None]) -> Any:
        assert sha256 == {s.name: s.sha256 for s in job.stated}[file], "a file that was verified is not hashed again"
        sent(2500)
        return preupload(repo, path, file, sha256=sha256)

    monkeypatch.setattr(job.hub, "preupload", halfway)
    job.publish(observer=noting)
    first, whole = job.stated[0].size, sum(s.size for s in job.stated)
    expected = [("verify", first), ("verify", whole)]
    expected += [("publish", 2500), ("publish", first), ("publish", first + 2500), ("publish", whole)]
    assert noting.told == [*((stage, done, whole) for stage, done in expected), ("commit", 0, 0)]


def test_a_shard_that_is_not_what_its_manifest_says_is_refused_before_the_repo_is_made(job):
    job.shards[1].write_bytes(b"\0" + job.shards[1].read_bytes()[1:])
    for _ in ("another byte", "gone"):
        with pytest.raises(CorruptError, match=job.shards[1].name):
            job.publish()
        job.shards[1].unlink(missing_ok=True)
    assert not job.api.repo_exists(job.name)
    assert job.hub.commits == 0


def test_a_manifest_without_measure_is_foreign_content(job, monkeypatch):
    own = json.dumps({"identity": IDENTITY}).encode()
    job.api.create_repo(job.name)
    job.add("hubmerge.json", own)
    assert job.publish().repo == job.name
    monkeypatch.setattr("hubmerge.output.publish.MAX_MANIFEST_BYTES", len(own) - 1)
    with pytest.raises(TargetExistsError):
        job.publish()


def test_the_manifest_of_as_many_agents_and_layers_as_there_are_is_known_again():
    labels = [f"some-agent-of-the-org-{k}" for k in range(32)]
    one, two = (len(json_file(report_of(labels, layers=n).to_json())) for n in (1, 2))
    assert one + 125 * 1.2 * (two - one) < MAX_MANIFEST_BYTES  # real figures have more digits


def test_what_the_target_takes_as_a_plain_file_stays_for_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(upload, "ensure_target", lambda hub, target, identity: TargetState("empty"))
    hub: Any = SimpleNamespace(
        breakable=lambda: hub,
        preupload=lambda repo, path, name, **more: path.read_bytes(),
        is_uploaded=lambda operation: False,
    )
    shard = FinishedShard("0.safetensors", 1, "0" * 64, None, {})
    journal: Any = SimpleNamespace(shards={shard.filename: shard}, uploaded=set(), on_shard=None)
    (tmp_path / shard.filename).write_bytes(b"x")
    with ShardUploader(hub, Target("ada/x", False), "i", journal, tmp_path) as uploader:
        uploader.drain()
    assert [p.name for p in tmp_path.iterdir()] == ["0.safetensors"]
