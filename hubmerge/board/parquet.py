"""The two tables that a results dataset holds beside its JSON files, as parquet.

`board.parquet` is the board as it is shown: a line per row of every suite. `results.parquet` holds every result file
as it is, with its git blob id, so that ten thousand results are loaded with one request; whoever reads it checks the
ids (results_dataset.py), because the JSON files are the truth.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from hubmerge.board.export import row_data
from hubmerge.board.values import Board


def _schema() -> Any:
    import pyarrow as pa

    text, real, whole = pa.string(), pa.float64(), pa.int64()
    estimate = pa.struct([("value", real), ("low", real), ("high", real)])
    domain = [("domain", text), ("value", real), ("low", real), ("high", real), ("rank", whole)]
    domain += [("best_parent", text), ("change", estimate)]
    domain += [("synergy", pa.bool_()), ("synergy_certain", pa.bool_())]
    task = [("task", text), ("domain", text), ("metric", text), ("value", real), ("low", real), ("high", real)]
    task += [("samples", whole), ("truncated", whole), ("few_shot", whole), ("task_version", whole)]
    task += [("dataset", text), ("dataset_revision", text)]
    skill = [("task", text), ("domain", text), ("best_parent", text), ("kept", pa.bool_())]
    skill += [("value", real), ("low", real), ("high", real)]
    flag = [("kind", text), ("reason", text), ("inherited_from", text), ("community", pa.bool_())]
    parent = [("role", text), ("id", text), ("sha", text), ("weight", real), ("status", text)]
    return pa.schema(
        [
            ("suite", text),
            ("suite_version", text),
            ("split", text),
            ("rank", whole),
            ("model", text),
            ("sha", text),
            ("status", text),
            ("error", pa.struct([("code", text), ("message", text)])),
            ("flags", pa.list_(pa.struct(flag))),
            ("superseded", pa.bool_()),
            ("overall", estimate),
            ("domains", pa.list_(pa.struct(domain))),
            ("tasks", pa.list_(pa.struct(task))),
            ("skills", pa.struct([("kept", whole), ("mean", estimate), ("skills", pa.list_(pa.struct(skill)))])),
            ("skills_rank", whole),
            ("instruction_change", estimate),
            ("parents", pa.list_(pa.struct(parent))),
            ("ancestors", pa.list_(text)),
            ("author", text),
            ("license", text),
            ("parameters", whole),
            ("size_bytes", whole),
            ("committed", text),
            ("evaluated", text),
            ("dtype", text),
            ("narrowed", text),
            ("run_by", text),
            ("signed", pa.bool_()),
            ("committed_by", text),
            ("method", text),
            ("method_parameters", text),  # JSON: methods have parameters of different names and types
            ("recipe", text),
            ("agents", whole),
            ("density", real),
            ("overlap", real),
            ("conflict", real),
            ("effective_scales", pa.list_(real)),
        ]
    )


def board_parquet(*boards: Board) -> bytes:
    """The rows of every suite of the boards (one per split); equal boards give equal bytes."""
    lines = [
        {
            "suite": suite.suite,
            "suite_version": suite.version,
            "split": suite.split,
            **row_data(row),
            "method_parameters": json.dumps(dict(row.facts.method_parameters), sort_keys=True),
        }
        for board in boards
        for suite in board.suites
        for row in suite.rows
    ]
    return _written(lines, _schema())


def results_parquet(files: Mapping[str, tuple[str, bytes]]) -> bytes:
    """`files`: path → (git blob id, content)."""
    import pyarrow as pa

    schema = pa.schema([("path", pa.string()), ("oid", pa.string()), ("json", pa.string())])
    lines = [{"path": p, "oid": oid, "json": data.decode("utf-8")} for p, (oid, data) in sorted(files.items())]
    return _written(lines, schema)


def read_results_parquet(data: bytes) -> dict[str, tuple[str, bytes]]:
    """Path → (claimed blob id, content); ValueError for anything that is not such a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data), columns=["path", "oid", "json"])
        columns = [table.column(name).cast(pa.string()).to_pylist() for name in ("path", "oid", "json")]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(str(error)[:200]) from None
    return {p: (oid, text.encode()) for p, oid, text in zip(*columns, strict=True) if p and oid and text}


def _written(lines: list[dict[str, Any]], schema: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(lines, schema=schema), out, compression="zstd")
    return out.getvalue()
