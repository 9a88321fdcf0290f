"""CSV without formulas, JSON with everything, and the command that prints them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from board_helpers import family, result, task

from benchmarks.board import synthetic
from hubmerge.board.export import board_data, board_json, row_data, suite_csv
from hubmerge.board.leaderboard import build_board
from hubmerge.board.parquet import board_parquet
from hubmerge.board.values import Flag
from hubmerge.cli.leaderboard import add_arguments, run_cli
from hubmerge.cli.terminal import Terminal
from hubmerge.evaluation.result import result_path
from hubmerge.output.card_scores import scores_view
from hubmerge.settings import Settings
from workflows.app.board_panels import score_sections

FORMULAS = ("=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\n=1", "  =1", "＝1")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_the_csv_begins_a_formula(text: str) -> None:
    facts = {"author": text, "license": text, "method": text, "method_parameters": {"a": text}}
    suite = build_board([result("org/odd", "9", {text: 0.5, "math": 0.25}, facts=facts)]).suites[0]
    lines = list(csv.reader(io.StringIO(suite_csv(suite))))
    cells = [cell for line in lines for cell in line]
    assert not [c for c in cells if c.lstrip(" ")[:1] in tuple("=+-@\t\r\n＝＋－＠") and c]
    assert f"'{text}" in lines[0]
    assert f"'{text}" in lines[1]


def test_numbers_stay_numbers_and_nothing_stands_for_unknown() -> None:
    [merge] = [r for r in rows_of(suite_csv(build_board(family()).suites[0])) if r["model"] == "org/merge"]
    assert float(merge["instruction_change"]) == pytest.approx(-0.05)
    assert merge["instruction_change"].startswith("-")
    assert (merge["math"], merge["skills_kept"], merge["skills_of_parents"]) == ("0.66", "2", "2")
    assert float(merge["gain_kept"]) == pytest.approx(0.995)
    assert merge["density"] == "0.25"
    [base] = [r for r in rows_of(suite_csv(build_board(family()).suites[0])) if r["model"] == "org/base"]
    assert (base["skills_kept"], base["method"], base["density"]) == ("", "", "")


def test_a_failed_run_has_empty_scores_in_the_csv() -> None:
    [line] = rows_of(suite_csv(build_board([result("org/x", "1"), result("org/y", "2", {"math": 0.1})]).suites[0]))[1:]
    assert (line["status"], line["overall"], line["math"]) == ("failed", "", "")
    assert line["error"].startswith("E_EVALUATION")


def test_the_json_holds_every_row_with_its_scores_and_reasons() -> None:
    board = build_board([*family(), result("<b>", "1", {"math": 1.0})], [Flag("withdrawn", "org/math")])
    data = json.loads(board_json(board))
    assert data == json.loads(json.dumps(board_data(board)))
    [suite] = data["suites"]
    assert {key: suite[key] for key in ("suite", "version", "split", "versions", "domains")} == {
        "suite": "trio",
        "version": "1",
        "split": "test",
        "versions": ["1"],
        "domains": ["math", "instruction", "code"],
    }
    merge = next(r for r in suite["rows"] if r["model"] == "org/merge")
    inherited = {"kind": "withdrawn", "reason": "", "inherited_from": "org/math", "community": False}
    assert merge["flags"] == [inherited]
    assert (merge["skills"]["kept"], merge["skills_rank"]) == (2, None)  # flagged: it has no rank
    assert merge["skills"]["skills"][0]["value"] == pytest.approx(1.15)
    assert [r["reason"] for r in data["refused"]] == ["its model is not a repo's name"]


def test_every_column_of_the_parquet_holds_what_the_json_says() -> None:
    results = [*family(), result("org/failed", "9")]
    board = build_board(results, [Flag("withdrawn", "org/math")])
    lines = pq.read_table(io.BytesIO(board_parquet(board))).to_pylist()
    told = [
        {"suite": s.suite, "suite_version": s.version, "split": s.split, **row_data(row)}
        for s in board.suites
        for row in s.rows
    ]
    assert len(lines) == len(told) > 4
    for line, row in zip(lines, told, strict=True):
        del row["failures"]  # of the joined board, which the table does not have
        row["method_parameters"] = json.dumps(row["method_parameters"], sort_keys=True)
        assert line == row
    for column in ("flags", "domains", "tasks", "parents", "ancestors", "effective_scales"):
        assert any(line[column] for line in lines), column


def arguments(*words: str) -> object:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in [*family(), result("org/base", "b", {"math": 0.5}, suite="other")]:
        path = tmp_path / result_path(one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.to_json())
    return tmp_path


def test_the_command_prints_the_board_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(arguments("--results", str(folder)), Settings(), Terminal(as_json=False)) == 0
    text = capsys.readouterr().out
    assert "org/merge@eeeeeee" in text
    assert "61.0 ± " in text
    assert "2 of 2 skills: 115 · 84 %" in text
    assert (
        run_cli(arguments("--results", str(folder), "--suite", "trio", "--csv"), Settings(), Terminal(as_json=False))
        == 0
    )
    assert next(r["model"] for r in rows_of(capsys.readouterr().out)) == "org/merge"
    assert run_cli(arguments("--results", str(folder), "--json"), Settings(), Terminal(as_json=False)) == 0
    assert [s["suite"] for s in json.loads(capsys.readouterr().out)["suites"]] == ["other", "trio"]


def test_the_command_says_which_suites_there_are(folder: Path) -> None:
    with pytest.raises(Exception, match="other, trio"):
        run_cli(arguments("--results", str(folder), "--csv"), Settings(), Terminal(as_json=False))
    with pytest.raises(Exception, match="no such suite"):
        run_cli(arguments("--results", str(folder), "--suite", "none"), Settings(), Terminal(as_json=False))


def test_what_a_terminal_would_obey_is_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / "bad\x1b[2J.json"
    path.parent.mkdir()
    path.write_text("{")
    run_cli(arguments("--results", str(tmp_path)), Settings(), Terminal(as_json=False))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]], ids=lambda form: " ".join(form) or "table")
def test_the_command_imports_nothing_heavy(tmp_path: Path, form: list[str]) -> None:
    """A table of a folder needs neither arrays nor a client of the Hub."""
    for path, data in synthetic(4):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(data)
    script = (
        "import sys\nfrom hubmerge.cli.main import main\n"
        f"assert main(['leaderboard', '--results', {str(tmp_path)!r}, *{form!r}]) == 0\n"
        "heavy = {'torch', 'numpy', 'gradio', 'pandas', 'pyarrow', 'datasets', 'huggingface_hub', 'httpx2', 'jinja2'}\n"
        "heavy |= {'sqlite3', 'yaml', 'asyncio', 'hubmerge.line', 'localhub'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"  # above it what takes long, on a busy machine
    assert "org0/model-0" in done.stdout


def test_prompts_that_were_cut_are_told_everywhere_and_an_older_result_says_nothing_of_them() -> None:
    cut = result("org/short", "1", [task("a", "math", 0.5, truncated=3), task("b", "math", 0.5)])
    board = build_board([cut])
    row = board.suites[0].rows[0]
    assert [t["truncated"] for t in row_data(row)["tasks"]] == [3, None]
    assert pq.read_table(io.BytesIO(board_parquet(board))).to_pylist()[0]["tasks"][0]["truncated"] == 3
    page = str(score_sections([(board.suites[0], row)], "https://huggingface.co"))
    assert "100, 3 cut" in page
    rows = [
        {"task": t.task, "metric": t.metric, "value": t.value, "samples": t.samples, "truncated": t.truncated}
        for t in cut.tasks
    ]
    view = scores_view(rows, [])
    assert ["3 prompts cut" in line[2][0] for line in view["lines"]] == [True, False]
