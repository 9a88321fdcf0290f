"""Facts about a model from its own repo: its card, its headers and, for a merge of ours, its hubmerge.json.

Anybody can put a hubmerge.json into a repo. It is believed only where the repo holds the weights that it lists, by
their sha256. Each field is checked by itself, so a malformed one costs that field and not the evaluation.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from hubmerge.engine.sink import MANIFEST
from hubmerge.errors import HubmergeError, LoginError
from hubmerge.evaluation.result import ModelFacts
from hubmerge.hub.client import Hub
from hubmerge.output.publish import MAX_MANIFEST_BYTES
from hubmerge.sources.base import Model

MAX_FACTS_BYTES = 512 * 1024  # half of what a result may have


def model_facts(hub: Hub, model: Model) -> ModelFacts:
    """What its repo says of the model; HubUnavailableError where the Hub is away and LoginError where the token is no
    longer good, since these say nothing of it."""
    author = model.ref.id.partition("/")[0] if model.ref.kind == "hub" else "local"
    known = {
        "license": model.license,
        "parameters": sum(tensor.entry.elements for tensor in model.tensors.values()),
        "size_bytes": model.weight_bytes,
    }
    kept: dict[str, Any] = {"author": author}
    for name, value in {**known, **_of_report(_report(hub, model))}.items():
        with suppress(ValidationError, RecursionError):  # a field that cannot be read is left out
            found = ModelFacts.model_validate({**kept, name: value})
            if len(found.model_dump_json().encode()) <= MAX_FACTS_BYTES:  # or the result could not be read any more
                kept[name] = value
    return ModelFacts.model_validate(kept)


def _report(hub: Hub, model: Model) -> Mapping[str, Any]:
    """hubmerge.json as plain data; empty where there is none that can be read."""
    info = model.files.get(MANIFEST)
    if info is None or info.size > MAX_MANIFEST_BYTES:
        return {}
    try:
        if model.ref.kind == "hub":
            content = hub.read_file(model.ref.id, model.ref.sha, MANIFEST, MAX_MANIFEST_BYTES)
        else:
            content = (model.ref.path / MANIFEST).read_bytes()
        report = json.loads(content)
    except HubmergeError as error:
        if error.retryable or isinstance(error, LoginError):
            raise
        return {}
    except (OSError, ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and _is_of(report, model) else {}


def _is_of(report: Mapping[str, Any], model: Model) -> bool:
    """Whether the report lists exactly the shards that the repo holds."""
    listed = {
        str(f.get("name")): (f.get("size"), f.get("sha256")) for f in _list(report.get("files")) if isinstance(f, dict)
    }
    if set(listed) != set(model.shards):
        return False
    return all(
        size == model.files[name].size and model.files[name].sha256 in (None, sha256)
        for name, (size, sha256) in listed.items()
    )


def _of_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Fields in the form of ModelFacts; not validated yet."""
    method = _table(report.get("method"))
    found: dict[str, Any] = {
        "created": report.get("created"),
        "method": method.get("name"),
        "method_parameters": method.get("parameters"),
        "recipe": report.get("recipe_yaml"),
        "parents": [
            {name: parent.get(name) for name in ("role", "id", "sha")} | {"weight": parent.get("weight", 1.0)}
            for parent in map(_table, _list(report.get("parents")))
        ],
        "effective_scales": [_table(o).get("effective_scale") for o in _list(report.get("outcomes"))],
        **_overlap(_table(_table(_table(report.get("statistics")).get("total")).get("shares"))),
    }
    return {name: value for name, value in found.items() if value is not None}


def _overlap(shares: Mapping[str, Any]) -> dict[str, float]:
    """Density, and overlap and conflict as shares of what they are part of."""
    values = [shares.get(name) for name in ("conflict", "overlap", "private")]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1 for v in values):
        return {}
    conflict, one_sign, private = (float(v) for v in values if v is not None)
    several = conflict + one_sign
    changed = several + private
    found = {"density": min(changed, 1.0)}
    if changed:
        found["overlap"] = min(several / changed, 1.0)
    if several:
        found["conflict"] = min(conflict / several, 1.0)
    return found


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
