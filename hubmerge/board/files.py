"""Reads result files and flags of a results dataset or a folder, and trusts none of their bytes.

    results/MODEL/SHA/SUITE-VERSION-SPLIT.json    one result each, at the path that its content says
    flags.json, versions.json                     the keepers' files (keepers.py)

A file or flag that cannot be believed is left out, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hubmerge.board.committers import UNKNOWN, Committed
from hubmerge.board.keepers import (
    FLAGS,
    KEEPERS_FILES,
    MAX_FLAGS_BYTES,
    VERSIONS,
    Versions,
    parse_flags,
    parse_versions,
)
from hubmerge.board.values import Flag, Refusal
from hubmerge.errors import ResultError
from hubmerge.evaluation.result import MAX_RESULT_BYTES, EvaluationResult, parse_result, result_path

RESULTS = "results/"
MAX_FILES = 200_000


@dataclass(frozen=True)
class ResultFiles:
    """The results and flags that were read, the refusals, and what says whose they are."""

    results: tuple[EvaluationResult, ...]
    flags: tuple[Flag, ...] = ()
    refused: tuple[Refusal, ...] = ()
    versions: Versions = field(default_factory=dict)
    paths: tuple[str, ...] = ()  # of the results' files, in the results' order
    trusted: frozenset[str] = frozenset()  # the public keys that are believed
    committed: Committed = UNKNOWN  # who committed the results that none of them signed


def is_result_path(path: str) -> bool:
    return path.startswith(RESULTS) and path.endswith(".json")


def parse_files(files: Iterable[tuple[str, bytes]], trusted: Collection[str] = ()) -> ResultFiles:
    """Results and flags out of (path, bytes); a path below `results/`, `flags.json` or `versions.json`.

    `trusted`: public keys that are believed, by which the entries of the latter two are judged. Results of a version
    that versions.json calls another one's equal count as that one's.
    """
    results: list[EvaluationResult] = []
    paths: list[str] = []
    flags: tuple[Flag, ...] = ()
    refused: list[Refusal] = []
    versions: Versions = {}
    for path, data in files:
        if path == VERSIONS:
            versions, bad = parse_versions(data, trusted)
            refused += bad
            continue
        if path == FLAGS:
            flags, bad = parse_flags(data, trusted)
            refused += bad
            continue
        try:
            result = parse_result(data, where=path)
        except ResultError as error:
            refused.append(_refusal(path, error.problems[0].got or error.what))
            continue
        if (belongs := result_path(result)) != path:
            refused.append(_refusal(path, f"its content belongs at {belongs[:300]}"))
            continue
        results.append(result)
        paths.append(path)
    return ResultFiles(renamed(results, versions), flags, tuple(refused), versions, tuple(paths), frozenset(trusted))


def renamed(results: Iterable[EvaluationResult], versions: Versions) -> tuple[EvaluationResult, ...]:
    """The results with their suites' versions renamed as the keepers' versions.json says."""

    def now(result: EvaluationResult) -> EvaluationResult:
        version = versions.get((result.suite, result.suite_version))
        return result if version is None else result.model_copy(update={"suite_version": version})

    return tuple(map(now, results))


def _refusal(path: str, reason: str) -> Refusal:
    """A file's, whose name may be no UTF-8."""
    return Refusal(path.encode("utf-8", "replace").decode(), reason)


def read_folder(folder: Path, trusted: Collection[str] = ()) -> ResultFiles:
    """The results and flags below a local folder; links are not followed."""
    refused: list[Refusal] = []
    files: list[tuple[str, bytes]] = []
    if not folder.is_dir():
        raise ResultError("no such folder of results", where=str(folder), next_step="Name a folder or a dataset.")
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink() or not (relative in KEEPERS_FILES or is_result_path(relative)):
                continue
            limit = MAX_FLAGS_BYTES if relative in KEEPERS_FILES else MAX_RESULT_BYTES
            if (size := path.stat().st_size) > limit:
                refused.append(_refusal(relative, f"{size} bytes, at most {limit} are read"))
                continue
            if len(files) >= MAX_FILES:
                refused.append(Refusal(relative, f"more than {MAX_FILES} files"))
                continue
            files.append((relative, path.read_bytes()))
    parsed = parse_files(files, trusted)
    return replace(parsed, refused=(*parsed.refused, *refused))
