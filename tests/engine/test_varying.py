"""Weights and parameters that differ from tensor to tensor: each is merged as by a recipe with its own numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import T, f32
from safetensors.numpy import load_file
from stream_helpers import bytes_of, plan_of, report_of, run, write_family

from hubmerge.engine.stream import MergeResult
from hubmerge.errors import IncompatibleError
from hubmerge.methods.varying import at, parse, places_of
from hubmerge.output.plan_words import plan_summary
from hubmerge.plan.plan import Plan

LAYERS = 4
SIZES = {
    "model.embed_tokens.weight": (37, 16),
    **{
        f"model.layers.{i}.{part}": size
        for i in range(LAYERS)
        for part, size in (
            ("self_attn.q_proj.weight", (96, 64)),
            ("mlp.up_proj.weight", (4097,)),
            ("norm.weight", (63,)),
        )
    },
    "model.norm.weight": (63,),
    "lm_head.weight": (16, 37),
}
OVER_LAYERS = [0.0, 0.25, 1.0]
WEIGHTS = (OVER_LAYERS, [{"filter": "mlp", "value": 0.5}, {"value": [0.25, 2.0]}], 1.0)
NONE: list[dict[str, Any]] = [{}, {}, {}]

# per method: its parameters, and those that agents have of their own
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "task_arithmetic": ({"lambda": [0.5, 1.0], "normalize": True}, NONE),
    "linear": ({"base_weight": [0.5, 2.0]}, NONE),
    "ties": (
        {"density": 0.7, "trim_scope": "tensor", "lambda": [1.0, 0.5]},
        [{"density": [1.0, 0.3]}, {}, {"density": [{"filter": "norm", "value": 1.0}, {"value": 0.1}]}],
    ),
    "dare_linear": ({"p": [0.2, 0.6], "lambda": 0.5}, [{}, {"p": 0.0}, {}]),
    "dare_ties": ({"p": 0.3, "density": [0.5, 1.0], "trim_scope": "tensor"}, [{}, {"p": [0.0, 0.9]}, {}]),
    "ram_plus": ({"r": [0.0, 1.0], "scope": "tensor"}, NONE),
    "ram_quantile": ({"q": [0.5, 0.9]}, NONE),
}


def of_tensor(written: Any, name: str) -> Any:
    """What the settings are for one tensor: the first rule's, and numpy's interpolation over the layers, outside of
    which the first number holds."""
    if isinstance(written, dict):
        return {key: of_tensor(value, name) for key, value in written.items()}
    if not isinstance(written, list | tuple):
        return written
    if isinstance(written[0], dict):
        return of_tensor(next(rule["value"] for rule in written if rule.get("filter", "") in name), name)
    if ".layers." not in name:
        return written[0]
    layer = int(name.split(".")[2])
    return float(np.interp(layer / (LAYERS - 1), np.linspace(0, 1, len(written)), written))


def agents_of(folder: Path, weights: Sequence[Any], own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"model": str(folder / f"agent{k}"), "weight": w, "parameters": p}
        for k, (w, p) in enumerate(zip(weights, own, strict=True))
    ]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, T], list[dict[str, T]]]:
    folder = tmp_path_factory.mktemp("family")
    return folder, *write_family(folder, sizes=SIZES)


def merged(plan: Any, out: Path) -> tuple[dict[str, bytes], MergeResult]:
    result = run(plan, out)
    return {name: value.tobytes() for name, value in load_file(out / "model.safetensors").items()}, result


@pytest.mark.parametrize("method", CASES)
def test_each_tensor_is_merged_as_by_a_recipe_of_its_own_numbers(method, family, tmp_path):
    folder, *_ = family
    parameters, own = CASES[method]

    def planned(weights: Sequence[Any], own: Sequence[dict[str, Any]], parameters: dict[str, Any]) -> Plan:
        return plan_of(folder, method, agents=agents_of(folder, weights, own), parameters=parameters, dtype="float32")

    plan = planned(WEIGHTS, own, parameters)
    assert plan.values.vary
    found, _ = merged(plan, tmp_path / "varying")
    groups: dict[str, tuple[Plan, list[str]]] = {}
    for name in SIZES:
        settings = [of_tensor(w, name) for w in WEIGHTS], [of_tensor(p, name) for p in own], of_tensor(parameters, name)
        groups.setdefault(repr(settings), (planned(*settings), []))[1].append(name)
    assert len(groups) > LAYERS
    for number, (constant, names) in enumerate(groups.values()):
        assert not constant.values.vary
        expected, _ = merged(constant, tmp_path / str(number))
        for name in names:
            assert found[name] == expected[name], name


@pytest.mark.parametrize("method", ["ties", "dare_ties", "dare_linear"])
def test_the_bytes_do_not_depend_on_chunks_threads_or_the_pass(method, family, tmp_path):
    folder, *_ = family
    parameters, own = CASES[method]
    plan = plan_of(folder, method, agents=agents_of(folder, WEIGHTS, own), parameters=parameters)
    run(plan, tmp_path / "a", threads=1)
    run(plan, tmp_path / "b", chunk=65536)
    run(plan, tmp_path / "c", backend="eager")
    assert bytes_of(tmp_path / "a", plan) == bytes_of(tmp_path / "b", plan) == bytes_of(tmp_path / "c", plan)


def test_a_density_of_each_agent_is_trimmed_over_the_whole_model_too(family, tmp_path):
    folder, base, agents = family
    densities = (1.0, 0.02, 0.2)
    own = [{"density": d} for d in densities]
    plan = plan_of(
        folder, "ties", agents=agents_of(folder, (1.0,) * 3, own), parameters={"disjoint": "sum"}, dtype="float32"
    )
    found, _ = merged(plan, tmp_path / "out")
    names = list(SIZES)
    deltas = np.stack([np.concatenate([(f32(agent[n]) - f32(base[n])).ravel() for n in names]) for agent in agents])
    kept = np.zeros_like(deltas)
    for k, density in enumerate(densities):
        size = np.abs(deltas[k])
        rank = max(1, int(density * size.size))
        kept[k] = np.where(size >= np.sort(size)[::-1][rank - 1], deltas[k], 0)
    sign = np.where(kept.sum(axis=0, dtype=np.float32) >= 0, 1, -1)
    expected = np.where(kept * sign > 0, kept, 0).sum(axis=0, dtype=np.float32)
    whole = np.concatenate([f32(base[n]).ravel() for n in names])
    result = np.concatenate([np.frombuffer(found[n], np.float32) for n in names])
    np.testing.assert_allclose(result, whole + expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("method", "weight", "parameters", "said"),
    [
        ("linear", [{"layers": [0, 3], "value": 1.0}], {}, "The model has 4 layers, the last range ends with 3. Let"),
        ("linear", [{"filter": "mlp", "value": 1.0}], {}, "no rule decides for some tensors"),
        ("linear", [{"layers": [0, 5], "value": 1.0}], {}, "the model has 4 layers, so none up to 5"),
        ("linear", [0.0, -2.0 + 1e-12], {}, "the weights add up to 0"),
        ("task_arithmetic", 1.0, {"lambda": [{"filter": "q_proj", "value": 1.0}]}, "no rule decides for some tensors"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_anything_is_read(method, weight, parameters, said, family):
    folder, *_ = family
    with pytest.raises(IncompatibleError) as caught:
        plan_of(folder, method, agents=agents_of(folder, (weight, 1.0, 1.0), NONE), parameters=parameters)
    assert said in str(caught.value)


def test_a_filter_that_no_name_contains_is_warned_of(family):
    folder, *_ = family
    weight = [{"filter": "layers.9.mlp", "value": 0.5}, {"value": 1.0}]
    plan = plan_of(folder, "linear", agents=agents_of(folder, (weight, 1.0, 1.0), NONE))
    assert plan.warnings[0] == "weight of agent 1: no tensor's name contains 'layers.9.mlp'"


def test_the_base_counts_in_a_mean_with_its_weight_and_one_agent_is_enough(family, tmp_path):
    folder, base, agents = family
    own = agents_of(folder, (0.5,), [{}])
    plan = plan_of(folder, "linear", agents=own, parameters={"base_weight": 1.5}, dtype="float32")
    found, _ = merged(plan, tmp_path / "out")
    for name in SIZES:
        mean = (1.5 * f32(base[name]).astype(np.float64) + 0.5 * f32(agents[0][name])) / 2
        np.testing.assert_allclose(np.frombuffer(found[name], np.float32), mean.ravel(), rtol=2e-7, atol=1e-9)
    with pytest.raises(IncompatibleError, match="at least two agents"):
        plan_of(folder, "linear", agents=own)


NAMES = {
    "llama": ["model.embed_tokens.weight", "model.layers.0.mlp.w", "model.layers.3.mlp.w", "lm_head.weight"],
    "gpt2": ["wte.weight", "h.0.attn.c_attn.weight", "h.3.attn.c_attn.weight", "ln_f.weight"],
    "bert": ["embeddings.LayerNorm.weight", "encoder.layer.0.output.w", "encoder.layer.3.output.w", "pooler.w"],
    "t5": ["shared.weight", "encoder.block.0.layer.1.wi", "encoder.block.3.layer.0.wo", "decoder_norm.weight"],
}


@pytest.mark.parametrize("family", NAMES)
def test_layers_are_found_by_name_and_what_lies_outside_takes_the_first_number(family):
    before, first, last, after = (places_of(NAMES[family])[name] for name in NAMES[family])
    assert [at((2.0, 5.0, 8.0), place) for place in (before, first, last, after)] == [2.0, 2.0, 8.0, 2.0]
    halves = parse([{"layers": [0, 2], "value": 1}, {"layers": [2, 4], "value": [3, 4]}])
    assert [at(halves, place) for place in (before, first, last, after)] == [1.0, 1.0, 4.0, 3.0]


def test_no_layer_gets_more_or_less_than_the_numbers_that_it_lies_between():
    for layers in range(2, 40):
        for place in places_of(f"h.{i}.w" for i in range(layers)).values():
            assert at((10.0, 10.0, 0.0), place) <= 10.0  # the largest that λ may be


def test_every_stack_of_layers_has_its_own_beginning_and_end_and_a_single_layer_is_the_end():
    names = [f"visual.blocks.{i}.w" for i in range(3)] + [f"model.layers.{i}.experts.7.w" for i in range(5)]
    found = [at((0.0, 1.0), place) for place in places_of([*names, "audio.layers.0.w"]).values()]
    assert found == [0.0, 0.5, 1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_report_says_what_differs_and_what_the_weights_are_on_average(family, tmp_path):
    folder, *_ = family
    plan = plan_of(
        folder,
        "task_arithmetic",
        agents=agents_of(folder, (OVER_LAYERS, 1.0, 1.0), NONE),
        parameters={"lambda": 1.0},
        dtype="float32",
    )
    _, result = merged(plan, tmp_path / "out")
    report = report_of(plan, result)
    # the mean is what the output has of that agent's own updates
    assert report.outcomes[0].effective_scale == pytest.approx(report.parents[1].weight, rel=1e-4)
    assert 0 < report.parents[1].weight < 1
    rows = report.method["by_layer"]
    assert [row["layer"] for row in rows] == ["0", "1", "2", "3", "outside the layers"]
    assert [row["weight of agent0"] for row in rows] == ["0", "0.166667", "0.5", "1", "0"]
    assert set(rows[0]) == {"layer", "weight of agent0"}


def test_a_report_of_constants_says_nothing_of_layers(family, tmp_path):
    folder, *_ = family
    plan = plan_of(folder, "linear")
    _, result = merged(plan, tmp_path / "out")
    assert "by_layer" not in report_of(plan, result).method
    assert "varying" not in plan_summary(plan)
