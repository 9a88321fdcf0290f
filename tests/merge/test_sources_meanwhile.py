"""Sources that not everybody may read, and sources that change while they are merged to the Hub.

Whole shards and ranges are tested alike: the disk has room for all inputs, for some, or for none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from huggingface_hub import HfApi
from line import OUT_SHARD_BYTES, Line, threads_left, upload_family, weights

from hubmerge import line as line_module
from hubmerge.errors import GatedError, HubmergeError, HubUnavailableError, SourceChangedError, SourceNotFoundError
from hubmerge.sources.shard_cache import ShardCache
from localhub.fault_rules import FaultSwitch, Observe, WholeFile
from localhub.process import LocalHubProcess

ROOM = {"all fits": 3_400_000, "some fits": 900_000, "ranges only": 0}
HEADERS = 1  # the first read of a shard is that of its header
SHARD = r"/ada/one/resolve/[0-9a-f]{40}/model-00003-of-00005\.safetensors$"
room = pytest.mark.parametrize("inputs", ROOM.values(), ids=ROOM)


@pytest.fixture
def ada(faulty_hub: LocalHubProcess) -> HfApi:
    return HfApi(faulty_hub.endpoint, token=faulty_hub.tokens["ada"])


@pytest.fixture(params=["gated", "private"])
def guarded(request: pytest.FixtureRequest, line: Line, ada: HfApi, tmp_path: Path) -> str:
    """The family in repos that Ada guards; the line is Bob's, whom she has let in where that can be done."""
    own = upload_family(ada, tmp_path / "family", line.target + "-", private=request.param == "private")
    if request.param == "gated":
        for repo in (own["base"], *own["agents"]):
            ada.update_repo_settings(repo, gated="manual")
    line.recipe = own
    return str(request.param)


def of_bob(line: Line) -> Line:
    return Line(
        line.process,
        line.folder,
        line.recipe,
        line.target.replace("ada/", "bob/"),
        user="bob",
        undisturbed=line.undisturbed,
    )


def let_in(ada: HfApi, line: Line, user: str) -> None:
    for repo in (line.recipe["base"], *line.recipe["agents"]):
        ada.grant_access(repo, user)


def assert_nothing_came(line: Line) -> None:
    assert threads_left() == []
    assert not line.api.repo_exists(line.target) or line.commits() == 0


@room
def test_guarded_models_are_merged_with_the_token_of_who_may_read_them(
    line: Line, guarded: str, ada: HfApi, inputs: int
) -> None:
    if guarded == "gated":
        let_in(ada, line, "bob")
        line = of_bob(line)
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    line.to_hub()
    assert weights(line.published()) == weights(line.undisturbed)
    assert line.commits() == 1
    fetch = line.report()["environment"]["fetch"]
    assert bool(fetch["ranged_shards"]) == (inputs < ROOM["all fits"])
    assert bool(fetch["shards"]) == (inputs > ROOM["ranges only"])


REFUSALS: dict[str, type[HubmergeError]] = {"gated": GatedError, "private": SourceNotFoundError}


@pytest.mark.parametrize("user", ["bob", "nobody"])
def test_guarded_models_are_refused_to_others_before_anything_is_fetched(
    line: Line, guarded: str, ada: HfApi, user: str
) -> None:
    other = Line(line.process, line.folder, line.recipe, line.target.replace("ada/", f"{user}/"), user=user)
    with pytest.raises(REFUSALS[guarded]) as caught:
        other.to_folder()
    assert all(repo in str(caught.value) for repo in (line.recipe["base"], *line.recipe["agents"]))
    assert not caught.value.retryable
    assert not [*line.folder.iterdir()]


CLOSED: dict[str, Callable[[HfApi, str], object]] = {
    "the reader is put out": lambda ada, repo: ada.cancel_access_request(repo, "bob"),
    "the repo is made private": lambda ada, repo: ada.update_repo_settings(repo, private=True),
}


@pytest.mark.parametrize("guarded", ["gated"], indirect=True)
@pytest.mark.parametrize("closing", CLOSED)
@room
def test_a_model_that_is_closed_meanwhile_ends_the_merge_and_nothing_is_published(
    line: Line, guarded: str, ada: HfApi, closing: str, inputs: int
) -> None:
    let_in(ada, line, "bob")
    line = of_bob(line)
    if inputs == ROOM["all fits"]:
        inputs //= 2  # so that it is not all there before
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    line.watcher.at["fetch"] = lambda: CLOSED[closing](ada, line.recipe["agents"][0])
    with pytest.raises((GatedError, SourceChangedError)) as caught:
        line.to_hub()
    assert isinstance(caught.value, GatedError if closing == "the reader is put out" else SourceChangedError)
    assert line.recipe["agents"][0] in str(caught.value)
    assert_nothing_came(line)


# --- changes -----------------------------------------------------------------------------------------------------


@room
@pytest.mark.parametrize("stage", ["fetch", "merge"])
@pytest.mark.parametrize("change", ["commit", "squash"])
def test_a_model_that_moves_on_meanwhile_is_merged_as_it_was_pinned(
    line: Line, own: Path, ada: HfApi, stage: str, change: str, inputs: int
) -> None:
    agent = line.recipe["agents"][0]

    def move() -> None:
        ada.upload_folder(repo_id=agent, folder_path=own / "two", commit_message="other")
        if change == "squash":
            ada.super_squash_history(agent)

    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    line.watcher.at[stage] = move
    line.to_hub()
    assert weights(line.published()) == weights(line.undisturbed)
    assert line.commits() == 1


def replaced(ada: HfApi, repo: str, folder: Path) -> None:
    ada.delete_repo(repo)
    ada.create_repo(repo)
    ada.upload_folder(repo_id=repo, folder_path=folder)


GONE: dict[str, Callable[[HfApi, str, Path], object]] = {
    "deleted": lambda ada, repo, folder: ada.delete_repo(repo),
    "its history rewritten": lambda ada, repo, folder: replaced(ada, repo, folder / "two"),
    "renamed, and another in its place": lambda ada, repo, folder: (
        ada.move_repo(repo, repo + "-old"),
        ada.create_repo(repo),
        ada.upload_folder(repo_id=repo, folder_path=folder / "two"),
    ),
}


@pytest.mark.parametrize("inputs", [ROOM["some fits"], ROOM["ranges only"]], ids=["some fits", "ranges only"])
@pytest.mark.parametrize("stage", ["fetch", "merge"])
@pytest.mark.parametrize("way", GONE)
def test_a_model_that_is_gone_meanwhile_ends_the_merge_and_nothing_is_published(
    line: Line, own: Path, ada: HfApi, stage: str, way: str, inputs: int
) -> None:
    agent = line.recipe["agents"][0]
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    line.watcher.at[stage] = lambda: GONE[way](ada, agent, own)
    with pytest.raises(SourceChangedError) as caught:
        line.to_hub()
    assert caught.value.code == "E_SOURCE_CHANGED"
    assert agent in str(caught.value)
    assert_nothing_came(line)


def test_a_base_that_is_gone_when_only_its_small_files_are_missing_is_noticed(
    line: Line, own: Path, ada: HfApi
) -> None:
    line.watcher.at["card"] = lambda: ada.delete_repo(line.recipe["base"])
    with pytest.raises(SourceChangedError) as caught:
        line.to_hub()
    assert line.recipe["base"] in str(caught.value)
    assert_nothing_came(line)


# --- a server that knows no ranges -------------------------------------------------------------------------------


BLOCK = 51_200


@pytest.mark.parametrize("moment", ["verifying the first", "verifying the last", "merging"])
def test_a_whole_file_in_place_of_a_block_is_refused_and_the_next_run_is_whole(
    line: Line, switch: FaultSwitch, moment: str
) -> None:
    """A shard of several blocks, read once for its checksum and then again."""
    size = line.hub.repo_state("ada/one").files["model-00003-of-00005.safetensors"].size
    blocks = [f"bytes={begin}-{min(begin + BLOCK, size) - 1}" for begin in range(0, size, BLOCK)]
    assert len(blocks) > 2
    line.disk_budget = 2 * OUT_SHARD_BYTES
    before = {"verifying the first": 0, "verifying the last": len(blocks) - 1, "merging": len(blocks)}[moment]
    asked = switch.add(SHARD, Observe(), times=None)
    rule = switch.add(SHARD, WholeFile(), skip=HEADERS + before)
    with patch.object(line_module, "ShardCache", partial(ShardCache, block_bytes=BLOCK)):
        with pytest.raises(HubUnavailableError, match=r"206 bytes .* got 200") as caught:
            line.to_hub()
        assert caught.value.retryable
        assert_nothing_came(line)
        assert switch.state(rule).fired == 1
        ranges = [request.range for request in switch.state(asked).requests[HEADERS:]]
        assert ranges[: before + 1] == [*blocks, ranges[-1]][: before + 1]
        line.arrives()
