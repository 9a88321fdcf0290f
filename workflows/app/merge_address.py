"""The merge form as an address, in words that people can read and change, and as texts to take along.

    ?base=org/base&agent=org/a&agent=org/b&weight=1&weight=0.5&method=ties&density=0.3&dtype=bfloat16&name=my-merge

A method's parameters stand under their own names. `also` and `vary` are of variants (sweep_form.py). `more` holds as
YAML what has no name of its own, such as calibration data or weights that differ between layers.
"""

import json
import math
import pprint
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from hubmerge.errors import MisnamedError, Problem, RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.recipe.recipe import MAX_AGENTS
from hubmerge.settings import DEFAULT_ENDPOINT
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml
from hubmerge.text.wording import counted, did_you_mean
from workflows.app.forms import fields_of, unusual
from workflows.app.merge_form import DTYPES, ROUNDINGS, SIMPLE, read_more, without
from workflows.app.submission import names_in

TEXTS = ("link", "YAML", "Python", "command line")
MAX_ADDRESS_CHARACTERS = 6000  # with more, some server or browser on the way refuses
_OWN = ("base", "agent", "weight", "method", "dtype", "rounding", "seed", "ignore", "name", "more", "also", "vary")


def address_of(recipe: Mapping[str, Any], name: str = "") -> str:
    """The query for a recipe as `recipe_of` gives it, or an empty text where it is too long for an address."""
    pairs = [("base", recipe.get("base") or "")]
    agents = [agent if isinstance(agent, Mapping) else {"model": agent} for agent in recipe.get("agents") or ()]
    pairs += [("agent", str(agent["model"])) for agent in agents]
    weights = [agent.get("weight", 1) for agent in agents]
    plain = all(isinstance(weight, int | float) for weight in weights)
    if plain and any(weight != 1 for weight in weights):
        pairs += [("weight", str(weight).removesuffix(".0")) for weight in weights]
    known = registry().get(str(recipe.get("method")))
    pairs.append(("method", str(recipe.get("method") or "")))
    parameters = dict(recipe.get("parameters") or {})
    parameters = unusual(known, parameters) if known else parameters
    for field in fields_of(known) if known else ():
        # a list where a number stands differs between layers, and goes along as in a recipe
        if field.name in parameters and (field.kind == "yaml" or not isinstance(parameters[field.name], list)):
            value = parameters.pop(field.name)
            pairs.append((field.name, json.dumps(value) if isinstance(value, bool | list | dict) else str(value)))
    pairs += [(key, str(recipe[key])) for key in ("dtype", "rounding", "seed") if recipe.get(key)]
    if recipe.get("ignore"):
        pairs.append(("ignore", ",".join(recipe["ignore"])))
    left = {"model", "weight"} if plain else {"model"}
    own = {str(a["model"]): {k: v for k, v in a.items() if k not in left} for a in agents}
    more = {
        **without(recipe, SIMPLE),
        **({"parameters": parameters} if parameters else {}),
        **({"agents": told} if (told := {model: settings for model, settings in own.items() if settings}) else {}),
    }
    if more:
        pairs.append(("more", json.dumps(more, ensure_ascii=False, separators=(",", ":"))))
    pairs.append(("name", name))
    query = urlencode([(key, value) for key, value in pairs if value], safe="/@,*:", quote_via=quote)
    return query if len(query) <= MAX_ADDRESS_CHARACTERS else ""


def read_address(query: QueryParams, endpoint: str) -> tuple[dict[str, Any], str, tuple[Problem, ...]]:
    """The recipe of an address as users write it, the result's name, and what is wrong in it, which is left out.

    `endpoint`: the Hub in use, whose pages' addresses name models, too.
    """
    problems: list[Problem] = []

    def wrong(key: str, what: str, expected: str, step: str = "") -> None:
        got = ", ".join(query.getlist(key))[:100]
        step = step or "The form shows the rest; choose this there."
        problems.append(Problem(RecipeError.code, what, f"the address, {key}", expected, got, step))

    methods = registry()
    base, agents = names_in([_first(query, "base")], endpoint), names_in(query.getlist("agent"), endpoint)
    recipe: dict[str, Any] = {"base": next(iter(base), ""), "agents": agents[:MAX_AGENTS]}
    if len(agents) > MAX_AGENTS:
        wrong("agent", f"the address names {len(agents)} agents", f"at most {MAX_AGENTS}")
    method = _first(query, "method")
    if method and method not in methods:
        wrong("method", "there is no such method", ", ".join(methods), did_you_mean(method, methods))
        method = ""
    if method:
        recipe["method"] = method
    if weights := query.getlist("weight"):
        try:
            numbers = [float(weight) for weight in weights]
        except ValueError:
            numbers = [math.nan]
        if len(numbers) == len(recipe["agents"]) and all(map(math.isfinite, numbers)):
            recipe["agents"] = [{"model": m, "weight": w} for m, w in zip(recipe["agents"], numbers, strict=True)]
        else:
            wrong("weight", "the weights are no number for each agent", counted(len(recipe["agents"]), "number"))
    for key, known in (("dtype", DTYPES[1:]), ("rounding", ROUNDINGS[1:])):
        if value := _first(query, key):
            if value in known:
                recipe[key] = value
            else:
                wrong(key, f"there is no such {key}", ", ".join(known), did_you_mean(value, known))
    if seed := _first(query, "seed"):
        if seed.isascii() and seed.isdigit() and len(seed) <= 19:
            recipe["seed"] = int(seed)
        else:
            wrong("seed", "the seed is no whole number", "a whole number")
    if ignore := [part for part in _first(query, "ignore").replace(",", " ").split() if part]:
        recipe["ignore"] = ignore
    parameters = _parameters(query, methods.get(method), wrong)
    try:
        more = read_more(_first(query, "more"), SIMPLE)
        for table in (more, *more.get("agents", {}).values()):
            if "calibration" in table:
                CalibrationSpec.model_validate(table["calibration"])
    except (RecipeError, ValueError):
        wrong("more", "it cannot be read", "YAML of what has no name of its own in an address")
    else:
        parameters |= more.pop("parameters", {})
        own = more.pop("agents", {})
        named = (agent if isinstance(agent, dict) else {"model": agent} for agent in recipe["agents"])
        joined = [agent | own.get(agent["model"], {}) | agent for agent in named]
        recipe["agents"] = [agent if len(agent) > 1 else agent["model"] for agent in joined]
        recipe |= more
    if parameters:
        recipe["parameters"] = parameters
    return recipe, _first(query, "name")[:96], tuple(problems)


def _parameters(query: QueryParams, method: Any, wrong: Any) -> dict[str, Any]:
    known = {field.name: field for field in fields_of(method)} if method else {}
    found: dict[str, Any] = {}
    for key in dict.fromkeys(query):
        if key in _OWN or key == "job" or key.startswith("__"):  # gradio's own
            continue
        if key not in known:
            what = f"{method.title} has no such setting" if method else "nothing has this name"
            wrong(key, what, ", ".join((*known, *_OWN)), did_you_mean(key, (*known, *_OWN)))
            continue
        try:
            value = load_plain_yaml(_first(query, key))
            value = float(value) if known[key].kind == "number" and type(value) is int else value
            method.parse_parameters({key: value})
        except MisnamedError as error:
            wrong(key, error.problems[0].what, error.problems[0].expected or known[key].bounds)
        except ValueError:
            wrong(key, "it is no value that this setting can have", known[key].bounds or known[key].kind)
        else:
            found[key] = value
    return found


def _first(query: QueryParams, key: str) -> str:
    return next(iter(query.getlist(key)), "").strip()


def text_of(
    kind: str, recipe: Mapping[str, Any], target: str, endpoint: str, *, private: bool = False, license: str = ""
) -> str:
    """The recipe as one of `TEXTS`; a link begins with its query, since the page knows its own address.

    `private`, `license`: of the result, where somebody chose them; what begins a merge elsewhere says them, too.

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
        more = ", private=True" * private + (f", license={license!r}" if license else "")
        return f"{setting}import hubmerge\n\nrecipe = {written}\nhubmerge.merge(recipe, to={target!r}{more})\n"
    if kind == "command line":
        setting = "" if endpoint == DEFAULT_ENDPOINT else f"export HF_ENDPOINT={shlex.quote(endpoint)}\n"
        more = " --private" * private + (f" --license {shlex.quote(license)}" if license else "")
        return f"{setting}hubmerge run - --to {shlex.quote(target)}{more} <<'RECIPE'\n{yaml}RECIPE\n"
    return yaml
