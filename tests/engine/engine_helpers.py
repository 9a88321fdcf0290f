"""Chunks and rules for the device's pass, and what must be equal."""

from __future__ import annotations

from typing import Any

from hubmerge.counter_rng import make_key
from hubmerge.engine import definition
from hubmerge.engine.device import Engine

host = definition  # what takes over where a device fails


def bits(output: definition.ChunkOutput) -> dict[str, Any]:
    assert output.inputs is not None
    return {
        "raw": output.raw.tobytes(),
        "dtype": output.raw.dtype,
        "result": output.result.tally.to_json(),
        "result sums": output.result.sums.tobytes(),
        "inputs": output.inputs.tally.to_json(),
        "input sums": output.inputs.sums.tobytes(),
    }


def compare(engine: Engine, chunk: definition.ChunkInputs, rule: definition.Rule, output: str) -> None:
    """The engine's bits are the definition's, merging and probing."""
    key = make_key(3, "rounding", "x")
    wanted = definition.merge_chunk(chunk, rule, output, key, with_inputs=True)
    assert bits(engine.merge_chunk(chunk, rule, output, key, with_inputs=True)) == bits(wanted)
    assert engine.working
    assert engine.merge_chunk(chunk, rule, output, key, with_inputs=False).inputs is None
    probed = engine.probe_chunk(chunk, rule.epsilon)
    assert wanted.inputs is not None
    assert probed.tally.to_json() == wanted.inputs.tally.to_json()
    assert probed.sums.tobytes() == wanted.inputs.sums.tobytes()
