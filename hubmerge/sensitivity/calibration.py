"""Calibration data: question and answer pairs, chosen by what they say, in an order of their own.

A pair's key is sha256(seed, prompt, answer). The `max_pairs` smallest keys are taken, in the order of their keys:
which pairs are chosen, and in which order their squared gradients are added, depends neither on the order of the
rows nor on rows that were not chosen. A row that stands twice in the data counts twice.

The texts are used as they stand. Nothing is put between prompt and answer and no chat template is applied, so a
column for an agent that was trained with one holds the rendered prompt.

`data` is a JSONL file when it starts with `.`, `/` or `~`, has more than one `/`, or ends in `.jsonl`; otherwise
the id of a dataset on the Hub, which the datasets library reads. What a text means does not depend on which files
exist.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hubmerge.errors import Problem, SensitivityError, SourceNotFoundError
from hubmerge.hub.names import is_hub_id
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.settings import DEFAULT_ENDPOINT
from hubmerge.sources.dataset_rows import load_split

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_ROWS = 10_000_000
PROBLEMS_AT_MOST = 10  # rows spelled out; one slip tends to repeat on every row


@dataclass(frozen=True)
class Pair:
    """One question and its answer; `row` (from 1) says where it stood, for messages alone."""

    prompt: str
    answer: str
    row: int = field(default=0, compare=False)


def load_pairs(
    spec: CalibrationSpec,
    *,
    allow_local: bool = True,
    endpoint: str = DEFAULT_ENDPOINT,
    token: str | None = None,
    cache: Path | None = None,
    path_of: Callable[[str], Path] = lambda text: Path(text).expanduser(),
) -> tuple[Pair, ...]:
    """The pairs of `spec`; SensitivityError lists the rows that are no pairs, SourceNotFoundError: no such data.

    `cache` is where a Hub dataset is downloaded to (default: the datasets library's own cache). `path_of`: where a file
    of that name lies.
    """
    if spec.is_file:
        if not allow_local:
            raise SourceNotFoundError("local files cannot be used here", where=spec.label, next_step="Give a Hub id.")
        return choose(_file_rows(path_of(spec.data)), spec)
    return choose(enumerate(_hub_rows(spec, endpoint, token, cache), start=1), spec)


def digest(pairs: Iterable[Pair]) -> str:
    """sha256 (hex) over the exact texts of the pairs in their order."""
    total = hashlib.sha256()
    for pair in pairs:
        total.update(_framed(pair.prompt) + _framed(pair.answer))
    return total.hexdigest()


def choose(rows: Iterable[tuple[int, Any]], spec: CalibrationSpec) -> tuple[Pair, ...]:
    """The pairs of `spec` among numbered rows; memory holds `max_pairs` of them."""
    problems: list[Problem] = []
    # a heap with the largest key on top; equal keys are equal pairs, told apart by their row
    chosen: list[tuple[int, int, Pair]] = []
    seen = 0
    for number, row in rows:
        seen += 1
        found = _problem(row, number, spec)
        if found is not None:
            problems.append(found)
            if len(problems) == PROBLEMS_AT_MOST:
                break
            continue
        pair = Pair(row[spec.prompt], row[spec.answer], number)
        entry = (-_key(pair, spec.seed), -number, pair)
        if len(chosen) < spec.max_pairs:
            heapq.heappush(chosen, entry)
        elif entry[:2] > chosen[0][:2]:
            heapq.heapreplace(chosen, entry)
    if problems:
        raise SensitivityError("the calibration data has rows that are no pairs", problems=problems)
    if not seen:
        raise SensitivityError("the calibration data is empty", where=spec.label, expected="at least one pair")
    return tuple(pair for *_, pair in sorted(chosen, key=lambda e: (-e[0], -e[1])))


def _key(pair: Pair, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(_framed(str(seed)) + _framed(pair.prompt) + _framed(pair.answer)).digest())


def _framed(text: str) -> bytes:
    """UTF-8 with its length in front, so that no two sequences of texts run into the same bytes."""
    raw = text.encode("utf-8")
    return len(raw).to_bytes(8, "big") + raw


def _problem(row: Any, number: int, spec: CalibrationSpec) -> Problem | None:
    where = f"row {number} of {spec.label}"
    if not isinstance(row, Mapping):
        return _row_problem("a row that is no table", where, "columns by name", type(row).__name__)
    missing = [name for name in (spec.prompt, spec.answer) if name not in row]
    if missing:
        there = ", ".join(ascii(str(name))[1:-1][:40] for name in list(row)[:10])
        return _row_problem("a column is missing", where, ", ".join(missing), there or "no columns")
    for name in (spec.prompt, spec.answer):
        value = row[name]
        if not isinstance(value, str):
            return _row_problem(f"column {name!r} is no text", where, "text", type(value).__name__)
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return _row_problem(f"column {name!r} is no valid text", where, "UTF-8", "half of a surrogate pair")
    return None


def _row_problem(what: str, where: str, expected: str, got: str) -> Problem:
    return Problem(SensitivityError.code, what, where, expected, got)


def _file_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, parsed line) of a JSONL file; empty lines are passed over."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise SensitivityError(
                        "a row is too long",
                        where=f"row {number} of {path.name}",
                        expected=f"at most {MAX_LINE_BYTES} bytes",
                        got="more",
                    )
                if line.strip():
                    yield number, _parsed(line, f"row {number} of {path.name}")
    except OSError as error:
        raise SourceNotFoundError(
            "the calibration data cannot be read", where=path.name, got=str(error.strerror or error)
        ) from None


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise SensitivityError(
            "a row is not valid JSON", where=where, expected="one JSON object per line", got=ascii(line[:60])[2:-1]
        ) from None


def _hub_rows(spec: CalibrationSpec, endpoint: str, token: str | None, cache: Path | None) -> Sequence[Any]:
    """The rows of a Hub dataset, memory-mapped by the datasets library."""
    if not is_hub_id(spec.data):
        raise SourceNotFoundError(
            "not a dataset id", where=ascii(spec.data)[:120], next_step="A file is written ./data.jsonl."
        )
    import datasets

    if datasets.config.HF_ENDPOINT.rstrip("/") != endpoint.rstrip("/"):
        # the library reads the endpoint once, when it is imported
        raise SourceNotFoundError(
            "the datasets library talks to another Hub",
            where=spec.label,
            expected=endpoint,
            got=datasets.config.HF_ENDPOINT,
            next_step="Set HF_ENDPOINT before hubmerge starts.",
        )
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        rows = load_split(
            spec.data, spec.split, revision=spec.revision, token=token, cache=cache, refused=SensitivityError
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise SourceNotFoundError(
            "the dataset cannot be read",
            where=f"{spec.label}, split {spec.split}",
            got=str(error).strip().split("\n")[0][:200].rstrip("."),
            next_step="Check its id, revision and split, and sign in if it is private.",
        ) from None
    finally:
        if shown:
            datasets.enable_progress_bars()
    if len(rows) > MAX_ROWS:
        raise SensitivityError(
            "the split has too many rows",
            where=spec.label,
            expected=f"at most {MAX_ROWS}",
            got=str(len(rows)),
            next_step=f"Take a part: --split '{spec.split}[:10000]'.",
        )
    columns = list(dict.fromkeys((spec.prompt, spec.answer)))
    missing = [name for name in columns if name not in rows.column_names]
    if missing:
        raise SensitivityError(
            "a column is missing", where=spec.label, expected=", ".join(missing), got=", ".join(rows.column_names)[:200]
        )
    return rows.select_columns(columns)  # type: ignore[no-any-return]  # others may be images, which need decoding
