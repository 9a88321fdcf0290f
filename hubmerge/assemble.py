"""The folder around the shards: index, config, tokenizer, licenses, figures, card, and the manifest last.

Everything that is no weight is the base's, copied by an allow-list: nothing that could run code or point at
code is carried over, whatever a stranger put into the repo.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from hubmerge.dtypes import TORCH_NAMES
from hubmerge.plan import Plan
from hubmerge.sink import MANIFEST, FinishedShard, writing
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
# these come from the agent that adds tokens, where one does
# the chat template stays the base's, whoever brings the tokens
_TOKENIZER = frozenset(
    n for n in _COPIED if n.startswith(("tokenizer", "special_tokens", "added_tokens", "vocab", "merges"))
)
_PARSED = frozenset(name for name in _COPIED if name.endswith(".json")) - {"tokenizer.json", "vocab.json"}
_LICENSES = re.compile(
    r"(LICENSE|LICENCE|NOTICE|COPYING|USE_POLICY)([-_][\w\-]{1,40})?(\.(md|txt|rst))?", re.IGNORECASE
)
_MAX_COPIED_BYTES = 64 * 1024 * 1024
_MAX_PARSED_BYTES = 8 * 1024 * 1024
_MAX_LICENSE_BYTES = 1_000_000

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
# strings and tables pass only under these names: elsewhere they have named classes, files or code to load
_KNOWN_TEXT = frozenset(
    (
        *("architectures", "model_type", "transformers_version", "problem_type", "id2label", "label2id"),
        *("hidden_act", "activation_function", "hidden_activation", "feed_forward_proj", "position_embedding_type"),
        *("layer_types", "attention_type", "rope_scaling", "rope_parameters", "scoring_func", "topk_method"),
        *("mlp_layer_types", "block_types", "norm_type"),
    )
)
_MODEL_TABLES = frozenset(("text_config", "vision_config", "audio_config"))  # a config each, by the same rules
_DROPPED = frozenset(
    ("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "name_or_path", "quantization_config")
)
# bookkeeping of other tools, whose loss nobody needs to hear of
_REPLACED = frozenset(("dtype", "torch_dtype", "_name_or_path", "_attn_implementation_autoset"))

ReadFile = Callable[[Model, str], bytes | None]


def merged_config(base: Mapping[str, Any], dtype: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The base's config.json by an allow-list, with the output's dtype; also the keys that were left out."""
    kept, dropped = _allowed_part(base, "")
    floats = [d for d in dtype if d in TORCH_NAMES]
    if floats:
        # of mixed checkpoints, the one that most tensors are stored as
        kept["dtype"] = TORCH_NAMES[max(dict.fromkeys(floats), key=floats.count)]
    return kept, dropped


def _allowed_part(table: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], list[str]]:
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for key, value in table.items():
        if key in _REPLACED:
            continue
        if key in _MODEL_TABLES and isinstance(value, dict) and not prefix:
            kept[key], inner = _allowed_part(value, f"{key}.")
            dropped += inner
        elif _allowed(key, value):
            kept[key] = value
        else:
            dropped.append(ascii(prefix + key)[1:-1][:80])
    return kept, dropped


def _allowed(key: str, value: Any) -> bool:
    if not _PLAIN_KEY.fullmatch(key) or _names_code(key):
        return False
    if key in _KNOWN_TEXT:
        return _is_plain(value)
    return _is_number(value) or (isinstance(value, list) and all(_is_number(v) for v in value))


def _names_code(key: str) -> bool:
    return key in _DROPPED or key.startswith("_") or key.endswith("_map") or "implementation" in key


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Words, numbers and tables of them: no slash, no colon, so neither a path nor a URL."""
    if isinstance(value, str):
        return bool(re.fullmatch(r"[\w .+\-]{0,128}", value))
    if isinstance(value, dict):
        return depth < 3 and all(not _names_code(k) and _is_plain(v, depth + 1) for k, v in value.items())
    if isinstance(value, list):
        return depth < 3 and all(_is_plain(v, depth + 1) for v in value)
    return _is_number(value)


def companion_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest: path → content; and what the user should know."""
    config, dropped = merged_config(plan.config, [t.dtype for t in plan.tensors()])
    files: dict[str, bytes] = {"config.json": _json(config)}
    notes = [f"config.json: {', '.join(dropped)} left out (not on the list of what is safe to copy)"] if dropped else []
    for name in _COPIED:
        source = plan.tokenizer if name in _TOKENIZER else plan.base
        info = source.files.get(name)
        if info is None:
            continue
        most = _MAX_PARSED_BYTES if name in _PARSED else _MAX_COPIED_BYTES
        content = read(source, name) if info.size <= most else None
        clean, removed = (content, []) if content is None or name not in _PARSED else without_code(content)
        if clean is None:
            notes.append(f"{name}: left out (too large, or not JSON)")
            continue
        files[name] = clean
        if removed:
            notes.append(f"{name}: {', '.join(removed)} left out (names code to load)")
    for model, label in zip(plan.models, ("", *plan.labels), strict=True):
        for name, info in model.files.items():
            if not _LICENSES.fullmatch(name):
                continue
            text = read(model, name) if info.size <= _MAX_LICENSE_BYTES else None
            if text is None:
                notes.append(f"{model.ref.id}: {name} could not be copied; see it there")
                continue
            # several parents may each bring a LICENSE: all are kept, the base's under its own name
            files[name if not label else _unused(files, f"licenses/{_slug(label)}", name)] = text
    if len(plan.shards) > 1:
        files[INDEX] = _json(
            {
                "metadata": {"total_size": sum(s.size - len(s.header) for s in plan.shards)},
                "weight_map": {t.name: s.filename for s in plan.shards for t in s.tensors},
            }
        )
    files["recipe.yaml"] = plan.recipe.to_yaml().encode()
    return files, notes


def without_code(content: bytes) -> tuple[bytes | None, list[str]]:
    """A JSON file less every key that names code to load, at any depth, and those keys; None if it is no JSON."""
    try:
        data = json.loads(content)
        removed = sorted(set(_strip(data)))
        return (_json(data) if removed else content), removed
    except (ValueError, RecursionError):
        return None, []


def _strip(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key in [k for k in data if k in _DROPPED]:
            del data[key]
            yield key
        for value in data.values():
            yield from _strip(value)
    elif isinstance(data, list):
        for value in data:
            yield from _strip(value)


def _unused(files: Mapping[str, bytes], folder: str, name: str) -> str:
    """`folder/name`, with the folder numbered where two labels come out alike."""
    path, number = f"{folder}/{name}", 1
    while path in files:
        number += 1
        path = f"{folder}-{number}/{name}"
    return path


def write_folder(
    folder: Path, shards: Sequence[FinishedShard], files: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> None:
    """Write all that surrounds the finished `shards`; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, _json(manifest))


def _replace(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _slug(text: str) -> str:
    return re.sub(r"[^\w.\-]+", "--", text, flags=re.ASCII).strip("-.") or "agent"
