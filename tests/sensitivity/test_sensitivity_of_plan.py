"""Sensitivities inside a merge: computed once, kept for the next one, refused where no file holds the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sensitivity_helpers import ZOO, write_rows, zoo_recipe

from hubmerge.cli.main import main
from hubmerge.engine.progress import Unobserved
from hubmerge.errors import CancelledError, SensitivityError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sensitivity import of_plan


def merge(tmp_path: Path, out: str, math_agent: Path, data: Path = ZOO / "eval" / "dev_math.jsonl") -> bytes:
    path = tmp_path / f"{out}.yaml"
    path.write_text(json.dumps(zoo_recipe(data, agents=[str(math_agent), str(ZOO / "tool")], method="sar")))
    assert main(["merge", str(path), "--out", str(tmp_path / out), "--license", "apache-2.0"]) == 0
    return (tmp_path / out / "model.safetensors").read_bytes()


def test_weights_that_no_file_holds_are_refused_when_the_merge_is_prepared(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    base = load_file(ZOO / "base" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    rows, columns = base[f"{name}.weight"].shape
    factors = {"lora_A": np.ones((2, columns), np.float32), "lora_B": np.ones((rows, 2), np.float32)}
    save_file(
        {f"base_model.model.{name}.{part}.weight": value for part, value in factors.items()},
        adapter / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    for named in ({}, {"sensitivity": "./named.safetensors"}):
        agents = [{"model": str(adapter), **named}, str(ZOO / "tool")]
        recipe = recipe_from_dict(zoo_recipe(ZOO / "eval" / "dev_math.jsonl", agents=agents))
        with pytest.raises(SensitivityError, match="no file holds these weights") as caught:
            prepare(recipe, Hub("http://127.0.0.1:9"), Request(allow_local=True))
        [problem] = caught.value.problems
        assert problem.where.startswith(str(adapter))
        assert "tool" not in problem.where


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
