"""The two tables that a results dataset holds beside its JSON files, as parquet.

`board.parquet` is the board as it is shown: a line per row of every suite. `results.parquet` holds every result file
as it is, with its git blob id, so that ten thousand results are loaded with one request; whoever reads it checks the
ids (results_dataset.py), because the JSON files are the truth.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

from hubmerge.board.export import ROW, row_data
from hubmerge.board.values import Board

_BATCH = 1024  # rows of a table that are in memory twice while it is read


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
