"""What a plan says of memory and time, and how memory is shared out; test_memory.py measures it."""

from dataclasses import replace
from functools import partial

import memory_helpers
import pytest

from hubmerge.engine import prediction
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
from hubmerge.engine.prediction import Machine, predict
from hubmerge.machine import resources as this_machine
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import TokenTable

NAME = "synthetic:qwen2.5-0.5b"
planned = partial(memory_helpers.planned, agents=3, base=NAME)


def test_building_the_fast_pass_is_part_of_what_is_predicted():
    plan, new = planned("ram"), Machine(2, to_build=True)
    first, second = predict(plan, new), predict(plan, Machine(2))
    assert first.memory_bytes == second.memory_bytes  # another process builds it
    assert first.seconds > second.seconds + 2
    eager = StreamOptions(threads=2, backend="eager")
    assert predict(plan, new, eager) == predict(plan, Machine(2), eager)


def test_memory_does_not_grow_with_the_model_but_with_agents_threads_and_whole_tensors():
    machine = Machine(2)

    def memory(plan: Plan, **options: int) -> int:
        return predict(plan, machine, StreamOptions(**{"threads": 2, **options})).memory_bytes

    ram = memory(planned("ram"))
    assert memory(planned("ram", base="synthetic:llama-405b")) < ram + 20_000_000
    assert memory(planned("ram", agents=8)) > ram
    assert memory(planned("ram"), threads=8) > ram
    assert memory(planned("ram"), threads=8, chunk_elements=4096) < memory(planned("ram"), threads=8)
    assert memory(planned("wudi", base="synthetic:llama-70b")) > 10_000_000_000
    assert memory(planned("ram", agents=8), threads=2) <= 512_000_000


def test_the_tokens_of_vocabularies_that_differ_are_in_memory():
    plan = planned("ram")
    tokens = TokenTable({f"w{i}": i for i in range(100_000)}, {}, 100_000)
    grown = replace(plan, base=replace(plan.base, tokens=tokens))
    more = predict(grown, Machine(2)).memory_bytes - predict(plan, Machine(2)).memory_bytes
    assert more == pytest.approx(540 * 100_000), "with three agents; 470 were measured with two"


def test_an_agent_whose_sensitivity_is_computed_is_in_memory_and_one_with_a_file_is_not():
    named = planned("sar")
    agents = tuple(a.model_copy(update={"sensitivity": None}) for a in named.recipe.agents)
    computed = replace(named, recipe=named.recipe.model_copy(update={"agents": agents}))
    more = predict(computed, Machine(2)).memory_bytes - predict(named, Machine(2)).memory_bytes
    assert more >= 2 * 4 * computed.elements + prediction._NETWORK


def test_a_merge_on_a_device_also_takes_torch_and_what_the_driver_keeps_on_the_host():
    plan, machine = planned("ram"), Machine(16, device=True)
    without = predict(plan, replace(machine, device=False)).memory_bytes
    assert predict(plan, machine).memory_bytes == without, "which takes no chunks unless it is named"
    named = StreamOptions(threads=16, device="cuda")
    assert predict(plan, machine, named).memory_bytes == without + prediction._DEVICE


def test_time_is_the_elements_that_are_read_over_cores_and_speed():
    def seconds(method: str, machine: Machine, shape: str = "synthetic:llama-70b") -> float:
        return predict(planned(method, base=shape), machine).seconds

    one = seconds("ram", Machine(1))
    assert seconds("ram", Machine(2)) == pytest.approx(one / 2, rel=0.1)
    assert seconds("ram", Machine(1, speed=2.0)) == pytest.approx(one / 2)
    assert seconds("ram_plus", Machine(1)) == pytest.approx(1.5 * one, rel=0.1), "a probe reads everything once more"
    assert seconds("ram", Machine(1), "synthetic:llama-405b") > 5 * one


def test_tensors_take_time_whatever_their_size_and_no_core_shares_it():
    plan = planned("ram")
    norm = min(plan.tensors(), key=lambda tensor: tensor.elements)
    many = replace(plan, shards=(replace(plan.shards[0], tensors=(norm,) * 20_000),))
    assert predict(many, Machine(1)).seconds == pytest.approx(16, rel=0.1)
    assert predict(many, Machine(2)).seconds == pytest.approx(16, rel=0.1)


def test_products_of_matrices_take_time_by_their_operations_and_little_of_it_on_a_device():
    two, four = (predict(planned("wudi"), Machine(cores)).seconds for cores in (2, 4))
    assert two == pytest.approx(2 * four, rel=0.1)
    assert two > 100 * predict(planned("linear"), Machine(2)).seconds
    half = predict(planned("wudi", parameters={"steps": 150}), Machine(2)).seconds
    assert half == pytest.approx(two / 2, rel=0.1)
    on_device = predict(planned("wudi"), Machine(2, device=True))
    assert on_device.seconds < two / 50
    assert on_device.memory_bytes > predict(planned("wudi"), Machine(2)).memory_bytes + prediction._DEVICE / 2


def taken(shares: Shares) -> int:
    return shares.threads * (shares.thread_bytes + shares.chunk * shares.element_bytes)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("method", ["ram", "dare_ties"])
def test_no_number_of_threads_or_agents_takes_more_than_there_is(method, fast):
    for agents in (2, 8, 32):
        plan = planned(method, agents=agents)
        for threads in (1, 2, 7, 64, 1000):
            for most in (STREAM_BYTES, LEAST_STREAM_BYTES * 4):
                shares = shared_out([plan], threads, most, fast=fast)
                assert taken(shares) <= most, (agents, threads, shares)
                assert 1 <= shares.threads <= threads
                assert shares.chunk % BLOCK == 0
                assert shares.chunk >= (SMALLEST_CHUNK if fast else SMALLEST_EAGER_CHUNK) or shares.threads == 1


def test_a_few_threads_lack_nothing_and_chunks_go_before_threads():
    plan, ranking = planned("ram"), planned("ram_quantile")
    few, many, over = (shared_out([plan], threads, STREAM_BYTES) for threads in (4, 20, 1000))
    assert (few.threads, few.chunk) == (4, LARGEST_CHUNK)
    assert many.threads == 20
    assert LARGEST_CHUNK > many.chunk > over.chunk >= SMALLEST_CHUNK
    assert 20 < over.threads < 1000
    assert shared_out([ranking], 4, STREAM_BYTES).thread_bytes == few.thread_bytes + ROW


def test_recipes_that_are_merged_together_share_one_part():
    ram, ties = planned("ram"), planned("ties")
    alone, both = (shared_out(plans, 16, STREAM_BYTES) for plans in ([ram], [ram, ties]))
    assert both.element_bytes > alone.element_bytes
    assert both.thread_bytes > alone.thread_bytes
    assert taken(both) <= STREAM_BYTES


def test_a_chunk_that_was_asked_for_is_taken_and_costs_threads():
    plan = planned("ram", agents=8)
    shares = shared_out([plan], 16, STREAM_BYTES, chunk_elements=1024 * BLOCK - 5)
    assert shares.chunk == 1024 * BLOCK > LARGEST_CHUNK
    assert shares.threads == 2
    assert shared_out([plan], 16, STREAM_BYTES, chunk_elements=BLOCK).threads == 16


def test_a_small_machine_or_container_gets_a_small_stream_and_few_cores_few_threads(monkeypatch):
    assert stream_bytes(None) == stream_bytes(64 * 10**9) == STREAM_BYTES
    assert stream_bytes(10**6) == LEAST_STREAM_BYTES
    assert LEAST_STREAM_BYTES < stream_bytes(512_000_000) < STREAM_BYTES
    monkeypatch.setattr(this_machine, "memory_bytes", lambda: 512_000_000)
    monkeypatch.setattr(this_machine, "cores", lambda: 3)
    plan = planned("ram", agents=8)
    assert taken(shares_of([plan], StreamOptions(threads=16))) <= 160_000_000
    assert shares_of([plan], StreamOptions(threads=16)).threads < 16
    assert shares_of([plan], StreamOptions()).threads == 3
