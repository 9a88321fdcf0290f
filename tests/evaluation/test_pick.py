"""Choosing a variant: the mean over domains on the development split, with paired uncertainty."""

from __future__ import annotations

import math

import pytest
from board_helpers import result

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.pick import pick, pick_table

N = 100


def run(model: str, **scores: float):
    return result(model, scores=scores, split="dev")


def samples(**right: int) -> dict[str, list[float]]:
    """Task → the first `right` of N prompts answered."""
    return {f"{domain}_task": [1.0] * count + [0.0] * (N - count) for domain, count in right.items()}


def test_the_variant_with_the_largest_mean_over_domains_is_chosen() -> None:
    found = pick(
        {"a": run("x/a", math=0.9, tool=0.1), "b": run("x/b", math=0.6, tool=0.6)},
        {"a": samples(math=90, tool=10), "b": samples(math=60, tool=60)},
    )
    assert found.chosen == "b"
    assert [round(s.mean, 3) for s in found.scores] == [0.5, 0.6]


def test_the_difference_has_the_paired_error_computed_by_hand() -> None:
    found = pick(
        {"a": run("x/a", math=0.5), "b": run("x/b", math=0.6)},
        {"a": samples(math=50), "b": samples(math=60)},
    )
    # per prompt: 10 differences of 1 and 90 of 0; mean 0.1, variance (10·0.81 + 90·0.01)/99
    expected = math.sqrt((10 * 0.81 + 90 * 0.01) / 99 / N)
    [behind] = [s for s in found.scores if s.variant == "a"]
    assert behind.behind == pytest.approx(0.1)
    assert behind.behind_stderr == pytest.approx(expected)
    assert not behind.tied
    assert found.tied == ()


def test_variants_that_the_split_cannot_tell_apart_are_named() -> None:
    found = pick(
        {"a": run("x/a", math=0.50), "b": run("x/b", math=0.51)}, {"a": samples(math=50), "b": samples(math=51)}
    )
    assert (found.chosen, found.tied) == ("b", ("a",))
    assert "Not told apart from it: `a`" in pick_table(found)


def test_among_equals_the_first_of_the_sweep_is_chosen() -> None:
    same = samples(math=50)
    assert pick({n: run(f"x/{n}", math=0.5) for n in "ba"}, {"a": same, "b": same}).chosen == "b"
    one, other = {"math": 0, "code": 0, "tool": 30}, {"math": 0, "code": 10, "tool": 20}  # equal but for the last bits
    runs = {n: run(f"x/{n}", **{d: k / N for d, k in of.items()}) for n, of in (("one", one), ("other", other))}
    found = pick(runs, {"one": samples(**one), "other": samples(**other)})
    assert (found.chosen, [s.behind for s in found.scores]) == ("one", [0, 0])


def test_a_variant_that_failed_is_told_and_never_chosen() -> None:
    failed = result("x/a", scores=None, split="dev")
    found = pick({"a": failed, "b": run("x/b", math=0.0)}, {"b": samples(math=0)})
    assert (found.chosen, dict(found.failed)) == ("b", {"a": "it generates nothing"})
    assert "| `a` |" in pick_table(found)


def test_nothing_is_chosen_where_every_variant_failed_or_by_rows_of_the_test_split() -> None:
    with pytest.raises(EvaluationError, match="it generates nothing"):
        pick({"a": result("x/a", scores=None, split="dev")}, {})
    with pytest.raises(EvaluationError, match="development split"):
        pick({"a": result("x/a", scores={"math": 0.5})}, {"a": samples(math=50)})
