"""`hubmerge init BASE AGENT… [--out recipe.yaml]`: writes a first recipe, with comments from the models' headers.

It opens the models as a merge would, so it can say beside the recipe at once what speaks against the merge.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hubmerge.cli.terminal import Terminal
from hubmerge.engine.progress import resolving
from hubmerge.errors import IncompatibleError, TargetExistsError, printable
from hubmerge.hub.login import hub_of_user
from hubmerge.machine.disk_errors import written
from hubmerge.methods import get_method
from hubmerge.plan.compatibility import architecture
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.file import located
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.recipe.schema import SCHEMA_URL
from hubmerge.settings import Settings
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_models
from hubmerge.text.plain_yaml import dump_plain_yaml

_COMMENT_AT = 40  # column
_CALIBRATION = {"data": "org/dataset", "prompt": "question", "answer": "answer"}  # whose names stand for the user's


def run_cli(arguments: Any, settings: Settings, terminal: Terminal) -> int:
    """Write the recipe; nothing is written where an error is raised."""
    out: Path | None = arguments.out
    if out is not None and (out.exists() or out.is_symlink()):
        raise TargetExistsError(
            "the recipe is there already",
            where=str(out),
            expected="a new file",
            next_step="Name another file with --out; nothing was written.",
        )
    named = {"base": arguments.base, "agents": list(arguments.agents), "method": arguments.method or "linear"}
    recipe = located(recipe_from_dict(named, "the command"), Path())
    for note in recipe.notes:
        terminal.warning(note)
    terminal.stage("resolve")
    base, agents = open_models(recipe, hub_of_user(settings), allow_local=True, tell=resolving(terminal))
    terminal.close()
    # RAM+ for sparse updates of full weights, as RL leaves them; TIES for adapters, which change nearly everything
    method = arguments.method or ("ties" if any(agent.adapter is not None for agent in agents) else "ram_plus")
    refused: list[str] = []
    try:
        named = {**recipe.to_dict(), "method": method, "parameters": {}}
        make_plan(recipe_from_dict(named | ({"calibration": _CALIBRATION} if _weighs(method) else {})), base, agents)
    except IncompatibleError as error:
        refused = [str(problem) for problem in error.problems]
        for problem in refused:
            terminal.warning(problem)
    names = [recipe.base, *(agent.model for agent in recipe.agents)]
    text = draft(_written(names, out.parent if out else Path()), (base, *agents), method, refused)
    if out is None:
        sys.stdout.write(text)
        return 0
    with written("the recipe cannot be written", str(out)), out.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            out.unlink()  # a part of a recipe may be one, too
            raise
    path = shlex.quote(str(out))
    sys.stdout.write(f"{out} is written; `hubmerge inspect {path}` checks it, `hubmerge merge {path} --out …` merges\n")
    return 0


def _weighs(method: str) -> bool:
    """Whether a method weighs by sensitivities, which are measured on calibration data."""
    return "sensitivity" in get_method(method).extras


def _written(names: Sequence[ModelName], folder: Path) -> list[str]:
    """The names as a recipe in `folder` writes them: relative folders from there, or from where a link leads to."""
    written = []
    for name in names:
        text = str(name)
        if name.local and not text.startswith(("/", "~", "synthetic:")):
            text = os.path.relpath(text, os.path.realpath(folder))
            text = text if text.startswith(".") else f"./{text}"
        written.append(text)
    return written


def draft(names: Sequence[str], models: Sequence[Model], method: str, refused: Sequence[str] = ()) -> str:
    """The text of a recipe of these models, the base first; `refused`: why it cannot be merged as it stands."""
    chosen = get_method(method)
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_URL}",
        "# A recipe of hubmerge: `hubmerge inspect` checks it, `hubmerge probe` counts what its agents changed, and",
        "# `hubmerge merge` or `hubmerge run` merges. Relative paths begin at this file.",
        *(f"# It cannot be merged as it stands: {printable(problem)}" for problem in refused),
        _commented(_plain({"base": names[0]}), _facts(models[0])),
        "agents:  # in this order; `{model: …, weight: 0.5}` counts one by a factor",
        *(_commented(f"  {_plain([name])}", _facts(model)) for name, model in zip(names[1:], models[1:], strict=True)),
    ]
    if len(models) < 3:
        lines.append("  # - org/another-agent  # a merge needs two")
    lines.append(_commented(f"method: {method}", f"{chosen.title}: {chosen.summary}"))
    fields = chosen.parameters.model_fields
    lines += ["# parameters:  # the defaults"] * bool(fields)
    for name, field in fields.items():
        default = _plain({field.alias or name: field.get_default(call_default_factory=True)})
        lines.append(_commented(f"#   {default}", field.description or ""))
    if _weighs(method):
        table = ", ".join(f"{key}: {value}" for key, value in _CALIBRATION.items())
        lines.append(f"calibration: {{{table}}}  # what to measure on: put your own data here")
    stored = sorted({tensor.kept_dtype for tensor in models[0].tensors.values()})
    lines += [
        _commented("# dtype: bfloat16", f"default: as the base stores it ({', '.join(stored)})"),
        _commented("# rounding: nearest", "or stochastic; default: the method's"),
        _commented('# ignore: ["v_head.*"]', "tensors that are not merged, by patterns of their names"),
        _commented("seed: 0", "for random drops and stochastic rounding"),
    ]
    return "\n".join(lines) + "\n"


def _facts(model: Model) -> str:
    """Facts from the headers, for a comment."""
    elements = sum(tensor.entry.elements for tensor in model.tensors.values())
    what = model.kind if model.adapter is not None else f"{architecture(model)}, {model.kind}"
    at = f"; {model.ref.requested} is at {model.ref.sha}" if model.ref.kind == "hub" else ""
    return f"{what}, {elements:,} elements, license {model.license or 'not stated'}{at}"


def _plain(value: Any) -> str:
    return dump_plain_yaml(value).strip()


def _commented(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_AT}}  # {printable(comment)}" if comment else text
