"""The scaling law is recovered from its own points, with and without noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hubmerge.scaling import fit_scaling_law

SIZES = [1, 3, 7, 13, 30, 70, 100, 180, 405]  # billions
A, B = 0.085, 0.587  # of the 70B paper


def law(size: float) -> float:
    return 1 - A * size**-B


def test_points_on_the_law_give_its_parameters() -> None:
    a, b, r_squared = fit_scaling_law([(n, law(n)) for n in SIZES])
    assert (a, b, r_squared) == pytest.approx((A, B, 1.0), rel=1e-9)


def test_the_parameters_are_recovered_from_noisy_points() -> None:
    noise = np.random.default_rng(0).normal(size=(20, len(SIZES))) * 0.02
    points = [(n, 1 - A * n**-B * (1 + e)) for row in noise for n, e in zip(SIZES, row, strict=True)]
    a, b, r_squared = fit_scaling_law(points)
    assert a == pytest.approx(A, rel=0.02)
    assert b == pytest.approx(B, rel=0.02)
    assert 0.98 < r_squared < 1


def test_the_residuals_of_the_fit_are_those_of_the_sparsity_and_no_neighbour_has_less() -> None:
    rng = np.random.default_rng(1)
    points = [(n, law(n) + rng.normal() * 0.004) for n in SIZES]

    def error(a: float, b: float) -> float:
        return math.fsum((s - (1 - a * n**-b)) ** 2 for n, s in points)

    a, b, _ = fit_scaling_law(points)
    for da, db in [(1e-4, 0), (-1e-4, 0), (0, 1e-3), (0, -1e-3), (1e-4, 1e-3), (-1e-4, -1e-3)]:
        assert error(a, b) < error(a * (1 + da), b * (1 + db))


def test_two_points_determine_the_law_and_a_fully_sparse_one_does_not_break_it() -> None:
    a, b, r_squared = fit_scaling_law([(3, 0.85), (7, 0.90)])
    assert 1 - a * 3**-b == pytest.approx(0.85)
    assert 1 - a * 7**-b == pytest.approx(0.90)
    assert r_squared == pytest.approx(1)
    assert fit_scaling_law([(3, 0.85), (7, 0.90), (1000, 1.0)])[1] > 0


def test_sparsity_that_does_not_depend_on_size_has_exponent_zero() -> None:
    a, b, r_squared = fit_scaling_law([(1, 0.9), (10, 0.9), (100, 0.9)])
    assert a == pytest.approx(0.1)
    assert b == pytest.approx(0, abs=1e-9)
    assert r_squared in (0.0, 1.0)


@pytest.mark.parametrize(
    "points",
    [[], [(7, 0.9)], [(7, 0.9), (7, 0.8)], [(7, 1.0), (70, 1.0)], [(0, 0.9), (7, 0.9)], [(3, 1.2), (7, 0.9)],
     [(3, math.nan), (7, 0.9)]],
)  # fmt: skip
def test_points_that_do_not_determine_the_law_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="scaling law"):
        fit_scaling_law(points)
