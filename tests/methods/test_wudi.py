"""WUDI against a float64 reference, its optimum and the tensors that it leaves to the mean."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import merge_reference
import numpy as np
import pytest
import torch
from stream_helpers import plan_of, run, tensors_of, values_of, write_family
from threadpoolctl import threadpool_info, threadpool_limits

from hubmerge.engine.backend import Backend
from hubmerge.methods import get_method
from hubmerge.methods.base import Scope
from hubmerge.methods.wudi import Wudi

F = np.float32
WUDI = get_method("wudi")


def scope_of(*weights: float, **parameters: float) -> Scope:
    return Scope(WUDI.parse_parameters(parameters), weights)


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_the_descent_follows_the_reference(shape):
    rng = np.random.default_rng(0)
    deltas = [(rng.normal(size=shape) * (rng.random(shape) < 0.5) * 0.01).astype(F) for _ in range(3)]
    expected = merge_reference.wudi(deltas, 50, 1e-4)
    moved = np.abs(expected - sum(deltas)).max()
    assert moved > 1e-3  # the descent does something
    assert np.abs(WUDI.merge_whole(deltas, scope_of(1, 1, 1, steps=50, lr=1e-4)) - expected).max() < 1e-3 * moved


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_an_update_whose_squares_are_too_small_for_float32_is_merged_beside_another(shape):
    tiny, usual = np.full(shape, 1e-26, dtype=F), np.full(shape, 1e-3, dtype=F)
    np.testing.assert_allclose(WUDI.merge_whole([tiny, usual], scope_of(1, 1, steps=3)), usual, rtol=1e-2)


@pytest.mark.parametrize("shape", [(600, 40), (600, 700), (1, 8)])
def test_no_bit_depends_on_the_number_of_threads(shape):
    rng = np.random.default_rng(1)
    deltas = [(rng.normal(size=shape) * 0.01).astype(F) for _ in range(3)]
    scope = scope_of(1.0, 0.5, 2.0, steps=2, lr=1e-3)
    with threadpool_limits(1), ThreadPoolExecutor(4) as pool:
        alone = WUDI.merge_whole(deltas, scope)
        together = WUDI.merge_whole(deltas, scope, lambda work, parts: list(pool.map(work, parts)))
    assert together.tobytes() == alone.tobytes()
    weighted = [d * F(w) for d, w in zip(deltas, scope.weights, strict=True)]
    assert np.abs(alone - merge_reference.wudi(weighted, 2, 1e-3)).mean() < 1e-5, "of 2e-3 that it may move"


def test_one_tensor_is_worked_on_at_a_time_with_one_thread_per_product(tmp_path, monkeypatch):
    """Each is large in memory; and the order of a product's sums depends on the number of its threads."""
    names = [f"model.layers.{k}.mlp.up_proj.weight" for k in range(6)]
    write_family(tmp_path, sizes=dict.fromkeys(names, (30, 20)))
    active, most, threads = [0], [0], set[int]()
    whole_update, merge_whole = Backend.whole_update, Wudi.merge_whole

    def counted(*arguments: Any) -> Any:
        active[0] += 1
        most[0] = max(most[0], active[0])
        time.sleep(0.05)
        try:
            return whole_update(*arguments)
        finally:
            active[0] -= 1

    def seen(*arguments: Any) -> Any:
        threads.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return merge_whole(*arguments)

    monkeypatch.setattr(Backend, "whole_update", counted)
    monkeypatch.setattr(Wudi, "merge_whole", seen)
    run(plan_of(tmp_path, "wudi", parameters={"steps": 1}), tmp_path / "out", threads=4)
    assert (most[0], threads) == (1, {1})


def test_tensors_of_torch_are_merged_as_those_of_numpy_are():
    rng = np.random.default_rng(2)
    scope = scope_of(1.0, 1.5, steps=20, lr=1e-3)
    for shape in ((300, 8), (8, 300)):
        deltas = [(rng.normal(size=shape) * 0.01).astype(F) for _ in range(2)]
        found = WUDI.merge_whole([torch.from_numpy(d) for d in deltas], scope)
        assert found.dtype == torch.float32
        assert np.abs(found.numpy() - WUDI.merge_whole(deltas, scope)).mean() < 1e-5
    assert not WUDI.merge_whole([torch.zeros(3, 2)] * 2, scope).any()


def test_linear_weights_are_optimised_and_everything_else_is_averaged(tmp_path):
    base, agents = write_family(tmp_path, dtype="F32")
    values = values_of(base)
    deltas = merge_reference.deltas(values, [values_of(a) for a in agents])
    plan = plan_of(tmp_path, "wudi", parameters={"steps": 20, "lr": 1e-3})
    run(plan, tmp_path / "out", threads=3)
    got = tensors_of(tmp_path / "out", plan)
    for name, columns in deltas.items():
        if name.endswith(("q_proj.weight", "up_proj.weight")):
            expected = values[name] + merge_reference.wudi(columns, 20, 1e-3)
            assert np.abs(got[name] - expected).max() < 1e-5
            assert np.abs(got[name] - values[name] - sum(columns)).max() > 1e-4
        else:
            mean = merge_reference.merge("linear", {name: values[name]}, [{name: values_of(a)[name]} for a in agents])
            assert np.allclose(got[name], mean[name], rtol=1e-6, atol=1e-7)
