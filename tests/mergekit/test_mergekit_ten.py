"""Ten documents as mergekit's README and examples write them, with models of our own in place of theirs.

Those whose method exists here are merged and held against a naive reference in float64 and, where mergekit is
installed, against mergekit itself; the others are refused by their method alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mergekit_reference as reference
import numpy as np
import pytest
from builders import T
from mergekit_reference import INSTALLED, MOST_ULPS, Array, needs_mergekit
from source_helpers import lora, pair
from source_helpers import write_adapter as adapter

from benchmarks.mergekit_parity import Difference, Values, read, run_hubmerge, run_mergekit, write_families
from hubmerge.errors import RecipeError
from hubmerge.recipe.file import recipe_from_yaml
from hubmerge.text.wording import place

DOCUMENTS = sorted((Path(__file__).parent / "documents").glob("*.yml"))
LAYERS = 5
MISSING = {"slerp_gradients": "slerp", "arcee_fusion": "arcee_fusion", "stacked_layers": "passthrough"}
DRAWN = "dare_ties_densities"  # what it drops is drawn, by each in its own way


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ten")
    write_families(folder, layers=LAYERS)
    return folder / "float32"


def document(name: str, models: Path) -> str:
    return (
        (Path(__file__).parent / "documents" / f"{name}.yml").read_text(encoding="utf-8").replace("MODELS", str(models))
    )


def way(name: str, first: int = 0, end: int = LAYERS) -> float:
    """How far along the layers from `first` to `end` a tensor lies; outside of them it is at the beginning."""
    if ".layers." not in name:
        return 0.0
    return (int(name.split(".")[2]) - first) / (end - first - 1)


def along(numbers: Sequence[float], at: float) -> float:
    return float(np.interp(at, np.linspace(0, 1, len(numbers)), numbers))


def summed(name: str, base: Array, agents: Array) -> Array:
    trimmed = np.stack([reference.trim(a - base, 0.5) for a in agents[:2]])
    return base + reference.consensus(trimmed, (0.5, 0.5), 1.0, False)


def gradients_and_filters(name: str, base: Array, agents: Array) -> Array:
    at = way(name)
    densities = (along([1, 0.7, 0.1], at), 0.5, 0.33)
    weights = (1.0, along([0, 0.3, 0.7, 1], at), 0.5 if "mlp" in name else 0.0)
    trimmed = np.stack([reference.trim(a - base, d) for a, d in zip(agents, densities, strict=True)])
    return base + reference.consensus(trimmed, weights, 1.0, True)


def of_slices(name: str, base: Array, agents: Array) -> Array:
    """The embedding belongs to the first slice, what comes after the layers to the second."""
    in_first = "embed" in name or (".layers." in name and int(name.split(".")[2]) < 2)
    if in_first:
        weights = (along([0.2, 0.8], way(name, 0, 2)), 0.7 if "self_attn" in name else 0.4)
        lam = 0.9
    else:
        weights = (along([1, 0.5, 0.25], way(name, 2, 5)), 0.1)
        lam = 0.7
    return base + reference.task_arithmetic(agents[:2] - base, weights, lam, False)


DEFINITIONS: Mapping[str, Callable[[str, Array, Array], Array]] = {
    "ties_summed": summed,
    "ties_gradients_and_filters": gradients_and_filters,
    "linear_without_base": lambda name, base, agents: reference.linear(agents, (1.0, 0.3, 0.5)),
    "linear_of_two": lambda name, base, agents: reference.linear(agents[:2], (0.5, 0.5)),
    "slices_and_precedence": of_slices,
    "union_tokenizer": lambda name, base, agents: (
        base + reference.task_arithmetic(agents[:2] - base, (0.6, 0.4), 1.0, False)
    ),
}


def test_there_are_ten_and_each_is_merged_or_refused():
    names = {path.stem for path in DOCUMENTS}
    assert len(names) == 10
    assert names == {*DEFINITIONS, *MISSING, DRAWN}


@pytest.mark.parametrize("name", MISSING)
def test_a_document_of_a_method_that_is_missing_is_refused_by_naming_it(name: str, models: Path):
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
def test_a_document_gives_what_its_definition_gives(name: str, models: Path, tmp_path: Path):
    base, *agents = (read(models / one) for one in ("base", "agent0", "agent1", "agent2"))
    ours = run_hubmerge(document(name, models), tmp_path / "out")
    theirs = {}
    for tensor, value in base.items():
        flat = np.stack([agent[tensor].astype(np.float64).ravel() for agent in agents])
        result = DEFINITIONS[name](tensor, value.astype(np.float64).ravel(), flat)
        theirs[tensor] = result.astype(np.float32).reshape(value.shape)
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


def test_an_adapter_on_the_base_is_merged_as_the_model_that_it_makes(models: Path, tmp_path: Path):
    base, agent = read(models / "base"), read(models / "agent1")
    updates = write_adapter(tmp_path / "adapter", base)
    ours = run_hubmerge(of_adapter(models, tmp_path / "adapter"), tmp_path / "out")
    for name, value in base.items():
        delta = along([0.5, 1], way(name)) * updates[name] + 0.5 * (agent[name].astype(np.float64) - value)
        np.testing.assert_allclose(ours[name], value + delta, rtol=1e-6, atol=MOST_OFF)


def test_random_drops_keep_each_model_s_own_share_rescaled_by_it(models: Path, tmp_path: Path):
    """Without the weights' overlaps: where one agent alone moved an element, it is dropped, or δ/density times 0.5."""
    base, *agents = (read(models / one) for one in ("base", "agent0", "agent1"))
    ours = run_hubmerge(document(DRAWN, models), tmp_path / "out")
    for k, density in enumerate((0.6, 0.8)):
        kept = moved = 0
        for tensor, value in base.items():
            own, other = (agents[i][tensor].astype(np.float64) - value for i in (k, 1 - k))
            alone = (np.abs(own) > 1e-3) & (other == 0)
            stored = ours[tensor].astype(np.float64) - value
            here = alone & (stored != 0)
            np.testing.assert_allclose(stored[here], 0.5 * own[here] / density, rtol=1e-3)
            kept, moved = kept + np.count_nonzero(here), moved + np.count_nonzero(alone)
        deviation = np.sqrt(density * (1 - density) / moved)
        assert abs(kept / moved - density) < 5 * deviation


@needs_mergekit
@pytest.mark.slow
def test_each_document_gives_what_mergekit_gives(models: Path, tmp_path: Path):
    # a union of tokenizers needs tokenizers, which these models have none of: theirs is test_mergekit_tokenizers.py's
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
