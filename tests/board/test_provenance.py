"""Who vouches for a row: forged, edited and replayed results beside signed ones, and what they may not decide."""

import itertools
import json
import sys
from typing import Any

import pytest
from board_helpers import (
    ENVIRONMENT,
    KEY,
    OTHER,
    SEED,
    TRUSTED,
    own,
    parent,
    result,
    result_data,
    rows,
    strange,
    task,
    written,
)

from hubmerge.board.leaderboard import build_board
from hubmerge.board.trust import Trust, keys_file, named_keys, parse_keys
from hubmerge.board.values import Board, Flag
from hubmerge.errors import DiskError, ResultError, SettingsError
from hubmerge.evaluation.result import EvaluationResult, parse_result
from hubmerge.evaluation.signing import provenance, public_key, signed
from hubmerge.settings import Settings
from workflows.app.board_table import columns

LATER = "2026-02-01T00:00:00+00:00"


def board(*results: EvaluationResult, **changes: Any) -> Board:
    return build_board(results, trusted=TRUSTED, **changes)


def again(result: EvaluationResult) -> EvaluationResult:
    """As it comes back from its file."""
    return parse_result(result.to_json().encode(), where="r")


def edited(result: EvaluationResult, **changes: Any) -> EvaluationResult:
    return EvaluationResult.model_validate(result.model_dump() | changes)


def test_the_signature_is_one_of_the_documented_bytes():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    one = signed(result("org/a", "1", {"math": 0.5}), SEED, "bot")
    document = result_data("org/a", "1", {"math": 0.5}) | {"facts": {"author": "org"}, "run_by": "bot"}
    del document["error"]  # as every field at its default
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY))
    key.verify(bytes.fromhex(one.signature.value), b"hubmerge result 1\n" + text.encode())


def test_a_file_without_the_new_fields_is_read_and_is_the_communitys():
    old = parse_result(json.dumps(result_data("org/a", "1", {"math": 0.5})).encode(), where="r")
    assert (old.run_by, old.signature) == (None, None)
    [row] = rows(board(old)).values()
    assert (row.run_by, row.signed, row.rank) == ("community", False, 1)


def test_six_forged_rows_displace_no_signed_one():
    real = board(*own())
    forged = [result(f"evil/m{k}", "f", {"math": 1.0}, created=LATER, suite_version="9") for k in range(6)]
    many = [result(f"evil/t{k}", "f", [task("other", "math", 1.0)], created=LATER) for k in range(6)]
    built = board(*forged, *many, *own())
    assert built.suites == real.suites
    assert len(built.refused) == 12
    assert {r.reason.split(" ")[0] for r in built.refused} == {"a", "its"}


def test_a_community_row_stands_beside_signed_ones_without_a_rank_and_pushes_nobody_down():
    real, found = rows(board(*own())), rows(board(strange("evil/best", value=1.0), *own()))
    assert found["evil/best"].rank is None
    assert (found["evil/best"].run_by, found["evil/best"].signed) == ("community", False)
    assert {m: found[m] for m in real} == real
    assert (real["org/merge"].run_by, real["org/merge"].signed, real["org/merge"].rank) == ("bot", True, 1)


@pytest.mark.parametrize(("letter", "suite"), [("e", "trio"), ("f", "trio"), ("f", "other")])
def test_a_community_result_of_a_signed_model_is_left_out_at_any_commit(letter, suite):
    facts = {"created": "2026-01-31T00:00:00+00:00"}
    forged = strange("org/merge", letter, 0.0, created=LATER, facts=facts, suite=suite)
    assert board(forged, *own()).suites == board(*own()).suites


def test_a_community_result_of_a_newer_signed_commit_takes_no_place_on_the_combined_board():
    old = [signed(result("org/a", "1", {suite: 0.5}, suite=suite), SEED, "bot") for suite in ("math", "code")]
    new = signed(result("org/a", "2", {"x": 0.5}, suite="other", created=LATER), SEED, "bot")
    tool = signed(result("org/b", "3", {"tool": 0.5}, suite="tool"), SEED, "bot")
    lie = result("org/a", "2", {"tool": 0.0}, suite="tool", created=LATER)
    assert rows(board(*old, new, tool, lie), "domains") == rows(board(*old, new, tool), "domains")


def test_a_community_result_of_a_signed_commit_takes_no_place_on_the_combined_board():
    one, two = (signed(result("org/a", "1", {suite: 0.5}, suite=suite), SEED, "bot") for suite in ("math", "code"))
    tool = signed(result("org/b", "3", {"tool": 0.5}, suite="tool"), SEED, "bot")
    lie = result("org/a", "1", {"tool": 0.0}, suite="tool", created=LATER)
    assert rows(board(one, two, tool, lie), "domains") == rows(board(one, two, tool), "domains")


def test_a_community_score_of_a_parent_makes_no_signed_merge_look_good():
    base, math, code, merge = own()
    found = rows(board(base, strange("org/math", "c", 0.0), code, merge))
    assert [p.status for p in found["org/merge"].parents] == ["scored", "not scored", "scored"]
    assert found["org/merge"].synergy == ()
    assert [p.status for p in rows(board(base, math, code, merge))["org/merge"].parents] == ["scored"] * 3


def test_a_community_result_gives_a_signed_row_no_flagged_parents():
    real = signed(result("org/a", "1", {"math": 0.5}), SEED, "bot")
    parents = [parent("org/bad", "2", "base"), parent("org/bad", "3")]
    lie = result("org/a", "1", {"math": 0.5}, suite="other", parents=parents)
    built = board(lie, real, flags=[Flag("contaminated", "org/bad")])
    [row] = rows(built).values()
    assert (row.flags, row.rank, row.ancestors) == ((), 1, ())


def test_what_a_community_result_says_of_a_parent_gives_a_signed_merge_no_flag():
    merge, bad = own()[-1], [Flag("contaminated", "org/bad")]
    lie = strange("org/math", "c", parents=[parent("org/bad", "2", "base"), parent("org/bad", "3")])
    found = rows(board(merge, lie, flags=bad))
    assert (found["org/merge"].flags, found["org/merge"].rank) == ((), 1)
    assert f"org/bad@{'2' * 40}" not in found["org/merge"].ancestors
    assert [flag.kind for flag in found["org/math"].flags] == ["contaminated"]
    child = strange("you/child", "4", parents=[parent("org/merge", "e", "base"), parent("you/agent", "5")])
    flagged = rows(board(merge, child, flags=[Flag("withdrawn", "org/math")]))
    assert [flag.inherited_from for flag in flagged["you/child"].flags] == ["org/math"]


def test_a_suite_that_only_the_community_has_leaves_nobody_incomplete_on_the_combined_board():
    real = [
        signed(result("org/a", "1", {"math": 0.5}, suite="math"), SEED, "bot"),
        signed(result("org/a", "1", {"code": 0.5}, suite="code"), SEED, "bot"),
    ]
    forged = result("evil/x", "f", {"search": 1.0}, suite="search")
    mixed = result("org/a", "1", {"search": 0.0}, suite="search")
    real_row = rows(board(*real), "domains")["org/a"]
    assert real_row.rank == 1
    assert rows(board(*real, forged, mixed), "domains") == {"org/a": real_row}
    failed = signed(result("org/a", "1", None, suite="search"), SEED, "bot")  # which is no score of search either
    assert rows(board(*real, forged, failed), "domains") == {"org/a": real_row}


def test_a_new_community_result_of_an_old_version_does_not_bring_it_back():
    old, new = (signed(result("org/a", "1", {"math": 0.5}, suite_version=v), SEED, "bot") for v in "12")
    new = signed(edited(new, created=LATER), SEED, "bot")
    late = strange("evil/x", suite_version="1", created="2026-03-01T00:00:00+00:00")
    [shown] = board(old, new, edited(late, tasks=old.tasks)).suites
    assert (shown.version, shown.versions) == ("2", ("2", "1"))


def test_more_prompts_than_the_signed_results_of_the_suite_are_refused():
    [refused] = board(*own(), strange("evil/x", samples=101)).refused
    assert refused.reason == "101 prompts of math_task, of which the suite has 100"
    assert "evil/x" in rows(board(*own(), strange("evil/x", samples=100)))


def test_a_signature_of_another_row_is_refused():
    one, two = own()[:2]
    replayed = two.model_copy(update={"signature": one.signature})
    [refused] = board(replayed).refused
    assert refused.reason == "its signature is not of this content"
    assert board(replayed).suites == ()


CHANGES: dict[str, Any] = {
    "model": "org/other",
    "sha": "f" * 40,
    "suite": "other",
    "split": "dev",
    "created": LATER,
    "run_by": "somebody",
    "tasks": (task("math_task", "math", 1.0),),
    "facts": {"author": "else"},
    "environment": ENVIRONMENT | {"seed": 1},
}


@pytest.mark.parametrize("field", CHANGES)
def test_an_edited_row_with_its_old_signature_is_refused(field):
    one = signed(result("org/a", "1", {"math": 0.5}), SEED, "bot")
    assert provenance(again(edited(one, **{field: CHANGES[field]})), TRUSTED) == "forged"
    assert provenance(again(edited(one)), TRUSTED) == "signed"


def test_an_edited_version_is_no_file_and_one_in_the_signature_too_is_forged():
    one = own()[0]
    with pytest.raises(ResultError, match="another version of the suite"):
        again(one.model_copy(update={"suite_version": "2"}))
    forged = edited(one.model_copy(update={"signature": None}), suite_version="2").model_dump()
    forged["signature"] = one.signature.model_dump() | {"suite_version": "2"}
    assert provenance(EvaluationResult.model_validate(forged), TRUSTED) == "forged"


def test_a_row_that_another_key_signed_is_the_communitys_whatever_it_says():
    foreign = signed(result("org/merge", "e", {"math": 1.0}, created=LATER), OTHER, "bot")
    assert provenance(foreign, TRUSTED) == "community"
    built = board(foreign, *own())
    assert built.suites == board(*own()).suites
    [alone] = rows(board(foreign)).values()
    assert (alone.run_by, alone.signed) == ("community", False)
    claims = foreign.model_copy(update={"signature": own()[3].signature})  # names the trusted key
    assert provenance(claims, TRUSTED) == "forged"


def test_without_cryptography_signed_rows_are_not_read(tmp_path, monkeypatch, refused):
    folder = written(tmp_path, *own(), keys=keys_file([KEY]))
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = refused("leaderboard", "--results", folder)
    assert "the check of a signature needs packages that are not installed" in said
    assert "hubmerge[eval]" in said


def test_the_command_line_shows_who_ran_a_row_of_a_copied_dataset(tmp_path, done):
    folder = written(tmp_path, *own(), strange("evil/x"), keys=keys_file([KEY]))
    told = [line.split() for line in done("leaderboard", "--results", folder).out.splitlines() if "@" in line]
    assert {words[1].partition("/")[0]: words[-1] for words in told} == {"org": "bot", "evil": "community"}


def test_the_page_has_a_column_of_who_ran_a_row():
    built = board(strange("evil/x"), *own())
    column = columns(built.suites[0])["run_by"]
    assert [column.text(row) for row in built.suites[0].rows] == ["bot"] * 4 + ["community"]


def test_the_table_marks_rows_without_a_signature_where_others_have_one():
    def marked(*results: EvaluationResult) -> dict[str, bool]:
        [suite] = board(*results).suites
        cell = columns(suite)["model"].text
        return {row.model: f">{row.run_by}<" in str(cell(row)) for row in suite.rows}

    assert marked(*own(), strange("evil/x")) == {"evil/x": True, **{r.model: False for r in own()}}
    assert marked(strange("evil/x")) == {"evil/x": False}


@pytest.mark.parametrize("scores", [{"math": 0.5}, None])
def test_every_pair_of_two_results_of_one_run_shows_the_signed_one_also_where_it_failed(scores):
    real = signed(result("org/a", "1", scores), SEED, "bot")
    others = [result("org/a", "1", {"math": 1.0}, created=LATER), signed(result("org/a", "1"), OTHER, "bot")]
    for other, order in itertools.product(others, (1, -1)):
        [row] = rows(board(*[real, other][::order])).values()
        assert (row.run_by, row.overall and row.overall.value) == ("bot", 0.5 if scores else None)


# --- keys ------------------------------------------------------------------------------------------------


def test_published_keys_are_believed_once(tmp_path):
    trust = Trust(pins=tmp_path / "pins" / "x.json")
    assert trust.of(()) == frozenset()  # nothing is published yet, so nothing is kept
    assert trust.of((KEY,)) == TRUSTED
    assert trust.of((public_key(OTHER),)) == TRUSTED
    assert Trust(pins=tmp_path / "pins" / "x.json").of(()) == TRUSTED


def test_keys_of_the_settings_count_and_published_ones_do_not(tmp_path):
    assert Trust(TRUSTED, tmp_path / "x.json").of((public_key(OTHER),)) == TRUSTED
    assert not (tmp_path / "x.json").exists()
    assert named_keys(Settings(trusted_keys=f"{KEY}, {public_key(OTHER)}\n")) == {KEY, public_key(OTHER)}
    with pytest.raises(SettingsError, match="HUBMERGE_TRUSTED_KEYS"):
        named_keys(Settings(trusted_keys=KEY[:-1]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": [1]}',
        b'{"keys": ["' + b"A" * 64 + b'"]}',
        b"[" * 60_000,
        b" " * 70_000,
        json.dumps({"keys": ["0" * 64] * 101}).encode(),
    ],
)
def test_a_file_of_keys_that_is_none_is_refused(data):
    with pytest.raises(ValueError, match="key"):
        parse_keys(data)
    assert parse_keys(keys_file([KEY])) == (KEY,)


def test_keys_that_cannot_be_kept_or_read_are_an_error_of_the_disk(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "x.json").mkdir()
    for pins in (tmp_path / "file" / "x.json", tmp_path / "x.json"):
        with pytest.raises(DiskError, match=str(pins)):
            Trust(pins=pins).of((KEY,))


def test_a_damaged_file_of_pinned_keys_is_named_and_nothing_is_believed_in_its_place(tmp_path):
    pins = tmp_path / "x.json"
    pins.write_text('{"keys": ["torn')
    with pytest.raises(SettingsError, match="the file of trusted keys is damaged"):
        Trust(pins=pins).of(("a" * 64,))
    assert pins.read_text() == '{"keys": ["torn'
