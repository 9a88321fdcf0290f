"""Writes out an agent with computed weights, such as an adapter, for the one step that needs a whole network.

Merging reads LoRA adapters, fp8 weights and added vocabulary rows chunk by chunk; gradients need the whole model in
transformers. So such an agent is written as float32 in the names and shapes of the merge. It takes 4 bytes of disk per
parameter while its sensitivity is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

from hubmerge.dtypes import FLOAT_DTYPES, Float32
from hubmerge.engine.chunks import chunks_of
from hubmerge.hub.client import Hub
from hubmerge.plan.plan import Plan
from hubmerge.recipe.model_name import ModelName
from hubmerge.sensitivity.file import write_tensors
from hubmerge.sensitivity.staging import stage_merged_files
from hubmerge.sources.base import Model
from hubmerge.sources.open import SINGLE, open_model
from hubmerge.sources.reader import TensorReader
from hubmerge.sources.shard_cache import ShardCache

_CHUNK = 1024 * 1024


def dense_identity(plan: Plan, agent: int) -> str:
    """The identity of the written values: the agent, and the base that it stands on."""
    models = [(m.ref.id, m.ref.sha) for m in (plan.base, plan.agents[agent])]
    names = [(t.name, t.shape) for t in plan.tensors()]
    return hashlib.sha256(json.dumps([models, names]).encode()).hexdigest()


def write_dense(
    plan: Plan,
    agent: int,
    hub: Hub,
    folder: Path,
    cache: Path,
    *,
    budget_bytes: int,
    at_peak: Callable[[], None] = lambda: None,
) -> Model:
    """Agent `agent` (from 0) as float32 in `folder`, opened as a local model; its reference keeps the agent's id.

    Integer tensors are left out, since they have no gradients. Fetched files stay in `cache`, within the budget, for
    later use. Raises DiskError, NonFiniteError.
    """
    stage_merged_files(plan, hub, folder)
    store = ShardCache(hub, cache, plan.models, budget_bytes, keep=True, deleting=at_peak)
    merged = [t for t in plan.tensors() if t.inputs[agent + 1].entry.dtype in FLOAT_DTYPES]
    with TensorReader(plan.models, store) as weights:

        def parts() -> Iterator[tuple[str, Float32]]:
            for tensor in merged:
                for chunk in chunks_of(tensor, _CHUNK):
                    yield (
                        tensor.name,
                        weights.values(agent + 1, tensor.inputs[agent + 1], chunk.start, chunk.count),
                    )

        shapes = {t.name: t.shape for t in merged}
        assert all(prod(shape) == t.elements for t, shape in zip(merged, shapes.values(), strict=True))
        if not (folder / SINGLE).exists():
            write_tensors(folder / SINGLE, shapes, {"format": "pt"}, parts(), "weight")
    return open_model(ModelName(id=str(folder), local=True), hub, allow_local=True)
