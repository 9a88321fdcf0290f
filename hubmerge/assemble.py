"""The folder around the shards: index, config, tokenizer, licenses, figures, card, and the manifest last.

Everything that is no weight is the base's, copied by an allow-list: nothing that could run code or point at
code is carried over, whatever a stranger put into the repo.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from hubmerge.dtypes import TORCH_NAMES
from hubmerge.plan import Plan
from hubmerge.sink import MANIFEST, FinishedShard
from hubmerge.sources.base import Model

INDEX = "model.safetensors.index.json"

# text files that a transformers model consists of besides weights; no *.py ever
_COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)
_LICENSES = re.compile(r"(LICENSE|LICENCE|NOTICE|COPYING|USE_POLICY)(\.(md|txt))?", re.IGNORECASE)
_MAX_COPIED_BYTES = 64 * 1024 * 1024

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
# strings and tables pass only under these names: elsewhere they have named classes, files or code to load
_KNOWN_TEXT = frozenset(
    (
        *("architectures", "model_type", "dtype", "transformers_version", "problem_type", "id2label", "label2id"),
        *("hidden_act", "activation_function", "hidden_activation", "feed_forward_proj", "position_embedding_type"),
        *("layer_types", "attention_type", "rope_scaling", "rope_parameters", "scoring_func", "topk_method"),
        "text_config",
    )
)
_DROPPED = frozenset(("auto_map", "custom_pipelines", "trust_remote_code", "name_or_path", "quantization_config"))

ReadFile = Callable[[Model, str], bytes | None]


def merged_config(base: Mapping[str, Any], dtype: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The base's config.json by an allow-list, with the output's dtype; also the keys that were left out."""
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for key, value in base.items():
        if _allowed(key, value):
            kept[key] = value
        else:
            dropped.append(key)
    kept.pop("torch_dtype", None)
    floats = [d for d in dtype if d in TORCH_NAMES]
    if floats:
        kept["dtype"] = TORCH_NAMES[floats[0]]
    return kept, dropped


def _allowed(key: str, value: Any) -> bool:
    if not _PLAIN_KEY.fullmatch(key) or key in _DROPPED or key.endswith("_map") or "attn_implementation" in key:
        return False
    if key in _KNOWN_TEXT:
        return _is_plain(value)
    return _is_number(value) or (isinstance(value, list) and all(_is_number(v) for v in value))


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Words, numbers and tables of them: no slash, no colon, so neither a path nor a URL."""
    if isinstance(value, str):
        return bool(re.fullmatch(r"[\w .+\-]{0,128}", value))
    if isinstance(value, dict):
        return depth < 3 and all(
            isinstance(k, str)
            and k not in _DROPPED
            and not k.startswith("_")
            and not k.endswith("_map")
            and _is_plain(v, depth + 1)
            for k, v in value.items()
        )
    if isinstance(value, list):
        return depth < 3 and all(_is_plain(v, depth + 1) for v in value)
    return _is_number(value)


def companion_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest: path → content; and what the user should know."""
    config, dropped = merged_config(plan.base.config, [t.dtype for t in plan.tensors()])
    files: dict[str, bytes] = {"config.json": _json(config)}
    notes = [f"config.json: {', '.join(dropped)} left out (not on the list of what is safe to copy)"] if dropped else []
    for name in _COPIED:
        info = plan.base.files.get(name)
        if info is not None and info.size <= _MAX_COPIED_BYTES:
            content = read(plan.base, name)
            if content is not None:
                files[name] = _without_code(name, content)
    for model in plan.models:
        for name, info in model.files.items():
            if _LICENSES.fullmatch(name) and info.size <= 1_000_000 and (content := read(model, name)) is not None:
                # several parents may each bring a LICENSE: all are kept, the base's under its own name
                files[name if model is plan.base else f"licenses/{_slug(model.ref.id)}/{name}"] = content
    if len(plan.shards) > 1:
        files[INDEX] = _json(
            {
                "metadata": {"total_size": sum(s.size - len(s.header) for s in plan.shards)},
                "weight_map": {t.name: s.filename for s in plan.shards for t in s.tensors},
            }
        )
    files["recipe.yaml"] = plan.recipe.to_yaml().encode()
    return files, notes


def _without_code(name: str, content: bytes) -> bytes:
    """tokenizer_config.json and its like may point at code of the repo; that key goes."""
    if not name.endswith(".json"):
        return content
    try:
        data = json.loads(content)
    except ValueError:
        return content
    if isinstance(data, dict) and "auto_map" in data:
        data.pop("auto_map")
        return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
    return content


def write_folder(
    folder: Path, shards: Sequence[FinishedShard], files: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> None:
    """Write all that surrounds the finished `shards`; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, _json(manifest))


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _slug(text: str) -> str:
    return re.sub(r"[^\w.\-]+", "--", text).strip("-.")
