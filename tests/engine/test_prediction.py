"""The plan's prediction of memory, against whole processes; that of time only grows with what it should grow with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.metering import measure
from benchmarks.synthetic import Shape, write_family
from hubmerge.engine import prediction
from hubmerge.engine.prediction import Machine, predict
from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.machine import device_there
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import Recipe

HUB = Hub("http://127.0.0.1:9")  # never asked
NAME = "synthetic:qwen2.5-0.5b"
SMALL = Shape(layers=1, hidden=64, intermediate=128, key_value=16, vocabulary=512, tied=True)
WIDE = Shape(layers=1, hidden=1024, intermediate=3072, key_value=256, vocabulary=1024, tied=True)


def planned(method: str, agents: int = 3, shape: str = NAME, **more: object) -> Plan:
    content = {"base": shape, "agents": [f"{shape}?agent={k + 1}&density=0.1" for k in range(agents)]}
    return prepare(Recipe.model_validate({**content, "method": method, **more}), HUB, Request(allow_local=True)).plan


def family(folder: Path, shape: Shape) -> dict[str, Any]:
    write_family(shape, folder, (0.1, 0.3, 0.5))
    return {"base": str(folder / "base"), "agents": [str(folder / f"agent{k}") for k in range(3)]}


def merge_once(method: str, folder: Path) -> None:
    """So that the fast pass is built."""
    path = folder / "once.yaml"
    path.write_text(Recipe.model_validate({**family(folder / "once", SMALL), "method": method}).to_yaml())
    command = [sys.executable, "-m", "hubmerge", "merge", str(path), "--out", str(folder / "merged_once")]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("case", "method", "more"),
    [
        ("small", "ram", {}),
        ("large", "ties", {}),
        ("large", "ties", {"parameters": {"trim_scope": "tensor"}}),
        ("large", "ram", {"dtype": "float16"}),
        ("wide", "wudi", {"parameters": {"steps": 1}}),
    ],
)
def test_the_peak_memory_of_a_process_is_within_a_quarter_of_what_its_plan_said(
    case: str, method: str, more: dict[str, object], tmp_path: Path
) -> None:
    if case == "large":
        models: dict[str, Any] = {
            "base": f"{NAME}?layers=1",
            "agents": [f"{NAME}?layers=1&agent={k}&density=0.1" for k in (1, 2, 3)],
        }
    else:
        models = family(tmp_path, SMALL if case == "small" else WIDE)
    merge_once(method, tmp_path)
    recipe = Recipe.model_validate({**models, "method": method, **more})
    threads = 2 if case != "large" else 4
    predicted = predict(
        prepare(recipe, HUB, Request(allow_local=True)).plan, Machine(2), StreamOptions(threads=threads)
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    out = tmp_path / "out"
    command = [sys.executable, "-m", "hubmerge", "merge", str(path), "--out", str(out), "--device", "cpu"]
    command += ["--threads", str(threads)]
    measured = measure(command).peak_rss_bytes
    assert 0.75 <= predicted.memory_bytes / measured <= 1.25, (predicted.memory_bytes, measured)


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
    assert memory(planned("ram", shape="synthetic:llama-405b")) < ram + 20_000_000
    assert memory(planned("ram", agents=8)) > ram
    assert memory(planned("ram"), threads=8) > ram
    assert memory(planned("ram"), threads=8, chunk_elements=4096) < memory(planned("ram"), threads=8)
    assert memory(planned("wudi", shape="synthetic:llama-70b")) > 20_000_000_000
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
        found = predict(planned(method, shape=shape), machine).seconds
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
