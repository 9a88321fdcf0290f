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
from hubmerge.methods import get_method
from hubmerge.plan import Plan, make_plan
from hubmerge.publish import Published, Target, check_target, publish
from hubmerge.recipe import Recipe, merge_identity
from hubmerge.report import Report, make_report
from hubmerge.sensitivity.kept import KeptSensitivities
from hubmerge.sensitivity.of_plan import sensitivities_of
from hubmerge.sink import MANIFEST, WORK, Journal
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_models
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.statistics import Tally, summarize
from hubmerge.stream import MergeResult, StreamOptions, Variant, layout_of, merge_variants

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
    allow_local: bool = False  # whether paths of this machine may be read


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
    return _checked(recipe, base, agents, hub, target, license_choice, allow_local)


def prepare_variants(recipes: Sequence[Recipe], hub: Hub, *, allow_local: bool = False) -> list[Prepared]:
    """`prepare` for several recipes over the same models, which are opened once."""
    base, agents = open_models(recipes[0], hub, allow_local=allow_local)
    return [_checked(recipe, base, agents, hub, None, None, allow_local) for recipe in recipes]


def _checked(
    recipe: Recipe,
    base: Model,
    agents: tuple[Model, ...],
    hub: Hub,
    target: Target | None,
    license_choice: str | None,
    allow_local: bool,
) -> Prepared:
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
    identity = merge_identity(plan.recipe, base.ref, tuple(a.ref for a in agents), target.repo if target else "")
    if target is not None:
        check_target(hub, target, identity)
    return Prepared(plan, decision.as_dict(), target, identity, allow_local)


def merge_to_folder(
    prepared: Prepared,
    hub: Hub,
    folder: Path,
    *,
    cache: Path,
    observer: Observer,
    options: StreamOptions | None = None,
    resume: bool = False,
    sensitivities: Path | None = None,
) -> Report:
    """The merge with all that belongs to it, complete in `folder`; its manifest is written last.

    Sensitivities that had to be computed are kept in the folder `sensitivities` for the next merge.

    Raises DiskError, NonFiniteError, CorruptError, IncompatibleError; an unfinished folder can be resumed.
    """
    [report] = merge_to_folders(
        [(prepared, folder)],
        hub,
        cache=cache,
        observer=observer,
        options=options,
        resume=resume,
        sensitivities=sensitivities,
    )
    return report


def merge_to_folders(
    merges: Sequence[tuple[Prepared, Path]],
    hub: Hub,
    *,
    cache: Path,
    observer: Observer,
    options: StreamOptions | None = None,
    resume: bool = False,
    sensitivities: Path | None = None,
) -> list[Report]:
    """Merges of the same models, each into a folder of its own; inputs are read once for all that fit together."""
    finished = {folder: _finished(folder, p.identity) for p, folder in merges if (folder / MANIFEST).is_file()}
    left = [(p, folder) for p, folder in merges if folder not in finished]
    for prepared, folder in left:
        folder.mkdir(parents=True, exist_ok=True)
        check_disk(prepared.plan, folder, cache)
        for warning in prepared.plan.warnings:
            observer.warning(warning)
    groups: dict[object, list[tuple[Prepared, Path]]] = {}
    for prepared, folder in left:
        groups.setdefault(layout_of(prepared.plan), []).append((prepared, folder))
    for group in groups.values():
        finished |= _merge_group(
            group,
            hub,
            cache,
            observer,
            options or StreamOptions(),
            resume=resume,
            local=left[0][0].allow_local,
            kept=KeptSensitivities(sensitivities),
        )
    return [finished[folder] for _, folder in merges]


def _merge_group(
    group: Sequence[tuple[Prepared, Path]],
    hub: Hub,
    cache: Path,
    observer: Observer,
    options: StreamOptions,
    *,
    resume: bool,
    local: bool,
    kept: KeptSensitivities,
) -> dict[Path, Report]:
    started = time.monotonic()
    plan = group[0][0].plan
    weighing = [p.plan for p, _ in group if "sensitivity" in get_method(p.plan.recipe.method).extras]
    files = sensitivities_of(weighing[0], hub, cache / "sensitivity", observer, local, kept) if weighing else ()
    measured = tuple(file.as_model() for file in files)
    with TensorReader((*plan.models, *measured), LocalOrFetched(hub, cache)) as reader:
        variants = [
            Variant(p.plan, Journal.open(folder, p.plan, resume=resume), folder, tuple(m.tensors for m in measured))
            for p, folder in group
        ]
        _fetch(plan, hub, cache, observer)
        observer.stage("merge")
        results = merge_variants(variants, reader, options, _Bridge(plan, observer))
    _refuse_equal_to_base(plan, results[0])
    observer.statistics(summarize(results[0].statistics.total, plan.labels))
    observer.stage("card")
    seconds = time.monotonic() - started
    return {
        variant.folder: _complete(prepared, variant, merged, hub, _environment(seconds, options))
        for (prepared, _), variant, merged in zip(group, variants, results, strict=True)
    }


def _complete(
    prepared: Prepared, variant: Variant, merged: MergeResult, hub: Hub, environment: Mapping[str, Any]
) -> Report:
    """Everything around the finished shards of one folder, the manifest last."""
    plan = prepared.plan
    files, notes = companion_files(plan, lambda model, path: _small_file(hub, model, path))
    report = make_report(
        plan,
        merged,
        identity=prepared.identity,
        target=prepared.target.repo if prepared.target else "",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        license=prepared.license,
        environment=environment,
        notes=notes,
    )
    figures = render_figures(report)
    card = render_card(report, figures=figures, endpoint=hub.endpoint).encode()
    write_folder(variant.folder, merged.shards, {**files, **figures, "README.md": card}, report.to_json())
    variant.journal.close(variant.folder)
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
    shutil.rmtree(folder / WORK, ignore_errors=True)  # left by a kill between the manifest and the end
    return report


def _refuse_equal_folders(models: Sequence[Model]) -> None:
    """Local folders state no hashes, so equal weights are found by comparing bytes up to the first difference."""
    problems = []
    local = [m for m in models if m.ref.kind == "local"]
    for i, a in enumerate(local):
        for b in local[i + 1 :]:
            if (
                a.shards == b.shards
                and a.adapter == b.adapter
                and all(
                    a.files[s].size == b.files[s].size
                    and filecmp.cmp(Path(a.ref.id).expanduser() / s, Path(b.ref.id).expanduser() / s, shallow=False)
                    for s in a.shards
                )
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
