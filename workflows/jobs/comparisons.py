"""Comparisons as jobs: they compute the same as `hubmerge diff`, for the app's page.

A comparison of two public models belongs to everybody: its identity is the two commits, so all visitors find the same
job, and any of them may start it again where it failed. Where a model is private or gated, the visitor is part of the
identity, and only this visitor sees the job.
"""

import hashlib
import json
import shutil
from dataclasses import replace
from typing import Any

from hubmerge.engine.options import StreamOptions
from hubmerge.errors import SourceChangedError
from hubmerge.output.diff import SCHEMA, Diff, comparison_recipe, measure, open_comparison
from hubmerge.plan.plan import Plan
from workflows.jobs.jobs import COMPARISON, NewJob
from workflows.jobs.pipeline import StageEmitter
from workflows.jobs.protocol import Emit, JobSpec, Result

TOP_TENSORS = 20  # of each list, in a job's result
MAX_RESULT_CHARACTERS = 256 * 1024  # of JSON


def comparison_job(plan: Plan, user: str) -> NewJob:
    """The job that compares the two models of a plan."""
    base, agent = plan.base.ref, plan.agents[0].ref
    payload = {
        "base": f"{base.id}@{base.sha}",
        "agent": f"{agent.id}@{agent.sha}",
        "target": f"{base.id} → {agent.id}",
        "private": is_closed(plan),
        "warnings": list(plan.warnings),
    }
    return NewJob(id=comparison_id(plan, user), kind=COMPARISON, user=user, payload=payload)


def comparison_id(plan: Plan, user: str) -> str:
    pins = [[ref.id, ref.sha] for ref in (plan.base.ref, plan.agents[0].ref)]
    identity = [COMPARISON, SCHEMA, pins, user if is_closed(plan) else ""]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def is_closed(plan: Plan) -> bool:
    """Whether one of the models is private or gated."""
    return any(model.private or model.gated for model in (plan.base, plan.agents[0]))


def run(spec: JobSpec, emit: Emit) -> None:
    """The pipeline of such a job, in a child process."""
    hub = spec.hub
    observer = StageEmitter(emit)
    observer.stage("resolve")
    plan = open_comparison(comparison_recipe(str(spec.payload["base"]), str(spec.payload["agent"])), hub)
    if is_closed(plan) and not spec.payload["private"]:
        raise SourceChangedError(
            "a model that was open to everybody no longer is",
            where=str(spec.payload["target"]),
            next_step="Compare the models again: the result will be shown to you alone.",
        )
    cache = spec.workdir / "inputs"
    cache.mkdir(parents=True, exist_ok=True)
    diff = measure(plan, hub, StreamOptions(), observer, cache=cache)
    shutil.rmtree(cache, ignore_errors=True)
    emit(Result(values=_shown(diff)))


def _shown(diff: Diff) -> dict[str, Any]:
    """The part of the result that a page shows, small enough for a job's record."""
    shown = diff.with_top_tensors(TOP_TENSORS)
    if len(json.dumps(shown.to_json())) > MAX_RESULT_CHARACTERS:
        note = f"the {len(diff.layers)} layers are too many to be shown here; `hubmerge diff` shows them"
        shown = replace(shown, layers={}, grid={}, warnings=(*shown.warnings, note))
    return shown.to_json()
