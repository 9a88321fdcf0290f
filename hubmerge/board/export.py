"""The board for other programs: JSON with everything, CSV with a line per row. docs/leaderboard.md has the schema.

A spreadsheet runs a cell that begins with = + - @ (or a tab or line break before them) as a formula, so foreign text
that does gets a quote in front, in headings too. Numbers are written as numbers.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hubmerge.board.values import Board, Row, RowFlag, SuiteBoard
from hubmerge.output.domains import DomainLine
from hubmerge.output.intervals import Estimate
from hubmerge.output.skills import SkillsKept

SCHEMA = 2
_A_PART = 100
_FORMULA = "=+-@\t\r\n＝＋－＠"


def board_json(board: Board) -> str:
    return "".join(json_parts(board))


def json_parts(board: Board) -> Iterator[str]:
    """The JSON of a board in parts of some rows each, so that it need not be in memory as a whole."""
    # without indentation: that would take Python's slow encoder, seconds for ten thousand rows
    yield f'{{"schema_version": {SCHEMA}, "suites": ['
    for place, suite in enumerate(board.suites):
        head: dict[str, Any] = {"suite": suite.suite, "version": suite.version, "split": suite.split}
        head |= {"versions": suite.versions, "domains": suite.domains}
        yield f'{", " if place else ""}{_json(head).removesuffix("}")}, "rows": ['
        for first in range(0, len(suite.rows), _A_PART):
            rows = (_json(row_data(row)) for row in suite.rows[first : first + _A_PART])
            yield (", " if first else "") + ", ".join(rows)
        yield "]}"
    flags = [
        {"kind": f.kind, "model": f.model, "sha": f.sha, "reason": f.reason, "community": f.community}
        for f in board.flags
    ]
    refused = [{"where": r.where, "reason": r.reason} for r in board.refused]
    yield f'], "flags": {_json(flags)}, "refused": {_json(refused)}}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def row_data(row: Row) -> dict[str, Any]:
    """One row; what is not known is null, a failed run has no scores."""
    facts = row.facts
    return {
        "rank": row.rank,
        "model": row.model,
        "sha": row.sha,
        "status": row.status,
        "error": {"code": row.error.code, "message": row.error.message} if row.error else None,
        "flags": [
            {"kind": f.kind, "reason": f.reason, "inherited_from": f.inherited_from, "community": f.community}
            for f in row.flags
        ],
        "failures": {s: {"code": e.code, "message": e.message} for s, e in sorted(row.failures.items())},
        "superseded": row.superseded,
        "overall": _estimate(row.overall),
        "domains": [
            {
                "domain": d.domain,
                **_limits(d.score),
                "rank": d.rank,
                "best_parent": d.best_parent,
                "change": _estimate(d.change),
                "synergy": d.synergy,
                "synergy_certain": d.synergy_certain,
            }
            for d in row.domains
        ],
        "tasks": [
            {
                "task": t.task,
                "domain": t.domain,
                "metric": t.metric,
                **_limits(t.score),
                "samples": t.samples,
                "truncated": t.truncated,
                "few_shot": t.few_shot,
                "task_version": t.task_version,
                "dataset": t.dataset,
                "dataset_revision": t.dataset_revision,
            }
            for t in row.tasks
        ],
        "skills": _skills(row.skills),
        "skills_rank": row.skills_rank,
        "instruction_change": _estimate(row.instruction_change),
        "parents": [
            {"role": p.role, "id": p.id, "sha": p.sha, "weight": p.weight, "status": p.status} for p in row.parents
        ],
        "ancestors": list(row.ancestors),
        "author": facts.author,
        "license": facts.license,
        "parameters": facts.parameters,
        "size_bytes": facts.size_bytes,
        "committed": facts.created,
        "evaluated": row.created,
        "dtype": row.environment.dtype,
        "narrowed": row.narrowed,
        "run_by": row.run_by,
        "signed": row.signed,
        "committed_by": row.committed_by,
        "method": facts.method,
        "method_parameters": dict(facts.method_parameters),
        "recipe": facts.recipe,
        "agents": row.agents,
        "density": facts.density,
        "overlap": facts.overlap,
        "conflict": facts.conflict,
        "effective_scales": list(facts.effective_scales),
    }


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else _limits(estimate)


def _skills(found: SkillsKept | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "kept": found.kept,
        "mean": _estimate(found.mean),
        "skills": [
            {"task": s.task, "domain": s.domain, "best_parent": s.best_parent, "kept": s.kept, **_limits(s.gain_kept)}
            for s in found.skills
        ],
    }


def _limits(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def suite_csv(suite: SuiteBoard) -> str:
    """One suite's rows; three columns per domain, and the skills kept."""
    return "".join(suite_csv_parts(suite, suite.rows))


def suite_csv_parts(suite: SuiteBoard, rows: Sequence[Row]) -> Iterator[str]:
    """The CSV of `rows` of a suite in parts of some rows each."""
    heads = list(_line(rows[0], suite)) if rows else [*_head(suite), "rank", "model", "sha", "status"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(h) for h in heads])
    for first in range(0, len(rows), _A_PART):
        lines = (_line(row, suite) for row in rows[first : first + _A_PART])
        writer.writerows([_cell(line[h]) for h in heads] for line in lines)
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def _line(row: Row, suite: SuiteBoard) -> dict[str, Any]:
    data = row_data(row)

    def as_told(*names: str) -> dict[str, Any]:
        return {name: data[name] for name in names}

    return {
        **_head(suite),
        **as_told("rank", "model", "sha", "status"),
        "error": f"{row.error.code}: {row.error.message}" if row.error else None,
        "flags": "; ".join(map(flag_text, row.flags)),
        **_three("overall", row.overall),
        **_domain_columns(suite, row),
        "skills_rank": row.skills_rank,
        "skills_kept": row.skills.kept if row.skills else None,
        "skills_of_parents": len(row.skills.skills) if row.skills else None,
        **_three("gain_kept", row.skills.mean if row.skills else None),
        "synergy": "; ".join(row.synergy),
        **_three("instruction_change", row.instruction_change),
        "method": data["method"],
        "method_parameters": compact(row.facts.method_parameters),
        **as_told("parameters", "agents", "density", "overlap", "conflict"),
        "effective_scales": "; ".join("" if s is None else f"{s:g}" for s in row.facts.effective_scales),
        **as_told("size_bytes", "license", "author", "committed", "evaluated", "dtype", "narrowed", "run_by"),
        "signed": {True: "yes", False: "no", None: ""}[row.signed],
        "committed_by": row.committed_by,
        "parents": "; ".join(f"{p.id}@{p.sha}" for p in row.parents),
        "ancestors": "; ".join(row.ancestors),
    }


def _head(suite: SuiteBoard) -> dict[str, Any]:
    return {"suite": suite.suite, "suite_version": suite.version, "split": suite.split}


def _domain_columns(suite: SuiteBoard, row: Row) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in suite.domains:
        line: DomainLine | None = row.domain(name)
        columns |= _three(name, line.score if line else None)
    return columns


def _three(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def flag_text(flag: RowFlag) -> str:
    """contaminated (inherited from org/x): why."""
    notes = ["says the community"] if flag.community else []
    notes += [f"inherited from {flag.inherited_from}"] if flag.inherited_from else []
    noted = f" ({', '.join(notes)})" if notes else ""
    return f"{flag.kind}{noted}" + (f": {flag.reason}" if flag.reason else "")


def compact(values: Mapping[str, Any]) -> str:
    """Parameters as one line of JSON; nothing for none."""
    return json.dumps(dict(values), ensure_ascii=False, sort_keys=True) if values else ""


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and value.lstrip(" ")[:1] and value.lstrip(" ")[0] in _FORMULA:
        return f"'{value}"
    return value
