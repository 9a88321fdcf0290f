"""The line, top to bottom: recipe → sources → plan → fetch → probe/stream → sink → card → publish.

`prepare` (prepare.py) is everything that can be refused before a weight moves; `merge_to_folder` and `publish_folder`
(finished.py) do the work, or `merge_to_hub` does, which uploads and deletes every shard while the next one is merged.
Each step can be repeated after a kill and goes on where the last durable thing was written.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hubmerge import __version__
from hubmerge.engine.journal import Journal, plan_identity
from hubmerge.engine.progress import Bridge, Observer, verifying
from hubmerge.engine.rank_folders import collect, see, take_over
from hubmerge.engine.sink import MANIFEST, sole_owner
from hubmerge.engine.stream import MergeResult, StreamOptions, Variant, layout_of, merge_variants
from hubmerge.engine.usage import total, usage_now
from hubmerge.hub.client import Hub
from hubmerge.machine import cores
from hubmerge.methods import get_method
from hubmerge.output.assemble import write_folder
from hubmerge.output.card import render_card
from hubmerge.output.figures import render_figures
from hubmerge.output.finished import finished_report, publish_folder
from hubmerge.output.helper import share_sensitivities
from hubmerge.output.publish import Published, withdrawn_if_refused
from hubmerge.output.report import Report, make_report
from hubmerge.output.upload import ShardUploader
from hubmerge.plan.disk import DiskGauge, available_bytes, input_budget, used_bytes
from hubmerge.plan.equal_weights import refuse_equal_to_base
from hubmerge.plan.files import folder_files
from hubmerge.plan.plan import Plan
from hubmerge.prepare import Prepared
from hubmerge.sensitivity.kept import KeptSensitivities
from hubmerge.sensitivity.of_plan import sensitivities_of
from hubmerge.sources.base import Model
from hubmerge.sources.companions import reader
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache
from hubmerge.statistics.summary import summarize


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
    disk_budget: int | None = None,
) -> Report:
    """The merge with all that belongs to it, complete in `folder`; its manifest is written last.

    Sensitivities that had to be computed are kept in the folder `sensitivities` for the next merge. `disk_budget`:
    bytes that the output and fetched inputs may take together; None for what is free.

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
        disk_budget=disk_budget,
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
    disk_budget: int | None = None,
) -> list[Report]:
    """Merges of the same models, each into a folder of its own; inputs are read once for all that fit together."""
    with ExitStack() as owned:
        for _, folder in merges:
            owned.enter_context(sole_owner(folder))
        finished = {
            folder: finished_report(folder, p.identity) for p, folder in merges if (folder / MANIFEST).is_file()
        }
        left = [(p, folder) for p, folder in merges if folder not in finished]
        if not left:
            return [finished[folder] for _, folder in merges]
        for prepared, _ in left:
            for warning in prepared.plan.warnings:
                observer.warning(warning)
        options = options or StreamOptions()
        plans, folders, dropped = [p.plan for p, _ in left], [folder for _, folder in left], options.sink == "null"
        # of a budget for all of them, those that an earlier run has finished have taken their part
        limit = None if disk_budget is None else max(0, disk_budget - used_bytes(finished))
        inputs = input_budget(plans, folders, cache, limit, dropped=dropped) // options.ranks.size
        groups: dict[object, list[tuple[Prepared, Path]]] = {}
        for prepared, folder in left:
            groups.setdefault(layout_of(prepared.plan), []).append((prepared, folder))
        for number, group in enumerate(groups.values(), 1):
            surroundings = _Surroundings(
                hub, cache, observer, options, inputs, sensitivities, limit, keep=number < len(groups)
            )
            variants = [(p, folder, Journal.open(folder, p.plan, resume=resume, verified=True)) for p, folder in group]
            Journal.verify([journal for *_, journal in variants], verifying(observer))
            for prepared, folder, journal in variants:
                take_over(options.ranks, folder, prepared.plan, journal, tell=verifying(observer))
                see(options.ranks, folder)
            finished |= surroundings.merge(variants, DiskGauge({cache, *(folder for _, folder in merges)}))
        return [finished[folder] for _, folder in merges]


def merge_to_hub(
    prepared: Prepared,
    hub: Hub,
    folder: Path,
    *,
    cache: Path,
    observer: Observer,
    options: StreamOptions | None = None,
    sensitivities: Path | None = None,
    disk_budget: int | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Published:
    """The merge, published to the target of `prepared` in one commit, with the files `extra` beside the card.

    Each finished shard is uploaded and deleted while the next is merged. Run again after a kill, it goes on; what is
    left in `folder` and `cache` afterwards may be deleted.
    """
    options = options or StreamOptions()
    assert prepared.target is not None and options.sink == "disk"  # noqa: PT018
    target, ranks = prepared.target, options.ranks
    with sole_owner(folder):
        if not ranks.first(not (folder / MANIFEST).is_file() or Journal.is_in(folder)):  # by `merge_to_folder`
            finished_report(folder, prepared.identity)
            return publish_folder(target, folder, hub, observer, extra)
        inputs = input_budget([prepared.plan] * ranks.size, [folder], cache, disk_budget, uploaded=True) // ranks.size
        journal = Journal.open(folder, prepared.plan, resume=True, uploads=True, tell=verifying(observer))
        take_over(ranks, folder, prepared.plan, journal, uploads=True, tell=verifying(observer))
        ranks.agree("the plan", plan_identity(prepared.plan))
        collect(ranks, prepared.plan, journal)
        if journal.uploaded:
            held = [s for s in journal.shards.values() if s.filename in journal.uploaded]
            missing = hub.missing_uploads(target.repo, [(s.sha256, s.size) for s in held])
            if lost := [s.filename for s in held if s.sha256 in missing]:
                (folder / MANIFEST).unlink(missing_ok=True)
                journal.forget(lost)
        merging = ranks.first(not (folder / MANIFEST).is_file())
        surroundings = _Surroundings(hub, cache, observer, options, inputs, sensitivities, disk_budget)
        gauge = DiskGauge({cache, folder})
        alone = withdrawn_if_refused(hub, target, folder, observer.warning) if ranks.size == 1 else nullcontext()
        with (
            alone,
            ShardUploader(
                hub,
                target,
                prepared.identity,
                journal,
                folder,
                waiting=lambda: surroundings.bridge.uploading(uploader.sent, uploader.size),
                deleting=gauge.sample,
            ) as uploader,
        ):
            if merging:
                for warning in prepared.plan.warnings:
                    observer.warning(warning)
                uploader.catch_up()
                surroundings.merge([(prepared, folder, journal)], gauge, uploader.drain)
            else:
                finished_report(folder, prepared.identity, keep_work=True)
            uploader.drain()
        return publish_folder(target, folder, hub, observer, extra, journal.uploaded)


@dataclass
class _Surroundings:
    """What merges of the same layout share."""

    hub: Hub
    cache: Path
    observer: Observer
    options: StreamOptions
    input_bytes: int  # that fetched inputs may take on disk
    sensitivities: Path | None
    disk_limit: int | None = None  # of everything that the merges write
    keep: bool = False  # the inputs are wanted again

    def __post_init__(self) -> None:
        self.bridge = Bridge(self.observer)

    def merge(
        self,
        merges: Sequence[tuple[Prepared, Path, Journal]],
        gauge: DiskGauge,
        settle: Callable[[], None] = lambda: None,
    ) -> dict[Path, Report]:
        started = time.monotonic()
        plan = merges[0][0].plan
        self.bridge.labels = plan.labels
        weighing = [p.plan for p, *_ in merges if "sensitivity" in get_method(p.plan.recipe.method).extras]
        measured: tuple[Model, ...] = ()
        if weighing:
            kept, folder = KeptSensitivities(self.sensitivities), self.cache / "sensitivity"
            local = merges[0][0].allow_local
            files = sensitivities_of(
                weighing[0],
                self.hub,
                folder,
                self.observer,
                local,
                kept,
                disk_bytes=available_bytes((*(out for _, out, _ in merges), self.cache), self.disk_limit),
                at_peak=gauge.sample,
            )
            share_sensitivities(self.options.ranks, weighing[0], folder, files)
            measured = tuple(file.as_model() for file in files)
        store = ShardCache(
            self.hub,
            self.cache,
            plan.models,
            self.input_bytes,
            keep=self.keep,
            starting=self.bridge.fetching,
            deleting=gauge.sample,
        )
        with TensorReader((*plan.models, *measured), store) as reader:
            variants = [
                Variant(p.plan, journal, folder, tuple(m.tensors for m in measured), settle)
                for p, folder, journal in merges
            ]
            if not plan.download_bytes:
                self.bridge.merging()
            results = merge_variants(variants, reader, self.options, self.bridge)
        gauge.sample()
        fetches = any(m.ref.kind == "hub" for m in plan.models)
        usages = self.options.ranks.gather(usage_now(store.fetched, gauge))
        environment = _environment(self.options, plan)
        environment |= results[0].device
        environment |= total(usages, self.input_bytes if fetches else None)
        environment["seconds"] = round(time.monotonic() - started, 3)
        refuse_equal_to_base(plan, results[0].statistics)
        self.observer.statistics(summarize(results[0].statistics.total, plan.labels))
        self.observer.stage("card")
        return {
            variant.folder: _complete(prepared, variant, merged, self.hub, environment)
            for (prepared, *_), variant, merged in zip(merges, variants, results, strict=True)
        }


def _complete(
    prepared: Prepared, variant: Variant, merged: MergeResult, hub: Hub, environment: Mapping[str, Any]
) -> Report:
    """Everything around the finished shards of one folder, the manifest last."""
    plan = prepared.plan
    files, notes = folder_files(plan, reader(hub))
    if variant.journal.resumed:
        environment = {**environment, "resumed": True}
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


def _environment(options: StreamOptions, plan: Plan) -> dict[str, Any]:
    return {
        "hubmerge": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "huggingface_hub": version("huggingface_hub"),
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": "cpu",
        "cores": cores(),
        "threads": options.workers(plan),
        "processes": options.ranks.size,
        **({"sink": "null"} if options.sink == "null" else {}),
    }
