"""Tensors that `ignore` names are not merged: agents' are left out, the base's are kept. A refusal says the line."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import T, f32, llama_config, random_base, read_model, recipe_dict, sparse_agent, tensor, write_model
from plan_helpers import plan_of, refused
from source_helpers import lora, pair, write_adapter

from hubmerge.cli.main import main
from hubmerge.errors import RecipeError
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.recipe.sweep import sweep_from_dict
from hubmerge.text.plain_yaml import load_plain_yaml

BASE = random_base(0)
HEAD = {"v_head.summary.weight": tensor(np.ones((1, 16))), "v_head.summary.bias": tensor(np.ones(1))}
INV_FREQ = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": tensor(np.linspace(0, 1, 4), "F32") for i in range(2)}
Q = "model.layers.0.self_attn.q_proj.weight"
# of a layer behind the others, which predicts further tokens and which transformers leaves out
PARTS = ("enorm", "hnorm", "eh_proj", "shared_head.norm", "mlp.experts.0.up_proj")
FURTHER = {f"model.layers.2.{part}.weight": tensor(np.ones((4, 4)), "F32") for part in PARTS}


def recipe(*folders: Path, **fields: Any) -> Recipe:
    return recipe_from_dict(recipe_dict(folders[0], folders[1:], **fields))


def line_in(problems: list[str]) -> list[str]:
    """The patterns of the line that every one of the messages says."""
    lines = {m[1] for text in problems if (m := re.search(r"(ignore: \[.*?\])\. Otherwise:", text))}
    (line,) = lines
    patterns: list[str] = load_plain_yaml(line)["ignore"]
    return patterns


def agent(folder: Path, seed: int, extra: dict[str, T] | None = None) -> Path:
    return write_model(folder, {**sparse_agent(BASE, 0.2, seed), **(extra or {})}, config=llama_config(BASE))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", BASE)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return agent(tmp_path / "plain", 8)


def merged(folder: Path, *folders: Path, **fields: Any) -> dict[str, T]:
    path = folder.with_suffix(".yaml")
    path.write_text(recipe(*folders, **fields).to_yaml())
    assert main(["merge", str(path), "--out", str(folder), "--license", "mit"]) == 0
    return read_model(folder)


# --- what a refusal says ------------------------------------------------------------------------------------------


def test_the_line_that_the_refusal_says_is_the_one_that_helps(tmp_path, base, plain):
    ppo, old = agent(tmp_path / "ppo", 1, HEAD), agent(tmp_path / "old", 2, INV_FREQ)
    listed = refused(base, ppo, old, plain)
    assert len(listed) == 2
    assert line_in(listed) == ["v_head.*", "*.rotary_emb.inv_freq"]
    plan = plan_of(base, ppo, old, plain, ignore=line_in(listed))
    assert {t.name for t in plan.tensors()} == set(BASE)
    told = [w for w in plan.warnings if "`ignore`" in w]
    assert told == [
        f"{ppo}: 2 tensors left out by `ignore`: v_head.summary.bias, v_head.summary.weight",
        f"{old}: 2 tensors left out by `ignore`: {', '.join(INV_FREQ)}",
    ]
    both = agent(tmp_path / "both", 1, {**HEAD, "score.weight": tensor(np.ones((1, 16)))})
    assert line_in(refused(base, both, plain, ignore=["v_head.*"])) == ["v_head.*", "score.weight"]


@pytest.mark.parametrize(
    ("more", "line"), [(INV_FREQ, "*.rotary_emb.inv_freq"), (FURTHER, "model.layers.2.*")], ids=["buffers", "a layer"]
)
def test_what_only_the_base_has_is_kept_by_the_line(tmp_path, plain, more, line):
    base = write_model(tmp_path / "buffers", {**BASE, **more}, config=llama_config(BASE))
    listed = refused(base, plain, agent(tmp_path / "a", 1))
    assert all("To keep the base's" in text for text in listed)
    assert line_in(listed) == [line]
    plan = plan_of(base, plain, agent(tmp_path / "b", 2), ignore=[line], dtype="float16")
    kept = {t.name: (t.action, t.dtype) for t in plan.tensors() if t.name in more}
    assert kept == dict.fromkeys(more, ("copy", "F32")), "a buffer keeps its dtype, whatever the output's"


def test_another_model_is_not_explained_away(tmp_path, base, plain):
    deeper = {n.replace("layers.1", "layers.2"): t for n, t in BASE.items() if "layers.1" in n}
    listed = refused(base, agent(tmp_path / "deep", 1, deeper), plain)
    assert not any("into the recipe" in text for text in listed)
    empty = write_model(tmp_path / "x", {"a.weight": tensor(np.ones(4))}, config=llama_config(BASE))
    assert not any("into the recipe" in text for text in refused(base, empty, plain))
    shallow = {n: t for n, t in BASE.items() if "layers.1" not in n}
    for key in ("num_hidden_layers", "n_layer"):
        base, *agents = (
            write_model(tmp_path / key / name, t, config=llama_config(BASE, **{"num_hidden_layers": None, key: layers}))
            for name, t, layers in (("base", BASE, 2), ("shallow", shallow, 1), ("plain", BASE, 2))
        )
        assert not any("into the recipe" in text for text in refused(base, *agents))


def test_no_line_helps_where_a_name_stands_for_a_tensor_of_all_models_too(tmp_path):
    """A pattern is held against names without PEFT's wrapper, too."""
    wrapped = {f"base_model.model.{name}": t for name, t in BASE.items()}
    base, one, two = (
        write_model(tmp_path / name, {**wrapped, **more}, config=llama_config(BASE))
        for name, more in (("base", {}), ("one", {Q: BASE[Q]}), ("two", {}))
    )
    (told,) = [text for text in refused(base, one, two) if "tensors that the base does not have" in text]
    assert f"got {Q}. Remove {one}" in told


@pytest.mark.parametrize("wrapper", ["", "base_model.model."])
def test_an_adapter_that_was_saved_beside_its_weights_is_not_to_be_ignored(tmp_path, base, plain, wrapper):
    """It is all that the agent has learned, and PEFT's wrapper keeps it apart from the weights."""
    module = Q.removesuffix(".weight")
    a, b = lora((16, 16))
    saved = {**BASE, f"{module}.base_layer.weight": BASE[Q]}
    saved |= {f"{module}.lora_A.default.weight": tensor(a), f"{module}.lora_B.default.weight": tensor(b)}
    del saved[Q]
    tensors = {f"{wrapper}{name}": t for name, t in saved.items()}
    unmerged = write_model(tmp_path / "unmerged", tensors, config=llama_config(BASE))
    (told,) = refused(base, unmerged, plain)
    assert f"an adapter that is not merged into the weights beside it in {unmerged}" in told
    assert f"{wrapper}{module}.lora_A.default.weight" in told
    assert "Save it anew after PEFT's merge_and_unload()" in told
    listed = refused(base, unmerged, agent(tmp_path / "ppo", 1, HEAD))
    assert line_in(listed) == ["v_head.*"], "what helps with the other agent is said all the same"


def test_a_layer_of_an_adapter_that_has_another_name_in_the_files_is_to_be_merged_by_peft(tmp_path, base, plain):
    """PEFT names layers as the class does; where it adapts one it may store that whole, too."""
    name = "output.weight"
    full = {f"base_model.model.{name.removesuffix('weight')}base_layer.weight": BASE["lm_head.weight"]}
    factors = pair(Q.removesuffix(".weight"), *lora((16, 16)))
    both = write_adapter(tmp_path / "both", {**full, **factors, **pair("output", *lora((40, 16)))})
    (told,) = refused(base, both, plain)
    assert f"an adapter of tensors that the base does not have in {both}" in told
    assert "ignore" not in told
    saved = write_adapter(tmp_path / "saved", {**factors, f"base_model.model.{name}": BASE["lm_head.weight"]})
    (told,) = refused(base, saved, plain)
    assert 'ignore: ["output.weight"]' in told
    assert told.endswith("If it is this one: merge the adapter into its base with PEFT and use the result as an agent.")


# --- what it means ------------------------------------------------------------------------------------------------


def test_ignored_parts_of_the_base_are_its_bits_and_are_not_counted(tmp_path, base, plain):
    """Whatever an agent has in their place."""
    ignored = {n for n in BASE if ".mlp." in n or n in ("model.norm.weight", "lm_head.weight", Q)}
    odd = {"lm_head.weight": tensor(np.ones((7, 3))), Q: tensor(np.ones((16, 16)), "I64")}
    other = agent(tmp_path / "other", 1, {**HEAD, **odd})
    assert len(refused(base, other, plain, ignore=["v_head.*"])) == 2
    plainly = merged(tmp_path / "all", base, plain, agent(tmp_path / "without", 1))
    ignore = ["*.mlp.*", "v_head.*", "model.norm.*", "lm_head.weight", Q]
    result = merged(tmp_path / "out", base, plain, other, ignore=ignore)
    for name, t in result.items():
        assert t.same_bits((BASE if name in ignored else plainly)[name]), name
    report = json.loads((tmp_path / "out" / "hubmerge.json").read_text())
    assert report["statistics"]["total"]["elements"] == sum(t.raw.size for n, t in BASE.items() if n not in ignored)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "ignore:" in card
    assert "9 tensors kept unchanged by" in card


def test_an_ignored_tensor_may_have_any_shape_and_dtype_in_an_agent(tmp_path, base, plain):
    odd = {"lm_head.weight": tensor(np.ones((7, 3))), Q: tensor(np.ones((16, 16)), "I64")}
    folder = agent(tmp_path / "odd", 1, odd)
    assert len(refused(base, folder, plain)) == 2
    result = merged(tmp_path / "out", base, folder, plain, ignore=["lm_head.weight", Q])
    assert result["lm_head.weight"].same_bits(BASE["lm_head.weight"])
    assert result[Q].same_bits(BASE[Q])


def test_names_that_differ_by_a_prefix_are_the_bases(tmp_path, base, plain):
    bare = {n.removeprefix("model."): t for n, t in sparse_agent(BASE, 0.2, 1).items()}
    folder = write_model(tmp_path / "bare", {**bare, **HEAD}, config=llama_config(BASE))
    plan = plan_of(base, folder, plain, ignore=["model.layers.0.self_attn.*", "v_head.*"])
    copied = {t.name for t in plan.tensors() if t.action == "copy"}
    assert copied == {n for n in BASE if n.startswith("model.layers.0.self_attn.")}


def test_an_adapter_that_changes_what_is_ignored_changes_the_rest(tmp_path, base, plain):
    factors = {"base_model.model.v_head.summary.weight": tensor(np.ones((1, 16)), "F32")}
    for seed, module in enumerate(("q_proj", "k_proj")):
        factors |= pair(f"model.layers.0.self_attn.{module}", *lora((16, 16), seed=seed))
    folder = write_adapter(tmp_path / "adapter", factors)
    listed = refused(base, folder, plain)
    assert "v_head.summary.weight" in line_in(listed)
    ignore = ["v_head.*", "model.layers.0.self_attn.k_proj.*"]
    result = merged(tmp_path / "out", base, folder, agent(tmp_path / "two", 2), ignore=ignore)
    kept = "model.layers.0.self_attn.k_proj.weight"
    assert result[kept].same_bits(BASE[kept])
    assert not np.array_equal(f32(result[Q]), f32(BASE[Q]))


def test_an_ignored_part_of_an_fp8_base_is_what_its_scales_say(tmp_path, plain):
    values = tensor(f32(BASE[Q]) * 8, "F8_E4M3")
    scales = {Q: values, f"{Q}_scale": tensor(0.125, "F32")}
    base = write_model(tmp_path / "fp8", {**BASE, **scales}, config=llama_config(BASE))
    result = merged(tmp_path / "out", base, plain, agent(tmp_path / "one", 1), ignore=[Q], rounding="nearest")
    assert np.array_equal(f32(result[Q]), f32(tensor(f32(values) * 0.125, "BF16")))


def test_patterns_of_everything_and_of_nothing_are_told(base, plain, tmp_path):
    other = agent(tmp_path / "a", 1)
    assert any("`ignore` names every tensor" in t for t in refused(base, plain, other, ignore=["*"]))
    plan = plan_of(base, plain, other, ignore=["vhead.*", "lm_head.weight"])
    assert "`ignore`: 'vhead.*' matches no tensor of the base or an agent" in plan.warnings
    assert not any("lm_head.weight' matches" in warning for warning in plan.warnings)


# --- as part of a recipe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["a"] * 33, "there are 33 patterns, and 32 are the most"),
        (["a" * 257], "is no pattern"),
        ([""], "is no pattern"),
        (["a\nb"], "is no pattern"),
        (["a" + "*" * 9], "more than 8 stars"),
        ([3], "a pattern is text"),
        (3, "must be a list of patterns"),
        ({"a": 1}, "must be a list of patterns"),
    ],
)
def test_patterns_that_cannot_be_are_refused(value, words):
    with pytest.raises(RecipeError, match=re.escape(words)):
        recipe_from_dict({"base": "org/b", "agents": ["org/a"], "method": "ram", "ignore": value})


def test_it_is_part_of_the_identity_only_where_it_is_given(base, plain, tmp_path):
    folders = base, plain, agent(tmp_path / "a", 1)
    without = plan_of(*folders)
    assert plan_of(*folders, ignore=[]).identity == without.identity
    one, other = (plan_of(*folders, ignore=given) for given in (["x", "y"], ["y", "x", "x"]))
    assert one.identity == other.identity != without.identity
    assert "ignore" not in without.recipe.to_dict()


def test_variants_of_a_sweep_share_it():
    shared = {"base": "org/b", "agents": ["org/a"], "ignore": "v_head.*", "sweep": [{"method": ["ram", "linear"]}]}
    assert {r.ignore for _, r in sweep_from_dict(shared).variants} == {("v_head.*",)}


def test_an_agent_that_only_changed_what_is_ignored_is_not_called_the_base(tmp_path, base, plain, capsys):
    other = write_model(tmp_path / "other", {**BASE, Q: sparse_agent(BASE, 0.2, 1)[Q]}, config=llama_config(BASE))
    path = tmp_path / "r.yaml"
    path.write_text(recipe(base, plain, other, ignore=[Q]).to_yaml())
    assert main(["merge", str(path), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"E_INCOMPATIBLE: an agent changed none of the merged tensors in {other}" in error
    assert "got the base's value in every element" in error
    assert not (tmp_path / "out" / "hubmerge.json").exists()
