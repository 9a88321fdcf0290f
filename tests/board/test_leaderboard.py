"""The board against one computed by hand, and its promises under any order, repetition and hostility."""

from datetime import UTC, datetime

import pytest
from board_helpers import OTHER, PARENTS, TRUSTED, family, own, parent, result, rows, sha, task
from hypothesis import given, settings
from hypothesis import strategies as st

from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Board, Flag, SuiteBoard
from hubmerge.evaluation.result import EvaluationResult, ModelFacts
from hubmerge.evaluation.signing import signed
from hubmerge.output.scores import score_interval


def only(board: Board) -> SuiteBoard:
    [suite] = board.suites
    return suite


def reasons(board: Board) -> list[str]:
    return [r.reason for r in board.refused]


def test_the_family_by_hand():
    suite = only(build_board(family()))
    assert suite.domains == ("math", "instruction", "code")
    merge = suite.find("org/merge")
    assert suite.find("org/nobody") is None
    math_line, instruction, code = merge.domains
    # math: parents 0.20, 0.60, 0.10; instruction: 0.50, 0.40, 0.30; code: 0.30, 0.25, 0.80
    assert (math_line.best_parent, instruction.best_parent, code.best_parent) == ("org/math", "org/base", "org/code")
    assert merge.synergy == ("math",)
    assert not math_line.synergy_certain  # 66 against 60 of 100 is within chance
    better = build_board(family(scores={"math": 0.90, "instruction": 0.45, "code": 0.72}))
    assert rows(better)["org/merge"].domain("math").synergy_certain
    assert merge.instruction_change.value == pytest.approx(-0.05)
    assert merge.instruction_change.low < 0 < merge.instruction_change.high
    assert merge.overall.value == pytest.approx(0.61)
    assert math_line.score == score_interval(0.66, 100)
    assert merge.agents == 2
    assert {p.status for p in merge.parents} == {"scored"}
    assert merge.ancestors == tuple(f"{p['id']}@{p['sha']}" for p in PARENTS)


def test_models_whose_intervals_overlap_share_a_rank():
    # of 100: Wilson 0.90 → 0.826–0.945, 0.84 → 0.756–0.899, 0.77 → 0.679–0.842, 0.50 → 0.404–0.596
    values = {"a/first": 0.90, "a/second": 0.84, "a/third": 0.77, "a/last": 0.50}
    board = build_board([result(m, "a", {"math": v}) for m, v in values.items()])
    # third overlaps first (0.842 > 0.826); last lies below all three
    assert {r.model: r.rank for r in only(board).rows} == {"a/first": 1, "a/second": 1, "a/third": 1, "a/last": 4}
    assert [r.model for r in only(board).rows] == list(values)
    board = build_board([result(m, "a", {"math": v}, samples=400) for m, v in values.items()])
    # of 400 the intervals are half as wide: 0.867–0.926, 0.801–0.873, 0.726–0.809, 0.451–0.549
    assert {r.model: r.rank for r in only(board).rows} == {"a/first": 1, "a/second": 1, "a/third": 2, "a/last": 4}


@pytest.mark.parametrize(
    "change",
    [None, {"sha": sha("f")}, {"suite_version": "2"}, {"split": "dev"}, {"suite": "other"}],
    ids=["no score", "another commit", "another version", "another split", "another suite"],
)
def test_a_parent_counts_at_the_merged_commit_under_the_same_suite_version_and_split_only(change):
    base, math_agent, code, merge = family()
    other = [] if change is None else [math_agent.model_copy(update=change)]
    found = build_board([base, *other, code, merge], suite_versions={"trio": "1"}).suite("trio").find("org/merge")
    assert [p.status for p in found.parents] == ["scored", "not scored", "scored"]
    assert found.domains[0].best_parent == "org/base"
    assert found.synergy == (), "which needs the score of every parent"


def test_a_failed_run_is_listed_with_its_reason_and_is_no_zero():
    base, _, code, merge = family()
    failed = result("org/math", "c")
    board = build_board([base, failed, code, merge])
    found = rows(board)["org/math"]
    assert found.error.message == "it generates nothing"
    assert (found.rank, found.overall, found.domains) == (None, None, ())
    assert only(board).rows[-1] == found
    merged = rows(board)["org/merge"]
    assert merged.parents[1].status == "failed"
    assert merged.domains[0].best_parent == "org/base"
    assert {r.rank for r in only(board).rows if r.status == "done"} <= {1, 2, 3}


def test_the_newest_commit_of_a_model_is_shown_and_an_older_one_only_as_a_parent():
    old = result("org/math", "c", {"math": 0.6, "instruction": 0.4, "code": 0.25}, facts={"created": "2025-01-01"})
    new = result("org/math", "f", {"math": 0.7, "instruction": 0.4, "code": 0.25}, facts={"created": "2025-06-01"})
    base, _, code, merge = family()
    board = build_board([base, old, new, code])
    assert [(r.sha, r.superseded) for r in only(board).rows if r.model == "org/math"] == [(sha("f"), False)]
    board = build_board([base, old, new, code, merge])
    shown = {r.sha: (r.superseded, r.rank is None) for r in only(board).rows if r.model == "org/math"}
    assert shown == {sha("f"): (False, False), sha("c"): (True, True)}
    assert only(board).find("org/math").sha == sha("f")
    # a commit's date after its evaluation makes it no newer
    claimed = result("org/a", "1", {"math": 0.9}, created="2026-01-01T00:00:00Z", facts={"created": "2099-01-01"})
    later = result("org/a", "2", {"math": 0.5}, created="2026-02-01T00:00:00Z", facts={"created": "2026-02-01"})
    assert [r.sha for r in only(build_board([claimed, later])).rows] == [sha("2")]


def test_the_version_of_the_newest_result_is_shown_unless_another_is_asked_for():
    old = result("org/base", "b", {"math": 0.2}, suite_version="v2", created="2026-01-01T00:00:00+00:00")
    new = result("org/base", "b", {"math": 0.3}, suite_version="v1", created="2026-03-01T00:00:00+00:00")
    suite = only(build_board([old, new]))
    assert (suite.version, suite.versions) == ("v1", ("v1", "v2"))
    assert only(build_board([old, new], suite_versions={"trio": "v2"})).version == "v2"
    assert only(build_board([old, new], suite_versions={"trio": "v3"})).rows == ()


def test_a_flag_follows_the_lineage_of_its_commit_and_takes_the_rank():
    child = result("org/child", "1", {"math": 0.5}, parents=(parent("org/merge", "e", "base"), parent("x/y", "9")))
    flags = [Flag("contaminated", "org/math", reason="trained on the test"), Flag("withdrawn", "x/y", sha("9"))]
    results = [*family(), child.model_copy(update={"suite": "other"})]
    board = build_board(results, flags)
    trio, other = board.suite("trio"), board.suite("other")
    marks = {r.model: [(f.kind, f.inherited_from) for f in r.flags] for r in (*trio.rows, *other.rows)}
    assert marks == {
        "org/base": [],
        "org/code": [],
        "org/math": [("contaminated", None)],
        "org/merge": [("contaminated", "org/math")],
        "org/child": [("contaminated", "org/math"), ("withdrawn", "x/y")],
    }
    assert {r.model for r in trio.rows if r.rank is None} == {"org/math", "org/merge"}
    other_commit = build_board(family(), [Flag("withdrawn", "org/math", sha("f"))])
    assert not any(r.flags for r in only(other_commit).rows)


def test_of_flags_without_end_a_row_has_fifty():
    found = rows(build_board(family(), [Flag("withdrawn", "org/math", reason=str(k)) for k in range(200)]))
    for model, origin in (("org/math", None), ("org/merge", "org/math")):
        assert [flag.inherited_from for flag in found[model].flags] == [origin] * 50


@pytest.mark.parametrize("suite", ["before", "zuletzt"])
def test_naming_fewer_parents_elsewhere_does_not_shake_off_a_flag(suite):
    hidden = family()[3].model_copy(update={"suite": suite, "facts": family()[0].facts})
    board = build_board([*family(), hidden], [Flag("contaminated", "org/math")])
    assert [f.inherited_from for f in rows(board)["org/merge"].flags] == ["org/math"]
    assert board.suite(suite).rows[0].flags


def test_a_circle_of_parents_ends():
    a = result("x/a", "1", {"math": 0.5}, parents=(parent("x/b", "2", "base"), parent("x/c", "3")))
    b = result("x/b", "2", {"math": 0.5}, parents=(parent("x/a", "1", "base"), parent("x/c", "3")))
    board = build_board([a, b], [Flag("withdrawn", "x/c")])
    assert rows(board)["x/a"].ancestors == (f"x/b@{sha('2')}", f"x/c@{sha('3')}")
    assert all(r.flags for r in only(board).rows)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "../../etc"}, "not a repo's name"),
        ({"model": "<img src=x>"}, "not a repo's name"),
        ({"suite": "a/b"}, "not a name"),
        ({"created": "yesterday"}, "date"),
        ({"tasks": [task(f"t{k}", "math", 0.5) for k in range(201)]}, "more than 200 tasks"),
        ({"created": "0001-01-01T00:00:00+14:00"}, "date"),
        ({"created": "2099-01-01T00:00:00+00:00"}, "future"),
        ({"facts": {"author": "o", "parents": [parent("a/b", "1")]}}, "one base"),
        ({"facts": {"author": "o", "parents": [parent("a/b", "1", "base")] * 66}}, "more than 65 parents"),
        ({"facts": {"author": "o", "parents": [parent("org/base", "b", "base")]}}, "its own parent"),
        ({"facts": {"author": "o", "effective_scales": [1.0]}}, "as many λ"),
    ],
)
def test_a_result_that_is_not_credible_is_refused_and_the_rest_stands(change, reason):
    good = family()
    if "facts" in change:
        change = {"facts": ModelFacts.model_validate(change["facts"])}
    board = build_board([*good, good[0].model_copy(update=change)], now=datetime(2026, 2, 1, tzinfo=UTC))
    assert only(board) == only(build_board(good))
    assert reason in reasons(board)[0]


def test_other_tasks_than_the_suite_s_are_refused():
    odd = result("evil/one", "1", [task("math_task", "math", 1.0, few_shot=5)])
    wide = result("evil/two", "2", [task(f"t{k}", f"domain{k}", 1.0) for k in range(50)])
    board = build_board([odd, wide, *family()])
    assert only(board).domains == ("math", "instruction", "code")
    assert len(board.refused) == 2
    assert all("tasks are others" in r for r in reasons(board))


def test_the_later_of_two_results_of_one_run_counts_and_the_other_is_told():
    early = result("org/base", "b", {"math": 0.2}, created="2026-01-01T00:00:00+00:00")
    late = result("org/base", "b", {"math": 0.3}, created="2026-01-02T00:00:00+00:00")
    board = build_board([late, early])
    assert rows(board)["org/base"].domains[0].score.value == 0.3
    assert "2026-01-01" in reasons(board)[0]


@pytest.mark.slow
def test_a_chain_of_more_merges_than_python_recurses_is_no_trouble():
    pairs = [(parent(f"x/m{k}", "a", "base"), parent("x/agent", "b")) for k in range(1299)]
    results = [result(f"x/m{k}", "a", {"math": 0.5}, parents=parents) for k, parents in enumerate([(), *pairs])]
    board = build_board(results, [Flag("contaminated", "x/m0")])
    assert all(r.flags for r in only(board).rows)
    assert max(len(r.ancestors) for r in only(board).rows) == 500


def pool() -> list[EvaluationResult]:
    """Results that meet in every way: versions, commits, failures, doubles, other tasks, circles."""
    extra = [
        result("org/base", "b", {"math": 0.25, "instruction": 0.5, "code": 0.3}, created="2026-01-03T00:00:00Z"),
        result("org/math", "f", {"math": 0.7, "instruction": 0.4, "code": 0.2}, created="2026-02-01T00:00:00Z"),
        result("org/code", "8"),
        result("org/base", "b", {"math": 0.26, "instruction": 0.5, "code": 0.3}, created="2026-01-03T00:00:00Z"),
        result("org/merge", "e", {"math": 0.5}, suite_version="2"),
        result("org/merge", "e", {"math": 0.5}, split="dev"),
        *suites("org/merge", "e", math=0.66, instruction=0.45, code=None),
        result("x/odd", "1", [task("other", "math", 0.4)]),
        result("x/bad", "1", {"math": 0.4}, created="never"),
        *own()[2:],
        own()[1].model_copy(update={"signature": own()[0].signature}),  # forged
        signed(result("org/base", "b", {"math": 1.0, "instruction": 1.0, "code": 1.0}), OTHER, "x"),
        result("x/loop", "1", {"math": 0.4, "instruction": 0.1, "code": 0.1}, parents=(parent("y/loop", "2", "base"),)),
        result("y/loop", "2", {"math": 0.4, "instruction": 0.1, "code": 0.1}, parents=(parent("x/loop", "1", "base"),)),
    ]
    return [*family(), *extra]


def suites(model: str, letter: str, **scores: float | None) -> list[EvaluationResult]:
    """One suite per domain, as the suites of the project are."""
    return [
        result(model, letter, None if v is None else {d: v}, suite=d, parents=PARENTS if letter == "e" else ())
        for d, v in scores.items()
    ]


def test_suites_of_one_domain_each_are_joined():
    results = [
        *suites("org/base", "b", math=0.2, instruction=0.5, code=0.3),
        *suites("org/math", "c", math=0.6, instruction=0.4),
        *suites("org/code", "d", math=0.1, instruction=0.3, code=None),
        *suites("org/merge", "e", math=0.66, instruction=0.45, code=0.72),
        *family(),  # a suite of three domains stays by itself
    ]
    board = build_board(results)
    assert [s.suite for s in board.suites] == ["domains", "code", "instruction", "math", "trio"]
    joined = board.suites[0]
    assert joined.domains == ("math", "instruction", "code")
    merge, base, math_agent, code_agent = (joined.find(f"org/{m}") for m in ("merge", "base", "math", "code"))
    assert merge.overall.value == pytest.approx(0.61)
    assert (merge.rank, base.rank, math_agent.rank, code_agent.rank) == (1, 2, None, None)
    assert math_agent.overall is None
    assert [d.rank for d in math_agent.domains] == [1, 1]
    assert list(code_agent.failures) == ["code"]
    assert code_agent.status == "done"
    assert merge.skills is None  # code: only the base has a score
    assert merge.synergy == ("math",)
    assert merge.instruction_change.value == pytest.approx(-0.05)


POOL = pool()
FLAGS = [Flag("contaminated", "org/math"), Flag("withdrawn", "y/loop", sha("2"), "gone")]


@settings(max_examples=40, deadline=None)
@given(st.permutations(2 * POOL), st.integers(2, 36), st.permutations(FLAGS), st.sampled_from([frozenset(), TRUSTED]))
def test_neither_the_order_nor_the_repetition_of_results_and_flags_matters(order, most, flags, trusted):
    chosen = order[:most]
    once = [one for one in POOL if one in chosen]
    assert build_board(chosen, [*flags, *FLAGS], trusted=trusted) == build_board(once, FLAGS, trusted=trusted)
