"""Every file of a merged folder besides weights, card and manifest."""

from __future__ import annotations

from hubmerge.plan.plan import Plan
from hubmerge.plan.tokenizer import united_tokenizer
from hubmerge.sources.companions import ReadFile, read_companions
from hubmerge.sources.config import merged_config
from hubmerge.wording import json_file

INDEX = "model.safetensors.index.json"


def folder_files(plan: Plan, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """Every file besides weights, card and manifest (path → content), and warnings for the user."""
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
