"""`hubmerge merge`, of a recipe, and `hubmerge sweep`, of several variants of one: into folders, or into nothing.

`merge` of one recipe can be started as several processes by a launcher (`torchrun … -m hubmerge merge …`).

With `--null-sink` the output's shards are counted, hashed and dropped. The report goes to standard
output, and what else belongs to a merge lies in a temporary folder meanwhile.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hubmerge.cli.options import stream_options
from hubmerge.cli.terminal import Terminal
from hubmerge.engine.distributed import join, refuse_several
from hubmerge.engine.pins import pins_in
from hubmerge.engine.progress import of_rank
from hubmerge.engine.sink import MANIFEST, sole_owner
from hubmerge.engine.stream import StreamOptions, layout_of
from hubmerge.engine.usage import together
from hubmerge.errors import RecipeError
from hubmerge.hub.client import Hub
from hubmerge.hub.login import hub_of_user
from hubmerge.library import merge, prepared_at
from hubmerge.line import Prepared, Request, merge_to_folder, merge_to_folders, prepare
from hubmerge.output.finished import publish_folder
from hubmerge.output.publish import Target, check_target
from hubmerge.output.report import Report, sweep_table
from hubmerge.plan.disk import temporary_folder
from hubmerge.recipe.file import load_recipe
from hubmerge.recipe.sweep import load_sweep
from hubmerge.settings import Settings
from hubmerge.text.wording import counted


def run_merge(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """The command `merge`; returns the exit code."""
    if arguments.null_sink:
        arguments.again = ""  # the same command begins anew
    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    if arguments.null_sink:
        return _into_nothing(arguments, settings, hub, terminal, options)
    folder: Path = arguments.out
    with join(settings, terminal) as ranks:
        options = replace(options, ranks=ranks)
        finished = ranks.first((folder / MANIFEST).is_file())
        observer = of_rank(terminal, ranks.rank)
        report = merge(arguments.recipe, folder, license=arguments.license, hub=hub, options=options, observer=observer)
    if ranks.rank:
        return 0
    if not finished:
        terminal.usage(report.environment)
    what = f"{report.method['title']} of {counted(len(report.outcomes), 'agent')}, {report.identity[:16]}"
    terminal.say(
        f"{folder}: {what}{', finished before' if finished else ''}\n",
        **_merged_facts(folder, report),
        finished_before=finished,
    )
    return 0


def run_sweep(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """The command `sweep`: merge, publish where that was asked for, print the table; returns the exit code."""
    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    refuse_several(settings, "sweep")
    if arguments.to is None and (arguments.private or arguments.public):
        raise RecipeError("--private and --public are about what is published", expected="--to")
    terminal.stage("resolve")
    variants = dict(load_sweep(arguments.sweep).variants)
    folders = {name: arguments.out / name for name in variants}
    request = Request(license=arguments.license, will_publish=arguments.to is not None, allow_local=True)
    begun = next(filter(None, map(pins_in, folders.values())), None)
    prepared = prepared_at(list(variants.values()), begun, request, hub, options, terminal)
    shown = (arguments.private, arguments.public)
    targets = {name: Target(f"{arguments.to}-{name}", *shown) for name in variants if arguments.to}
    for target, one in zip(targets.values(), prepared, strict=False):  # before anything is fetched
        target.refuse_to_expose(one.plan.sources)
        check_target(hub, target, one.identity)
    cache = arguments.out / ".inputs"
    with sole_owner(arguments.out):  # another sweep would fetch inputs to the same place, and remove them
        finished = all((folder / MANIFEST).is_file() for folder in folders.values())
        merges, options = list(zip(prepared, folders.values(), strict=True)), replace(options, cache=cache)
        reports = dict(zip(variants, merge_to_folders(merges, hub, options, terminal), strict=True))
        if not finished:
            terminal.usage(_usage_of(prepared, [report.environment for report in reports.values()]))
        made = {name: _merged_facts(folders[name], report) for name, report in reports.items()}
        for name, target in targets.items():
            published = publish_folder(target, folders[name], hub, terminal, license_choice=arguments.license)
            made[name] |= asdict(published)
            terminal.say(published.url + "\n")
        terminal.close()
        shutil.rmtree(cache, ignore_errors=True)
        table = sweep_table(reports)
        (arguments.out / "sweep.md").write_text(table, encoding="utf-8")
    terminal.say(table + "\n", folder=str(arguments.out), variants=[{"name": n, **facts} for n, facts in made.items()])
    return 0


def _usage_of(prepared: Sequence[Prepared], environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all variants; those that were merged in one pass say the same, or less where they were finished earlier."""
    passes: dict[object, Mapping[str, Any]] = {}
    for one, environment in zip(prepared, environments, strict=True):
        known = passes.setdefault(layout_of(one.plan), environment)
        if environment.get("fetch", {}).get("bytes", 0) > known.get("fetch", {}).get("bytes", 0):
            passes[layout_of(one.plan)] = environment
    return together(list(passes.values()))


def _merged_facts(folder: Path, report: Report) -> dict[str, Any]:
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
    request = Request(license=arguments.license, allow_local=True)
    prepared = prepare(load_recipe(arguments.recipe), hub, request, terminal)
    terminal.warning("the output is counted and hashed, and nothing of it is kept; its report goes to standard output")
    with temporary_folder() as place:
        report = merge_to_folder(prepared, hub, place, replace(options, sink="null"), terminal)
    sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    return 0
