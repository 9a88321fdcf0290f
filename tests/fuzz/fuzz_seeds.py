"""What each target begins with: the project's own examples, files that its tests write, hostile ones, and everything
that ever broke a target (`corpus/TARGET/`)."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from board_helpers import parent, result_data, task
from report_helpers import report_data
from safetensors.numpy import save

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _header(text: str, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode() + data


GOOD_RESULT = _json(result_data("org/good", "b", {"math": 0.5}))
BOMB = b"[" * 100_000
CARD = """license: apache-2.0
language: [en, no]
tags: [merge, 1.5, yes]
base_model: [org/base, org/agent]
base_model_relation: merge
datasets: org/data
pipeline_tag: text-generation
model-index:
- name: x
  results: [{task: {type: text-generation}, metrics: [{type: accuracy, value: 0.5}]}]
date: 2026-11-22
"""
SPACE = "title: x\nsdk: gradio\nsdk_version: 6.31.0\nemoji: 🚀\ncolorFrom: red\ncolorTo: blue\nhf_oauth: true\n"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "org/x--evil.Evil"},
    "torch_dtype": "bfloat16",
    "hidden_size": 8,
    "rope_scaling": {"type": "yarn", "factor": 2.0, "_implementation": "x"},
    "quantization_config": {"bits": 4},
    "id2label": {"0": "a/b", "1": "c, d"},
    "backbone": "timm/x",
    "use_timm_backbone": False,
    "text_config": {"dtype": "float16", "vision": {"_name_or_path": "/x", "path": ["../x", "y"]}},
    "initializer_range": {"__float__": "Infinity"},
    "configuration_files": ["config.4.0.0.json"],
    "transformers_weights": "other.safetensors",
}
ADAPTER = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "use_rslora": True,
    "fan_in_fan_out": False,
    "rank_pattern": {"q_proj": 4, "^model.layers.0.k_proj": 2},
    "alpha_pattern": {"v_proj": 32.5},
    "base_model_name_or_path": "org/base",
    "target_modules": ["q_proj"],
    "init_lora_weights": "gaussian",
    "use_dora": False,
}
TOKENIZER = {
    "added_tokens": [
        {"id": 3, "content": "<x>", "special": True, "lstrip": False, "single_word": False, "normalized": 1}
    ],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": [["a", "b"]]},
    "post_processor": {"type": "TemplateProcessing"},
}
VOCABULARY = {"a": 0, "b": 1, "c": 2}


def _tokenizer(*added: str, **model: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    entries = [{"id": n, "content": token, **plain, "special": True} for n, token in enumerate(added, 3)]
    model = {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "a", **model}
    parts = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"))
    return {"version": "1.0", **parts, "added_tokens": entries, "model": model}


UNION = {
    "base": _tokenizer("<x>"),
    "a": _tokenizer("<x>", "<y>"),
    "b": _tokenizer("<x>", "<z>", "<y>"),
    "config": {"added_tokens_decoder": {"3": {"content": "<x>"}}, "model_max_length": 9},
    "added": {"<x>": 3},
}
BPE = {"type": "BPE", "vocab": {**VOCABULARY, "ab": 3}, "merges": [["a", "b"]]}
DELIVERY = {
    "event": {"action": "update", "scope": "repo.content"},
    "repo": {"type": "model", "name": "zoo/agent", "id": "1" * 24, "private": False, "headSha": "a" * 40},
    "updatedRefs": [{"ref": "refs/heads/main", "oldSha": None, "newSha": "a" * 40}],
    "webhook": {"id": "2" * 24, "version": 3},
}
MERGED = result_data(
    "org/merge",
    "c",
    [task("gsm8k", "math", 0.5, stderr=0.01), task("ifeval", "instruction", 0.0)],
    parents=[parent("org/good", "b", "base"), parent("org/agent", "a")],
    facts={
        "method": "ram",
        "method_parameters": {"epsilon": 1e-6, "r": [0.1, 0.2]},
        "effective_scales": [1.0],
        "parameters": 173_000,
        "size_bytes": 346_000,
        "density": 0.25,
        "overlap": 0.4,
        "conflict": 0.2,
    },
)
INDEXED = {n: f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
METHODS = {
    "ram_plus": {"parameters": {"r": 0.25, "alpha": 1.5}},
    "ties": {"parameters": {"density": [0.1, 0.9], "lambda": [{"filter": "mlp", "value": 0.5}, {"value": 1}]}},
    "dare": {"parameters": {"p": 0.5}, "seed": 7},
    "linear": {"ignore": ["*.bias"], "dtype": "float32", "rounding": "nearest"},
    "fisher": {"calibration": {"data": "./rows.jsonl", "prompt": "q", "answer": "a"}},
}
RECIPE = {"base": "org/base@main", "agents": ["org/a", {"model": "org/b", "weight": [0.5, 1.0]}]}


def _report() -> dict[str, Any]:
    """A report of two layers, and of the weights that the targets' model has."""
    data = report_data()
    layers = dict(list(data["statistics"]["layers"].items())[:2])
    files = [{"name": "model.safetensors", "size": 1000, "sha256": "c" * 64}]
    statistics = {**data["statistics"], "layers": layers, "modules": {}}
    return {**data, "identity": "d" * 64, "target": "org/merge", "files": files, "statistics": statistics}


def _own(target: str) -> list[bytes]:
    recipes = [p.read_bytes() for p in sorted((ROOT / "examples" / "recipes").glob("*.yaml"))]
    rules = [p.read_bytes() for p in sorted((ROOT / "examples" / "watchers").glob("*.yaml"))]
    documents = [p.read_bytes() for p in sorted((ROOT / "tests" / "mergekit" / "documents").glob("*.yml"))]
    of_data = [_json({**RECIPE, "method": method, **more}) for method, more in METHODS.items()]
    card = [b"---\n" + text.encode() + b"---\n# Body\n" for text in (CARD, SPACE)]
    entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    tensors = {"model.norm.weight": np.zeros(4, np.float32), "lm_head.weight": np.ones((2, 3), np.float16)}
    return {
        "header": [
            save(tensors, {"format": "pt"}),
            save({}),
            _header(f'{{"__metadata__":{{"format":"pt"}},"a":{entry}}}', bytes(8)),
            _header('{"a":' * 1000),
            _header(f'{{"a":{entry.replace("[2]", "[" * 1000)}}}', bytes(8)),
            struct.pack("<Q", 2**63) + b"{}",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:x\nsize 1\n",
        ],
        "index": [
            _json({"metadata": {"total_size": 16}, "weight_map": {f"a.{n}": shard for n, shard in INDEXED.items()}}),
            _json({"weight_map": {"a": "../../etc/passwd", "b": "https://x/y.safetensors"}}),
            BOMB,
        ],
        "config": [_json(CONFIG), b'{"a":' * 5000, b'{"n":' + b"9" * 5000 + b"}", b'{"n": NaN, "m": -Infinity}'],
        "adapter_config": [_json(ADAPTER), _json({**ADAPTER, "r": 10**400, "lora_alpha": float("nan")})],
        "local_card": card,
        "hub_card": [*card, b"---\r\ntags: []\r\nlanguage: no\r\n---\r\n", b"---\na: .nan\n2026-11-22: 1\n---\n"],
        "hub_config": [_json(CONFIG), BOMB],
        "hub_body": [_json({"files": [{"path": "a", "size": 1}]}), b'{"a": "\\ud800"}', BOMB],
        "recipe": [*recipes, b"base: &a [*a, *a]\n", b"base: " + b"9" * 5000],
        "recipe_of_data": [
            *of_data,
            _json({**RECIPE, "sweep": [{"method": "ram"}, {"method": "ties", "parameters": {"density": [0.1, 0.2]}}]}),
        ],
        "mergekit": documents,
        "result": [_json(MERGED), GOOD_RESULT, _json(result_data("org/failed", "d", None)), BOMB],
        "flags": [
            _json({"flags": [{"kind": "contaminated", "model": "org/good", "sha": "b" * 40, "reason": "<script>"}]}),
            BOMB,
        ],
        "keys": [_json({"keys": ["a" * 64, "b" * 64]}), BOMB],
        "report_facts": [_json(_report()), b"{}", BOMB],
        "report": [_json(_report()), _json({**_report(), "schema": 3}), b"{}", BOMB],
        "report_folder": [_json(_report()), _json({**_report(), "schema": 3}), BOMB],
        "rule": rules,
        "webhook": [_json(DELIVERY), BOMB],
        "calibration_rows": [
            b"".join(_json({"q": f"question {n}", "a": f"answer {n % 7}", "other": n}) + b"\n" for n in range(6)),
            b'{"q": "\\ud800", "a": ""}\n' + BOMB,
        ],
        "patterns": [
            b"*.py[cod]\nbuild/\n/build\nfoo/**/bar\n!keep\n[!a-y]\\ \n**/deep/*\n" + b"*a" * 30 + b"\n",
            b"*.bin filter=lfs diff=lfs merge=lfs -text\n*.txt -filter\nsaved_model/**/* filter=lfs\n",
            b"**/" * 60 + b"x\n" + b"a/**/" * 60 + b"b\n",
        ],
        "tokenizer_union": [
            _json(UNION),
            _json({"base": _tokenizer(**BPE), "a": _tokenizer("<y>", **BPE), "b": _tokenizer("<z>", **BPE)}),
        ],
        "companion": [_json(CONFIG), _json(TOKENIZER), _json({"a": 0, "b/c": 1}), b'{"a": 1, "a": "x--y.Z"}', BOMB],
        "tokenizer": [
            _json(TOKENIZER),
            _json({**TOKENIZER, "model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}}),
        ],
    }[target]


def seeds(target: str) -> list[bytes]:
    return [*_own(target), *(path.read_bytes() for path in sorted((HERE / "corpus" / target).glob("*")))]
