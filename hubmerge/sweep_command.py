"""`hubmerge sweep FILE --out FOLDER`: several merges of the same models, a folder or a repo each, and their table."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from hubmerge.distributed import refuse_several
from hubmerge.finished import publish_folder
from hubmerge.hub import Hub
from hubmerge.line import merge_to_folders
from hubmerge.prepare import prepare_variants
from hubmerge.publish import Target, check_target
from hubmerge.settings import Settings
from hubmerge.stream import StreamOptions
from hubmerge.sweep import load_sweep, sweep_table
from hubmerge.terminal import Terminal


def run_cli(arguments: Any, settings: Settings, hub: Hub, terminal: Terminal, options: StreamOptions) -> int:
    """Merge, publish where that was asked for, print the table; errors are raised for the caller to print."""
    refuse_several(settings, "sweep")
    terminal.stage("resolve")
    variants = load_sweep(arguments.sweep).variants
    prepared = prepare_variants(
        [recipe for _, recipe in variants], hub, license_choice=arguments.license, allow_local=True
    )
    targets = {name: Target(f"{arguments.to}-{name}", arguments.private) for name, _ in variants if arguments.to}
    for (name, _), one in zip(variants, prepared, strict=True):
        if name in targets:  # before anything is fetched
            check_target(hub, targets[name], one.identity)
    reports = merge_to_folders(
        [(p, arguments.out / name) for p, (name, _) in zip(prepared, variants, strict=True)],
        hub,
        cache=arguments.out / ".inputs",
        observer=terminal,
        options=options,
        sensitivities=settings.data_dir / "sensitivity",
        resume=arguments.resume,
        disk_budget=arguments.disk_budget,
    )
    for name, target in targets.items():
        sys.stdout.write(publish_folder(target, arguments.out / name, hub, terminal).url + "\n")
    terminal.close()
    shutil.rmtree(arguments.out / ".inputs", ignore_errors=True)
    table = sweep_table({name: report for (name, _), report in zip(variants, reports, strict=True)})
    (arguments.out / "sweep.md").write_text(table, encoding="utf-8")
    sys.stdout.write(table + "\n")
    return 0
