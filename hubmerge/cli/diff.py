"""`hubmerge diff BASE AGENT`: what a training changed, as tables, as JSON and as a figure (docs/diff.md).

The code that reads models is imported when the command runs; building the command line's parser imports nothing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubmerge.cli.flags import positive, stream_options
from hubmerge.errors import DiskError
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.cli.terminal import Terminal

TOP = 10


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "base", metavar="BASE", help="the model before: a Hub id such as org/name@revision, or a folder"
    )
    command.add_argument("agent", metavar="AGENT", help="the model after; may be a LoRA adapter on the base")
    words = "a pattern of tensor names that are left out, such as 'v_head.*'; may stand several times"
    command.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help=words)
    words = "also draw it: what changed by layer and module type, and by how much"
    command.add_argument("--figure", type=_svg, metavar="FILE.svg", help=words)
    words = f"how many of the most changed tensors are listed; default: {TOP}"
    command.add_argument("--top", type=positive, default=TOP, metavar="N", help=words)


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """Read both models once and print what differs."""
    from hubmerge.hub.login import hub_of_user
    from hubmerge.output.diff import comparison_recipe, measure, open_comparison
    from hubmerge.output.diff_words import in_words
    from hubmerge.plan.disk import temporary_folder
    from hubmerge.recipe.file import located

    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    if arguments.figure is not None and (why := _why_not_written(arguments.figure)):  # said before minutes of reading
        raise _unwritable(arguments.figure, why)
    terminal.stage("resolve")
    recipe = located(comparison_recipe(arguments.base, arguments.agent, arguments.ignore), Path())
    for note in recipe.notes:
        terminal.warning(note)
    plan = open_comparison(recipe, hub, allow_local=True)
    with temporary_folder() as cache:
        diff = measure(plan, hub, options, terminal, cache=cache, disk_budget=arguments.disk_budget)
    if arguments.figure is not None:
        terminal.stage("figure")
        from hubmerge.output.diff_figure import draw

        try:
            arguments.figure.write_bytes(draw(diff))
        except OSError as error:
            raise _unwritable(arguments.figure, error.strerror or str(error)) from None
    terminal.close()
    terminal.say(in_words(diff, arguments.top), **diff.to_json())
    return 0


def _why_not_written(path: Path) -> str:
    if not path.parent.is_dir():
        return "no such folder"
    if path.is_dir():
        return "a folder of that name"
    return "" if os.access(path if path.exists() else path.parent, os.W_OK) else "no right to write there"


def _unwritable(path: Path, got: str) -> DiskError:
    return DiskError(
        "the figure cannot be written", where=str(path), got=got, next_step="Name a file in a folder of yours."
    )


def _svg(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".svg":
        raise argparse.ArgumentTypeError(f"a figure is an SVG file: give a name that ends in .svg, not {text[:80]!r}")
    return path
