"""The clients' own ways to the Hub, run as their users run them, against the embedded one."""

from huggingface_hub.utils import get_session
from processes import as_ada, printed_by


def test_transformers_peft_and_datasets_push_and_load(local_hub, ada, fresh, tmp_path):
    model, lora, sharded, rows = (f"ada/{fresh()}" for _ in range(4))
    script = f"""
import datasets, torch
from datasets import Dataset, get_dataset_split_names, load_dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
datasets.disable_progress_bars()
config = LlamaConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
)
made = LlamaForCausalLM(config)
made.push_to_hub({model!r})
GenerationConfig(max_length=4).push_to_hub({model!r})
made.push_to_hub({model!r}, create_pr=True, commit_message="again", tags=["x"])
made.push_to_hub({sharded!r}, max_shard_size="4KB", private=True)
def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
assert same(made, AutoModelForCausalLM.from_pretrained({model!r}))
assert same(made, AutoModelForCausalLM.from_pretrained({sharded!r}))
adapted = get_peft_model(made, LoraConfig(target_modules=["q_proj"], r=2))
adapted.push_to_hub({lora!r})
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({model!r}), {lora!r})
assert same(adapted, again)
table = Dataset.from_dict({{"q": ["a", "b"], "n": [1, 2]}})
table.push_to_hub({rows!r}, private=True)
table.push_to_hub({rows!r}, split="test")
table.push_to_hub({rows!r}, "second")
assert load_dataset({rows!r}, "default", split="test")[1] == {{"q": "b", "n": 2}}
assert next(iter(load_dataset({rows!r}, "second", split="train", streaming=True))) == {{"q": "a", "n": 1}}
assert get_dataset_split_names({rows!r}, "default") == ["train", "test"]
"""
    environment = as_ada(local_hub, tmp_path) | {"HF_HOME": str(tmp_path / "home"), "PYTHONWARNINGS": "ignore"}
    printed_by(script, folder=tmp_path, CUDA_VISIBLE_DEVICES="", **environment)
    assert ada.model_info(sharded).private
    assert [found.is_pull_request for found in ada.get_repo_discussions(model)] == [True]
    assert "adapter_config.json" in ada.list_repo_files(lora)
    assert ada.dataset_info(rows).private


def test_an_address_that_is_not_served_is_told_from_a_mistake_in_a_name(local_hub):
    for path in ("/api/jobs/ada", "/ada/x.git/info/refs?service=git-receive-pack", "/api/settings/x", "/a/b/c/d"):
        answer = get_session().get(local_hub.endpoint + path)
        assert (answer.status_code, "x-error-code" in answer.headers) == (404, False)
        assert "serves nothing at this address" in answer.headers["x-error-message"]
