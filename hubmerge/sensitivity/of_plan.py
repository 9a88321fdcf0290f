"""The sensitivity of every agent of a plan: the named file, or computed on the named data and kept for next time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from hubmerge import __version__
from hubmerge.calibration_spec import CalibrationSpec
from hubmerge.disk import computed_sensitivities, computing_need, is_derived
from hubmerge.errors import DiskError, SensitivityError
from hubmerge.extras import require
from hubmerge.hub import Hub
from hubmerge.plan import Plan
from hubmerge.sensitivity.calibration import Pair, digest, load_pairs
from hubmerge.sensitivity.compute import LOADERS, compute_sensitivity
from hubmerge.sensitivity.dense import dense_identity, write_dense
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity
from hubmerge.sensitivity.kept import KeptSensitivities
from hubmerge.sensitivity.staging import offloaded_bytes

_PLENTY = 1 << 62  # bytes


class Observer(Protocol):
    def stage(self, name: str) -> None: ...

    @property
    def progress(self) -> Callable[[str, int, int, str], None]: ...


@dataclass(frozen=True)
class _ToMake:
    """The sensitivity of one agent, before it is there."""

    agent: int  # from 0
    pairs: tuple[Pair, ...]
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
    Raises SensitivityError for a file of another model or other data, and for data that are no pairs, and DiskError
    before anything is fetched or computed that will not fit.
    """
    observer.stage("sensitivity")
    files: dict[int, SensitivityFile] = {}
    to_make: list[_ToMake] = []
    for k, (agent, model) in enumerate(zip(plan.recipe.agents, plan.agents, strict=True)):
        if agent.sensitivity is not None:
            files[k] = _named(plan, k, agent.sensitivity, allow_local)
            continue
        spec = agent.calibration or plan.recipe.calibration
        assert spec is not None, "the plan refuses agents without either"
        require("eval", "a sensitivity that is not named as a file", *LOADERS)
        pairs = load_pairs(
            spec,
            allow_local=allow_local,
            endpoint=hub.endpoint,
            token=hub.token,
            cache=folder / "data",
            path_of=plan.recipe.path_of,
        )
        derived = is_derived(plan, k)
        weights = dense_identity(plan, k) if derived else [model.ref.id, model.ref.sha]
        identity = json.dumps([weights, digest(pairs), spec.max_tokens, __version__, version("torch")])
        out = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        if out.exists() or kept.take(out.name, out):
            files[k] = read_sensitivity(out)
            if not derived:
                check_sensitivity(files[k], model, digest(pairs))
        else:
            to_make.append(_ToMake(k, tuple(pairs), spec, out))
    for made, room in zip(to_make, _rooms(plan, files, to_make, disk_bytes, folder), strict=True):
        model = plan.agents[made.agent]
        dense = folder / f"{made.file.stem}.dense"
        if is_derived(plan, made.agent):
            model = write_dense(plan, made.agent, hub, dense, folder.parent, budget_bytes=room, at_peak=at_peak)
        file = compute_sensitivity(
            model,
            made.pairs,
            made.file,
            spec=made.spec,
            progress=observer.progress,
            hub=hub,
            allow_local=allow_local,
            at_peak=at_peak,
        )
        check_sensitivity(file, model, digest(made.pairs))
        shutil.rmtree(dense, ignore_errors=True)
        kept.keep(made.file)
        files[made.agent] = file
    return tuple(files[k] for k in range(len(plan.agents)))


def _named(plan: Plan, agent: int, path: str, allow_local: bool) -> SensitivityFile:
    if not allow_local:
        raise SensitivityError(
            "sensitivity files of this machine cannot be used here",
            where=path,
            next_step="Name calibration data on the Hub instead.",
        )
    if is_derived(plan, agent):
        raise SensitivityError(
            "a sensitivity file cannot be checked against weights that no file holds as such",
            where=str(plan.agents[agent].ref),
            expected="calibration data, from which it is computed",
            got=path,
            next_step="Name calibration data instead of the file.",
        )
    file = read_sensitivity(plan.recipe.path_of(path))
    check_sensitivity(file, plan.agents[agent])
    return file


def _rooms(
    plan: Plan, files: Mapping[int, SensitivityFile], to_make: Sequence[_ToMake], disk_bytes: int | None, folder: Path
) -> list[int]:
    """Bytes that are left for cached inputs while each one is computed; DiskError when one of them will not fit."""
    sizes = computed_sensitivities(plan)
    there = sum(sizes[k] for k in files if k in sizes)
    rooms: list[int] = []
    needed = 0
    for made in to_make:
        need = there + computing_need(plan, made.agent) + offloaded_bytes(sizes[made.agent])
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
