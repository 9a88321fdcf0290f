"""`hubmerge sensitivity MODEL --data FILE --prompt COLUMN --answer COLUMN --out FILE`."""

from typing import Any

from pydantic import ValidationError

from hubmerge.cli.terminal import Terminal
from hubmerge.engine.device import require_cuda
from hubmerge.errors import Problem, SensitivityError
from hubmerge.hub.login import hub_of_user
from hubmerge.machine.extras import require
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.file import model_here
from hubmerge.recipe.recipe import issue_words
from hubmerge.sensitivity.pairs import LOADERS, load_pairs
from hubmerge.settings import Settings
from hubmerge.sources.open import open_model


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
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
    asked = {name: getattr(arguments, name) for name in CalibrationSpec.model_fields}
    try:
        return CalibrationSpec.model_validate({name: value for name, value in asked.items() if value is not None})
    except ValidationError as error:
        problems = []
        for issue in error.errors(include_url=False):
            option = "--" + str(issue["loc"][0]).replace("_", "-")
            problems.append(Problem(SensitivityError.code, issue_words(issue), option, got=str(issue["input"])[:80]))
        raise SensitivityError("the calibration data is not well described", problems=problems) from None
