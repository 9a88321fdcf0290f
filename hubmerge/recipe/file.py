"""Recipes as text, hubmerge's own or mergekit's: from files, from standard input (`-`), or from a form.

Relative paths in a file begin at its folder, wherever the command was started. A name that could be a Hub id means a
folder where a folder of that name exists. Only the command line reads files: over the web, a name never means a folder
of the server.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubmerge.errors import RecipeError
from hubmerge.recipe.mergekit import from_mergekit, is_mergekit
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.recipe import MAX_RECIPE_BYTES, Recipe, recipe_from_dict
from hubmerge.text.plain_yaml import load_plain_yaml

_STANDARD_INPUT = Path("-")
_WRITTEN = (
    "Write one document without anchors, a key and its value on a line of their own (`method: ram`); indent with "
    "spaces, close quotes and brackets, and quote what begins with a sign (`'*.bias'`)."
)


@dataclass(frozen=True)
class Document:
    """A text, what messages call it, and the folder at which its relative paths begin."""

    text: str
    where: str
    folder: Path


def read_document(path: Path) -> Document:
    """The text of a file; RecipeError where it cannot be read. One character more than a recipe may have is enough."""
    piped = path == _STANDARD_INPUT
    where = "standard input" if piped else str(path)
    try:
        with nullcontext(sys.stdin) if piped else path.open(encoding="utf-8") as file:
            text = file.read(MAX_RECIPE_BYTES + 1)
            # another pipe, such as bash's <(…), is what standard input is
            return Document(text, where, path.parent if path.is_file() else Path())
    except OSError as error:
        raise RecipeError(
            "the recipe cannot be read",
            where=where,
            got=error.strerror or str(error),
            next_step="Name a YAML file with base, agents and method; `hubmerge init BASE AGENT…` writes one.",
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            "the recipe cannot be read",
            where=where,
            expected="UTF-8 text",
            got=f"another encoding, from byte {error.start} on",
            next_step="Save it as UTF-8.",
        ) from None


def plain_content(text: str, where: str) -> Any:
    """The plain data of a recipe or a sweep; see plain_yaml.py for what YAML may be here."""
    if len(text) > MAX_RECIPE_BYTES:
        raise RecipeError(
            "the recipe is too long", where=where, expected=f"at most {MAX_RECIPE_BYTES} characters", got=str(len(text))
        )
    try:
        return load_plain_yaml(text)
    except ValueError as error:
        raise RecipeError("the recipe is not plain YAML", where=where, got=str(error), next_step=_WRITTEN) from None


def recipe_from_yaml(text: str, where: str = "the recipe") -> Recipe:
    """A recipe from YAML text, hubmerge's own or mergekit's."""
    content = plain_content(text, where)
    if is_mergekit(content):
        recipe, notes = from_mergekit(content, where)
        return recipe.with_notes(notes)
    return recipe_from_dict(content, where)


def load_recipe(path: Path) -> Recipe:
    """The recipe in a file."""
    return recipe_in(read_document(path))


def recipe_in(document: Document) -> Recipe:
    """The recipe in a document, whose paths begin at its folder."""
    return located(recipe_from_yaml(document.text, document.where), document.folder)


def located(recipe: Recipe, folder: Path) -> Recipe:
    """`recipe` with its paths beginning at `folder`; its notes say which names mean a folder."""
    notes = list(recipe.notes)

    def here(name: ModelName) -> ModelName:
        found, note = preferring_folders(name, folder)
        notes.extend([note] * bool(note))
        return found

    named = recipe.naming([here(name) for name in (recipe.base, *(agent.model for agent in recipe.agents))])
    return named.with_notes(tuple(dict.fromkeys(notes))).in_folder(folder)


def preferring_folders(name: ModelName, folder: Path) -> tuple[ModelName, str]:
    """The folder of that name where one exists, with a note for the user. `org/name@main` never means a folder."""
    if name.local or name.revision is not None or not (folder / name.id).is_dir():
        return name, ""
    note = f"{name.id} is taken for the folder {folder / name.id}; write {name.id}@main for the model on the Hub"
    return ModelName(id=f"./{name.id}", local=True), note


def model_here(text: str | Path, warn: Callable[[str], None]) -> ModelName:
    """The model that an argument of a command names; relative folders begin at the working folder.

    Raises RecipeError for text that names no model.
    """
    try:
        name = ModelName.parse(text)
    except ValueError as error:
        raise RecipeError(
            str(error),
            where="the command",
            expected="org/name, org/name@revision or ./folder",
            got=ascii(text)[:120],
            next_step="Name one model.",
        ) from None
    found, note = preferring_folders(name, Path())
    if note:
        warn(note)
    return found
