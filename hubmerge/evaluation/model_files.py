"""A folder that transformers can load, made from a model of a stranger: weights, config and tokenizer.

Weights are the safetensors shards whose headers `hubmerge.sources` checked, under an index written here. What names
code or a place goes, as it does from a merge (output/config.py); generation_config.json is left out, so that no
repo's penalties or sampling decide what its score means. No pickle and no code is fetched, let alone written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hubmerge.errors import EvaluationError, FormatError
from hubmerge.hub import SMALL_FILE_BYTES, Hub
from hubmerge.output.config import merged_config, told, without_code
from hubmerge.sources.base import Model
from hubmerge.sources.open import INDEX, SINGLE

_PARSED_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json")
_COPIED_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja")
_MAX_PARSED_BYTES = 8 * 1024 * 1024


def check_evaluable(model: Model) -> None:
    """EvaluationError for a model that cannot be evaluated as it is stored."""
    if model.adapter is not None:
        raise EvaluationError(
            "an adapter alone cannot be evaluated",
            where=str(model.ref),
            expected="a model with all its weights",
            got=model.kind,
            next_step="Merge it with its base first.",
        )
    quantized = isinstance(model.config.get("quantization_config"), dict) or model.kind != "weights"
    if quantized:
        raise EvaluationError(
            "quantized weights are not evaluated",
            where=str(model.ref),
            expected="weights in float32, float16 or bfloat16",
            got=model.kind,
            next_step="Evaluate the model before quantization.",
        )
    if not {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"} & set(model.files):
        raise EvaluationError("the model has no tokenizer", where=str(model.ref), expected="tokenizer.json", got="none")


def stage_model(
    model: Model, hub: Hub, folder: Path, inputs: Path, progress: Callable[[str, int, int, str], None]
) -> list[str]:
    """Make `folder` anew from `model`, with shards downloaded below `inputs`; what the user should know."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, dropped = merged_config(model.config, [t.entry.dtype for t in model.tensors.values()])
    _write_json(folder / "config.json", config)
    notes = [told("config.json", dropped)] if dropped else []
    for name in (*_PARSED_FILES, *_COPIED_FILES):
        if name not in model.files:
            continue
        content = _read(model, hub, name, _MAX_PARSED_BYTES if name in _PARSED_FILES else SMALL_FILE_BYTES)
        clean, removed = without_code(content) if name in _PARSED_FILES else (content, ())
        if clean is None:
            raise FormatError("not valid JSON", where=f"{name} in {model.ref}")
        if removed:
            notes.append(told(name, removed))
        (folder / name).write_bytes(clean)
    _link_shards(model, hub, folder, inputs, progress)
    return notes


def _link_shards(
    model: Model, hub: Hub, folder: Path, inputs: Path, progress: Callable[[str, int, int, str], None]
) -> None:
    total, done = model.weight_bytes, 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("fetch model", done, total, "B")

    for shard in model.shards:
        if model.ref.kind == "hub":
            source = hub.download(model.ref.id, model.ref.sha, model.files[shard], inputs, advance)
        else:
            source = model.ref.path / shard
            advance(model.files[shard].size)
        os.symlink(source.resolve(), folder / shard)
    if model.shards != (SINGLE,):
        weight_map = {name: tensor.shard for name, tensor in model.tensors.items()}
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _read(model: Model, hub: Hub, name: str, most: int) -> bytes:
    if model.ref.kind == "hub":
        return hub.read_file(model.ref.id, model.ref.sha, name, most)
    with open(model.ref.path / name, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise FormatError("a file is too large", where=f"{name} in {model.ref}", expected=f"{most} bytes", got="more")
    return content


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
