"""Intervals and skills kept, by published figures, by hand and by simulation; and what must not stand on top."""

import math
import random

import pytest
from board_helpers import PARENTS, family, parent, result
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binomtest

from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Row
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.output.card_scores import scores_view
from hubmerge.output.report import Parent
from hubmerge.output.scores import (
    NO_DIFFERENCE,
    Estimate,
    ParentLine,
    Skill,
    difference,
    domain_line,
    gain_kept,
    mean,
    score_interval,
)


@pytest.mark.parametrize(("hits", "samples"), [(0, 20), (1, 20), (81, 263), (15, 148), (500, 500)])
def test_a_task_s_interval_is_wilson_s_so_that_all_right_or_all_wrong_is_no_certainty(hits, samples):
    expected = binomtest(hits, samples).proportion_ci(0.95, method="wilson")
    got = score_interval(hits / samples, samples)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_newcombe_s_published_difference():
    # Newcombe 1998, table II, example (a): 56/70 − 48/80, method 10
    got = difference(score_interval(56 / 70, 70), score_interval(48 / 80, 80))
    assert (round(got.low, 4), round(got.high, 4)) == (0.0524, 0.3339)


def test_a_stated_error_can_widen_but_not_narrow():
    plain = score_interval(0.5, 100)
    assert score_interval(0.5, 100, 0.0) == plain
    wide = score_interval(0.5, 100, 0.1)  # 0.25 / 0.01 = 25 independent prompts
    assert (wide.low, wide.high) == pytest.approx(
        (score_interval(0.5, 25).low, score_interval(0.5, 25).high), abs=1e-12
    )


def test_the_mean_of_two_tasks_by_hand():
    a, b = Estimate(0.4, 0.3, 0.6), Estimate(0.8, 0.4, 0.9)
    got = mean([a, b])
    assert got.value == pytest.approx(0.6)
    assert got.low == pytest.approx(0.6 - math.sqrt(0.1**2 + 0.4**2) / 2)
    assert got.high == pytest.approx(0.6 + math.sqrt(0.2**2 + 0.1**2) / 2)


@given(st.floats(0, 1), st.integers(1, 10**6), st.none() | st.floats(0, 1))
def test_an_interval_holds_its_value_and_stays_within_bounds(value, samples, stderr):
    got = score_interval(value, samples, stderr)
    assert 0 <= got.low <= got.value <= got.high <= 1


def test_the_mean_s_interval_covers_the_truth_about_95_times_in_100():
    draw, truth, covered = random.Random(7), (0.3, 0.9), 0
    for _ in range(2000):
        tasks = [score_interval(sum(draw.random() < p for _ in range(60)) / 60, 60) for p in truth]
        got = mean(tasks)
        covered += got.low <= 0.6 <= got.high
    assert 0.93 <= covered / 2000 <= 0.98


SCORES = st.integers(0, 200).map(lambda hits: score_interval(hits / 200, 200))


def row_of(results: list[EvaluationResult], model: str = "org/merge") -> Row:
    found = build_board(results).suites[0].find(model)
    assert found is not None
    return found


def test_the_family_s_skills_by_hand():
    # math: base 0.20, best 0.60, merge 0.66; code: 0.30, 0.80, 0.72; at instruction nobody is above the base
    row = row_of(family())
    math_skill, code = row.skills.skills
    assert (math_skill.task, math_skill.best_parent, math_skill.kept) == ("math_task", "org/math", True)
    assert math_skill.gain_kept.value == pytest.approx(0.46 / 0.40)
    assert (code.domain, code.best_parent, code.gain_kept.value) == ("code", "org/code", pytest.approx(0.42 / 0.50))
    assert row.skills.text == "2 of 2 skills: 115% of the gain in math, 84% in code"
    assert row.skills.mean.value == pytest.approx((1.15 + 0.84) / 2)
    assert row.skills_rank == 1


@pytest.mark.parametrize("missing", range(3))
def test_nothing_is_said_until_every_parent_is_scored(missing):
    results = family()
    del results[missing]
    row = row_of(results)
    assert (row.skills, row.skills_rank) == (None, None)


def test_nothing_is_said_of_a_parent_that_lacks_one_task():
    suites = {"math": 0.6, "code": 0.7}
    results = [result(p["id"], p["sha"][0], {d: 0.3}, suite=d) for p in PARENTS for d in suites]
    results += [result("org/merge", "e", {d: v}, suite=d, parents=PARENTS) for d, v in suites.items()]
    assert row_of(results).skills is not None
    assert row_of(results[1:]).skills is None


def test_a_parent_within_chance_of_the_base_has_no_skill():
    parents = [result(p["id"], p["sha"][0], {"math": v}) for p, v in zip(PARENTS, (0.50, 0.60, 0.40), strict=True)]
    row = row_of([*parents, result("org/merge", "e", {"math": 0.62}, parents=PARENTS)])
    assert row.skills.text == "no parent above the base"  # 60 against 50 of 100 is within chance
    assert row.skills_rank is None


def test_a_skill_of_which_little_is_left_is_not_kept():
    lost = row_of(family(scores={"math": 0.38, "instruction": 0.5, "code": 0.72})).skills
    assert lost.text == "1 of 2 skills: 45% of the gain in math, 84% in code"
    below = row_of(family(scores={"math": 0.10, "instruction": 0.5, "code": 0.72})).skills
    assert below.text == "1 of 2 skills: −25% of the gain in math, 84% in code"
    hardly = row_of(family(scores={"math": 0.199, "instruction": 0.5, "code": 0.72})).skills
    assert hardly.text == "1 of 2 skills: 0% of the gain in math, 84% in code"  # and no −0%


def test_just_half_of_a_gain_is_kept_whatever_floats_make_of_it():
    own, best, base = (score_interval(value, 1000) for value in (0.5, 0.8, 0.2))
    gain = gain_kept(own, best, base)
    assert gain.value < 0.5 == pytest.approx(gain.value, abs=1e-12)
    assert Skill("gsm8k", "math", "org/math", gain, "c" * 40).kept


def test_equal_mean_gains_share_a_rank_whatever_floats_make_of_them():
    scores = ({"math": 0.2, "code": 0.2}, {"math": 0.8, "code": 0.2}, {"math": 0.2, "code": 0.8})
    results = [result(p["id"], p["sha"][0], s, samples=400) for p, s in zip(PARENTS, scores, strict=True)]
    for name, values in (("a", (0.0, 0.2)), ("b", (0.05, 0.15))):
        results.append(result(f"me/{name}", "e", dict(zip(("math", "code"), values, strict=True)), parents=PARENTS))
    assert [row_of(results, f"me/{name}").skills_rank for name in "ab"] == [1, 1]


def test_means_of_equal_sums_are_no_synergy():
    own, theirs = (mean([score_interval(v, 100) for v in values]) for values in ((0, 0.1, 0.2), (0, 0, 0.3)))
    assert own.value > theirs.value == pytest.approx(own.value, abs=1e-12)
    line = domain_line("math", own, [ParentLine("base", "org/base", "b" * 40, 1.0, "scored", {"math": theirs})])
    assert (line.synergy, line.verdict) == (False, NO_DIFFERENCE)


def test_one_trained_agent_beside_a_random_adapter_does_not_top_the_column():
    """Neither by an agent that is good at everything: what one parent brings alone is no merit of a merge."""
    tasks = ("math", "code", "tool", "memory")

    def scored(name: str, letter: str, *values: float, **more: object) -> EvaluationResult:
        return result(name, letter, dict(zip(tasks, values, strict=True)), samples=400, **more)

    base, strong, noise = parent("z/base", "1", "base"), parent("z/strong", "2"), parent("z/noise", "3")
    one, two = parent("z/one", "4"), parent("z/two", "5")
    results = [
        scored("z/base", "1", 0.20, 0.20, 0.20, 0.20),
        scored("z/strong", "2", 0.80, 0.80, 0.80, 0.80),
        scored("z/noise", "3", 0.19, 0.20, 0.18, 0.21),
        scored("z/one", "4", 0.80, 0.20, 0.20, 0.20),
        scored("z/two", "5", 0.20, 0.80, 0.20, 0.20),
        scored("z/with-noise", "6", 0.80, 0.80, 0.79, 0.80, parents=(base, strong, noise)),
        scored("z/of-two", "7", 0.70, 0.72, 0.20, 0.20, parents=(base, one, two)),
        scored("z/forgot-one", "8", 0.80, 0.20, 0.20, 0.20, parents=(base, one, two)),
    ]
    rows = {r.model: r for r in build_board(results).suites[0].rows}
    assert rows["z/with-noise"].skills
    assert (
        rows["z/with-noise"].skills.text
        == "4 of 4 skills: 100% of the gain in math, 100% in code, 98% in tool use, 100% in memory"
    )
    ranks = {name: rows[f"z/{name}"].skills_rank for name in ("of-two", "with-noise", "forgot-one")}
    assert ranks == {"of-two": 1, "with-noise": 2, "forgot-one": 3}


def test_two_commits_of_one_repo_are_two_parents_whose_skills_a_merge_combines():
    parents = [parent("org/base", "b", "base"), parent("org/agent", "c"), parent("org/agent", "d")]
    scores = ({"math": 0.2, "code": 0.3}, {"math": 0.6, "code": 0.3}, {"math": 0.2, "code": 0.8})
    results = [result(p["id"], p["sha"][0], s) for p, s in zip(parents, scores, strict=True)]
    row = row_of([*results, result("org/merge", "e", {"math": 0.6, "code": 0.8}, parents=parents)])
    assert row.skills.order == (True, 2, 1.0)


@given(SCORES, SCORES, SCORES)
def test_an_interval_ends_where_that_of_the_difference_to_a_share_of_the_gain_reaches_0(own, best, base):
    assume(difference(best, base).low > 0)
    got = gain_kept(own, best, base)
    assert math.isfinite(got.low)
    assert math.isfinite(got.high)
    assert got.low <= got.value <= got.high

    def limit(r: float, sign: int) -> float:
        """(own − base) − r (best − base), with a limit of its interval: below for −1."""
        parts = ((1.0, own), (-r, best), (r - 1, base))
        value = sum(factor * e.value for factor, e in parts)
        sides = [(e.high - e.value) if factor * sign > 0 else (e.value - e.low) for factor, e in parts]
        return value + sign * math.hypot(*(f * side for (f, _), side in zip(parts, sides, strict=True)))

    assert limit(got.low, -1) == pytest.approx(0, abs=1e-9)
    assert limit(got.high, 1) == pytest.approx(0, abs=1e-9)
    assert (got.low > 0) == (difference(own, base).low > 0) or got.low == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("own", "best", "base"), [(0.6, 0.7, 0.2), (0.3, 0.8, 0.3), (0.9, 0.85, 0.5)])
def test_the_interval_covers_the_truth_about_95_times_in_100(own, best, base):
    draw, covered = random.Random(5), 0

    def measured(truth: float) -> Estimate:
        return score_interval(sum(draw.random() < truth for _ in range(150)) / 150, 150)

    for _ in range(1500):
        got = gain_kept(measured(own), measured(best), measured(base))
        covered += got.low <= (own - base) / (best - base) <= got.high
    assert 0.93 <= covered / 1500 <= 0.98


def test_the_card_says_the_same_as_the_board():
    parents = [Parent(p["role"], p["id"], "hub", p["id"], p["sha"], "main", "mit", False, False, 1.0) for p in PARENTS]
    rows = [
        {"task": t.task, "metric": t.metric, "value": t.value, "samples": t.samples, "domain": t.domain, "model": model}
        for r in family()
        for model in [None if r.model == "org/merge" else r.model]
        for t in r.tasks
    ]
    view = scores_view(rows, parents)
    assert view["skills"] == row_of(family()).skills
    without = scores_view([r for r in rows if r["model"] != "org/code"], parents)
    assert without["skills"] is None
    assert len(without["domains"]) == 3
