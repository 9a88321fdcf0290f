"""The board for other programs: JSON with everything, CSV and parquet with a line per row.

docs/leaderboard.md has the schema.

A spreadsheet runs a cell that begins with = + - @ (or a tab or line break before them) as a formula, so foreign text
that does gets a quote in front, in headings too, and so does what follows a semicolon or a line break in it: where the
comma is the decimal sign, these end a cell. Numbers are written as numbers.

As parquet there are the two tables that a results dataset holds beside its JSON files: the board as it is shown, a line
per row of every suite, and every result file as it is, with its git blob id, so that ten thousand results are loaded
with one request; whoever reads it checks the ids (results_dataset.py), because the JSON files are the truth.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from hubmerge.board.values import Board, Row, RowFlag, SuiteBoard
from hubmerge.output.scores import Estimate

SCHEMA = 3
_BATCH = 1024  # rows of a table that are in memory twice while it is read
# where one would begin; not at a number further on in a list
_FORMULA = re.compile(r"(^|;(?! -[\d.e-]+(?:;|$)))(?= *[=+\-@\t\r\n＝＋－＠])", re.MULTILINE)


def _of(kind: Any, *names: str, at: str = "") -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Columns of a kind: a type, a list of one kind, or columns; `at`: where the value has them."""
    return {name: (attrgetter(at + name), kind) for name in names}


def _at(kind: Any, **places: str) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Columns that the value has by another name."""
    return {name: (attrgetter(place), kind) for name, place in places.items()}


_LIMITS = ("value", "low", "high")
_ESTIMATE = _of(float, *_LIMITS)
_ERROR = _of(str, "code", "message")
_DOMAIN = {
    **_of(str, "domain"),
    **_of(float, *_LIMITS, at="score."),
    **_of(int, "rank"),
    **_of(str, "best_parent"),
    **_of(_ESTIMATE, "change"),
    **_of(bool, "synergy", "synergy_certain"),
}
_TASK = {
    **_of(str, "task", "domain", "metric"),
    **_of(float, *_LIMITS, at="score."),
    **_of(int, "samples", "truncated", "few_shot", "task_version"),
    **_of(str, "dataset", "dataset_revision"),
}
_SKILL = {
    **_of(str, "task", "domain", "best_parent"),
    **_of(bool, "kept"),
    **_of(float, *_LIMITS, at="gain_kept."),
}
# a row as JSON and in the table
ROW = {
    **_of(int, "rank"),
    **_of(str, "model", "sha", "status"),
    **_of(_ERROR, "error"),
    **_of([_of(str, "kind", "reason", "inherited_from")], "flags"),
    **_of(None, "failures"),  # by suite; the table has no joined board
    **_of(bool, "superseded"),
    **_of(_ESTIMATE, "overall"),
    **_of([_DOMAIN], "domains"),
    **_of([_TASK], "tasks"),
    **_of({**_of(int, "kept"), **_of(_ESTIMATE, "mean"), **_of([_SKILL], "skills")}, "skills"),
    **_of(int, "skills_rank"),
    **_of(_ESTIMATE, "instruction_change"),
    **_of([{**_of(str, "role", "id", "sha"), **_of(float, "weight"), **_of(str, "status")}], "parents"),
    **_of([str], "ancestors"),
    **_of(str, "author", "license", at="facts."),
    **_of(int, "parameters", "size_bytes", at="facts."),
    **_at(str, committed="facts.created", evaluated="created", dtype="environment.dtype"),
    **_of(str, "narrowed", "run_by"),
    **_of(bool, "signed"),
    **_of(str, "method", "method_parameters", "recipe", at="facts."),
    **_of(int, "agents"),
    **_of(float, "density", "overlap", "conflict", at="facts."),
    **_of([float], "effective_scales", at="facts."),
}


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
    failures = {suite: _told(error, _ERROR) for suite, error in sorted(row.failures.items())}
    return {**_told(row, ROW), "failures": failures, "method_parameters": dict(row.facts.method_parameters)}


def _told(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict) and value is not None:
        return {name: _told(get(value), inner) for name, (get, inner) in kind.items()}
    return [_told(each, kind[0]) for each in value] if isinstance(kind, list) else value


def _named(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


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


# --- parquet --------------------------------------------------------------------------------------------------


def _arrow(kind: Any) -> Any:
    """A kind of column in Arrow's terms."""
    import pyarrow as pa

    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(inner)) for name, (_, inner) in kind.items() if inner is not None])
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    return {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}[kind]


def board_parquet(*boards: Board) -> bytes:
    """The rows of every suite of the boards (one per split); equal boards give equal bytes."""
    import pyarrow as pa

    lines = [
        {
            "suite": suite.suite,
            "suite_version": suite.version,
            "split": suite.split,
            **row_data(row),
            # methods have parameters of different names and types
            "method_parameters": json.dumps(dict(row.facts.method_parameters), sort_keys=True),
        }
        for board in boards
        for suite in board.suites
        for row in suite.rows
    ]
    whose = [(name, pa.string()) for name in ("suite", "suite_version", "split")]
    return _written(lines, pa.schema([*whose, *_arrow(ROW)]))


def results_parquet(files: Mapping[str, tuple[str, bytes]]) -> bytes:
    """`files`: path → (git blob id, content), of which those that are no text are left out."""
    import pyarrow as pa

    schema = pa.schema([("path", pa.string()), ("oid", pa.string()), ("json", pa.string())])
    lines = []
    for path, (oid, data) in sorted(files.items()):
        with suppress(UnicodeDecodeError):
            lines.append({"path": path, "oid": oid, "json": data.decode("utf-8")})
    return _written(lines, schema)


def read_results_parquet(data: bytes, most: int) -> dict[str, tuple[str, bytes]]:
    """Path → (claimed blob id, content); ValueError for anything that is not such a table of at most `most` bytes.

    A kilobyte can say the same megabyte a million times, so values are counted before they are written out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = ["path", "oid", "json"]
    found: dict[str, tuple[str, bytes]] = {}
    try:
        file = pq.ParquetFile(io.BytesIO(data), read_dictionary=names)
        for batch in file.iter_batches(_BATCH, columns=names):
            for column in batch.columns:
                most -= pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
            if most < 0:
                raise ValueError("the table unpacks to more than a table may have")
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            found |= {p: (oid, text.encode()) for p, oid, text in rows if p and oid and text}
    except (pa.ArrowException, OSError, KeyError, AttributeError) as error:
        raise ValueError(str(error)[:200]) from None
    return found


def _written(lines: list[dict[str, Any]], schema: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), out, compression="zstd")
    return out.getvalue()
