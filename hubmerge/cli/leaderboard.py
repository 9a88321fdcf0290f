"""`hubmerge leaderboard [--results REPO|DIR] [--suite S] [--json | --csv]`: the board from result files alone."""

import sys
from typing import Any

from hubmerge.board.export import board_json, suite_csv
from hubmerge.board.read import leaderboard
from hubmerge.board.values import Board, Row, SuiteBoard
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import ResultError, printable
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    terminal.stage("results")
    board = leaderboard(
        arguments.results, suite=arguments.suite, suite_version=arguments.suite_version, split=arguments.split
    )
    terminal.close()
    if arguments.csv and len(board.suites) != 1:
        raise ResultError(
            "a CSV file holds one suite",
            expected="--suite",
            got=", ".join(s.suite for s in board.suites) or "no results",
            next_step="Name one of them with --suite.",
        )
    text = board_json(board) if arguments.json else suite_csv(board.suites[0]) if arguments.csv else _text(board)
    sys.stdout.write(text)
    return 0


def _text(board: Board) -> str:
    parts = [_suite_text(suite) for suite in board.suites] or ["There are no results yet."]
    if board.refused:
        parts.append(f"Left out: {len(board.refused)}")
        parts += [f"  {_printable(r.where)}: {_printable(r.reason)}" for r in board.refused[:20]]
    return "\n".join(parts) + "\n"


def _suite_text(suite: SuiteBoard) -> str:
    domains = map(_printable, suite.domains)
    heads = ["rank", "model", "overall", *domains, "skills kept", "synergy", "method", "run by", "flags"]
    rows = [_cells(row, suite) for row in suite.rows]
    widths = [max(len(line[k]) for line in (heads, *rows)) for k in range(len(heads))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in (heads, *rows)]
    title = f"{suite.suite} {suite.version}, {suite.split} split: percent, with the 95% interval"
    return "\n".join((title, *lines, ""))


def _cells(row: Row, suite: SuiteBoard) -> list[str]:
    lines = [row.domain(name) for name in suite.domains]
    overall = row.overall if row.error is None else f"failed: {_printable(row.error.code)}"
    return [
        str(row.rank or "-"),
        f"{row.model}@{row.sha[:7]}" + (f" (in {_printable(row.narrowed)})" if row.narrowed else ""),
        str(overall or "-"),
        *(str(line.score) if line else "-" for line in lines),
        "-" if row.skills is None else _printable(row.skills.text),
        _printable(", ".join(row.synergy) or "-"),
        _printable(row.facts.method or "-"),
        _printable(row.run_by),
        ", ".join(f.kind for f in row.flags),
    ]


def _printable(text: str) -> str:
    """Foreign text without anything that a terminal would obey, and not without end."""
    return printable(text if len(text) <= 160 else f"{text[:159]}…")
