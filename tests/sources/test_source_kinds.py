"""What stands in fp8, in an adapter or under other names is understood, or refused by its name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from builders import T, f32, llama_config, random_base, recipe_dict, sparse_agent, tensor, write_model
from plan_helpers import model, opened, plan, plan_of, problems, refused
from source_helpers import lora, pair, refuse_folder, write_adapter

from hubmerge.errors import FormatError
from hubmerge.hub.names import FileInfo
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.plan import make_comparison
from hubmerge.recipe.ignore import ignored_by
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.adapter_config import AdapterConfig, parse_adapter_config
from hubmerge.sources.base import Model, Views
from hubmerge.sources.derived import AdaptedTensor, fp8_values
from hubmerge.sources.lora import attached
from hubmerge.sources.remedies import Place
from hubmerge.sources.same_tensors import aligned, tied_to_head

Q = "model.layers.0.self_attn.q_proj"
BASE = random_base(0)
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
LAYERS = {name: t.shape for name, t in BASE.items()}
ON_HUB = model("org/base", LAYERS, config=llama_config(BASE, tie_word_embeddings=False))
WRAPPER = "base_model.model."


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
def test_fp8_is_decoded_exactly(dtype, values):
    found = fp8_values(np.array([*values], np.uint8), dtype)
    assert np.array_equal(found, np.array([*values.values()], np.float32), equal_nan=True)


def fp8_agent(folder: Path, extra: Mapping[str, T], config: Any = None, key: str = "quantization_config") -> Path:
    tensors = {**BASE, f"{Q}.weight": tensor(f32(BASE[f"{Q}.weight"]), "F8_E4M3"), **extra}
    return write_model(folder, tensors, config=llama_config(BASE, **{key: config}))


SCALE = tensor(0.5, "F32")
BAD_FP8: dict[str, tuple[dict[str, T], str]] = {
    "no scale": ({}, f"fp8 with its scales, or integers as in the base, got {Q}.weight (F8_E4M3)"),
    "another shape": ({f"{Q}.weight_scale_inv": tensor(np.ones((2, 1)), "F32")},
                      f"one per block of 128×128, got {Q}.weight 16×16 with F32 2×1"),
    "integer scales": ({f"{Q}.weight_scale": tensor([3], "U8")}, f"{Q}.weight 16×16 with U8 1"),
    "no matrix of scales": ({f"{Q}.weight_scale": tensor(np.ones((1, 2, 3)), "F32")}, "16×16 with F32 1×2×3"),
    "a scale of nothing": ({"model.norm.weight_scale": SCALE, f"{Q}.weight_scale": SCALE},
                           "got model.norm.weight_scale"),
    "two scales": ({f"{Q}.weight_scale": SCALE, f"{Q}.weight_scale_inv": SCALE}, "with F32 scalar and F32 scalar"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FP8)
def test_fp8_that_is_not_understood_is_refused_with_its_names(name, tmp_path, base, other):
    extra, words = BAD_FP8[name]
    listed = refused(base, fp8_agent(tmp_path / "agent", extra), other)
    assert any(words in text for text in listed), listed


PLAIN_FP8 = [
    {"quant_method": "fp8", "weight_block_size": [8, 4]},
    {"quant_method": "fbgemm_fp8"},
    {"quant_method": "compressed-tensors", "format": "float-quantized"},
]


@pytest.mark.parametrize(
    ("key", "config"), [*(("quantization_config", c) for c in PLAIN_FP8[:2]), ("compression_config", PLAIN_FP8[2])]
)
def test_plain_fp8_is_accepted_and_scales_are_no_tensors_of_the_model(tmp_path, base, other, key, config):
    shape = (2, 4) if "weight_block_size" in config else (16, 1)
    scales = {f"{Q}.weight_scale": tensor(np.ones(shape), "F32"), f"{Q}.input_scale": SCALE}
    plan = plan_of(base, fp8_agent(tmp_path / "agent", scales, config, key), other)
    assert {t.dtype for t in plan.tensors()} == {"BF16"}
    assert not [t.name for t in plan.tensors() if "scale" in t.name]
    assert any(f"scales of activations are left out: {Q}.input_scale" in w for w in plan.warnings)
    assert plan_summary(plan)["kinds"] == ["weights", "fp8 weights", "weights"]


ROTATED = {**PLAIN_FP8[-1], "transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}


@pytest.mark.parametrize(
    "config", [{"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}, ROTATED, {"x": 1}, "fp8"]
)
def test_a_quantization_beside_fp8_is_refused(tmp_path, base, other, config):
    agent = fp8_agent(tmp_path / "agent", {f"{Q}.weight_scale": SCALE}, config)
    assert "quantized weights" in refused(base, agent, other)[0]


def test_an_fp8_base_becomes_bfloat16_unless_a_dtype_is_named(tmp_path, other):
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

Shapes = dict[str, tuple[int, ...]]


def factors(module: str = Q, rank: int = 4, rows: int = 16, columns: int = 16) -> Shapes:
    """A pair of lora_A and lora_B, under PEFT's wrapper."""
    return {f"{WRAPPER}{module}.lora_A.weight": (rank, columns), f"{WRAPPER}{module}.lora_B.weight": (rows, rank)}


def adapter(shapes: Shapes, dtypes: Mapping[str, str] | None = None, name: str = "org/a", **settings: Any) -> Model:
    settings = {"rank": 4, "alpha": 8.0, "base_name": "org/base", **settings}
    return replace(model(name, shapes, dtypes=dtypes), adapter=AdapterConfig(**settings))


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "expected LORA, got 'LOHA'. If PEFT can merge it into its base, use the result as an agent.": {"peft_type": "LOHA"},
    "use_dora: True": {"use_dora": True},
    "target_parameters: ['experts.down_proj']": {"target_parameters": ["experts.down_proj"]},
    "layer_replication: [[0, 4], [2, 5]]": {"layer_replication": [[0, 4], [2, 5]]},
    "init_lora_weights: 'pissa' (it changes the base's weights, too)": {"init_lora_weights": "pissa"},
    "lora_bias: True": {"lora_bias": True},
    "use_qalora: True": {"use_qalora": True},
    "trainable_token_indices: [1]": {"trainable_token_indices": [1]},
    "alora_invocation_tokens: [5]": {"alora_invocation_tokens": [5]},
    "megatron_config: {'a': 1}": {"megatron_config": {"a": 1}},
    "init_lora_weights: 'loftq'": {"init_lora_weights": "loftq"},
    "init_lora_weights: [1]": {"init_lora_weights": [1]},
    "something_new: 'x', lora_bias: True": {"something_new": "x", "lora_bias": True},
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
def test_an_adapter_that_is_not_plain_lora_is_refused_with_its_settings(words):
    with pytest.raises(FormatError) as caught:
        parse_adapter_config({"peft_type": "LORA", **BAD_SETTINGS[words]}, "adapter_config.json")
    assert words in str(caught.value)


@pytest.mark.parametrize("way", ["gaussian", "eva", "orthogonal", "mica"])
def test_an_adapter_that_was_drawn_otherwise_over_the_same_base_is_plain_lora(way):
    assert parse_adapter_config({"peft_type": "LORA", "init_lora_weights": way}, "adapter_config.json").scale_of(Q) == 1


def test_alpha_patterns_match_whole_names_at_the_end():
    scales = {"q_proj": 1.5, f"^{Q}": 1.5, r"self_attn\.q_proj": 1.5, "^q_proj": 2.0, "proj": 2.0}
    for pattern, scale in scales.items():
        table = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "alpha_pattern": {pattern: 6}}
        assert parse_adapter_config(table, "adapter_config.json").scale_of(Q) == scale, pattern


def test_ten_thousand_patterns_take_no_time_for_each_of_many_modules():
    patterns = {f"m{n}.q_proj": 2 for n in range(10_000)}
    table = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "rank_pattern": patterns, "alpha_pattern": patterns}
    config, begin = parse_adapter_config(table, "adapter_config.json"), process_time()
    assert {(config.rank_of(f"x.m{n}.q_proj"), config.scale_of(f"m{n}.q_proj")) for n in range(10_000)} == {(2, 1.0)}
    assert (config.rank_of("x.m1.k_proj"), config.scale_of("m1.k_proj")) == (8, 1.0)
    assert process_time() - begin < 5


PAIR = factors()
A_ALONE = dict([*PAIR.items()][:1])
BAD_ADAPTERS: dict[str, Model] = {
    f"got {WRAPPER}{Q}.lora_magnitude_vector": adapter({**PAIR, f"{WRAPPER}{Q}.lora_magnitude_vector": (16,)}),
    f"got {WRAPPER}{Q}.lora_A.other.weight": adapter({f"{WRAPPER}{Q}.lora_A.other.weight": ()}),
    f"got {Q}.weight (no B)": adapter(A_ALONE),
    f"full tensors, got {Q}.lora_A.weight": adapter({**PAIR, f"{Q}.lora_A.weight": (4, 16)}),
    "without a pair of lora_A and lora_B": adapter({f"{WRAPPER}{HEAD}": (40, 16)}),
    "tensors that the base does not have": adapter(factors("model.layers.9.mlp.up_proj")),
    "If it is that one: merge the adapter into its base with PEFT": adapter(factors(f"model.language_{Q}")),
    f"got {WRAPPER}{HEAD}": adapter({**PAIR, HEAD: (40, 16), f"{WRAPPER}{HEAD}": (40, 16)}),
    f"{Q}.weight: A 4×15, B 16×4, W 16×16": adapter(factors(columns=15)),
    f"{Q}.weight: A 4×16, B 16×3, W 16×16": adapter({**PAIR, f"{WRAPPER}{Q}.lora_B.weight": (16, 3)}),
    f"{EMBEDDING}: A 4×16, B 40×4, W 40×16": adapter(
        {f"{WRAPPER}model.embed_tokens.lora_embedding_{part}": s for part, s in (("A", (4, 16)), ("B", (40, 4)))}
    ),
    f"{Q}.weight: rank 2, where adapter_config.json says 4": adapter(factors(rank=2)),
    f"{Q}.weight: rank 4, where adapter_config.json says 3": adapter(PAIR, rank_pattern={"q_proj": (0, 3)}),
    "model.norm.weight: A 4×16, B 16×4, W 16": adapter(factors("model.norm")),
    f"{Q}.weight: square, and fan_in_fan_out is not what others show": adapter(
        {**PAIR, **factors("model.layers.0.mlp.up_proj", rows=24)}, fan_in_fan_out=True
    ),
    f"{Q}.weight: A I32, B I32, W BF16": adapter(PAIR, dict.fromkeys(PAIR, "I32")),
    "an adapter of another model in org/a@6f72672f6100: expected org/base, got org/instruct": adapter(
        PAIR, base_name="org/instruct"
    ),
}


@pytest.mark.parametrize(
    ("more", "words"), [({"model.norm.weight": (3,)}, "other shapes"), ({f"{Q}.bias": (16,)}, "does not have in")]
)
def test_whole_tensors_beside_an_adapter_s_pairs_are_those_of_the_base(more, words):
    agent = adapter({**PAIR, **{f"{WRAPPER}{name}": shape for name, shape in more.items()}})
    listed = problems(ON_HUB, agent, model("org/c", LAYERS, config=ON_HUB.config))
    assert any(words in text and next(iter(more)) in text for text in listed), listed


def as_model(base: Model, agent: Model) -> Views:
    view = Views(base, [])
    view.agents = [attached(base, agent, view)]
    return view


@pytest.mark.parametrize("words", BAD_ADAPTERS)
def test_an_adapter_that_fits_nothing_is_refused_with_its_names(words):
    listed = [str(problem) for problem in as_model(ON_HUB, BAD_ADAPTERS[words]).problems]
    assert any(words in text for text in listed), listed


def test_an_adapter_of_tied_embeddings_is_refused():
    tied = model("org/base", {name: shape for name, shape in LAYERS.items() if name != HEAD})
    whole = {f"{WRAPPER}{name}": (40, 16) for name in (HEAD, EMBEDDING)}
    told = str(as_model(tied, adapter({**PAIR, **whole})).problems[0])
    assert "an adapter of an embedding that the base ties to its head" in told
    assert f"got {HEAD}, {EMBEDDING}. Merge" in told


def test_an_embedding_of_any_name_is_known_where_it_is_the_head_too():
    rows, own = (8, 4), "x.word_embeddings.weight"
    for class_, tied, more, is_head in (
        ("BloomForCausalLM", True, {}, True),
        ("BertForMaskedLM", None, {}, True),
        ("BloomForCausalLM", False, {}, False),
        ("BertForSequenceClassification", True, {}, False),
        ("RwkvForCausalLM", None, {"head.weight": rows}, False),  # with a head of its own, whose name is not known
    ):
        config = {"architectures": [class_], "vocab_size": 8, "tie_word_embeddings": tied}
        by_chance = {"h.0.mlp.weight": rows}  # whose rows are as many
        base = model("org/base", {own: rows, **by_chance, **more}, config=config)
        assert tied_to_head(base, [own, *by_chance]) == [own] * is_head, class_


@pytest.mark.parametrize(
    ("square", "setting", "is_refused"),
    [
        ("transformer.h.0.attn.c_proj", False, True),  # PEFT sets it anew at each layer, and the head comes last
        ("transformer.h.0.attn.c_proj", True, False),
        ("vision.layers.0.query", True, True),
    ],
)
def test_a_square_tensor_is_refused_where_its_stack_is_stored_the_other_way_round(square, setting, is_refused):
    in_out = {"transformer.h.0.attn.c_attn": (16, 48), "transformer.h.0.attn.c_proj": (16, 16)}  # as Conv1D stores it
    out_in = {"vision.layers.0.fc": (48, 16), "vision.layers.0.query": (16, 16), "lm_head": (40, 16)}
    shapes: Shapes = {f"{name}.weight": shape for name, shape in (in_out | out_in).items()}
    shapes |= {"transformer.h.0.attn.c_attn.bias": (48,), "vision.layers.0.fc.bias": (48,)}
    base = model("org/base", shapes, config={"architectures": ["VisionEncoderDecoderModel"], "vocab_size": 40})
    head = {} if setting else factors("lm_head", rows=40)
    told = [str(p) for p in as_model(base, adapter({**factors(square), **head}, fan_in_fan_out=setting)).problems]
    said = f"{square}.weight: square, and fan_in_fan_out is not what others show. Merge the adapter"
    assert [said in text for text in told] == [True] * is_refused


@pytest.mark.parametrize("hint", ["org/base", "unsloth/BASE-unsloth-bnb-4bit", None, "/home/someone/model"])
def test_the_adapters_word_for_its_base_is_a_hint(hint):
    told = f"org/a: its adapter_config.json names {hint or 'no base'}; it is applied to org/base"
    assert as_model(ON_HUB, adapter(PAIR, base_name=hint)).warnings == [told] * (hint != "org/base")


def test_an_adapter_trained_on_a_wrapped_model_finds_its_tensors():
    view = as_model(ON_HUB, adapter(factors(f"_orig_mod.{Q}")))
    assert ["the prefix '_orig_mod.' is taken off" in words for words in view.warnings] == [True]
    assert [name for name, t in view.agents[0].tensors.items() if isinstance(t, AdaptedTensor)] == [f"{Q}.weight"]


def test_an_adapter_is_no_base_and_no_agent_twice_but_under_another_alpha():
    other = model("org/c", LAYERS, config=ON_HUB.config)
    [problem] = problems(adapter(PAIR), ON_HUB, other)
    assert "the base is an adapter" in problem
    one, two = adapter(PAIR), adapter(PAIR, name="org/b", alpha=16.0)
    files = {name: replace(info, sha256="0" * 64) for name, info in one.files.items()}
    assert len(plan(ON_HUB, replace(one, files=files), replace(two, files=files)).agents) == 2
    [problem] = problems(ON_HUB, *(replace(a, files=files) for a in (one, replace(two, adapter=one.adapter))))
    assert "the same agent stands twice in org/b" in problem


def test_full_weights_go_before_an_adapter_beside_them(tmp_path, base, other):
    (other / "adapter_config.json").write_text("{}")
    plan = plan_of(base, write_model(tmp_path / "x", sparse_agent(BASE, 0.3, 4)), other)
    assert any("an adapter lies beside full weights" in w for w in plan.warnings)
    assert plan.agents[1].kind == "weights"


def test_a_local_adapter_tells_its_kind_and_is_pinned_by_its_config_too(tmp_path):
    factors = pair(Q, *lora((16, 16)))
    model = opened(write_adapter(tmp_path / "a", factors))
    assert (model.kind, model.shards, dict(model.config)) == ("LoRA adapter", ("adapter_model.safetensors",), {})
    assert opened(write_adapter(tmp_path / "a", factors, lora_alpha=9)).ref.sha != model.ref.sha


def test_a_pickled_adapter_is_refused_and_not_opened(tmp_path):
    folder = write_adapter(tmp_path / "a", pair(Q, *lora((16, 16))))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    text = refuse_folder(FormatError, folder)
    assert "expected adapter_model.safetensors, got adapter_model.bin (pickled, which can run code)" in text


# --- what is no model --------------------------------------------------------------------------------------------


TRAINED = {
    "step_9/actor/model_world_size_2_rank_1.pt": "python -m verl.model_merger merge --backend fsdp --local_dir",
    "zero_to_fp32.py": "--safe_serialization",
    "pytorch_model_fsdp_0/__0_0.distcp": "accelerate merge-weights",
    "pytorch_model_fsdp.bin": "/pytorch_model.bin",
    "adapters.safetensors": "mlx_lm.fuse --model BASE --adapter-path",
}


@pytest.mark.parametrize("file", TRAINED)
def test_what_a_trainer_keeps_in_its_own_format_is_refused_with_the_command_that_converts_it(tmp_path, file):
    folder = tmp_path / "a run"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).touch()
    (folder / "adapter_config.json").write_text("{}")
    told = refuse_folder(FormatError, folder)
    assert TRAINED[file] in told
    assert f"'{folder}'" in told, "it is quoted for a shell"


def test_adapters_in_a_folder_of_a_repo_are_fetched_by_the_command_that_is_told():
    files = {name: FileInfo(name, 1) for name in ("README.md", "math/adapter_config.json")}
    place = Place("org/a@1", "org/a", None, files, {}, lambda path, start, end: b"", lambda path, most: b"")
    told = str(place.without_weights("model.safetensors", {}))
    assert "Fetch it (`hf download org/a --include 'math/*' --local-dir org-a`), and name ./org-a/math." in told


def test_what_a_trainer_keeps_on_the_hub_is_fetched_before_it_is_converted():
    files = {"zero_to_fp32.py": FileInfo("zero_to_fp32.py", 1)}
    place = Place("org/a@1", "org/a", None, files, {}, lambda path, start, end: b"", lambda path, most: b"")
    told = str(place.without_weights("model.safetensors", {}))
    assert "name ./org-a: hf download org/a --local-dir org-a && python org-a/zero_to_fp32.py org-a org-a --" in told


@pytest.mark.parametrize(("file", "kind"), [("a-Q4.gguf", "GGUF, quantized"), ("onnx/model.onnx", "ONNX, made")])
def test_what_was_made_for_inference_leads_to_the_model_that_its_card_names(file, kind):
    card = {"base_model": "org/whole"}
    place = Place("org/a@1", "org/a", None, {file: FileInfo(file, 1)}, card, lambda *at: b"", lambda path, most: b"")
    told = str(place.without_weights("model.safetensors", {}))
    assert f"got {file} ({kind} for inference). Name org/whole instead." in told


BELOW: dict[tuple[str, ...], str] = {
    ("run/zero_to_fp32.py", "run/model.safetensors"): "models in run. Name one: {}/run.",
    ("a/model_world_size_1_rank_0.pt", "a/huggingface/model.safetensors"): "models in a/huggingface. Name one",
    ("run/zero_to_fp32.py", "run/adapter_config.json"): "adapters in run. Name one: {}/run.",
    # verl's merger writes the weights that an adapter was trained on, too
    (
        "a/model_world_size_1_rank_0.pt",
        "a/huggingface/model.safetensors",
        "a/huggingface/lora_adapter/adapter_config.json",
    ): "adapters in a/huggingface/lora_adapter. Name one",
    (
        "a/model_world_size_1_rank_0.pt",
        "a/lora_train_meta.json",
        "a/huggingface/model.safetensors",  # that of the base; of a run's folder no adapter below is seen
    ): "an adapter's shards of verl in a. If you trust it, convert it, and name {}/a/huggingface/lora_adapter: python",
    (
        "checkpoint-9/pytorch_model.bin",
        "checkpoint-10/pytorch_model.bin",
    ): "pickled models in checkpoint-10, checkpoint-9",
    # as PEFT saves adapters of other names; what a shell would take for something else is not told
    (
        "math/adapter_config.json",
        "code/adapter_config.json",
        "a 'b'/adapter_config.json",
    ): "adapters in code, math. Name",
}


@pytest.mark.parametrize("files", BELOW)
def test_a_model_or_an_adapter_below_is_named_the_latest_first(tmp_path, files):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert f"got {BELOW[files].format(tmp_path)}" in refuse_folder(FormatError, tmp_path)


# --- prefixes ----------------------------------------------------------------------------------------------------


NAMES, BARE = [*BASE], [name.removeprefix("model.") for name in BASE]
# as bert-base-uncased stores gamma and beta, and torch's older weight norms
OLDER = [*NAMES, "a.LayerNorm.gamma", "a.LayerNorm.beta", "c.weight_g", "c.weight_v"]
NEWER = [*NAMES, "a.LayerNorm.weight", "a.LayerNorm.bias"]
NEWER += [f"c.parametrizations.weight.original{n}" for n in (0, 1)]
# models that see, as files have them (Qwen2.5-VL, LLaVA), and as their classes do, whose names adapters have
QWEN_VL = ["lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "visual.a.weight"]
LLAVA = [f"language_model.{n}" for n in QWEN_VL[:3]] + ["vision_tower.a.weight"]
IN_CLASSES = [QWEN_VL[0], *(n.replace("model.", "model.language_model.") for n in QWEN_VL[1:3]), "model.{}.a.weight"]
OTHER_VERSION, WRAPPERS = "of another version of transformers or torch", "names of wrappers, such as '_orig_mod.'"
# the base's names, an agent's, and what is said
ALIGNED: dict[str, tuple[list[str], list[str], str]] = {
    "the base's prefix": (NAMES, BARE, "the prefix 'model.' is put before its tensors' names"),
    "a prefix beside a head": (BARE, NAMES, "the prefix 'model.' is taken off those of its tensors that have it"),
    "older names": (NEWER, OLDER, OTHER_VERSION),
    "newer names": (OLDER, NEWER, OTHER_VERSION),
    "Qwen2.5-VL in its class": (QWEN_VL, [n.format("visual") for n in IN_CLASSES], OTHER_VERSION),
    "Qwen2.5-VL from files": ([n.format("visual") for n in IN_CLASSES], QWEN_VL, OTHER_VERSION),
    "LLaVA in its class": (LLAVA, [n.format("vision_tower") for n in IN_CLASSES], OTHER_VERSION),
    "torch.compile": (NAMES, [f"_orig_mod.module.{n}" for n in NAMES], WRAPPERS),
    "torch.compile within": (NAMES, [n.replace("model.", "model._orig_mod.", 1) for n in NAMES], WRAPPERS),
    "DDP of a compiled model": (NAMES, [f"module._orig_mod.{n}" for n in NAMES], WRAPPERS),
    "checkpointing": (NAMES, [n.replace("model.", "model._checkpoint_wrapped_module.", 1) for n in NAMES], WRAPPERS),
    "FSDP": (NAMES, [n.replace("model.", "_fsdp_wrapped_module.model._fsdp_wrapped_module.") for n in NAMES], WRAPPERS),
}
PREFIXED = [f"module.{name}" for name in NAMES]
NOT_ALIGNED = {
    "a model's own": [f"backbone.{name}" for name in NAMES],
    "the base's twice": [f"model.model.{name}" for name in NAMES],
    "another prefix": [f"module.module.{name}" for name in NAMES],
    "two names would be one": [*PREFIXED, "model.norm.weight"],
    "half of them": PREFIXED[: len(NAMES) // 2 - 1],
}


def names_read(base: list[str], agent: list[str]) -> tuple[dict[str, str], list[str]]:
    """The agent's names by those that the merge has for them, and what is said of it."""
    own, other = (model(name, dict.fromkeys(names, (4,))) for name, names in (("org/base", base), ("org/a", agent)))
    view = Views(own, [other])
    read = aligned(own, other, ignored_by([]), view, whole=True)
    return {name: stored.entry.name for name, stored in read.tensors.items()}, view.warnings


@pytest.mark.parametrize("case", ALIGNED)
def test_names_that_differ_by_a_prefix_an_age_or_wrappers_are_the_base_s(case):
    base, agent, words = ALIGNED[case]
    read, [told] = names_read(base, agent)
    assert read == dict(zip(base, agent, strict=True))
    assert words in told


def test_a_base_under_a_wrapper_s_names_which_nothing_loads_is_refused_and_may_be_compared(tmp_path):
    compiled = {f"_orig_mod.{n}": t for n, t in BASE.items()}
    base = write_model(tmp_path / "compiled", compiled, config=llama_config(BASE))
    agents = [write_model(tmp_path / f"a{k}", sparse_agent(BASE, 0.2, k)) for k in (1, 2)]
    [told] = refused(base, *agents)
    assert "names of a wrapper, such as torch.compile's, which nothing loads" in told
    assert "got _orig_mod." in told
    recipe = recipe_from_dict(recipe_dict(base, agents[:1]))
    assert make_comparison(recipe, opened(base), opened(agents[0])).agents


@pytest.mark.parametrize("agent", NOT_ALIGNED.values(), ids=NOT_ALIGNED)
def test_names_that_no_single_prefix_explains_stay_as_they_are(agent):
    assert names_read(NAMES, agent) == (dict(zip(agent, agent, strict=True)), [])


def test_a_prefix_is_taken_off_although_a_tensor_is_missing_or_too_many():
    """Then these are told by the base's names."""
    for agent in (PREFIXED[1:], [*PREFIXED, "module.v_head.weight"]):
        assert names_read(NAMES, agent)[0] == {name.removeprefix("module."): name for name in agent}


def test_a_base_as_the_hub_has_gpt2_takes_agents_as_transformers_saves_them(tmp_path):
    """Without `transformer.`, and with masks that no version saves any more; both load as one class."""
    attention = "h.0.attn.c_attn"
    weights = {"wte.weight": (8, 4), "h.0.ln_1.weight": (4,), f"{attention}.weight": (4, 12), "ln_f.weight": (4,)}
    own = random_base(0, "F32", weights)
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 8}
    base = write_model(tmp_path / "base", {**own, "h.0.attn.bias": tensor(np.ones((1, 1, 4, 4)))}, config=config)
    trained = {f"transformer.{n}": t for n, t in sparse_agent(own, 0.2, 1).items()}
    agent = write_model(tmp_path / "a", trained, config=config)
    pairs = pair(f"transformer.{attention}", *lora((12, 4)))
    tuned = write_adapter(tmp_path / "b", pairs, fan_in_fan_out=True)
    [problem] = refused(base, agent, tuned)
    assert 'put this line into the recipe: ignore: ["h.0.attn.bias"]' in problem
    plan = plan_of(base, agent, tuned, ignore=["h.0.attn.bias"])
    assert sum("the prefix 'transformer.' is taken off" in w for w in plan.warnings) == 2
    assert [t.name for t in plan.tensors() if type(t.inputs[2]).__name__ == "AdaptedTensor"] == [f"{attention}.weight"]
