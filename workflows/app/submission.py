"""Checks that the form and the API both make before they call the service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hubmerge.errors import PermissionDeniedError, RecipeError
from hubmerge.hub.names import is_hub_id
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.recipe.sweep import Sweep, is_sweep, sweep_from_dict
from workflows.app.service import MergeRequest, Visitor
from workflows.app.typed_names import names_in

_MOST_CHARACTERS = 400  # of a model's name and revision
_REPO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,95}")


def checked_recipe(content: Mapping[str, Any]) -> Recipe:
    """A valid recipe of what lies on the Hub. A folder or file would be this server's, and is the command line's."""
    recipe = recipe_from_dict(content)
    _refuse_local(recipe)
    return recipe


def _refuse_local(recipe: Recipe) -> None:
    folders = [model.id for model in (recipe.base, *(a.model for a in recipe.agents)) if model.local]
    if folders:
        raise RecipeError(
            "a folder, where only models on the Hub can be used",
            where="the recipe",
            expected="org/name or org/name@revision",
            got=", ".join(folders)[:200],
        )
    specs = {"the recipe": recipe.calibration, **{str(a.model): a.calibration for a in recipe.agents}}
    files = [f"calibration data of {name}: {spec.data}" for name, spec in specs.items() if spec and spec.is_file]
    files += [f"sensitivity of {a.model}: {a.sensitivity}" for a in recipe.agents if a.sensitivity]
    if files:
        raise RecipeError(
            "a file, where only data on the Hub can be used",
            where="the recipe",
            expected="a dataset's id, such as openai/gsm8k",
            got=", ".join(files)[:200],
        )


def checked_sweep(content: Mapping[str, Any]) -> Sweep:
    """A valid sweep of what lies on the Hub."""
    if not is_sweep(content):
        raise RecipeError("this is no sweep", where="the sweep", expected="a list under `sweep`")
    sweep = sweep_from_dict(content)
    for _, recipe in sweep.variants:
        _refuse_local(recipe)
    return sweep


def checked_comparison(base: str, agent: str, endpoint: str) -> tuple[str, str]:
    """The names of two models on the Hub, given by ids or by their pages' addresses."""
    return one_model(base, endpoint, "base"), one_model(agent, endpoint, "agent")


def one_model(text: str, endpoint: str, where: str = "model") -> str:
    """The one model on the Hub that somebody named by its id or its page's address."""
    names = names_in([str(text or "")[:_MOST_CHARACTERS]], endpoint)
    if len(names) != 1 or not is_hub_id(names[0].partition("@")[0]):
        raise RecipeError(
            "several models, where one is needed" if len(names) > 1 else "no model of the Hub is named",
            where=where,
            expected="org/name, or the address of its page on the Hub",
            got=", ".join(names)[:200] or "nothing",
        )
    return names[0]


def submission(
    recipe: Mapping[str, Any], *, target: str, private: bool, license: str | None, visitor: Visitor, suite: str = ""
) -> MergeRequest:
    """A request to start; RecipeError or PermissionDeniedError where the target cannot be the visitor's."""
    namespace, slash, name = target.partition("/")
    if not slash:
        raise RecipeError(
            "the result needs an owner and a name",
            where="target",
            expected=f"owner/name, such as {visitor.name}/my-merge",
            got=target[:200] or "nothing",
        )
    if not _REPO_NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".", "-")):
        raise RecipeError(
            "no repo can have this name" if name else "the result needs a name",
            where="target",
            expected="letters, digits, single dots and dashes, and underscores, with no dot or dash at an end",
            got=name[:200],
            next_step="Change its name." if name else "Give the new repo a name.",
        )
    if namespace not in visitor.namespaces:
        raise PermissionDeniedError(
            "a target that you cannot write to",
            where="target",
            expected=" or ".join(visitor.namespaces),
            got=namespace[:100],
            next_step="Choose one of your namespaces.",
        )
    return MergeRequest(checked_recipe(recipe).to_dict(), target, private, license or None, suite or None)


def sweep_requests(
    sweep: Sweep, target: str, *, private: bool, license: str | None, visitor: Visitor, suite: str = ""
) -> list[MergeRequest]:
    """A request for each variant, to a repo named after `target` and the variant; raises as `submission` does."""
    return [
        submission(recipe.to_dict(), target=to, private=private, license=license, visitor=visitor, suite=suite)
        for to, recipe in ((f"{target}-{name}"[:193], recipe) for name, recipe in sweep.variants)
    ]
