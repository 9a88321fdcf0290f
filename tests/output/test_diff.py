"""What a difference promises: the figures of their definitions, for every kind of model, with the same bits always."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from builders import T, f32, llama_config, llama_shapes, random_base, sparse_agent, tensor, tokenizer_files, write_model
from plan_helpers import NOWHERE
from stream_helpers import values_of
from svg_reading import SVG, parsed

from hubmerge.cli.main import main
from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import CorruptError, HubmergeError, IncompatibleError, NonFiniteError, RecipeError
from hubmerge.output.diff import Change, Diff, comparison_recipe, measure, open_comparison
from hubmerge.output.diff_figure import draw
from hubmerge.output.diff_words import NOTHING_CHANGED, in_words, verdict
from hubmerge.statistics.statistics import layer_of, module_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "diff.md"
ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


def diff_of(base: Path | str, agent: Path | str, cache: Path, *, ignore: Sequence[str] = (), **options: Any) -> Diff:
    plan = open_comparison(comparison_recipe(str(base), str(agent), ignore), NOWHERE, allow_local=True)
    return measure(plan, NOWHERE, StreamOptions(**options), Unobserved(), cache=cache)


def compare(
    tmp_path: Path, base: Mapping[str, T], agent: Mapping[str, T], *, agent_config: Any = None, **options: Any
) -> Diff:
    write_model(tmp_path / "base", base)
    write_model(tmp_path / "agent", agent, config=agent_config)
    return diff_of(tmp_path / "base", tmp_path / "agent", tmp_path, **options)


def gini(values: np.ndarray) -> float:
    """By the definition: the mean difference of all pairs, over twice the mean."""
    ordered = np.sort(values.astype(np.float64))
    n, total = len(ordered), ordered.sum()
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * total))


def assert_as_defined(found: Change, base: np.ndarray, agent: np.ndarray) -> None:
    """Every figure of some elements, [n] float32 each, computed from all of them at once."""
    delta = agent - base
    magnitudes, wide = np.abs(delta), delta.astype(np.float64)
    n = len(delta)
    assert found.elements == n
    assert found.changed == int((magnitudes > np.float32(1e-5)).sum())
    assert found.identical == int((agent == base).sum())
    assert found.density == found.changed / n
    assert found.identical_share + found.density + found.slightly_changed_share == pytest.approx(1)
    assert found.max == magnitudes.max()
    assert found.l1 == pytest.approx(np.abs(wide).sum(), rel=1e-12)
    assert found.mean == pytest.approx(np.abs(wide).mean(), rel=1e-12)
    assert found.l2 == pytest.approx(np.sqrt((wide**2).sum()), rel=1e-6)
    assert found.base_l2 == pytest.approx(np.sqrt((base.astype(np.float64) ** 2).sum()), rel=1e-6)
    assert found.relative_l2 == pytest.approx(found.l2 / found.base_l2 if found.base_l2 else 0)
    if not found.l2:
        assert (found.gini, found.kurtosis, found.top_1_mass, found.l0_sparsity) == (None,) * 4
        return
    ordered = np.sort(magnitudes.astype(np.float64))[::-1]
    for value, name, expected in (
        (found.gini, "gini", gini(magnitudes)),
        (found.top_1_mass, "top_1_mass", ordered[: -(-n // 100)].sum() / ordered.sum()),
        (found.top_5_mass, "top_5_mass", ordered[: -(-n * 5 // 100)].sum() / ordered.sum()),
        (found.l0_sparsity, "l0_sparsity", (magnitudes < 0.01 * float(magnitudes.max())).mean()),
    ):
        assert value == pytest.approx(expected, abs=found.error[name] + 1e-9), name
    if found.kurtosis is not None:
        central = wide - wide.mean()
        assert found.kurtosis == pytest.approx((central**4).mean() / (central**2).mean() ** 2 - 3, rel=1e-4, abs=1e-4)


def assert_all_as_defined(found: Diff, base: Mapping[str, np.ndarray], agent: Mapping[str, np.ndarray]) -> None:
    """The whole, each group and each tensor of a difference."""

    def joined(names: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.concatenate([model[n].reshape(-1) for n in names]) for model in (base, agent))  # type: ignore

    names = list(base)
    assert set(found.tensors) == set(names)
    assert_as_defined(found.total, *joined(names))
    for name in names:
        if base[name].size:
            assert_as_defined(found.tensors[name], base[name].reshape(-1), agent[name].reshape(-1))
            assert found.shapes[name] == base[name].shape
    assert set(found.modules) == {module_of(n) for n in names}
    for module, change in found.modules.items():
        assert_as_defined(change, *joined([n for n in names if module_of(n) == module]))
    assert set(found.layers) == {layer_of(n) for n in names} - {None}
    for depth, change in found.layers.items():
        assert_as_defined(change, *joined([n for n in names if layer_of(n) == depth]))
        for module, cell in found.grid[depth].items():
            own = [n for n in names if (layer_of(n), module_of(n)) == (depth, module)]
            before, after = joined(own)
            assert cell["density"] == (np.abs(after - before) > np.float32(1e-5)).mean()
    before, after = joined(names)
    magnitudes = np.abs(after - before)
    counted = {m.exponent: m.elements for m in found.magnitudes}
    octaves, counts = np.unique(np.frexp(magnitudes[magnitudes > 0])[1] - 1, return_counts=True)
    assert counted == dict(zip(octaves.tolist(), counts.tolist(), strict=True))
    assert sum(m.l1 for m in found.magnitudes) == pytest.approx(found.total.l1)


def test_four_elements_by_hand(tmp_path):
    """δ = (0, 1/2, 0, −2⁻¹⁷): one above 10⁻⁵, one below it, two the same."""
    name = "model.layers.3.mlp.up_proj.weight"
    tiny = 2.0**-17
    found = compare(
        tmp_path,
        {name: tensor([[0.0, 1.0], [2.0, -4.0]], "F32")},
        {name: tensor([[0.0, 1.5], [2.0, -4.0 - tiny]], "F32")},
    )
    whole = found.total
    assert (whole.elements, whole.changed, whole.identical) == (4, 1, 2)
    assert (whole.density, whole.identical_share, whole.slightly_changed_share) == (0.25, 0.5, 0.25)
    assert (whole.l1, whole.max, whole.mean) == (0.5 + tiny, 0.5, (0.5 + tiny) / 4)
    assert whole.l2 == pytest.approx(0.5)
    assert whole.base_l2 == pytest.approx(np.sqrt(21))
    assert whole.relative_l2 == pytest.approx(0.5 / np.sqrt(21))
    assert whole.l0_sparsity == 0.75  # below 0.005
    assert whole.top_1_mass == whole.top_5_mass == pytest.approx(0.5 / (0.5 + tiny))  # one element each
    # Σ (2i − n − 1)·xᵢ / (n·Σx) of 0, 0, 2⁻¹⁷, 1/2 in order
    assert whole.gini == pytest.approx((1 * tiny + 3 * 0.5) / (4 * (0.5 + tiny)))
    assert [(m.exponent, m.elements, m.l1) for m in found.magnitudes] == [(-17, 1, tiny), (-1, 1, 0.5)]
    assert found.tensors == {name: whole}
    assert found.modules == {"mlp": whole}
    assert found.layers == {3: whole}
    assert found.grid == {3: {"mlp": {"density": 0.25, "relative_l2": whole.relative_l2}}}
    assert not found.nothing_changed


@pytest.mark.parametrize(
    ("before", "after"), [("BF16", "BF16"), ("F32", "BF16"), ("BF16", "F32"), ("F16", "F16"), ("F32", "F32")]
)
def test_every_figure_of_a_whole_model_is_that_of_its_definition(tmp_path, before, after):
    base = random_base(0, before)
    share = 1.0 if before == after == "F32" else 0.1
    agent = {n: tensor(f32(t), after) for n, t in sparse_agent(base, share, 1).items()}
    found = compare(tmp_path, base, agent)
    assert_all_as_defined(found, values_of(base), values_of(agent))
    assert (found.total.density > 0.99) == (share == 1.0)
    assert (found.base.dtypes, found.agent.dtypes) == ((before,), (after,))
    assert any("rounding" in text for text in found.warnings) == (before != after)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3, "chunk_elements": 4096}, {"backend": "eager"}])
def test_no_option_of_reading_changes_a_bit(tmp_path, options):
    sizes = {"model.embed_tokens.weight": (200, 64), "model.layers.0.mlp.up_proj.weight": (301, 64), "model.x": ()}
    base = random_base(0, sizes=sizes)
    agent = sparse_agent(base, 0.3, 1)
    write_model(tmp_path / "base", base, config=llama_config(base))
    write_model(tmp_path / "agent", agent, config=llama_config(base), shards=2)
    expected = diff_of(tmp_path / "base", tmp_path / "agent", tmp_path, backend="eager", threads=2)
    found = diff_of(tmp_path / "base", tmp_path / "agent", tmp_path, **options)
    assert json.dumps(found.to_json()) == json.dumps(expected.to_json())


def test_of_a_model_and_itself_nothing_changed_whatever_it_is_stored_as(tmp_path):
    base = random_base(0)
    same = {n: tensor(f32(t), "F32") for n, t in base.items()}
    found = compare(tmp_path, base, same)
    assert found.nothing_changed
    assert found.total.identical_share == 1
    assert found.total.relative_l2 == 0
    assert (found.magnitudes, found.top("density", 5), found.top("relative_l2", 5)) == ((), [], [])
    assert NOTHING_CHANGED in in_words(found, 5)
    assert diff_of(tmp_path / "base", tmp_path / "base", tmp_path).nothing_changed, "the same folder is not refused"


def test_tensors_of_integers_are_compared_by_themselves(tmp_path):
    base = {**random_base(0), "model.position_ids": tensor(np.arange(10), "I64")}
    moved = {**base, "model.position_ids": tensor([0, 1, 2, 3, 4, 9, 8, 7, 8, 9], "I64")}
    found = compare(tmp_path, base, moved)
    assert found.integers == {"model.position_ids": 2}
    assert found.total.identical_share == 1
    assert not found.nothing_changed
    assert NOTHING_CHANGED not in in_words(found, 5)
    assert "model.position_ids" in "".join(found.warnings)
    assert "model.position_ids" not in found.tensors


def test_a_tied_head_that_one_model_stores_counts_once_and_known_prefixes_are_left_off(tmp_path):
    base = random_base(0, sizes=llama_shapes(tied=True))
    agent = sparse_agent(base, 0.2, 1)
    stored = {**agent, "lm_head.weight": agent["model.embed_tokens.weight"]}
    prefixed = {f"module.{n}": t for n, t in stored.items()}
    for of_agent in (stored, prefixed):
        found = compare(tmp_path, base, of_agent, agent_config=llama_config(base))
        assert_all_as_defined(found, values_of(base), values_of(agent))
        assert any("module." in text for text in found.warnings) == (of_agent is prefixed)


@pytest.mark.parametrize("fp8", [False, True])
def test_rows_that_an_agent_adds_to_the_vocabulary_are_left_out(tmp_path, fp8):
    base = random_base(0)
    agent = sparse_agent(base, 0.2, 1)
    rng = np.random.default_rng(2)

    def grown(t: T) -> T:
        return tensor(np.concatenate([f32(t), rng.normal(0, 1, (3, t.shape[1]))]), t.dtype)

    tables = ("model.embed_tokens.weight", "lm_head.weight")
    larger = {n: grown(t) if n in tables else t for n, t in agent.items()}
    expected = values_of(agent)
    if fp8:  # what is computed is cut as what is stored
        name = "model.embed_tokens.weight"
        larger[name] = tensor(f32(larger[name]) / 0.5, "F8_E4M3")
        larger[f"{name}_scale"] = tensor(0.5, "F32")
        expected[name] = (f32(larger[name]) * np.float32(0.5))[:40]
    write_model(tmp_path / "base", base)
    write_model(tmp_path / "agent", larger, config=llama_config(larger), files=tokenizer_files(43))
    found = diff_of(tmp_path / "base", tmp_path / "agent", tmp_path)
    assert_all_as_defined(found, values_of(base), expected)
    assert any("3 rows more" in text and "w40" in text for text in found.warnings)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's affair
def test_a_lora_adapter_that_peft_saved_is_its_product_on_the_targets_alone(tmp_path):
    torch = pytest.importorskip("torch")
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=40))
    model.save_pretrained(tmp_path / "base")
    before = {n: t.detach().numpy().copy() for n, t in model.state_dict().items()}
    peft_model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    peft_model.save_pretrained(tmp_path / "agent")
    after = {n: t.detach().numpy() for n, t in peft_model.merge_and_unload().state_dict().items()}
    found = diff_of(tmp_path / "base", tmp_path / "agent", tmp_path)
    assert found.agent.weights == "LoRA adapter"
    changed = {n for n, c in found.tensors.items() if c.l2}
    assert changed == {n for n in before if "q_proj" in n or "down_proj" in n}
    for name in changed:  # torch adds the rank's terms in another order
        delta = after[name].astype(np.float64) - before[name]
        assert found.tensors[name].l2 == pytest.approx(np.sqrt((delta**2).sum()), rel=1e-5)
        assert found.tensors[name].max == pytest.approx(np.abs(delta).max(), rel=1e-4)
    assert found.total.identical == sum(t.size for n, t in before.items() if n not in changed)


NAMES = """
bert.encoder.layer.3.attention.self.query.weight attention 3
bert.encoder.layer.3.intermediate.dense.weight mlp 3
bert.encoder.layer.3.output.dense.bias mlp 3
bert.encoder.layer.3.output.LayerNorm.weight norm 3
bert.encoder.layer.1.attention.ln.weight norm 1
roberta_prelayernorm.embeddings.word_embeddings.weight embedding None
classifier.weight head None
cls.predictions.decoder.weight head None
model.shared.weight embedding None
encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight embedding 0
decoder.block.2.layer.1.EncDecAttention.q.weight attention 2
encoder.block.2.layer.1.DenseReluDense.wi.weight mlp 2
model.decoder.layers.7.encoder_attn.k_proj.weight attention 7
model.decoder.layers.7.fc1.weight mlp 7
h.3.attn.c_attn.weight attention 3
transformer.wte.weight embedding None
backbone.layers.4.mixer.in_proj.weight other 4
model.layers.11.mlp.experts.1.w1.weight mlp 11
lm_head.weight head None
something.else other None
transformer.blocks.1.norm_attn_norm.attn.Wqkv.weight attention 1
transformer.layer_norm1.3.weight norm None
bert.embeddings.word_embeddings.weight embedding None
shared.weight embedding None
transformer.h.0.ln_1.weight norm 0
gpt_neox.layers.0.attention.dense.weight attention 0
embed_out.weight head None
model.layers.1.mlp.experts.11.w1.weight mlp 1
model.layers.11.self_attn.q_proj.weight attention 11
model.embed_tokens.weight embedding None
generator_lm_head.weight head None
model.norm.weight norm None
model.layers.1.self_attn.q_norm.weight norm 1
roberta_prelayernorm.encoder.layer.1.output.dense.weight mlp 1
rwkv.blocks.1.ln2.weight norm 1
"""


def test_tensors_of_many_families_are_of_their_module_type_and_layer():
    for name, module, layer in map(str.split, NAMES.strip().splitlines()):
        assert (module_of(name), str(layer_of(name))) == (module, layer), name


def test_the_most_changed_tensors_are_in_order_and_of_equals_the_first(tmp_path):
    names = [f"model.layers.{k}.mlp.up_proj.weight" for k in range(4)]
    base = {n: tensor(np.ones(8), "F32") for n in names}
    steps = ([0.5] * 2, [2.0] * 1, [0.5] * 2, [])
    after = [[1 + s for s in step] + [1] * (8 - len(step)) for step in steps]
    agent = {n: tensor(v, "F32") for n, v in zip(names, after, strict=True)}
    found = compare(tmp_path, base, agent)
    assert found.top("density", 9) == [names[0], names[2], names[1]]
    assert found.top("relative_l2", 2) == [names[1], names[0]]
    shown = found.with_top_tensors(1)
    assert set(shown.tensors) == set(shown.shapes) == {names[0], names[1]}
    assert (shown.total, shown.tensor_count) == (found.total, 4)
    assert Diff.from_json(json.loads(json.dumps(shown.to_json()))) == shown
    zeros = {n: tensor(np.zeros(8), "F32") for n in names}
    found = compare(tmp_path, zeros, agent)
    assert found.total.relative_l2 is None
    assert "—" in in_words(found, 3)
    assert draw(found)
    json.dumps(found.to_json(), allow_nan=False)


def test_models_that_do_not_fit_are_refused_with_every_problem_and_fitting_advice(tmp_path):
    base = random_base(0)
    agent = {n: t for n, t in base.items() if n != "model.layers.1.mlp.up_proj.weight"}
    agent["model.norm.weight"] = tensor(np.ones(17))
    agent["v_head.weight"] = tensor(np.ones(16))
    with pytest.raises(IncompatibleError) as error:
        compare(tmp_path, base, agent, agent_config=llama_config(base))
    assert error.value.what == "these models cannot be compared"
    advice = ("Compare it with the model that it was trained from", '--ignore "v_head.weight"')
    expected = ("up_proj", "model.norm.weight: 16 → 17", "v_head.weight", *advice)
    assert [words for words in expected if words not in str(error.value)] == []
    assert not re.search("Remove|recipe", str(error.value))


# what does not fit


def test_tensors_that_only_one_model_has_can_be_left_out(tmp_path):
    base = random_base(0)
    agent = sparse_agent(base, 0.2, 1)
    buffer = {"model.layers.0.rotary_emb.inv_freq": tensor(np.ones(8), "F32")}
    value_head = {"v_head.summary.weight": tensor(np.ones(16)), "v_head.summary.bias": tensor(np.ones(1))}
    with pytest.raises(IncompatibleError, match=r'--ignore "[^"]*" --ignore "') as error:
        compare(tmp_path, {**base, **buffer}, {**agent, **value_head}, agent_config=llama_config(base))
    assert error.value.what == "these models cannot be compared"
    assert not re.search("Remove|recipe", str(error.value)), "the advice is a comparison's"
    patterns = re.findall('--ignore "([^"]*)"', str(error.value))
    ignore = [*dict.fromkeys(patterns), "lost.*"]
    found = diff_of(tmp_path / "base", tmp_path / "agent", tmp_path, ignore=ignore)
    assert_all_as_defined(found, values_of(base), values_of(agent))
    assert any("inv_freq" in text and "v_head" in text for text in found.warnings)
    assert any("'lost.*' matches no tensor" in text for text in found.warnings)
    with pytest.raises(HubmergeError, match="nothing to compare"):
        diff_of(tmp_path / "base", tmp_path / "agent", tmp_path, ignore=["*"])


def test_advice_is_a_comparisons_whatever_does_not_fit(tmp_path, refused):
    weights = random_base(0)
    base = write_model(tmp_path / "base", {**weights, "loss.scale": tensor(np.ones(1), "F64")})
    agent = write_model(tmp_path / "agent", {**weights, "loss.scale": tensor(np.ones(1), "F64")})
    error = refused("diff", base, agent)
    assert "recipe" not in error
    assert 'On the command line, --ignore "loss.scale" leaves them out. Or: Convert them to float32.' in error
    assert main(["diff", str(base), str(agent), "--ignore", "loss.scale"]) == 0
    error = refused("diff", base, agent, "--ignore", "*")
    assert "nothing to compare: no tensor of floating point numbers" in error
    assert "got --ignore names every tensor" in error


def test_another_architecture_a_folder_for_strangers_and_broken_weights_are_refused(tmp_path):
    base = random_base(0)
    with pytest.raises(HubmergeError, match="another architecture"):
        compare(tmp_path, base, base, agent_config={**llama_config(base), "architectures": ["Qwen2ForCausalLM"]})
    adapter = write_model(tmp_path / "adapter", {"base_model.model.model.norm.lora_A.weight": tensor(np.ones((1, 16)))})
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    with pytest.raises(HubmergeError, match="the base is an adapter"):
        diff_of(adapter, tmp_path / "base", tmp_path)
    with pytest.raises(RecipeError):
        diff_of("not a name!", tmp_path / "base", tmp_path)
    with pytest.raises(HubmergeError, match="local folders"):
        open_comparison(comparison_recipe(str(tmp_path / "base"), str(tmp_path / "base")), NOWHERE)
    with pytest.raises(NonFiniteError, match=r"model\.norm\.weight"):
        compare(tmp_path, base, {**base, "model.norm.weight": tensor(np.full(16, np.nan))})


# what is shown


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    return diff_of(ZOO / "base", ZOO / "math", tmp_path_factory.mktemp("cache"))


def documented(heading: str) -> set[str]:
    """The keys in the first column of the table that follows some words."""
    table = re.search(r"\n\|.*?\n\n|\n\|.*\Z", DOCS.read_text(encoding="utf-8").split(heading)[1] + "\n\n", re.DOTALL)
    assert table
    cells = [line.split("|")[1] for line in table.group().strip().splitlines()[2:]]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def test_every_key_of_the_json_is_documented_and_the_other_way_round(example):
    data = example.to_json()
    assert set(data) == documented("\n## JSON\n")
    tensors = next(iter(data["tensors"].values()))
    assert set(tensors) == documented("\nA group:\n")
    assert set(data["total"]) == set(tensors) - {"shape"}
    assert set(data["base"]) == {"kind", "id", "sha", "requested", "weights", "dtypes"}
    assert [part for part in data["base"] if f"`{part}`" not in DOCS.read_text(encoding="utf-8")] == []
    assert set(data["magnitudes"][0]) == {"exponent", "elements", "l1"}
    assert Diff.from_json(json.loads(json.dumps(data))) == example


def test_the_command_prints_json_tables_and_a_figure(tmp_path, done):
    models = [str(ZOO / "base"), str(ZOO / "math")]
    data = json.loads(done("diff", *models, "--json").out)
    assert data["total"]["changed"] == 17124
    assert len(data["tensors"]) == data["tensor_count"] == 41
    figure = tmp_path / "change.svg"
    ran = done("diff", *models, "--top", "2", "--figure", figure, "--log-json")
    text, told = ran.out, [json.loads(line) for line in ran.err.splitlines()]
    stages = [line["stage"] for line in told if line["type"] in ("stage", "progress")]
    assert list(dict.fromkeys(stages)) == ["resolve", "probe", "figure"]
    assert sorted(stages, key=["resolve", "probe", "figure"].index) == stages
    last = [line for line in told if line["type"] == "progress"][-1]
    assert (last["done"], last["total"], last["unit"]) == (171776, 171776, "elements")
    assert "9.97% (17,124 parameters)" in text
    assert text.count("model.layers.0.self_attn.o_proj.bias") == 2  # first of both lists
    assert "model.layers.1" not in text
    assert parsed(figure.read_bytes()).attrib["width"] == "800"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--figure", "change.jpg"], 2, "ends in .svg"),
        (["--top", "0"], 2, "at least 1"),
        (["--figure", "/nowhere/at/all/change.svg"], 1, "got No such file or directory"),
        (["--figure", "taken.svg"], 1, "got Is a directory"),
    ],
)
def test_wrong_options_are_said_before_weights_are_read(arguments, code, words, capsys, monkeypatch, tmp_path):
    (tmp_path / "taken.svg").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hubmerge.cli.diff.measure", lambda *a, **k: pytest.fail("weights were read"))
    try:
        found = main(["diff", str(ZOO / "base"), str(ZOO / "math"), *arguments])
    except SystemExit as error:
        found = error.code
    assert found == code
    assert words in capsys.readouterr().err


def test_a_comparison_that_fails_leaves_no_empty_figure(tmp_path, monkeypatch):
    monkeypatch.setattr("hubmerge.cli.diff.measure", Mock(side_effect=CorruptError("cut off")))
    assert main(["diff", str(ZOO / "base"), str(ZOO / "math"), "--figure", str(tmp_path / "change.svg")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_difference_is_told_first_in_one_sentence(example):
    """The final norm, which is in no layer, changed more: 71.9%."""
    most = "among the layers, most of all attention in layer 0, with 41.9%"
    assert verdict(example) == f"9.97% of the parameters changed; {most}."
    nothing = {"density": 0.0, "relative_l2": 0.0}
    still = {depth: dict.fromkeys(row, nothing) for depth, row in example.grid.items()}
    for grid in ({}, still):
        assert verdict(replace(example, grid=grid)) == "9.97% of the parameters changed."


def test_a_strangers_names_cannot_steer_the_terminal_or_break_the_figure(example):
    hostile = "model.layers.0.\x1b[2J\u202e$\\frac{.weight"
    first = next(iter(example.tensors))
    renamed = replace(
        example,
        tensors={hostile: replace(example.tensors[first], changed=10**9)},
        shapes={hostile: (1,)},
        base=replace(example.base, id="org/\x1b[31mred"),
        warnings=("\x1b]0;title\x07",),
    )
    text = in_words(renamed, 5)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert draw(renamed)


def test_the_figure_is_the_same_for_the_same_difference_and_nothing_is_cut_off(example):
    assert draw(example) == draw(example)
    many = dict.fromkeys(range(0, 126 * 3, 3), example.layers[0])
    for diff in (
        example,
        replace(example, layers={}, grid={}),
        replace(example, layers=many, grid=dict.fromkeys(many, example.grid[0])),
        replace(example, magnitudes=(), modules={}, layers={}, grid={}),
    ):
        parsed(draw(diff))


def test_a_difference_in_few_elements_is_drawn_as_one(example):
    total = replace(example.total, identical=example.total.elements - 1)
    assert "exactly the base's value: over 99.9%" in draw(replace(example, total=total)).decode()


def test_a_denser_module_is_drawn_lighter_and_longer(example):
    """Attention in layer 0 (42%) is the lightest cell, and norms, changed most of all, have the longest bar."""
    root = parsed(draw(example))
    drawn = [r.attrib for r in root.iter(SVG + "rect")][1:]  # the first is the sheet
    cells, bars = drawn[: len(example.modules) * len(example.layers)], [r for r in drawn if r["fill"] == "#0072B2"]
    rows = {name: list(example.modules).index(name) for name in ("attention", "mlp", "norm")}
    shades = {name: cells[row * len(example.layers)]["fill"] for name, row in rows.items()}
    brightness = {name: sum(bytes.fromhex(shade[1:])) for name, shade in shades.items()}
    assert brightness["attention"] > brightness["norm"] > brightness["mlp"]
    lengths = [float(bars[row]["width"]) for row in rows.values()]
    density = [example.modules[name].density for name in rows]
    assert lengths[2] > lengths[0] > lengths[1]
    assert lengths[0] / lengths[2] == pytest.approx(density[0] / density[2], rel=0.001)
