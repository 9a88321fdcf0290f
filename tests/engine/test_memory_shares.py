"""How memory is shared out: never more than there is, and what costs least goes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from stream_helpers import bytes_of, plan_of, run, write_family

from hubmerge import machine
from hubmerge.engine import memory
from hubmerge.engine.chunks import StreamOptions
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.memory import (
    GOOD_CHUNK,
    KEPT_BYTES,
    LARGEST_CHUNK,
    LEAST_STREAM_BYTES,
    SMALLEST_CHUNK,
    SMALLEST_EAGER_CHUNK,
    STREAM_BYTES,
    Shares,
    shares_of,
    stream_bytes,
)
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import Recipe

NOWHERE = Hub("http://127.0.0.1:9")  # never asked
BASE = "synthetic:llama-70b?layers=2"


def planned(method: str, agents: int, **more: object) -> Plan:
    content = {"base": BASE, "agents": [f"{BASE}&agent={k + 1}&density=0.1" for k in range(agents)], "method": method}
    return prepare(Recipe.model_validate({**content, **more}), NOWHERE, Request(allow_local=True)).plan


def taken(shares: Shares) -> int:
    return shares.threads * (shares.thread_bytes + shares.chunk * shares.element_bytes) + shares.kept_bytes


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("method", ["ram", "ties", "ram_quantile", "dare_ties"])
def test_no_number_of_threads_or_agents_takes_more_than_there_is(method: str, fast: bool) -> None:
    for agents in (2, 8, 32):
        plan = planned(method, agents)
        for threads in (1, 2, 3, 7, 16, 64, 1000):
            for most in (STREAM_BYTES, LEAST_STREAM_BYTES * 4):
                shares = shares_of([plan], threads, most, fast=fast)
                assert taken(shares) <= most, (agents, threads, shares)
                assert 1 <= shares.threads <= threads
                assert shares.chunk % BLOCK == 0
                assert shares.chunk >= (SMALLEST_CHUNK if fast else SMALLEST_EAGER_CHUNK) or shares.threads == 1


def test_a_few_threads_lack_nothing() -> None:
    plain, ranking = (shares_of([planned(method, 3)], 4, STREAM_BYTES) for method in ("ram", "ram_quantile"))
    assert (plain.threads, plain.chunk, plain.rows, plain.kept_bytes) == (4, LARGEST_CHUNK, 0, 0)
    assert (ranking.threads, ranking.rows, ranking.kept_bytes) == (4, 3, KEPT_BYTES)
    assert ranking.chunk >= GOOD_CHUNK


def test_histograms_go_before_chunks_chunks_before_what_is_kept_and_that_before_threads() -> None:
    plan = planned("ram_quantile", 4)
    found = [shares_of([plan], threads, STREAM_BYTES) for threads in (2, 6, 8, 14, 64)]
    few, more, many, full, over = found
    assert [s.threads for s in found] == [2, 6, 8, 14, over.threads]
    assert over.threads < 64
    assert few.rows == 4 > more.rows
    assert few.kept_bytes == KEPT_BYTES > many.kept_bytes
    assert full.kept_bytes == over.kept_bytes == STREAM_BYTES // 4
    assert few.chunk > more.chunk >= GOOD_CHUNK > full.chunk >= over.chunk >= SMALLEST_CHUNK


def test_recipes_that_are_merged_together_share_one_part() -> None:
    ram, ties = planned("ram", 3), planned("ties", 3, parameters={"trim_scope": "tensor"})
    alone, both = (shares_of(plans, 16, STREAM_BYTES) for plans in ([ram], [ram, ties]))
    assert both.element_bytes > alone.element_bytes
    assert both.kept_bytes > alone.kept_bytes == 0
    assert taken(both) <= STREAM_BYTES
    assert StreamOptions(threads=16, memory_bytes=STREAM_BYTES, beside=(ties,)).shares(ram) == both


def test_a_chunk_that_was_asked_for_is_taken_and_costs_threads() -> None:
    plan = planned("ram", 8)
    shares = shares_of([plan], 16, STREAM_BYTES, chunk_elements=4 * LARGEST_CHUNK - 5)
    assert shares.chunk == 4 * LARGEST_CHUNK
    assert shares.threads == 2
    assert shares_of([plan], 16, STREAM_BYTES, chunk_elements=BLOCK).threads == 16


def test_a_small_machine_or_container_gets_a_small_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream_bytes(None) == stream_bytes(64 * 10**9) == STREAM_BYTES
    assert stream_bytes(10**6) == LEAST_STREAM_BYTES
    assert LEAST_STREAM_BYTES < stream_bytes(512_000_000) < STREAM_BYTES
    monkeypatch.setattr(machine, "memory_bytes", lambda: 512_000_000)
    options, plan = StreamOptions(threads=16), planned("ram", 8)
    assert taken(options.shares(plan)) <= 160_000_000
    assert options.workers(plan) < 16


def test_no_bit_depends_on_how_memory_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_family(tmp_path)
    for method in ("ties", "ram_quantile", "dare_ties"):
        plan = plan_of(tmp_path, method)
        found = []
        for rows in (1, 10**9):
            monkeypatch.setattr(memory, "HISTOGRAM_BYTES", rows)
            assert StreamOptions(4096, 2).shares(plan).rows == min(rows, 3)
            run(plan, tmp_path / f"{method}{rows}")
            found.append(bytes_of(tmp_path / f"{method}{rows}", plan))
        assert found[0] == found[1]
