"""Choosing a variant: the mean over domains on the development split, with paired uncertainty."""

import math

import pytest
from board_helpers import result

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.pick import Pick, pick, pick_table

N = 100


def picked(**variants: dict[str, int]) -> Pick:
    """The choice among variants, of each of which is given how many of N prompts of a domain it answered."""
    results = {
        name: result(f"x/{name}", scores={domain: right / N for domain, right in of.items()}, split="dev")
        for name, of in variants.items()
    }
    samples = {
        name: {f"{domain}_task": [1.0] * right + [0.0] * (N - right) for domain, right in of.items()}
        for name, of in variants.items()
    }
    failed = {"failed": result("x/failed", scores=None, split="dev")}
    return pick(failed | results, samples)


def test_the_variant_with_the_largest_mean_over_domains_is_chosen():
    found = picked(a={"math": 90, "tool": 10}, b={"math": 60, "tool": 60})
    assert found.chosen == "b"
    assert [round(s.mean, 3) for s in found.scores] == [0.5, 0.6]


def test_the_difference_has_the_paired_error_computed_by_hand_which_tells_variants_apart_or_not():
    found = picked(a={"math": 50}, b={"math": 60})
    # per prompt: 10 differences of 1 and 90 of 0; mean 0.1, variance (10·0.81 + 90·0.01)/99
    expected = math.sqrt((10 * 0.81 + 90 * 0.01) / 99 / N)
    [behind] = [s for s in found.scores if s.variant == "a"]
    assert behind.behind == pytest.approx(0.1)
    assert behind.behind_stderr == pytest.approx(expected)
    assert found.tied == ()
    found = picked(a={"math": 50}, b={"math": 51})
    assert (found.chosen, found.tied) == ("b", ("a",))
    assert "Not told apart from it: `a`" in pick_table(found)


def test_among_equals_the_first_of_the_sweep_is_chosen():
    assert picked(b={"math": 50}, a={"math": 50}).chosen == "b"
    # equal but for the last bits
    found = picked(one={"math": 0, "code": 0, "tool": 30}, other={"math": 0, "code": 10, "tool": 20})
    assert (found.chosen, [s.behind for s in found.scores]) == ("one", [0, 0])


def test_a_variant_that_failed_is_told_and_never_chosen():
    found = picked(b={"math": 0})
    assert (found.chosen, dict(found.failed)) == ("b", {"failed": "it generates nothing"})
    assert "| `failed` |" in (table := pick_table(found))
    assert "`b`. Percent" in table, "of one variant nothing is said about others"


def test_nothing_is_chosen_where_every_variant_failed_or_by_rows_of_the_test_split():
    with pytest.raises(EvaluationError, match="it generates nothing"):
        picked()
    with pytest.raises(EvaluationError, match="development split"):
        pick({"a": result("x/a", scores={"math": 0.5})}, {})
