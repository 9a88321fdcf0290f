"""Writes, reads and publishes a finished folder, which is one with a manifest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Set
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path
from typing import Any

from hubmerge.engine.progress import Observer
from hubmerge.engine.sink import MANIFEST, WORK
from hubmerge.errors import GatedError, RecipeError, SourceNotFoundError, TargetExistsError
from hubmerge.hub.client import Hub
from hubmerge.machine.disk_errors import writing
from hubmerge.output.card import render_card
from hubmerge.output.publish import Published, Shard, Target, publish
from hubmerge.output.report import Parent, Report
from hubmerge.plan.licenses import choose, strictest
from hubmerge.text.wording import json_file


def write_folder(folder: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Write all files around the finished shards; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, json_file(manifest))


def _replace(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def load_report(folder: Path) -> Report:
    """The report of a complete folder; RecipeError when it is none."""
    try:
        return Report.from_json(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RecipeError(
            "not a finished merge",
            where=str(folder),
            expected=MANIFEST,
            next_step="Name the folder of a merge; an unfinished one goes on when the same command is given again.",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        where, again = str(folder / MANIFEST), "Merge again into a new folder; nothing was touched."
        raise RecipeError("the manifest is damaged", where=where, got=repr(error)[:200], next_step=again) from None


def finished_report(folder: Path, identity: str, *, keep_work: bool = False) -> Report:
    """The report of this merge, after its working folder was removed; TargetExistsError where the folder holds another
    finished merge."""
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
    license_choice: str | None = None,
) -> Published:
    """Publish a complete folder and the files `extra` in one commit; repeatable. The folder stays as it is.

    `uploaded`: shards whose bytes the target holds already. `license_choice` is needed where the merge has none;
    RecipeError where it is missing, or less strict than the parents'.
    """
    report = load_report(folder)
    data = [(str(rows["data"]), bool(rows.get("private"))) for rows in report.sensitivities]
    parents = ((p.id, p.private or _is_private(p, hub)) for p in report.parents)
    prepared_target.refuse_to_expose(chain(data, parents))
    stated = _licensed(report, license_choice)
    observer.stage("publish")
    weights = {f.name for f in report.files}
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and WORK not in p.relative_to(folder).parts]
    small = {str(p.relative_to(folder)): p.read_bytes() for p in paths if str(p.relative_to(folder)) not in weights}
    if stated != report:
        small |= _restated(report, stated, small, hub.endpoint)
    title = f"Merge {len(report.recipe['agents'])} agents with {report.method['title']}"
    shards = [Shard(f.name, f.size, f.sha256, None if f.name in uploaded else folder / f.name) for f in report.files]
    return publish(hub, prepared_target, report.identity, title, shards, {**small, **(extra or {})}, observer)


def _is_private(parent: Parent, hub: Hub) -> bool:
    """Whether a parent is private now: a merge that was made offline could not know it."""
    try:
        return parent.kind == "hub" and hub.repo_state(parent.id).private
    except (SourceNotFoundError, GatedError):  # gone since, of another Hub, or not private
        return False


def _licensed(report: Report, choice: str | None) -> Report:
    """The report with a license under which it may be published."""
    if choice is None and report.license.get("id", "unknown") != "unknown":
        return report
    return replace(report, license=choose(strictest([p.license for p in report.parents]), choice).as_dict())


def _restated(before: Report, after: Report, files: Mapping[str, bytes], endpoint: str) -> dict[str, bytes]:
    """Manifest and card with another license; a user's own text in the card stays."""
    text = files.get("README.md", b"").decode(errors="replace")
    figures = [name for name in files if name.startswith("figures/")]
    old, new = (render_card(r, figures=figures, endpoint=endpoint).splitlines() for r in (before, after))
    for kind, i1, i2, j1, j2 in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind != "equal":
            text = text.replace("\n".join(old[i1:i2]), "\n".join(new[j1:j2]), 1)
    return {MANIFEST: json_file(after.to_json())} | ({"README.md": text.encode()} if "README.md" in files else {})
