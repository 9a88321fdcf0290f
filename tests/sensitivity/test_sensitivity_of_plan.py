"""Sensitivities inside a merge: kept for the next one, and computed for agents that no file holds in full."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hubmerge.cli.main import main
from hubmerge.sensitivity import of_plan

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
TARGETS = ("q_proj", "down_proj")


def calibration(name: str) -> dict[str, Any]:
    data = str(ZOO / "eval" / f"dev_{name}.jsonl")
    return {"data": data, "prompt": "prompt", "answer": "answer", "max_pairs": 3}


def merge(tmp_path: Path, out: str, math_agent: Path, *more: str) -> bytes:
    recipe = {
        "base": str(ZOO / "base"),
        "agents": [
            {"model": str(math_agent), "calibration": calibration("math")},
            {"model": str(ZOO / "tool"), "calibration": calibration("tool")},
        ],
        "method": "sar",
        "dtype": "bfloat16",
    }
    path = tmp_path / f"{out}.yaml"
    path.write_text(json.dumps(recipe))
    assert main(["merge", str(path), "--out", str(tmp_path / out), "--license", "apache-2.0", *more]) == 0
    return (tmp_path / out / "model.safetensors").read_bytes()


def write_adapter(folder: Path) -> None:
    """A LoRA adapter of rank 2 on two kinds of layers of the zoo's base."""
    from ml_dtypes import bfloat16  # noqa: F401  registers the dtype

    rng = np.random.default_rng(1)
    factors = {}
    for name, value in read_base().items():
        if any(f"{t}.weight" in name for t in TARGETS):
            rows, columns = value.shape
            key = f"base_model.model.{name.removesuffix('.weight')}"
            factors[f"{key}.lora_A.weight"] = rng.normal(0, 0.05, (2, columns)).astype(np.float32)
            factors[f"{key}.lora_B.weight"] = rng.normal(0, 0.05, (rows, 2)).astype(np.float32)
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": list(TARGETS), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def read_base() -> dict[str, np.ndarray]:
    return {n: v.astype(np.float32) for n, v in load_file(ZOO / "base" / "model.safetensors").items()}


def write_in_full(folder: Path, adapter: Path) -> None:
    """What the adapter makes of the base, as a checkpoint of float32, by numpy."""
    shutil.copytree(ZOO / "base", folder)
    weights, factors = read_base(), load_file(adapter / "adapter_model.safetensors")
    for key in [k for k in factors if k.endswith("lora_A.weight")]:
        name = key.removeprefix("base_model.model.").replace(".lora_A", "")
        product = np.zeros_like(weights[name])
        for rank in range(2):  # in the order of the rank, as an adapter is read
            product = product + np.outer(factors[key.replace("lora_A", "lora_B")][:, rank], factors[key][rank])
        weights[name] = weights[name] + np.float32(2.0) * product
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_an_adapter_is_weighed_as_the_checkpoint_that_it_stands_for(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter")
    write_in_full(tmp_path / "full", tmp_path / "adapter")
    by_adapter = merge(tmp_path, "a", tmp_path / "adapter")
    in_full = merge(tmp_path, "b", tmp_path / "full")
    got, expected = (np.frombuffer(b[-2 * 170_000 :], np.uint16) for b in (by_adapter, in_full))
    assert np.mean(got != expected) < 1e-3  # the same up to the order in which W + s·B·A was added
    assert by_adapter != (ZOO / "base" / "model.safetensors").read_bytes()
    assert not list((tmp_path / "a").rglob("*.dense"))


def test_a_named_file_is_refused_for_an_adapter_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_adapter(tmp_path / "adapter")
    recipe = {
        "base": str(ZOO / "base"),
        "agents": [
            {"model": str(tmp_path / "adapter"), "sensitivity": str(tmp_path / "s.safetensors")},
            {"model": str(ZOO / "tool"), "calibration": calibration("tool")},
        ],
        "method": "sar",
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    arguments = ["merge", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "o"), "--license", "apache-2.0"]
    assert main(arguments) == 1
    assert "E_SENSITIVITY: a sensitivity file cannot be checked" in capsys.readouterr().err


def test_the_next_merge_takes_what_was_kept_and_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    first = merge(tmp_path, "a", ZOO / "math")
    kept = sorted((tmp_path / "data" / "sensitivity").iterdir())
    assert [p.suffix for p in kept] == [".safetensors"] * 2

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("hubmerge.sensitivity.compute.compute_sensitivity", never)
    assert merge(tmp_path, "b", ZOO / "math") == first


def test_kept_files_are_pruned_to_the_budget_the_longest_unused_first_and_takers_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_plan, "DEFAULT_BUDGET_BYTES", 25)
    kept, mine = tmp_path / "kept", tmp_path / "mine"
    kept.mkdir()
    mine.mkdir()
    (kept / ".9.safetensors.0123").write_bytes(b"x" * 10)  # a process that was killed has left it half copied
    os.utime(kept / ".9.safetensors.0123", (0, 0))
    for number in range(3):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(bytes([number]) * 10)
        os.utime(file, (number + 1, number + 1))  # a clock may not tell them apart
        of_plan._keep(kept, file)
        if number == 1:
            assert of_plan._taken(kept, mine / "0.safetensors")  # now the most recently used
    assert sorted(path.name for path in kept.iterdir()) == ["0.safetensors", "2.safetensors"]
    assert not of_plan._taken(kept, mine / "1.safetensors")
    (kept / "0.safetensors").unlink()
    assert (mine / "0.safetensors").read_bytes() == bytes(10)


def test_nothing_is_kept_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(b"x")
    of_plan._keep(None, tmp_path / "f.safetensors")
    assert not of_plan._taken(None, tmp_path / "f.safetensors")
