"""docs/recipe.schema.json, by which an editor completes recipes; `python -m hubmerge.recipe.schema` prints it.

The same pydantic models that read recipes make it, so it cannot disagree with them. Whether the models fit is beyond a
schema; `hubmerge inspect` checks that. The schema covers neither mergekit documents nor sweeps.
"""

import json
import sys
from typing import Any

from hubmerge.methods import Method, registry, varying
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.recipe import AgentSpec, Recipe

SCHEMA_URL = "https://huggingface.co/spaces/hubmerge/hubmerge/resolve/main/docs/recipe.schema.json"
_MODEL = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "A Hub id with an optional revision (org/name@revision), or a folder (./folder: beside this file).",
}
_SAID = {
    "base": "The model that every agent was trained from.",
    "agents": "The models that are merged, in this order.",
    "method": "The merge method; `hubmerge methods` and docs/methods.md describe all of them.",
    "parameters": "The method's parameters; those that are left out have their defaults.",
    "dtype": "The dtype of the result; default: as the base stores each tensor.",
    "rounding": "How the result is rounded to 16 bits; default: the method's.",
    "seed": "The seed of random drops and of stochastic rounding.",
    "calibration": "Questions with answers, for methods that weigh by sensitivity.",
    "ignore": "Patterns of the names of tensors that are not merged, such as v_head.*",
    "model": _MODEL["description"],
    "tokenizer": "base, union (all tokens that the models have, the default), or a model of this recipe.",
    "weight": "A factor on the agent's update: one number, numbers over the layers, or rules.",
    "sensitivity": "A file that `hubmerge sensitivity` wrote; a relative path begins beside this file.",
}


def recipe_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of recipes."""
    properties = _properties(Recipe)
    agent = _properties(AgentSpec)
    calibration = CalibrationSpec.model_json_schema()
    agent |= {
        "model": _MODEL,
        "parameters": {"type": "object", "description": "The agent's own parameters, in place of the recipe's."},
        "calibration": _optional({"$ref": "#/$defs/calibration"}),
    }
    table = {"type": "object", "properties": agent, "required": ["model"], "additionalProperties": False}
    methods = registry().values()
    properties |= {
        "base": _MODEL,
        "agents": {**properties["agents"], "items": {"anyOf": [_MODEL, table]}},
        "method": {"oneOf": [{"const": m.name, "title": m.title, "description": m.summary} for m in methods]},
        "parameters": {"type": ["object", "null"]},
        "calibration": _optional({"$ref": "#/$defs/calibration"}),
    }
    for name, value in properties.items():
        properties[name] = {"description": _SAID.get(name, ""), **value}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_URL,
        "title": "hubmerge recipe",
        "description": "One merge of agents into their common base. Generated; `make docs` writes it again.",
        "type": "object",
        "required": ["base", "agents", "method"],
        "additionalProperties": False,
        "properties": properties,
        "allOf": [
            {
                "if": {"properties": {"method": {"const": m.name}}, "required": ["method"]},
                "then": {"properties": {"parameters": _optional(_parameters(m))}},
            }
            for m in methods
        ],
        "$defs": {"calibration": calibration, "varying": {"anyOf": list(varying.SCHEMA)}},
    }


def _properties(model: Any) -> dict[str, Any]:
    """The properties of a model's schema without references to other models, which `recipe_schema` writes out."""
    found = model.model_json_schema(mode="validation")["properties"]
    kept = {}
    for name, value in found.items():
        kept[name] = {key: part for key, part in value.items() if key not in ("$ref", "items", "title")}
        if "description" not in kept[name] and name in _SAID:
            kept[name]["description"] = _SAID[name]
        if name == "ignore":
            kept[name]["items"] = {"type": "string"}
    return kept


def _parameters(method: Method) -> dict[str, Any]:
    schema = {key: value for key, value in method.parameters.model_json_schema().items() if key != "title"}
    # a trim over the whole model has one density, which no schema tells from one over each tensor
    scope = {"trim_scope": "tensor"} if "trim_scope" in method.parameters.model_fields else {}
    for name in method.varying(method.parse_parameters(scope)):
        spec = schema["properties"][name]
        about = {key: spec[key] for key in ("title", "description", "default") if key in spec}
        one = {key: value for key, value in spec.items() if key not in about}
        choices = one.get("anyOf", [one])
        schema["properties"][name] = {**about, "anyOf": [*choices, {"$ref": "#/$defs/varying"}]}
    return schema


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n")
