"""Our verdicts are bfcl-eval's: on every gold answer, and on damaged ones of some rows of every category.

Its verdicts are kept in verdicts.json, so that this runs without the package; where it is installed, it is asked too.
All rows, about 1.8 million variants, take minutes: `bfcl_parity.py`.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from bfcl_damage import CATEGORIES, all_variants, rows
from bfcl_fuzz import converted, values
from bfcl_parity import PYTHON, VERDICTS, Reference, Tally, compare, ours
from test_bfcl_task import CONTRADICTORY

from hubmerge.evaluation.tasks.bfcl import TASKS

needs_bfcl = pytest.mark.skipif(
    not PYTHON.exists(), reason="bfcl-eval is not installed in .cache/bfcl (tests/bfcl/install.sh)"
)
KEPT: dict[str, Any] = json.loads(VERDICTS.read_text(encoding="utf-8"))


def test_verdicts_are_those_that_bfcl_eval_gave() -> None:
    tallies = {category: Tally() for category in CATEGORIES}
    for category, row, found in all_variants(KEPT["damaged_rows"]):
        tallies[category].add(found, ours(category, row, found))
    for category in CATEGORIES:
        assert tallies[category].kept() == KEPT["categories"][category], f"{category}: run bfcl_parity.py"


def test_only_contradictory_keys_have_no_gold_answer_for_bfcl_eval_either() -> None:
    without = {name.rsplit("_", 1)[0]: 0 for name in CONTRADICTORY}
    for name in CONTRADICTORY:
        without[name.rsplit("_", 1)[0]] += 1
    for category in CATEGORIES:
        kept = KEPT["categories"][category]
        assert kept["rows"] == len(rows(category))
        assert kept["rows"] - kept["gold"] == without.get(category, 0)


@needs_bfcl
def test_bfcl_eval_agrees_on_gold_answers_and_damaged_ones() -> None:
    with Reference() as reference:
        tallies, differing = compare(reference, all_variants(2))
    assert differing == []
    assert set(tallies) == set(CATEGORIES)


@needs_bfcl
def test_bfcl_eval_refuses_the_answers_to_contradictory_keys() -> None:
    with Reference() as reference:
        for name in CONTRADICTORY:
            category = name.rsplit("_", 1)[0]
            row = next(row for row in rows(category) if row["id"] == name)
            found = next(f for _, r, f in all_variants(1) if r["id"] == name)
            golds = [variant for variant in found if variant[0] == "gold"]
            assert golds
            assert not any(valid for valid, _ in reference.verdicts(category, row, golds))


@needs_bfcl
def test_java_and_javascript_values_are_converted_as_bfcl_eval_converts_them() -> None:
    drawn = list(values(random.Random(1), 30_000))
    with Reference() as reference:
        theirs = reference.values(drawn)
    assert sum(result != repr(value[3]) for value, result in zip(drawn, theirs, strict=True)) > 3000
    assert [v for v, result in zip(drawn, theirs, strict=True) if converted(v) != result] == []


def test_no_category_is_left_out() -> None:
    assert list(KEPT["categories"]) == [t.rows.subset for t in TASKS]
