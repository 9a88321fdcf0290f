"""Sweeps: many variants in one pass take little more than one, and `inspect` says how much."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.metering import measure
from hubmerge.recipe.recipe import Recipe

MANY_SHORT, FEW_LONG = "synthetic:?layers=60&hidden=64&vocabulary=512", "synthetic:qwen2.5-0.5b?layers=1"
MIXED: list[dict[str, Any]] = [
    {"method": ["linear", "ram", "ties", "dare_ties"]},
    {"method": "ram_plus", "parameters": {"r": [0.0, 0.1, 0.2, 0.3]}},
]
GRID = [{"method": "ram_plus", "parameters": {"r": [i / 64 for i in range(64)]}}]


def models(shape: str) -> dict[str, Any]:
    return {"base": shape, "agents": [f"{shape}&agent={k}&density=0.{k}" for k in (1, 2, 3)]}


def inspected(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "hubmerge", "inspect", str(path), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


@pytest.mark.parametrize(("shape", "entries"), [(MANY_SHORT, GRID), (FEW_LONG, MIXED)], ids=["short", "long"])
def test_the_peak_memory_of_a_sweep_is_within_a_quarter_of_what_inspect_said(
    shape: str, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({**models(shape), "sweep": entries}))
    command = [sys.executable, "-m", "hubmerge", "sweep", str(path), "--device", "cpu", "--out"]
    measure([*command, str(tmp_path / "once")])  # so that the fast pass is built
    said = inspected(path)["predicted_memory_bytes"]
    peak = measure([*command, str(tmp_path / "out")]).peak_rss_bytes
    assert 0.75 <= said / peak <= 1.25, (said, peak)


def test_inspecting_a_sweep_adds_up_what_its_variants_take(tmp_path: Path) -> None:
    sweep, recipe = tmp_path / "sweep.yaml", tmp_path / "recipe.yaml"
    entries = [*MIXED, {"method": "ram_plus", "parameters": {"preset": "reference"}}]
    sweep.write_text(json.dumps({**models(MANY_SHORT), "sweep": entries}))
    recipe.write_text(Recipe.model_validate({**models(MANY_SHORT), "method": "ram"}).to_yaml())
    found, one = inspected(sweep), inspected(recipe)
    assert found["merged_together"] == [8, 1], "float32 is another layout"
    assert len(set(found["identities"])) == len(found["variants"]) == 9
    assert found["identities"][1] == one["identity"]
    assert found["variants"][1] == "ram"
    assert found["output_bytes"] > 9 * one["output_bytes"]
    assert found["folder_disk_least_bytes"] == found["output_bytes"]
    assert found["input_bytes"] == one["input_bytes"]
    assert found["predicted_memory_bytes"] > one["predicted_memory_bytes"]
    assert found["predicted_seconds"] > one["predicted_seconds"]
