"""What stands in fp8, in an adapter or under other names is understood, or refused by its name."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from builders import T, f32, llama_config, random_base, sparse_agent, tensor, write_model
from plan_helpers import opened, plan_of, refused
from source_helpers import lora, pair, refuse_folder
from source_helpers import write_adapter as adapter

from hubmerge.errors import FormatError, IncompatibleError
from hubmerge.hub.names import FileInfo
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.plan import Plan, make_plan
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.adapter_config import parse_adapter_config
from hubmerge.sources.derived import fp8_values
from hubmerge.sources.remedies import Place

Q = "model.layers.0.self_attn.q_proj"
BASE = random_base(0)
ON_HUB = recipe_from_dict({"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram"})
TIED = {n: t for n, t in BASE.items() if n != "lm_head.weight"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", BASE)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_model(tmp_path / "other", sparse_agent(BASE, 0.1, 9))


# --- fp8 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("F8_E4M3", {0x00: 0.0, 0x01: 2**-9, 0x08: 2**-6, 0x7E: 448.0, 0x7F: np.nan, 0xFE: -448.0}),
        ("F8_E5M2", {0x00: 0.0, 0x01: 2**-16, 0x04: 2**-14, 0x7B: 57344.0, 0x7C: np.inf, 0xFB: -57344.0}),
    ],
)
def test_fp8_is_decoded_exactly(dtype: str, values: dict[int, float]):
    found = fp8_values(np.array([*values], np.uint8), dtype)
    assert np.array_equal(found, np.array([*values.values()], np.float32), equal_nan=True)


def fp8_agent(folder: Path, extra: Mapping[str, T], config: Any = None, key: str = "quantization_config") -> Path:
    tensors = {**BASE, f"{Q}.weight": tensor(f32(BASE[f"{Q}.weight"]), "F8_E4M3"), **extra}
    return write_model(folder, tensors, config=llama_config(BASE, **{key: config}))


SCALE = tensor(0.5, "F32")
BAD_FP8: dict[str, tuple[dict[str, T], str]] = {
    "no scale": ({}, f"dtype that cannot be merged in {{}}: expected F32, BF16, F16, fp8 with its scales, or integers "
                 f"as in the base, got {Q}.weight (F8_E4M3)"),
    "another shape": ({f"{Q}.weight_scale_inv": tensor(np.ones((2, 1)), "F32")},
                      f"one per block of 128×128, got {Q}.weight 16×16 with F32 2×1"),
    "no matrix of scales": ({f"{Q}.weight_scale": tensor(np.ones((1, 2, 3)), "F32")}, "16×16 with F32 1×2×3"),
    "integer scales": ({f"{Q}.weight_scale": tensor([3], "U8")}, f"{Q}.weight 16×16 with U8 1"),
    "two scales": ({f"{Q}.weight_scale": SCALE, f"{Q}.weight_scale_inv": SCALE}, "with F32 scalar and F32 scalar"),
    "a scale of nothing": ({"model.norm.weight_scale": SCALE, f"{Q}.weight_scale": SCALE},
                           "tensors that the base does not have in {}: got model.norm.weight_scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FP8)
def test_fp8_that_is_not_understood_is_refused_with_its_names(name: str, tmp_path: Path, base: Path, other: Path):
    extra, words = BAD_FP8[name]
    agent = fp8_agent(tmp_path / "agent", extra)
    listed = refused(base, agent, other)
    pin = str(opened(agent).ref)
    assert any(words.format(pin) in text for text in listed), listed


PLAIN_FP8 = [
    {"quant_method": "fp8", "weight_block_size": [8, 4]},
    {"quant_method": "fbgemm_fp8"},
    {"quant_method": "compressed-tensors", "format": "float-quantized"},
]


@pytest.mark.parametrize(
    ("key", "config"), [*(("quantization_config", c) for c in PLAIN_FP8), ("compression_config", PLAIN_FP8[-1])]
)
def test_configs_of_plain_fp8_are_accepted(tmp_path: Path, base: Path, other: Path, key: str, config: Any):
    shape = (2, 4) if "weight_block_size" in config else (16, 1)
    agent = fp8_agent(tmp_path / "agent", {f"{Q}.weight_scale": tensor(np.ones(shape), "F32")}, config, key)
    plan = plan_of(base, agent, other)
    assert {t.dtype for t in plan.tensors()} == {"BF16"}
    assert not [t.name for t in plan.tensors() if "scale" in t.name]
    assert plan_summary(plan)["kinds"] == ["weights", "fp8 weights", "weights"]


ROTATED = {**PLAIN_FP8[-1], "transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}


@pytest.mark.parametrize(
    "config", [{"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}, ROTATED, {"x": 1}, "fp8"]
)
def test_a_quantization_beside_fp8_is_refused(tmp_path: Path, base: Path, other: Path, config: Any):
    agent = fp8_agent(tmp_path / "agent", {f"{Q}.weight_scale": SCALE}, config)
    assert "quantized weights" in refused(base, agent, other)[0]


def test_scales_of_activations_are_left_out_and_said_to_be(tmp_path: Path, base: Path, other: Path):
    extra = {f"{Q}.weight_scale": SCALE, f"{Q}.input_scale": SCALE}
    plan = plan_of(base, fp8_agent(tmp_path / "agent", extra), other)
    assert any(f"scales of activations are left out: {Q}.input_scale" in w for w in plan.warnings)


def test_an_fp8_base_becomes_bfloat16_unless_a_dtype_is_named(tmp_path: Path, other: Path):
    base = fp8_agent(tmp_path / "fp8", {f"{Q}.weight_scale": SCALE, "model.norm.weight": tensor(np.ones(16), "F32")})
    agents = (write_model(tmp_path / "a", sparse_agent(BASE, 0.2, 3)), other)
    plan = plan_of(base, *agents)
    assert {t.name: t.dtype for t in plan.tensors()}["model.norm.weight"] == "F32"
    assert {t.dtype for t in plan.tensors() if t.name != "model.norm.weight"} == {"BF16"}
    assert any("fp8 weights are stored as bfloat16" in w for w in plan.warnings)
    assert sum("rounding the base to 8 bits, unless it was trained from these" in w for w in plan.warnings) == 2
    plan = plan_of(base, *agents, dtype="float16")
    assert {t.dtype for t in plan.tensors()} == {"F16"}
    assert not any("stored as bfloat16" in w for w in plan.warnings)


# --- adapters ----------------------------------------------------------------------------------------------------


def factors(module: str = Q, rank: int = 4, rows: int = 16, columns: int = 16) -> dict[str, T]:
    return pair(module, *lora((rows, columns), rank))


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "expected LORA, got 'LOHA'. If PEFT can merge it into its base, use the result as an agent.": {"peft_type": "LOHA"},
    "use_dora: True": {"use_dora": True},
    "lora_bias: True": {"lora_bias": True},
    "use_qalora: True": {"use_qalora": True},
    "target_parameters: ['experts.down_proj']": {"target_parameters": ["experts.down_proj"]},
    "layer_replication: [[0, 4], [2, 5]]": {"layer_replication": [[0, 4], [2, 5]]},
    "trainable_token_indices: [1]": {"trainable_token_indices": [1]},
    "alora_invocation_tokens: [5]": {"alora_invocation_tokens": [5]},
    "megatron_config: {'a': 1}": {"megatron_config": {"a": 1}},
    "init_lora_weights: 'pissa' (it changes the base's weights, too)": {"init_lora_weights": "pissa"},
    "init_lora_weights: 'loftq'": {"init_lora_weights": "loftq"},
    "init_lora_weights: [1]": {"init_lora_weights": [1]},
    "something_new: 'x'": {"something_new": "x"},
    "use_dora: True, lora_bias: True": {"use_dora": True, "lora_bias": True},
    "a wrong r": {"r": 0},
    "a wrong r in adapter_config.json": {"r": True},
    "a wrong lora_alpha": {"lora_alpha": "8"},
    "a wrong lora_alpha in": {"lora_alpha": float("nan")},
    "a wrong use_rslora": {"use_rslora": 1},
    "ends of names, got '(a+)+'. Merge the adapter into its base with PEFT": {"rank_pattern": {"(a+)+": 2}},
    "a wrong rank_pattern in": {"rank_pattern": {"q_proj": 1.5}},
    "an integer from 1 to 65536": {"r": 65_537},
    "a table of at most 10000 entries": {"rank_pattern": {f"q{n}": 2 for n in range(10_001)}},
    "a wrong alpha_pattern": {"alpha_pattern": ["q_proj"]},
    "a wrong base_model_name_or_path": {"base_model_name_or_path": 3},
}


@pytest.mark.parametrize("words", BAD_SETTINGS)
def test_an_adapter_that_is_not_plain_lora_is_refused_with_its_settings(tmp_path: Path, words: str):
    assert words in refuse_folder(FormatError, adapter(tmp_path / "a", factors(), **BAD_SETTINGS[words]))


def test_a_pickled_adapter_is_refused_and_not_opened(tmp_path: Path):
    folder = adapter(tmp_path / "a", factors())
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    text = refuse_folder(FormatError, folder)
    assert text.startswith("E_FORMAT")
    assert "expected adapter_model.safetensors, got adapter_model.bin" in text


def test_adapters_of_other_names_are_found_in_the_folders_that_peft_saves_them_to(tmp_path: Path):
    folder = tmp_path / "a"
    adapter(folder / "math", factors())
    (folder / "README.md").write_text("an adapter")
    assert f"got adapters in math. Name one: {folder}/math." in refuse_folder(FormatError, folder)
    adapter(folder / "code", factors())
    adapter(folder / "a 'quoted' name", factors())
    assert f"got adapters in code, math. Name one: {folder}/code." in refuse_folder(FormatError, folder)
    assert opened(folder / "code").kind == "LoRA adapter"
    files = {name: FileInfo(name, 1) for name in ("README.md", "math/adapter_config.json")}
    place = Place("org/a@1", "org/a", None, files, {}, lambda path, start, end: b"", lambda path, most: b"")
    told = str(place.without_weights("model.safetensors", {}))
    assert "Fetch it (`hf download org/a --include 'math/*' --local-dir a`), and name ./a/math." in told


def test_a_model_in_a_folder_of_the_repo_is_named(tmp_path: Path, other: Path):
    (tmp_path / "run" / "actor").mkdir(parents=True)
    other.rename(tmp_path / "run" / "actor" / "huggingface")  # as verl saves it
    told = refuse_folder(FormatError, tmp_path / "run")
    assert f"got models in actor/huggingface. Name one: {tmp_path}/run/actor/huggingface." in told


def test_of_several_models_below_the_one_of_the_latest_step_is_named(tmp_path: Path, other: Path):
    for step in (20, 100):
        shutil.copytree(other, tmp_path / "run" / f"global_step_{step}" / "actor" / "huggingface")
    told = refuse_folder(FormatError, tmp_path / "run")
    assert f"Name one: {tmp_path}/run/global_step_100/actor/huggingface." in told


TRAINED = {
    "step_9/actor/model_world_size_2_rank_1.pt": "python -m verl.model_merger merge --backend fsdp --local_dir",
    "zero_to_fp32.py": "--safe_serialization",
    "pytorch_model_fsdp_0/__0_0.distcp": "accelerate merge-weights",
    "adapters.safetensors": "mlx_lm.fuse --model BASE --adapter-path",
}


@pytest.mark.parametrize("file", TRAINED)
def test_what_a_trainer_keeps_in_its_own_format_is_refused_with_the_command_that_converts_it(tmp_path: Path, file: str):
    folder = tmp_path / "a run"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    (folder / "adapter_config.json").write_text("{}")
    told = refuse_folder(FormatError, folder)
    assert TRAINED[file] in told
    assert f"'{folder}'" in told, "it is quoted for a shell"
    files = {file: FileInfo(file, 1)}
    place = Place("org/a@1", "org/a", None, files, {}, lambda path, start, end: b"", lambda path, most: b"")
    told = str(place.without_weights("model.safetensors", {}))
    assert "hf download org/a --local-dir a && " in told
    assert TRAINED[file] in told


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("run/zero_to_fp32.py", "run/model.safetensors"), "got models in run. "),
        (("a/model_world_size_1_rank_0.pt", "a/huggingface/model.safetensors"), "got models in a/huggingface. "),
        (("checkpoint-9/pytorch_model.bin", "checkpoint-10/pytorch_model.bin"), "got pickled models in checkpoint-10,"),
    ],
)
def test_a_model_beside_what_a_trainer_keeps_is_named(tmp_path: Path, files: tuple[str, ...], words: str):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert words in (told := refuse_folder(FormatError, tmp_path))
    assert f"Name one: {tmp_path}/{files[-1].rpartition('/')[0]}." in told


DORA = {f"base_model.model.{Q}.lora_magnitude_vector": tensor(np.ones(16), "F32")}
A_ALONE = {n: t for n, t in factors().items() if "lora_A" in n}
BAD_ADAPTERS: dict[str, tuple[dict[str, T], dict[str, Any]]] = {
    f"got base_model.model.{Q}.lora_magnitude_vector": ({**factors(), **DORA}, {}),
    f"got base_model.model.{Q}.lora_A.other.weight": ({f"base_model.model.{Q}.lora_A.other.weight": SCALE}, {}),
    f"got {Q}.weight (no B)": (A_ALONE, {}),
    f"full tensors, got {Q}.lora_A.weight": ({**factors(), f"{Q}.lora_A.weight": tensor(lora((16, 16))[0], "F32")}, {}),
    "without a pair of lora_A and lora_B": ({"base_model.model.lm_head.weight": BASE["lm_head.weight"]}, {}),
    "tensors that the base does not have": (factors("model.layers.9.mlp.up_proj"), {}),
    "If it is that one: merge the adapter into its base with PEFT": (factors(f"model.language_{Q}"), {}),
    f"{Q}.weight: A 4×15, B 16×4, W 16×16": (factors(columns=15), {}),
    f"{Q}.weight: rank 2, where adapter_config.json says 4": (factors(rank=2), {}),
    f"{Q}.weight: rank 4, where adapter_config.json says 3": (factors(), {"rank_pattern": {"self_attn.q_proj": 3}}),
    f"{Q}.weight: square, and fan_in_fan_out is not what others show": (
        {**factors(), **factors("model.layers.0.mlp.up_proj", rows=24)},
        {"fan_in_fan_out": True},
    ),
    "model.norm.weight: A 4×16, B 16×4, W 16": (factors("model.norm"), {}),
    f"{Q}.weight: A I32, B I32, W BF16": ({n: tensor(np.ones(t.shape), "I32") for n, t in factors().items()}, {}),
    "other shapes": ({**factors(), "base_model.model.model.norm.weight": tensor(np.ones(3), "F32")}, {}),
    "does not have in": ({**factors(), f"base_model.model.{Q}.bias": tensor(np.ones(16), "F32")}, {}),
}


@pytest.mark.parametrize("words", BAD_ADAPTERS)
def test_adapter_tensors_that_fit_nothing_are_refused_with_their_names(
    tmp_path: Path, base: Path, other: Path, words: str
):
    tensors, config = BAD_ADAPTERS[words]
    listed = refused(base, adapter(tmp_path / "a", tensors, **config), other)
    assert any(words in text for text in listed), listed


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens"])
def test_an_adapter_of_tied_embeddings_is_refused(tmp_path: Path, name: str):
    base, other = write_model(tmp_path / "base", TIED), write_model(tmp_path / "other", sparse_agent(TIED, 0.1, 2))
    full = {f"base_model.model.{name}.weight": BASE["lm_head.weight"]}
    listed = refused(base, adapter(tmp_path / "a", {**factors(), **full}), other)
    assert any("an embedding that the base ties to its head" in t and f"{name}.weight" in t for t in listed), listed


@pytest.mark.parametrize(
    ("class_", "named", "tied", "is_refused"),
    [
        ("BloomForCausalLM", "transformer.word_embeddings.weight", True, True),
        ("BertForMaskedLM", "bert.embeddings.word_embeddings.weight", None, True),
        ("BloomForCausalLM", "transformer.word_embeddings.weight", False, False),
        ("BertForSequenceClassification", "bert.embeddings.word_embeddings.weight", True, False),
        ("RwkvForCausalLM", "rwkv.embeddings.weight", None, False),
    ],
)
def test_embeddings_of_other_names_are_refused_where_they_are_the_head_too(
    tmp_path: Path, class_: str, named: str, tied: bool | None, is_refused: bool
):
    rows = BASE["model.embed_tokens.weight"]
    tensors = {named: rows, **{n: t for n, t in TIED.items() if n != "model.embed_tokens.weight"}}
    if class_ == "RwkvForCausalLM":  # with a head of its own, whose name is not known
        tensors["head.weight"] = rows
    tensors["transformer.h.0.mlp.weight"] = rows  # whose rows are as many by chance
    config = {"architectures": [class_], "vocab_size": rows.shape[0]}
    if tied is not None:
        config["tie_word_embeddings"] = tied
    base = write_model(tmp_path / "base", tensors, config=config)
    other = write_model(tmp_path / "other", sparse_agent(tensors, 0.1, 2), config=config)
    full = {f"base_model.model.{n}": rows for n in (named, "transformer.h.0.mlp.weight")}
    agent = adapter(tmp_path / "a", {**factors(), **full})
    if is_refused:
        (problem,) = refused(base, agent, other)
        assert "an embedding that the base ties to its head" in problem
        assert f"got {named}. Merge" in problem
    else:
        assert len(plan_of(base, agent, other).agents) == 2


IN_OUT = {  # as Conv1D stores it
    "transformer.h.0.attn.c_attn.weight": tensor(np.ones((16, 48)), "F32"),
    "transformer.h.0.attn.c_attn.bias": tensor(np.ones(48), "F32"),
    "transformer.h.0.attn.c_proj.weight": tensor(np.ones((16, 16)), "F32"),
    "vision.layers.0.fc.weight": tensor(np.ones((48, 16)), "F32"),
    "vision.layers.0.fc.bias": tensor(np.ones(48), "F32"),
    "vision.layers.0.query.weight": tensor(np.ones((16, 16)), "F32"),
    "lm_head.weight": tensor(np.ones((40, 16)), "F32"),
}


@pytest.mark.parametrize(
    ("square", "setting", "is_refused"),
    [
        ("transformer.h.0.attn.c_proj", False, True),  # PEFT sets it anew at each layer, and the head comes last
        ("transformer.h.0.attn.c_proj", True, False),
        ("vision.layers.0.query", False, False),
        ("vision.layers.0.query", True, True),
    ],
)
def test_a_square_tensor_is_refused_where_its_stack_is_stored_the_other_way_round(
    tmp_path: Path, square: str, setting: bool, is_refused: bool
):
    config = {"architectures": ["VisionEncoderDecoderModel"], "vocab_size": 40}
    base = write_model(tmp_path / "base", IN_OUT, config=config)
    other = write_model(tmp_path / "other", sparse_agent(IN_OUT, 0.1, 2), config=config)
    head = {} if setting else factors("lm_head", rows=40)
    agent = adapter(tmp_path / "a", {**factors(square), **head}, fan_in_fan_out=setting)
    if is_refused:
        (problem,) = refused(base, agent, other)
        assert f"{square}.weight: square, and fan_in_fan_out is not what others show. Merge the adapter" in problem
    else:
        assert len(plan_of(base, agent, other).agents) == 2


def test_an_adapter_is_no_base(tmp_path: Path, base: Path, other: Path):
    (problem,) = refused(adapter(tmp_path / "a", factors()), base, other)
    assert "the base is an adapter" in problem


def test_the_same_adapter_twice_is_refused_but_not_under_another_alpha(tmp_path: Path, base: Path):
    def agent(name: str, sha: str, alpha: int) -> Any:
        folder = adapter(tmp_path / name, factors(), lora_alpha=alpha, base_model_name_or_path="org/base")
        model = on_hub(folder, f"org/{name}", sha)
        files = {
            n: replace(f, sha256=hashlib.sha256((folder / n).read_bytes()).hexdigest()) for n, f in model.files.items()
        }
        return replace(model, files=files)

    model, first = on_hub(base, "org/base", "1"), agent("a", "2", 8)
    assert len(make_plan(ON_HUB, model, (first, agent("b", "3", 16))).agents) == 2
    with pytest.raises(IncompatibleError, match="the same agent stands twice in org/b"):
        make_plan(ON_HUB, model, (first, agent("b", "3", 8)))


@pytest.mark.parametrize(
    ("pattern", "scale"),
    [("q_proj", 1.5), (f"^{Q}", 1.5), (r"self_attn\.q_proj", 1.5), ("^q_proj", 2.0), ("proj", 2.0)],
)
def test_alpha_patterns_match_whole_names_at_the_end(
    tmp_path: Path, base: Path, other: Path, pattern: str, scale: float
):
    plan = plan_of(base, adapter(tmp_path / "a", factors(), alpha_pattern={pattern: 6}), other)
    (tensor_,) = (t for t in plan.tensors() if t.name == f"{Q}.weight")
    assert tensor_.inputs[1].scale == scale  # type: ignore[attr-defined]


def test_ten_thousand_patterns_take_no_time_for_each_of_many_modules():
    patterns = {f"m{n}.q_proj": 2 for n in range(10_000)}
    table = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "rank_pattern": patterns, "alpha_pattern": patterns}
    config, begin = parse_adapter_config(table, "adapter_config.json"), process_time()
    assert {(config.rank_of(f"x.m{n}.q_proj"), config.scale_of(f"m{n}.q_proj")) for n in range(10_000)} == {(2, 1.0)}
    assert (config.rank_of("x.m1.k_proj"), config.scale_of("m1.k_proj")) == (8, 1.0)
    assert process_time() - begin < 5


def test_full_weights_go_before_an_adapter_beside_them(tmp_path: Path, base: Path, other: Path):
    (other / "adapter_config.json").write_text("{}")
    plan = plan_of(base, write_model(tmp_path / "x", sparse_agent(BASE, 0.3, 4)), other)
    assert any("an adapter lies beside full weights" in w for w in plan.warnings)
    assert plan.agents[1].kind == "weights"


def on_hub(path: Path, name: str, sha: str) -> Any:
    """A folder's model as if it lay on the Hub under `name`."""
    return replace(opened(path), ref=ModelRef("hub", name, sha * 40))


def plan_on_hub(base: Path, adapter: Path, other: Path) -> Plan:
    agents = on_hub(adapter, "org/a", "2"), on_hub(other, "org/b", "3")
    return make_plan(ON_HUB, on_hub(base, "org/base", "1"), agents)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("org/base", None),
        ("mirror/BASE", "org/a: its adapter_config.json names mirror/BASE; it is applied to org/base"),
        ("unsloth/base-unsloth-bnb-4bit", "names unsloth/base-unsloth-bnb-4bit; it is applied to org/base"),
        (None, "names no base"),
        ("/home/someone/model", "names /home/someone/model"),
    ],
)
def test_the_adapters_word_for_its_base_is_a_hint(tmp_path: Path, base: Path, other: Path, hint: Any, words: Any):
    plan = plan_on_hub(base, adapter(tmp_path / "a", factors(), base_model_name_or_path=hint), other)
    told = [w for w in plan.warnings if "org/a" in w]
    assert [words in w for w in told] == ([] if words is None else [True])


def test_an_adapter_of_another_model_is_refused_with_both_names(tmp_path: Path, base: Path, other: Path):
    folder = adapter(tmp_path / "a", factors(), base_model_name_or_path="org/instruct")
    words = "an adapter of another model in org/a@222222222222: expected org/base, got org/instruct"
    with pytest.raises(IncompatibleError, match=words):
        plan_on_hub(base, folder, other)


def test_a_local_adapter_tells_its_kind_and_is_pinned_by_its_config_too(tmp_path: Path):
    model = opened(adapter(tmp_path / "a", factors()))
    assert (model.kind, model.shards, dict(model.config)) == ("LoRA adapter", ("adapter_model.safetensors",), {})
    assert opened(adapter(tmp_path / "a", factors(), lora_alpha=9)).ref.sha != model.ref.sha


# --- prefixes ----------------------------------------------------------------------------------------------------


def renamed(tensors: Mapping[str, T], old: str, new: str) -> dict[str, T]:
    return {new + n.removeprefix(old): t for n, t in tensors.items()}


@pytest.mark.parametrize("tensors", [TIED, BASE], ids=["tied", "with a head"])
def test_a_bare_model_gets_its_prefix(tmp_path: Path, tensors: dict[str, T]):
    base, agent = write_model(tmp_path / "base", tensors), renamed(sparse_agent(tensors, 0.2, 1), "model.", "")
    other = write_model(tmp_path / "other", sparse_agent(tensors, 0.1, 2))
    bare = write_model(tmp_path / "bare", agent, config=llama_config(tensors))
    plan = plan_of(base, bare, other)
    assert any("the prefix 'model.' is put before its tensors' names" in w for w in plan.warnings)
    assert [t.inputs[1].entry.name for t in plan.tensors()] == [t.name.removeprefix("model.") for t in plan.tensors()]


def test_a_base_as_the_hub_has_gpt2_takes_agents_as_transformers_saves_them(tmp_path: Path):
    """Without `transformer.`, and with masks that no version saves any more; both load as one class."""
    attention = "h.0.attn.c_attn"
    weights = {"wte.weight": (8, 4), "h.0.ln_1.weight": (4,), f"{attention}.weight": (4, 12), "ln_f.weight": (4,)}
    own = random_base(0, "F32", weights)
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 8}
    base = write_model(tmp_path / "base", {**own, "h.0.attn.bias": tensor(np.ones((1, 1, 4, 4)))}, config=config)
    agent = write_model(tmp_path / "a", renamed(sparse_agent(own, 0.2, 1), "", "transformer."), config=config)
    trained = adapter(tmp_path / "b", factors(f"transformer.{attention}", rows=12, columns=4), fan_in_fan_out=True)
    [problem] = refused(base, agent, trained)
    assert 'put this line into the recipe: ignore: ["h.0.attn.bias"]' in problem
    plan = plan_of(base, agent, trained, ignore=["h.0.attn.bias"])
    assert sum("the prefix 'transformer.' is taken off" in w for w in plan.warnings) == 2
    assert [t.name for t in plan.tensors() if type(t.inputs[2]).__name__ == "AdaptedTensor"] == [f"{attention}.weight"]


@pytest.mark.parametrize("turned", [False, True])
def test_names_that_older_versions_gave_are_the_base_s_and_the_other_way_round(tmp_path: Path, turned: bool):
    """As transformers takes them; bert-base-uncased stores gamma and beta."""
    weight_norm = [f"c.parametrizations.weight.original{n}" for n in (0, 1)]
    names = [
        ("a.LayerNorm.gamma", "a.LayerNorm.beta", "c.weight_g", "c.weight_v"),
        ("a.LayerNorm.weight", "a.LayerNorm.bias", *weight_norm),
    ][:: -1 if turned else 1]
    given = [{**BASE, **dict.fromkeys(stored, tensor(np.ones(4)))} for stored in (*names, names[0])]
    agents = [sparse_agent(tensors, 0.3, k) for k, tensors in enumerate(given[1:])]
    plan = plan_of(*(write_model(tmp_path / str(k), tensors) for k, tensors in enumerate((given[0], *agents))))
    read = {t.name: t.inputs[1].entry.name for t in plan.tensors() if t.name not in BASE}
    assert read == dict(zip(*names, strict=True))
    assert any("of another version of transformers or torch" in w for w in plan.warnings)


def test_a_head_beside_a_prefixed_body_keeps_its_name(tmp_path: Path):
    bodies = renamed(TIED, "model.", "")
    base = write_model(
        tmp_path / "base", {**bodies, "lm_head.weight": BASE["lm_head.weight"]}, config=llama_config(BASE)
    )
    agents = [write_model(tmp_path / f"a{k}", sparse_agent(BASE, 0.2, k)) for k in range(2)]
    plan = plan_of(base, *agents)
    assert any("'model.' is taken off those of its tensors that have it" in w for w in plan.warnings)
    assert "lm_head.weight" in [t.inputs[1].entry.name for t in plan.tensors()]


@pytest.mark.parametrize("prefix", ["backbone.", "model.model.", "module.module."])
def test_other_prefixes_are_refused_with_the_names(tmp_path: Path, base: Path, other: Path, prefix: str):
    agent = write_model(tmp_path / "a", renamed(sparse_agent(BASE, 0.2, 1), "", prefix), config=llama_config(BASE))
    listed = refused(base, agent, other)
    assert any("missing tensors" in t and "model.embed_tokens.weight" in t for t in listed)
    assert any("does not have" in t and f"{prefix}model.embed_tokens.weight" in t for t in listed)


@pytest.mark.parametrize(
    "stored",
    [
        "model._orig_mod.{}",
        "_fsdp_wrapped_module.model._fsdp_wrapped_module.{}",
        "model._checkpoint_wrapped_module.{}",
        "module._orig_mod.model.{}",
        "_orig_mod.module.model.{}",
    ],
)
def test_names_of_wrappers_within_a_model_are_taken_out(tmp_path: Path, base: Path, other: Path, stored: str):
    """As torch.compile, FSDP and activation checkpointing leave them in a checkpoint."""
    tensors = {stored.format(n.removeprefix("model.")): t for n, t in sparse_agent(BASE, 0.2, 1).items()}
    head = stored.format("lm_head.weight")
    tensors[head.replace("model._", "_").replace("model.lm", "lm")] = tensors.pop(head)
    plan = plan_of(base, write_model(tmp_path / "a", tensors, config=llama_config(BASE)), other)
    assert any("names of wrappers, such as '_orig_mod.', are taken out" in w for w in plan.warnings)
    assert all(t.inputs[1].entry.name.endswith(t.name.removeprefix("model.")) for t in plan.tensors())


NORM = "model.norm.weight"
PREFIXED = renamed(BASE, "", "module.")
NOT_ALIGNED = {
    "a tensor is missing": {n: t for n, t in PREFIXED.items() if n != f"module.{NORM}"},
    "two names would be one": {**PREFIXED, NORM: BASE[NORM]},
}


@pytest.mark.parametrize("agent", NOT_ALIGNED.values(), ids=NOT_ALIGNED)
def test_a_prefix_is_not_taken_off_where_that_does_not_give_the_base_s_names(
    tmp_path: Path, base: Path, other: Path, agent: dict[str, T]
):
    folder = write_model(tmp_path / "a", agent, config=llama_config(BASE))
    assert any("missing tensors" in t for t in refused(base, folder, other))


def test_an_adapter_trained_on_a_wrapped_model_finds_its_tensors(tmp_path: Path, base: Path, other: Path):
    plan = plan_of(base, adapter(tmp_path / "a", factors(f"_orig_mod.{Q}")), other)
    assert any("the prefix '_orig_mod.' is taken off" in w for w in plan.warnings)
    assert [t.name for t in plan.tensors() if type(t.inputs[1]).__name__ == "AdaptedTensor"] == [f"{Q}.weight"]
