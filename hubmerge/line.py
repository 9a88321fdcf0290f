"""The line, top to bottom: recipe → sources → plan → fetch → probe/stream → sink → card → publish.

`prepare` is everything that can be refused before a weight moves; `merge_to_folder` and `publish_folder` do the
work. Each step can be repeated after a kill and goes on where the last durable thing was written.
"""

from __future__ import annotations

import filecmp
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from hubmerge import __version__
from hubmerge.assemble import companion_files, write_folder
from hubmerge.card import render_card
from hubmerge.errors import DiskError, IncompatibleError, Problem, RecipeError, TargetExistsError
from hubmerge.figures import render_figures
from hubmerge.hub import Hub
from hubmerge.licenses import choose, strictest
from hubmerge.plan import Plan, make_plan
from hubmerge.publish import Published, Target, check_target, publish
from hubmerge.recipe import Recipe, merge_identity
from hubmerge.report import Report, make_report
from hubmerge.sink import MANIFEST, WORK, Journal
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_models
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.statistics import Tally, summarize
from hubmerge.stream import MergeResult, StreamOptions, merge

DISK_MARGIN_BYTES = 64 * 1024 * 1024  # journal, card, database


class Observer(Protocol):
    """Watches the whole line; every method may raise to cancel."""

    def stage(self, name: str) -> None:
        """A stage begins: resolve, plan, fetch, merge, card, publish."""

    def progress(self, stage: str, done: int, total: int, unit: str) -> None: ...

    def statistics(self, values: Mapping[str, Any]) -> None:
        """The statistics counted so far, as `summarize` gives them."""

    def warning(self, message: str) -> None: ...


@dataclass(frozen=True)
class Prepared:
    """A merge that nothing known speaks against."""

    plan: Plan
    license: Mapping[str, str]
    target: Target | None
    identity: str  # over the pinned inputs, the recipe and the target


def prepare(
    recipe: Recipe,
    hub: Hub,
    *,
    target: Target | None = None,
    license_choice: str | None = None,
    allow_local: bool = False,
) -> Prepared:
    """Pin and check everything that headers, cards and the target can tell; raises with every problem."""
    base, agents = open_models(recipe, hub, allow_local=allow_local)
    plan = make_plan(recipe, base, agents)
    _refuse_equal_folders(plan.models)
    decision = choose(strictest([m.license for m in plan.models]), license_choice)
    if target is not None and decision.needs_choice:
        raise RecipeError(
            "the license of the result must be chosen",
            where=target.repo,
            got=decision.reason,
            next_step="Name a license that every parent allows.",
        )
    license = {"id": decision.id, "name": decision.name or "", "link": decision.link or "", "reason": decision.reason}
    identity = merge_identity(plan.recipe, base.ref, tuple(a.ref for a in agents), target.repo if target else "")
    if target is not None:
        check_target(hub, target, identity)
    return Prepared(plan, license, target, identity)


def merge_to_folder(
    prepared: Prepared,
    hub: Hub,
    folder: Path,
    *,
    cache: Path,
    observer: Observer,
    options: StreamOptions | None = None,
    resume: bool = False,
) -> Report:
    """The merge with all that belongs to it, complete in `folder`; its manifest is written last.

    Raises DiskError, NonFiniteError, CorruptError, IncompatibleError; an unfinished folder can be resumed.
    """
    plan = prepared.plan
    if (folder / MANIFEST).is_file():
        return _finished(folder, prepared.identity)
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    check_disk(plan, folder, cache)
    for warning in plan.warnings:
        observer.warning(warning)
    store = LocalOrFetched(hub, cache)
    with TensorReader(plan.models, store) as reader:
        journal = Journal.open(folder, plan, resume=resume)
        _fetch(plan, hub, cache, observer)
        observer.stage("merge")
        merged = merge(plan, reader, journal, folder, options or StreamOptions(), _Bridge(plan, observer))
    _refuse_equal_to_base(plan, merged)
    observer.statistics(summarize(merged.statistics.total, plan.labels))
    observer.stage("card")
    files, notes = companion_files(plan, lambda model, path: _small_file(hub, model, path))
    report = make_report(
        plan,
        merged,
        identity=prepared.identity,
        target=prepared.target.repo if prepared.target else "",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        license=prepared.license,
        environment=_environment(time.monotonic() - started, options or StreamOptions()),
        notes=notes,
    )
    figures = render_figures(report)
    card = render_card(report, figures=figures, endpoint=hub.endpoint).encode()
    write_folder(folder, merged.shards, {**files, **figures, "README.md": card}, report.to_json())
    journal.close(folder)
    return report


def publish_folder(prepared_target: Target, folder: Path, hub: Hub, observer: Observer) -> Published:
    """Publish a complete folder in one commit; repeatable."""
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
        [folder / f.name for f in report.files],
        small,
        lambda done, total: observer.progress("publish", done, total, "B"),
    )


def load_report(folder: Path) -> Report:
    """The report of a complete folder; RecipeError when it is none."""
    try:
        return Report.from_json(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RecipeError(
            "not a finished merge", where=str(folder), expected=MANIFEST, next_step="Finish it with --resume."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError("the manifest is damaged", where=str(folder / MANIFEST), got=str(error)[:200]) from None


def check_disk(plan: Plan, folder: Path, cache: Path) -> None:
    """DiskError when what is still to be fetched and written does not fit."""
    present = sum(p.stat().st_size for root in {folder, cache} if root.is_dir() for p in root.rglob("*") if p.is_file())
    needed = max(0, plan.disk_bytes - present) + DISK_MARGIN_BYTES
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskError(
            "not enough disk",
            where=str(folder),
            expected=f"{needed / 1e9:.2f} GB free",
            got=f"{free / 1e9:.2f} GB",
            next_step="Free some disk or use a larger Space.",
        )


def _fetch(plan: Plan, hub: Hub, cache: Path, observer: Observer) -> None:
    total = plan.download_bytes
    if not total:
        return
    observer.stage("fetch")
    done = 0

    def fetched(_: str, count: int) -> None:
        nonlocal done
        done += count
        observer.progress("fetch", done, total, "B")

    store = LocalOrFetched(hub, cache, fetched)
    for model in plan.models:
        for shard in model.shards:
            store.path(model, shard)


class _Bridge:
    """From the stream's observer to the line's."""

    def __init__(self, plan: Plan, observer: Observer) -> None:
        self._labels = plan.labels
        self._observer = observer

    def progress(self, stage: str, done: int, total: int) -> None:
        self._observer.progress(stage, done, total, "elements")

    def counted(self, total: Tally) -> None:
        self._observer.statistics(summarize(total, self._labels))


def _finished(folder: Path, identity: str) -> Report:
    report = load_report(folder)
    if report.identity != identity:
        raise TargetExistsError(
            "another finished merge is here",
            where=str(folder),
            expected=identity[:12],
            got=report.identity[:12],
            next_step="Choose another folder; nothing was touched.",
        )
    return report


def _refuse_equal_folders(models: Sequence[Model]) -> None:
    """Local folders state no hashes, so equal weights are found by comparing bytes up to the first difference."""
    problems = []
    local = [m for m in models if m.ref.kind == "local"]
    for i, a in enumerate(local):
        for b in local[i + 1 :]:
            if a.shards == b.shards and all(
                a.files[s].size == b.files[s].size
                and filecmp.cmp(Path(a.ref.id).expanduser() / s, Path(b.ref.id).expanduser() / s, shallow=False)
                for s in a.shards
            ):
                what = "an agent is the base itself" if a is models[0] else "the same agent stands twice"
                problems.append(
                    Problem(IncompatibleError.code, what, str(b.ref), "", f"the bytes of {a.ref}", "Remove it.")
                )
    if problems:
        raise IncompatibleError("these models cannot be merged", problems=problems)


def _refuse_equal_to_base(plan: Plan, merged: MergeResult) -> None:
    """The last line of defence: equal values under other bytes show only when they are read."""
    total = merged.statistics.total
    same = [m for k, m in enumerate(plan.agents) if total.elements and total.identical[k] == total.elements]
    if same:
        raise IncompatibleError(
            "these models cannot be merged",
            problems=[
                Problem(IncompatibleError.code, "an agent is the base itself", str(m.ref), next_step="Remove it.")
                for m in same
            ],
        )


def _small_file(hub: Hub, model: Model, path: str) -> bytes | None:
    if path not in model.files:
        return None
    if model.ref.kind == "local":
        return (Path(model.ref.id).expanduser() / path).read_bytes()
    return hub.read_file(model.ref.id, model.ref.sha, path)


def _environment(seconds: float, options: StreamOptions) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "hubmerge": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "huggingface_hub": version("huggingface_hub"),
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.workers,
        "seconds": round(seconds, 3),
        "peak_rss_bytes": peak,
    }
