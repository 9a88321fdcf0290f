"""A helper's part: what a process other than rank 0 does in a merge that several share (distributed.py).

    to a folder  see the folder → sensitivities → its tensors and shards → rank 0 adopts them
    to the Hub   upload what an earlier run left → tell → sensitivities → its shards, uploaded one by one → tell

Every exchange here has its counterpart in merge.py, at the same place in the order. The disk budget is split evenly:
each of n processes may hold two finished shards and 1/n of what is left for fetched inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hubmerge.engine.chunks import runnable
from hubmerge.engine.distributed import ProcessLostError, Ranks
from hubmerge.engine.journal import Journal, plan_identity
from hubmerge.engine.rank_folders import claim, collect, rank_folder, see
from hubmerge.engine.sink import WORK
from hubmerge.engine.stream import Silent, StreamOptions, Variant, merge_share
from hubmerge.engine.usage import usage_now
from hubmerge.errors import SourceNotFoundError
from hubmerge.hub.client import Hub
from hubmerge.methods import get_method
from hubmerge.output.upload import ShardUploader
from hubmerge.plan.disk import DiskGauge, input_budget
from hubmerge.plan.plan import Plan
from hubmerge.sensitivity.file import SensitivityFile, read_sensitivity
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache

if TYPE_CHECKING:
    from hubmerge.prepare import Prepared

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def help_to_folder(
    prepared: Prepared, hub: Hub, folder: Path, cache: Path, options: StreamOptions, disk_budget: int | None
) -> None:
    """This process's share of `merge_to_folder`; `folder` and `cache` are those of rank 0."""
    plan, ranks = prepared.plan, options.ranks
    see(ranks, folder)
    own = rank_folder(folder, ranks.rank)
    claim(ranks, own)
    inputs = input_budget([plan], [folder, cache], own / WORK, disk_budget) // ranks.size
    journal = Journal.open(own, plan, resume=True)
    _merge(Variant(plan, journal, own), hub, own, cache, inputs, options, DiskGauge({folder, cache}))


def help_to_hub(
    prepared: Prepared, hub: Hub, folder: Path, cache: Path, options: StreamOptions, disk_budget: int | None
) -> None:
    """This process's share of `merge_to_hub`; `folder` and `cache` are those of rank 0, seen from here or not."""
    assert prepared.target is not None
    plan, ranks = prepared.plan, options.ranks
    if not ranks.first(False):  # rank 0 has nothing left to merge
        return
    own = rank_folder(folder, ranks.rank)
    own.mkdir(parents=True, exist_ok=True)
    inputs = input_budget([plan] * ranks.size, [own, folder, cache], own, disk_budget, uploaded=True) // ranks.size
    ranks.agree("the plan", plan_identity(plan))  # rank 0 has taken over what it sees
    claim(ranks, own)
    journal = Journal.open(own, plan, resume=True, uploads=True)
    gauge = DiskGauge({folder, cache})
    with ShardUploader(hub, prepared.target, prepared.identity, journal, own, deleting=gauge.sample) as uploader:
        uploader.drain()  # what an earlier run left where rank 0 cannot see it
        collect(ranks, plan, journal)
        if ranks.first(False):
            _merge(Variant(plan, journal, own, settle=uploader.drain), hub, own, cache, inputs, options, gauge)


class _Noting(Silent):
    """Nobody looks at this process: rank 0 says what it warns of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def _merge(
    variant: Variant, hub: Hub, own: Path, cache: Path, inputs: int, options: StreamOptions, gauge: DiskGauge
) -> None:
    plan, ranks = variant.plan, options.ranks
    measured = tuple(file.as_model() for file in share_sensitivities(ranks, plan, cache / "sensitivity"))
    ranks.agree("the plan", plan_identity(plan))
    with ExitStack() as stack:
        store = ShardCache(hub, own / WORK / "inputs", plan.models, inputs, deleting=gauge.sample)
        settle = variant.settle

        def settled() -> None:
            settle()
            gauge.sample()

        variant = replace(variant, sensitivities=tuple(m.tensors for m in measured), settle=settled)
        reader = stack.enter_context(TensorReader((*plan.models, *measured), store))
        observer = _Noting()
        possible = runnable(options, observer)
        opened = stack.enter_context(possible.on_device(plan, observer.warning))
        merge_share([variant], reader, opened, observer, observer.warnings)
    ranks.gather(usage_now(store.fetched, gauge))


def share_sensitivities(
    ranks: Ranks, plan: Plan, folder: Path, files: Sequence[SensitivityFile] = ()
) -> tuple[SensitivityFile, ...]:
    """One file per agent where the method weighs by them: rank 0 gives those that it has named or computed.

    The others open the same: a named one by its name, a computed one in `folder`, where rank 0 keeps them. Raises
    ProcessLostError when they do not see it, or see another one.
    """
    if ranks.size == 1 or "sensitivity" not in get_method(plan.recipe.method).extras:
        return tuple(files)
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
    return tuple(files)


def _sample(file: SensitivityFile) -> bytes:
    """A digest of metadata and of blocks all over the file: gradients of another machine differ nearly everywhere."""
    digest = hashlib.sha256(repr(sorted(file.metadata.to_strings().items())).encode())
    with file.path.open("rb") as source:
        for number in range(_SAMPLES):
            source.seek(file.size * number // _SAMPLES)
            digest.update(source.read(_SAMPLE_BYTES))
    return digest.digest()
