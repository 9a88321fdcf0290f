"""The two tables that a results dataset holds beside its JSON files, as parquet.

`board.parquet` is the board as it is shown: a line per row of every suite. `results.parquet` holds every result file
as it is, with its git blob id, so that ten thousand results are loaded with one request; whoever reads it checks the
ids (results_dataset.py), because the JSON files are the truth.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

from hubmerge.board.export import row_data
from hubmerge.board.values import Board

_BATCH = 1024  # rows of a table that are in memory twice while it is read


def _schema() -> Any:
    import pyarrow as pa

    text, real, whole, yes_or_no = pa.string(), pa.float64(), pa.int64(), pa.bool_()

    def of(kind: Any, *names: str) -> list[tuple[str, Any]]:
        return [(name, kind) for name in names]

    limits = of(real, "value", "low", "high")
    estimate = pa.struct(limits)
    domain = [("domain", text), *limits, ("rank", whole), ("best_parent", text), ("change", estimate)]
    domain += of(yes_or_no, "synergy", "synergy_certain")
    task = [*of(text, "task", "domain", "metric"), *limits]
    task += [*of(whole, "samples", "truncated", "few_shot", "task_version"), *of(text, "dataset", "dataset_revision")]
    skill = [*of(text, "task", "domain", "best_parent"), ("kept", yes_or_no), *limits]
    skills = [("kept", whole), ("mean", estimate), ("skills", pa.list_(pa.struct(skill)))]
    flag = of(text, "kind", "reason", "inherited_from")
    parent = [*of(text, "role", "id", "sha"), ("weight", real), ("status", text)]
    return pa.schema(
        [
            *of(text, "suite", "suite_version", "split"),
            ("rank", whole),
            *of(text, "model", "sha", "status"),
            ("error", pa.struct(of(text, "code", "message"))),
            ("flags", pa.list_(pa.struct(flag))),
            ("superseded", yes_or_no),
            ("overall", estimate),
            ("domains", pa.list_(pa.struct(domain))),
            ("tasks", pa.list_(pa.struct(task))),
            ("skills", pa.struct(skills)),
            ("skills_rank", whole),
            ("instruction_change", estimate),
            ("parents", pa.list_(pa.struct(parent))),
            ("ancestors", pa.list_(text)),
            *of(text, "author", "license"),
            *of(whole, "parameters", "size_bytes"),
            *of(text, "committed", "evaluated", "dtype", "narrowed", "run_by"),
            ("signed", yes_or_no),
            ("method", text),
            ("method_parameters", text),  # JSON: methods have parameters of different names and types
            ("recipe", text),
            ("agents", whole),
            *of(real, "density", "overlap", "conflict"),
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
