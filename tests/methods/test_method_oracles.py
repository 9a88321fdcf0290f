"""Each method against elements computed by hand from its formula."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from stream_helpers import select, tally_of

from hubmerge.engine import definition
from hubmerge.methods import get_method, registry
from hubmerge.methods.base import Scope
from hubmerge.numerics.counter_rng import make_key

# three agents, six elements: changed by nobody, by agent 0, by agents 0 and 1, by all (with a conflict),
# by agent 2 alone, and by an update of exactly ε, which is none
DELTAS = [[0.0, 0.5, 0.5, 0.25, 0.0, 1e-5], [0.0, 0.0, 0.25, 0.50, 0.0, 0.0], [0.0, 0.0, 0.0, -0.75, 2.0, 0.0]]


def apply(
    name: str,
    parameters: Mapping[str, Any],
    weights: Sequence[float] = (1.0, 1.0, 1.0),
    deltas: Sequence[Any] = DELTAS,
    sensitivities: Sequence[Any] = (),
) -> list[float]:
    """δ* of a base of zeros."""
    method = get_method(name)
    values, k = method.parse_parameters(parameters), len(deltas)
    base, agents = np.zeros(len(deltas[0]), np.float32), [np.array(d, np.float32) for d in deltas]
    measured = tuple(np.array(s, np.float32) for s in sensitivities)
    keys = tuple(make_key(5, "uniform", str(agent), "t") for agent in range(k)) if "uniform" in method.extras else ()
    chunk = definition.ChunkInputs((base, *agents), ("F32",) * (k + 1), 0, keys, measured)
    threshold, overlaps = method.threshold(values), tally_of(base, agents).overlaps
    limits = () if threshold is None else select(threshold, k, [chunk])
    scope = Scope(values, weights[:k], overlaps, overlaps, limits)
    rule = definition.Rule.of(method, scope, 1e-5, "nearest", both_roundings=False)
    found = definition.merge_chunk(chunk, rule, "F32", make_key(0, "r"), with_inputs=False).raw.tolist()
    return list(found)


@pytest.mark.parametrize(
    ("method", "parameters", "weights", "expected"),
    [
        ("linear", {}, (1, 1, 1), [0, 0.5 / 3, 0.25, 0, 2 / 3, 1e-5 / 3]),
        ("linear", {}, (2, 1, 1), [0, 0.25, (1 + 0.25) / 4, (0.5 + 0.5 - 0.75) / 4, 0.5, 2e-5 / 4]),
        ("task_arithmetic", {}, (1, 1, 1), [0, 0.5 / 3, 0.25, 0, 2 / 3, 1e-5 / 3]),
        ("task_arithmetic", {"lambda": 0.5}, (1, 2, 1), [0, 0.25, 0.5, 0.5 * (0.25 + 1 - 0.75), 1, 0.5e-5]),
        # what one agent changed stays whole, what several did is averaged over those alone
        ("ram", {}, (1, 1, 1), [0, 0.5, 0.375, 0, 2, 0]),
        ("ram", {}, (0.5, 2, 1), [0, 0.25, 0.375, (0.125 + 1 - 0.75) / 3, 2, 0]),
        ("ram", {"epsilon": 9e-6}, (1, 1, 1), [0, 0.5, 0.375, 0, 2, 1e-5]),
        # agent 0: unique 1 (element 1), shared 2 → ρ = 2; agent 1: unique 0, shared 2; agent 2: 1 and 1 → ρ = 1
        ("ram_plus", {}, (1, 1, 1), [0, 0.5 * 1.2, 0.375, 0, 2 * 1.1, 0]),
        ("ram_plus", {"alpha": 0.5, "r": 0.2}, (1, 1, 1), [0, 0.5 * 1.1, 0.375, 0, 2 * 1.1, 0]),
        ("ram_plus", {"r": 0.0}, (1, 1, 1), [0, 0.5, 0.375, 0, 2, 0]),
    ],
)
def test_an_element_is_what_the_formula_says(method, parameters, weights, expected):
    assert apply(method, parameters, weights) == pytest.approx(expected, rel=2e-7)


A, B = [1.0, 1.0, 1.0, 1.0], [2.0, -2.0, -2.0, -2.0]


@pytest.mark.parametrize(
    ("method", "parameters", "deltas", "sensitivities", "expected"),
    [
        ("fisher", {}, ([1, 1, 4], [2, 2, 2]), ([3, 0, 0], [1, 5, 0]), [1.25, 2, 3]),
        # sensitivities whose products with an update are smaller than any float32
        ("fisher", {}, ([2**-12], [2**-10]), ([2**-140], [2**-140]), [5 * 2**-13]),
        # agreement: the sum; A more sensitive; B more sensitive; a tie goes to the later agent
        ("sar", {}, (A, B), ([0, 2, 1, 1], [0, 1, 2, 1]), [3, 1, -2, -2]),
        # of three agents those of the elected sign are summed
        ("sar", {}, ([1, 1], [2, 2], [-4, -4]), ([1, 9], [2, 1], [3, 2]), [-4, 3]),
        ("sar", {"lambda": 0.5, "p": 0.0}, ([1, 0], [0, 3]), ([0, 0], [0, 0]), [0.5, 1.5]),
    ],
)
def test_an_element_is_weighed_by_how_sensitive_its_agents_are(method, parameters, deltas, sensitivities, expected):
    assert apply(method, parameters, deltas=deltas, sensitivities=sensitivities) == expected


def test_sar_thins_out_the_weaker_half_of_the_private_updates_and_keeps_their_expectation():
    n = 100_000
    deltas = [np.where(np.arange(n) % 2 == 0, 1.0, 2.0), np.zeros(n)]
    out = np.array(apply("sar", {"p": 0.2}, deltas=deltas, sensitivities=[np.ones(n), np.ones(n)]))
    assert set(np.unique(out[1::2]).tolist()) == {2.0}
    weak = out[::2]
    assert set(np.unique(weak).tolist()) == {0.0, 1.25}
    assert weak.mean() == pytest.approx(1.0, abs=5 * 1.25 * np.sqrt(0.16 / len(weak)))


class Exact(np.ndarray[Any, Any]):
    """An array that knows which operations round correctly, and so give the same bits on every machine."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        assert ufunc in EXACT, f"{ufunc.__name__} may give other bits on another machine; see methods/ops.py"
        plain = [np.asarray(x) if isinstance(x, Exact) else x for x in inputs]
        return np.asarray(getattr(ufunc, method)(*plain, **more)).view(Exact)


EXACT = {np.add, np.subtract, np.multiply, np.divide, np.negative, np.absolute}
EXACT |= {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
EXACT |= {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert}  # of comparisons


@pytest.mark.parametrize("name", list(registry()))
def test_a_kernel_uses_operations_alone_that_give_the_same_bits_everywhere(name, monkeypatch):
    method = registry()[name]
    kernel, ran = method.kernel, []

    def exact(inputs: Any, per_agent: Any, constants: Any) -> Any:
        ran.append(name)
        return np.asarray(kernel([np.asarray(x).view(Exact) for x in inputs], per_agent, constants))

    monkeypatch.setattr(type(method), "kernel", staticmethod(exact))
    apply(name, {}, sensitivities=np.abs(DELTAS) if "sensitivity" in method.extras else ())
    assert ran


@pytest.mark.parametrize("name", list(registry()))
def test_parameters_out_of_range_or_unknown_are_refused_by_name(name):
    method = get_method(name)
    with pytest.raises(ValueError, match="no_such_parameter"):
        method.parse_parameters({"no_such_parameter": 1})
    for field, info in method.parameters.model_fields.items():
        with pytest.raises(ValueError, match=info.alias or field):
            method.parse_parameters({info.alias or field: "a word"})
        with pytest.raises(ValueError, match=info.alias or field):
            method.parse_parameters({info.alias or field: float("nan")})
        if info.alias:  # its name in Python is none of a recipe's
            with pytest.raises(ValueError, match="no such parameter"):
                method.parse_parameters({field: 0.5})


@pytest.mark.parametrize(
    ("name", "values", "of_agent", "said"),
    [
        ("dare_ties", {"p": [0.1, 0.2]}, False, "lambda can differ, density and p too with trim_scope: tensor$"),
        ("ram", {"epsilon": 0.1}, True, "one for all agents; with ram agents have no parameters of their own$"),
        ("ties", {"lambda": 0.5}, True, "of the parameters of ties an agent can have its own density$"),
    ],
)
def test_a_parameter_that_must_not_differ_is_refused_with_what_may(name, values, of_agent, said):
    with pytest.raises(ValueError, match=said):
        get_method(name).parse_settings(values, of_agent=of_agent)
