"""Synthetic models: the shapes that were published, values that no chunking changes, and the shares they promise."""

from pathlib import Path

import numpy as np
import pytest
from plan_helpers import NOWHERE

from hubmerge.engine.progress import Unobserved
from hubmerge.engine.stream import StreamOptions, probe
from hubmerge.errors import HubmergeError, RecipeError
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.file import load_recipe
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.sources.synthetic import SHAPES, TILE, open_synthetic
from hubmerge.statistics.statistics import Tally

NAME = "synthetic:qwen2.5-0.5b"


def planned(*agents: str, base: str = NAME) -> Plan:
    recipe = Recipe.model_validate({"base": base, "agents": list(agents), "method": "ram"})
    return prepare(recipe, NOWHERE, Request(allow_local=True)).plan


def agent(number: int, density: float = 0.1, more: str = "") -> str:
    return f"{NAME}?agent={number}&density={density}{more}"


@pytest.mark.parametrize(
    ("shape", "parameters", "tensors"),
    [
        ("qwen2.5-0.5b", 494_032_768, 290),
        ("qwen2.5-1.5b", 1_543_714_304, 338),
        ("qwen2.5-7b", 7_615_616_512, 339),
        ("llama-70b", 70_553_706_496, 723),
        ("llama-405b", 405_853_388_800, 1137),
        ("mixtral-8x7b", 46_702_792_704, 995),
        ("qwen3-30b-a3b", 30_532_122_624, 18_867),
    ],
)
def test_a_shape_has_as_many_parameters_and_tensors_as_the_published_model(shape, parameters, tensors):
    model = open_synthetic(f"synthetic:{shape}")
    assert sum(t.entry.elements for t in model.tensors.values()) == parameters == SHAPES[shape].parameters
    assert len(model.tensors) == tensors


def values(model: Model, name: str, start: int, count: int) -> np.ndarray:
    with TensorReader([model], LocalOrFetched(NOWHERE, Path("unused"))) as reader:
        return reader.values(0, model.tensors[name], start, count)


def test_any_range_reads_the_same_elements():
    model = open_synthetic(agent(1))
    name = "model.embed_tokens.weight"
    whole = values(model, name, 0, 2 * TILE + 1000)
    for start, count in ((0, 1), (TILE - 3, 7), (TILE, 4096), (12_345, TILE), (2 * TILE, 1000), (5, 0)):
        assert np.array_equal(values(model, name, start, count), whole[start : start + count])


def test_tensors_seeds_and_agents_differ_and_the_same_name_gives_the_same():
    def read(model: str, tensor: str = "model.norm.weight") -> bytes:
        return values(open_synthetic(model), tensor, 0, 896).tobytes()

    assert read(NAME) == read(NAME)
    assert len({read(NAME), read(f"{NAME}?seed=1"), read(agent(1)), read(agent(2))}) == 4
    assert read(NAME) != read(NAME, "model.layers.0.input_layernorm.weight")


def counted(plan: Plan) -> Tally:
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, Path("unused"))) as reader:
        return probe(plan, reader, StreamOptions(), Unobserved()).total


def test_densities_and_the_shared_part_are_what_the_name_says():
    total = counted(planned(*(agent(k, more="&layers=1") for k in (1, 2, 3)), base=f"{NAME}?layers=1"))
    for k in range(3):
        density = total.changed[k] / total.elements
        shared = 1 - total.by_overlap[k, 1] / total.changed[k]
        assert density == pytest.approx(0.1, rel=0.02)
        assert shared == pytest.approx(0.2, rel=0.03)
        assert total.by_overlap[k, 2] == 0  # what is shared at all is shared by all


def test_only_where_folders_are_allowed_is_a_synthetic_model_opened():
    with pytest.raises(HubmergeError):
        open_model(ModelName.parse(NAME), NOWHERE, allow_local=False)
    assert open_model(ModelName.parse(NAME), NOWHERE, allow_local=True).ref.kind == "synthetic"


@pytest.mark.parametrize(
    "name",
    [
        *("gpt-5", "", "?layers=1", "qwen2.5-0.5b?speed=9", "qwen2.5-0.5b?layers=-1"),
        *("qwen2.5-0.5b?agent=1", "qwen2.5-0.5b?density=0.1"),
        *(f"qwen2.5-0.5b?agent=1&density={density}" for density in ("1.5", "nan")),
        *(f"qwen2.5-0.5b?agent={agent}&density=0.1" for agent in ("-1", "x")),
    ],
)
def test_a_name_that_says_something_else_is_refused(name):
    with pytest.raises(RecipeError):
        open_synthetic(f"synthetic:{name}")


def test_a_recipe_with_synthetic_models_is_pinned_and_written_as_it_was_read(tmp_path):
    plan = planned(agent(1), agent(2))
    path = tmp_path / "recipe.yaml"
    path.write_text(plan.recipe.to_yaml())
    again = prepare(load_recipe(path), NOWHERE, Request(allow_local=True)).plan
    assert again.identity == plan.identity
    assert planned(agent(1), agent(2, more="&seed=1")).identity != plan.identity


def test_updates_are_log_normal():
    base, moved = (values(open_synthetic(m), "model.embed_tokens.weight", 0, TILE) for m in (NAME, agent(1, 1.0)))
    logarithms = np.log(np.abs(moved - base))
    # rounding to bf16 moves single values, not their middle
    assert np.median(logarithms) == pytest.approx(np.log(5e-4), abs=0.1)
    assert np.std(logarithms) == pytest.approx(1.0, abs=0.15)
    assert np.count_nonzero(moved == base) == 0


def test_the_largest_plan_is_made_from_shapes_alone():
    big = "synthetic:llama-405b"
    plan = planned(*(f"{big}?agent={k}&density=0.1" for k in (1, 2, 3)), base=big)
    assert plan.elements == 405_853_388_800
    assert plan.input_bytes == 4 * 2 * plan.elements + 4 * (plan.base.tensors["model.embed_tokens.weight"].entry.begin)
    assert plan.download_bytes == 0
