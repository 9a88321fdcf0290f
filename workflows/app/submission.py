"""What people and programs submit: names of models as they are typed or pasted, and the checks before a job."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from hubmerge.errors import PermissionDeniedError, RecipeError
from hubmerge.hub.names import is_hub_id
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import Recipe, recipe_from_dict
from hubmerge.recipe.sweep import Sweep, is_sweep, sweep_from_dict
from workflows.service import Service
from workflows.values import MergeRequest, Visitor

MOST_CHARACTERS = 400  # of a model's name and revision
_HUBS = ("huggingface.co", "www.huggingface.co", "hf.co")
_AT = ("tree", "blob", "resolve", "raw", "blame", "commit", "commits")  # what stands before a revision
_APART = r"\s,;\uff0c\u3001\uff1b\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # commas of all scripts; marks unseen
# also the middle of a Markdown link, and what items of a list begin with
_BETWEEN = re.compile(rf"(?:[{_APART}]|\]\(|(?<!\S)(?:[-*•]|\d+[.)])(?!\S))+")
_REF = re.compile(r"refs/(?:pr|convert|heads|tags)/[^/]+")


def names_in(typed: Iterable[str], endpoint: str) -> list[str]:
    """The models that texts name, each once and in order; what names none stays as it is, for the checks to refuse.

    `endpoint`: the Hub in use, whose addresses are understood like those of huggingface.co.
    """
    return list(dict.fromkeys(name for text in typed for name in _names(str(text).strip(), endpoint)))


def _names(text: str, endpoint: str) -> list[str]:
    parts = [part.strip("\"'<>[]()`*“”„‘’«»") for part in _BETWEEN.split(text)]
    names = [_name(part, endpoint) for part in parts if part]
    known = [is_hub_id(name.partition("@")[0]) for name in names]
    # words are no list of models, but one that the Hub cannot have does not take the others of a list with it
    listed = any(fits and "/" in name for fits, name in zip(known, names, strict=True))
    if len(names) == 1 or (names and all(known)) or listed:
        return names
    return [text] if re.search(f"[^{_APART}]", text) else []


def _name(text: str, endpoint: str) -> str:
    """`org/name` or `org/name@revision` for an address of the Hub's, else the text itself."""
    hosts = {*_HUBS, urlsplit(endpoint).netloc.lower()}
    given = text if "://" in text else f"https://{text}"
    try:
        parts = urlsplit(given)
    except ValueError:
        return text
    # without the name and token that an address to clone by may have in front
    if parts.scheme not in ("http", "https") or parts.netloc.rpartition("@")[2].lower() not in hosts:
        return text
    pieces = [piece for piece in parts.path.split("/") if piece]
    if len(pieces) > 2 and pieces[1] in _AT:  # of a model without an owner, such as gpt2
        pieces.insert(0, "")
    name = "/".join(piece for piece in pieces[:2] if piece)
    if not is_hub_id(name) or pieces[0] in ("datasets", "spaces", "collections", "papers", "models"):
        return text
    if len(pieces) > 3 and pieces[2] in _AT:
        rest = unquote("/".join(pieces[3:]))
        found = _REF.match(rest)
        revision = found.group() if found else unquote(pieces[3])
        inside = rest[len(revision) + 1 :]
        if inside if pieces[2] == "tree" else "/" in inside:
            return text  # of a folder, whose model is not the repo's
        return name if revision == "main" else f"{name}@{revision}"
    return name


def checked_recipe(content: Mapping[str, Any]) -> Recipe:
    """A valid recipe of what lies on the Hub. A folder or file would be this server's, and is the command line's."""
    return _on_the_hub(recipe_from_dict(content))


def _on_the_hub(recipe: Recipe) -> Recipe:
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
    return recipe


def checked_sweep(content: Mapping[str, Any]) -> Sweep:
    """A valid sweep of what lies on the Hub."""
    if not is_sweep(content):
        raise RecipeError("this is no sweep", where="the sweep", expected="a list under `sweep`")
    sweep = sweep_from_dict(content)
    for _, recipe in sweep.variants:
        _on_the_hub(recipe)
    return sweep


def checked_comparison(base: str, agent: str, endpoint: str) -> tuple[str, str]:
    """The names of two models on the Hub, given by ids or by their pages' addresses."""
    return one_model(base, endpoint, "base"), one_model(agent, endpoint, "agent")


def one_model(text: str, endpoint: str, where: str = "model") -> str:
    """The one model on the Hub that somebody named by its id or its page's address."""
    names = names_in([str(text or "")[:MOST_CHARACTERS]], endpoint)
    with suppress(ValueError):
        if len(names) == 1 and not ModelName.parse(names[0]).local:
            return names[0]
    raise RecipeError(
        "several models, where one is needed" if len(names) > 1 else "no model of the Hub is named",
        where=where,
        expected="org/name, or the address of its page on the Hub",
        got=", ".join(names)[:200] or "nothing",
    )


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
    if namespace not in visitor.namespaces:
        raise PermissionDeniedError(
            "a target that you cannot write to",
            where="target",
            expected=" or ".join(visitor.namespaces),
            got=namespace[:100],
            next_step="Choose one of your namespaces.",
        )
    if not is_hub_id(target):
        raise RecipeError(
            "no repo can have this name" if name else "the result needs a name",
            where="target",
            expected="at most 96 letters, digits, single dots and dashes, and underscores; no dot or dash at an end",
            got=name[:200],
            next_step="Change its name." if name else "Give the new repo a name.",
        )
    return MergeRequest(checked_recipe(recipe).to_dict(), target, private, license or None, suite or None)


def suggested_name(base: str, method: str) -> str:
    """A name for the result, of the base's and the method."""
    return f"{base.rpartition('/')[2]}-{method.replace('_', '-')}"[:96]


def chosen_target(
    service: Service, writer: Visitor, recipe: Recipe, chosen: Sequence[Any], license_choice: str | None
) -> dict[str, Any]:
    """Where to, whether private and with which suite, for suite, owner, name and visibility as a form has them.

    Left to itself the result is private if a parent is gated or private, which the Hub is asked. Without a name, which
    is not an empty one, it gets the one that is proposed for this recipe.
    """
    suite, owner, name, visibility = chosen
    name = suggested_name(recipe.base.id, recipe.method) if name is None else name
    private = visibility == "private"
    if visibility not in ("public", "private"):
        plan = service.inspect(recipe.to_dict(), writer, license_choice)
        private = any(m.gated or m.private for m in plan.models)
    target = f"{owner or writer.name}/{name.strip()}"
    return {"target": target, "private": private, "suite": "" if private else suite or ""}


def newest_ticket(service: Service, visitor: Visitor) -> int:
    """The ticket of the visitor's newest job. A job that starts later has a larger one; one that is found has not."""
    return max((job.ticket for job in service.jobs(visitor, limit=1)), default=0)


def sweep_requests(
    sweep: Sweep, *, target: str, private: bool, license: str | None, visitor: Visitor, suite: str = ""
) -> list[MergeRequest]:
    """A request for each variant, to a repo named after `target` and the variant; raises as `submission` does."""
    return [
        submission(recipe.to_dict(), target=to, private=private, license=license, visitor=visitor, suite=suite)
        for to, recipe in ((f"{target}-{name}"[:193], recipe) for name, recipe in sweep.variants)
    ]
