"""One digest of the data that a task reads at a commit: equal data give equal digests, whatever the commit.

The files of a split are found as `datasets` finds them: by the task's own `data_files`, else by the patterns of the
subset in the card's `configs`. Where neither says which files a split has, every file counts but documents. So the
digest may change with data that no task reads, but it always changes with data that the task reads. The way in which
rows are parsed counts too: the subset's entry in `configs`, and its features in `dataset_info`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hubmerge.evaluation.tasks.base import Rows
from hubmerge.hub.client import TreeFile

_LEGACY_INFOS = "dataset_infos.json"  # features of datasets from before there were cards with them


def content_digest(rows: Rows, splits: Collection[str], card: Mapping[str, Any], tree: Mapping[str, TreeFile]) -> str:
    """sha256 (hex) over what a task reads of `splits`; `tree` and `card` are those of one commit."""
    entry = {} if rows.data_files else _of_subset(card.get("configs"), rows.subset)
    files = {tree[path] for path in _paths(rows, splits, entry, tree)}
    if not rows.data_files and _LEGACY_INFOS in tree:
        files.add(tree[_LEGACY_INFOS])
    content = {
        "files": sorted([f.path, f.sha256 or f"git {f.oid}"] for f in files),
        "config": entry,
        "features": {} if rows.data_files else _of_subset(card.get("dataset_info"), rows.subset).get("features"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def dataset_digest(card: Mapping[str, Any], tree: Mapping[str, TreeFile]) -> str:
    """sha256 (hex) over all data of a commit, whichever task reads them, and over how its card says to parse them."""
    content = {
        "files": sorted([f.path, f.sha256 or f"git {f.oid}"] for f in tree.values() if not _is_document(f.path)),
        "configs": card.get("configs"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _of_subset(entries: Any, subset: str | None) -> Mapping[str, Any]:
    """The entry of a subset in `configs` or `dataset_info`, which holds a list, or one entry alone."""
    found = [e for e in (entries if isinstance(entries, list) else [entries]) if isinstance(e, dict)]
    named = [e for e in found if e.get("config_name", "default") == (subset or "default")]
    return next(iter(named or (found if len(found) == 1 else ())), {})


def _paths(rows: Rows, splits: Collection[str], entry: Mapping[str, Any], tree: Mapping[str, Any]) -> Sequence[str]:
    if rows.data_files:
        patterns = {split: [rows.data_files[split]] for split in splits}
    else:
        patterns = _patterns(entry.get("data_files"), splits)
        folder = str(entry.get("data_dir") or "").strip("/")
        patterns = {s: [f"{folder}/{p}" if folder else p for p in found] for s, found in patterns.items()}
    matched = {split: [p for p in tree if _matches(p, found)] for split, found in patterns.items()}
    if set(matched) >= set(splits) and all(matched.values()):
        return [path for found in matched.values() for path in found]
    return [path for path in tree if not _is_document(path)]


def _patterns(data_files: Any, splits: Collection[str]) -> dict[str, list[str]]:
    """Split → patterns, of the splits that are named; one pattern or a list of them serves every split."""
    if isinstance(data_files, str):
        data_files = [data_files]
    if isinstance(data_files, dict):
        data_files = [{"split": split, "path": path} for split, path in data_files.items()]
    if not isinstance(data_files, list):
        return {}
    if all(isinstance(p, str) for p in data_files):
        return {split: list(data_files) for split in splits}
    found: dict[str, list[str]] = {}
    for each in data_files:
        if not isinstance(each, dict) or each.get("split") not in splits:
            continue
        path = each.get("path")
        found.setdefault(each["split"], []).extend(map(str, path if isinstance(path, list) else [path]))
    return found


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the path. `*` matches slashes too, since one file too many does no harm."""
    cleaned = (p.removeprefix("./").replace("**/", "*") for p in patterns)
    return any(fnmatchcase(path, p) for p in cleaned)


def _is_document(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return name.startswith((".git", "readme", "license", "citation")) or name.endswith((".md", ".pdf", ".py"))
