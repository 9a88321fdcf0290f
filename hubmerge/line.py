"""The line, top to bottom: recipe → models → plan → first passes → stream → report and card → publish.

    prepare          the models pinned, the plan made, license and target checked; or every problem at once
    probe            the first pass alone: what the agents changed, and where they meet
    merge_to_folder  the merge with all that belongs to it in a folder, the manifest last
    merge_to_hub     the same on the Hub: each finished shard is uploaded and deleted while the next one is merged,
                     then there is one commit

No weight moves in `prepare`. The other functions can be called again after a kill; they go on where the journal ends.
Processes that torchrun started together call the same functions together (engine/distributed.py). Rank 0 writes card
and manifest and makes the commit, and all processes get its result.
"""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from hubmerge import __version__
from hubmerge.engine import stream
from hubmerge.engine.distributed import Ranks
from hubmerge.engine.journal import Journal
from hubmerge.engine.memory import shares_of
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.progress import Bridge, Observer, Unobserved, resolving, verifying
from hubmerge.engine.resume import own, own_cache, resumed
from hubmerge.engine.sink import MANIFEST, WORK
from hubmerge.engine.stream import MergeResult, Variant, layout_of, merge_variants
from hubmerge.engine.usage import total, usage_now
from hubmerge.hub.client import Hub
from hubmerge.machine.resources import cores
from hubmerge.output.card import render_card
from hubmerge.output.figures import render_figures
from hubmerge.output.finished import finished_report, publish_folder, write_folder
from hubmerge.output.publish import Published, Target, check_target
from hubmerge.output.report import Report, make_report
from hubmerge.output.upload import ShardUploader, forget_lost
from hubmerge.plan.compatibility import refuse_equal_folders, refuse_equal_to_base
from hubmerge.plan.disk import DiskGauge, available_bytes, input_budget, temporary_folder, used_bytes
from hubmerge.plan.files import chat_templates, folder_files, module_problems, other_ends, refuse_pointers
from hubmerge.plan.licenses import choose, strictest
from hubmerge.plan.plan import Plan, make_plan, refusal
from hubmerge.recipe.recipe import Recipe
from hubmerge.sensitivity.of_plan import sensitivities_of
from hubmerge.sensitivity.rows import Calibration, weighs
from hubmerge.sources.base import Model
from hubmerge.sources.companions import reader as companions_of
from hubmerge.sources.folder import UnchangedFolders
from hubmerge.sources.open import open_models
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache
from hubmerge.statistics.statistics import Statistics
from hubmerge.statistics.summary import summarize


@dataclass(frozen=True)
class Request:
    """The conditions of a merge beside its recipe."""

    target: Target | None = None  # where it is published; None: nowhere yet
    license: str | None = None  # of the result; it must be chosen for a target where the parents leave it open
    will_publish: bool = False  # to a target that is not known yet, so that the license must be settled now
    allow_local: bool = False  # whether paths of this machine may be read
    commits: Sequence[str | None] = ()  # the models' commits that an unfinished merge began with (engine/pins.py)
    # Where calibration data is read and tokenized; a method that weighs by sensitivities needs it for its identity.
    # "apart": in a process with limits, for what a stranger names; "find": the Hub is only asked whether it is there.
    calibrate: Literal["here", "apart", "find", "not"] = "here"


@dataclass(frozen=True)
class Prepared:
    """A merge that has passed every check before weights are read."""

    plan: Plan
    license: Mapping[str, str]
    target: Target | None
    identity: str  # over the pinned inputs, the recipe and the target
    allow_local: bool = False  # whether paths of this machine may be read
    published: bool = False  # the target holds this very merge already


def prepare(recipe: Recipe, hub: Hub, request: Request | None = None, observer: Observer | None = None) -> Prepared:
    """Pin the models and check all that headers, cards and the target show.

    Raises IncompatibleError with every problem of the plan at once, then what license, target or modules refuse.
    """
    [prepared] = prepare_variants([recipe], hub, request, observer)
    return prepared


def prepare_variants(
    recipes: Sequence[Recipe], hub: Hub, request: Request | None = None, observer: Observer | None = None
) -> list[Prepared]:
    """`prepare` for several recipes over the same models, which are opened once."""
    request, observer = request or Request(), observer or Unobserved()
    told, calibration = resolving(observer), Calibration(hub, request.allow_local, apart=request.calibrate == "apart")
    base, agents = open_models(recipes[0], hub, allow_local=request.allow_local, commits=request.commits, tell=told)
    plans = [make_plan(recipe, base, agents) for recipe in recipes]
    if request.calibrate != "not" and any(map(weighs, plans)):
        observer.stage("calibration")
    refuse_pointers(plans[0], companions_of(hub))
    others = [words for told in (chat_templates, other_ends) for words in told(plans[0], companions_of(hub))]
    plans = [replace(plan, warnings=(*plan.warnings, *others)) for plan in plans]
    prepared = [_checked(plan, hub, request, calibration) for plan in plans]
    if problems := module_problems(base, agents, companions_of(hub)):
        raise refusal(problems)
    return prepared


def _checked(plan: Plan, hub: Hub, request: Request, calibration: Calibration) -> Prepared:
    target = request.target
    if target is not None:
        target.refuse_to_expose(plan.sources)
    refuse_equal_folders(plan.models)
    license = strictest([m.license for m in plan.models])
    if target is not None or request.will_publish or request.license is not None:
        license = choose(license, request.license)
    if request.calibrate == "find":
        calibration.find(plan)
    elif request.calibrate != "not" and weighs(plan):
        plan = calibration.of(plan)
        if target is not None:
            target.refuse_to_expose(plan.sources)  # the data, too
    identity = plan.identity_at(target.repo if target else "")
    published = target is not None and check_target(hub, target, identity).state == "ours"
    return Prepared(plan, license.as_dict(), target, identity, request.allow_local, published)


def probe(
    prepared: Prepared, hub: Hub, options: StreamOptions | None = None, observer: Observer | None = None
) -> Statistics:
    """Read the inputs once and count what the agents changed; raises NonFiniteError, SourceChangedError."""
    plan, options = prepared.plan, options or StreamOptions()
    folders = UnchangedFolders(plan.models)
    with temporary_folder() as cache:
        budget = max(0, available_bytes((cache,), options.disk_budget))  # shards beyond it are read in ranges
        with TensorReader(plan.models, ShardCache(hub, cache, plan.models, budget)) as reader:
            statistics = stream.probe(plan, reader, options, observer or Unobserved())
    folders.check()
    return statistics


def merge_to_folder(
    prepared: Prepared, hub: Hub, folder: Path, options: StreamOptions | None = None, observer: Observer | None = None
) -> Report:
    """The merge with all that belongs to it, complete in `folder`; its manifest is written last.

    An unfinished folder is continued. Raises DiskError, NonFiniteError, CorruptError, IncompatibleError; raises
    TargetExistsError where the folder holds anything else.
    """
    [report] = merge_to_folders([(prepared, folder)], hub, options, observer)
    return report


def merge_to_folders(
    merges: Sequence[tuple[Prepared, Path]],
    hub: Hub,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
) -> list[Report]:
    """Merges of the same models, each into a folder of its own; inputs are read once for all that fit together."""
    options, observer = options or StreamOptions(), observer or Unobserved()
    ranks = options.ranks
    with ExitStack() as held:
        # open: from here on nobody else works in these folders, and what is finished there is not made again
        own([folder for _, folder in merges], held, ranks)
        reports = _finished_before(merges, ranks)
        left = [(prepared, folder) for prepared, folder in merges if folder not in reports]
        for prepared, folder in merges:
            wanted, stated = prepared.license["id"], reports[folder].license.get("id") if folder in reports else None
            if stated is not None and wanted not in ("unknown", stated):  # a choice, which changes no weight
                observer.warning(
                    f"{folder} is finished and states the license {stated}; `hubmerge publish --license` states another"
                )
        told = left if ranks.rank == 0 else ()  # every process has made the plans
        for warning in dict.fromkeys(warning for prepared, _ in told for warning in prepared.plan.warnings):
            observer.warning(warning)
        if not left:
            return [reports[folder] for _, folder in merges]
        # the disk: the budget is for all merges, so what the finished ones take is subtracted
        limit = None if options.disk_budget is None else max(0, options.disk_budget - used_bytes(reports))
        plans, folders = [prepared.plan for prepared, _ in left], [folder for _, folder in left]
        cache = _cache(options, folders[0])
        inputs = input_budget(plans, folders, cache, limit, dropped=options.sink == "null") // ranks.size
        gauge = DiskGauge({cache, *(folder for _, folder in merges)})
        # first passes, stream, card: together for those with the same dtype and ε
        passes: dict[object, list[_Merge]] = {}
        for merge in _opened(left, held, ranks, observer):
            passes.setdefault(layout_of(merge.prepared.plan), []).append(merge)
        while passes:
            together = passes.pop(next(iter(passes)))
            work = _Work(hub, options, Bridge(observer), cache, inputs, gauge, limit, keep_inputs=bool(passes))
            reports |= _merge(together, work)
    return [reports[folder] for _, folder in merges]


def merge_to_hub(
    prepared: Prepared,
    hub: Hub,
    folder: Path,
    options: StreamOptions | None = None,
    observer: Observer | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Published:
    """The merge, published to the target of `prepared` in one commit, with the files `extra` beside the card.

    Each finished shard is uploaded and deleted while the next is merged. Run again after a kill, it goes on; what is
    left in `folder` and the cache afterwards may be deleted.
    """
    options, observer = options or StreamOptions(), observer or Unobserved()
    assert prepared.target is not None and options.sink == "disk"  # noqa: PT018
    target, plan, ranks = prepared.target, prepared.plan, options.ranks
    publish = partial(publish_folder, target, folder, hub, observer, extra)
    with ExitStack() as held:
        # open: from here on nobody else works in this folder; what `merge_to_folder` has finished is published as it is
        own([folder], held, ranks)
        if ranks.first((folder / MANIFEST).is_file() and not Journal.is_in(folder)):
            _finished_before([(prepared, folder)], ranks)  # raises where it is another merge's folder
            return _by_rank_0(ranks, publish)
        # the disk, and the journal: shards that the target already holds are not made again
        cache, limit = _cache(options, folder), options.disk_budget
        # each process holds a shard of its own, and fetches inputs of its own
        inputs = input_budget([plan] * ranks.size, [folder], cache, limit, uploaded=True) // ranks.size
        [merge] = _opened([(prepared, folder)], held, ranks, observer, uploads=True)
        lost = forget_lost(hub, target, plan, merge.journal, folder, ranks)
        merging = lost or ranks.first(not (folder / MANIFEST).is_file())
        # first passes, stream, card, while finished shards are uploaded and deleted
        gauge, bridge = DiskGauge({cache, folder}), Bridge(observer)
        uploader = ShardUploader(
            hub,
            target,
            prepared.identity,
            merge.journal,
            folder,
            waiting=bridge.uploading,
            deleting=gauge.sample,
        )
        with uploader:
            if merging:
                for warning in plan.warnings if ranks.rank == 0 else ():
                    observer.warning(warning)
                uploader.catch_up()
                _merge([merge], _Work(hub, options, bridge, cache, inputs, gauge, limit, settle=uploader.drain))
            elif ranks.rank == 0:
                finished_report(folder, prepared.identity, keep_work=True)
            uploader.drain()
        # publish: one commit
        return _by_rank_0(ranks, partial(publish, merge.journal.uploaded))


@dataclass(frozen=True)
class _Merge:
    """A merge in a folder that this process owns, with the journal of its finished shards."""

    prepared: Prepared
    folder: Path
    journal: Journal


@dataclass(frozen=True)
class _Work:
    """What the merges of one pass share."""

    hub: Hub
    options: StreamOptions
    bridge: Bridge
    cache: Path
    input_bytes: int  # that fetched inputs may take there
    gauge: DiskGauge
    disk_limit: int | None  # of everything that the merges write
    keep_inputs: bool = False  # they are wanted again
    settle: Callable[[], None] = lambda: None  # waits until finished shards are uploaded, where they are


def _merge(merges: Sequence[_Merge], work: _Work) -> dict[Path, Report]:
    """Do all that is left of merges in one pass."""
    started = time.monotonic()
    plan, bridge, ranks = merges[0].prepared.plan, work.bridge, work.options.ranks
    # sensitivities, where a method weighs by them: named files, or computed here
    measured: tuple[Model, ...] = ()
    if weighing := [merge.prepared for merge in merges if weighs(merge.prepared.plan)]:
        measured = sensitivities_of(
            weighing[0].plan,
            work.hub,
            work.cache / "sensitivity",
            bridge,
            weighing[0].allow_local,
            work.options.sensitivities,
            ranks=ranks,
            disk_bytes=available_bytes((*(merge.folder for merge in merges), work.cache), work.disk_limit),
            at_peak=work.gauge.sample,
        )
    # first passes and stream: inputs are fetched ahead, and every finished shard is entered in the journal
    store = ShardCache(
        work.hub,
        own_cache(work.cache, ranks),
        plan.models,
        work.input_bytes,
        keep=work.keep_inputs,
        starting=bridge.fetching,
        deleting=work.gauge.sample,
    )
    with TensorReader((*plan.models, *measured), store) as reader:
        tensors = tuple(model.tensors for model in measured)
        variants = [Variant(m.prepared.plan, m.journal, m.folder, tensors, work.settle) for m in merges]
        if not plan.download_bytes:
            bridge.merging()
        merged = merge_variants(variants, reader, work.options, bridge)
    # report and card
    work.gauge.sample()
    environment = _environment(plan, merged[0], work, ranks.gather(usage_now(store.fetched, work.gauge)))
    environment["seconds"] = round(time.monotonic() - started, 3)
    statistics = merged[0].statistics  # of the inputs, which all of these merges have in common
    refuse_equal_to_base(plan.agents, statistics)  # which only the weights show
    bridge.statistics({**summarize(statistics.total, plan.labels), "layers": statistics.layer_densities()})
    bridge.stage("card")
    return {
        merge.folder: ranks.by_first(
            partial(_complete, merge, one, work, environment), Report.to_json, Report.from_json
        )
        for merge, one in zip(merges, merged, strict=True)
    }


def _complete(merge: _Merge, merged: MergeResult, work: _Work, environment: Mapping[str, Any]) -> Report:
    """Write everything around the finished shards of one folder, the manifest last."""
    prepared, plan = merge.prepared, merge.prepared.plan
    files, notes = folder_files(plan, companions_of(work.hub))
    report = make_report(
        plan,
        merged,
        identity=prepared.identity,
        target=prepared.target.repo if prepared.target else "",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        license=prepared.license,
        environment={**environment, **({"resumed": True} if merge.journal.resumed else {})},
        notes=notes,
    )
    figures = render_figures(report)
    card = render_card(report, figures=figures, endpoint=work.hub.endpoint).encode()
    write_folder(merge.folder, {**files, **figures, "README.md": card}, report.to_json())
    merge.journal.close()
    return report


def _environment(plan: Plan, merged: MergeResult, work: _Work, usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The machine and versions of the merge, and the time, memory and disk of its processes."""
    options = work.options
    budget = work.input_bytes if any(model.ref.kind == "hub" for model in plan.models) else None
    return {
        "hubmerge": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "huggingface_hub": version("huggingface_hub"),
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": "cpu",
        "cores": cores(),
        "threads": shares_of([plan], options).threads,
        "processes": options.ranks.size,
        **({"sink": "null"} if options.sink == "null" else {}),
        **merged.device,
        **total(usages, budget),
    }


def _cache(options: StreamOptions, folder: Path) -> Path:
    return (options.cache or folder / WORK) / "inputs"  # several processes make siblings of it, and remove old ones


def _opened(
    merges: Sequence[tuple[Prepared, Path]], held: ExitStack, ranks: Ranks, observer: Observer, *, uploads: bool = False
) -> list[_Merge]:
    """The merges with their journals, in which an earlier run may have finished shards."""
    planned = [(prepared.plan, folder) for prepared, folder in merges]
    journals = resumed(planned, held, ranks, verifying(observer), uploads=uploads)
    return [_Merge(*merge, journal) for merge, journal in zip(merges, journals, strict=True)]


def _by_rank_0(ranks: Ranks, publish: Callable[[], Published]) -> Published:
    return ranks.by_first(publish, asdict, lambda values: Published(**values))


def _finished_before(merges: Sequence[tuple[Prepared, Path]], ranks: Ranks) -> dict[Path, Report]:
    """The reports of merges that rank 0 finds finished; TargetExistsError where a folder holds another one."""
    known: list[Any] = []
    for number, (prepared, folder) in enumerate(merges if ranks.rank == 0 else ()):
        if (folder / MANIFEST).is_file():
            known.append([number, finished_report(folder, prepared.identity).to_json()])
    return {merges[number][1]: Report.from_json(report) for number, report in ranks.first(known)}
