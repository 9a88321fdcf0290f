"""What a merge of a hostile base says is loaded by transformers: nothing is fetched, and no code of the repo runs.

The loads trust remote code, so that only what the files say decides; test_config.py shows that each key is left out.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import transformers
from builders import recipe_dict, write_parents
from plan_helpers import NOWHERE
from transformers import AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

from hubmerge.engine.stream import StreamOptions
from hubmerge.line import Request, merge_to_folder, prepare
from hubmerge.recipe.recipe import recipe_from_dict

CODE = "from pathlib import Path; Path({marker!r}).write_text('ran')"
AUTO_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}


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
    "custom_pipelines": {"evil": {"impl": "evil.Evil", "pt": ["AutoModelForCausalLM"]}},
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
def test_the_merge_of_a_hostile_base_holds_none_of_it(tmp_path, asked):
    """All that does not refuse the base at once, through the whole line."""
    base, *agents = write_parents(tmp_path)
    for name in ("evil.py", "custom_generate/generate.py"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(CODE.format(marker=str(tmp_path / "ran")))
    (base / "config.json").write_text(json.dumps(json.loads((base / "config.json").read_text()) | HOSTILE))
    (base / "tokenizer_config.json").write_text(json.dumps(OF_A_TOKENIZER))
    prepared = prepare(recipe_from_dict(recipe_dict(base, agents)), NOWHERE, Request(allow_local=True, license="mit"))
    report = merge_to_folder(prepared, NOWHERE, out := tmp_path / "out", StreamOptions(cache=tmp_path / "cache"))
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
    assert not (tmp_path / "ran").exists()
