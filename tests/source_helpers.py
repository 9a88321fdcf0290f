"""How models are opened and read; fp8 checkpoints and LoRA adapters as their writers leave them, with oracles."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import COMPUTE, T, f32, read_model, tensor, write_model, write_shard
from plan_helpers import opened

from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader

F = np.float32
FP8_CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def to_fp8(
    tensors: Mapping[str, T],
    *,
    dtype: str = "F8_E4M3",
    block: tuple[int, int] | None = (128, 128),
    end: str = "_scale_inv",
) -> dict[str, T]:
    """Matrices as fp8 with scales per block (None: one for the tensor); vectors stay."""
    result: dict[str, T] = {}
    for name, t in tensors.items():
        if len(t.shape) != 2 or 0 in t.shape:
            result[name] = t
            continue
        values = f32(t)
        rows, columns = block or t.shape
        scales = np.empty((-(-t.shape[0] // rows), -(-t.shape[1] // columns)), F)
        stored = np.empty(t.shape, COMPUTE[dtype])
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = np.abs(values[part]).max() / F(400 if dtype == "F8_E4M3" else 50_000) + F(1e-9)
                stored[part] = (values[part] / scales[i, j]).astype(COMPUTE[dtype])
        result[name] = T(dtype, t.shape, stored.view(np.uint8))
        result[name + end] = tensor(scales if block else scales[0, 0], "F32")
    return result


def from_fp8(tensors: Mapping[str, T], block: tuple[int, int] | None = (128, 128)) -> dict[str, np.ndarray]:
    """What `to_fp8` stands for, element by element."""
    result = {}
    for name, t in tensors.items():
        if name.endswith(("_scale", "_scale_inv")):
            continue
        values = f32(t).copy()
        scale = next((f32(tensors[name + end]) for end in ("_scale", "_scale_inv") if name + end in tensors), None)
        if scale is not None:
            rows, columns = block or t.shape
            for i in range(t.shape[0]):
                for j in range(t.shape[1]):
                    values[i, j] = F(
                        values[i, j] * scale.reshape(-1, -(-t.shape[1] // columns))[i // rows, j // columns]
                    )
        result[name] = values
    return result


def write_adapter(
    folder: Path, tensors: Mapping[str, T], *, files: Mapping[str, bytes] | None = None, **config: Any
) -> Path:
    """An adapter as PEFT saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "org/base", **config}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    write_shard(folder / "adapter_model.safetensors", tensors)
    for name, data in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def lora(
    shape: tuple[int, int], rank: int = 4, seed: int = 0, *, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """A [rank, in] and B [out, rank] for a weight of `shape`."""
    rng = np.random.default_rng(seed)
    rows, columns = shape[::-1] if transposed else shape
    return rng.normal(0, 0.1, (rank, columns)).astype(F), rng.normal(0, 0.1, (rows, rank)).astype(F)


def pair(module: str, a: np.ndarray, b: np.ndarray, dtype: str = "F32") -> dict[str, T]:
    return {
        f"base_model.model.{module}.lora_A.weight": tensor(a, dtype),
        f"base_model.model.{module}.lora_B.weight": tensor(b, dtype),
    }


def adapted(weight: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float, *, transposed: bool = False) -> np.ndarray:
    """W + s·B·A with the rank summed in order, element by element."""
    out = np.empty(weight.shape, F)
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            o, c = (j, i) if transposed else (i, j)
            total = F(0)
            for k in range(a.shape[0]):
                total = F(total + F(b[o, k] * a[k, c]))
            out[i, j] = F(weight[i, j] + F(total * F(scale)))
    return out


def write_plain(folder: Path, tensors: Mapping[str, T], **config: Any) -> Path:
    return write_model(folder, tensors, config={"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config})


ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"
ADAPTED = "model.layers.0.mlp.gate_proj"


def zoo_adapter(folder: Path, base: str = "zoo/base", *, files: Mapping[str, bytes] | None = None) -> Path:
    """A LoRA adapter of one layer of the zoo's base, of whatever base its config names."""
    shape = read_model(ZOO / "base")[f"{ADAPTED}.weight"].shape
    return write_adapter(folder, pair(ADAPTED, *lora((shape[0], shape[1]))), files=files, base_model_name_or_path=base)


def on_hub(hub: Hub, name: str) -> Model:
    return open_model(ModelName.parse(name), hub, allow_local=False)


def bytes_of(model: Model, name: str, store: LocalOrFetched) -> bytes:
    with TensorReader([model], store) as reader:
        stored = model.tensors[name]
        return reader.raw(0, stored, 0, stored.entry.elements).tobytes()


def refuse_folder(kind: type[HubmergeError], path: Path) -> str:
    with pytest.raises(kind) as caught:
        opened(path)
    assert type(caught.value) is kind
    return str(caught.value)
