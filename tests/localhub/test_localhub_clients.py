"""The clients' own ways to the Hub, run as their users run them, against the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import get_session
from processes import as_ada, printed_by
from raw_requests import ask

from localhub.process import LocalHubProcess


def in_python(hub: LocalHubProcess, folder: Path, script: str) -> str:
    environment = as_ada(hub, folder) | {"HF_HOME": str(folder / "home"), "PYTHONWARNINGS": "ignore"}
    return printed_by(script, folder=folder, CUDA_VISIBLE_DEVICES="", **environment)


def test_transformers_and_peft_push_and_load(
    local_hub: LocalHubProcess, ada: HfApi, fresh: Callable[[], str], tmp_path: Path
) -> None:
    model, lora, sharded = (f"ada/{fresh()}" for _ in range(3))
    script = f"""
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
)
config = LlamaConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
)
made = LlamaForCausalLM(config)
made.push_to_hub({model!r})
words = Tokenizer(models.WordLevel({{"a": 0, "[UNK]": 1}}, unk_token="[UNK]"))
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").push_to_hub({model!r})
GenerationConfig(max_length=4).push_to_hub({model!r})
made.push_to_hub({model!r}, create_pr=True, commit_message="again", tags=["x"])
made.push_to_hub({sharded!r}, max_shard_size="4KB", private=True)
def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
assert same(made, AutoModelForCausalLM.from_pretrained({model!r}))
assert same(made, AutoModelForCausalLM.from_pretrained({sharded!r}))
assert AutoTokenizer.from_pretrained({model!r})("a").input_ids == [0]
adapted = get_peft_model(made, LoraConfig(target_modules=["q_proj"], r=2))
adapted.push_to_hub({lora!r})
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({model!r}), {lora!r})
assert same(adapted, again)
print("all")
"""
    assert in_python(local_hub, tmp_path, script).strip().endswith("all")
    assert ada.model_info(sharded).private
    assert [found.is_pull_request for found in ada.get_repo_discussions(model)] == [True]
    assert "adapter_config.json" in ada.list_repo_files(lora)
    card = ada.hf_hub_download(model, "README.md", local_dir=tmp_path / "card")
    assert "tags: []" in Path(card).read_text()  # what transformers writes


def test_datasets_pushes_and_loads(
    local_hub: LocalHubProcess, ada: HfApi, fresh: Callable[[], str], tmp_path: Path
) -> None:
    name = f"ada/{fresh()}"
    script = f"""
import datasets
from datasets import Dataset, DatasetDict, get_dataset_config_names, get_dataset_split_names, load_dataset
datasets.disable_progress_bars()
made = Dataset.from_dict({{"q": ["a", "b"], "n": [1, 2]}})
made.push_to_hub({name!r}, private=True)
made.push_to_hub({name!r}, split="test")
DatasetDict({{"train": made, "dev": made}}).push_to_hub({name!r}, "second")
assert load_dataset({name!r}, "default", split="test")[1] == {{"q": "b", "n": 2}}
assert next(iter(load_dataset({name!r}, "second", split="dev", streaming=True))) == {{"q": "a", "n": 1}}
assert get_dataset_config_names({name!r}) == ["default", "second"]
assert get_dataset_split_names({name!r}, "default") == ["train", "test"]
"""
    in_python(local_hub, tmp_path, script)
    assert ada.dataset_info(name).private


def test_what_a_new_repo_or_branch_could_not_keep_is_refused(ada: HfApi, repo: str) -> None:
    """As @huggingface/hub asks."""
    name, files = f"{repo.partition('/')[2]}-x", [{"path": "a", "content": "YQ==", "encoding": "base64"}]
    for path, body in (
        ("/api/repos/create", {"name": name, "files": files}),
        ("/api/repos/create", {"name": name, "license": "mit"}),
        (f"/api/models/{repo}/branch/empty", {"emptyBranch": True}),
        (f"/api/models/{repo}/branch/HEAD", {}),
    ):
        assert ask(ada, "POST", path, json=body).status_code == 400
    assert not ada.repo_exists(f"{repo}-x")


def test_an_address_that_is_not_served_is_told_from_a_mistake_in_a_name(local_hub: LocalHubProcess) -> None:
    for path in ("/api/jobs/ada", "/ada/x.git/info/refs?service=git-receive-pack", "/api/settings/x", "/a/b/c/d"):
        answer = get_session().get(local_hub.endpoint + path)
        assert (answer.status_code, "x-error-code" in answer.headers) == (404, False)
        assert "serves nothing at this address" in answer.headers["x-error-message"]
