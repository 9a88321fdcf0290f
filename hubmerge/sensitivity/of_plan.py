"""Provides the sensitivity of every agent of a plan: the named file, or one computed from the named data and kept.

Computed files are kept beyond the merge, in a folder of files named by a digest of what decides their content, so that
an agent's is computed once per data. A merge that takes a file gets a hard link of its own (a copy across file
systems), so it keeps the file when the folder is pruned. Several processes may use the folder at once.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hubmerge import __version__
from hubmerge.engine.distributed import ALONE, ProcessLostError, Ranks
from hubmerge.engine.progress import Observer
from hubmerge.errors import DiskError, HeaderError, SensitivityError, SourceNotFoundError, TargetExistsError
from hubmerge.hub.client import Hub
from hubmerge.plan.disk import computed_sensitivities, computing_need, shown_bytes
from hubmerge.plan.plan import Plan
from hubmerge.recipe.ignore import ignored_by
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity
from hubmerge.sensitivity.rows import Calibration, named_file
from hubmerge.sources.base import Model

DEFAULT_BUDGET_BYTES = 50_000_000_000  # of kept files
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def sensitivities_of(
    plan: Plan,
    hub: Hub,
    folder: Path,
    observer: Observer,
    allow_local: bool,
    kept: Path | None,
    *,
    ranks: Ranks = ALONE,
    disk_bytes: int | None = None,
    at_peak: Callable[[], None] = lambda: None,
) -> tuple[Model, ...]:
    """One checked file per agent as a model, in recipe order; made in `folder` where the recipe names data instead.

    New files are kept in the folder `kept` (None: nowhere), and files that are there are not computed again.
    `disk_bytes`: the disk that all of this may take; `at_peak` is called when it takes most.
    Raises SensitivityError for a file of another model or other data, and for data that are no pairs. Raises DiskError
    and MemoryLimitError before anything that will not fit is fetched or computed.
    """
    files: dict[int, SensitivityFile] = {}
    if not ranks.rank:
        observer.stage("sensitivity")
        plan = Calibration(hub, allow_local).of(plan)  # where whoever prepared it left that out
        to_make: dict[int, Path] = {}
        for k, (agent, model) in enumerate(zip(plan.recipe.agents, plan.agents, strict=True)):
            if agent.sensitivity is not None:
                files[k] = named_file(plan, k, allow_local)
                check_sensitivity(files[k], model, ignored_by(plan.recipe.ignore))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                out = folder / _kept_name(plan, k)
                if (found := _made_before(kept, out, model, plan.recipe.ignore)) is None:
                    to_make[k] = out
                    continue
                files[k] = found
        if to_make:
            _require_room(plan, to_make, disk_bytes)
        for k, out in to_make.items():
            files[k] = _computed(plan, k, out, hub, observer, at_peak)
            _keep(kept, out)
    listed = [files[k] for k in sorted(files)]
    return tuple(file.as_model() for file in same_files(ranks, plan, folder, listed))


def _made_before(kept: Path | None, out: Path, model: Model, ignore: Sequence[str]) -> SensitivityFile | None:
    """The file that an earlier run made, in its place or kept; a damaged one goes, and is made again."""
    if not (out.exists() or _taken(kept, out)):
        return None
    try:
        file = read_sensitivity(out)
        check_sensitivity(file, model, ignored_by(ignore))
    except (HeaderError, SensitivityError):
        for folder in (out.parent, *([kept] if kept else [])):
            (folder / out.name).unlink(missing_ok=True)
        return None
    return file


def _require_room(plan: Plan, to_make: Mapping[int, Path], disk_bytes: int | None) -> None:
    """MemoryLimitError or DiskError where not all files of these agents can be computed."""
    from hubmerge.sensitivity.network import require_memory

    sizes = computed_sensitivities(plan)
    there = sum(size for k, size in sizes.items() if k not in to_make)
    needed = 0  # bytes that lie on the disk while one of them is computed
    for k in to_make:
        require_memory(sizes[k], str(plan.agents[k].ref))
        needed = max(needed, there + computing_need(plan, k))
        there += sizes[k]
    if disk_bytes is not None and needed > disk_bytes:
        least, given = shown_bytes(needed, disk_bytes)
        raise DiskError(
            "not enough disk to compute the sensitivities",
            where=str(next(iter(to_make.values())).parent),
            expected=least,
            got=given,
            next_step="Free some disk, raise --disk-budget, or name sensitivity files that were computed elsewhere.",
        )


def _computed(
    plan: Plan, k: int, out: Path, hub: Hub, observer: Observer, at_peak: Callable[[], None]
) -> SensitivityFile:
    from hubmerge.sensitivity.compute import compute_sensitivity

    spec = plan.recipe.agents[k].calibration or plan.recipe.calibration
    assert spec is not None, "the plan refuses agents without a file or data"
    pairs, ignored = plan.calibration[k].read, ignored_by(plan.recipe.ignore)
    compute = partial(compute_sensitivity, plan.agents[k], pairs, out, spec=spec, hub=hub, ignored=ignored)
    try:
        return compute(progress=observer.progress, at_peak=at_peak)
    except TargetExistsError:  # an unfinished one, by another number of threads, say, which nobody can go on with
        return compute(progress=observer.progress, at_peak=at_peak, resume=False)


def same_files(ranks: Ranks, plan: Plan, folder: Path, files: Sequence[SensitivityFile]) -> Sequence[SensitivityFile]:
    """The files that rank 0 has named or computed; every process opens the same ones.

    A named file is opened by its name, a computed one in `folder`, where rank 0 keeps them. Raises ProcessLostError
    where a process does not see the file, or sees another one.
    """
    if ranks.size == 1:
        return files
    names = ranks.first([f.path.name for f in files])
    if ranks.rank:
        paths = [
            folder / name if agent.sensitivity is None else plan.recipe.path_of(agent.sensitivity)
            for agent, name in zip(plan.recipe.agents, names, strict=True)
        ]
        try:
            files = [read_sensitivity(path) for path in paths]
        except SourceNotFoundError as error:
            raise ProcessLostError(
                "a sensitivity file of rank 0 is not where this process looks for it",
                where=error.problems[0].where,
                got=error.problems[0].got,
                next_step="Let all processes see the same folder (HUBMERGE_DATA), or name files that all have.",
            ) from None
    ranks.agree("the sensitivities", _sample(files))
    return files


def _sample(files: Iterable[SensitivityFile]) -> str:
    """A digest of metadata and of blocks all over the files: gradients of another machine differ nearly everywhere."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.metadata.digest().encode())
        with file.path.open("rb") as source:
            for number in range(_SAMPLES):
                source.seek(file.size * number // _SAMPLES)
                digest.update(source.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _kept_name(plan: Plan, agent: int) -> str:
    """The name of the file with an agent's sensitivity: a digest of all that decides its content."""
    model, rows = plan.agents[agent].ref, plan.calibration[agent]
    decides = [[model.id, model.sha], rows.digest, rows.pairs, __version__, rows.torch, rows.transformers]
    return f"{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]}.safetensors"


def _taken(kept: Path | None, out: Path) -> bool:
    """Whether a kept file of that name was brought to the path `out`."""
    if kept is None:
        return False
    try:
        with contextlib.suppress(OSError):  # a folder that others may write to, and this process may not
            os.utime(kept / out.name)
        _link(kept / out.name, out)
    except FileNotFoundError:
        return False
    return True


def _keep(kept: Path | None, file: Path) -> None:
    """Keep the finished `file` under its name, then prune to the budget: the files that were not used for longest go
    first. A full disk keeps nothing."""
    if kept is None:
        return
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        _link(file, kept / file.name)
        # also what a process that was killed has left half-copied, which nobody takes any more
        entries = [(p.name != file.name, -p.stat().st_mtime_ns, p.stat().st_size, p) for p in kept.iterdir()]
        total = 0
        for _, _, size, path in sorted(entries):
            total += size
            if total > DEFAULT_BUDGET_BYTES:
                path.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """Make `target` a link to, or a copy of, `source` in one step; FileNotFoundError where there is no `source`."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        try:
            os.link(source, temporary)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
