"""A mergekit document becomes the recipe that means the same, says what it means differently, or is refused."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hubmerge.errors import RecipeError
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.recipe.mergekit import is_mergekit
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import Recipe, merge_identity
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml

FLOAT32 = "dtype: float32\n"
BASE = "base_model: org/base@v1\n"


def models(a: str = "", b: str = "", base: str | None = None) -> str:
    """Two agents, and the base where it is listed; the arguments are their parameters."""
    listed = [("org/base@v1", base)] if base is not None else []
    lines = [f"  - {{model: {n}, parameters: {{{p}}}}}" for n, p in (*listed, ("org/a", a), ("org/b@main", b))]
    return "models:\n" + "\n".join(lines) + "\n"


def document(method: str, agents: str | None = None, more: str = FLOAT32) -> str:
    return f"merge_method: {method}\n{BASE}{models() if agents is None else agents}{more}"


WEIGHED = models("weight: 0.6", "weight: 0.2")
ALIKE = models("weight: 0.5, density: 0.25", "weight: 0.5, density: 0.25")
TIES = document("ties", ALIKE)

# the document; then method, weights and parameters of the recipe. test_mergekit_parity.py has the others, merged
MEANINGS = {
    "linear, one weight for all models": (
        document("linear", models(), FLOAT32 + "parameters: {weight: 2}\n"),
        ("linear", (2.0, 2.0), {"base_weight": 2.0}),
    ),
    "ties, density above 1": (
        document("ties", models("weight: 3", "weight: 3"), FLOAT32 + "parameters: {density: 1.5, lambda: 0.7}\n"),
        ("ties", (3.0, 3.0), {"density": 1.0, "trim_scope": "tensor", "lambda": 0.7}),
    ),
    "dare_linear": (
        document(
            "dare_linear", models("weight: 0.6, density: 0.3", "weight: 0.2"), FLOAT32 + "parameters: {density: 0.3}\n"
        ),
        ("dare_linear", (0.6, 0.2), {"p": 0.7, "lambda": 1.0}),
    ),
    "dare_linear, not rescaled": (
        document("dare_linear", ALIKE, FLOAT32 + "parameters: {rescale: false, normalize: true, lambda: 0.5}\n"),
        ("dare_linear", (0.5, 0.5), {"p": 0.75, "lambda": 0.125, "normalize": True}),
    ),
    "task_arithmetic, small weights, normalized": (  # λ / Σ wk is none that a recipe takes
        document(
            "task_arithmetic", models("weight: 0.05", "weight: 0.04"), FLOAT32 + "parameters: {normalize: true}\n"
        ),
        ("task_arithmetic", (0.05, 0.04), {"lambda": 1.0, "normalize": True}),
    ),
    "dare_ties": (
        document("dare_ties", ALIKE, FLOAT32 + "parameters: {lambda: 0.9}\n"),
        ("dare_ties", (0.5, 0.5), {"p": 0.75, "density": 1.0, "lambda": 0.9, "disjoint": "sum"}),
    ),
    "dare_ties, normalized": (
        document("dare_ties", ALIKE, FLOAT32 + "parameters: {normalize: true, rescale: false}\n"),
        ("dare_ties", (0.5, 0.5), {"p": 0.75, "density": 1.0, "lambda": 0.25, "disjoint": "mean"}),
    ),
}


def refused(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        recipe_from_yaml(text, "m.yaml")
    assert all(problem.code == "E_RECIPE" for problem in caught.value.problems)
    assert all(problem.where.startswith("m.yaml") for problem in caught.value.problems)
    return caught.value


@pytest.mark.parametrize("name", MEANINGS)
def test_a_document_becomes_the_recipe_that_means_the_same(name):
    text, (method, weights, parameters) = MEANINGS[name]
    recipe = recipe_from_yaml(text)
    assert (recipe.method, recipe.weights) == (method, weights)
    assert {k: v for k, v in recipe.parameters.items() if k in parameters} == pytest.approx(parameters)
    assert (str(recipe.base), [str(a.model) for a in recipe.agents]) == ("org/base@v1", ["org/a", "org/b@main"])
    assert (recipe.dtype, recipe.rounding) == ("float32", "nearest")
    again = recipe_from_yaml(recipe.to_yaml())
    assert again.to_dict() == recipe.to_dict()
    assert again.notes == ()


def agents_of(text: str) -> list[Any]:
    return list(recipe_from_yaml(text).to_dict()["agents"])


@pytest.mark.parametrize(
    ("setting", "meaning"),
    [
        # what is one value, however it is written
        *((text, 0.25) for text in ("0.25", "[0.25]", "[0.25, 0.25]", "{value: 0.25}", "[{value: 0.25}, {value: 3}]")),
        ("[{filter: '*', value: 0.25}, {value: 3}]", 0.25),
        ("[{filter: '*', value: [0.25]}]", 0.25),
        ("[0, 0.3, 1]", [0.0, 0.3, 1.0]),
        ("{value: [0, 1]}", [0.0, 1.0]),
        ("[{filter: mlp, value: 0.5}, {value: 0}]", [{"filter": "mlp", "value": 0.5}, {"value": 0.0}]),
        (
            "[{filter: mlp, value: [1, 2]}, {filter: '*', value: 0}, {value: 9}]",
            [{"filter": "mlp", "value": [1.0, 2.0]}, {"value": 0.0}],
        ),
        # the document's value is for what the model's own filters leave undecided
        ("[{filter: mlp, value: 0.5}]", [{"filter": "mlp", "value": 0.5}, {"value": 4.0}]),
    ],
)
def test_values_over_layers_and_by_filters_are_those_of_the_recipe(setting, meaning):
    text = document("task_arithmetic", models(f"weight: {setting}", "weight: 1"), FLOAT32 + "parameters: {weight: 4}\n")
    assert agents_of(text) == [{"model": "org/a", "weight": meaning}, "org/b@main"]


def test_a_value_of_each_level_comes_before_those_of_the_levels_around_it():
    text = (
        f"merge_method: task_arithmetic\n{BASE}parameters: {{weight: [1, 2], lambda: 0.5}}\n"
        "modules:\n  default:\n    parameters: {weight: [{filter: norm, value: 3}]}\n    "
        + slices(
            (
                "layer_range: [0, 2], parameters: {weight: [{filter: mlp, value: 7}]}",
                "layer_range: [0, 2]",
                "weight: [{filter: up, value: 5}]",
                "",
            ),
            ("layer_range: [2, 6]", "layer_range: [2, 6]", "weight: 0.25, lambda: 1", ""),
        ).replace("\n", "\n    ")
    )
    head, tail = {"layers": [0, 2]}, {"layers": [2, 6], "value": 0.25}
    shared = [
        {"filter": "up", **head, "value": 5.0},
        {"filter": "norm", **head, "value": 3.0},
        {**head, "value": [1.0, 2.0]},
    ]
    assert agents_of(text) == [
        {"model": "org/a", "weight": [{"filter": "mlp", **head, "value": 7.0}, *shared, tail]},
        {"model": "org/b@main", "weight": [*shared, tail]},
    ]
    lam = recipe_from_yaml(text).parameters["lambda"]
    assert lam == [{**head, "value": 0.5}, {"layers": [2, 6], "value": 1.0}]


def test_slices_that_say_the_same_still_tell_the_plan_which_layers_there_are():
    covered = [{"layers": [0, 8], "value": 1.0}, {"layers": [8, 32], "value": 1.0}]
    assert agents_of(HEAD + slices(*HALVES)) == [{"model": "org/a", "weight": covered}, "org/b@main"]
    assert agents_of(f"merge_method: ram\n{BASE}" + slices(*HALVES)) == [
        {"model": "org/a", "weight": covered},
        "org/b@main",
    ]


def test_a_key_without_a_value_is_not_given():
    text = document("ram", more=FLOAT32 + "slices: null\nmodules: null\n")
    assert recipe_from_yaml(text).to_dict() == recipe_from_yaml(document("ram")).to_dict()


def test_densities_of_each_model_are_its_own():
    text = document("ties", models("weight: 1, density: [1, 0.5]", "weight: 1, density: 0.3"))
    assert agents_of(text) == [
        {"model": "org/a", "parameters": {"density": [1.0, 0.5]}},
        {"model": "org/b@main", "parameters": {"density": 0.3}},
    ]
    drawn = document("dare_linear", models("weight: 1, density: [1, 0.5]", "weight: 1, density: 0.3"))
    assert [agent["parameters"] for agent in agents_of(drawn)] == [{"p": [0.0, 0.5]}, {"p": 0.7}]


def test_linear_without_a_base_counts_from_the_first_model_and_says_so():
    recipe = recipe_from_yaml("merge_method: linear\n" + models("weight: 0.6", "weight: [0.2, 0.4]"))
    assert (str(recipe.base), recipe.parameters) == ("org/a", {"base_weight": 0.6})
    assert recipe.to_dict()["agents"] == [{"model": "org/b@main", "weight": [0.2, 0.4]}]
    assert any(note.startswith("Base: ") and "org/a" in note for note in recipe.notes)


def test_an_adapter_on_the_base_is_an_agent():
    recipe = recipe_from_yaml(document("ram").replace("org/a", "org/base@v1+org/lora@v2"))
    assert [str(agent.model) for agent in recipe.agents] == ["org/lora@v2", "org/b@main"]
    assert any(note.startswith("LoRA: org/lora@v2 is applied to org/base@v1") for note in recipe.notes)


def test_a_model_may_be_a_table_as_mergekit_writes_it_out():
    base = "{model: {path: org/base, revision: v1}, lora: null, override_architecture: null}"
    adapted = "{model: org/base@v1, lora: {path: org/lora}}"
    listed = f"models: [{{model: {base}}}, {{model: {adapted}}}, {{model: org/b}}]\n"
    read = recipe_from_yaml(f"merge_method: ram\nbase_model: {base}\n{listed}tokenizer_source: {base}\n")
    assert (str(read.base), [str(a.model) for a in read.agents], read.tokenizer) == (
        "org/base@v1",
        ["org/lora", "org/b"],
        "base",
    )


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("union", None),
        ("base", "base"),
        ("org/base@v1", "base"),
        ("org/a", "org/a"),
        ("model:org/b@main", "org/b@main"),
    ],
)
def test_the_tokenizer_s_source_is_the_recipe_s(source, kept):
    for text in (f"tokenizer_source: {source}\n", f"tokenizer: {{source: {source}}}\n"):
        assert recipe_from_yaml(document("ram") + text).to_dict().get("tokenizer") == kept


def test_a_method_that_mergekit_names_otherwise_says_so():
    assert recipe_from_yaml(document("ramplus_tl")).notes[0].endswith("its `ramplus_tl` is `ram_plus` here.")
    assert recipe_from_yaml(document("ram")).notes == ("Read as a mergekit document.",)


def test_the_base_is_no_agent_whether_listed_or_not():
    listed = document("task_arithmetic", models("weight: 1", "weight: 2", base=""))
    plain = document("task_arithmetic", models("weight: 1", "weight: 2"))
    assert recipe_from_yaml(listed).to_dict() == recipe_from_yaml(plain).to_dict()


@pytest.mark.parametrize(
    ("dtypes", "stored"),
    [
        ("dtype: bfloat16", "bfloat16"),
        ("dtype: torch.float16", "float16"),
        ("dtype: float32\nout_dtype: bfloat16", "bfloat16"),
        ("dtype: float64\nout_dtype: float32", "float32"),
        ("out_dtype: float16", "float16"),
        ("", None),
    ],
)
def test_the_output_is_stored_as_the_document_says(dtypes, stored):
    assert recipe_from_yaml(document("ram", more=dtypes + "\n")).dtype == stored


@pytest.mark.parametrize("flag", ["true", "1", "yes", "on", "True", "[true, true]", "{value: true}", "[{value: true}]"])
def test_flags_are_read_as_mergekit_reads_them(flag):
    text = document("task_arithmetic", WEIGHED, FLOAT32 + f"parameters: {{normalize: {flag}}}\n")
    assert recipe_from_yaml(text).parameters["normalize"] is True


DRAWN = document("dare_linear", ALIKE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TIES, ["Trimming: "]),
        (TIES.replace("0.25", "1"), []),
        (DRAWN, ["DARE: what survives", "DARE: which elements"]),
        (DRAWN + "parameters: {rescale: false}\n", ["DARE: which elements"]),
        (DRAWN.replace("0.25", "1"), []),
        (document("ram", more=""), ["Precision: without `dtype`"]),
        (document("ram", more="dtype: bfloat16\n"), ["Precision: mergekit converts every input"]),
        (document("ram") + "tokenizer_source: base\n", ["Tokenizer: "]),
        (document("ram") + "tokenizer: {source: org/base@v1}\n", ["Tokenizer: "]),
        (document("ram", WEIGHED), ["Without effect, here as in mergekit: `models → 0 → parameters → weight`, `mod"]),
        (document("ram") + "parameters: {lambda: 2}\n", ["Without effect, here as in mergekit: `parameters → lambda`"]),
        (
            document("task_arithmetic", ALIKE) + "parameters: {int8_mask: true}\n",
            ["Without effect, here as in mergekit: `parameters → int8_mask`, `models → 0 → parameters → density`, `mo"],
        ),
        (
            document("ties", models("weight: 1, normalize: false", "weight: 1", base="weight: 9")),
            ["Without effect, here as in mergekit: `models → 0 → parameters → weight`, `models → 1 → parameters → nor"],
        ),
    ],
)
def test_what_a_document_means_differently_is_told_and_nothing_else(text, told):
    _, *notes = recipe_from_yaml(text).notes
    assert len(notes) == len(told)
    assert all(note.startswith(start) for note, start in zip(notes, told, strict=True))


def slices(*ranges: tuple[str, str, str, str]) -> str:
    """Of two agents: each one's layer_range and parameters, `parameters` of the slice and what else it has."""
    lines = ["slices:\n"]
    for a, b, shared, more in ranges:
        lines.append("  - sources:\n")
        lines += [f"      - {{model: {n}, {own}}}\n" for n, own in (("org/a", a), ("org/b@main", b))]
        lines.append(f"    parameters: {{{shared}}}\n{more}")
    return "".join(lines)


HALVES = tuple((f"layer_range: {layers}", f"layer_range: {layers}", "", "") for layers in ("[0, 8]", "[8, 32]"))
HEAD = f"merge_method: ties\n{BASE}parameters: {{weight: 1}}\n"
RAM = document("ram")


def second_half(more: str) -> str:
    return HEAD + slices(HALVES[0], (*HALVES[1][:2], "", f"    {more}\n"))


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (document("slerp"), "merge_method", "without a counterpart"),
        ("merge_method: [ties]\n" + BASE + models(), "merge_method", "without a counterpart"),
        ("merge_method: sar\n" + BASE + models(), "merge_method", "without a counterpart"),
        (second_half("residual_weight: 0.1"), "residual_weight", "not supported"),
        (second_half("base_model: org/c"), "slice 2 → base_model", "base of its own"),
        (HEAD + slices(HALVES[0], HALVES[0]), "slice 2", "repeated or in another order"),
        (HEAD + slices(HALVES[1]), "slice 1", "left out"),
        (HEAD + slices((HALVES[0][0], HALVES[1][0], "", "")), "slice 1", "other layers than each other"),
        (HEAD + slices(HALVES[0]).replace("[0, 8]}", "[8, 0]}", 1), "source 1", "a source is a table"),
        (HEAD + slices(HALVES[0]) + slices(HALVES[1])[8:].replace("org/a", "org/c"), "slice 2", "other models"),
        (HEAD + "slices: [{}]\n", "slice 1", "with `sources`"),
        (HEAD + models() + slices(*HALVES), "slices", "more than one of"),
        (HEAD + "modules: {default: {}}\n", "modules → default", "either `models` or `slices`"),
        (HEAD + "modules: {a: {models: [{model: org/a}]}, b: {models: [{model: org/a}]}}\n", "modules", "several"),
        (document("ties", models("weight: 1, density: [2, 0.5]", "weight: 1")), "model 1", "exceeds 1"),
        (document("ties", models("weight: 1, density: [0.5, 0]", "weight: 1")), "model 1", "keeps nothing"),
        (document("dare_ties", models("weight: 1, density: 0", "weight: 1")), "model 1", "drops everything"),
        (
            document("dare_linear", models("weight: 1, density: 0.5", "weight: 1"), "parameters: {rescale: false}\n"),
            "parameters → rescale",
            "densities that differ",
        ),
        (document("ram", more="parameters: {epsilon: [0, 1e-4]}\n"), "parameters → epsilon", "differs from tensor to"),
        (
            document("ties", WEIGHED, "parameters: {normalize: [{filter: mlp, value: true}]}\n"),
            "parameters → normalize",
            "a flag that differs",
        ),
        ("merge_method: linear\nmodels: [{model: org/a}]\nparameters: {weight: 1}\n", "models", "single model"),
        ("merge_method: linear\n" + models("weight: 1", "weight: 1").replace("org/a", "org/c+org/l"), "model", "LoRA"),
        ("base_model: org/base\ngate_mode: random\nexperts: [{source_model: org/a}]\n", "", "mixture of experts"),
        ("genome: {models: [org/a, org/b]}\ntasks: []\n", "", "of another kind than a merge"),
        (RAM + "chat_template: auto\n", "chat_template", "not supported"),
        (RAM + "agents: [org/c]\n", "agents", "does not know"),
        (RAM + "seed: 1\n", "seed", "does not know"),
        ("merge_method: ram\n" + models(), "base_model", "no base"),
        ("merge_method: ram\n" + BASE, "models", "no list of models"),
        ("merge_method: ram\n" + BASE + "models: [{model: org/base@v1}]\n", "models", "no model besides the base"),
        ("merge_method: ram\n" + BASE + "models: [org/a]\n", "model 1", "a model is a table"),
        (RAM.replace("org/a", "org/b@main"), "model 2 → model", "stands twice"),
        (RAM.replace("org/a", "org/a+org/lora"), "model 1 → model", "a LoRA adapter on another model"),
        (RAM.replace("base_model: org/base@v1", "base_model: org/b+org/l"), "base_model", "a base with a LoRA adapter"),
        (RAM.replace("org/a", "org/a@b@c"), "model 1 → model", "revision"),
        (RAM.replace("org/a", "./folder@main"), "model 1 → model", "revision"),
        (RAM.replace("org/a", "{path: org/a}"), "model 1 → model", "as text"),
        (RAM.replace("org/a", "{model: org/a, override_architecture: Llama}"), "model 1 → model", "as text"),
        (RAM.replace("model: org/a", "model: org/a, layer_range: [0, 2]"), "layer_range", "a key that a"),
        (RAM.replace("org/a", "org/a b"), "agent 1 → model", "no Hub id"),
        (document("ram", more="dtype: int8\n"), "dtype", "unsupported dtype"),
        (document("ram", more="dtype: float64\n"), "dtype", "64 bits"),
        (document("ram", more="out_dtype: float64\n"), "out_dtype", "unsupported dtype"),
        (RAM + "tokenizer_source: org/c\n", "tokenizer_source", "a tokenizer of none of the models"),
        (RAM + "tokenizer_source: base\ntokenizer: {source: union}\n", "tokenizer", "both `tokenizer_source` and"),
        (RAM + "tokenizer: {source: {kind: zero}}\n", "tokenizer → source", "a tokenizer of none"),
        (RAM + "tokenizer: {source: base, pad_to_multiple_of: 8}\n", "pad_to_multiple_of", "not supported"),
        (RAM + "parameters: [1]\n", "parameters", "a table"),
        (RAM + "parameters: {epsilon: small}\n", "parameters → epsilon", "a number"),
        (RAM + "parameters: {epsilon: true}\n", "parameters → epsilon", "a number"),
        (RAM + "parameters: {epsilon: .inf}\n", "parameters → epsilon", "a number"),
        (RAM + "parameters: {epsilon: null}\n", "parameters → epsilon", "missing"),
        (RAM + "parameters: {epsilonn: 1}\n", "parameters → epsilonn", "unknown parameter"),
        (document("ties", models("weight: 1, gamma: 1", "weight: 1")), "parameters → gamma", "unknown parameter"),
        (document("task_arithmetic", models("", "weight: 1")), "model 1", "no `weight` for org/a"),
        (document("linear", WEIGHED), "base_model", "no `weight` for org/base@v1"),
        (document("linear", models("weight: 1", "weight: -1", base="weight: 0")), "models", "add up to 0"),
        (
            document("linear", models("weight: 1", "weight: 1", base="weight: 0"), "parameters: {normalize: false}\n"),
            "parameters → normalize",
            "scale the base",
        ),
        (TIES + "parameters: {normalize: maybe}\n", "parameters → normalize", "true or false"),
        (TIES + "parameters: {rescale: true}\n", "parameters → rescale", "rescaling"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_key(text, place, said):
    (problem,) = refused(text).problems
    assert problem.where.endswith(place)
    assert said in problem.what


def test_everything_without_a_counterpart_is_told_at_once():
    text = document(
        "dare_ties",
        models("weight: [0, high], density: 0.5", "weight: 1, density: 0").replace("org/a", "org/a+org/lora"),
        "dtype: int8\ntokenizer_source: org/c\nparameters: {frob: 1}\nchat_template: auto\n",
    )
    told = str(refused(text))
    for place in ("parameters → weight", "model 2", "model", "dtype", "tokenizer_source", "frob", "chat_template"):
        assert f"→ {place}" in told


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (TIES.replace("model: org/a", "density: 0.5, model: org/a"), "Write it under `parameters`."),
        (TIES + "normalize: false\n", "Write it under `parameters`."),
        (TIES + "parameters: {out_dtype: bfloat16}\n", "Write it at the top of the document."),
        (TIES + "parameters: {lamda: 0.85}\n", "Did you mean lambda?"),
        (TIES + "tokeniser: {source: base}\n", "Did you mean tokenizer?"),
        (TIES + "name: my-merge\n", "Remove it; mergekit ignores it."),
        (TIES + "parameters: {dare: 1}\n", "Remove it; mergekit ignores it."),
        (TIES.replace("model: org/a", "name: a, model: org/a"), "Remove it; mergekit ignores it."),
        (TIES + "tokenizer: {pad_to_multiple_of: 8}\n", "Remove it."),
        (document("ram", more="dtype: bf16\n"), "Did you mean bfloat16?"),
        (document("ram", more="parameters: {epsilon: '1e-3'}\n"), "Write it without quotes."),
        (document("ram", more="parameters: {epsilon: 1_000}\n"), ""),
        (document("ram", more="parameters: {epsilon: nan}\n"), ""),
        (HEAD + "slices: [{sources: [{model: org/a}]}]\n", "List models that are merged as a whole under `models`."),
    ],
)
def test_a_slip_of_the_pen_is_told_with_what_was_meant(text, step):
    (problem,) = refused(text).problems
    assert problem.next_step == step


def test_values_out_of_range_are_refused_by_the_recipe():
    assert "lambda" in str(refused(document("task_arithmetic", WEIGHED) + "parameters: {lambda: 1000}\n"))


def test_a_recipe_of_our_own_is_none_of_mergekit_s():
    own = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram"}
    assert not is_mergekit(own)
    assert not is_mergekit(["merge_method"])
    assert is_mergekit(load_plain_yaml(TIES))
    assert recipe_from_yaml(dump_plain_yaml(own)).notes == ()


def test_notes_stay_with_the_recipe_and_out_of_what_it_means():
    read: Recipe = recipe_from_yaml(TIES)
    own = recipe_from_yaml(read.to_yaml())
    base, *agents = (ModelRef("hub", f"org/{name}", f"{i:040x}") for i, name in enumerate(("base", "a", "b")))
    assert read.pinned(base, tuple(agents)).notes == read.notes != ()
    assert merge_identity(read, base, tuple(agents)) == merge_identity(own, base, tuple(agents))
    assert not any(note in read.to_yaml() for note in read.notes)


def test_notes_cannot_be_written_into_a_recipe():
    content: dict[str, Any] = {"base": "org/base", "agents": ["org/a"], "method": "ram"}
    for key in ("notes", "_notes"):
        with pytest.raises(RecipeError):
            recipe_from_yaml(dump_plain_yaml({**content, key: ["trust me"]}))


# --- slices that say less, or other things, than their neighbors: what is missing is not taken from them ---

RANGES = ([0, 8], [8, 32])
AGENTS = {"org/a": 1, "org/b": 0.5}
WITH_BASE = {"org/base": 3, **AGENTS}


def sliced(method: str, slices: Sequence[Mapping[str, Any]], ranges: Sequence[list[int]] = RANGES, **more: Any) -> str:
    """A document with these slices: a weight, or None, by the model."""

    def source(model: str, weight: Any, layers: list[int]) -> dict[str, Any]:
        own = {} if weight is None else {"parameters": {"weight": weight}}
        return {"model": model, "layer_range": layers, **own}

    listed = [
        {"sources": [source(model, weight, at) for model, weight in one.items()]}
        for one, at in zip(slices, ranges, strict=True)
    ]
    return json.dumps({"merge_method": method, "base_model": "org/base", "slices": listed, **more})


@pytest.mark.parametrize("method", ["linear", "ties"])
@pytest.mark.parametrize(("model", "source"), [("org/a", 2), ("org/b", 3)])
def test_a_weight_that_one_slice_lacks_is_refused_though_another_has_it(method, model, source):
    (problem,) = refused(sliced(method, [WITH_BASE, {**WITH_BASE, model: None}])).problems
    assert problem.what == f"no `weight` for {model}, which mergekit requires"
    assert problem.where.endswith(f"slice 2 → source {source}")


@pytest.mark.parametrize(
    ("slices", "weight"),
    [
        ((AGENTS, AGENTS), None),
        ((WITH_BASE, AGENTS), [3.0, 0.0]),
        ((AGENTS, WITH_BASE), [0.0, 3.0]),
        ((AGENTS, {**AGENTS, "org/base": None}), [0.0, 7.0]),
        ((WITH_BASE, {**AGENTS, "org/base": None}), [3.0, 7.0]),
    ],
)
def test_in_a_mean_the_base_takes_part_where_it_is_a_source(slices, weight):
    recipe = recipe_from_yaml(sliced("linear", slices, parameters={"weight": 7}))
    expected = None if weight is None else [{"layers": at, "value": w} for at, w in zip(RANGES, weight, strict=True)]
    assert recipe.parameters.get("base_weight") == expected
    assert not any(note.startswith("Base: ") for note in recipe.notes)


def test_slices_without_the_base_that_mergekit_requires_are_counted_from_it_and_say_so():
    some = [(slices, True) for slices in ((AGENTS, AGENTS), (WITH_BASE, AGENTS), (AGENTS, WITH_BASE))]
    for slices, told in (*some, ((WITH_BASE, WITH_BASE), False)):
        recipe = recipe_from_yaml(sliced("ties", slices))
        assert str(recipe.base) == "org/base"
        assert any(note.startswith("Base: mergekit refuses a slice") for note in recipe.notes) == told


def test_one_module_is_the_model_and_a_base_may_stand_in_the_first_slice_alone():
    content = json.loads(sliced("ties", [WITH_BASE, WITH_BASE]))
    plain = recipe_from_yaml(json.dumps(content)).to_dict()
    first, second = whole = content.pop("slices")
    in_module = {**content, "modules": {"default": {"slices": whole}}}
    in_slice = {"merge_method": "ties", "slices": [{**first, "base_model": content.pop("base_model")}, second]}
    for other in (in_module, in_slice):
        assert recipe_from_yaml(json.dumps(other)).to_dict() == plain


def test_more_values_over_all_slices_than_a_recipe_takes_are_refused():
    weight = [{"filter": "attn", "value": 1}, {"filter": "mlp", "value": 2}]
    ranges = [[i, i + 1] for i in range(90)]
    text = sliced("ties", [{**WITH_BASE, "org/a": weight}] * 90, ranges=ranges, parameters={"weight": 1})
    (problem,) = refused(text).problems
    assert problem.what == "too many values of `weight` over all slices"
    assert (problem.expected, problem.got) == ("at most 256", "270")
