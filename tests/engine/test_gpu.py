"""On a real GPU: the bits of the CPU, memory within its limit, nothing allocated per chunk, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from device_helpers import compare
from stream_helpers import Watching, bytes_of, plan_of, run, tallies, write_family
from test_fast import chunk_of, rule_of

from hubmerge.engine import definition
from hubmerge.engine.counting import BLOCK
from hubmerge.engine.definition import ChunkInputs
from hubmerge.engine.device import Engine
from hubmerge.engine.memory import LANES, device_shares
from hubmerge.engine.options import DEVICE_BYTES, StreamOptions
from hubmerge.methods import registry
from hubmerge.methods.base import Scope, one_by_one
from hubmerge.numerics.counter_rng import make_key

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine(torch.device("cuda", 0), definition, memory_bytes=DEVICE_BYTES)
    yield opened
    opened.close()


@pytest.mark.parametrize("method", list(registry()))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("stored", "output"), [("BF16", "BF16"), ("F32", "F32"), ("F16", "F16"), ("mixed", "BF16")])
def test_every_method_gives_the_bits_of_the_definition(
    engine: Engine, method: str, rounding: str, stored: str, output: str
) -> None:
    for n in (1, BLOCK, 20 * BLOCK + 65):
        chunk = chunk_of(method, 3, n, stored, start=7 * BLOCK)
        rule = rule_of(method, chunk, rounding)
        compare(engine, chunk, rule, output)
        engine.prove(rule, 3, output)


@pytest.mark.parametrize("agents", [3, 8])
def test_the_largest_chunks_fit_the_limit_and_take_nothing_new_once_warm(engine: Engine, agents: int) -> None:
    _, n = device_shares(agents, StreamOptions())
    chunk = chunk_of("dare_ties", agents, n)
    rule = rule_of("dare_ties", chunk, "stochastic")
    key = make_key(0, "x")
    for _ in range(2 * LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    warm = torch.cuda.memory_stats()["num_device_alloc"]
    for _ in range(2 * LANES):
        engine.merge_chunk(chunk, rule, "BF16", key, with_inputs=True)
    assert engine.working
    assert torch.cuda.memory_stats()["num_device_alloc"] == warm
    assert torch.cuda.max_memory_reserved() <= DEVICE_BYTES


@pytest.mark.parametrize("memory", [DEVICE_BYTES, 1_000_000])  # the second is too little for a block
def test_a_merge_on_the_gpu_has_the_bytes_of_the_cpu(tmp_path: Path, memory: int) -> None:
    write_family(tmp_path, sizes={"model.embed_tokens.weight": (3000, 1024), "lm_head.weight": (1000, 999)})
    plan, watching = plan_of(tmp_path, "ram_plus"), Watching()
    wanted = run(plan, tmp_path / "cpu", chunk=1 << 20)
    options = {"device": "cuda", "device_memory_bytes": memory}
    found = run(plan, tmp_path / "gpu", chunk=1 << 20, threads=4, observer=watching, **options)
    assert bytes_of(tmp_path / "gpu", plan) == bytes_of(tmp_path / "cpu", plan)
    assert tallies(found) == tallies(wanted)
    assert bool(watching.messages) == (memory < DEVICE_BYTES)
    assert found.device.get("device") == (None if memory < DEVICE_BYTES else torch.cuda.get_device_name())


def test_the_products_of_a_whole_tensor_are_float32s_whatever_torch_was_told(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    engine.prove_products()
    assert torch.backends.cuda.matmul.allow_tf32
    method, rng = registry()["wudi"], np.random.default_rng(0)
    scope = Scope(method.parse_parameters({"steps": 100}), [1.0, 0.5, 1.0])
    for shape in ((2000, 300), (300, 2000)):
        values = [rng.normal(size=shape).astype(np.float32) * np.float32(0.01) for _ in range(4)]
        chunk = ChunkInputs(tuple(v.reshape(-1) for v in values), ("F32",) * 4, 0)
        rule = replace(
            rule_of("linear", chunk, "nearest"),
            whole=lambda deltas, each, shape=shape: method.merge_whole([d.reshape(shape) for d in deltas], scope, each),
        )
        wanted = definition.whole_update(chunk, rule, one_by_one)
        found = engine.whole_update(chunk, rule, lambda: pytest.fail("the CPU was asked"))
        start = sum(w * (v - values[0]) for w, v in zip(scope.weights, values[1:], strict=True))
        moved = np.abs(wanted - start)
        assert moved.max() > 5e-4
        assert np.abs(found - wanted).mean() < 1e-3 * moved.mean()
        assert np.abs(found - wanted).max() < 0.1 * moved.max()


def test_auto_leaves_chunks_to_the_cpu_and_takes_products(tmp_path: Path) -> None:
    write_family(tmp_path, sizes={"model.layers.0.mlp.up_proj.weight": (3000, 1024)})
    for method, name in (("ram", None), ("wudi", torch.cuda.get_device_name())):
        watching = Watching()
        plan = plan_of(tmp_path, method)
        found = run(plan, tmp_path / method, device="auto", backend="auto", observer=watching)
        assert watching.messages == []
        assert found.device.get("device") == name


def test_a_gpu_that_breaks_for_good_costs_one_warning_and_neither_a_byte_nor_the_process(tmp_path: Path) -> None:
    script = Path(__file__).with_name("breaking_gpu.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "x")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"]
    assert len(told["warnings"]) == 1
    assert "CUDA error" in told["device"]["device_failed"]
