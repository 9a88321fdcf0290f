"""The pipeline of a merge job: the line as durable steps, run in a child process.

    prepare → merge, each finished shard uploaded and deleted while the next one is merged → one commit

Every step can be repeated: the merge resumes from its journal, and a repo that this job filled before its
worker died is found again by the job's identity.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hubmerge.engine.options import StreamOptions
from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import TargetExistsError
from hubmerge.line import Prepared, Request, merge_to_hub, prepare
from hubmerge.machine.disk_errors import writing
from hubmerge.output.finished import load_report
from hubmerge.output.publish import MAX_MANIFEST_BYTES, Target, find_published
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.settings import Settings, load_settings
from workflows.jobs.protocol import Emit, JobSpec, Notice, Progress, Result, StageStarted, Statistics

_SHOWN = ("seconds", "resumed", "peak_rss_bytes", "disk_high_water_bytes", "fetch")  # of the report's environment


def merge_payload(prepared: Prepared, target: Target, license: str | None) -> dict[str, Any]:
    """What a merge job is told, and shows."""
    return {
        "recipe": prepared.plan.recipe.to_dict(),
        "target": target.repo,
        "private": target.private,
        "expose": target.expose,
        "license": license,  # as it was chosen, or None
        "licensed": prepared.license["id"],  # what that comes to
        "warnings": list(prepared.plan.warnings),
    }


def run(spec: JobSpec, emit: Emit) -> None:
    """Merge what `spec.payload` asks for and publish it."""
    payload = spec.payload
    hub = spec.hub
    target = Target(payload["target"], bool(payload["private"]), bool(payload.get("expose")))
    observer = StageEmitter(emit)
    observer.stage("resolve")
    prepared = prepare(recipe_from_dict(payload["recipe"]), hub, Request(target, payload.get("license")), observer)
    folder, cache = spec.workdir / "out", spec.workdir / "inputs"
    published = find_published(hub, target, prepared.identity) if prepared.published else None
    if published is not None:  # by an attempt that was lost, maybe with the whole data folder
        observer.warning(f"{target.repo} holds this merge already, and nothing is merged anew")
        with writing(folder / MANIFEST):
            folder.mkdir(parents=True, exist_ok=True)
            manifest = hub.read_file(published.repo, published.commit, MANIFEST, MAX_MANIFEST_BYTES)
            (folder / MANIFEST).write_bytes(manifest)
    else:
        options = replace(stream_options(load_settings()), cache=cache, sensitivities=spec.shared / "sensitivity")
        try:
            published = merge_to_hub(prepared, hub, folder, options, observer)
        except TargetExistsError as error:
            if not Path(error.problems[0].where).is_relative_to(folder):  # but a repo
                raise
            observer.warning("what an earlier attempt has made is of other names or another version, and is made anew")
            shutil.rmtree(folder)
            published = merge_to_hub(prepared, hub, folder, options, observer)
        shutil.rmtree(cache, ignore_errors=True)
    report = load_report(folder)
    parents = (prepared.plan.base, *prepared.plan.agents)
    held = {file.sha256 for parent in parents for file in parent.files.values()}
    ran = report.environment
    values = {
        **asdict(published),
        # by which the merge is known; what equals a parent's shard would make a merge of that parent, and of its copies
        "weights": [file.sha256 for file in report.files if file.sha256 not in held],
        "use": str(report.task.get("use", "")),
        "run": {name: ran[name] for name in _SHOWN if name in ran},
    }
    emit(Result(values=values))


def stream_options(settings: Settings) -> StreamOptions:
    """Options that use the machine's own GPU, if there is one. Where a GPU is lent per call, the job's process has
    none."""
    memory = int((settings.device_memory_gb or 0) * 10**9)
    lent = settings.zero_gpu
    return StreamOptions(device="cpu" if lent else "auto", device_memory_bytes=memory, bursts=lent)


class StageEmitter:
    """The line's observer as the child's events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._stage_began = time.monotonic()
        self._stage = ""
        self._done_before = 0

    def stage(self, name: str) -> None:
        self._emit(StageStarted(stage=name))

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._stage_began, self._done_before = stage, now, done
        elapsed = now - self._stage_began
        rate = (done - self._done_before) / elapsed if elapsed > 0 else None
        self._emit(Progress(stage=stage, done=done, total=total, unit=unit, per_second=rate))

    def statistics(self, values: Mapping[str, Any]) -> None:
        self._emit(Statistics(values=dict(values)))

    def warning(self, message: str) -> None:
        self._emit(Notice(message=message))
