"""The sensitivity of every agent of a plan: the named file, or computed on the named data and kept for next time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from hubmerge import __version__
from hubmerge.errors import SensitivityError
from hubmerge.hub import Hub
from hubmerge.plan import Plan
from hubmerge.sensitivity.calibration import digest, load_pairs
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.dense import dense_identity, is_derived, write_dense
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity
from hubmerge.sensitivity.kept import KeptSensitivities


class Observer(Protocol):
    def stage(self, name: str) -> None: ...

    @property
    def progress(self) -> Callable[[str, int, int, str], None]: ...


def sensitivities_of(
    plan: Plan, hub: Hub, folder: Path, observer: Observer, allow_local: bool, kept: KeptSensitivities
) -> tuple[SensitivityFile, ...]:
    """One checked file per agent, in recipe order; made in `folder` where the recipe names data instead of a file.

    What is made is kept in `kept`, and what was kept there is not made again.
    Raises SensitivityError for a file of another model or other data, and for data that are no pairs.
    """
    observer.stage("sensitivity")
    files = []
    for k, (agent, model) in enumerate(zip(plan.recipe.agents, plan.agents, strict=True)):
        if agent.sensitivity is not None:
            if not allow_local:
                raise SensitivityError(
                    "sensitivity files of this machine cannot be used here",
                    where=agent.sensitivity,
                    next_step="Name calibration data on the Hub instead.",
                )
            if is_derived(plan, k):
                raise SensitivityError(
                    "a sensitivity file cannot be checked against weights that no file holds as such",
                    where=str(model.ref),
                    expected="calibration data, from which it is computed",
                    got=agent.sensitivity,
                    next_step="Name calibration data instead of the file.",
                )
            file = read_sensitivity(Path(agent.sensitivity).expanduser())
            check_sensitivity(file, model)
            files.append(file)
        else:
            spec = agent.calibration or plan.recipe.calibration
            assert spec is not None, "the plan refuses agents without either"
            pairs = load_pairs(
                spec, allow_local=allow_local, endpoint=hub.endpoint, token=hub.token, cache=folder / "data"
            )
            derived = is_derived(plan, k)
            weights = dense_identity(plan, k) if derived else [model.ref.id, model.ref.sha]
            identity = json.dumps([weights, digest(pairs), spec.max_tokens, __version__, version("torch")])
            out = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"
            folder.mkdir(parents=True, exist_ok=True)
            if out.exists() or kept.take(out.name, out):
                file = read_sensitivity(out)
                if not derived:
                    check_sensitivity(file, model, digest(pairs))
            else:
                dense = folder / f"{out.stem}.dense"
                network = write_dense(plan, k, hub, dense, folder.parent) if derived else model
                file = compute_sensitivity(
                    network, pairs, out, spec=spec, progress=observer.progress, hub=hub, allow_local=allow_local
                )
                check_sensitivity(file, network, digest(pairs))
                shutil.rmtree(dense, ignore_errors=True)
                kept.keep(out)
            files.append(file)
    return tuple(files)
