"""`hubmerge sweep FILE --out FOLDER`: several merges of the same models, a folder or a repo each, and their table."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hubmerge.cli.merge import merged_facts
from hubmerge.cli.terminal import Terminal
from hubmerge.engine.distributed import refuse_several
from hubmerge.engine.pins import NEWEST_ELSEWHERE, going_on, pins_in
from hubmerge.engine.progress import resolving
from hubmerge.engine.sink import MANIFEST
from hubmerge.engine.stream import StreamOptions, layout_of
from hubmerge.engine.usage import together
from hubmerge.hub.client import Hub
from hubmerge.merge import merge_to_folders
from hubmerge.output.finished import publish_folder
from hubmerge.output.publish import Target, check_target
from hubmerge.output.report import sweep_table
from hubmerge.prepare import Prepared, prepare_variants
from hubmerge.recipe.sweep import load_sweep
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, hub: Hub, terminal: Terminal, options: StreamOptions) -> int:
    """Merge, publish where that was asked for, print the table; errors are raised for the caller to print."""
    refuse_several(settings, "sweep")
    terminal.stage("resolve")
    variants = load_sweep(arguments.sweep).variants
    recipes = [recipe for _, recipe in variants]
    begun = (pins_in(arguments.out / name) for name, _ in variants)
    prepared = going_on(
        next(filter(None, begun), None),
        recipes[0],
        lambda commits: prepare_variants(
            recipes,
            hub,
            license_choice=arguments.license,
            licensed=arguments.to is not None,
            allow_local=True,
            commits=commits,
            tell=resolving(terminal),
            begin=terminal.stage,
        ),
        hub=hub,
        ranks=options.ranks,
        warn=terminal.warning,
        newest=NEWEST_ELSEWHERE,
    )
    shown = (arguments.private, arguments.public)
    targets = {name: Target(f"{arguments.to}-{name}", *shown) for name, _ in variants if arguments.to}
    for (name, _), one in zip(variants, prepared, strict=True):
        if name in targets:  # before anything is fetched
            targets[name].refuse_to_expose(one.plan.sources)
            check_target(hub, targets[name], one.identity)
    finished = all((arguments.out / name / MANIFEST).is_file() for name, _ in variants)
    reports = merge_to_folders(
        [(p, arguments.out / name) for p, (name, _) in zip(prepared, variants, strict=True)],
        hub,
        cache=arguments.out / ".inputs",
        observer=terminal,
        options=options,
        sensitivities=settings.data_dir / "sensitivity",
        resume=True,
        disk_budget=arguments.disk_budget,
    )
    if not finished:
        terminal.usage(usage_of(prepared, [report.environment for report in reports]))
    made = {name: merged_facts(arguments.out / name, one) for (name, _), one in zip(variants, reports, strict=True)}
    for name, target in targets.items():
        published = publish_folder(target, arguments.out / name, hub, terminal, license_choice=arguments.license)
        made[name] |= asdict(published)
        terminal.say(published.url + "\n")
    terminal.close()
    shutil.rmtree(arguments.out / ".inputs", ignore_errors=True)
    table = sweep_table({name: report for (name, _), report in zip(variants, reports, strict=True)})
    (arguments.out / "sweep.md").write_text(table, encoding="utf-8")
    terminal.say(table + "\n", folder=str(arguments.out), variants=[{"name": n, **facts} for n, facts in made.items()])
    return 0


def usage_of(prepared: Sequence[Prepared], environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage of all variants together. Variants of one pass state the same, or less where they finished earlier."""
    passes: dict[object, Mapping[str, Any]] = {}
    for one, environment in zip(prepared, environments, strict=True):
        known = passes.setdefault(layout_of(one.plan), environment)
        if environment.get("fetch", {}).get("bytes", 0) > known.get("fetch", {}).get("bytes", 0):
            passes[layout_of(one.plan)] = environment
    return together(list(passes.values()))
