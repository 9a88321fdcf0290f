"""What the line promises when reading goes wrong: the same bytes in the end, or a refusal that says why."""

from unittest.mock import patch

import pytest
from line import OUT_SHARD_BYTES, SHARDS, Line, threads_left

from hubmerge.errors import CorruptError, HubmergeError, HubUnavailableError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared
from hubmerge.sources.header import header_length
from localhub.fault_rules import Observe, Reset, StaleHead, Status, WholeFile, WrongByte

AGENT = "ada/one"
SHARD = f"/{AGENT}/resolve/[0-9a-f]{{40}}/{SHARDS[1]}$"
HEADERS = 1  # the first read of a shard is that of its header


def test_the_merge_is_a_function_of_its_inputs(line):
    """So that the comparisons of these tests mean something."""
    assert line.to_folder() == line.undisturbed
    assert {"config.json", "tokenizer.json"} <= line.undisturbed.keys()
    assert len([name for name in line.undisturbed if name.endswith(".safetensors")]) > 2
    assert line.pauses == []


def test_a_connection_that_keeps_dropping_is_given_up_and_the_next_run_goes_on_where_it_was(line, switch):
    switch.add(SHARD, Reset(at=10_000), skip=HEADERS, times=None)
    with pytest.raises(HubUnavailableError) as caught:
        line.to_folder()
    assert caught.value.retryable
    assert len(line.pauses) == 4
    switch.clear()
    reads = switch.add(SHARD, Observe(), times=None)
    assert line.to_folder() == line.undisturbed
    assert [r.range.split("-")[0] for r in switch.state(reads).requests[HEADERS:] if r.range] == ["bytes=50000"]


ROUTES = [
    "/api/whoami-v2",
    f"/api/models/{AGENT}$",
    SHARD,
    f"/{AGENT}/resolve/.*/model.safetensors.index.json",
    f"/{AGENT}/resolve/.*/config.json",
    "/ada/base/resolve/.*/tokenizer.json",
]


@pytest.mark.parametrize("route", ROUTES)
def test_trouble_on_any_reading_route_is_waited_out_as_long_as_the_hub_asks(line, switch, route):
    for number, fault in enumerate(
        (Status(status=429, retry_after="7"), Status(status=429, rate_limit_reset_s=9), Status(status=503), Reset(at=3))
    ):
        switch.add(route, fault, methods=["GET"], skip=number)
    assert line.to_folder() == line.undisturbed
    assert [state.fired for state in switch.states()] == [1, 1, 1, 1]
    asked = sorted(line.pauses)[-2:]
    assert 7 <= asked[0] <= 8
    assert 9 <= asked[1] <= 10
    assert len(line.pauses) == 4


@pytest.mark.parametrize("skip", [0, HEADERS], ids=["header", "shard"])
def test_a_whole_file_in_place_of_a_range_is_refused_and_nothing_of_it_is_kept(line, switch, skip):
    if skip:  # so that the range does not begin at 0
        switch.add(SHARD, Reset(at=10_000), skip=HEADERS)
    switch.add(SHARD, WholeFile(), skip=2 * skip)
    with pytest.raises(HubUnavailableError, match=r"206 bytes .* got 200"):
        line.to_folder()
    # other shards are fetched ahead, and may have been broken off in the middle
    partial = [
        p.stat().st_size for p in line.folder.rglob(SHARDS[1] + "*.partial") if AGENT.replace("/", "--") in str(p)
    ]
    assert partial == ([10_000] if skip else [])
    switch.clear()
    assert line.to_folder() == line.undisturbed


def test_a_wrong_byte_in_a_header_is_refused_or_changes_nothing(line, switch, family_folder):
    shard = (family_folder / "one" / SHARDS[1]).read_bytes()
    end = 8 + header_length(shard[:8], SHARDS[1])
    sound = line.prepare().plan.agents[0].tensors
    refused, codes = 0, set()
    places = [*range(8), *range(8, end, max(1, end // 40))]
    for place in places:
        switch.clear()
        switch.add(SHARD, WrongByte(at=place, mask=1 << (place % 7)))
        try:
            planned = line.prepare()
        except HubmergeError as error:
            codes.add(error.code)
            refused += 1
        else:
            assert planned.plan.agents[0].tensors == sound
    assert codes <= {"E_HEADER", "E_INDEX", "E_INCOMPATIBLE", "E_FORMAT"}
    assert refused > len(places) // 2


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_wrong_byte_in_a_small_file_is_corrupt(line, switch, file):
    # a digit or letter into another one, so that the file stays valid JSON
    text = line.hub.read_file("ada/base", line.hub.repo_state("ada/base").sha, file)
    place = next(i for i, c in enumerate(text) if chr(c).isdigit()) if file == "config.json" else text.index(b"unk")
    switch.add(f"/ada/base/resolve/.*/{file}$", WrongByte(at=place, mask=1))
    with pytest.raises(CorruptError, match=file):
        line.to_folder()
    assert line.to_folder() == line.undisturbed


def test_a_stale_head_is_pinned_and_merged_as_what_it_is(line, own, switch):
    """Two repos of which one is seen as it was: the report names that commit, and its files are what was merged."""
    agent = line.recipe["agents"][0]
    older = line.api.list_repo_commits(agent)[0].commit_id
    line.api.upload_file(repo_id=agent, path_or_fileobj=b"later", path_in_repo="later.txt")
    switch.add(f"/api/models/{agent}", StaleHead(), times=None)
    prepared = line.prepare()
    assert prepared.plan.agents[0].ref.sha == older
    assert "later.txt" not in prepared.plan.agents[0].files
    line.to_folder()
    assert f'"{older}"' in (line.out / "hubmerge.json").read_text()


LIE = SHARDS[2]


def planned_from_a_lie(line: Line) -> Prepared:
    """While it is planned, one shard's header has two tensors of the same shape the wrong way round."""
    read = Hub.read_range

    def lying(hub: Hub, repo: str, sha: str, path: str, start: int, end: int) -> bytes:
        raw = read(hub, repo, sha, path, start, end)
        if (repo, path) == (AGENT, LIE):
            raw = raw.replace(b".q_proj.", b".?_proj.").replace(b".k_proj.", b".q_proj.").replace(b"?", b"k")
        return raw

    with patch.object(Hub, "read_range", lying):
        prepared = line.prepare()
    assert prepared.plan.agents[0].tensors != line.prepare().plan.agents[0].tensors
    return prepared


@pytest.mark.parametrize("inputs", [4_000_000, 0], ids=["whole shards", "ranges"])
def test_a_server_that_lies_about_a_header_alone_is_found_out_before_anything_of_it_is_merged(line, inputs):
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    prepared = planned_from_a_lie(line)
    with (
        patch.object(line, "prepare", lambda: prepared),
        pytest.raises(CorruptError, match=rf"another header.*{LIE} in {AGENT}"),
    ):
        line.to_hub()
    assert threads_left() == []
    assert not line.api.repo_exists(line.target) or line.commits() == 0
    honest = Line(line.process, line.folder.with_name("honest"), line.recipe, line.target, disk_budget=line.disk_budget)
    honest.to_hub()
    assert honest.published() == line.undisturbed
