"""A CUDA device where there is one, and torch's CPU in its place."""

import pytest
import torch

from hubmerge.engine import definition, device
from hubmerge.engine.device import Engine
from hubmerge.machine import resources
from hubmerge.numerics.counter_rng import make_key

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
)
DEVICES = [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=ON_GPU)]


def engine_here() -> Engine:
    return Engine(CPU, definition, memory_bytes=0)


def pretend_a_device(patch: pytest.MonkeyPatch) -> None:
    """What asks for a device gets torch's CPU."""
    patch.setattr(resources, "device_there", lambda: True)
    patch.setattr(device, "_place", lambda local_rank: CPU)


def compare(engine: Engine, chunk: definition.ChunkInputs, rule: definition.Rule, output: str) -> None:
    """The engine's bits are the definition's, merging and probing."""
    key = make_key(3, "rounding", "x")
    wanted = definition.merge_chunk(chunk, rule, output, key, with_inputs=True)
    found = engine.merge_chunk(chunk, rule, output, key, with_inputs=True)
    assert (found.bits(), found.raw.dtype) == (wanted.bits(), wanted.raw.dtype)
    assert engine.working
    assert engine.merge_chunk(chunk, rule, output, key, with_inputs=False).inputs is None
    probed, counted = engine.probe_chunk(chunk, rule.epsilon), wanted.inputs
    assert (probed.tally.to_json(), probed.sums.tobytes()) == (counted.tally.to_json(), counted.sums.tobytes())
