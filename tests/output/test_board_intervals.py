"""Intervals against published figures, hand computation and a simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from hubmerge.output.intervals import Estimate, difference, mean, score_interval


@pytest.mark.parametrize(("hits", "samples"), [(0, 20), (1, 20), (81, 263), (15, 148), (500, 500)])
def test_a_task_s_interval_is_wilson_s(hits: int, samples: int) -> None:
    expected = binomtest(hits, samples).proportion_ci(0.95, method="wilson")
    got = score_interval(hits / samples, samples)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_newcombe_s_published_difference() -> None:
    # Newcombe 1998, table II, example (a): 56/70 − 48/80, method 10
    got = difference(score_interval(56 / 70, 70), score_interval(48 / 80, 80))
    assert (round(got.low, 4), round(got.high, 4)) == (0.0524, 0.3339)


def test_all_right_or_all_wrong_is_no_certainty() -> None:
    assert score_interval(1.0, 10).low == pytest.approx(0.7225, abs=1e-4)  # 10 / (10 + z²)
    assert score_interval(0.0, 10).high == pytest.approx(0.2775, abs=1e-4)


def test_a_stated_error_can_widen_but_not_narrow() -> None:
    plain = score_interval(0.5, 100)
    assert score_interval(0.5, 100, 0.0) == plain
    wide = score_interval(0.5, 100, 0.1)  # 0.25 / 0.01 = 25 independent prompts
    assert (wide.low, wide.high) == pytest.approx(
        (score_interval(0.5, 25).low, score_interval(0.5, 25).high), abs=1e-12
    )


def test_the_mean_of_two_tasks_by_hand() -> None:
    a, b = Estimate(0.4, 0.3, 0.6), Estimate(0.8, 0.4, 0.9)
    got = mean([a, b])
    assert got.value == pytest.approx(0.6)
    assert got.low == pytest.approx(0.6 - math.sqrt(0.1**2 + 0.4**2) / 2)
    assert got.high == pytest.approx(0.6 + math.sqrt(0.2**2 + 0.1**2) / 2)


@given(st.floats(0, 1), st.integers(1, 10**6), st.none() | st.floats(0, 1))
def test_an_interval_holds_its_value_and_stays_within_bounds(value: float, samples: int, stderr: float | None) -> None:
    got = score_interval(value, samples, stderr)
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_the_mean_s_interval_covers_the_truth_about_95_times_in_100() -> None:
    draw, truth, covered = random.Random(7), (0.3, 0.9), 0
    for _ in range(2000):
        tasks = [score_interval(sum(draw.random() < p for _ in range(60)) / 60, 60) for p in truth]
        got = mean(tasks)
        covered += got.low <= 0.6 <= got.high
    assert 0.93 <= covered / 2000 <= 0.98
