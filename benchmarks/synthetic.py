"""Synthetic checkpoints of published shapes, written to disk: a base and agents of given densities.

    python -m benchmarks.synthetic --shape 0.5b --out DIR

The base is normal noise in bf16; an agent moves the given share of the elements by one or two units in the last
place, which is what RL fine-tuning typically leaves in bf16. Made chunk by chunk, so memory stays small.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hubmerge.sources.header import serialize_header

CHUNK = 4 * 1024 * 1024
DENSITIES = (0.032, 0.462, 0.543)  # coding, tool and memory agent of the RAM paper
LARGE_ENOUGH = 0.8415  # share of N(0, 0.02) above 0.004 in magnitude, where one unit in the last place exceeds 1e-5


@dataclass(frozen=True)
class Shape:
    """A Qwen2-style decoder."""

    layers: int
    hidden: int
    intermediate: int
    key_value: int  # width of the key and value projections
    vocabulary: int
    tied: bool

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        h, kv, ff = self.hidden, self.key_value, self.intermediate
        out: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (self.vocabulary, h))]
        for i in range(self.layers):
            p = f"model.layers.{i}"
            out += [
                (f"{p}.input_layernorm.weight", (h,)),
                (f"{p}.mlp.down_proj.weight", (h, ff)),
                (f"{p}.mlp.gate_proj.weight", (ff, h)),
                (f"{p}.mlp.up_proj.weight", (ff, h)),
                (f"{p}.post_attention_layernorm.weight", (h,)),
                (f"{p}.self_attn.k_proj.bias", (kv,)),
                (f"{p}.self_attn.k_proj.weight", (kv, h)),
                (f"{p}.self_attn.o_proj.weight", (h, h)),
                (f"{p}.self_attn.q_proj.bias", (h,)),
                (f"{p}.self_attn.q_proj.weight", (h, h)),
                (f"{p}.self_attn.v_proj.bias", (kv,)),
                (f"{p}.self_attn.v_proj.weight", (kv, h)),
            ]
        out.append(("model.norm.weight", (h,)))
        if not self.tied:
            out.append(("lm_head.weight", (self.vocabulary, h)))
        return out


SHAPES = {
    "tiny": Shape(2, 64, 128, 16, 512, True),
    "0.5b": Shape(24, 896, 4864, 128, 151_936, True),
    "1.5b": Shape(28, 1536, 8960, 256, 151_936, True),
    "7b": Shape(28, 3584, 18_944, 512, 152_064, False),
}


def write_family(shape: Shape, out: Path, densities: Sequence[float] = DENSITIES, max_shard_bytes: int = 10**9) -> None:
    """`out`/base, `out`/agent0, … unless they are there already."""
    for model, density in [("base", 0.0), *((f"agent{i}", d) for i, d in enumerate(densities))]:
        folder = out / model
        if (folder / "config.json").is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        _write_model(shape, folder, model, density, max_shard_bytes)


def _write_model(shape: Shape, folder: Path, model: str, density: float, max_shard_bytes: int) -> None:
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, dims in shape.tensors():
        width = 2 * int(np.prod(dims))
        if groups[-1] and size + width > max_shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append((name, dims))
        size += width
    weight_map = {}
    for number, group in enumerate(groups, 1):
        filename = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header, _ = serialize_header([(n, "BF16", d) for n, d in group], {"format": "pt"})
        with open(folder / filename, "wb") as file:
            file.write(header)
            for name, dims in group:
                weight_map[name] = filename
                for start in range(0, int(np.prod(dims)), CHUNK):
                    count = min(CHUNK, int(np.prod(dims)) - start)
                    file.write(_elements(name, start, count, model, density).tobytes())
    if len(groups) > 1:
        index = {"metadata": {"total_size": sum(2 * int(np.prod(d)) for _, d in shape.tensors())}}
        (folder / "model.safetensors.index.json").write_text(json.dumps({**index, "weight_map": weight_map}))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
    }
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (folder / "config.json").write_text(json.dumps(config))


def _elements(name: str, start: int, count: int, model: str, density: float) -> np.ndarray:
    seed = [*name.encode(), start]
    normal = np.random.default_rng(seed).standard_normal(count, dtype=np.float32) * np.float32(0.02)
    bits = (normal.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if density:
        rng = np.random.default_rng([*seed, *model.encode()])
        chosen = rng.random(count, dtype=np.float32) < density / LARGE_ENOUGH
        step = np.where(chosen, rng.choice([-2, -1, 1, 2], count), 0)
        # an update below 1e-5 would not count as one
        step = np.where(np.abs(normal) > 0.004, step, 0)
        bits = (bits.astype(np.int32) + step).astype(np.uint16)
    return bits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_family(SHAPES[options.shape], options.out)
