"""The board for other programs: JSON with everything, CSV with a line per row. docs/leaderboard.md has the schema.

A spreadsheet runs a cell that begins with = + - @ (or a tab or line break before them) as a formula, so foreign text
that does gets a quote in front, in headings too, and so does what follows a semicolon or a line break in it: where the
comma is the decimal sign, these end a cell. Numbers are written as numbers.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from hubmerge.board.values import Board, Row, RowFlag, SuiteBoard
from hubmerge.output.scores import Estimate

SCHEMA = 3
_OF_TASKS = ("samples", "truncated", "few_shot", "task_version", "dataset", "dataset_revision")
# where one would begin; not at a number further on in a list
_FORMULA = re.compile(r"(^|;(?! -[\d.e-]+(?:;|$)))(?= *[=+\-@\t\r\n＝＋－＠])", re.MULTILINE)


def board_json(board: Board) -> str:
    data = {
        "schema_version": SCHEMA,
        "suites": [
            {
                **_named(suite, "suite", "version", "split", "versions", "domains"),
                "rows": [row_data(row) for row in suite.rows],
            }
            for suite in board.suites
        ],
        "flags": [_named(flag, "kind", "model", "sha", "reason") for flag in board.flags],
        "refused": [_named(refusal, "where", "reason") for refusal in board.refused],
    }
    # without indentation: that would take Python's slow encoder, seconds for ten thousand rows
    return json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"


def row_data(row: Row) -> dict[str, Any]:
    """One row; what is not known is null, a failed run has no scores."""
    facts = row.facts
    return {
        **_named(row, "rank", "model", "sha", "status"),
        "error": _named(row.error, "code", "message") if row.error else None,
        "flags": [_named(flag, "kind", "reason", "inherited_from") for flag in row.flags],
        "failures": {suite: _named(error, "code", "message") for suite, error in sorted(row.failures.items())},
        "superseded": row.superseded,
        "overall": _estimate(row.overall),
        "domains": [
            {
                "domain": d.domain,
                **_limits(d.score),
                **_named(d, "rank", "best_parent"),
                "change": _estimate(d.change),
                **_named(d, "synergy", "synergy_certain"),
            }
            for d in row.domains
        ],
        "tasks": [
            {**_named(task, "task", "domain", "metric"), **_limits(task.score), **_named(task, *_OF_TASKS)}
            for task in row.tasks
        ],
        "skills": row.skills
        and {
            "kept": row.skills.kept,
            "mean": _estimate(row.skills.mean),
            "skills": [
                {**_named(s, "task", "domain", "best_parent", "kept"), **_limits(s.gain_kept)}
                for s in row.skills.skills
            ],
        },
        "skills_rank": row.skills_rank,
        "instruction_change": _estimate(row.instruction_change),
        "parents": [_named(parent, "role", "id", "sha", "weight", "status") for parent in row.parents],
        "ancestors": list(row.ancestors),
        **_named(facts, "author", "license", "parameters", "size_bytes"),
        "committed": facts.created,
        "evaluated": row.created,
        "dtype": row.environment.dtype,
        **_named(row, "narrowed", "run_by", "signed"),
        "method": facts.method,
        "method_parameters": dict(facts.method_parameters),
        "recipe": facts.recipe,
        "agents": row.agents,
        **_named(facts, "density", "overlap", "conflict"),
        "effective_scales": list(facts.effective_scales),
    }


def _named(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _limits(estimate: Estimate) -> dict[str, float]:
    return _named(estimate, "value", "low", "high")


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else _limits(estimate)


def suite_csv(suite: SuiteBoard, rows: Sequence[Row] | None = None) -> str:
    """`rows` of a suite, by default all; three columns per domain, and the skills kept."""
    lines = [_line(row, suite) for row in (suite.rows if rows is None else rows)]
    heads = list(lines[0]) if lines else [*_head(suite), "rank", "model", "sha", "status"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(h) for h in heads])
    writer.writerows([_cell(line[h]) for h in heads] for line in lines)
    return out.getvalue()


def _line(row: Row, suite: SuiteBoard) -> dict[str, Any]:
    data, skills = row_data(row), row.skills
    parameters = data["method_parameters"]

    def as_told(*names: str) -> dict[str, Any]:
        return {name: data[name] for name in names}

    first = {
        **_head(suite),
        **as_told("rank", "model", "sha", "status"),
        "error": f"{row.error.code}: {row.error.message}" if row.error else None,
        "flags": "; ".join(map(flag_text, row.flags)),
        **_three("overall", row.overall),
    }
    last = {
        "skills_rank": row.skills_rank,
        "skills_kept": skills.kept if skills else None,
        "skills_of_parents": len(skills.skills) if skills else None,
        **_three("gain_kept", skills.mean if skills else None),
        "synergy": "; ".join(row.synergy),
        **_three("instruction_change", row.instruction_change),
        "method": data["method"],
        "method_parameters": json.dumps(parameters, ensure_ascii=False, sort_keys=True) if parameters else "",
        **as_told("parameters", "agents", "density", "overlap", "conflict"),
        "effective_scales": "; ".join("" if s is None else str(s) for s in row.facts.effective_scales),
        **as_told("size_bytes", "license", "author", "committed", "evaluated", "dtype", "narrowed", "run_by"),
        "signed": "yes" if row.signed else "no",
        "parents": "; ".join(f"{p.id}@{p.sha}" for p in row.parents),
        "ancestors": "; ".join(row.ancestors),
    }
    domains: dict[str, float | None] = {}
    for name in suite.domains:
        line = row.domain(name)
        columns = _three(name, line.score if line else None)
        while any(column in told for column in columns for told in (first, domains, last)):
            columns = {f"score_{column}": value for column, value in columns.items()}
        domains |= columns
    return first | domains | last


def _head(suite: SuiteBoard) -> dict[str, Any]:
    return {"suite": suite.suite, "suite_version": suite.version, "split": suite.split}


def _three(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    columns = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
    return {column: getattr(estimate, field, None) for column, field in columns.items()}


def flag_text(flag: RowFlag) -> str:
    """contaminated (inherited from org/x): why."""
    noted = f" (inherited from {flag.inherited_from})" if flag.inherited_from else ""
    return f"{flag.kind}{noted}" + (f": {flag.reason}" if flag.reason else "")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
