"""What names code or a place goes from a stranger's JSON, at any depth; everything else stays as it is."""

import json
from time import process_time
from typing import Any

import pytest
from plan_helpers import CONFIG, model, plan

from hubmerge.errors import IncompatibleError
from hubmerge.hub.names import FileInfo
from hubmerge.sources.config import (
    KNOWN_CLASSES,
    MAX_DEPTH,
    installed_classes,
    known_classes,
    merged_config,
    reads_as_place,
    without_code,
)

HARMLESS: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "attention_dropout": 0.0,
    "use_cache": True,
    "eos_token_id": [1, 2],
    "pad_token_id": None,
    "hidden_act": "silu",
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "long_factor": [1.0, 2.0]},
    "layer_types": ["full_attention", "sliding_attention"],
    "transformers_version": "5.23.0",
    "text_config": {"hidden_size": 8, "rope_parameters": {"rope_theta": 1e6}, "layer_types": ["full_attention"]},
    # what a list of known keys once lost
    "classifier_pooling": "mean",
    "layers_block_type": ["mamba", "moe", "attention"],
    "vision_feature_select_strategy": "default",
    "pos_att_type": ["p2c", "c2p"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
    "encoder": {"model_type": "bert", "hidden_size": 4},
    "hybrid_override_pattern": "M-M-M*-",
    "chunkwise_kernel": "chunkwise--native_autograd",
    "task_specific_params": {"translation_en_to_de": {"prefix": "translate English to German: "}},
    "unknown_table": {"x": 1, "deep": [[{"y": "z"}]]},
    "Upper": 1,
    "a-b": "two words",
    "": 1,
    "2": 10**30,
    "empty": {},
    "nothing": "",
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "_remove_final_layer_norm": True,
    "_sliding_window_pattern": 6,
}
KEYS = (  # with any text
    *("custom_generate", "_attn_implementation", "cache_Implementation", "backbone", "default_backbone", "gguf_file"),
    *("_attn_implementation_internal", "_experts_implementation_internal", "experts_implementation"),
    *("encoder_name_or_path", "vocab_file", "checkpoint_path", "cache_dir", "_from_nowhere", "__class__", "__float__"),
)
CODE: dict[str, Any] = {
    **dict.fromkeys(KEYS, "text"),
    "auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"},
    "custom_pipelines": {"evil": {"impl": "evil.Evil"}},
    "trust_remote_code": True,
    "attn_implementation": {"": "eager", "text_config": "org/evil-kernel:fn"},
    "attribute_map": {"hidden_act": "_attn_implementation_internal"},
    "audio_tokenizer": {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": "dac"},
    "fast_tokenizer_files": ["tokenizer.4.0.0.json"],
    "configuration_files": ["config.4.0.0.json"],
    "transformers_weights": "other.safetensors",
    "init_inputs": ["passwords"],
    "__type": {"x": 1},
}
TEXTS = (  # under a key of which nothing is known
    *(
        "org/evil--tokenization.Evil",
        "evil--processing.Evil",
        "openai/clip",
        "hf-hub:evil",
        "~/x",
        "./x",
        "a b/../../x",
    ),
    *("C:\\x", "\\\\host\\x", "https://example.org/ a b", "  /etc/passwd ", "a\\b", "evil.py", "x.PKL"),
)
PLACES: dict[str, Any] = {f"x{n}": text for n, text in enumerate(TEXTS)} | {"listed": ["harmless", ["org/evil"]]}


def test_what_is_harmless_is_kept_as_it_is():
    kept, left_out = merged_config(HARMLESS, ["BF16"])
    assert kept == {**HARMLESS, "dtype": "bfloat16"}
    assert left_out == ()
    assert list(kept)[: len(HARMLESS)] == list(HARMLESS)
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


@pytest.mark.parametrize("key", [*CODE, *PLACES])
def test_what_names_code_or_a_place_is_left_out_at_any_depth_and_named(key):
    hostile = {key: {**CODE, **PLACES}[key], "kept": 1}
    within: list[tuple[str, dict[str, Any]]] = [
        (key, hostile),
        (f"text_config.{key}", {"text_config": hostile}),
        (f"a.b.c.{key}", {"a": {"b": {"c": hostile}}}),
        (f"several.{key}", {"several": [1, {}, hostile]}),
    ]
    if key in CODE:  # also where any text is kept
        within += [
            (f"id2label.0.{key}", {"id2label": {"0": hostile}}),
            (f"chat_template.{key}", {"chat_template": [hostile]}),
        ]
    for path, config in within:
        kept, left_out = merged_config(config, ["BF16"])
        assert left_out == (path,)
        assert json.dumps(key) not in json.dumps(kept)
        assert '"kept": 1' in json.dumps(kept)


def test_labels_tokens_and_templates_are_text_whatever_they_read_like():
    text = {
        "id2label": {"0": "a/b", "1": "N, P", "2": "and/or", "3": "https://example.org", "4": "auto_map", "5": "x.py"},
        "label2id": {"a/b": 0, "auto_map": 1, "_attn_implementation": 2, "../x": 3, "<script>": 4, "\u202e": 5},
        "text_config": {"id2label": {"0": "/etc/passwd"}},
        "bos_token": "</s>",
        "additional_special_tokens": ["</tool_call>", "/no_think", {"__type": "AddedToken", "content": "</x>"}],
        "added_tokens_decoder": {"5": {"content": "/think", "special": True}},
        "extra_special_tokens": {"_image": "<a/b>"},
        "chat_template": [{"name": "default", "template": "{% if x %}https://example.org/a{% endif %}"}],
        "stop_strings": ["/end"],
        "character_list": ["a", "/", "\\"],  # PP-OCR's
        "post_processor_config": {"PARSE_TASKS": [{"PATTERN": r"(.+?)<loc_(\d+)>"}]},  # Florence-2's
        "lang_to_id": {"<|en|>": 1},
        "prefix": "http:",
        "prompts": {"query": "a/b"},
        "response_template": {
            "version": 1,
            "fields": {
                "reasoning": {"open": "<think>", "close": "</think>"},
                "tool_calls": {"open_pattern": "<tool_call>\\s*", "close": ["</tool_call>", "/end"], "repeats": True},
            },
        },
        "response_schema": {"type": "object", "x-regex": "(?:<think>(?P<thinking>.*?)</think>)?"},
    }
    assert merged_config(text, []) == (text, ())
    assert json.loads(without_code(json.dumps(text).encode())[0] or b"") == text


FINE = {"model_type": "detr", "backbone_config": {"model_type": "timm_backbone", "backbone": "resnet101"}}
PARTS = {"vision_config": {"dtype": "float32", "torch_dtype": "hub", "mamba_ssm_dtype": "float32"}}
BFLOAT16 = {"dtype": "bfloat16"}
STORED = {"torch_dtype": "float64", "dtype": "int8", "hidden_size": 4}
OWN_FILES = {"_name_or_path": "/home/me/x", "x": {"name_or_path": "org/x", "_commit_hash": "1", "y": 1}}
# config.json, the dtypes of the output; what is kept, and what is said to be left out
MERGED: dict[str, tuple[dict[str, Any], list[str], dict[str, Any], tuple[str, ...]]] = {
    "numbers that JSON does not have, as transformers tags them": (
        {"x": [float("inf"), {"y": -float("inf")}], "z": float("nan")},
        [],
        {"x": [{"__float__": "Infinity"}, {"y": {"__float__": "-Infinity"}}], "z": {"__float__": "NaN"}},
        (),
    ),
    "names that are not safe to show": (
        {"x" * 200: "/a", "\u202e\n": "/b", **{f"_{k}": 1 for k in range(3)}},
        [],
        {},
        ("x" * 80, "\\u202e\\n", "_0", "_1", "_2"),
    ),
    "a timm backbone's architecture": (FINE, [], FINE, ()),
    "a timm backbone of the Hub": (
        {"model_type": "timm_backbone", "backbone": "hf-hub:org/evil"},
        [],
        {"model_type": "timm_backbone"},
        ("backbone",),
    ),
    "bookkeeping": ({**OWN_FILES, "quantization_config": {"quant_method": "fp8"}}, [], {"x": {"y": 1}}, ()),
    "empty values": (
        {"auto_map": None, "_attn_implementation": None, "attn_implementation": "", "init_inputs": []},
        [],
        {},
        (),
    ),
    "the output's dtype": (STORED, ["I64", "BF16", "BF16", "F32"], {"hidden_size": 4, "dtype": "bfloat16"}, ()),
    "the output's most frequent dtype": (STORED, ["F32", "BF16", "F32"], {"hidden_size": 4, "dtype": "float32"}, ()),
    "no dtype of floats": (STORED, ["I64"], {"hidden_size": 4}, ()),
    # many small tensors of float32 do not make a model of bfloat16 twice as large
    "the dtype that is computed in": ({"torch_dtype": "bfloat16"}, ["F32", "BF16", "F32"], BFLOAT16, ()),
    "a part's dtype that the output has": (
        PARTS,
        ["F32", "BF16", "BF16"],
        {"vision_config": {**PARTS["vision_config"], "torch_dtype": "bfloat16"}, **BFLOAT16},
        (),
    ),
    "a part's dtype that the output has not": (
        PARTS,
        ["BF16"],
        {"vision_config": {**BFLOAT16, "torch_dtype": "bfloat16", "mamba_ssm_dtype": "float32"}, **BFLOAT16},
        (),
    ),
}


@pytest.mark.parametrize(("config", "dtypes", "kept", "left_out"), MERGED.values(), ids=MERGED)
def test_what_is_kept_of_a_config(config, dtypes, kept, left_out):
    assert merged_config(config, dtypes) == (kept, left_out)


def test_tables_within_tables_are_not_followed_for_ever():
    config: dict[str, Any] = {"n": 1}
    for _ in range(MAX_DEPTH + 3):
        config = {"deep": config, "n": 1}
    kept, left_out = merged_config(config, [])
    assert json.dumps(kept).count('"n"') == MAX_DEPTH + 1
    assert len(left_out) == 1


def test_options_do_not_read_as_places():
    options = ("silu", "M-M*-", "1.5", "chunkwise--native", "a b/c", "Summarize: this", "", " ", "x:", "--", "…")
    assert [text for text in options if reads_as_place(text)] == []


@pytest.mark.parametrize(
    "config",
    [
        {"x": "--." * 30_000 + " x"},
        {"special_tokens" * 30_000 + "-": 1},
        json.loads('{"a_file":' + "[" * 900 + "]" * 900 + "}"),
    ],
    ids=["text", "key", "depth"],
)
def test_no_text_key_or_depth_takes_long_or_breaks_the_check(config):
    begin = process_time()
    kept, left_out = merged_config(config, [])
    assert {*kept, *left_out} == {*config}
    assert process_time() - begin < 2


# --- whole files -------------------------------------------------------------------------------------------------


AS_IT_IS = b'{ "tokenizer_class" :  "X",\n\n "chat_template": "{% if true %}/", "x": 1.50 }'
OF_TOKENS = b'{"_x": 5, "auto_map": 6, "</s>": 7, "attn_implementation": 8}'
KEPT = '{\n  "x": [\n    {\n      "y": "ä"\n    }\n  ]\n}\n'.encode()
OF_SENTENCE_TRANSFORMERS = b'{"__version__": {"sentence_transformers": "5.1.0", "pytorch": "2+cpu"}, "prompts": {}}'
FILES: list[tuple[bytes, bytes | None, tuple[str, ...]]] = [
    (AS_IT_IS, AS_IT_IS, ()),
    (OF_SENTENCE_TRANSFORMERS, OF_SENTENCE_TRANSFORMERS, ()),
    (b'{"__version__": {"x": "org/repo--module.Class"}}', b'{\n  "__version__": {}\n}\n', ("__version__.x",)),
    (OF_TOKENS, OF_TOKENS, ()),
    (b'{"_x": 5, "y": true}', b'{\n  "y": true\n}\n', ("_x",)),
    (b'{"auto_map": {"X": ["e.E", null]}, "x": [{"y": "\xc3\xa4", "_y": 1}]}', KEPT, ("auto_map", "x._y")),
    (b'{"name_or_path": "org/x", "y": 1}', b'{\n  "y": 1\n}\n', ()),  # bookkeeping
    (b'{"x": "/etc/passwd", "x": "fine"}', b'{\n  "x": "fine"\n}\n', ()),  # written once, as it was checked
    *((content, None, ()) for content in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"auto_map":1,"x":NaN}', b'"/etc"')),
]


@pytest.mark.parametrize(("content", "clean", "left_out"), FILES, ids=range(len(FILES)))
def test_a_file_comes_back_clean_or_not_at_all(content, clean, left_out):
    assert without_code(content) == (clean, left_out)


# --- what cannot be described without what is left out -----------------------------------------------------------


def problems(config: dict[str, Any], agent: dict[str, Any] | None = None) -> list[str]:
    """What a plan says of a base with these keys in its config.json, and of an agent with those."""
    given = {"org/base": config, "org/one": agent or {}, "org/two": {}}
    files = {"tokenizer.json": FileInfo("tokenizer.json", 10)}
    llama = {**CONFIG, "model_type": "llama"}
    try:
        plan(*(model(name, config={**llama, **keys}, files=files) for name, keys in given.items()))
    except IncompatibleError as error:
        return [p.what for p in error.problems]
    return []


OWN_CODE = "a model that needs code of its own (trust_remote_code), which no merge carries over"
MODEL_CODE = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
OTHER_WEIGHTS, OTHER_FILES = ("config.json that points to other " + what for what in ("weights", "configurations"))
QUANTIZED = "quantized weights, which stand for others than they store"
LOOKED_UP = "a backbone that transformers looks up elsewhere"
LLAMA_CODE = {
    "AutoConfig": "configuration_llama.LlamaConfig", "AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"
}  # fmt: skip
OF_TIMM = {"model_type": "timm_backbone", "backbone": "resnet50", "use_pretrained_backbone": 1}
# keys of the base's config.json; the first problem
DESCRIBED: list[tuple[dict[str, Any], str | None]] = [
    # transformers has code of its own for these
    ({"auto_map": LLAMA_CODE}, None),
    ({"auto_map": {"AutoTokenizer": ["tokenization_x.X", None], "AutoProcessor": "processing_x.X"}}, None),
    *(({"auto_map": none}, None) for none in ({}, None, "x", [1])),
    ({"configuration_files": ["config.4.0.0.json"]}, OTHER_FILES),
    ({"transformers_weights": "b.safetensors"}, OTHER_WEIGHTS),
    ({"transformers_weights": "model.safetensors"}, None),
    ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, QUANTIZED),
    ({"compression_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}, QUANTIZED),
    ({"quantization": {"group_size": 64, "bits": 4}}, QUANTIZED),  # as MLX writes it
    ({"backbone": "resnet101", "use_timm_backbone": True, "backbone_config": None}, LOOKED_UP),
    ({"vision_config": {"default_backbone": "gpt2", "backbone_config": None}}, LOOKED_UP),
    ({"backbone": "resnet101", "backbone_config": {"model_type": "resnet"}}, None),
    ({"backbone_config": OF_TIMM}, None),
]


@pytest.mark.parametrize(("keys", "problem"), DESCRIBED, ids=range(len(DESCRIBED)))
def test_a_base_that_its_config_describes_only_with_other_files_is_refused(keys, problem):
    assert problems(keys) == ([] if problem is None else [problem])


def test_an_agent_whose_weights_lie_elsewhere_is_refused():
    assert problems({}, {"transformers_weights": "b.safetensors"}) == [OTHER_WEIGHTS]


def test_a_type_or_a_class_that_only_its_own_code_has_is_refused():
    unknown = {"model_type": "x_of_nobody", "architectures": ["XForCausalLM"], "auto_map": MODEL_CODE}
    assert problems(unknown)[:1] == [OWN_CODE]
    config = {"architectures": ["LlamaForRewards"], "auto_map": {"AutoModel": "org/x--modeling.LlamaForRewards"}}
    assert problems(config, config)[:1] == [OWN_CODE]


def test_the_list_of_transformers_classes_is_that_of_the_installed_one():
    assert KNOWN_CLASSES.read_text() == installed_classes()
    assert "LlamaForCausalLM" in known_classes()["llama"]
