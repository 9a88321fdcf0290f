"""Where the definitions coincide, a document gives what mergekit gives; where they differ, exactly in the way told.

The naive reference stands in for mergekit, so that this runs without it; where mergekit is installed it is held
against the real one too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mergekit_reference as reference
import numpy as np
import pytest
from builders import T, f32, llama_shapes, tensor, write_model
from mergekit_reference import INSTALLED, MOST_ULPS, ROOT, Array, needs_mergekit

from benchmarks.mergekit_parity import (
    CASES,
    Case,
    Difference,
    compare,
    make_family,
    read,
    run_hubmerge,
    run_mergekit,
    write_families,
)
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.recipe.file import recipe_from_yaml

IN_FLOAT32 = [case for case in CASES if case.stored == "float32" and case.out_dtype is None]


def expected(case: Case, base: Array, agents: Array) -> Array:
    """What mergekit's definition gives for one tensor, flat."""
    values: Mapping[str, Any] = dict(case.parameters)
    deltas = agents - base
    if case.method == "linear":
        assert case.weights is not None
        assert case.base_weight is not None
        models = np.stack([base, *agents])
        return reference.linear(models, (case.base_weight, *case.weights), values.get("normalize", True))
    if case.method in ("ram", "ramplus_tl"):
        scale = (values.get("r", 0.1), values.get("alpha", 0.2)) if case.method == "ramplus_tl" else (0.0, 0.0)
        return base + reference.ram(deltas, values.get("epsilon", 1e-5), *scale)
    assert case.weights is not None
    trimmed = np.stack([reference.trim(d, case.density or 1.0) for d in deltas])
    if case.method.endswith("ties"):
        normalize = values.get("normalize", case.method == "ties")
        return base + reference.consensus(trimmed, case.weights, values.get("lambda", 1.0), normalize)
    normalize = values.get("normalize", False)
    return base + reference.task_arithmetic(trimmed, case.weights, values.get("lambda", 1.0), normalize)


def test_the_plan_of_a_document_warns_of_what_it_means_differently(families: Path):
    case = next(case for case in CASES if case.name == "ties")
    recipe = recipe_from_yaml(case.document(families))
    plan = prepare(recipe, Hub("http://127.0.0.1:9"), Request(license="apache-2.0", allow_local=True)).plan
    assert recipe.notes
    assert plan.warnings[: len(recipe.notes)] == recipe.notes


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    write_families(folder)
    return folder


@pytest.mark.parametrize("case", IN_FLOAT32, ids=lambda case: case.name)
def test_a_document_gives_what_mergekit_s_definition_gives(case: Case, families: Path, tmp_path: Path):
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
def test_a_document_gives_what_mergekit_gives(tmp_path: Path):
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


# --- where the definitions differ ---

STEP = 2.0**-7  # on a base of zeros every δ = ±STEP is exact, and all tie


def written(folder: Path, agent: dict[str, T], method: str, own: str) -> str:
    """A document of a base of zeros and one agent, so that counts can be seen."""
    base = {name: tensor(np.zeros(shape), "F32") for name, shape in llama_shapes().items()}
    base_folder, agent_folder = write_model(folder / "base", base), write_model(folder / "a", agent)
    listed = f"  - {{model: {agent_folder}, parameters: {own}}}\n"
    return f"merge_method: {method}\nbase_model: {base_folder}\nmodels:\n{listed}dtype: float32\n"


@needs_mergekit
def test_the_reference_of_the_differences_is_mergekit_s_behaviour(tmp_path: Path):
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
        share = reference.trim(f32(tied[name]).ravel().astype(np.float64), 0.25)
        assert np.count_nonzero(value) == np.count_nonzero(share)
    for name, value in read(tmp_path / "dropped").items():
        delta = f32(apart[name]).astype(np.float64)
        expected_values = reference.rescaled_drop(delta.ravel(), value.ravel() != 0).reshape(delta.shape)
        np.testing.assert_allclose(value, expected_values, rtol=1e-5)
