"""The pinned models of a merge job's recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hubmerge.hub.names import is_hub_id

_SHA = re.compile(r"[0-9a-f]{40}")


def pinned_models(recipe: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(base or agent, id, commit) of the models on the Hub, the base first."""
    agents = recipe.get("agents", [])
    names = [("base", recipe.get("base"))]
    names += [("agent", a.get("model") if isinstance(a, dict) else a) for a in agents]
    found = ((role, *str(name).partition("@")[::2]) for role, name in names)
    return [(role, model, sha) for role, model, sha in found if is_hub_id(model) and _SHA.fullmatch(sha)]
