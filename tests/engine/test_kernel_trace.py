"""A kernel's trace says all that the kernel computes, as one line of steps for any number of agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hubmerge.engine.compiled.kernel_loops import loop_from
from hubmerge.engine.compiled.kernel_trace import known, trace_of
from hubmerge.methods import registry
from hubmerge.methods.ops import absolute, where
from hubmerge.recipe.recipe import MAX_AGENTS

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38, 0.1], np.float32)
Kernel = Callable[..., Any]
TWO = (None, None)


def pairs() -> np.ndarray:
    """[2, n]: every special value beside every other, and as many again that are not special."""
    a, b = np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    random = np.random.default_rng(3).normal(size=(2, a.size)).astype(np.float32)
    return np.concatenate([np.stack([a, b]), random], axis=1)


def compiled(kernel: Kernel, inputs: np.ndarray, per_agent: np.ndarray, constants: np.ndarray) -> np.ndarray:
    rows, n = inputs.shape
    free = (None,) * per_agent.shape[1], (None,) * len(constants)
    out = np.full(n + 1, 77, np.float32)
    assert loop_from((), kernel, len(per_agent), rows, *free)(inputs, per_agent, constants, n, out) == 0
    assert out[n] == 77
    return out[:n]


def eager(kernel: Kernel, inputs: np.ndarray, per_agent: np.ndarray, constants: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(kernel(tuple(inputs), tuple(map(tuple, per_agent)), tuple(constants)))


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, except that a NaN is a NaN."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.uint32)[there], expected.view(np.uint32)[there])


def arithmetic(inputs: Any, per_agent: Any, constants: Any) -> Any:
    x, y = inputs
    (w, _), (_, v) = per_agent
    total = -x * w + (y - 0.1) / (1 - v) + sum((x, 3 * y, 0.25 / x, 2 - y))
    return abs(total) - absolute(x) * constants[0]


def choices(inputs: Any, per_agent: Any, constants: Any) -> Any:
    x, y = inputs
    one = constants[1]
    flags = [
        x < y,
        x <= y,
        x > y,
        x >= y,
        x == y,
        x != y,
        (x < y) ^ (y > one),
        ~(x == y) & (x <= one),
        (x > y) | (x < 0),
    ]
    total = x * 0.0
    for weight, flag in enumerate(flags):
        total = total + where(flag, one, where(x != x, y, -one)) * float(1 << weight)
    return where(per_agent[0][0] > 0.5, total, x)


@pytest.mark.parametrize("kernel", [arithmetic, choices])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 288])
def test_every_operation_gives_numpys_bits(kernel: Kernel, n: int) -> None:
    assert trace_of(kernel, 2, 2, TWO, TWO) is not None
    inputs = np.ascontiguousarray(pairs()[:, -n:])
    per_agent, constants = np.array([[0.75, 5.0], [6.0, -3.25]], np.float32), np.array([1.5, 1.0], np.float32)
    assert_same(compiled(kernel, inputs, per_agent, constants), eager(kernel, inputs, per_agent, constants))


@pytest.mark.parametrize("name", list(registry()))
def test_every_method_has_a_trace_for_as_many_agents_as_a_recipe_takes(name: str) -> None:
    method = registry()[name]
    for agents in (1, 2, MAX_AGENTS):
        assert trace_of(method.kernel, agents, 3 * agents, (None,) * 4, (None,) * shared(method.kernel)) is not None


def shared(kernel: Kernel) -> int:
    """How many constants a kernel unpacks, as it says itself."""
    for count in range(10):
        try:
            kernel(np.ones((6, 1), np.float32), np.ones((2, 4), np.float32), np.ones(count, np.float32))
        except (ValueError, IndexError):
            continue
        return count
    raise AssertionError("no kernel takes ten constants")


def asks(inputs: Any, per_agent: Any, constants: Any) -> Any:
    return inputs[0] * per_agent[0][0] if inputs[0] > inputs[1] else inputs[1]


def test_a_kernel_that_asks_for_a_value_has_no_trace_and_runs() -> None:
    assert trace_of(asks, 2, 2, TWO, TWO) is None
    inputs = np.arange(70, dtype=np.float32).reshape(2, 35)
    inputs[0, ::2] += 100
    out = compiled(asks, inputs, np.full((2, 2), 2, np.float32), np.ones(2, np.float32))
    np.testing.assert_array_equal(out, np.where(inputs[0] > inputs[1], inputs[0] * 2, inputs[1]))


@pytest.mark.parametrize(
    "kernel",
    [
        lambda inputs, per_agent, constants: np.sqrt(inputs[0]),
        lambda inputs, per_agent, constants: inputs[0] * np.float64(0.1),
        lambda inputs, per_agent, constants: (inputs[0] > inputs[1]) * inputs[0],
        lambda inputs, per_agent, constants: where(inputs[0] > 0, inputs[0] > 1, inputs[0] < -1),
        lambda inputs, per_agent, constants: inputs[0] > 0,
        lambda inputs, per_agent, constants: inputs[0] * 1e300,
        lambda inputs, per_agent, constants: inputs[0].mean(),
        lambda inputs, per_agent, constants: 1.0,
    ],
)  # fmt: skip
def test_what_symbols_do_not_know_is_not_guessed(kernel: Kernel) -> None:
    assert trace_of(kernel, 2, 2, TWO, TWO) is None


def test_equal_steps_are_one() -> None:
    def kernel(inputs: Any, per_agent: Any, constants: Any) -> Any:
        return (inputs[0] + 1.0) * (inputs[0] + 1)

    trace = trace_of(kernel, 1, 1, (), ())
    assert trace is not None
    assert trace.steps == (("input", 0), ("literal", 0x3F800000), ("add", 0, 1), ("mul", 2, 2))


def test_only_zero_and_one_are_known_and_of_agents_only_where_all_have_them() -> None:
    assert known(np.array([0.0, 1.0, -0.0, -1.0, 0.5, np.nan], np.float32)) == (0.0, 1.0, None, None, None, None)
    assert known(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], np.float32)) == (1.0, None, 0.0)


@pytest.mark.parametrize("name", list(registry()))
def test_code_that_rests_on_known_values_gives_the_same_bits(name: str) -> None:
    kernel, agents = registry()[name].kernel, 3
    rng, count = np.random.default_rng(8), shared(kernel)
    inputs = (rng.normal(size=(9, 200)) * (rng.random((9, 200)) < 0.6)).astype(np.float32)
    inputs[:, :12] = rng.choice(SPECIAL, size=(9, 12))
    for trial in range(4):
        per_agent = np.ones((agents, 4), np.float32)
        per_agent[:, trial] = [0.0, 1.0, 0.25][trial % 3]
        constants = rng.choice(np.array([0.0, 1.0, 0.3], np.float32), size=count)
        out = np.empty(200, np.float32)
        loop = loop_from((), kernel, agents, 9, known(per_agent), known(constants))
        assert loop(inputs, per_agent, constants, 200, out) == 0
        assert_same(out, eager(kernel, inputs, per_agent, constants))
