"""CSV without formulas, JSON with everything, and the command that prints them."""

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from board_helpers import ENVIRONMENT, TRUSTED, family, own, result, task, written

from hubmerge.board.export import board_json, board_parquet, row_data, suite_csv
from hubmerge.board.files import parse_files
from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Flag
from hubmerge.output.card_scores import scores_view
from workflows.app.model_panels import score_sections

FORMULAS = ("=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1", "  =1", "＝1", "mit;=1+1;", "mit; -A1")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_the_csv_begins_a_formula(text):
    facts = {"author": text, "license": text, "method": text, "method_parameters": {"a": text}}
    suite = build_board([result("org/odd", "9", {text: 0.5, "math": 0.25}, facts=facts)]).suites[0]
    lines = list(csv.reader(io.StringIO(suite_csv(suite))))
    cells = [part for line in lines for cell in line for part in re.split("[;\n]", cell)]
    assert not [c for c in cells if c.lstrip(" ")[:1] in tuple("=+-@\t\r\n＝＋－＠") and c]
    for line in lines:
        assert text in [cell.replace("'", "") for cell in line]


def test_the_reason_of_a_flag_ends_no_line_of_the_csv():
    entry = {"kind": "contaminated", "model": "org/code", "reason": "leaked\r=1+1\n\u202e\x1b[2J, as told"}
    flags = parse_files([("flags.json", json.dumps({"flags": [entry]}).encode())]).flags
    lines = list(csv.reader(io.StringIO(suite_csv(build_board(family(), flags).suites[0]), newline="")))
    assert [line[0] for line in lines] == ["suite", *["trio"] * 4]
    assert "contaminated: leaked =1+1\n  [2J, as told" in lines[-1]
    assert [flag.reason for flag in flags] == ["leaked =1+1\n  [2J, as told"]


def test_numbers_stay_numbers_and_nothing_stands_for_unknown():
    *others, last = family()
    facts = last.facts.model_copy(update={"effective_scales": (1.02, -1.1000001)})
    board = build_board([*others, last.model_copy(update={"facts": facts})])
    rows = {r["model"]: r for r in rows_of(suite_csv(board.suites[0]))}
    merge, base = rows["org/merge"], rows["org/base"]
    assert float(merge["instruction_change"]) == pytest.approx(-0.05)
    assert merge["effective_scales"] == "1.02; -1.1000001"
    assert merge["instruction_change"].startswith("-")
    assert (merge["math"], merge["skills_kept"], merge["skills_of_parents"]) == ("0.66", "2", "2")
    assert float(merge["gain_kept"]) == pytest.approx(0.995)
    assert merge["density"] == "0.25"
    assert (base["skills_kept"], base["method"], base["density"]) == ("", "", "")


def test_a_domain_that_is_called_like_a_column_hides_none():
    scores = {"model": 0.25, "agents": 0.5, "overall_low": 0.75, "score_model": 0.5}
    own = {"math": 0.5, "math_low": 0.5}
    [row] = rows_of(suite_csv(build_board([result("org/odd", "9", scores | own)]).suites[0]))
    assert (row["model"], row["agents"], row["overall"]) == ("org/odd", "0", "0.5")
    assert {name: float(row[f"score_{name}"]) for name in scores} == scores
    assert float(row["math_low"]) < float(row["math"]) == float(row["score_math_low"])


def test_json_parquet_and_csv_say_the_same_of_every_row():
    ran, words = {"dtype": "bfloat16", "stored_dtype": "float32"}, "bfloat16, stored as float32"
    tasks = [task(f"{domain}_task", domain, 0.5, truncated=3) for domain in ("math", "instruction", "code")]
    strange = result("evil/x", "f", tasks, environment=ENVIRONMENT | ran, facts={"recipe": "method: ram"})
    flags = [Flag("withdrawn", "org/failed"), Flag("contaminated", "org/code", reason="leaked")]
    results = [*own("carol"), strange, result("org/failed", "9"), result("<b>", "1", {"math": 1.0})]
    board = build_board(results, flags, trusted=TRUSTED)
    data = json.loads(board_json(board))
    assert {f["model"]: f["kind"] for f in data["flags"]} == {"org/failed": "withdrawn", "org/code": "contaminated"}
    [suite] = data["suites"]
    named = {"suite": "trio", "version": "1", "split": "test", "versions": ["1"]}
    assert suite == {**named, "domains": ["math", "instruction", "code"], "rows": suite["rows"]}
    told = [{"suite": "trio", "suite_version": "1", "split": "test", **row} for row in suite["rows"]]
    lines = pq.read_table(io.BytesIO(board_parquet(board))).to_pylist()
    assert len(lines) == len(told) == len(results) - 1
    assert [r["reason"] for r in data["refused"]] == ["its model is not a repo's name"]
    for line, row in zip(lines, told, strict=True):
        del row["failures"]  # of the joined board, which the table does not have
        row["method_parameters"] = json.dumps(row["method_parameters"], sort_keys=True)
        assert line == row
    assert {column for column in lines[0] if not any(line[column] for line in lines)} == {"superseded", "skills_rank"}
    rows = {row["model"]: row for row in told}
    assert {m: (r["run_by"], r["signed"]) for m, r in rows.items()} == {
        **{r.model: ("carol", True) for r in family()},
        "evil/x": ("community", False),
        "org/failed": ("community", False),
    }
    merge = rows["org/merge"]
    assert merge["flags"] == [{"kind": "contaminated", "reason": "leaked", "inherited_from": "org/code"}]
    assert (merge["skills"]["kept"], merge["skills_rank"]) == (2, None)  # flagged: it has no rank
    assert merge["skills"]["skills"][0]["value"] == pytest.approx(1.15)
    assert (rows["evil/x"]["dtype"], rows["evil/x"]["narrowed"]) == ("bfloat16", words)
    assert [t["truncated"] for t in rows["evil/x"]["tasks"]] == [3, 3, 3]
    cells = {line["model"]: line for line in rows_of(suite_csv(board.suites[0]))}
    columns = ("run_by", "signed", "dtype", "narrowed")
    assert [cells["evil/x"][c] for c in columns] == ["community", "no", "bfloat16", words]
    assert [cells["org/base"][c] for c in columns] == ["carol", "yes", "float32", ""]
    assert cells["org/code"]["flags"] == "contaminated: leaked"
    assert cells["org/merge"]["flags"] == "contaminated (inherited from org/code): leaked"
    assert [cells["org/failed"][c] for c in ("status", "overall", "math")] == ["failed", "", ""]
    assert cells["org/failed"]["error"].startswith("E_EVALUATION")


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    other = result("org/base", "b", {"math": 0.5}, suite="other")
    return "leaderboard", "--results", written(tmp_path, *family(), other)


def test_the_command_prints_the_board_of_a_folder(command, done):
    text = done(*command).out
    assert "org/merge@eeeeeee" in text
    assert "61.0 (55.5 to 66.1)" in text
    assert "2 of 2 skills: 115% of the gain in math, 84% in code" in text
    assert next(r["model"] for r in rows_of(done(*command, "--suite", "trio", "--csv").out)) == "org/merge"
    assert [s["suite"] for s in json.loads(done(*command, "--json").out)["suites"]] == ["other", "trio"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--csv"], "got other, trio"),
        (["--suite", "none"], "no such suite"),
        (["--suite", "trio", "--split", "dev"], "of the dev split"),
        (["--suite", "trio", "--suite-version", "9"], "expected 1, got 9"),
        (["--suite-version", "1"], "Name it with --suite"),
    ],
)
def test_the_command_says_which_suites_and_versions_there_are(command, refused, words, said):
    assert said in refused(*command, *words)


def test_without_a_dataset_a_folder_of_the_data_is_read_and_no_repo_that_is_called_so(
    tmp_path, monkeypatch, refused, done
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUBMERGE_DATA", "data")
    assert f"no such folder of results in {tmp_path}/data/results-dataset" in refused("leaderboard")
    written(tmp_path / "data" / "results-dataset", *family())
    done("leaderboard")


def test_what_a_terminal_would_obey_is_printed_as_text(tmp_path, done):
    path = tmp_path / "results" / "bad\x1b[2J.json"
    path.parent.mkdir()
    path.write_text("{")
    out = done("leaderboard", "--results", written(tmp_path, result("org/a", "b", {"domain\x9b2J": 0.5}))).out
    assert not {"\x1b", "\x9b"} & {*out}
    assert "domain\\x9b2J" in out


def test_prompts_that_were_cut_are_told_on_page_and_card():
    cut = result("org/short", "1", [task("a", "math", 0.5, truncated=3), task("b", "math", 0.5)])
    [suite] = build_board([cut]).suites
    assert [t["truncated"] for t in row_data(suite.rows[0])["tasks"]] == [3, None]
    assert str(score_sections([(suite, suite.rows[0])], "https://huggingface.co")).count("100, 3 cut") == 1
    lines = scores_view([t.model_dump() for t in cut.tasks], [])["lines"]
    assert ["3 prompts cut" in line[2][0] for line in lines] == [True, False]
