"""The sensitivity of every agent of a plan: the named file, or computed on the named data and kept for next time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hubmerge import __version__
from hubmerge.errors import DiskError
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

_PLENTY = 1 << 62  # bytes


class Observer(Protocol):
    def stage(self, name: str) -> None: ...

    @property
    def progress(self) -> Callable[[str, int, int, str], None]: ...


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
    disk_bytes: int | None = None,
    at_peak: Callable[[], None] = lambda: None,
) -> tuple[SensitivityFile, ...]:
    """One checked file per agent, in recipe order; made in `folder` where the recipe names data instead of a file.

    What is made is kept in `kept`, and what was kept there is not made again. `disk_bytes`: what all of this may take
    on disk; `at_peak` is called when it takes most.
    Raises SensitivityError for a file of another model or other data, and for data that are no pairs, DiskError and
    MemoryLimitError before anything is fetched or computed that will not fit.
    """
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
    return tuple(files[k] for k in range(len(plan.agents)))


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
