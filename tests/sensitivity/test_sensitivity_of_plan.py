"""Sensitivities inside a merge: kept for the next one, and computed for agents that no file holds in full."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sensitivity_helpers import ZOO, write_adapter, write_rows, zoo_recipe

from hubmerge.cli.main import main
from hubmerge.engine.progress import Unobserved
from hubmerge.errors import CancelledError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sensitivity import of_plan

TARGETS = ("q_proj", "down_proj")


def merge(tmp_path: Path, out: str, math_agent: Path, data: Path = ZOO / "eval" / "dev_math.jsonl") -> bytes:
    path = tmp_path / f"{out}.yaml"
    path.write_text(json.dumps(zoo_recipe(data, agents=[str(math_agent), str(ZOO / "tool")], method="sar")))
    assert main(["merge", str(path), "--out", str(tmp_path / out), "--license", "apache-2.0"]) == 0
    return (tmp_path / out / "model.safetensors").read_bytes()


def read_base() -> dict[str, np.ndarray]:
    from ml_dtypes import bfloat16  # noqa: F401  registers the dtype

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
    write_in_full(tmp_path / "full", write_adapter(tmp_path / "adapter", read_base(), TARGETS))
    by_adapter = merge(tmp_path, "a", tmp_path / "adapter")
    in_full = merge(tmp_path, "b", tmp_path / "full")
    got, expected = (np.frombuffer(b[-2 * 170_000 :], np.uint16) for b in (by_adapter, in_full))
    assert np.mean(got != expected) < 1e-3  # the same up to the order in which W + s·B·A was added
    assert by_adapter != (ZOO / "base" / "model.safetensors").read_bytes()
    assert not list((tmp_path / "a").rglob("*.dense"))


def test_a_named_file_is_refused_for_an_adapter_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = write_adapter(tmp_path / "adapter", read_base(), TARGETS)
    agents = [{"model": str(adapter), "sensitivity": str(tmp_path / "s.safetensors")}, str(ZOO / "tool")]
    (tmp_path / "r.yaml").write_text(json.dumps(zoo_recipe(ZOO / "eval" / "dev_tool.jsonl", agents=agents)))
    arguments = ["merge", str(tmp_path / "r.yaml"), "--out", str(tmp_path / "o"), "--license", "apache-2.0"]
    assert main(arguments) == 1
    assert "E_SENSITIVITY: a sensitivity file cannot be checked" in capsys.readouterr().err


def test_the_next_merge_of_the_same_tokens_takes_what_was_kept_and_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBMERGE_DATA", str(tmp_path / "data"))
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": "1 + 1 =", "answer": "2"}])
    first = merge(tmp_path, "a", ZOO / "math", rows)
    kept = sorted((tmp_path / "data" / "sensitivity").iterdir())
    assert [p.suffix for p in kept] == [".safetensors"] * 2

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("hubmerge.sensitivity.compute.compute_sensitivity", never)
    assert merge(tmp_path, "b", ZOO / "math", rows) == first
    write_rows(rows, [{"prompt": "1  +  1 =", "answer": "2"}])  # another text, which the tokenizer reads alike
    assert merge(tmp_path, "c", ZOO / "math", rows) == first


def test_what_was_begun_with_other_threads_begins_again(tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:9")
    recipe = recipe_from_dict(zoo_recipe(ZOO / "eval" / "dev_math.jsonl"))
    plan = prepare(recipe, hub, Request(allow_local=True)).plan

    class Cancelling(Unobserved):
        def progress(self, stage: str, done: int, total: int, unit: str) -> None:
            if stage == "sensitivity" and done == 1:
                raise CancelledError("the user cancelled")

    with pytest.raises(CancelledError):
        of_plan.sensitivities_of(plan, hub, tmp_path / "s", Cancelling(), True, None)
    assert list((tmp_path / "s").glob("*.work/checkpoint.safetensors"))
    torch.set_num_threads(2)
    try:
        assert len(of_plan.sensitivities_of(plan, hub, tmp_path / "s", Unobserved(), True, None)) == 2
    finally:
        torch.set_num_threads(1)


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
