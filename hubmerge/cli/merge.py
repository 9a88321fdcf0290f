"""`hubmerge merge`: one merge into a folder, by one process or by several that a launcher started.

With `accelerate launch … -m hubmerge merge …` or `torchrun … -m hubmerge merge …` every process runs this: rank 0 the
whole line, the others their share of the tensors and shards (helper.py).

With `--null-sink` the output's shards are counted, hashed and dropped. The report goes to standard
output, and what else belongs to a merge lies in a temporary folder meanwhile.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.engine.distributed import join, refuse_several
from hubmerge.engine.pins import NEWEST_ELSEWHERE, going_on, pins_in
from hubmerge.engine.progress import resolving
from hubmerge.engine.sink import MANIFEST, WORK
from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import RecipeError
from hubmerge.hub.client import Hub
from hubmerge.merge import merge_to_folder
from hubmerge.output.helper import help_to_folder
from hubmerge.output.report import Report
from hubmerge.plan.disk import temporary_folder
from hubmerge.prepare import prepare
from hubmerge.recipe.file import load_recipe
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, hub: Hub, terminal: Terminal, options: StreamOptions) -> int:
    """The command; returns the exit code."""
    if arguments.null_sink:
        return _into_nothing(arguments, settings, hub, terminal, options)
    folder: Path = arguments.out
    cache = folder / WORK / "inputs"
    with join(settings) as ranks:
        options = replace(options, ranks=ranks)
        terminal.stage("resolve")
        recipe = load_recipe(arguments.recipe)
        prepared = going_on(
            pins_in(folder),
            recipe,
            lambda commits: prepare(
                recipe,
                hub,
                license_choice=arguments.license,
                allow_local=True,
                commits=commits,
                tell=resolving(terminal),
                begin=terminal.stage,
            ),
            hub=hub,
            ranks=ranks,
            warn=terminal.warning,
            newest=NEWEST_ELSEWHERE,
        )
        ranks.agree("the merge", prepared.identity)
        finished = ranks.first((folder / MANIFEST).is_file())
        if ranks.rank:
            terminal.close()
            if not finished:
                help_to_folder(prepared, hub, folder, cache, options, arguments.disk_budget)
            return 0
        report = merge_to_folder(
            prepared,
            hub,
            folder,
            cache=cache,
            observer=terminal,
            options=options,
            sensitivities=settings.data_dir / "sensitivity",
            resume=True,
            disk_budget=arguments.disk_budget,
        )
    if not finished:
        terminal.usage(report.environment)
    what = f"{report.method['title']} of {len(report.outcomes)} agents, {report.identity[:16]}"
    terminal.say(
        f"{folder}: {what}{', finished before' if finished else ''}\n",
        **merged_facts(folder, report),
        finished_before=finished,
    )
    return 0


def merged_facts(folder: Path, report: Report) -> dict[str, Any]:
    """The facts that `--json` prints about a merge in a folder; its hubmerge.json has all of them."""
    return {
        "folder": str(folder),
        "identity": report.identity,
        "method": report.method["name"],
        "files": [asdict(file) for file in report.files],
        "license": dict(report.license),
        "warnings": list(report.warnings),
    }


def _into_nothing(arguments: Any, settings: Settings, hub: Hub, terminal: Terminal, options: StreamOptions) -> int:
    refuse_several(settings, "merge --null-sink")
    if arguments.resume:
        raise RecipeError(
            "a merge into the null sink leaves nothing to go on with",
            where="--resume",
            next_step="Leave --resume out, or name a folder with --out.",
        )
    terminal.stage("resolve")
    prepared = prepare(
        load_recipe(arguments.recipe),
        hub,
        license_choice=arguments.license,
        allow_local=True,
        tell=resolving(terminal),
        begin=terminal.stage,
    )
    terminal.warning("the output is counted and hashed, and nothing of it is kept; its report goes to standard output")
    with temporary_folder() as place:
        report = merge_to_folder(
            prepared,
            hub,
            place,
            cache=place / WORK / "inputs",
            observer=terminal,
            options=replace(options, sink="null"),
            sensitivities=settings.data_dir / "sensitivity",
            disk_budget=arguments.disk_budget,
        )
    sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    return 0
