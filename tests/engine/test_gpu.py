"""On a real GPU: memory within its limit, nothing allocated per chunk, whole merges, and the way back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_helpers import ON_GPU
from stream_helpers import Watching, bytes_of, plan_of, run, tallies, write_family
from test_fast import chunk_of, rule_of

from hubmerge.engine import definition
from hubmerge.engine.device import Engine
from hubmerge.engine.memory import DEVICE_LANES, device_shares
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.numerics.counter_rng import make_key

pytestmark = list(ON_GPU)


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine(torch.device("cuda", 0), definition, memory_bytes=DEVICE_BYTES)
    yield opened
    opened.close()


@pytest.mark.parametrize("agents", [3, 8])
def test_the_largest_chunks_fit_the_limit_and_take_nothing_new_once_warm(engine, agents):
    _, n = device_shares(agents, StreamOptions())
    chunk = chunk_of("dare_ties", agents, n)
    rule = rule_of("dare_ties", chunk, "stochastic")
    key = make_key(0, "x")
    for _ in range(2 * DEVICE_LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    warm = torch.cuda.memory_stats()["num_device_alloc"]
    for _ in range(2 * DEVICE_LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    assert engine.working
    assert torch.cuda.memory_stats()["num_device_alloc"] == warm
    assert torch.cuda.max_memory_reserved() <= DEVICE_BYTES


@pytest.mark.parametrize("memory", [DEVICE_BYTES, 1_000_000])  # the second is too little for a block
def test_a_merge_on_the_gpu_has_the_bytes_of_the_cpu(tmp_path, memory):
    write_family(tmp_path, sizes={"model.embed_tokens.weight": (3000, 1024), "lm_head.weight": (1000, 999)})
    plan, watching = plan_of(tmp_path, "ram_plus"), Watching()
    wanted = run(plan, tmp_path / "cpu", chunk=1 << 20)
    options = {"device": "cuda", "device_memory_bytes": memory}
    found = run(plan, tmp_path / "gpu", chunk=1 << 20, threads=4, observer=watching, **options)
    assert bytes_of(tmp_path / "gpu", plan) == bytes_of(tmp_path / "cpu", plan)
    assert tallies(found) == tallies(wanted)
    assert bool(watching.messages) == (memory < DEVICE_BYTES)
    assert found.device.get("device") == (None if memory < DEVICE_BYTES else torch.cuda.get_device_name())


def test_auto_leaves_chunks_to_the_cpu_and_takes_products(tmp_path):
    write_family(tmp_path, sizes={"model.layers.0.mlp.up_proj.weight": (3000, 1024)})
    for method, name in (("ram", None), ("wudi", torch.cuda.get_device_name())):
        watching = Watching()
        plan = plan_of(tmp_path, method)
        found = run(plan, tmp_path / method, device="auto", backend="auto", observer=watching)
        assert watching.messages == []
        assert found.device.get("device") == name


def test_a_gpu_that_breaks_for_good_costs_one_warning_and_neither_a_byte_nor_the_process(tmp_path):
    script = Path(__file__).with_name("breaking_gpu.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "x")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"]
    assert len(told["warnings"]) == 1
    assert "CUDA error" in told["device"]["device_failed"]
