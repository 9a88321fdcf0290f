"""The folder around the shards: index, config, tokenizer, licenses, figures, card, and the manifest last.

Everything that is no weight is the base's, file by file from a list: nothing that could run code or point at
code is carried over, whatever a stranger put into the repo (output/config.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hubmerge.output.config import merged_config, told, without_code
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

ReadFile = Callable[[Model, str], bytes | None]


def companion_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest: path → content; and what the user should know."""
    config, _ = merged_config(plan.config, [t.dtype for t in plan.tensors()])  # the plan tells what is left out
    files: dict[str, bytes] = {"config.json": _json(config)}
    notes: list[str] = []
    for name in _COPIED:
        source = plan.tokenizer if name in _TOKENIZER else plan.base
        info = source.files.get(name)
        if info is None:
            continue
        most = _MAX_PARSED_BYTES if name in _PARSED else _MAX_COPIED_BYTES
        content = read(source, name) if info.size <= most else None
        clean, removed = (content, ()) if content is None or name not in _PARSED else without_code(content)
        if clean is None:
            notes.append(f"{name}: left out (too large, or not JSON)")
            continue
        files[name] = clean
        if removed:
            notes.append(told(name, removed))
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
