"""The sensitivity of every agent of a plan: the named file, or computed on the named data and kept for next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hubmerge.errors import SensitivityError
from hubmerge.hub import Hub
from hubmerge.plan import Plan
from hubmerge.sensitivity.calibration import digest, load_pairs
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity


class Observer(Protocol):
    def stage(self, name: str) -> None: ...

    @property
    def progress(self) -> Callable[[str, int, int, str], None]: ...


def sensitivities_of(
    plan: Plan, hub: Hub, folder: Path, observer: Observer, allow_local: bool
) -> tuple[SensitivityFile, ...]:
    """One checked file per agent, in recipe order; made in `folder` where the recipe names data instead of a file.

    Raises SensitivityError for a file of another model or other data, and for data that are no pairs.
    """
    observer.stage("sensitivity")
    files = []
    for agent, model in zip(plan.recipe.agents, plan.agents, strict=True):
        if agent.sensitivity is not None:
            if not allow_local:
                raise SensitivityError(
                    "sensitivity files of this machine cannot be used here",
                    where=agent.sensitivity,
                    next_step="Name calibration data on the Hub instead.",
                )
            file = read_sensitivity(Path(agent.sensitivity).expanduser())
            check_sensitivity(file, model)
        else:
            spec = agent.calibration or plan.recipe.calibration
            assert spec is not None, "the plan refuses agents without either"
            pairs = load_pairs(
                spec, allow_local=allow_local, endpoint=hub.endpoint, token=hub.token, cache=folder / "data"
            )
            identity = json.dumps([model.ref.sha, digest(pairs), spec.max_tokens])
            out = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"
            if out.exists():
                file = read_sensitivity(out)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                file = compute_sensitivity(
                    model, pairs, out, spec=spec, progress=observer.progress, hub=hub, allow_local=allow_local
                )
            check_sensitivity(file, model, digest(pairs))
        files.append(file)
    return tuple(files)
