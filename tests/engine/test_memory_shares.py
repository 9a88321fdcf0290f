"""How memory is shared out: never more than there is, and chunks go before threads."""

from __future__ import annotations

import pytest
from memory_helpers import planned

from hubmerge import machine
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.memory import (
    LARGEST_CHUNK,
    LEAST_STREAM_BYTES,
    ROW,
    SMALLEST_CHUNK,
    SMALLEST_EAGER_CHUNK,
    STREAM_BYTES,
    Shares,
    shared_out,
    shares_of,
    stream_bytes,
)
from hubmerge.engine.options import StreamOptions

BASE = "synthetic:llama-70b?layers=2"


def taken(shares: Shares) -> int:
    return shares.threads * (shares.thread_bytes + shares.chunk * shares.element_bytes)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("method", ["ram", "ties", "ram_quantile", "dare_ties"])
def test_no_number_of_threads_or_agents_takes_more_than_there_is(method: str, fast: bool) -> None:
    for agents in (2, 8, 32):
        plan = planned(method, agents, BASE)
        for threads in (1, 2, 3, 7, 16, 64, 1000):
            for most in (STREAM_BYTES, LEAST_STREAM_BYTES * 4):
                shares = shared_out([plan], threads, most, fast=fast)
                assert taken(shares) <= most, (agents, threads, shares)
                assert 1 <= shares.threads <= threads
                assert shares.chunk % BLOCK == 0
                assert shares.chunk >= (SMALLEST_CHUNK if fast else SMALLEST_EAGER_CHUNK) or shares.threads == 1


def test_a_few_threads_lack_nothing_and_chunks_go_before_threads() -> None:
    plan, ranking = planned("ram", 3, BASE), planned("ram_quantile", 3, BASE)
    few, many, over = (shared_out([plan], threads, STREAM_BYTES) for threads in (4, 20, 1000))
    assert (few.threads, few.chunk) == (4, LARGEST_CHUNK)
    assert many.threads == 20
    assert LARGEST_CHUNK > many.chunk > over.chunk >= SMALLEST_CHUNK
    assert 20 < over.threads < 1000
    assert shared_out([ranking], 4, STREAM_BYTES).thread_bytes == few.thread_bytes + ROW


def test_recipes_that_are_merged_together_share_one_part() -> None:
    ram, ties = planned("ram", 3, BASE), planned("ties", 3, BASE)
    alone, both = (shared_out(plans, 16, STREAM_BYTES) for plans in ([ram], [ram, ties]))
    assert both.element_bytes > alone.element_bytes
    assert both.thread_bytes > alone.thread_bytes
    assert taken(both) <= STREAM_BYTES


def test_a_chunk_that_was_asked_for_is_taken_and_costs_threads() -> None:
    plan = planned("ram", 8, BASE)
    shares = shared_out([plan], 16, STREAM_BYTES, chunk_elements=4 * LARGEST_CHUNK - 5)
    assert shares.chunk == 4 * LARGEST_CHUNK
    assert shares.threads == 2
    assert shared_out([plan], 16, STREAM_BYTES, chunk_elements=BLOCK).threads == 16


def test_a_small_machine_or_container_gets_a_small_stream_and_few_cores_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stream_bytes(None) == stream_bytes(64 * 10**9) == STREAM_BYTES
    assert stream_bytes(10**6) == LEAST_STREAM_BYTES
    assert LEAST_STREAM_BYTES < stream_bytes(512_000_000) < STREAM_BYTES
    monkeypatch.setattr(machine, "memory_bytes", lambda: 512_000_000)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    plan = planned("ram", 8, BASE)
    assert taken(shares_of([plan], StreamOptions(threads=16))) <= 160_000_000
    assert shares_of([plan], StreamOptions(threads=16)).threads < 16
    assert shares_of([plan], StreamOptions()).threads == 3
