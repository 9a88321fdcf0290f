"""`hubmerge sensitivity MODEL --data FILE --prompt COLUMN --answer COLUMN --out FILE`.

Apart from the package, so that building the command line's parser imports nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hubmerge.cli.flags import positive
from hubmerge.errors import Problem, SensitivityError
from hubmerge.machine.extras import require
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.cli.terminal import Terminal
    from hubmerge.recipe.calibration import CalibrationSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is not given takes CalibrationSpec's default."""
    parser.add_argument("model", help="a Hub id such as org/name@revision, or ./folder")
    parser.add_argument("--data", required=True, help="a JSONL file, or the id of a dataset on the Hub")
    parser.add_argument("--prompt", required=True, metavar="COLUMN", help="the column of the questions")
    parser.add_argument("--answer", required=True, metavar="COLUMN", help="the column of the answers")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a safetensors file")
    parser.add_argument("--subset", help="the subset (config) of a Hub dataset, where it has several")
    parser.add_argument("--split", help="the split of a Hub dataset (train)")
    parser.add_argument("--revision", help="the revision of a Hub dataset")
    parser.add_argument("--max-pairs", type=int, help="the most pairs, chosen by the hash of their texts (128)")
    parser.add_argument("--max-tokens", type=int, help="the most tokens of one pair (1024)")
    parser.add_argument("--seed", type=int, help="which pairs are chosen (0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes the gradients")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="the dtype of the gradients"
    )
    words = "after how many pairs the sums are kept; default: 16"
    parser.add_argument("--checkpoint-every", type=positive, default=16, metavar="PAIRS", help=words)
    parser.add_argument("--restart", action="store_true", help="begin again instead of going on")


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    from hubmerge.engine.device import require_cuda
    from hubmerge.hub.login import hub_of_user
    from hubmerge.recipe.file import model_here
    from hubmerge.sensitivity.pairs import LOADERS, load_pairs
    from hubmerge.sources.open import open_model

    spec = _spec(arguments)
    require("eval", "a sensitivity", *LOADERS)
    if arguments.device == "cuda":
        require_cuda()
    hub = hub_of_user(settings)
    terminal.stage("fetch data")
    pairs = load_pairs(spec, hub)
    from hubmerge.sensitivity.compute import compute_sensitivity  # after the data: it imports torch, in seconds

    name = model_here(arguments.model, terminal.warning)
    file = compute_sensitivity(
        open_model(name, hub, allow_local=True),
        pairs,
        arguments.out,
        spec=spec,
        hub=hub,
        device=arguments.device,
        dtype=arguments.dtype,
        progress=terminal.progress,
        resume=not arguments.restart,
        checkpoint_every=arguments.checkpoint_every,
    )
    terminal.close()
    path, tensors, pairs_read, digest = file.path, len(file.tensors), file.metadata.pairs, file.metadata.data_digest
    terminal.say(
        f"{path}: {tensors} tensors from {pairs_read} pairs, data {digest[:16]}\n",
        file=str(path),
        tensors=tensors,
        pairs=pairs_read,
        data_digest=digest,
    )
    return 0


def _spec(arguments: Any) -> CalibrationSpec:
    from pydantic import ValidationError

    from hubmerge.recipe.calibration import CalibrationSpec
    from hubmerge.recipe.recipe import issue_words

    asked = {name: getattr(arguments, name) for name in CalibrationSpec.model_fields}
    try:
        return CalibrationSpec.model_validate({name: value for name, value in asked.items() if value is not None})
    except ValidationError as error:
        problems = []
        for issue in error.errors(include_url=False):
            option = "--" + str(issue["loc"][0]).replace("_", "-")
            problems.append(Problem(SensitivityError.code, issue_words(issue), option, got=str(issue["input"])[:80]))
        raise SensitivityError("the calibration data is not well described", problems=problems) from None
