"""The plan finds everything that forbids a merge at once, and lays out files that the reference reader accepts."""

from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from builders import random_base, sparse_agent, tensor, write_model
from plan_helpers import BASE, CONFIG, NOWHERE, SHAPES, A, B, assert_laid_out, model, plan, plan_of, problems, refused

from hubmerge.errors import IncompatibleError
from hubmerge.hub.names import FileInfo
from hubmerge.line import Request, prepare
from hubmerge.plan.compatibility import refuse_equal_folders
from hubmerge.plan.plan import WHOLE_SHARD_BYTES
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.adapter_config import AdapterConfig
from hubmerge.sources.base import Model


def without(name: str) -> dict[str, tuple[int, ...]]:
    return {n: s for n, s in SHAPES.items() if n != name}


# --- incompatibilities -------------------------------------------------------------------------------------------

NORM = "model.norm.weight"
BAD: dict[str, tuple[Model, str]] = {
    "architecture": (
        model("org/x", config={**CONFIG, "architectures": ["QwenForCausalLM"]}),
        "another architecture in org/x@6f72672f7800: expected LlamaForCausalLM, got QwenForCausalLM",
    ),
    "config size": (
        model("org/x", config={**CONFIG, "num_hidden_layers": 2}),
        "another num_hidden_layers in config.json of org/x@6f72672f7800: expected 1, got 2",
    ),
    "vocabulary": (
        model("org/x", {**SHAPES, "model.embed_tokens.weight": (9, 4)}),
        "another vocabulary size, and no tokenizer that names the added tokens in org/x@6f72672f7800: expected 8 rows, "
        "or a tokenizer.json of base and agent that names the added ones, got model.embed_tokens.weight of 9 rows",
    ),
    "shape": (
        model("org/x", {**SHAPES, NORM: (5,)}),
        "other shapes in org/x@6f72672f7800: expected the base's shapes, got model.norm.weight: 4 → 5",
    ),
    "transposed": (
        model("org/x", {**SHAPES, "model.layers.0.mlp.up_proj.weight": (4, 6)}),
        "got model.layers.0.mlp.up_proj.weight: 6×4 → 4×6",
    ),
    "missing": (model("org/x", without(NORM)), "missing tensors in org/x@6f72672f7800: expected model.norm"),
    "extra": (
        model("org/x", {**SHAPES, "model.extra": (2,)}),
        "tensors that the base does not have in org/x@6f72672f7800: got model.extra",
    ),
    "dtype": (model("org/x", dtypes={NORM: "F64"}), "got model.norm.weight (F64)"),
    "integers": (model("org/x", dtypes={NORM: "I32"}), "got model.norm.weight (I32)"),
    "quantized": (
        model("org/x", config={**CONFIG, "quantization_config": {"quant_method": "gptq"}}),
        "quantized weights",
    ),
    "the base's commit": (BASE, "an agent is the base itself in org/base"),
    "the base's bytes": (
        model("org/x", sha256=BASE.files["model.safetensors"].sha256),
        "an agent is the base itself in org/x@6f72672f7800: got shards with the same sha256",
    ),
    "another agent's bytes": (
        model("org/x", sha256=A.files["model.safetensors"].sha256),
        "the same agent stands twice in org/x",
    ),
    "another agent": (A, "the same agent stands twice in org/a"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_agent_that_does_not_fit_is_named_with_its_reason(name):
    agent, words = BAD[name]
    (problem,) = problems(BASE, A, B, agent)
    assert words in problem
    assert "Remove" in problem or "dtype" in problem or "quantization" in problem


def test_all_problems_of_all_agents_are_listed_together():
    agents = [agent for agent, _ in BAD.values() if agent not in (BASE, A)]
    bad = [replace(a, ref=ModelRef("hub", f"org/bad-{n}", f"{n:040x}")) for n, a in enumerate(agents)]
    listed = problems(BASE, A, *bad)
    for number in range(len(bad)):
        assert any(f"org/bad-{number}@" in text for text in listed), (number, listed)


def test_one_agent_can_have_several_problems():
    shapes = {**without(NORM), "model.layers.0.mlp.up_proj.weight": (7, 4), "x": (1,)}
    listed = problems(BASE, A, model("org/x", shapes, config={**CONFIG, "hidden_size": 5}))
    assert [text.split(" in ")[0] for text in listed] == [
        "E_INCOMPATIBLE: another hidden_size",
        "E_INCOMPATIBLE: missing tensors",
        "E_INCOMPATIBLE: tensors that the base does not have",
        "E_INCOMPATIBLE: other shapes",
    ]


def test_a_vocabulary_size_is_compared_where_the_rows_are_alike():
    smaller = {**CONFIG, "vocab_size": 7}
    assert any("another vocab_size" in problem for problem in problems(BASE, A, model("org/x", config=smaller)))
    cut = model("org/x", {**SHAPES, "model.embed_tokens.weight": (7, 4)}, config=smaller)
    [problem] = problems(BASE, A, cut)
    assert "another vocabulary size or shape" in problem


def test_the_method_may_refuse_the_weights():
    agents = [{"model": "org/a", "weight": 1}, {"model": "org/b", "weight": -1}]
    (problem,) = problems(BASE, A, B, method="linear", agents=agents)
    assert "add up to 0" in problem


def test_a_base_of_integers_alone_is_refused():
    dtypes = dict.fromkeys(SHAPES, "I32")
    (problem,) = problems(*(model(n, dtypes=dtypes) for n in ("org/base", "org/a", "org/b")))
    assert "nothing to merge" in problem


@pytest.mark.parametrize("end", ["", "._data"])  # the second as optimum-quanto writes it
def test_weights_of_integers_are_refused_before_they_are_fetched_though_no_config_calls_them_quantized(end):
    plain, positions = "model.layers.0.mlp.up_proj.weight", "model.position_ids"
    weight = plain + end

    def made(name: str) -> Model:
        shapes = {weight if n == plain else n: shape for n, shape in SHAPES.items()}
        return model(name, {**shapes, positions: (1, 8)}, dtypes={weight: "U8", positions: "I64"})

    models = made("org/base"), made("org/a"), made("org/b")
    (problem,) = problems(*models)
    assert "quantized weights, which stand for others than they store in org/base@6f72672f6261: expected" in problem
    assert f"got {weight} (U8). Name the model before" in problem
    assert {t.name for t in plan(*models, ignore=[weight]).tensors() if t.action == "copy"} == {weight, positions}
    floats = model("org/base", {**SHAPES, positions: (1, 8)}, dtypes={positions: "I64"})
    of_agent = problems(floats, *models[1:])[0]
    assert ("they store in org/a@" in of_agent) == bool(end), "else its dtype is told"


def test_of_a_quantized_base_no_agent_is_blamed():
    config = {**CONFIG, "quantization_config": {"ignore": ["lm_head"], "quant_method": "awq"}}
    base = model("org/base", {**SHAPES, "model.layers.0.mlp.up_proj.weight": (6, 1), NORM: (5,)}, config=config)
    adapter = replace(model("org/b", {"base_model.model.x.lora_A.weight": (7,)}), adapter=AdapterConfig(8, 16.0))
    (problem,) = problems(base, A, adapter)
    assert "in config.json of org/base@" in problem
    assert "got {'quant_method': 'awq', 'ignore'" in problem, "its kind comes first"


def test_an_agent_that_is_the_base_beside_an_adapter_is_told_of_it():
    """As verl's merger leaves those of an adapter: the weights that it was trained on, and the adapter below."""
    name = "lora_adapter/adapter_config.json"
    agent = model("org/x", sha256=BASE.files["model.safetensors"].sha256)
    (problem,) = problems(BASE, A, B, replace(agent, files={**agent.files, name: FileInfo(name, 1)}))
    assert "Remove it: it changes nothing. Or name its adapter (lora_adapter/adapter_config.json)" in problem


def test_many_tensors_are_counted_rather_than_all_named():
    shapes = {**SHAPES, **{f"extra.{i}": (1,) for i in range(12)}}
    (problem,) = problems(BASE, A, model("org/x", shapes))
    assert "extra.4 and 7 more" in problem
    assert "extra.5" not in problem


def test_what_is_wrong_with_an_agent_that_stands_twice_is_told_once():
    bad = model("org/x", without(NORM))
    told = problems(BASE, bad, bad)
    assert sum("missing tensors" in text for text in told) == 1


def test_thousands_of_strange_tensors_are_told_at_once():
    begin = process_time()
    (problem,) = problems(BASE, A, model("org/x", {**SHAPES, **{f"x{i}z": (1,) for i in range(3000)}}))
    assert "and 2995 more" in problem
    assert "ignore" not in problem
    half, whole = ({**SHAPES, **{f"layers.{i}.w": (1,) for i in range(n)}} for n in (10_000, 20_000))
    assert "and 9995 more" in problems(model("org/base", whole), model("org/a", whole), model("org/b", half))[0]
    assert process_time() - begin < 5


def test_a_hostile_config_does_not_flood_the_message():
    assert len(problems(BASE, A, model("org/x", config={**CONFIG, "hidden_size": ["x" * 10_000]}))[0]) < 500


def test_floats_of_several_dtypes_can_be_merged():
    made = plan(BASE, model("org/a", dtypes=dict.fromkeys(SHAPES, "F32")), model("org/b", dtypes={NORM: "F16"}))
    assert {t.dtype for t in made.tensors()} == {"BF16"}
    assert [i.entry.dtype for t in made.tensors() if t.name == NORM for i in t.inputs] == ["BF16", "F32", "F16"]


def test_another_tokenizer_does_not_forbid_a_merge_and_is_told():
    base, same, other = (
        model(name, files={"tokenizer.json": FileInfo("tokenizer.json", 10, digest * 64)})
        for name, digest in (("org/base", "a"), ("org/a", "a"), ("org/b", "b"))
    )
    assert [w.split(" differs")[0] for w in plan(base, same, other).warnings] == ["org/b: tokenizer.json"]


def test_an_agent_of_fewer_bits_than_the_base_is_told_of_its_rounding():
    """An untrained element differs, too, and by more than ε: of a base in float32, nearly all of them."""
    fine = model("org/base", dtypes=dict.fromkeys(SHAPES, "F16"))
    wider, finer = (model(f"org/{d}", dtypes=dict.fromkeys(SHAPES, d)) for d in ("F32", "F16"))
    [warning] = plan(fine, model("org/b"), wider).warnings
    assert warning.startswith(f"org/b: {len(SHAPES)} of {len(SHAPES)} tensors are bfloat16 and the base's float16, so")
    assert plan(model("org/base"), wider, finer).warnings == ()


ROPE_AT = {"rope_theta": 1e6}
ROPE = {**CONFIG, **ROPE_AT}
YARN = {"type": "yarn", "factor": 4.0}
GEMMA = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
QWEN = {"rope_type": "default", "type": "mrope", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}
UNUSED = {**ROPE, "sliding_window": 32768, "use_sliding_window": False}
NO_TIE = {key: value for key, value in ROPE.items() if key != "tie_word_embeddings"}
INNER = {**UNUSED, "sliding_window": None, "rope_theta": None, "rope_parameters": QWEN}
# what an earlier version of transformers writes, and what a later one does
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no scaling": (ROPE, {**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "scaling": ({**ROPE, "rope_scaling": YARN}, {**CONFIG, "rope_parameters": {**YARN, "rope_type": "yarn"} | ROPE_AT}),
    "a default of the class": (NO_TIE, {**ROPE, "tie_word_embeddings": False, "num_key_value_heads": 2}),
    "Gemma 3": ({**ROPE, "rope_local_base_freq": 1e4}, {**CONFIG, "rope_parameters": GEMMA}),
    "GLM": (
        {**ROPE, "partial_rotary_factor": 0.5},
        {**CONFIG, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5} | ROPE_AT},
    ),
    "a class that FSDP2 renamed": (CONFIG, {**CONFIG, "architectures": ["FSDP" + CONFIG["architectures"][0]]}),
    "the language model inside, of Qwen2.5-VL": (
        {**UNUSED, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        {"architectures": CONFIG["architectures"], "text_config": INNER},
    ),
}


@pytest.mark.parametrize(("old", "new"), WRITTEN.values(), ids=WRITTEN)
def test_settings_that_versions_of_transformers_write_differently_are_the_same(old, new):
    base, same = model("org/base", config=old), model("org/a", config=new)
    assert plan(base, same, model("org/b", config=old)).warnings == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ({"num_experts_per_tok": 8}, {"num_experts_per_tok": 4}, ["num_experts_per_tok"]),
        ({"layer_norm_eps": 1e-5}, {"layer_norm_eps": 1e-6}, ["layer_norm_eps"]),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}, ["partial_rotary_factor"]),
        ({"rope_scaling": YARN}, {"rope_parameters": {**YARN, "factor": 2.0} | ROPE_AT}, ["rope_scaling"]),
        (
            {},
            {"text_config": {"rms_norm_eps": 0.5, "rope_theta": 1e4}, "rope_theta": None},
            ["rope_theta", "rms_norm_eps"],
        ),
    ],
)
def test_an_agent_that_computes_otherwise_with_the_same_weights_is_told(ours, theirs, told):
    base, agent = model("org/base", config={**ROPE, **ours}), model("org/a", config={**ROPE, **theirs})
    warnings = plan(base, agent, model("org/b", config=base.config)).warnings
    assert [w.split(" in config.json differs from the base")[0] for w in warnings] == [f"org/a: {key}" for key in told]
    assert all("; the merge keeps" in w for w in warnings)
    for key in ours.keys() & theirs.keys():
        assert f"({ours[key]} → {theirs[key]}); the merge keeps" in warnings[0]


# --- layout ------------------------------------------------------------------------------------------------------


def test_one_shard_holds_every_tensor_of_the_base_in_its_order():
    made = plan(BASE, A, B)
    assert_laid_out(made)
    (shard,) = made.shards
    assert shard.filename == "model.safetensors"
    assert [t.name for t in shard.tensors] == list(SHAPES)
    assert made.elements == 32 + 24 + 4
    assert [str(m) for m in (made.recipe.base, *(a.model for a in made.recipe.agents))] == [
        f"{m.ref.id}@{m.ref.sha}" for m in (BASE, A, B)
    ]
    assert made.output_bytes == len(shard.header) + 2 * 60
    assert [i.entry.name for i in shard.tensors[0].inputs] == ["model.embed_tokens.weight"] * 3


def test_shards_are_cut_by_size_and_a_tensor_above_it_stands_alone():
    made = plan(BASE, A, B, max_shard_bytes=56)
    assert_laid_out(made)
    assert [[t.name for t in s.tensors] for s in made.shards] == [
        ["model.embed_tokens.weight"],
        ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"],
    ]
    assert [s.filename for s in made.shards] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    alone = plan(BASE, A, B, max_shard_bytes=1)
    assert [len(s.tensors) for s in alone.shards] == [1, 1, 1]
    assert_laid_out(alone)


def test_shards_are_small_where_matrices_are_multiplied():
    """What a resumed merge repeats, and what a lent GPU is asked for at once, takes as long as its products."""
    base = "synthetic:qwen2.5-0.5b"
    recipe = {"base": base, "agents": [f"{base}?agent={k}&density=0.1" for k in (1, 2)]}
    shards = {
        method: prepare(recipe_from_dict({**recipe, "method": method}), NOWHERE, Request(allow_local=True)).plan.shards
        for method in ("ram", "wudi")
    }
    assert len(shards["ram"]) == 1
    assert len(shards["wudi"]) >= 4
    assert all(s.size <= WHOLE_SHARD_BYTES + 10_000 or len(s.tensors) == 1 for s in shards["wudi"])


def test_mixed_dtypes_are_laid_out_so_that_every_tensor_is_aligned():
    shapes = {"flags": (3,), "w": (3, 3), "scale": (1,), "n": (5,), "empty": (0, 4), "one": ()}
    dtypes = {"flags": "BOOL", "w": "BF16", "scale": "F32", "n": "I64", "one": "F16"}
    names = ("org/base", "org/a", "org/b")
    made = plan(*(model(n, shapes, dtypes=dtypes) for n in names))
    assert_laid_out(made)
    assert [t.name for t in made.tensors()] == ["n", "scale", "w", "empty", "one", "flags"]


def test_the_recipe_decides_the_dtype_of_floats():
    models = [model(n, dtypes={NORM: "I64"}) for n in ("org/base", "org/a", "org/b")]
    for name, stored in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")):
        made = plan(*models, dtype=name)
        assert [(t.dtype, t.action) for t in made.tensors()] == [("I64", "copy"), *[(stored, "merge")] * 2]
        assert_laid_out(made)


def test_rounding_is_the_methods_default_and_written_out():
    made = plan(BASE, A, B, method="ram_plus")
    assert made.rounding == made.recipe.rounding == "stochastic"
    assert plan(BASE, A, B, method="ram_plus", dtype="float16").rounding == "stochastic"
    assert plan(BASE, A, B, method="ram_plus", dtype="float32").rounding == "nearest"
    reference = plan(BASE, A, B, method="ram_plus", parameters={"preset": "reference"})
    assert (reference.recipe.dtype, reference.rounding) == ("float32", "nearest")
    assert plan(BASE, A, B, method="ram").rounding == "nearest"
    assert plan(BASE, A, B, method="ram_plus", rounding="nearest").rounding == "nearest"
    assert made.identity == plan(BASE, A, B, method="ram_plus", rounding="stochastic").identity
    assert made.identity != plan(BASE, A, B, method="ram_plus", rounding="nearest").identity


def test_models_of_one_name_get_labels_that_differ():
    first = model("org/agent")
    second = model("lab/agent")
    tagged = replace(model("lab/agent", sha256="f" * 64), ref=ModelRef("hub", "lab/agent", "f" * 40))
    assert plan(BASE, A, first).labels == ("a", "agent")
    assert plan(BASE, first, second).labels == ("org/agent", "lab/agent")
    labels = plan(BASE, first, second, tagged).labels
    assert labels == ("org/agent", f"lab/agent@{second.ref.sha[:12]}", "lab/agent@ffffffffffff")
    named_like_its_base = plan(first, A, second)
    assert (named_like_its_base.base_label, named_like_its_base.labels) == ("org/agent", ("a", "lab/agent"))


def test_folders_that_hold_the_same_bytes_are_refused(tmp_path):
    base = random_base(0)
    weights = (base, sparse_agent(base, 0.2, 1), base, sparse_agent(base, 0.2, 1))
    folders = [write_model(tmp_path / str(k), tensors) for k, tensors in enumerate(weights)]
    models = plan_of(*folders).models
    with pytest.raises(IncompatibleError) as caught:
        refuse_equal_folders(models)
    assert [(p.what, p.where) for p in caught.value.problems] == [
        ("an agent is the base itself", str(models[2].ref)),
        ("the same agent stands twice", str(models[3].ref)),
    ]
    refuse_equal_folders(models[:2])


@pytest.mark.parametrize(("dtype", "agents_dtype", "shown"), [("F64", "F64", "F64"), ("I64", "BF16", "BF16")])
def test_a_tensor_of_a_dtype_that_cannot_be_merged_is_refused_with_the_line_that_keeps_the_base_s(
    tmp_path, dtype, agents_dtype, shown
):
    """As OneFormer stores a scale of its loss, and trainers cast positions with the weights."""
    base = {**random_base(0), "criterion.x": tensor(1, dtype)}
    agents = [{**sparse_agent(random_base(0), 0.1, k), "criterion.x": tensor(1 + k, agents_dtype)} for k in (1, 2)]
    folders = [write_model(tmp_path / str(k), tensors) for k, tensors in enumerate((base, *agents))]
    told = refused(*folders)[0]
    assert f"criterion.x ({shown})" in told
    assert 'ignore: ["criterion.x"]' in told
    made = plan_of(*folders, ignore=["criterion.x"])
    [kept] = [t for t in made.tensors() if t.name == "criterion.x"]
    assert (kept.action, kept.dtype) == ("copy", dtype)
