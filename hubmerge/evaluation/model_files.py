"""Makes a folder that transformers can load from a stranger's model: weights, config and tokenizer.

The weights are the safetensors shards whose headers `hubmerge.sources` checked, under an index written here. Keys that
name code or a place are taken out, as in a merge (sources/config.py). generation_config.json is left out, so that no
repo's penalties or sampling change what its score means. No pickle and no code is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hubmerge.errors import EvaluationError
from hubmerge.hub.client import Hub
from hubmerge.sources.base import Model
from hubmerge.sources.companions import makes_tokenizer, reader, tokenizer_files
from hubmerge.sources.config import merged_config, told
from hubmerge.sources.open import INDEX, SINGLE


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
    if not any(map(makes_tokenizer, model.files)):
        raise EvaluationError("the model has no tokenizer", where=str(model.ref), expected="tokenizer.json", got="none")


def stage_model(
    model: Model, hub: Hub, folder: Path, inputs: Path, progress: Callable[[str, int, int, str], None]
) -> list[str]:
    """Make `folder` anew from `model`, with shards downloaded below `inputs`; returns warnings for the user."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, dropped = merged_config(model.config, [t.entry.dtype for t in model.tensors.values()])
    _write_json(folder / "config.json", config)
    notes = [told("config.json", dropped)] if dropped else []
    files, left_out = tokenizer_files(model, reader(hub))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    _link_shards(model, hub, folder, inputs, progress)
    return [*notes, *left_out]


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


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
