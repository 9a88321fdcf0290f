"""The plan's prediction of memory, against whole processes; that of time only grows with what it should grow with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import memory_helpers
import pytest
from memory_helpers import Family, merge, merge_once, predicted

from hubmerge.engine import prediction
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.prediction import Machine, predict
from hubmerge.machine import device_there
from hubmerge.plan.plan import Plan

NAME = "synthetic:qwen2.5-0.5b"
planned = partial(memory_helpers.planned, agents=3, base=NAME)


@pytest.mark.parametrize(
    ("method", "more"), [("ram", {"dtype": "float16"}), ("wudi", {"parameters": {"steps": 1}})], ids=str
)
def test_the_peak_memory_of_a_process_is_within_a_quarter_of_what_its_plan_said(
    method: str, more: dict[str, object], long_family: Family, short_family: Family, tmp_path: Path
) -> None:
    """Where another dtype is written, and where tensors are merged whole."""
    merge_once(short_family.recipe(method, 3), tmp_path)
    recipe = long_family.recipe(method, 3, **more)
    said, peak = predicted(recipe, 2), merge(recipe, tmp_path, "--threads", "2")
    assert 0.75 <= said / peak <= 1.25, (said, peak)


def test_building_the_fast_pass_is_part_of_what_is_predicted() -> None:
    plan, new = planned("ram"), Machine(2, to_build=True)
    first, second = predict(plan, new), predict(plan, Machine(2))
    assert first.memory_bytes == second.memory_bytes  # another process builds it
    assert first.seconds is not None
    assert second.seconds is not None
    assert first.seconds > second.seconds + 2
    eager = StreamOptions(threads=2, backend="eager")
    assert predict(plan, new, eager) == predict(plan, Machine(2), eager)


def test_memory_does_not_grow_with_the_model_but_with_agents_threads_and_whole_tensors() -> None:
    machine = Machine(2)

    def memory(plan: Plan, **options: int) -> int:
        return predict(plan, machine, StreamOptions(**{"threads": 2, **options})).memory_bytes

    ram = memory(planned("ram"))
    assert memory(planned("ram", base="synthetic:llama-405b")) < ram + 20_000_000
    assert memory(planned("ram", agents=8)) > ram
    assert memory(planned("ram"), threads=8) > ram
    assert memory(planned("ram"), threads=8, chunk_elements=4096) < memory(planned("ram"), threads=8)
    assert memory(planned("wudi", base="synthetic:llama-70b")) > 20_000_000_000
    assert memory(planned("ram", agents=8), threads=2) <= 512_000_000


def test_a_merge_on_a_device_also_takes_torch_and_what_the_driver_keeps_on_the_host() -> None:
    plan, machine = planned("ram"), Machine(16, device=True)
    alone = prediction._TORCH + prediction._DEVICE
    without = predict(plan, replace(machine, device=False)).memory_bytes
    assert predict(plan, machine).memory_bytes == without + alone
    assert predict(plan, machine, StreamOptions(threads=16, device="cpu")).memory_bytes == without
    assert predict(plan, replace(machine, device=False), StreamOptions(device="cuda")).memory_bytes >= alone


def test_what_torch_takes_is_what_importing_it_takes_here() -> None:
    script = (
        "from pathlib import Path; import numpy\n"
        "def held(): return 4096 * int(Path('/proc/self/statm').read_text().split()[1])\n"
        "before = held(); import torch; print(held() - before)"
    )
    added = int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)
    assert 0.75 <= prediction._TORCH / added <= 1.25


def test_time_is_the_elements_that_are_read_over_cores_and_speed() -> None:
    def seconds(method: str, machine: Machine, shape: str = "synthetic:llama-70b") -> float:
        found = predict(planned(method, base=shape), machine).seconds
        assert found is not None
        return found

    one = seconds("ram", Machine(1))
    assert seconds("ram", Machine(2)) == pytest.approx(one / 2, rel=0.1)
    assert seconds("ram", Machine(1, speed=2.0)) == pytest.approx(one / 2)
    assert seconds("ram_plus", Machine(1)) == pytest.approx(1.5 * one, rel=0.1), "a probe reads everything once more"
    assert seconds("ram", Machine(1), "synthetic:llama-405b") > 5 * one


def test_nothing_is_said_of_the_time_of_a_method_that_works_on_whole_tensors() -> None:
    told = predict(planned("wudi"), Machine(2))
    assert told.seconds is None
    assert prediction.as_facts(told) == {"predicted_memory_bytes": told.memory_bytes}


def test_inspect_says_what_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(planned("ram").recipe.to_yaml())
    done = subprocess.run(
        [sys.executable, "-m", "hubmerge", "inspect", str(path), "--json"], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    most = 2_000_000_000 if device_there() else 500_000_000
    assert 100_000_000 < told["predicted_memory_bytes"] < most
    assert told["predicted_seconds"] > 0
