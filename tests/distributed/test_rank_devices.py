"""What the processes of one merge warn of, and whose device failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_threads import merged_by
from stream_helpers import Watching, bytes_of, family_plan, run

from hubmerge.engine import device
from hubmerge.engine.distributed import of_all_devices


def test_the_facts_of_all_devices_become_one_report() -> None:
    facts = [
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 5},
        {"device": "cpu", "torch": "2.13.0", "device_failed": "CUDA out of memory"},
        {"device": "H200", "torch": "2.13.0", "peak_device_bytes": 7},
    ]
    assert of_all_devices(facts) == {
        "device": "H200, cpu",
        "torch": "2.13.0",
        "peak_device_bytes": 7,
        "device_failed": "rank 1: CUDA out of memory",
    }
    assert of_all_devices([facts[1]]) == facts[1]
    assert of_all_devices([{}, {}]) == {}


def test_a_device_that_fails_is_told_by_its_rank_and_stands_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = family_plan(tmp_path, "ram_plus", max_shard_bytes=12_000), tmp_path / "out"
    run(plan, tmp_path / "one")

    def place(local_rank: int) -> torch.device:
        if local_rank:
            raise RuntimeError("CUDA error: no context")
        return torch.device("cpu")

    monkeypatch.setattr(device, "_place", place)

    watching = Watching()
    found = merged_by(2, plan, out, observer=watching, device="cuda")
    assert bytes_of(out, plan) == bytes_of(tmp_path / "one", plan)
    [warning] = watching.messages
    assert warning.startswith("rank 1: the CUDA device cannot be used")
    for each in found:
        assert each.device["device_failed"] == "rank 1: CUDA error: no context"
        assert each.device["device"] == "cpu"
