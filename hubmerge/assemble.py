"""The folder around the shards: index, config, what goes with the weights, figures, card, and the manifest last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hubmerge.output.companions import ReadFile, read_companions
from hubmerge.output.config import json_file, merged_config
from hubmerge.output.tokenizer import united_tokenizer
from hubmerge.plan import Plan
from hubmerge.sink import MANIFEST, FinishedShard, writing

INDEX = "model.safetensors.index.json"


def folder_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest: path → content; and what the user should know."""
    config, _ = merged_config(plan.config, [t.dtype for t in plan.tensors()])  # the plan tells what is left out
    companions, left_out = read_companions(plan.companions, plan.models, read)
    files = {"config.json": json_file(config), **companions}
    if plan.vocabulary is not None and plan.vocabulary.united:
        files |= united_tokenizer(files, plan.vocabulary.united)
    if len(plan.shards) > 1:
        files[INDEX] = json_file(
            {
                "metadata": {"total_size": sum(s.size - len(s.header) for s in plan.shards)},
                "weight_map": {t.name: s.filename for s in plan.shards for t in s.tensors},
            }
        )
    files["recipe.yaml"] = plan.recipe.to_yaml().encode()
    return files, left_out


def write_folder(
    folder: Path, shards: Sequence[FinishedShard], files: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> None:
    """Write all that surrounds the finished `shards`; the manifest comes last and makes the folder complete."""
    for name, content in files.items():
        _replace(folder / name, content)
    _replace(folder / MANIFEST, json_file(manifest))


def _replace(path: Path, content: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
