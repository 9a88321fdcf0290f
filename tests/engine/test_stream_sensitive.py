"""Fisher and SAR on the stream: the reference's bytes, with sensitivities streamed like any other source."""

import json
from pathlib import Path
from typing import Any

import merge_reference
import ml_dtypes
import numpy as np
import pytest
from builders import tensor, write_model
from stream_helpers import NOWHERE, SIZES, bytes_of, plan_of, run, tensors_of, values_of, write_family

from hubmerge.cli.main import main
from hubmerge.errors import IncompatibleError
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
PAIRS = [str(ZOO / "eval" / f"dev_{name}.jsonl") for name in ("math", "tool")]
CALIBRATION = {"data": "./pairs.jsonl", "prompt": "q", "answer": "a"}


def write_sensitivities(folder: Path, agents: int = 3) -> tuple[list[dict[str, np.ndarray]], list[Model]]:
    """Of each agent; some are zero, and in a quarter of every tensor all agents' are equal."""
    rng = np.random.default_rng(3)
    common = {name: rng.random(shape) for name, shape in SIZES.items()}
    values, models = [], []
    for k in range(agents):
        own = {n: np.where(rng.random(shape) < 0.1, 0, rng.random(shape) ** 4) for n, shape in SIZES.items()}
        table = {n: tensor(np.where(common[n] < 0.25, common[n], own[n]), "F32") for n in SIZES}
        path = write_model(folder / f"fisher{k}", table, config={"architectures": ["LlamaForCausalLM"]})
        values.append(values_of(table))
        models.append(open_model(ModelName.parse(str(path)), NOWHERE, allow_local=True))
    return values, models


@pytest.mark.parametrize("method", ["fisher", "sar"])
@pytest.mark.parametrize(("dtype", "weights"), [("BF16", [1, 1]), ("F32", [0.5, 2.0, 1.5, 1.0])])
def test_merged_bytes_equal_the_reference_for_every_chunk_size(tmp_path, method, dtype, weights):
    base, agents = write_family(tmp_path, dtype=dtype, densities=(0.05, 0.4, 0.5, 0.3)[: len(weights)])
    values, measured = write_sensitivities(tmp_path, len(weights))
    expected = merge_reference.merge(
        method, values_of(base), [values_of(a) for a in agents], weights, seed=5, sensitivities=values
    )
    named = [{"model": str(tmp_path / f"agent{k}"), "weight": w} for k, w in enumerate(weights)]
    plan = plan_of(tmp_path, method, agents=named, calibration=CALIBRATION, seed=5)
    stored = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}[dtype]
    outcomes = []
    for number, (chunk, threads) in enumerate([(4096, 1), (8192, 2), (10**9, 3)]):
        out = tmp_path / f"out{number}"
        run(plan, out, measured=measured, chunk=chunk, threads=threads)
        outcomes.append(bytes_of(out, plan))
    for name, value in tensors_of(tmp_path / "out0", plan).items():
        assert value.tobytes() == expected[name].astype(stored).tobytes(), name
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_method_that_weighs_is_refused_without_data_for_every_agent(tmp_path):
    write_family(tmp_path)
    with pytest.raises(IncompatibleError) as caught:
        plan_of(tmp_path, "fisher")
    [problem] = caught.value.problems
    assert problem.what.startswith("Fisher merging needs questions with answers for every agent")
    assert all(f"agent{k}" in problem.where for k in range(3))
    assert "columns of questions" in problem.next_step  # as a form names them


def zoo_recipe(path: Path, *of_agents: dict[str, Any]) -> str:
    """With what is said of the agents `math` and `tool` beside their names."""
    agents = [{"model": str(ZOO / name), **own} for name, own in zip(("math", "tool"), of_agents, strict=True)]
    path.write_text(json.dumps({"base": str(ZOO / "base"), "agents": agents, "method": "sar"}))
    return str(path)


def calibrated(path: Path, prompt: str = "prompt") -> str:
    columns = {"prompt": prompt, "answer": "answer", "max_pairs": 4}
    return zoo_recipe(path, *({"calibration": {"data": data, **columns}} for data in PAIRS))


def test_a_sensitivity_file_is_used_like_a_computed_one_and_one_of_another_model_refused(tmp_path, capsys):
    files = [{"sensitivity": str(tmp_path / f"{name}.safetensors")} for name in ("math", "tool")]
    for name, data, own in zip(("math", "tool"), PAIRS, files, strict=True):
        arguments = ["--data", data, "--prompt", "prompt", "--answer", "answer", "--max-pairs", "4"]
        assert main(["sensitivity", str(ZOO / name), *arguments, "--out", own["sensitivity"]]) == 0
    capsys.readouterr()
    recipes = [calibrated(tmp_path / "computed.yaml"), zoo_recipe(tmp_path / "named.yaml", *files)]
    for name, recipe in zip(("computed", "named"), recipes, strict=True):
        assert main(["merge", recipe, "--out", str(tmp_path / name), "--log-json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        assert name == "named" or "sensitivity" in [line.get("stage") for line in told]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("computed", "named")]
    assert weights[0] == weights[1]
    swapped = zoo_recipe(tmp_path / "swapped.yaml", *files[::-1])
    assert main(["merge", swapped, "--out", str(tmp_path / "swapped")]) == 1
    assert "another model" in capsys.readouterr().err
    assert not list((tmp_path / "swapped").glob("*.safetensors"))


def test_calibration_data_without_the_named_columns_is_refused(tmp_path, capsys):
    recipe = calibrated(tmp_path / "recipe.yaml", prompt="question")
    assert main(["merge", recipe, "--out", str(tmp_path / "out")]) == 1
    assert "question" in capsys.readouterr().err
