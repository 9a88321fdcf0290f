"""A document gives what mergekit 0.1.5 gives, where the definitions coincide.

A naive reference in float64 stands in for mergekit, so that this runs without it; where mergekit is installed
(tests/mergekit/install.sh), both are held against it. The ten documents are as mergekit's README and examples write
them, with models of our own in place of theirs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import T, f32, llama_config, llama_shapes, random_base, sparse_agent, tensor, tokenizer_files, write_model
from numpy.typing import NDArray
from processes import ROOT
from source_helpers import lora, pair
from source_helpers import write_adapter as adapter

from benchmarks.mergekit_parity import (
    CASES,
    PYTHON,
    Case,
    Difference,
    Values,
    compare,
    make_family,
    read,
    run_hubmerge,
    run_mergekit,
    write_families,
)
from hubmerge.errors import RecipeError
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.text.wording import place

pytestmark = pytest.mark.usefixtures("without_figures")
Array = NDArray[np.float64]
INSTALLED = ROOT / PYTHON
needs_mergekit = pytest.mark.skipif(
    not INSTALLED.exists(), reason="mergekit is not installed in .cache/mergekit (tests/mergekit/install.sh)"
)
MOST_ULPS = 4.0  # of float32, from another order of the same operations

# --- mergekit's definitions, one tensor at a time: `deltas` are θk − θ0, flat, one row per agent ---


def linear(models: Array, weights: Sequence[float], normalize: bool = True) -> Array:
    """Over models, the base among them, not over deltas."""
    total = sum(w * m for w, m in zip(weights, models, strict=True))
    return total / sum(weights) if normalize else total


def trim(delta: Array, density: float) -> Array:
    """Exactly max(1, ⌊density·n⌋) elements stay, the largest; of equal ones the first."""
    if density >= 1:
        return delta
    kept = np.zeros_like(delta)
    order = np.argsort(-np.abs(delta), kind="stable")[: max(1, int(density * delta.size))]
    kept[order] = delta[order]
    return kept


def rescaled_drop(delta: Array, kept: NDArray[np.bool_]) -> Array:
    """The survivors, scaled so that the tensor's sum of magnitudes is what it was."""
    survivors = np.where(kept, delta, 0.0)
    after = np.abs(survivors).sum()
    return survivors * (np.abs(delta).sum() / after) if after > 0 else survivors


def task_arithmetic(deltas: Array, weights: Sequence[float], lam: float, normalize: bool) -> Array:
    total = sum(w * d for w, d in zip(weights, deltas, strict=True))
    return lam * total / (sum(weights) if normalize else 1.0)


def consensus(deltas: Array, weights: Sequence[float], lam: float, normalize: bool) -> Array:
    """TIES without the trim: elect a sign per element, 0 counts as +; sum or weighted mean of the agreeing."""
    of_agent = np.array(weights)[:, None]
    weighted = of_agent * deltas
    agreeing = np.sign(weighted) == np.where(weighted.sum(axis=0) >= 0, 1.0, -1.0)
    divisor = np.where(agreeing, of_agent, 0.0).sum(axis=0) if normalize else np.ones(deltas.shape[1])
    return lam * np.where(agreeing, weighted, 0.0).sum(axis=0) / np.where(divisor == 0, 1.0, divisor)


def ram(deltas: Array, epsilon: float, r: float, alpha: float) -> Array:
    """The tensor-local RAM+; RAM where r and alpha are 0."""
    active = np.abs(deltas) > np.float32(epsilon)
    count = active.sum(axis=0)
    result = np.zeros(deltas.shape[1])
    for delta, mask in zip(deltas, active, strict=True):
        unique, shared = mask & (count == 1), mask & (count > 1)
        rho = shared.sum() / unique.sum() if unique.any() else 0.0
        result[unique] += delta[unique] * (1.0 + r * min(rho, alpha))
        result[shared] += delta[shared] / count[shared]
    return result


# --- each method ---

IN_FLOAT32 = [case for case in CASES if case.stored == "float32" and case.out_dtype is None]


def expected(case: Case, base: Array, agents: Array) -> Array:
    """What mergekit's definition gives for one tensor, flat."""
    values: Mapping[str, Any] = dict(case.parameters)
    deltas = agents - base
    if case.method == "linear":
        assert case.weights is not None
        assert case.base_weight is not None
        models = np.stack([base, *agents])
        return linear(models, (case.base_weight, *case.weights), values.get("normalize", True))
    if case.method in ("ram", "ramplus_tl"):
        scale = (values.get("r", 0.1), values.get("alpha", 0.2)) if case.method == "ramplus_tl" else (0.0, 0.0)
        return base + ram(deltas, values.get("epsilon", 1e-5), *scale)
    assert case.weights is not None
    trimmed = np.stack([trim(d, case.density or 1.0) for d in deltas])
    if case.method.endswith("ties"):
        normalize = values.get("normalize", case.method == "ties")
        return base + consensus(trimmed, case.weights, values.get("lambda", 1.0), normalize)
    normalize = values.get("normalize", False)
    return base + task_arithmetic(trimmed, case.weights, values.get("lambda", 1.0), normalize)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    write_families(folder)
    return folder


def test_the_plan_of_a_document_warns_of_what_it_means_differently(families):
    case = next(case for case in CASES if case.name == "ties")
    recipe = recipe_from_yaml(case.document(families))
    plan = prepare(recipe, Hub("http://127.0.0.1:9"), Request(license="apache-2.0", allow_local=True)).plan
    assert recipe.notes
    assert plan.warnings[: len(recipe.notes)] == recipe.notes


@pytest.mark.parametrize("case", IN_FLOAT32, ids=lambda case: case.name)
def test_a_document_gives_what_mergekit_s_definition_gives(case, families, tmp_path):
    base, agents = make_family()
    ours = run_hubmerge(case.document(families), tmp_path / "out")
    theirs = {
        name: expected(case, value.astype(np.float64).ravel(), np.stack([a[name].ravel() for a in agents], dtype=float))
        .astype(np.float32)
        .reshape(value.shape)
        for name, value in base.items()
    }
    difference = Difference.between(ours, theirs, [base, *agents], bits=24)
    assert difference.largest_ulps <= MOST_ULPS


def test_the_models_have_one_answer_to_a_trim_and_sums_of_exactly_zero():
    base, agents = make_family()
    for name, value in base.items():
        deltas = [(agent[name] - value).ravel() for agent in agents]
        assert (sum(deltas) == 0)[deltas[0] != 0].any()
        for delta in deltas:
            magnitudes = np.sort(np.abs(delta))[::-1]
            k = max(1, int(0.3 * delta.size))
            assert magnitudes[k - 1] > magnitudes[k] or magnitudes[k - 1] == 0


@needs_mergekit
@pytest.mark.slow
def test_a_document_gives_what_mergekit_gives(tmp_path):
    versions, found = compare(CASES, tmp_path, INSTALLED)
    assert versions["mergekit"] == "0.1.5"
    for case in IN_FLOAT32:
        assert found[case.name].largest_ulps <= MOST_ULPS, case.name
    assert found["ram, stored as bfloat16"].largest_ulps <= 1.0


def test_the_documentation_shows_the_recorded_figures():
    recorded = json.loads((ROOT / "docs/data/mergekit_parity.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/mergekit.md").read_text(encoding="utf-8")
    assert [row["case"] for row in recorded["cases"]] == [case.name for case in CASES]
    for row in recorded["cases"]:
        line = f"| {row['case']} | {row['max_abs_difference']:.2g} | {row['max_ulps']:g} | {row['different']:,} |"
        assert line in text


STEP = 2.0**-7  # on a base of zeros every δ = ±STEP is exact, and all tie


def written(folder: Path, agent: dict[str, T], method: str, own: str) -> str:
    """A document of a base of zeros and one agent, so that counts can be seen."""
    base = {name: tensor(np.zeros(shape), "F32") for name, shape in llama_shapes().items()}
    base_folder, agent_folder = write_model(folder / "base", base), write_model(folder / "a", agent)
    listed = f"  - {{model: {agent_folder}, parameters: {own}}}\n"
    return f"merge_method: {method}\nbase_model: {base_folder}\nmodels:\n{listed}dtype: float32\n"


@needs_mergekit
def test_the_reference_of_the_differences_is_mergekit_s_behaviour(tmp_path):
    rng = np.random.default_rng(5)
    tied: dict[str, T] = {}
    apart: dict[str, T] = {}
    for name, shape in llama_shapes().items():
        tied[name] = tensor(STEP * rng.choice((-1, 1), shape) * (rng.random(shape) < 0.6), "F32")
        apart[name] = tensor(rng.lognormal(-5.0, 1.0, shape) * rng.choice((-1, 1), shape), "F32")
    documents = [
        (written(tmp_path / "tied", tied, "ties", "{weight: 1, density: 0.25}"), tmp_path / "trimmed"),
        (written(tmp_path / "apart", apart, "dare_linear", "{weight: 1, density: 0.4}"), tmp_path / "dropped"),
    ]
    run_mergekit(documents, tmp_path, INSTALLED)
    for name, value in read(tmp_path / "trimmed").items():
        share = trim(f32(tied[name]).ravel().astype(np.float64), 0.25)
        assert np.count_nonzero(value) == np.count_nonzero(share)
    for name, value in read(tmp_path / "dropped").items():
        delta = f32(apart[name]).astype(np.float64)
        expected_values = rescaled_drop(delta.ravel(), value.ravel() != 0).reshape(delta.shape)
        np.testing.assert_allclose(value, expected_values, rtol=1e-5)


# --- ten documents ---

DOCUMENTS = Path(__file__).parent / "documents"
LAYERS = 5
MISSING = {"slerp_gradients": "slerp", "arcee_fusion": "arcee_fusion", "stacked_layers": "passthrough"}
DRAWN = "dare_ties_densities"  # what it drops is drawn, by each in its own way


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ten")
    write_families(folder, layers=LAYERS)
    return folder / "float32"


def document(name: str, models: Path) -> str:
    return (DOCUMENTS / f"{name}.yml").read_text(encoding="utf-8").replace("MODELS", str(models))


def way(name: str, first: int = 0, end: int = LAYERS) -> float:
    """How far along the layers from `first` to `end` a tensor lies; outside of them it is at the beginning."""
    if ".layers." not in name:
        return 0.0
    return (int(name.split(".")[2]) - first) / (end - first - 1)


def along(numbers: Sequence[float], at: float) -> float:
    return float(np.interp(at, np.linspace(0, 1, len(numbers)), numbers))


def summed(name: str, base: Array, agents: Array) -> Array:
    trimmed = np.stack([trim(a - base, 0.5) for a in agents[:2]])
    return base + consensus(trimmed, (0.5, 0.5), 1.0, False)


def gradients_and_filters(name: str, base: Array, agents: Array) -> Array:
    at = way(name)
    densities = (along([1, 0.7, 0.1], at), 0.5, 0.33)
    weights = (1.0, along([0, 0.3, 0.7, 1], at), 0.5 if "mlp" in name else 0.0)
    trimmed = np.stack([trim(a - base, d) for a, d in zip(agents, densities, strict=True)])
    return base + consensus(trimmed, weights, 1.0, True)


def of_slices(name: str, base: Array, agents: Array) -> Array:
    """The embedding belongs to the first slice, what comes after the layers to the second."""
    in_first = "embed" in name or (".layers." in name and int(name.split(".")[2]) < 2)
    if in_first:
        weights = (along([0.2, 0.8], way(name, 0, 2)), 0.7 if "self_attn" in name else 0.4)
        lam = 0.9
    else:
        weights = (along([1, 0.5, 0.25], way(name, 2, 5)), 0.1)
        lam = 0.7
    return base + task_arithmetic(agents[:2] - base, weights, lam, False)


DEFINITIONS: Mapping[str, Callable[[str, Array, Array], Array]] = {
    "ties_summed": summed,
    "ties_gradients_and_filters": gradients_and_filters,
    "linear_without_base": lambda name, base, agents: linear(agents, (1.0, 0.3, 0.5)),
    "linear_of_two": lambda name, base, agents: linear(agents[:2], (0.5, 0.5)),
    "slices_and_precedence": of_slices,
    "union_tokenizer": lambda name, base, agents: base + task_arithmetic(agents[:2] - base, (0.6, 0.4), 1.0, False),
}


def test_there_are_ten_and_each_is_merged_or_refused():
    names = {path.stem for path in DOCUMENTS.glob("*.yml")}
    assert len(names) == 10
    assert names == {*DEFINITIONS, *MISSING, DRAWN}


@pytest.mark.parametrize("name", MISSING)
def test_a_document_of_a_method_that_is_missing_is_refused_by_naming_it(name, models):
    with pytest.raises(RecipeError) as caught:
        recipe_from_yaml(document(name, models), "m.yml")
    [problem] = [one for one in caught.value.problems if one.where == place("m.yml", "merge_method")]
    assert problem.got == repr(MISSING[name])
    assert "linear, task_arithmetic, ties, dare_linear, dare_ties, ram, ramplus_tl" in problem.expected
    others = [one for one in caught.value.problems if one is not problem]
    # layers on top of each other are refused whatever the method
    assert all("slice" in one.where for one in others)
    assert bool(others) == (name == "stacked_layers")


def held_against(ours: Values, theirs: Values, models: Path) -> Difference:
    return Difference.between(ours, theirs, [read(folder) for folder in sorted(models.iterdir())], bits=24)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_document_gives_what_its_definition_gives(name, models, tmp_path):
    base, *agents = (read(models / one) for one in ("base", "agent0", "agent1", "agent2"))
    ours = run_hubmerge(document(name, models), tmp_path / "out")
    theirs = {}
    for key, value in base.items():
        flat = np.stack([agent[key].astype(np.float64).ravel() for agent in agents])
        result = DEFINITIONS[name](key, value.astype(np.float64).ravel(), flat)
        theirs[key] = result.astype(np.float32).reshape(value.shape)
    assert held_against(ours, theirs, models).largest_ulps <= MOST_ULPS


def write_adapter(folder: Path, base: Values) -> dict[str, Array]:
    """A LoRA adapter of rank 4 and scale 2 on two kinds of weights; its updates in float64."""
    updates: dict[str, Array] = {}
    factors: dict[str, T] = {}
    for seed, (name, value) in enumerate(base.items()):
        updates[name] = np.zeros(value.shape)
        if "q_proj" in name or "up_proj" in name:
            a, b = lora((value.shape[0], value.shape[1]), seed=seed)
            factors |= pair(name.removesuffix(".weight"), a / 5, b / 5)
            updates[name] = 2.0 * ((b / 5).astype(np.float64) @ (a / 5))
    config = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "up_proj"], "bias": "none"}
    adapter(folder, factors, base_model_name_or_path=str(folder.parent / "base"), **config)
    return updates


def of_adapter(models: Path, adapter: Path) -> str:
    return (
        f"merge_method: task_arithmetic\nbase_model: {models / 'base'}\ndtype: float32\nmodels:\n"
        f"  - {{model: {models / 'base'}+{adapter}, parameters: {{weight: [0.5, 1]}}}}\n"
        f"  - {{model: {models / 'agent1'}, parameters: {{weight: 0.5}}}}\n"
    )


MOST_OFF = 1e-7  # of weights around 0.02: the product of the factors is summed up in another order


def test_an_adapter_on_the_base_is_merged_as_the_model_that_it_makes(models, tmp_path):
    base, agent = read(models / "base"), read(models / "agent1")
    updates = write_adapter(tmp_path / "adapter", base)
    ours = run_hubmerge(of_adapter(models, tmp_path / "adapter"), tmp_path / "out")
    for name, value in base.items():
        delta = along([0.5, 1], way(name)) * updates[name] + 0.5 * (agent[name].astype(np.float64) - value)
        np.testing.assert_allclose(ours[name], value + delta, rtol=1e-6, atol=MOST_OFF)


def test_random_drops_keep_each_model_s_own_share_rescaled_by_it(models, tmp_path):
    """Without the weights' overlaps: where one agent alone moved an element, it is dropped, or δ/density times 0.5."""
    base, *agents = (read(models / one) for one in ("base", "agent0", "agent1"))
    ours = run_hubmerge(document(DRAWN, models), tmp_path / "out")
    for k, density in enumerate((0.6, 0.8)):
        kept = moved = 0
        for name, value in base.items():
            own, other = (agents[i][name].astype(np.float64) - value for i in (k, 1 - k))
            alone = (np.abs(own) > 1e-3) & (other == 0)
            stored = ours[name].astype(np.float64) - value
            here = alone & (stored != 0)
            np.testing.assert_allclose(stored[here], 0.5 * own[here] / density, rtol=1e-3)
            kept, moved = kept + np.count_nonzero(here), moved + np.count_nonzero(alone)
        deviation = np.sqrt(density * (1 - density) / moved)
        assert abs(kept / moved - density) < 5 * deviation


@needs_mergekit
@pytest.mark.slow
def test_each_document_gives_what_mergekit_gives(models, tmp_path):
    # a union of tokenizers needs tokenizers, which these models have none of: theirs is the last test's
    names = [name for name in DEFINITIONS if name != "union_tokenizer"]
    jobs: list[Any] = [(document(name, models), tmp_path / "theirs" / name) for name in names]
    write_adapter(tmp_path / "adapter", read(models / "base"))
    adapted = of_adapter(models, tmp_path / "adapter")
    jobs.append((adapted, tmp_path / "theirs/adapted"))
    assert run_mergekit(jobs, tmp_path, INSTALLED)["mergekit"] == "0.1.5"
    for name in names:
        ours = run_hubmerge(document(name, models), tmp_path / "ours" / name)
        assert held_against(ours, read(tmp_path / "theirs" / name), models).largest_ulps <= MOST_ULPS, name
    ours, theirs = run_hubmerge(adapted, tmp_path / "ours/adapted"), read(tmp_path / "theirs/adapted")
    assert held_against(ours, theirs, models).largest <= MOST_OFF


# --- tokenizers: equal tokens have equal rows ---

TABLES = ("model.embed_tokens.weight", "lm_head.weight")
ADDED = {"agent0": {"<tool>": 40, "</tool>": 41}, "agent1": {"<think>": 40}}


def write_models(folder: Path) -> Path:
    """A base of 40 tokens, and two agents that add two and one."""
    base = {n: tensor(f32(t), "F32") for n, t in random_base(0).items()}
    write_model(folder / "base", base, config=llama_config(base))
    for seed, (name, added) in enumerate(ADDED.items(), 1):
        rng = np.random.default_rng(seed)
        tensors: dict[str, T] = dict(sparse_agent(base, 0.3, seed))
        for table in TABLES:
            values = f32(tensors[table])
            more = rng.normal(0, 0.02, (len(added), values.shape[1])).astype(np.float32)
            tensors[table] = tensor(np.concatenate([values, more]), "F32")
        write_model(folder / name, tensors, files=tokenizer_files(40, added), config=llama_config(tensors))
    return folder


def of_source(folder: Path, source: str) -> str:
    listed = "".join(f"  - {{model: {folder / n}, parameters: {{weight: 0.5}}}}\n" for n in ADDED)
    return (
        f"merge_method: task_arithmetic\nbase_model: {folder / 'base'}\nmodels:\n{listed}dtype: float32\n"
        f"tokenizer: {{source: {source}}}\n"
    )


def ids_of(folder: Path) -> dict[str, int]:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return {**content["model"]["vocab"], **{t["content"]: t["id"] for t in content["added_tokens"]}}


def by_token(tensors: Values, ids: dict[str, int], table: str) -> dict[str, list[float]]:
    return {token: tensors[table][row].tolist() for token, row in ids.items()}


@pytest.mark.slow
@needs_mergekit
def test_each_token_has_the_row_that_it_has_in_mergekit_s_merge(tmp_path):
    models = write_models(tmp_path / "models")
    documents = {source: of_source(models, source) for source in ("union", "base", str(models / "agent0"))}
    theirs = [(text, tmp_path / "theirs" / str(i)) for i, text in enumerate(documents.values())]
    run_mergekit(theirs, tmp_path, INSTALLED)
    for i, text in enumerate(documents.values()):
        out, other = tmp_path / "ours" / str(i), theirs[i][1]
        merged, reference = run_hubmerge(text, out), read(other)
        ids, other_ids = ids_of(out), ids_of(other)
        assert set(ids) == set(other_ids)
        for name in reference:
            if name not in TABLES:
                np.testing.assert_allclose(merged[name], reference[name], rtol=0, atol=1e-7)
                continue
            rows = by_token(reference, other_ids, name)
            for token, row in by_token(merged, ids, name).items():
                np.testing.assert_allclose(row, rows[token], rtol=0, atol=1e-7, err_msg=token)
