"""A finished folder, which has its manifest: what it holds, whose it is, and its way to the Hub in one commit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Set
from pathlib import Path

from hubmerge.errors import RecipeError, TargetExistsError
from hubmerge.hub import Hub
from hubmerge.hub_writing import LargeFile
from hubmerge.progress import Observer
from hubmerge.publish import Published, Target, Uploaded, publish
from hubmerge.report import Report
from hubmerge.sink import MANIFEST, WORK


def load_report(folder: Path) -> Report:
    """The report of a complete folder; RecipeError when it is none."""
    try:
        return Report.from_json(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RecipeError(
            "not a finished merge", where=str(folder), expected=MANIFEST, next_step="Finish it with --resume."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        where, again = str(folder / MANIFEST), "Merge again into a new folder; nothing was touched."
        raise RecipeError("the manifest is damaged", where=where, got=repr(error)[:200], next_step=again) from None


def finished_report(folder: Path, identity: str, *, keep_work: bool = False) -> Report:
    """The report of this very merge, whose working folder goes; TargetExistsError where another one is finished."""
    report = load_report(folder)
    if report.identity != identity:
        raise TargetExistsError(
            "another finished merge is here",
            where=str(folder),
            expected=identity[:12],
            got=report.identity[:12],
            next_step="Choose another folder; nothing was touched.",
        )
    if not keep_work:
        shutil.rmtree(folder / WORK, ignore_errors=True)  # left by a kill between the manifest and the end
    return report


def publish_folder(
    prepared_target: Target,
    folder: Path,
    hub: Hub,
    observer: Observer,
    extra: Mapping[str, bytes] | None = None,
    uploaded: Set[str] = frozenset(),
    copies: Mapping[str, LargeFile] | None = None,
) -> Published:
    """Publish a complete folder and the files `extra` in one commit; repeatable.

    `uploaded`: shards whose bytes the target holds already. `copies`: see `publish.large_files`.
    """
    report = load_report(folder)
    observer.stage("publish")
    weights = {f.name for f in report.files}
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and WORK not in p.relative_to(folder).parts]
    small = {str(p.relative_to(folder)): p.read_bytes() for p in paths if str(p.relative_to(folder)) not in weights}
    title = f"Merge {len(report.recipe['agents'])} agents with {report.method['title']}"
    return publish(
        hub,
        prepared_target,
        report.identity,
        title,
        [Uploaded(f.name, f.size, f.sha256) if f.name in uploaded else folder / f.name for f in report.files],
        {**small, **(extra or {})},
        lambda done, total: observer.progress("publish", done, total, "B"),
        copies,
        {f.name: f.sha256 for f in report.files},
    )
