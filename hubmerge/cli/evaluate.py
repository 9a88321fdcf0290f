"""`hubmerge evaluate MODEL --suite NAME [--split dev] [--limit N] [--out FILE.json]`.

Prints a table of the scores; `--out` writes the result as it goes into a results dataset, and per-sample details
beside it. Run again after a stop, it goes on from what was generated. Exit code 1 when the run failed.
"""

import json
import shutil
from tempfile import TemporaryFile
from typing import Any

from hubmerge.board.results_dataset import details_of
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import DiskError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.runner import EvaluateOptions
from hubmerge.evaluation.suites import pin
from hubmerge.hub.login import hub_of_user
from hubmerge.library import evaluate, evaluation_folder
from hubmerge.machine.disk_errors import make_folder, writing
from hubmerge.machine.extras import require
from hubmerge.recipe.file import model_here
from hubmerge.settings import Settings

_DETAILS = ".details"


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    require("eval", "an evaluation")
    if arguments.out is not None:  # said before hours of generating
        make_folder(arguments.out.parent)
        if arguments.out.is_dir() or arguments.out.suffix == _DETAILS:
            got, step = "the name of a folder", "Name a file that ends in .json."
            raise DiskError("the result cannot be written", where=str(arguments.out), got=got, next_step=step)
        with writing(arguments.out), TemporaryFile(dir=arguments.out.parent):
            pass
    hub, name = hub_of_user(settings), model_here(arguments.model, terminal.warning)
    terminal.stage("resolve")
    suite = pin(arguments.suite, hub, arguments.split, limit=arguments.limit, dtype=arguments.dtype)
    options = EvaluateOptions(
        limit=arguments.limit,
        batch_size=arguments.batch_size,
        device=arguments.device,
        dtype=arguments.dtype,
        wall_s=arguments.wall_limit,
        memory_bytes=arguments.memory_limit,
    )
    result = evaluate(name, suite, hub=hub, options=options, observer=terminal)
    if arguments.out is not None:
        details = arguments.out.with_suffix(_DETAILS)
        for earlier in details.glob("*.parquet"):
            earlier.unlink()
        for path in details_of(result, evaluation_folder(settings, name, suite)).values():
            details.mkdir(exist_ok=True)
            shutil.copy(path, details)
        arguments.out.write_text(result.to_json(), encoding="utf-8")
    terminal.say(table(result), **json.loads(result.to_json()))
    return 0 if result.status == "done" else 1


def table(result: EvaluationResult) -> str:
    """A result for a terminal."""
    head = f"{result.model}@{result.sha[:12]}, suite {result.suite} {result.suite_version}, {result.split}\n"
    if result.error is not None:
        return f"{head}failed: {result.error.message}\n"
    if (base := result.environment.adapter_base) is not None:
        head += f"merged onto its base, {base}\n"
    if (stored := result.environment.stored_dtype) is not None:
        head += f"in {result.environment.dtype}, since {stored}, in which it is stored, did not fit here\n"
    width = max(len(score.task) for score in result.tasks)
    lines = []
    for score in result.tasks:
        spread = "" if score.stderr is None else f" ± {100 * score.stderr:.1f}"
        cut = f", {score.truncated} of them cut" if score.truncated else ""
        lines.append(
            f"{score.task:<{width}}  {100 * score.value:5.1f}{spread}  {score.metric}, {score.samples} prompts{cut}\n"
        )
    return head + "".join(lines)
