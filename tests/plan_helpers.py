"""Models that exist only as their headers, plans over them, and what every plan's layout must hold."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import recipe_dict
from safetensors import deserialize

from hubmerge.errors import IncompatibleError
from hubmerge.hub.client import Hub
from hubmerge.hub.names import FileInfo
from hubmerge.plan.plan import MAX_SHARD_BYTES, Plan, make_plan
from hubmerge.recipe.model_name import ModelName, ModelRef
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.header import TensorEntry, parse_header
from hubmerge.sources.open import open_model, open_models

NOWHERE = Hub("http://127.0.0.1:9")
SHAPES = {"model.embed_tokens.weight": (8, 4), "model.layers.0.mlp.up_proj.weight": (6, 4), "model.norm.weight": (4,)}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4,
    "vocab_size": 8,
    "num_hidden_layers": 1,
    "tie_word_embeddings": True,
}
SIZE = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def model(
    name: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    sha256: str | None = None,
    files: Mapping[str, FileInfo] | None = None,
) -> Model:
    """A model of a Hub that exists only as its headers."""
    position = 64
    tensors = {}
    for tensor_name, shape in (SHAPES if shapes is None else shapes).items():
        dtype = (dtypes or {}).get(tensor_name, "BF16")
        size = SIZE[dtype] * math.prod(shape)
        tensors[tensor_name] = StoredTensor(
            "model.safetensors", TensorEntry(tensor_name, dtype, shape, position, position + size)
        )
        position += size
    shard = FileInfo("model.safetensors", position, sha256 or name.encode().hex().ljust(64, "0"))
    return Model(
        ModelRef("hub", name, name.encode().hex().ljust(40, "0"), "main"),
        CONFIG if config is None else config,
        {"model.safetensors": shard, **(files or {})},
        tensors,
    )


def plan(base: Model, *agents: Model, max_shard_bytes: int = 2**31, **recipe: Any) -> Plan:
    content = {"base": base.ref.id, "agents": [a.ref.id for a in agents], "method": "ram", **recipe}
    return make_plan(recipe_from_dict(content), base, agents, max_shard_bytes=max_shard_bytes)


def opened(folder: Path) -> Model:
    return open_model(ModelName(id=str(folder), local=True), NOWHERE, allow_local=True)


def plan_of(*models: Any, hub: Hub = NOWHERE, max_shard_bytes: int = MAX_SHARD_BYTES, **fields: Any) -> Plan:
    """A plan over models in folders or on the Hub, the base first."""
    recipe = recipe_from_dict(recipe_dict(models[0], models[1:], **fields))
    base, agents = open_models(recipe, hub, allow_local=True)
    return make_plan(recipe, base, agents, max_shard_bytes=max_shard_bytes)


def refused(*folders: Path, **fields: Any) -> list[str]:
    """What stands in the way of such a plan."""
    with pytest.raises(IncompatibleError) as caught:
        plan_of(*folders, **fields)
    return [str(p) for p in caught.value.problems]


def problems(base: Model, *agents: Model, **recipe: Any) -> list[str]:
    with pytest.raises(IncompatibleError) as caught:
        plan(base, *agents, **recipe)
    assert all(p.code == "E_INCOMPATIBLE" for p in caught.value.problems)
    return [str(p) for p in caught.value.problems]


BASE, A, B = model("org/base"), model("org/a"), model("org/b")


def names_of(made: Plan) -> list[str]:
    return [t.name for t in made.tensors()]


def assert_laid_out(made: Plan) -> None:
    """Every shard is its header and its tensors without a gap, and both parsers read it."""
    for shard in made.shards:
        content = shard.header + bytes(shard.size - len(shard.header))
        position = len(shard.header)
        for planned in shard.tensors:
            assert planned.begin == position
            assert planned.end - planned.begin == planned.elements * SIZE[planned.dtype]
            assert planned.begin % SIZE[planned.dtype] == 0, "torch views the bytes in place"
            position = planned.end
        assert position == shard.size == len(content)
        header = parse_header(shard.header[8:], shard.size, shard.filename)
        assert [(e.name, e.dtype, e.shape, e.begin, e.end) for e in header.tensors] == [
            (t.name, t.dtype, t.shape, t.begin, t.end) for t in shard.tensors
        ]
        assert dict(header.metadata) == {"format": "pt"}
        assert {n: (v["dtype"], tuple(v["shape"])) for n, v in deserialize(content)} == {
            t.name: (t.dtype, t.shape) for t in shard.tensors
        }
