"""What is no safetensors model is refused with what to do: commands that work when they are copied to a shell."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import f32, random_base, read_model, sparse_agent, write_model

from hubmerge.cli.main import main
from hubmerge.errors import FormatError, Problem
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model

AGENT = sparse_agent(random_base(0), 0.1, 1)


def opened(name: str, hub: Hub | None = None) -> Model:
    """A folder, or a model of `hub`."""
    return open_model(ModelName(id=name, local=hub is None), hub or Hub("http://127.0.0.1:9"), allow_local=True)


def refusal(name: str, hub: Hub | None = None) -> Problem:
    with pytest.raises(FormatError) as caught:
        opened(name, hub)
    [problem] = caught.value.problems
    return problem


def in_shell(command: str) -> None:
    """Run a command of a message as a user would paste it, with this Python for `python`, and its `hf`."""
    ours = {"python": sys.executable, "hf": str(Path(sys.executable).parent / "hf")}
    functions = "".join(f'{name}() {{ {shlex.quote(path)} "$@"; }}; ' for name, path in ours.items())
    done = subprocess.run(["bash", "-c", functions + command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def pickled(folder: Path) -> Path:
    """A model as transformers wrote it before safetensors, in a folder whose name a shell would cut in two."""
    import torch

    write_model(folder, AGENT)
    (folder / "model.safetensors").unlink()
    torch.save({n: torch.from_numpy(f32(t).copy()).bfloat16() for n, t in AGENT.items()}, folder / "pytorch_model.bin")
    return folder


def test_the_command_in_the_refusal_of_pickled_weights_converts_them(tmp_path):
    folder = pickled(tmp_path / "it's an agent $HOME")
    problem = refusal(str(folder))
    assert "pytorch_model.bin (pickled, which can run code)" in problem.got
    in_shell(problem.next_step.removeprefix("If you trust it, convert it: "))
    assert set(opened(str(folder)).tensors) == set(AGENT)
    made = read_model(folder)
    assert all(np.array_equal(f32(made[n]), f32(AGENT[n])) for n in AGENT)


def test_the_command_for_a_pickled_adapter_converts_it(tmp_path):
    import torch

    folder = tmp_path / "adapter"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": torch.ones(2, 16), f"{name}.lora_B.weight": torch.ones(16, 2)}
    torch.save(factors, folder / "adapter_model.bin")
    in_shell(refusal(str(folder)).next_step.removeprefix("If you trust it, convert it: "))
    assert opened(str(folder)).kind == "LoRA adapter"


@pytest.mark.parametrize("stated", ['x"; touch owned; "', "A.b", "", 3, None, ["A"]])
def test_no_name_of_a_strangers_config_reaches_the_shell(tmp_path, stated):
    write_model(tmp_path / "m", AGENT, config={"architectures": [stated]})
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    told = refusal(str(tmp_path / "m")).next_step
    assert "t.AutoModelForCausalLM.from_pretrained" in told
    assert "owned" not in told


def test_checkpoints_in_a_repo_are_fetched_by_the_command_that_is_told(ada, tmp_path):
    ada.create_repo("ada/trained")
    for step in (5, 50):
        folder = write_model(tmp_path / str(step), AGENT)
        ada.upload_folder(repo_id="ada/trained", folder_path=folder, path_in_repo=f"checkpoint-{step}")
    told = refusal("ada/trained", Hub(str(ada.endpoint), str(ada.token))).next_step
    command, place = re.findall(r"\(`(.*)`\), and name (\S+)\.$", told)[0]
    assert place == "./ada-trained/checkpoint-50"
    in_shell(f"cd {shlex.quote(str(tmp_path))}; {command}")
    assert opened(str(tmp_path / place)).tensors


def test_gguf_names_the_model_that_its_card_says_it_was_made_from(tmp_path):
    for stated, named in (
        ("org/agent", "org/agent"),
        ("[org/agent, org/b]", "org/agent"),
        ("a b", "the model that it"),
    ):
        card = {"README.md": f"---\nbase_model: {stated}\n---".encode()}
        folder = write_model(tmp_path / named[:5], AGENT, files=card)
        (folder / "Q4").mkdir(exist_ok=True)  # as unsloth sorts them
        (folder / "model.safetensors").replace(folder / "Q4" / "agent-Q4_K_M.gguf")
        problem = refusal(str(folder))
        assert "GGUF, quantized for inference" in problem.got
        assert problem.next_step.startswith(f"Name {named}")


def test_negative_weights_are_refused_where_a_mean_would_turn_and_told_of_elsewhere(recipe_file, capsys):
    named = json.loads(recipe_file.read_text())

    def inspected(method: str, first: float, second: float, **parameters: object) -> tuple[int, str]:
        pairs = zip(named["agents"], (first, second), strict=True)
        agents = [{"model": model, "weight": weight} for model, weight in pairs]
        recipe_file.write_text(json.dumps({**named, "agents": agents, "method": method, "parameters": parameters}))
        code = main(["inspect", str(recipe_file)])
        told = capsys.readouterr()
        return code, told.out + told.err

    for first, words in ((-1.5, "add up to -0.5"), (-1.0, "add up to 0")):
        code, said = inspected("linear", first, 1.0)
        assert code == 1
        assert words in said
    warned = "a negative weight takes away what was learned: agent 2 (-0.5)"
    for method in ("linear", "ram", "ram_plus"):
        code, said = inspected(method, 1.0, -0.5)
        assert (code, warned in said) == (0, True)
    code, said = inspected("task_arithmetic", 1.0, -0.5)
    assert (code, "takes away" in said) == (0, False), "that is what task arithmetic is for"
    for method in ("ties", "dare_ties"):
        code, said = inspected(method, 1.0, -0.5, disjoint="mean")
        assert (code, "`disjoint: sum` takes it" in said) == (1, True)
        code, said = inspected(method, 1.0, -0.5, disjoint="sum")
        assert (code, warned in said) == (0, True)


def test_pickled_weights_on_the_hub_are_fetched_and_converted(ada, tmp_path, monkeypatch):
    ada.create_repo("ada/of-old")
    ada.upload_folder(repo_id="ada/of-old", folder_path=pickled(tmp_path / "old"))
    told = refusal("ada/of-old", Hub(str(ada.endpoint), str(ada.token))).next_step
    monkeypatch.chdir(tmp_path)
    in_shell(re.fullmatch(r"If you trust it, convert it, and name \./ada-of-old: (.*)", told)[1])
    assert set(opened("./ada-of-old").tensors) == set(AGENT)
