"""Synthetic checkpoints of published shapes, written to disk: a base and agents of given densities.

    python -m benchmarks.synthetic --shape 0.5b --out DIR

The base is normal noise in bf16; an agent moves the given share of the elements by one or two units in the last
place, which is what RL fine-tuning typically leaves in bf16. Made chunk by chunk, so memory stays small.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hubmerge.sources.header import serialize_header
from hubmerge.sources.synthetic import SHAPES as PUBLISHED
from hubmerge.sources.synthetic import DecoderShape

CHUNK = 4 * 1024 * 1024
DENSITIES = (0.032, 0.462, 0.543)  # coding, tool and memory agent of the RAM paper
LARGE_ENOUGH = 0.8415  # share of N(0, 0.02) above 0.004 in magnitude, where one unit in the last place exceeds 1e-5


def small_shape(*, layers: int, hidden: int, intermediate: int, key_value: int, vocabulary: int) -> DecoderShape:
    """A Qwen2 whose head is tied, with one head of keys and values of `key_value` elements."""
    heads = hidden // key_value
    return DecoderShape("qwen2", layers, hidden, intermediate, heads, 1, vocabulary, head_width=key_value, tied=True)


SHAPES = {
    "tiny": small_shape(layers=2, hidden=64, intermediate=128, key_value=16, vocabulary=512),
    "0.5b": PUBLISHED["qwen2.5-0.5b"],
    "1.5b": PUBLISHED["qwen2.5-1.5b"],
    "7b": PUBLISHED["qwen2.5-7b"],
}
# of several output shards, where those are small: kills.py and evening.py
FAMILY = small_shape(layers=4, hidden=512, intermediate=1408, key_value=128, vocabulary=6144)  # 27 MB a model


def write_family(
    shape: DecoderShape, out: Path, densities: Sequence[float] = DENSITIES, max_shard_bytes: int = 10**9
) -> None:
    """`out`/base, `out`/agent0, … unless they are there already."""
    for model, density in [("base", 0.0), *((f"agent{i}", d) for i, d in enumerate(densities))]:
        folder = out / model
        if (folder / "config.json").is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        _write_model(shape, folder, model, density, max_shard_bytes)


def _write_model(shape: DecoderShape, folder: Path, model: str, density: float, max_shard_bytes: int) -> None:
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
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (folder / "config.json").write_text(json.dumps(shape.config()))


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
