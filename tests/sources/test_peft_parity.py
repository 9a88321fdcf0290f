"""An adapter that PEFT saved is read as what PEFT's own merge makes of it, from a folder and from the Hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from plan_helpers import NOWHERE, plan_of

from hubmerge.hub.client import Hub
from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader

pytestmark = pytest.mark.usefixtures("one_thread")


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=40,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=32, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    return GPT2LMHeadModel(config)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (llama, {"target_modules": ["q_proj", "down_proj"]}),
    "rslora and patterns": (
        llama,
        {
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "use_rslora": True,
            "rank_pattern": {"k_proj": 2, "^model.layers.1.self_attn.q_proj": 3},
            "alpha_pattern": {"layers.0.mlp.up_proj": 5},
        },
    ),
    "embeddings": (llama, {"target_modules": ["embed_tokens", "lm_head", "v_proj"]}),
    "full modules and biases": (
        llama,
        {"target_modules": ["o_proj"], "modules_to_save": ["lm_head", "embed_tokens"], "bias": "all"},
    ),
    "biases of adapted layers": (llama, {"target_modules": ["o_proj"], "bias": "lora_only"}),
    "conv1d": (gpt2, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
}


def save_family(folder: Path, build: Any, settings: Mapping[str, Any]) -> list[dict[str, NDArray[np.float32]]]:
    """base, agent0 and agent1 (adapters) below `folder`; also what PEFT merges each adapter to."""
    from peft import LoraConfig, PeftModel, get_peft_model

    build().save_pretrained(folder / "base")
    merged = []
    for k in range(2):
        config = LoraConfig(r=4, lora_alpha=6, task_type="CAUSAL_LM", **settings)
        model = get_peft_model(build(), config)
        torch.manual_seed(k + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.3)
        model.save_pretrained(folder / f"agent{k}")
        loaded = PeftModel.from_pretrained(build(), folder / f"agent{k}").merge_and_unload()
        merged.append({n: p.detach().numpy() for n, p in loaded.state_dict().items()})
    return merged


def assert_read(plan: Plan, store: LocalOrFetched, merged: list[dict[str, NDArray[np.float32]]]) -> None:
    with TensorReader(plan.models, store) as reader:
        for planned in plan.tensors():
            for k, expected in enumerate(merged, start=1):
                whole = reader.values(k, planned.inputs[k], 0, planned.elements)
                np.testing.assert_allclose(whole, expected[planned.name].reshape(-1), rtol=1e-5, atol=1e-6)
                parts = [
                    reader.values(k, planned.inputs[k], start, min(7, planned.elements - start))
                    for start in range(0, planned.elements, 7)
                ]
                assert np.concatenate(parts).tobytes() == whole.tobytes(), planned.name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_adapter_reads_as_peft_merges_it(tmp_path, case):
    merged = save_family(tmp_path, *CASES[case])
    plan = plan_of(*(tmp_path / n for n in ("base", "agent0", "agent1")))
    assert_read(plan, LocalOrFetched(NOWHERE, tmp_path / "cache"), merged)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_adapter_on_the_hub_is_pinned_fetched_and_read(tmp_path, local_hub, ada):
    merged = save_family(tmp_path, *CASES["linear"])
    names = [f"ada/lora-{n}" for n in ("base", "agent0", "agent1")]
    for name in names:
        ada.create_repo(name)
        ada.upload_folder(repo_id=name, folder_path=tmp_path / name.removeprefix("ada/lora-"))
    hub = Hub(local_hub.endpoint, local_hub.tokens["bob"])
    plan = plan_of(*names, hub=hub)
    assert [m.ref.sha for m in plan.models] == [ada.model_info(n).sha for n in names]
    sizes = [(tmp_path / f"agent{k}" / "adapter_model.safetensors").stat().st_size for k in range(2)]
    assert [m.weight_bytes for m in plan.agents] == sizes
    assert plan.download_bytes == sum(sizes) + (tmp_path / "base" / "model.safetensors").stat().st_size
    assert_read(plan, LocalOrFetched(hub, tmp_path / "cache"), merged)
