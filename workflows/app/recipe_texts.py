"""A recipe as texts to take along: for a browser, a file, Python and a command line."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from shlex import quote
from typing import Any

from hubmerge.errors import RecipeError
from hubmerge.plain_yaml import dump_plain_yaml
from hubmerge.settings import DEFAULT_ENDPOINT
from workflows.app.merge_address import MAX_ADDRESS_CHARACTERS, address_of

TEXTS = ("link", "YAML", "Python", "command line")


def text_of(kind: str, recipe: Mapping[str, Any], target: str, endpoint: str) -> str:
    """The recipe as one of `TEXTS`; a link begins with its query, since the page knows its own address.

    RecipeError where an address has no room for it.
    """
    yaml = dump_plain_yaml(recipe)
    if kind == "link":
        query = address_of(recipe, target.rpartition("/")[2])
        if not query:
            raise RecipeError(
                "this recipe is too long for a link",
                expected=f"at most {MAX_ADDRESS_CHARACTERS:,} characters",
                next_step="Copy the YAML.",
            )
        return f"?{query}"
    if kind == "Python":
        setting = "" if endpoint == DEFAULT_ENDPOINT else f'import os\nos.environ["HF_ENDPOINT"] = {endpoint!r}\n\n'
        written = pprint.pformat(dict(recipe), sort_dicts=False, width=100)
        return f"{setting}import hubmerge\n\nrecipe = {written}\nhubmerge.merge(recipe, to={target!r})\n"
    if kind == "command line":
        setting = "" if endpoint == DEFAULT_ENDPOINT else f"export HF_ENDPOINT={quote(endpoint)}\n"
        return f"{setting}hubmerge run - --to {quote(target)} <<'RECIPE'\n{yaml}RECIPE\n"
    return yaml
