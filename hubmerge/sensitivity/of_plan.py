"""Provides the sensitivity of every agent of a plan: the named file, or one computed from the named data and kept."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hubmerge import __version__
from hubmerge.engine.distributed import ALONE, ProcessLostError, Ranks
from hubmerge.engine.progress import Observer
from hubmerge.errors import DiskError, SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.plan.disk import computed_sensitivities, computing_need, is_derived
from hubmerge.plan.plan import Plan
from hubmerge.recipe.calibration import CalibrationRows, CalibrationSpec
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.dense import dense_identity, write_dense
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity
from hubmerge.sensitivity.kept import KeptSensitivities
from hubmerge.sensitivity.rows import Calibration, kept_name, named_file
from hubmerge.sensitivity.staging import require_memory
from hubmerge.sources.base import Model

_PLENTY = 1 << 62  # bytes
_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True)
class _ToMake:
    """The sensitivity of one agent, before it is there."""

    agent: int  # from 0
    rows: CalibrationRows
    spec: CalibrationSpec
    file: Path


def sensitivities_of(
    plan: Plan,
    hub: Hub,
    folder: Path,
    observer: Observer,
    allow_local: bool,
    kept: KeptSensitivities,
    *,
    ranks: Ranks = ALONE,
    disk_bytes: int | None = None,
    at_peak: Callable[[], None] = lambda: None,
) -> tuple[Model, ...]:
    """One checked file per agent as a model, in recipe order; made in `folder` where the recipe names data instead.

    New files are kept in `kept`, and files that are there are not computed again. `disk_bytes`: the disk that all of
    this may take; `at_peak` is called when it takes most.
    Raises SensitivityError for a file of another model or other data, and for data that are no pairs. Raises DiskError
    and MemoryLimitError before anything that will not fit is fetched or computed.
    """
    if ranks.rank:
        return _as_models(same_files(ranks, plan, folder, ()))
    observer.stage("sensitivity")
    plan = Calibration(hub, allow_local).of(plan)  # where whoever prepared it left that out
    files: dict[int, SensitivityFile] = {}
    to_make: list[_ToMake] = []
    for k, (agent, model) in enumerate(zip(plan.recipe.agents, plan.agents, strict=True)):
        rows = plan.calibration[k]
        if agent.sensitivity is not None:
            files[k] = named_file(plan, k, agent.sensitivity, allow_local)
            check_sensitivity(files[k], model)
            continue
        spec = agent.calibration or plan.recipe.calibration
        assert spec is not None, "the plan refuses agents without either"
        derived = is_derived(plan, k)
        weights = dense_identity(plan, k) if derived else [model.ref.id, model.ref.sha]
        out = folder / kept_name(weights, rows, __version__)
        folder.mkdir(parents=True, exist_ok=True)
        if out.exists() or kept.take(out.name, out):
            files[k] = read_sensitivity(out)
            if not derived:
                check_sensitivity(files[k], model, rows.texts, rows.digest)
        else:
            to_make.append(_ToMake(k, rows, spec, out))
    for made, room in zip(to_make, _rooms(plan, files, to_make, disk_bytes, folder), strict=True):
        model = plan.agents[made.agent]
        dense = folder / f"{made.file.stem}.dense"
        if is_derived(plan, made.agent):
            model = write_dense(plan, made.agent, hub, dense, folder.parent, budget_bytes=room, at_peak=at_peak)
        file = compute_sensitivity(
            model,
            made.rows.read,
            made.file,
            spec=made.spec,
            progress=observer.progress,
            hub=hub,
            allow_local=allow_local,
            at_peak=at_peak,
        )
        check_sensitivity(file, model, made.rows.texts, made.rows.digest)
        shutil.rmtree(dense, ignore_errors=True)
        kept.keep(made.file)
        files[made.agent] = file
    return _as_models(same_files(ranks, plan, folder, [files[k] for k in range(len(plan.agents))]))


def _as_models(files: Sequence[SensitivityFile]) -> tuple[Model, ...]:
    return tuple(file.as_model() for file in files)


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
    ranks.agree("the sensitivities", hashlib.sha256(b"".join(map(_sample, files))).hexdigest())
    return files


def _sample(file: SensitivityFile) -> bytes:
    """A digest of metadata and of blocks all over the file: gradients of another machine differ nearly everywhere."""
    digest = hashlib.sha256(repr(sorted(file.metadata.to_strings().items())).encode())
    with file.path.open("rb") as source:
        for number in range(_SAMPLES):
            source.seek(file.size * number // _SAMPLES)
            digest.update(source.read(_SAMPLE_BYTES))
    return digest.digest()


def _rooms(
    plan: Plan, files: Mapping[int, SensitivityFile], to_make: Sequence[_ToMake], disk_bytes: int | None, folder: Path
) -> list[int]:
    """Bytes that are left for cached inputs while each one is computed.

    MemoryLimitError or DiskError when one of them will not fit.
    """
    sizes = computed_sensitivities(plan)
    there = sum(sizes[k] for k in files if k in sizes)
    rooms: list[int] = []
    needed = 0
    for made in to_make:
        require_memory(sizes[made.agent], str(plan.agents[made.agent].ref))
        need = there + computing_need(plan, made.agent)
        needed = max(needed, need)
        rooms.append(_PLENTY if disk_bytes is None else disk_bytes - need)
        there += sizes[made.agent]
    if disk_bytes is not None and needed > disk_bytes:
        raise DiskError(
            "not enough disk to compute the sensitivities",
            where=str(folder),
            expected=f"{needed / 1e9:.2f} GB",
            got=f"{disk_bytes / 1e9:.2f} GB",
            next_step="Free some disk, raise --disk-budget, or name sensitivity files that were computed elsewhere.",
        )
    return rooms
