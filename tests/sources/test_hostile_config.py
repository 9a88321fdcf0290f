"""What a merge of a hostile base says is loaded by transformers: nothing is fetched, and no code of the repo runs.

The loads trust remote code, so that only what the files say decides; test_config.py shows that each key is left out.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from builders import tokenizer_files
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, dynamic_module_utils

from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

CODE = """
from pathlib import Path

Path({marker!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


class EvilConfig(LlamaConfig):
    model_type = "evil"


class EvilModel(LlamaForCausalLM):
    config_class = EvilConfig


class Evil(PreTrainedTokenizerFast):
    pass


def generate(model):
    pass
"""
AUTO_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small Llama as transformers saves it, beside the code that a hostile config would run."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    for name in ("evil.py", "custom_generate/generate.py"):
        path = tmp_path / "model" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CODE.format(marker=str(tmp_path / "ran")))
    return tmp_path / "model"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The hosts that anything asks for."""
    hosts: list[str] = []

    def trap(host: Any, *args: Any, **kwargs: Any) -> Any:
        hosts.append(str(host))
        raise socket.gaierror("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", trap)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return hosts


HOSTILE: dict[str, Any] = {
    "auto_map": AUTO_MAP,
    "attn_implementation": "org/kernel@v1:fn",
    "dtype": "hub",
    "attribute_map": {"hidden_act": "vocab_size"},
    # which this version of transformers no longer follows
    "_attn_implementation": "org/kernel",
    "_attn_implementation_internal": "org/kernel",
    "_experts_implementation_internal": "org/kernel",
    "custom_pipelines": {"evil": {"impl": "evil.Evil", "pt": ["AutoModelForCausalLM"]}},
    "trust_remote_code": True,
    "custom_generate": "org/evil",
    "other_config": {"auto_map": AUTO_MAP, "_attn_implementation": "org/kernel"},
    "name_or_path": "/etc",
    "_name_or_path": "org/evil",
    "backbone": "gpt2",
}
OF_A_TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "auto_map": {"AutoTokenizer": "org/evil--evil.Evil", "AutoProcessor": "evil.Evil"},
    "init_inputs": ["/etc/passwd"],
    "vocab_file": "/etc/passwd",
    "gguf_file": "x.gguf",
}


@pytest.mark.filterwarnings("ignore")
def test_the_merge_of_a_hostile_base_holds_none_of_it(model: Path, asked: list[str]):
    """All that does not refuse the base at once, through the whole line."""
    agents = []
    for number in (1, 2):
        torch.manual_seed(number)
        agents.append(model.parent / f"agent{number}")
        LlamaForCausalLM(LlamaConfig.from_pretrained(model)).save_pretrained(agents[-1])
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | HOSTILE))
    (model / "tokenizer.json").write_bytes(tokenizer_files()["tokenizer.json"])
    (model / "tokenizer_config.json").write_text(json.dumps(OF_A_TOKENIZER))
    recipe = recipe_from_dict({"base": str(model), "agents": list(map(str, agents)), "method": "ram"})
    hub, out = Hub("http://127.0.0.1:9"), model.parent / "out"
    prepared = prepare(recipe, hub, Request(allow_local=True, license="mit"))
    report = merge_to_folder(prepared, hub, out, StreamOptions(cache=model.parent / "cache"))
    assert any(w.startswith("config.json: auto_map, ") for w in report.warnings)
    assert not list(out.rglob("*.py"))
    text = (out / "config.json").read_text() + (out / "tokenizer_config.json").read_text()
    assert not [word for word in ("evil", "kernel", "auto_map", "trust", "gpt2", "/etc") if word in text]
    loaded = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert type(loaded) is transformers.LlamaForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    assert type(tokenizer).__module__.startswith("transformers.")
    assert tokenizer("w7")["input_ids"] == [7]
    assert asked == []
    assert not (model.parent / "ran").exists()
