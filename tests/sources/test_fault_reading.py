"""What the line promises when reading goes wrong: the same bytes in the end, or a refusal that says why."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from line import OUT_SHARD_BYTES, SHARDS, Line, threads_left

from hubmerge.errors import CorruptError, HubUnavailableError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared
from localhub.fault_rules import FaultSwitch, Observe, Reset, Status, WholeFile, WrongByte

AGENT = "ada/one"
SHARD = f"/{AGENT}/resolve/[0-9a-f]{{40}}/{SHARDS[1]}$"
HEADERS = 1  # the first read of a shard is that of its header


def test_a_connection_that_keeps_dropping_is_given_up_and_the_next_run_goes_on_where_it_was(
    line: Line, switch: FaultSwitch
):
    switch.add(SHARD, Reset(at=10_000), skip=HEADERS, times=None)
    with pytest.raises(HubUnavailableError) as caught:
        line.to_folder()
    assert caught.value.retryable
    assert len(line.pauses) == 4
    switch.clear()
    reads = switch.add(SHARD, Observe(), times=None)
    assert line.to_folder() == line.undisturbed
    assert [r.range.split("-")[0] for r in switch.state(reads).requests[HEADERS:] if r.range] == ["bytes=50000"]


ROUTES = [f"/api/models/{AGENT}$", SHARD, "/ada/base/resolve/.*/tokenizer.json"]


@pytest.mark.parametrize("route", ROUTES)
def test_trouble_on_any_reading_route_is_waited_out_as_long_as_the_hub_asks(
    line: Line, switch: FaultSwitch, route: str
):
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


def test_a_whole_file_in_place_of_a_range_is_refused_and_nothing_of_it_is_kept(line: Line, switch: FaultSwitch):
    switch.add(SHARD, Reset(at=10_000), skip=HEADERS)  # so that the range does not begin at 0
    switch.add(SHARD, WholeFile(), skip=2 * HEADERS)
    with pytest.raises(HubUnavailableError, match=r"206 bytes .* got 200"):
        line.to_folder()
    # other shards are fetched ahead, and may have been broken off in the middle
    [partial] = [p for p in line.folder.rglob(SHARDS[1] + "*.partial") if AGENT.replace("/", "--") in str(p)]
    assert partial.stat().st_size == 10_000
    switch.clear()
    assert line.to_folder() == line.undisturbed


def test_a_wrong_byte_in_a_small_file_is_corrupt(line: Line, switch: FaultSwitch):
    # a letter into another one, so that the file stays valid JSON
    text = line.hub.read_file("ada/base", line.hub.repo_state("ada/base").sha, "tokenizer.json")
    switch.add("/ada/base/resolve/.*/tokenizer.json$", WrongByte(at=text.index(b"unk"), mask=1))
    with pytest.raises(CorruptError, match=r"tokenizer\.json"):
        line.to_folder()
    assert line.to_folder() == line.undisturbed


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
def test_a_server_that_lies_about_a_header_alone_is_found_out_before_anything_of_it_is_merged(line: Line, inputs: int):
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
