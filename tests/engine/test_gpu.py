"""On a real GPU: the bits of the CPU, memory within its limit, nothing allocated per chunk, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import engine_helpers
import pytest
import torch
from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family
from test_device_engine import Warned
from test_fast import chunk_of, for_method, rule_of

from hubmerge.counter_rng import make_key
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.device import Engine
from hubmerge.engine.journal import Journal
from hubmerge.engine.memory import LANES, MEMORY_BYTES, device_chunk
from hubmerge.engine.stream import StreamOptions, merge
from hubmerge.methods import registry
from hubmerge.sources.reader import LocalOrFetched, TensorReader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine(torch.device("cuda", 0), engine_helpers.host, memory_bytes=MEMORY_BYTES)
    yield opened
    opened.close()


@pytest.mark.parametrize("method", list(registry()))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("stored", "output"), [("BF16", "BF16"), ("F32", "F32"), ("F16", "F16"), ("mixed", "BF16")])
def test_every_method_gives_the_bits_of_the_definition(
    engine: Engine, method: str, rounding: str, stored: str, output: str
) -> None:
    dtypes = tuple(["F32", "BF16", "F16"][k % 3] if stored == "mixed" else stored for k in range(4))
    for n in (1, BLOCK, 20 * BLOCK + 65):
        chunk = for_method(chunk_of(3, n, dtypes, start=7 * BLOCK), method)
        rule = rule_of(method, chunk, rounding)
        engine_helpers.compare(engine, chunk, rule, output)
        engine.check(rule, 3, output)
        assert engine.working


@pytest.mark.parametrize("agents", [3, 8])
def test_the_largest_chunks_fit_the_limit_and_take_nothing_new_once_warm(engine: Engine, agents: int) -> None:
    n = device_chunk(agents, MEMORY_BYTES, LANES)
    chunk = for_method(chunk_of(agents, n, ("BF16",) * (agents + 1)), "dare_ties")
    rule = rule_of("dare_ties", chunk, "stochastic")
    key = make_key(0, "x")
    for _ in range(2 * LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    warm = torch.cuda.memory_stats()["num_device_alloc"]
    for _ in range(2 * LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    assert engine.working
    assert torch.cuda.memory_stats()["num_device_alloc"] == warm
    assert torch.cuda.max_memory_reserved() <= MEMORY_BYTES


@pytest.mark.parametrize("memory", [MEMORY_BYTES, 30_000_000])  # the second is too little: it must end on the CPU
def test_a_merge_on_the_gpu_has_the_bytes_of_the_cpu(tmp_path: Path, memory: int) -> None:
    write_family(tmp_path, sizes={"model.embed_tokens.weight": (3000, 1024), "lm_head.weight": (1000, 999)})
    plan = plan_of(tmp_path, "ram_plus")
    wanted = run(plan, tmp_path / "cpu", chunk=1 << 20)
    (tmp_path / "gpu").mkdir()
    observer = Warned()
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        journal = Journal.open(tmp_path / "gpu", plan, resume=False)
        options = StreamOptions(1 << 20, 4, device="cuda", device_memory_bytes=memory)
        found = merge(plan, reader, journal, tmp_path / "gpu", options, observer)
    assert bytes_of(tmp_path / "gpu", plan) == bytes_of(tmp_path / "cpu", plan)
    assert found.statistics.total.to_json() == wanted.statistics.total.to_json()
    assert found.total.to_json() == wanted.total.to_json()
    assert bool(observer.messages) == (memory < MEMORY_BYTES)
    assert found.device["device"] == ("cpu" if memory < MEMORY_BYTES else torch.cuda.get_device_name())


def test_a_gpu_that_breaks_for_good_costs_one_warning_and_neither_a_byte_nor_the_process(tmp_path: Path) -> None:
    script = Path(__file__).with_name("breaking_gpu.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "x")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"]
    assert len(told["warnings"]) == 1
    assert "CUDA error" in told["device"]["device_failed"]
