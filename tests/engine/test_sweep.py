"""Sweeps: what they expand to, that variants equal single merges, and that inputs are read once for all."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from stream_helpers import NOWHERE, StopAfter, bytes_of, plan_of, run, tallies, write_family

from hubmerge.engine.journal import Journal
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Observer, Unobserved
from hubmerge.engine.stream import MergeResult, Variant, merge_variants
from hubmerge.errors import InternalError, RecipeError
from hubmerge.hub.names import is_hub_id
from hubmerge.plan.plan import Plan
from hubmerge.recipe import sweep
from hubmerge.recipe.sweep import MAX_PROBLEMS, MAX_VARIANTS, load_sweep, sweep_from_dict
from hubmerge.sources.reader import LocalOrFetched, TensorReader

MODELS = {"base": "org/base", "agents": ["org/a", "org/b"]}
MIXED = [
    ("linear", {}),
    ("ram_plus", {"parameters": {"r": 0.3}}),
    ("ram_plus", {"rounding": "nearest"}),
    ("ram_plus", {"parameters": {"scope": "tensor"}}),
    ("ties", {}),
    ("dare_ties", {"parameters": {"p": 0.3}}),
    ("wudi", {"parameters": {"steps": 5}}),
]


def test_lists_expand_to_every_combination_in_the_order_written():
    parameters = {"r": [0.1, 0.2], "alpha": 1.0}
    entries = [
        {"method": ["linear", "ram"]},
        {"method": "ram_plus", "parameters": parameters, "rounding": ["nearest", "stochastic"]},
    ]
    sweep = sweep_from_dict({**MODELS, "sweep": entries})
    assert [name for name, _ in sweep.variants] == [
        "linear",
        "ram",
        "ram_plus_r-0.1_alpha-1.0_nearest",
        "ram_plus_r-0.1_alpha-1.0_stochastic",
        "ram_plus_r-0.2_alpha-1.0_nearest",
        "ram_plus_r-0.2_alpha-1.0_stochastic",
    ]
    assert [recipe.rounding for _, recipe in sweep.variants[2:4]] == ["nearest", "stochastic"]
    assert sweep.variants[5][1].parameters["r"] == 0.2


def test_a_negative_value_leaves_a_name_that_a_repo_can_have():
    entry = {"method": "ties", "parameters": {"lambda": [-0.5, 0.5], "density": 0.2}}
    names = [name for name, _ in sweep_from_dict({**MODELS, "sweep": [entry]}).variants]
    assert names == ["ties_lambda_-0.5_density-0.2", "ties_lambda-0.5_density-0.2"]
    assert all(is_hub_id(f"ada/merge-{name}") for name in names)


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([], "list of entries"),
        ([{"parameters": {}}], "method"),
        ([{"method": "ram", "dtype": "float32"}], "method, parameters and rounding"),
        ([{"method": "ram"}, {"method": "ram"}], "the same"),
        ([{"method": "nonsense"}], "nonsense"),
        ([{"method": "ram_plus", "parameters": {"r": list(range(MAX_VARIANTS + 1))}}], "too many"),
        ([{"method": "ram_plus", "parameters": {f"p{n}": [0, 1] for n in range(30)}}], "too many"),
    ],
)
def test_a_wrong_sweep_says_what_is_wrong(entries, word):
    with pytest.raises(RecipeError, match=word):
        sweep_from_dict({**MODELS, "sweep": entries})


def test_keys_of_several_kinds_are_named():
    with pytest.raises(RecipeError, match="got 1, x"):
        sweep_from_dict({**MODELS, "sweep": [{"method": "ram"}], 1: 2, "x": 3})


def test_problems_of_all_variants_and_entries_are_listed_together():
    entries = [
        "ram",
        {"method": "ram_plus", "parameters": {"r": [-1.0, 0.1, 99.0]}},
        {"method": "ram", "parameters": 1},
    ]
    with pytest.raises(RecipeError) as caught:
        sweep_from_dict({**MODELS, "sweep": entries})
    assert len(caught.value.problems) == 4


def test_a_sweep_that_is_no_yaml_is_told_so_with_its_line(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("sweep:\n\t- method: ram\n")
    with pytest.raises(RecipeError, match=r"a tab, where YAML wants spaces \(line 2"):
        load_sweep(path)


def test_a_slip_that_every_variant_repeats_is_listed_no_longer_than_people_read(monkeypatch):
    read = Mock(side_effect=sweep.recipe_from_dict)
    monkeypatch.setattr(sweep, "recipe_from_dict", read)
    slips = {f"slip{number:04d}": 1 for number in range(1000)}
    entry = {"method": "ram_plus", "parameters": {"r": [k / 100 for k in range(MAX_VARIANTS)], **slips}}
    with pytest.raises(RecipeError) as caught:
        sweep_from_dict({**MODELS, "sweep": [entry]})
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert "slip0099" in caught.value.problems[-2].where
    assert "there is more" in caught.value.problems[-1].what
    assert len(str(caught.value)) < 50_000
    assert read.call_count == 1, "a variant that tells no more is not read"


def run_variants(plans: list[Plan], out: Path, *, observer: Observer | None = None) -> list[MergeResult]:
    folders = [out / str(number) for number in range(len(plans))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    with TensorReader(plans[0].models, LocalOrFetched(NOWHERE, out / "cache")) as reader:
        variants = [Variant(p, Journal.open(f, p), f) for p, f in zip(plans, folders, strict=True)]
        return merge_variants(variants, reader, StreamOptions(4096, 2), observer or Unobserved())


def assert_each_is_as_alone(plans: list[Plan], results: list[MergeResult], swept: Path) -> None:
    """The variants in `swept` have the bytes and counts of merges of their own."""
    for number, (plan, result) in enumerate(zip(plans, results, strict=True)):
        own = swept.with_name(f"alone{number}")
        alone = run(plan, own)
        assert bytes_of(swept / str(number), plan) == bytes_of(own, plan)
        assert tallies(result) == tallies(alone)


def test_every_variant_has_the_bytes_and_statistics_of_a_merge_of_its_own(tmp_path):
    write_family(tmp_path)
    plans = [plan_of(tmp_path, method, max_shard_bytes=12_000, **fields) for method, fields in MIXED]
    assert_each_is_as_alone(plans, run_variants(plans, tmp_path / "sweep"), tmp_path / "sweep")


def test_inputs_are_read_once_for_all_variants(tmp_path, monkeypatch):
    write_family(tmp_path)
    filled = Mock(side_effect=TensorReader._fill, autospec=True)
    monkeypatch.setattr(TensorReader, "_fill", lambda *arguments: filled(*arguments))
    run_variants([plan_of(tmp_path, "ram")], tmp_path / "one")
    once = filled.call_count
    run_variants([plan_of(tmp_path, method) for method in ("ram", "linear", "dare_linear")], tmp_path / "three")
    assert filled.call_count == 2 * once > 0


@pytest.mark.parametrize("stop_at", [3, 12, 18])  # while it is probed, and while it is merged
def test_a_sweep_broken_off_resumes_to_the_same_bytes(tmp_path, stop_at):
    write_family(tmp_path)
    plans = [plan_of(tmp_path, m, max_shard_bytes=12_000) for m in ("ram_plus", "linear")]
    run_variants(plans, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_variants(plans, tmp_path / "broken", observer=StopAfter(stop_at))
    run_variants(plans, tmp_path / "broken")
    for number, plan in enumerate(plans):
        assert bytes_of(tmp_path / "broken" / str(number), plan) == bytes_of(tmp_path / "whole" / str(number), plan)


def test_variants_of_another_layout_are_refused_in_one_pass(tmp_path):
    write_family(tmp_path)
    with pytest.raises(InternalError, match="one pass"):
        run_variants([plan_of(tmp_path, "ram"), plan_of(tmp_path, "ram", dtype="float32")], tmp_path / "out")


def test_numbers_over_the_layers_are_a_list_within_the_choices_and_rules_have_short_names(tmp_path):
    write_family(tmp_path)
    rules = [{"filter": "self_attn.q_proj", "layers": [0, 1], "value": 0.5}, {"value": [1.0, 0.25]}]
    agents = [str(tmp_path / f"agent{i}") for i in range(3)]
    entry = {"method": "ties", "parameters": {"density": [0.3, [1, 0.5], rules], "trim_scope": "tensor"}}
    variants = sweep_from_dict({"base": str(tmp_path / "base"), "agents": agents, "sweep": [entry]}).variants
    assert [recipe.parameters["density"] for _, recipe in variants] == [0.3, [1.0, 0.5], rules]
    assert max(len(name) for name, _ in variants) < 80
    plans = [plan_of(tmp_path, "ties", parameters=recipe.parameters) for _, recipe in variants]
    assert_each_is_as_alone(plans, run_variants(plans, tmp_path / "all"), tmp_path / "all")
