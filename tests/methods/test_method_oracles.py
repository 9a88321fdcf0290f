"""Each method against elements computed by hand from its formula."""

from __future__ import annotations

import numpy as np
import pytest
from stream_helpers import tally_of

from hubmerge.engine.definition import Rule
from hubmerge.methods import get_method, registry
from hubmerge.methods.base import Scope

# three agents, six elements: changed by nobody, by agent 0, by agents 0 and 1, by all (with a conflict),
# by agent 2 alone, and by an update of exactly ε, which is none
DELTAS = [
    np.array([0.0, 0.5, 0.5, 0.25, 0.0, 1e-5], dtype=np.float32),
    np.array([0.0, 0.0, 0.25, 0.50, 0.0, 0.0], dtype=np.float32),
    np.array([0.0, 0.0, 0.0, -0.75, 2.0, 0.0], dtype=np.float32),
]


def apply(name: str, parameters: dict | None = None, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> list[float]:
    method = get_method(name)
    overlaps = tally_of(np.zeros(6, np.float32), DELTAS).overlaps
    scope = Scope(method.parse_parameters(parameters or {}), weights, overlaps, overlaps)
    rule = Rule.of(method, scope, 1e-5, "nearest", both_roundings=False)
    return [float(x) for x in method.kernel(DELTAS, rule.per_agent, rule.constants)]


def test_linear_divides_by_the_number_of_agents() -> None:
    assert apply("linear") == pytest.approx([0, 0.5 / 3, 0.25, 0.0, 2 / 3, 1e-5 / 3], rel=1e-6)


def test_linear_divides_by_the_sum_of_the_weights() -> None:
    assert apply("linear", weights=(2.0, 1.0, 1.0))[:3] == pytest.approx([0, 0.25, (1.0 + 0.25) / 4])


def test_task_arithmetic_scales_the_sum_and_defaults_to_one_over_k() -> None:
    assert apply("task_arithmetic") == pytest.approx(apply("linear"), rel=1e-6)
    assert apply("task_arithmetic", {"lambda": 0.5}, (1.0, 2.0, 1.0))[2] == pytest.approx(0.5 * (0.5 + 0.5))


def test_ram_keeps_unique_updates_whole_and_averages_over_the_active_agents_only() -> None:
    assert apply("ram") == [0.0, 0.5, 0.375, 0.0, 2.0, 0.0]


def test_ram_multiplies_an_update_by_its_weight_after_masking() -> None:
    assert apply("ram", weights=(0.5, 2.0, 1.0)) == [0.0, 0.25, 0.375, (0.125 + 1.0 - 0.75) / 3, 2.0, 0.0]


def test_ram_plus_rescales_by_the_overlap_unique_ratio() -> None:
    # agent 0: unique 1 (element 1), shared 2 → ρ = 2;  agent 1: unique 0, shared 2;  agent 2: 1 and 1 → ρ = 1
    assert apply("ram_plus") == pytest.approx([0.0, 0.5 * 1.2, 0.375, 0.0, 2.0 * 1.1, 0.0], rel=1e-7)


def test_ram_plus_clips_the_ratio_at_alpha() -> None:
    assert apply("ram_plus", {"alpha": 0.5, "r": 0.2}) == pytest.approx([0, 0.55, 0.375, 0, 2.2, 0], rel=1e-7)


def test_ram_plus_with_r_zero_is_ram() -> None:
    assert apply("ram_plus", {"r": 0.0}) == apply("ram")


def test_an_update_of_exactly_epsilon_is_not_active() -> None:
    assert apply("ram")[5] == 0.0
    assert apply("ram", {"epsilon": 9e-6})[5] == np.float32(1e-5)


@pytest.mark.parametrize("name", list(registry()))
def test_parameters_out_of_range_or_unknown_are_refused_by_name(name: str) -> None:
    method = get_method(name)
    with pytest.raises(ValueError, match="no_such_parameter"):
        method.parse_parameters({"no_such_parameter": 1})
    for field, info in method.parameters.model_fields.items():
        with pytest.raises(ValueError, match=info.alias or field):
            method.parse_parameters({info.alias or field: "a word"})
        with pytest.raises(ValueError, match=info.alias or field):
            method.parse_parameters({info.alias or field: float("nan")})
