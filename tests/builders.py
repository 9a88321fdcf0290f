"""Small models for tests: written by the reference writer of safetensors, with oracles of their own.

    base = random_base(seed=0)                        # a two-layer Llama of a few thousand parameters, BF16
    agent = sparse_agent(base, density=0.05, seed=1)  # 5 % of every tensor moved, as RL fine-tuning leaves it
    write_model(tmp_path / "base", base)

A tensor is a `T`: its safetensors dtype and its elements as they are stored (BF16 as uint16), so that bits can be
compared; `f32(t)` gives the values. Conversions go through ml_dtypes, never through hubmerge.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

# safetensors dtype → how numpy computes with it, how its bits are kept in `T.raw`
COMPUTE: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
RAW: Mapping[str, np.dtype[Any]] = {
    **COMPUTE,
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, eq=False)
class T:
    """One tensor: `raw` has `shape`, in the storage dtype of `dtype`."""

    dtype: str  # safetensors' name
    shape: tuple[int, ...]
    raw: NDArray[Any]

    @property
    def values(self) -> NDArray[Any]:
        """The elements in a dtype that numpy computes with (ml_dtypes for bfloat16)."""
        return self.raw.view(COMPUTE[self.dtype])

    def same_bits(self, other: "T") -> bool:
        return (self.dtype, self.shape) == (other.dtype, other.shape) and self.raw.tobytes() == other.raw.tobytes()


Tensors = Mapping[str, T]


def tensor(values: Any, dtype: str = "BF16") -> T:
    """A tensor of `dtype` from anything numpy takes; float64 first, then rounded to nearest once."""
    if dtype in FLOATS:
        wide = np.asarray(values, dtype=np.float32 if dtype != "F64" else np.float64)
    else:
        wide = np.asarray(values)
    stored = np.array(wide.astype(COMPUTE[dtype]), order="C", ndmin=0)
    return T(dtype, stored.shape, stored.view(RAW[dtype]))


def f32(t: T) -> NDArray[np.float32]:
    """The values of a tensor as float32, in its shape."""
    return np.asarray(t.values.astype(np.float32))


def llama_shapes(
    *, layers: int = 2, hidden: int = 16, intermediate: int = 24, vocab: int = 40, tied: bool = False
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{layer}.self_attn.{part}.weight"] = (hidden, hidden)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}.mlp.up_proj.weight"] = (intermediate, hidden)
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, intermediate)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not tied:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def random_base(
    seed: int, dtype: str = "BF16", sizes: Mapping[str, tuple[int, ...]] | None = None, *, scale: float = 0.02
) -> dict[str, T]:
    """Normal weights of the given shapes (default: `llama_shapes()`); norms around 1."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in (llama_shapes() if sizes is None else sizes).items():
        mean = 1.0 if "norm" in name else 0.0
        result[name] = tensor(rng.normal(mean, scale, shape), dtype)
    return result


def sparse_agent(base: Tensors, density: float, seed: int) -> dict[str, T]:
    """`base` with round(density · n) elements of every float tensor moved, each by more than 1e-5.

    A step is some representable neighbours of the element's dtype, as RL leaves them; other tensors stay.
    """
    rng = np.random.default_rng(seed)
    result = {}
    for name, t in base.items():
        if t.dtype not in FLOATS:
            result[name] = t
            continue
        values = f32(t).astype(np.float64).reshape(-1)
        chosen = rng.choice(values.size, size=round(density * values.size), replace=False)
        # three bf16 steps are at least |x|·3/256, so neither rounding nor a change of binade can undo the move
        step = (np.abs(values[chosen]) * 3 / 128 + 1e-4) * rng.uniform(1.0, 3.0, chosen.size)
        values[chosen] += rng.choice((-1.0, 1.0), chosen.size) * step
        result[name] = tensor(values.reshape(t.shape), t.dtype)
    return result


def llama_config(tensors: Tensors, **changes: Any) -> dict[str, Any]:
    """A config.json that fits the tensors of `llama_shapes`; keys set to None are left out."""
    names = tensors.keys()
    vocab, hidden = tensors["model.embed_tokens.weight"].shape if "model.embed_tokens.weight" in names else (8, 4)
    gate = "model.layers.0.mlp.gate_proj.weight"
    torch_names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    stored = next((t.dtype for t in tensors.values() if t.dtype in torch_names), "F32")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": tensors[gate].shape[0] if gate in names else 4,
        "num_hidden_layers": sum(n.endswith("input_layernorm.weight") for n in names),
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": vocab,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in names,
        "torch_dtype": torch_names[stored],
        **changes,
    }
    return {k: v for k, v in config.items() if v is not None}


def tokenizer_files(
    vocab: int = 40, added: Mapping[str, int] | None = None, more: Mapping[str, int] | None = None
) -> dict[str, bytes]:
    """A word-level tokenizer that transformers loads: `vocab` words and `more`, and special tokens `added` to them."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, vocab)}, **(more or {})}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **plain, "special": True} for token, i in (added or {}).items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    return {"tokenizer.json": json.dumps(tokenizer).encode(), "tokenizer_config.json": json.dumps(config).encode()}


def write_model(
    folder: Path,
    tensors: Tensors,
    *,
    config: Mapping[str, Any] | None = None,
    shards: int = 1,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A model folder: safetensors in `shards` files (with an index if several), config.json, a tokenizer.

    `files` are added, or replace what stands there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_shard(folder / "model.safetensors", tensors)
    else:
        names = list(tensors)
        parts = [names[i * len(names) // shards : (i + 1) * len(names) // shards] for i in range(shards)]
        weight_map = {}
        for number, part in enumerate(parts, start=1):
            shard = f"model-{number:05d}-of-{shards:05d}.safetensors"
            write_shard(folder / shard, {n: tensors[n] for n in part})
            weight_map.update(dict.fromkeys(part, shard))
        write_index(folder, weight_map, sum(t.raw.nbytes for t in tensors.values()))
    (folder / "config.json").write_text(json.dumps(llama_config(tensors) if config is None else config, indent=2))
    for name, content in {**tokenizer_files(), **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_parents(folder: Path, *, shards: int = 1) -> list[Path]:
    """A base and two agents that changed a tenth of it, with a licence, below `folder`."""
    base = random_base(0)
    parts = {"base": base, "one": sparse_agent(base, 0.1, 1), "two": sparse_agent(base, 0.1, 2)}
    card = {"README.md": b"---\nlicense: mit\n---\n"}
    return [write_model(folder / name, tensors, shards=shards, files=card) for name, tensors in parts.items()]


def write_shard(path: Path, tensors: Tensors) -> None:
    save_file({n: t.values for n, t in tensors.items()}, path, metadata={"format": "pt"})


def write_index(folder: Path, weight_map: Mapping[str, Any], total_bytes: int = 0) -> None:
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def read_model(folder: Path) -> dict[str, T]:
    """Every tensor of a folder's shards, bit for bit, through the reference reader."""
    from safetensors import deserialize

    result = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
            raw = np.frombuffer(bytes(entry["data"]), dtype=RAW[entry["dtype"]]).reshape(entry["shape"])
            result[name] = T(entry["dtype"], tuple(entry["shape"]), raw)
    return result


def recipe_dict(base: Path | str, agents: Sequence[Any], method: str = "ram", **more: Any) -> dict[str, Any]:
    """A recipe as users write it."""
    listed = [agent if isinstance(agent, dict) else str(agent) for agent in agents]
    return {"base": str(base), "agents": listed, "method": method, **more}


def write_sweep(recipe: Path, *entries: Mapping[str, Any]) -> Path:
    """sweep.yaml beside a recipe, over its models."""
    models = json.loads(recipe.read_text())
    path = recipe.with_name("sweep.yaml")
    path.write_text(json.dumps({"base": models["base"], "agents": models["agents"], "sweep": entries}))
    return path
