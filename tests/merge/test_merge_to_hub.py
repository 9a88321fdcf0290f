"""From the Hub and to the Hub: a bounded disk throughout, the bytes of a merge to a folder, one commit."""

import json
import threading
import time
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from builders import tokenizer_files
from line import OUT_SHARD_BYTES, SHARDS, Killed, Line, threads_left

from hubmerge.engine.journal import Journal
from hubmerge.errors import CorruptError, DiskError, HubUnavailableError
from hubmerge.hub.client import Hub
from hubmerge.output.plan_words import plan_summary
from hubmerge.output.upload import ShardUploader
from hubmerge.plan.disk import DISK_MARGIN_BYTES
from localhub.fault_rules import LostAnswer, Observe, Reset, Status, WrongByte

ROUNDED_UP = 25 * 4096  # the disk takes whole blocks
SMALL_FILES = 500_000  # journal, card
SHARD = r"/ada/one/resolve/[0-9a-f]{40}/model-00003-of-00005\.safetensors$"
HEADERS = 1  # the first read of a shard is that of its header


def test_a_merge_to_the_hub_has_the_bytes_of_one_to_a_folder_in_one_commit_and_tells_what_it_fetched(line):
    done = line.to_hub(extra={"pick.md": b"chosen"})
    published = line.published()
    assert published.pop("pick.md")
    assert published == line.undisturbed
    assert line.commits() == 1
    assert done.commit == line.api.model_info(line.target).sha
    assert not [*line.folder.rglob("*.safetensors")]
    assert line.watcher.stages == ["fetch", "merge", "card", "publish"]
    assert threads_left() == []
    environment = line.report()["environment"]
    assert "resumed" not in environment
    fetch = environment["fetch"]
    assert fetch["bytes"] == line.prepare().plan.download_bytes
    assert fetch["shards"] == 3 * len(SHARDS)
    assert fetch["hits"] == 3 * len(SHARDS), "the second pass of RAM+ finds everything"
    assert (fetch["refetched_shards"], fetch["range_bytes"]) == (0, 0)


def test_no_more_than_two_finished_shards_lie_on_disk_and_the_whole_stays_within_its_budget(line):
    """The inputs take 3.3 MB, the output 1.1 MB; uploads are slow, so that merging could run ahead."""
    assert len([name for name in line.undisturbed if name.endswith(".safetensors")]) >= 4
    line.disk_budget = 2 * OUT_SHARD_BYTES + 1_000_000
    shards, disk = [0], [0]
    upload, drain = ShardUploader._upload, ShardUploader.drain
    all_finished = threading.Event()

    def watch(stage: str) -> None:
        shards[0] = max(shards[0], line.finished_shards())
        disk[0] = max(disk[0], line.disk())

    def slow(uploader: ShardUploader, shard: Any) -> None:
        """As slow as it may be: until nothing goes on without it."""
        while len(uploader._pending) < 2 and not all_finished.is_set():
            time.sleep(0.001)
        watch("")
        upload(uploader, shard)

    def last(uploader: ShardUploader) -> None:
        all_finished.set()
        drain(uploader)

    line.watcher.seen = watch
    with patch.object(ShardUploader, "_upload", slow), patch.object(ShardUploader, "drain", last):
        line.to_hub()
    assert line.published() == line.undisturbed
    assert shards[0] == 2
    assert disk[0] <= line.disk_budget + ROUNDED_UP
    environment = line.report()["environment"]
    assert environment["fetch"]["high_water_bytes"] <= 1_000_000 + OUT_SHARD_BYTES
    assert environment["disk_high_water_bytes"] <= line.disk_budget + SMALL_FILES
    assert environment["fetch"]["bytes"] >= 3 * 1_000_000


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_no_budget_is_too_small_for_the_inputs_and_the_bytes_stay_the_same(line, share):
    plan = line.prepare().plan
    line.disk_budget = plan.output_bytes + plan.companions.bytes + int(share * plan.download_bytes)
    peak = [0]
    line.watcher.seen = lambda stage: peak.__setitem__(0, max(peak[0], line.disk()))
    assert line.to_folder() == line.undisturbed
    assert peak[0] <= line.disk_budget + ROUNDED_UP
    assert threads_left() == []


def test_what_lies_beside_the_folder_for_fetched_inputs_is_nobodys_of_ours(line):
    for name in ("inputs-7", "inputs-old"):
        (line.folder / name).mkdir()
    line.to_folder()
    assert {"inputs-7", "inputs-old"} <= {path.name for path in line.folder.iterdir()}


def test_thresholds_of_each_tensor_fetch_the_inputs_once_however_small_the_disk(line):
    line.recipe = {**line.recipe, "method": "ties", "parameters": {"trim_scope": "tensor"}}
    plan = line.prepare().plan
    line.disk_budget = plan.output_bytes + int(0.7 * plan.download_bytes)
    line.to_folder()
    fetch = json.loads((line.out / "hubmerge.json").read_text())["environment"]["fetch"]
    assert (fetch["bytes"], fetch["refetched_shards"], fetch["range_bytes"]) == (plan.download_bytes, 0, 0)


def test_no_space_on_the_disk_is_refused_before_a_byte_is_written(line):
    small = patch("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000})())
    with small, pytest.raises(DiskError, match="not enough disk"):
        line.to_folder()
    assert not [path for path in line.folder.rglob("*") if path.is_file()]


def test_the_plan_names_the_smallest_disk_and_the_most_that_is_used(line, switch):
    plan = line.prepare().plan
    facts = plan_summary(plan)
    sizes = sorted(s.size for s in plan.shards)
    beside = sum(len(content) for content in tokenizer_files().values())
    assert facts["companion_bytes"] == beside
    assert facts["disk_least_bytes"] == sizes[-1] + sizes[-2] + beside
    assert facts["disk_most_bytes"] == plan.download_bytes + sizes[-1] + sizes[-2] + beside
    assert facts["folder_disk_least_bytes"] == plan.output_bytes + beside
    assert facts["folder_disk_most_bytes"] == plan.download_bytes + plan.output_bytes + beside
    line.disk_budget = facts["disk_least_bytes"] - 1
    seen = switch.add(SHARD, Observe(), times=None)
    with pytest.raises(DiskError, match="disk budget is too small"):
        line.to_hub()
    assert switch.state(seen).seen == HEADERS
    assert not line.api.repo_exists(line.target)
    line.disk_budget = None
    line.to_hub()
    assert line.report()["environment"]["disk_high_water_bytes"] <= facts["disk_most_bytes"] + SMALL_FILES
    small = Line(line.process, line.folder.with_name("small"), line.recipe, f"{line.target}-small")
    small.disk_budget = facts["disk_least_bytes"]
    small.to_hub()
    assert small.published() == line.published() == line.undisturbed
    assert small.report()["environment"]["disk_high_water_bytes"] <= facts["disk_least_bytes"] + SMALL_FILES


def test_what_is_free_decides_where_no_budget_is_given(line):
    plan = line.prepare().plan
    free = plan.output_bytes + DISK_MARGIN_BYTES + plan.download_bytes // 3
    with patch("shutil.disk_usage", lambda path: type("Usage", (), {"free": free})()):
        assert line.to_folder() == line.undisturbed
    fetch = json.loads((line.out / "hubmerge.json").read_text())["environment"]["fetch"]
    assert fetch["budget_bytes"] <= plan.download_bytes // 3
    assert fetch["refetched_shards"] > 0


# --- kills -------------------------------------------------------------------------------------------------------


def killed(owner: type, name: str, moment: str, times: int) -> AbstractContextManager[object]:
    """The process dies before or after the n-th call of a method, and at every further one."""
    call, left = getattr(owner, name), [times]

    def dying(*arguments: Any, **named: Any) -> Any:
        if left[0] <= (1 if moment == "before" else 0):
            raise Killed
        result = call(*arguments, **named)
        left[0] -= 1
        if left[0] <= 0:
            raise Killed
        return result

    return patch.object(owner, name, dying)


POINTS = {
    "a shard is merged but not uploaded": (Hub, "preupload", "before", 1),
    "the second shard is merged but not uploaded": (Hub, "preupload", "before", 2),
    "uploaded but not noted": (Journal, "add_uploaded", "before", 1),
    "noted but not deleted": (Journal, "add_uploaded", "after", 1),
    "the last one noted but not deleted": (Journal, "add_uploaded", "after", 5),
    "all uploaded, before the commit": (Hub, "commit", "before", 1),
    "after the commit, before the answer": (Hub, "commit", "after", 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_upload_and_commit_gives_one_commit_and_merges_no_uploaded_shard_again(line, point):
    with killed(*POINTS[point]), pytest.raises(Killed):
        line.to_hub()
    assert threads_left() == []
    merged: list[str] = []
    add_shard = Journal.add_shard

    def noted(journal: Journal, shard: Any) -> None:
        merged.append(shard.filename)
        add_shard(journal, shard)

    uploaded = [line for line in journal_lines(line) if '"uploaded"' in line]
    if line.api.repo_exists(line.target) and line.commits():
        assert line.published() == line.undisturbed
    with patch.object(Journal, "add_shard", noted):
        line.arrives()
    assert not [name for name in merged if any(name in line for line in uploaded)]
    assert not [*line.folder.rglob("*.safetensors")]


def journal_lines(line: Line) -> list[str]:
    path = line.out / ".hubmerge" / "journal.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("moment", range(0, 40, 6))
def test_a_kill_at_any_word_to_the_observer_is_gone_on_from(line, moment):
    left = [moment]

    def die(stage: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    line.disk_budget = 2 * OUT_SHARD_BYTES + 1_200_000
    line.watcher.seen = die
    with pytest.raises(Killed):
        line.to_hub()
    assert threads_left() == []
    line.watcher.seen = lambda stage: None
    line.arrives()


def test_uploads_that_the_target_has_lost_are_merged_again(line):
    """Somebody deletes the empty repo between two runs: what was uploaded to it is gone."""
    with patch.object(Hub, "commit", side_effect=Killed), pytest.raises(Killed):
        line.to_hub()
    assert line.finished_shards() == 0
    line.api.delete_repo(line.target)
    line.arrives()


# --- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Reset(at=10_000), Status(status=503), Reset(at=0)], ids=str)
def test_a_connection_that_drops_while_fetching_ahead_is_taken_up_again(line, switch, trouble):
    line.disk_budget = 2 * OUT_SHARD_BYTES + 1_200_000
    rule = switch.add(SHARD, trouble, skip=HEADERS, times=2)
    line.to_hub()
    assert switch.state(rule).fired == 2
    assert line.published() == line.undisturbed


@pytest.mark.parametrize("inputs", [3_400_000, 900_000, 0], ids=["all fits", "some fits", "ranges only"])
def test_a_wrong_byte_anywhere_is_corrupt_nothing_is_committed_and_the_next_run_is_whole(line, switch, inputs):
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    switch.add(SHARD, WrongByte(at=150_000, mask=4), skip=HEADERS)
    with pytest.raises(CorruptError, match=r"model-00003-of-00005\.safetensors in ada/one"):
        line.to_hub()
    assert threads_left() == []
    assert not line.api.repo_exists(line.target) or line.commits() == 0
    line.arrives()


@pytest.mark.parametrize("route", ["/lfs-uploads/", r"\.git/info/lfs/objects/batch", "/api/repos/create"])
@pytest.mark.parametrize("trouble", [Status(status=500), LostAnswer()], ids=lambda t: t.kind)
def test_trouble_while_uploading_in_the_background_ends_in_one_whole_commit(
    line, switch, client_pauses, route, trouble
):
    rule = switch.add(route, trouble, skip=int(route != "/api/repos/create"))
    line.to_hub()
    assert switch.state(rule).fired == 1
    assert line.published() == line.undisturbed
    assert line.commits() == 1


def test_a_hub_that_takes_no_upload_ends_the_merge_with_its_error_and_the_next_run_goes_on(line, switch, client_pauses):
    switch.add("/lfs-uploads/", Status(status=507, message="out of storage"), times=None)
    with pytest.raises(HubUnavailableError, match="out of storage"):
        line.to_hub()
    assert threads_left() == []
    assert line.commits() == 0
    switch.clear()
    line.arrives()


def test_a_finished_folder_that_was_made_without_uploads_is_published_as_it_is(line):
    assert line.to_folder() == line.undisturbed
    line.arrives()
