"""The facts that the Hub derives from a repo's README.md and config.json: card data, tags, library and pipeline.

The card is the YAML block between two `---` lines at the top of README.md, with blank lines before it
allowed; lines may end as on any system. Aliases in the YAML are refused, because a few hundred bytes of them unfold to
gigabytes of JSON.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml

_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_OPENED = re.compile(r"\A\s*---[ \t]*\n")
_CARD_LIMIT = 1024 * 1024  # characters
_DEEPEST = 64  # levels of lists and mappings
_LICENSES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc
cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0
cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1
eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c
ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa
unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
llama3.2 llama3.3 llama4 gemma grok2-community unknown other
"""
LICENSES = frozenset(_LICENSES.split())
BASE_MODEL_RELATIONS = ("finetune", "adapter", "merge", "quantized")
SDKS = ("gradio", "streamlit", "docker", "static")


# libyaml where PyYAML was built with it: a card of a megabyte takes seconds without
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML as the Hub reads it, by version 1.2: `no` is Norwegian, 010 and 1:30 are no numbers."""


_RESOLVED = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9]{0,300})|0x[0-9a-fA-F]{1,250}", "-+0123456789"),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _RESOLVED]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _first) in _RESOLVED.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def split_card(readme: str) -> tuple[str, str]:
    """The YAML block of a README.md, "" without one, and the text below it; lines end in LF."""
    readme = readme.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found = _FRONT_MATTER.match(readme[:_CARD_LIMIT])
    return (found[1], readme[found.end() :]) if found else ("", readme)


def parse_card(readme: str) -> dict[str, Any]:
    """The metadata of a README.md as plain JSON values; empty without a YAML block.

    Raises ValueError where the block is not a YAML mapping.
    """
    block, text = split_card(readme)
    if not block:
        if len(text) > _CARD_LIMIT and _OPENED.match(text):
            raise ValueError(f"The card metadata has more than {_CARD_LIMIT} characters")
        return {}
    try:
        _check_events(block)
        value = _plain(yaml.load(block, _Loader))  # noqa: S506  (a SafeLoader that refuses more)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        # the library's constructors take a value with an explicit tag for one that fits it
        raise ValueError(f"The card is not valid YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("The card metadata must be a mapping")
    return value


def _check_events(text: str) -> None:
    """Refuse what unfolds to more than it takes, or nests deeper than a loader can follow."""
    depth = 0
    for event in yaml.parse(text, _Base):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed in a card")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise yaml.YAMLError(f"more than {_DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _plain(value: Any) -> Any:
    """The value in a form that JSON can hold: keys as strings, dates as text, and null for NaN and infinities."""
    if isinstance(value, dict):
        return {_text(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return _text(value.isoformat() if isinstance(value, date) else value)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("half a character")
    return text


def card_problems(readme: str) -> tuple[list[str], list[str]]:
    """Errors and warnings about the card of a repo."""
    try:
        card = parse_card(readme)
    except ValueError as error:
        return [str(error)], []
    if not card:
        return [], ["empty or missing yaml metadata in repo card"]
    errors: list[str] = []
    for name in strings(card.get("license")):
        if name not in LICENSES:
            errors.append(f'"license" must be one of [{", ".join(sorted(LICENSES))}]')
    index = card.get("model-index")
    if index is not None and not (isinstance(index, list) and all(isinstance(row, dict) for row in index)):
        errors.append('"model-index" must be an array')
    for key in ("tags", "datasets", "language", "base_model"):
        value = card.get(key)
        count = len(value) if isinstance(value, list) else 1
        if value is not None and len(strings(value)) != count:
            errors.append(f'"{key}" must be a string or an array of strings')
    relation = card.get("base_model_relation")
    if relation is not None and relation not in BASE_MODEL_RELATIONS:
        errors.append(f'"base_model_relation" must be one of [{", ".join(BASE_MODEL_RELATIONS)}]')
    return errors, []


def strings(value: object) -> list[str]:
    """A string or a list of scalars as a list of strings; anything else is empty."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [str(item) for item in value if isinstance(item, str | int | float)]
    return []


_DATASET_KEYS = """
task_categories task_ids annotations_creators language_creators multilinguality source_datasets language license
size_categories
"""


@dataclass(frozen=True)
class Derived:
    card: dict[str, Any]
    config: dict[str, Any]
    tags: tuple[str, ...]
    library: str | None = None
    pipeline_tag: str | None = None


def derive(repo_type: str, readme: str, config_json: str, paths: Mapping[str, Any], sdk: str | None) -> Derived:
    """Everything that listings show and filter by."""
    try:
        card = parse_card(readme)
    except ValueError:
        card = {}  # of a seeded folder, whose card nobody checked
    if repo_type == "space":
        tags = [sdk or str(card.get("sdk") or "static"), *strings(card.get("tags"))]
        return Derived(card, {}, _unique([*tags, "region:us"]))
    if repo_type == "dataset":
        tags = [f"{key}:{value}" for key in _DATASET_KEYS.split() for value in strings(card.get(key))]
        return Derived(card, {}, _unique([*tags, *strings(card.get("tags")), "region:us"]))
    config = _config(config_json)
    library = next(iter(strings(card.get("library_name"))), "transformers" if config else None)
    pipeline = next(iter(strings(card.get("pipeline_tag"))), None)
    if pipeline is None and any(name.endswith("ForCausalLM") for name in strings(config.get("architectures"))):
        pipeline = "text-generation"
    bases = strings(card.get("base_model"))
    relation = card.get("base_model_relation")
    if relation not in BASE_MODEL_RELATIONS:
        relation = "merge" if len(bases) > 1 else "adapter" if library == "peft" else "finetune"
    tags = [
        *([library] if library else []),
        *(["safetensors"] if any(path.endswith(".safetensors") for path in paths) else []),
        *strings(config.get("model_type")),
        *([pipeline] if pipeline else []),
        *strings(card.get("tags")),
        *strings(card.get("language")),
        *(f"dataset:{name}" for name in strings(card.get("datasets"))),
        *(f"base_model:{name}" for name in bases),
        *(f"base_model:{relation}:{name}" for name in bases),
        *(f"license:{name}" for name in strings(card.get("license"))),
        "region:us",
    ]
    return Derived(card, config, _unique(tags), library, pipeline)


def _config(text: str) -> dict[str, Any]:
    """The part of config.json that the Hub shows, as plain JSON values; empty where it holds none."""
    try:
        config = json.loads(text) if text else {}
        if not isinstance(config, dict):
            return {}
        return {key: _plain(config[key]) for key in ("architectures", "model_type") if strings(config.get(key))}
    except (ValueError, RecursionError):
        return {}


def _unique(tags: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tag for tag in tags if tag))
