"""Provides the sensitivity of every agent of a plan: the named file, or one computed from the named data and kept.

Computed files are kept beyond the merge, in a folder of files named by a digest of what decides their content, so that
an agent's is computed once per data. A merge that takes a file gets a hard link of its own (a copy across file
systems), so it keeps the file when the folder is pruned. Several processes may use the folder at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path

from hubmerge import __version__
from hubmerge.dtypes import FLOAT_DTYPES, Float32
from hubmerge.engine.chunks import chunks_of
from hubmerge.engine.distributed import ALONE, ProcessLostError, Ranks
from hubmerge.engine.progress import Observer
from hubmerge.errors import DiskError, SourceNotFoundError, TargetExistsError
from hubmerge.hub.client import Hub
from hubmerge.plan.disk import computed_sensitivities, computing_need, is_derived
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.sensitivity.file import SensitivityFile, check_sensitivity, read_sensitivity, write_tensors
from hubmerge.sensitivity.rows import Calibration, named_file, stage_merged_files
from hubmerge.sources.base import Model
from hubmerge.sources.open import SINGLE, open_model
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache

DEFAULT_BUDGET_BYTES = 50_000_000_000  # of kept files
_PLENTY = 1 << 62  # bytes
_CHUNK = 1024 * 1024
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
                check_sensitivity(files[k], model)
                continue
            folder.mkdir(parents=True, exist_ok=True)
            out = folder / _kept_name(plan, k)
            if not (out.exists() or _taken(kept, out)):
                to_make[k] = out
                continue
            files[k] = read_sensitivity(out)
            if not is_derived(plan, k):
                check_sensitivity(files[k], model)
        files |= _computed(plan, hub, to_make, observer, kept, disk_bytes, at_peak)
    listed = [files[k] for k in sorted(files)]
    return tuple(file.as_model() for file in same_files(ranks, plan, folder, listed))


def _computed(
    plan: Plan,
    hub: Hub,
    to_make: Mapping[int, Path],
    observer: Observer,
    kept: Path | None,
    disk_bytes: int | None,
    at_peak: Callable[[], None],
) -> dict[int, SensitivityFile]:
    """The new files of the agents in `to_make`, once all of them will fit into memory and onto the disk."""
    if not to_make:
        return {}
    from hubmerge.sensitivity.compute import compute_sensitivity
    from hubmerge.sensitivity.network import require_memory

    sizes = computed_sensitivities(plan)
    there = sum(size for k, size in sizes.items() if k not in to_make)
    needs: dict[int, int] = {}  # bytes that lie on the disk while each one is computed
    for k in to_make:
        require_memory(sizes[k], str(plan.agents[k].ref))
        needs[k] = there + computing_need(plan, k)
        there += sizes[k]
    if disk_bytes is not None and (needed := max(needs.values())) > disk_bytes:
        raise DiskError(
            "not enough disk to compute the sensitivities",
            where=str(next(iter(to_make.values())).parent),
            expected=f"{needed / 1e9:.2f} GB",
            got=f"{disk_bytes / 1e9:.2f} GB",
            next_step="Free some disk, raise --disk-budget, or name sensitivity files that were computed elsewhere.",
        )
    made = {}
    for k, out in to_make.items():
        model, full = plan.agents[k], out.with_suffix(".dense")
        if is_derived(plan, k):
            room = _PLENTY if disk_bytes is None else disk_bytes - needs[k]
            model = _written_in_full(plan, k, hub, full, room, at_peak)
        spec = plan.recipe.agents[k].calibration or plan.recipe.calibration
        assert spec is not None, "the plan refuses agents without a file or data"
        compute = partial(compute_sensitivity, model, plan.calibration[k].read, out, spec=spec, hub=hub)
        try:
            made[k] = compute(progress=observer.progress, at_peak=at_peak)
        except TargetExistsError:  # an unfinished one, by another number of threads, say, which nobody can go on with
            made[k] = compute(progress=observer.progress, at_peak=at_peak, resume=False)
        shutil.rmtree(full, ignore_errors=True)
        _keep(kept, out)
    return made


def _written_in_full(plan: Plan, agent: int, hub: Hub, folder: Path, room: int, at_peak: Callable[[], None]) -> Model:
    """An agent with computed weights, such as an adapter, as float32 in the names and shapes of the merge.

    Merging reads LoRA adapters, fp8 weights and added vocabulary rows chunk by chunk; gradients need the whole model in
    transformers. Integer tensors are left out, since they have no gradients. Fetched files stay for later use,
    within `room` bytes. Raises DiskError, NonFiniteError.
    """
    stage_merged_files(plan, hub, folder)
    inputs = folder.parents[1]  # the merge's own
    store = ShardCache(hub, inputs, plan.models, room, keep=True, deleting=at_peak)
    merged = [t for t in plan.tensors() if t.inputs[agent + 1].entry.dtype in FLOAT_DTYPES]
    with TensorReader(plan.models, store) as weights:
        parts: Iterator[tuple[str, Float32]] = (
            (t.name, weights.values(agent + 1, t.inputs[agent + 1], chunk.start, chunk.count))
            for t in merged
            for chunk in chunks_of(t, _CHUNK)
        )
        assert all(prod(t.shape) == t.elements for t in merged)
        if not (folder / SINGLE).exists():
            write_tensors(folder / SINGLE, {t.name: t.shape for t in merged}, {"format": "pt"}, parts, "weight")
    return open_model(ModelName(id=str(folder), local=True), hub, allow_local=True)


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
    model, rows = plan.agents[agent], plan.calibration[agent]
    weights: object = [model.ref.id, model.ref.sha]
    if is_derived(plan, agent):  # the values depend on the base, too
        models = [(m.ref.id, m.ref.sha) for m in (plan.base, model)]
        names = [(t.name, t.shape) for t in plan.tensors()]
        weights = hashlib.sha256(json.dumps([models, names]).encode()).hexdigest()
    identity = json.dumps([weights, rows.digest, rows.pairs, __version__, rows.torch, rows.transformers])
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.safetensors"


def _taken(kept: Path | None, out: Path) -> bool:
    """Whether a kept file of that name was brought to the path `out`."""
    if kept is None:
        return False
    try:
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
    """Make `target` a link to, or a copy of, `source` in one step."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
