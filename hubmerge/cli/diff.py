"""`hubmerge diff BASE AGENT`: what a training changed, as tables, as JSON and as a figure (docs/diff.md)."""

from pathlib import Path
from typing import Any

from hubmerge.cli.options import stream_options
from hubmerge.cli.terminal import Terminal
from hubmerge.hub.login import hub_of_user
from hubmerge.machine.disk_errors import written
from hubmerge.output.diff import comparison_recipe, measure, open_comparison
from hubmerge.output.diff_figure import draw
from hubmerge.output.diff_words import in_words
from hubmerge.plan.disk import temporary_folder
from hubmerge.recipe.file import located
from hubmerge.settings import Settings


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """Read both models once and print what differs."""
    hub, options = hub_of_user(settings), stream_options(arguments, settings)
    what, figure = "the figure cannot be written", arguments.figure
    terminal.stage("resolve")
    recipe = located(comparison_recipe(arguments.base, arguments.agent, arguments.ignore), Path())
    for note in recipe.notes:
        terminal.warning(note)
    plan = open_comparison(recipe, hub, allow_local=True)
    if figure is not None:
        is_new = not figure.exists()
        with written(what, str(figure)), figure.open("ab"):  # said before minutes of reading
            pass
        if is_new:  # an empty one would be left if the reading fails
            figure.resolve().unlink()
    with temporary_folder() as cache:
        diff = measure(plan, hub, options, terminal, cache=cache, disk_budget=arguments.disk_budget)
    if figure is not None:
        terminal.stage("figure")
        with written(what, str(figure)):
            figure.write_bytes(draw(diff))
    terminal.close()
    terminal.say(in_words(diff, arguments.top), **diff.to_json())
    return 0
