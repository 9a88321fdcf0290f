"""The stream's promises: the reference's bytes, for any chunk size, thread count and resume point."""

import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import merge_reference
import ml_dtypes
import numpy as np
import pytest
from builders import f32, tensor, write_model
from stream_helpers import (
    CONFIG,
    StopAfter,
    bytes_of,
    family_plan,
    plan_of,
    run,
    spoil,
    tallies,
    tensors_of,
    values_of,
    write_family,
    write_models,
)

from hubmerge.errors import HubmergeError, NonFiniteError
from hubmerge.methods import registry

METHODS = [m.name for m in registry().values() if "sensitivity" not in m.extras]
OF_ELEMENTS = [m for m in METHODS if m in merge_reference.RULES]
DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}

VARIANTS = [
    *((method, {}) for method in OF_ELEMENTS),
    ("linear", {"base_weight": 1.5}),
    ("ram", {"epsilon": 0.001}),
    ("ram_plus", {"r": 0.3, "alpha": 0.5, "epsilon": 0.001}),
    ("ram_plus", {"scope": "tensor", "alpha": 1.5, "r": 0.5}),
    ("task_arithmetic", {"lambda": 0.7}),
    ("task_arithmetic", {"normalize": True}),
    ("ram_plus_soft", {"r": 1.5, "epsilon": 0.001}),
    ("ram_quantile", {"q": 0.5, "lambda": 2.0}),
    ("ram_quantile", {"literal": True}),
    ("ties", {"density": 0.05, "lambda": 1.3}),
    ("ties", {"density": 0.3, "trim_scope": "tensor"}),
    ("ties", {"density": 1.0}),
    ("ties", {"density": 0.3, "disjoint": "sum"}),
    ("dare_linear", {"p": 0.8, "lambda": 1.0}),
    ("dare_linear", {"p": 0.0, "normalize": True}),
    ("dare_ties", {"p": 0.3, "density": 1.0}),
    ("dare_ties", {"p": 0.6, "density": 0.1, "trim_scope": "tensor"}),
    ("dare_ties", {"disjoint": "sum", "lambda": 1.3}),
]
NAMES_OTHERS = {"preset"}  # a parameter that stands for values of others
# rounded, and of updates that tie in magnitude
OF_16_BITS = [(method, {}, dtype) for method in OF_ELEMENTS for dtype in ("BF16", "F16")]


@pytest.mark.parametrize(
    ("method", "parameters", "dtype"),
    [*((*variant, "F32") for variant in VARIANTS), *OF_16_BITS],
    ids=str,
)
def test_merged_bytes_are_the_naive_reference_s_rounded_once(tmp_path, method, parameters, dtype):
    base, agents = write_family(tmp_path, dtype=dtype)
    weights = [1.0, 0.5, 2.0]
    expected = merge_reference.merge(
        method, values_of(base), [values_of(a) for a in agents], weights, parameters, seed=5
    )
    specs = [{"model": str(tmp_path / f"agent{i}"), "weight": w} for i, w in enumerate(weights)]
    fields = {"agents": specs, "rounding": "nearest", "parameters": parameters, "seed": 5}
    plan = plan_of(tmp_path, method, **fields)
    run(plan, tmp_path / "out")
    got = tensors_of(tmp_path / "out", plan)
    assert set(got) == set(base)
    for name, value in expected.items():
        assert got[name].tobytes() == value.astype(DTYPES[dtype]).tobytes(), name


def test_mixed_input_dtypes_meet_in_float32_and_leave_in_the_requested_one(tmp_path):
    base, agents = write_family(tmp_path, dtype="F32")
    agents = [{n: tensor(f32(t), kind) for n, t in agent.items()} for agent, kind in zip(agents, DTYPES, strict=True)]
    write_models(tmp_path, base, agents)
    expected = merge_reference.merge("ram", values_of(base), [values_of(a) for a in agents])
    plan = plan_of(tmp_path, "ram", dtype="bfloat16", rounding="nearest")
    run(plan, tmp_path / "out")
    for name, value in tensors_of(tmp_path / "out", plan).items():
        assert value.tobytes() == expected[name].astype(ml_dtypes.bfloat16).tobytes(), name


def test_every_method_and_parameter_is_held_against_a_reference():
    assert registry().keys() <= {*merge_reference.known()}
    for method in OF_ELEMENTS:
        tried = {name for of, parameters in VARIANTS if of == method for name in parameters}
        fields = registry()[method].parameters.model_fields
        assert {field.alias or name for name, field in fields.items()} - NAMES_OTHERS - tried == set(), method


@pytest.mark.parametrize("method", METHODS)
def test_bytes_and_statistics_do_not_depend_on_chunk_size_threads_or_input_shards(tmp_path, method):
    write_family(tmp_path)
    write_family(tmp_path / "sharded", shards=3)
    outcomes = []
    for number, (folder, chunk, threads) in enumerate(
        [(tmp_path, 1, 1), (tmp_path, 8192, 2), (tmp_path, 10**9, 3), (tmp_path / "sharded", 4096, 2)]
    ):
        plan = plan_of(folder, method, rounding="stochastic")
        result = run(plan, tmp_path / f"out{number}", chunk=chunk, threads=threads)
        values = {name: v.tobytes() for name, v in tensors_of(tmp_path / f"out{number}", plan).items()}
        for shard in result.shards:
            assert sha256((tmp_path / f"out{number}" / shard.filename).read_bytes()).hexdigest() == shard.sha256
        outcomes.append((values, result.statistics.total.to_json(), result.total.to_json()))
    reference = outcomes[0]
    for values, statistics, total in outcomes[1:]:
        assert values == reference[0]
        # the sharded family lists its tensors in another order, which moves sums by rounding, not counts
        assert {k: v for k, v in statistics.items() if k not in ("dot", "l1")} == {
            k: v for k, v in reference[1].items() if k not in ("dot", "l1")
        }
        assert total["changed"] == reference[2]["changed"]
    assert outcomes[1][1:] == reference[1:] == outcomes[2][1:]


@pytest.mark.parametrize("method", METHODS)
def test_agents_equal_to_the_base_give_the_base_bit_for_bit(tmp_path, method):
    base, _ = write_family(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    values = f32(base[name]).copy()
    values[0, 0], values[0, 1] = -0.0, 1e-40  # negative zero and a subnormal survive as well
    base[name] = tensor(values)
    write_models(tmp_path, base, [base | {"model.layers.1.scale": tensor(np.float32(5.0))}] * 3)
    plan = plan_of(tmp_path, method)
    run(plan, tmp_path / "out")
    got = tensors_of(tmp_path / "out", plan)
    for tensor_name, stored in base.items():
        if tensor_name != "model.layers.1.scale":
            assert got[tensor_name].tobytes() == stored.raw.tobytes(), tensor_name


@pytest.mark.parametrize("method", [m for m in METHODS if registry()[m].permutation_invariant])
def test_the_order_of_two_agents_changes_nothing(tmp_path, method):
    write_family(tmp_path, densities=(0.1, 0.4))
    names = [str(tmp_path / f"agent{k}") for k in range(2)]
    forward, backward = (plan_of(tmp_path, method, agents=agents) for agents in (names, names[::-1]))
    run(forward, tmp_path / "forward")
    run(backward, tmp_path / "backward")
    assert bytes_of(tmp_path / "forward", forward) == bytes_of(tmp_path / "backward", backward)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_broken_off_anywhere_resumes_to_the_same_bytes(tmp_path, method):
    plan = family_plan(tmp_path, method, max_shard_bytes=12_000)
    assert len(plan.shards) > 2
    whole = run(plan, tmp_path / "whole")
    for stop_at in (0, 1, 5, 9, 14, 20):
        out = tmp_path / f"broken{stop_at}"
        try:
            run(plan, out, observer=StopAfter(stop_at))
        except KeyboardInterrupt:
            assert not list(out.glob("*.tmp"))
        resumed = run(plan, out)
        assert bytes_of(out, plan) == bytes_of(tmp_path / "whole", plan), stop_at
        assert tallies(resumed) == tallies(whole), stop_at


@pytest.mark.parametrize(
    ("method", "bad"),
    [("ram", np.nan), ("ram", np.inf), ("ram", -np.inf), ("ram_plus", np.nan), ("ties", np.nan), ("wudi", np.nan)],
)  # found while it is merged, probed, or ranked before; or of a tensor that is merged whole
def test_nan_or_infinity_in_an_input_names_tensor_and_agent_and_leaves_no_shard(tmp_path, method, bad):
    _, agents = write_family(tmp_path)
    spoil(tmp_path, agents, bad)
    plan = plan_of(tmp_path, method)
    with pytest.raises(NonFiniteError, match=r"down_proj.*agent1") as caught:
        run(plan, tmp_path / "out")
    assert caught.value.code == "E_NONFINITE"
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("dtype", "value", "way_out"), [("float16", 6e4, "dtype: float32"), ("float32", 3e38, "smaller weights")]
)
def test_an_output_that_overflows_its_dtype_fails_instead_of_storing_infinity(tmp_path, dtype, value, way_out):
    _, agents = write_family(tmp_path, dtype="F32")
    for i in range(2):
        name = "model.layers.1.mlp.down_proj.weight"
        values = f32(agents[i][name]).copy()
        values[0] = value
        agents[i][name] = tensor(values, "F32")
        write_model(tmp_path / f"agent{i}", agents[i], config=CONFIG)
    plan = plan_of(tmp_path, "task_arithmetic", parameters={"lambda": 1.0}, dtype=dtype)
    with pytest.raises(NonFiniteError, match=f"overflows.*{way_out}"):
        run(plan, tmp_path / "out")


def test_stochastic_rounding_keeps_the_scale_that_nearest_rounding_loses(tmp_path):
    """One-ulp updates scaled by 1.2: nearest bf16 returns them unscaled, stochastic keeps 1.2 on average."""
    rng = np.random.default_rng(0)
    sizes = {"model.layers.0.mlp.up_proj.weight": (200_000,)}
    base = {n: tensor(rng.uniform(1.0, 1.9, s)) for n, s in sizes.items()}
    write_model(tmp_path / "base", base, config=CONFIG)
    for i in range(2):
        values = f32(base["model.layers.0.mlp.up_proj.weight"]).copy()
        values[i * 50_000 : i * 50_000 + 100_000] += 2.0**-7  # one unit in the last place
        write_model(tmp_path / f"agent{i}", {"model.layers.0.mlp.up_proj.weight": tensor(values)}, config=CONFIG)
    scales = {}
    for rounding in ("nearest", "stochastic"):
        plan = plan_of(tmp_path, "ram_plus", agents=2, rounding=rounding, parameters={"r": 0.2, "alpha": 1.0})
        total = run(plan, tmp_path / rounding).total
        scales[rounding] = total.effective_scale
        other = total.effective_scale_other
        assert other != scales[rounding]
    assert scales["nearest"] == (1.0, 1.0)
    # ρ = 50,000/50,000 = 1 → λ = 1.2; the standard error of the mean is √(0.2·0.8/50,000) = 0.0018
    assert scales["stochastic"] == pytest.approx((1.2, 1.2), abs=5 * 0.0018)


def test_the_seed_changes_stochastic_rounding_and_nothing_else(tmp_path):
    write_family(tmp_path)
    out = {}
    for seed in (0, 1):
        for rounding in ("nearest", "stochastic"):
            plan = plan_of(tmp_path, "ram_plus", seed=seed, rounding=rounding)
            run(plan, tmp_path / f"{seed}{rounding}")
            out[seed, rounding] = bytes_of(tmp_path / f"{seed}{rounding}", plan)
    assert out[0, "nearest"] == out[1, "nearest"]
    assert out[0, "stochastic"] != out[1, "stochastic"]


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("model.rotary.positions", "Remove "), ("norm.num_batches_tracked", 'ignore: ["*num_batches_tracked"]')],
)
def test_integers_are_copied_and_refused_when_they_differ_with_a_way_out(tmp_path, name, way_out):
    base, agents = write_family(tmp_path)
    write_models(tmp_path, base, agents, {name: tensor(np.arange(5000), "I64")})
    plan = plan_of(tmp_path, "ram")
    run(plan, tmp_path / "out")
    assert tensors_of(tmp_path / "out", plan)[name].tolist() == list(range(5000))
    write_model(tmp_path / "agent2", {**agents[2], name: tensor(np.arange(1, 5001), "I64")}, config=CONFIG)
    with pytest.raises(HubmergeError, match=rf"{name}.*agent2") as caught:
        run(plan_of(tmp_path, "ram"), tmp_path / "other")
    assert way_out in str(caught.value)


def test_the_infinities_of_a_mask_are_refused_with_the_line_that_keeps_the_base_s(tmp_path):
    base, agents = write_family(tmp_path)
    write_models(tmp_path, base, agents, {"model.mask": tensor(np.triu(np.full((4, 4), -np.inf, np.float32), 1))})
    with pytest.raises(NonFiniteError, match=r'keep the base.s.* ignore: \["\*norm\*", "model.mask"\]'):
        run(plan_of(tmp_path, "ram", ignore=["*norm*"]), tmp_path / "out")
    plan = plan_of(tmp_path, "ram", ignore=["*norm*", "model.mask"])
    run(plan, tmp_path / "other")
    assert np.isneginf(tensors_of(tmp_path / "other", plan)["model.mask"]).sum() == 6


def test_copies_of_one_table_that_all_models_store_stay_equal_under_random_draws(tmp_path):
    """transformers 5 loads two tables where they differ."""
    copy, table = "proj_out.weight", "model.embed_tokens.weight"
    base, agents = write_family(tmp_path)
    base, *agents = (model | {copy: model[table]} for model in (base, *agents))
    write_models(tmp_path, base, agents, config={**CONFIG, "vocab_size": len(base[table].raw)})
    plan = plan_of(tmp_path, "dare_ties", rounding="stochastic")
    run(plan, tmp_path / "out")
    merged = tensors_of(tmp_path / "out", plan)
    assert merged[copy].tobytes() == merged[table].tobytes() != base[table].raw.tobytes()


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from stream_helpers import StopAfter, plan_of, run
folder, killed = Path({folder!r}), lambda: os.kill(os.getpid(), signal.SIGKILL)
plan = plan_of(folder, "ram_plus", max_shard_bytes=12_000)
run(plan, folder / "killed", observer=StopAfter({after}, killed))
"""


def test_kill_9_again_and_again_gives_the_bytes_of_an_undisturbed_merge(tmp_path):
    plan = family_plan(tmp_path, "ram_plus", max_shard_bytes=12_000)
    run(plan, tmp_path / "whole")
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent), os.getcwd()]
    for after in (2, 12, 5):  # the first dies in the probe, the next ones in one shard after another
        script = KILLED.format(paths=paths, after=after, folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert len([*(tmp_path / "killed").glob("*.safetensors")]) == 1, "one was finished"
    run(plan, tmp_path / "killed")
    assert bytes_of(tmp_path / "killed", plan) == bytes_of(tmp_path / "whole", plan)
