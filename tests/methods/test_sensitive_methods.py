"""Methods that weigh by sensitivity, against the reference and against elements computed by hand."""

from __future__ import annotations

import merge_reference
import numpy as np
import pytest
from stream_helpers import select

from hubmerge.engine import definition, fast
from hubmerge.engine.selection import Magnitudes
from hubmerge.methods import get_method
from hubmerge.methods.base import Scope
from hubmerge.numerics.counter_rng import make_key

F = np.float32


def merged(
    method_name: str,
    base: np.ndarray,
    agents: list[np.ndarray],
    sensitivities: list[np.ndarray],
    parameters: dict | None = None,
    weights: list[float] | None = None,
    backend: object = fast,
) -> np.ndarray:
    method = get_method(method_name)
    values = method.parse_parameters(parameters or {})
    weights = weights or [1.0] * len(agents)
    keys = tuple(make_key(5, "uniform", str(k), "t") for k in range(len(agents))) if "uniform" in method.extras else ()
    chunk = definition.ChunkInputs((base, *agents), ("F32",) * (len(agents) + 1), 0, keys, tuple(sensitivities))
    threshold = method.threshold(values)
    limits: tuple[float, ...] = ()
    if threshold is not None:
        limits = select(Magnitudes(threshold, 1e-5), len(agents), [chunk])
    scope = Scope(values, weights, thresholds=limits)
    rule = definition.Rule.of(method, scope, 1e-5, "nearest", both_roundings=False)
    return backend.merge_chunk(chunk, rule, "F32", make_key(0, "r"), with_inputs=False).raw  # type: ignore[attr-defined]


def family(seed: int, n: int, k: int) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=n).astype(F)
    agents = [np.where(rng.random(n) < 0.4, base + rng.normal(size=n).astype(F), base).astype(F) for _ in range(k)]
    sensitivities = [np.where(rng.random(n) < 0.1, 0, rng.random(n)).astype(F) for _ in range(k)]
    for s in sensitivities[1:]:
        s[: n // 4] = sensitivities[0][: n // 4]  # ties
    return base, agents, sensitivities


@pytest.mark.parametrize("method", ["fisher", "sar"])
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 1.5]])
@pytest.mark.parametrize("backend", [definition, fast], ids=["definition", "fast"])
def test_the_result_equals_the_naive_reference(method: str, k: int, weights: list | None, backend: object) -> None:
    base, agents, sensitivities = family(k, 3000, k)
    weights = weights[:k] if weights else None
    expected = merge_reference.merge(
        method, {"t": base}, [{"t": a} for a in agents], weights, {}, seed=5,
        sensitivities=[{"t": s} for s in sensitivities],
    )  # fmt: skip
    got = merged(method, base, agents, sensitivities, weights=weights, backend=backend)
    assert got.tobytes() == expected["t"].tobytes()


def hand(method: str, *columns: tuple[list[float], list[float]], **parameters: float) -> list[float]:
    """columns: (deltas, sensitivities) per agent."""
    base = np.zeros(len(columns[0][0]), dtype=F)
    agents = [np.array(d, dtype=F) for d, _ in columns]
    return merged(method, base, agents, [np.array(s, dtype=F) for _, s in columns], parameters).tolist()


def test_fisher_weighs_each_element_by_its_information() -> None:
    assert hand("fisher", ([1.0, 1.0, 4.0], [3.0, 0.0, 0.0]), ([2.0, 2.0, 2.0], [1.0, 5.0, 0.0])) == [1.25, 2.0, 3.0]


def test_sar_adds_what_agrees_and_lets_the_more_sensitive_agent_decide_conflicts() -> None:
    a = ([1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 1.0, 1.0])
    b = ([2.0, -2.0, -2.0, -2.0], [0.0, 1.0, 2.0, 1.0])
    # agreement: the sum;  A more sensitive;  B more sensitive;  a tie goes to the later agent
    assert hand("sar", a, b) == [3.0, 1.0, -2.0, -2.0]


def test_sar_with_three_agents_sums_those_of_the_elected_sign() -> None:
    columns = [([1.0, 1.0], [1.0, 9.0]), ([2.0, 2.0], [2.0, 1.0]), ([-4.0, -4.0], [3.0, 2.0])]
    assert hand("sar", *columns) == [-4.0, 3.0]


def test_sar_thins_out_the_weaker_half_of_the_private_updates_and_keeps_their_expectation() -> None:
    n = 100_000
    base = np.zeros(n, dtype=F)
    agent = np.where(np.arange(n) % 2 == 0, F(1.0), F(2.0)).astype(F)
    other = np.zeros(n, dtype=F)
    out = merged("sar", base, [agent, other], [np.ones(n, F), np.ones(n, F)], {"p": 0.2})
    assert set(np.unique(out[1::2]).tolist()) == {2.0}
    weak = out[::2]
    assert set(np.unique(weak).tolist()) == {0.0, 1.25}
    assert weak.mean() == pytest.approx(1.0, abs=5 * 1.25 * np.sqrt(0.16 / len(weak)))


def test_sar_with_lambda_and_without_drop() -> None:
    assert hand("sar", ([1.0, 0.0], [0, 0]), ([0.0, 3.0], [0, 0]), **{"lambda": 0.5, "p": 0.0}) == [0.5, 1.5]
