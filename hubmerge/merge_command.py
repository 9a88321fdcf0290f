"""`hubmerge merge`: one merge into a folder, by one process or by several that a launcher started.

With `accelerate launch … -m hubmerge merge …` or `torchrun … -m hubmerge merge …` every process runs this: rank 0 the
whole line, the others `_help`, their share of the tensors and shards (distributed.py).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hubmerge.disk import input_budget
from hubmerge.distributed import Ranks, join, rank_folder
from hubmerge.errors import RecipeError
from hubmerge.hub import Hub
from hubmerge.line import Prepared, merge_to_folder, prepare
from hubmerge.methods import get_method
from hubmerge.progress import Observer
from hubmerge.recipe import load_recipe
from hubmerge.settings import Settings
from hubmerge.sink import MANIFEST, WORK, Journal, plan_identity
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache
from hubmerge.stream import Silent, StreamOptions, Variant, merge_share


def run_cli(arguments: Any, settings: Settings, hub: Hub, terminal: Observer, options: StreamOptions) -> int:
    """The command; returns the exit code."""
    folder: Path = arguments.out
    with join(settings) as ranks:
        terminal.stage("resolve")
        prepared = prepare(load_recipe(arguments.recipe), hub, license_choice=arguments.license, allow_local=True)
        if ranks.size > 1:
            _check_shared(prepared, ranks)
        finished = ranks.first((folder / MANIFEST).is_file())
        if ranks.rank:
            if not finished:
                _help(prepared, hub, folder, ranks, options, arguments.disk_budget)
            return 0
        report = merge_to_folder(
            prepared,
            hub,
            folder,
            cache=folder / WORK / "inputs",
            observer=terminal,
            options=replace(options, ranks=ranks),
            sensitivities=settings.data_dir / "sensitivity",
            resume=arguments.resume,
            disk_budget=arguments.disk_budget,
        )
    sys.stdout.write(f"{folder}: {report.method['title']} of {len(report.outcomes)} agents, {report.identity[:16]}\n")
    return 0


def _check_shared(prepared: Prepared, ranks: Ranks) -> None:
    """RecipeError for what several processes cannot share."""
    method = get_method(prepared.plan.recipe.method)
    if "sensitivity" in method.extras:
        raise RecipeError(
            "a method that weighs by sensitivities is merged by one process",
            where=method.name,
            got=f"{ranks.size} processes",
            next_step="Start the same command without a launcher.",
        )


def _help(
    prepared: Prepared, hub: Hub, folder: Path, ranks: Ranks, options: StreamOptions, disk_budget: int | None
) -> None:
    """This process's share of the merge that rank 0 leads."""
    plan = prepared.plan
    ranks.agree("the plan", plan_identity(plan))  # rank 0 answers when the folder is its own
    own = rank_folder(folder, ranks.rank)
    cache = own / WORK / "inputs"
    inputs = input_budget([plan], [folder], cache, disk_budget) // ranks.size
    variant = Variant(plan, Journal.open(own, plan, resume=True), own)
    with (
        TensorReader(plan.models, ShardCache(hub, cache, plan.models, inputs)) as reader,
        replace(options, ranks=ranks).on_device(lambda message: None) as opened,
    ):
        merge_share([variant], reader, opened, Silent())
