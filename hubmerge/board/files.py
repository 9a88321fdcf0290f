"""Reads result files and flags of a results dataset or a folder, and trusts none of their bytes.

    results/MODEL/SHA/SUITE-VERSION-SPLIT.json    one result each, at the path that its content says
    flags.json                                    {"flags": [{"kind", "model", "sha"?, "reason"?}, …]}
    versions.json                                 {"versions": [{"suite", "version", "same_as"}, …]}

A file or flag that cannot be believed is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from hubmerge.board.values import FLAG_KINDS, Flag, Refusal
from hubmerge.errors import ResultError
from hubmerge.evaluation.result import MAX_RESULT_BYTES, EvaluationResult, parse_result, result_path
from hubmerge.hub.names import is_hub_id

RESULTS = "results/"
FLAGS = "flags.json"
VERSIONS = "versions.json"
MAX_FLAGS_BYTES = 4 * 1024 * 1024
MAX_FLAGS = 5000
MAX_FILES = 200_000
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ResultFiles:
    """The results and flags that were read, and the refusals."""

    results: tuple[EvaluationResult, ...]
    flags: tuple[Flag, ...] = ()
    refused: tuple[Refusal, ...] = ()
    versions: Mapping[tuple[str, str], str] = field(default_factory=dict)  # suite, version → the version that it is
    paths: tuple[str, ...] = ()  # of the results' files, in the results' order


def is_result_path(path: str) -> bool:
    return path.startswith(RESULTS) and path.endswith(".json")


def parse_files(files: Iterable[tuple[str, bytes]]) -> ResultFiles:
    """Results and flags out of (path, bytes); a path below `results/`, `flags.json` or `versions.json`.

    Results of a version that versions.json calls another one's equal count as that one's.
    """
    results: list[EvaluationResult] = []
    paths: list[str] = []
    flags: tuple[Flag, ...] = ()
    refused: list[Refusal] = []
    versions: Mapping[tuple[str, str], str] = {}
    for path, data in files:
        if path == VERSIONS:
            versions, bad = parse_versions(data)
            refused += bad
            continue
        if path == FLAGS:
            flags, bad = parse_flags(data)
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
    return ResultFiles(renamed(results, versions), flags, tuple(refused), versions, tuple(paths))


def renamed(
    results: Iterable[EvaluationResult], versions: Mapping[tuple[str, str], str]
) -> tuple[EvaluationResult, ...]:
    """The results with their suites' versions renamed as the keepers' versions.json says."""

    def now(result: EvaluationResult) -> EvaluationResult:
        version = versions.get((result.suite, result.suite_version))
        return result if version is None else result.model_copy(update={"suite_version": version})

    return tuple(map(now, results))


def parse_versions(data: bytes) -> tuple[Mapping[tuple[str, str], str], list[Refusal]]:
    """The table of versions.json: one step, no chains; a broken entry is refused by its place."""
    entries, refused = _entries(VERSIONS, "versions", data)
    found: dict[tuple[str, str], str] = {}
    for place, entry in enumerate(entries):
        texts = [entry.get(k) for k in ("suite", "version", "same_as")] if isinstance(entry, dict) else []
        if len(texts) == 3 == len(entry) and all(_is_text(t) and 0 < len(t) <= 100 for t in texts):
            suite, version, same_as = map(str, texts)
            found[suite, version] = same_as
        else:
            refused.append(Refusal(f"{VERSIONS}, entry {place + 1}", "expected suite, version and same_as"))
    return found, refused


def _entries(path: str, key: str, data: bytes) -> tuple[list[Any], list[Refusal]]:
    """The list below `key` in a keepers' file."""
    if len(data) > MAX_FLAGS_BYTES:
        return [], [Refusal(path, f"more than {MAX_FLAGS_BYTES} bytes")]
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return [], [Refusal(path, str(error)[:200])]
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_FLAGS:
        return [], [Refusal(path, f'expected {{"{key}": […]}} with at most {MAX_FLAGS} entries')]
    return entries, []


def parse_flags(data: bytes) -> tuple[tuple[Flag, ...], list[Refusal]]:
    """The flags of flags.json; a broken one is refused by its place and takes no other with it."""
    entries, refused = _entries(FLAGS, "flags", data)
    flags = []
    for place, entry in enumerate(entries):
        flag = _flag(entry)
        if isinstance(flag, Flag):
            flags.append(flag)
        else:
            refused.append(Refusal(f"{FLAGS}, entry {place + 1}", flag))
    return tuple(flags), refused


def _flag(entry: Any) -> Flag | str:
    """The flag, or the reason why it is refused."""
    if not isinstance(entry, dict) or set(entry) - {"kind", "model", "sha", "reason"}:
        return "expected kind, model, and optionally sha and reason"
    kind = next((k for k in FLAG_KINDS if k == entry.get("kind")), None)
    model, sha, reason = entry.get("model"), entry.get("sha"), entry.get("reason", "")
    if kind is None:
        return f"expected kind {' or '.join(FLAG_KINDS)}"
    if not isinstance(model, str) or not is_hub_id(model):
        return "its model is not a repo's name"
    if not (sha is None or _is_text(sha)) or not _is_text(reason):
        return "sha and reason are texts"
    return Flag(kind, model, sha, reason[:500])


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is text that UTF-8 can encode; JSON's escapes can also make lone surrogates."""
    return isinstance(value, str) and not _HALF.search(value)


def _refusal(path: str, reason: str) -> Refusal:
    """A file's, whose name may be no UTF-8."""
    return Refusal(path.encode("utf-8", "replace").decode(), reason)


def read_folder(folder: Path) -> ResultFiles:
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
            if path.is_symlink() or not (relative in (FLAGS, VERSIONS) or is_result_path(relative)):
                continue
            limit = MAX_FLAGS_BYTES if relative in (FLAGS, VERSIONS) else MAX_RESULT_BYTES
            if (size := path.stat().st_size) > limit:
                refused.append(_refusal(relative, f"{size} bytes, at most {limit} are read"))
                continue
            if len(files) >= MAX_FILES:
                refused.append(Refusal(relative, f"more than {MAX_FILES} files"))
                continue
            files.append((relative, path.read_bytes()))
    parsed = parse_files(files)
    return replace(parsed, refused=(*parsed.refused, *refused))
