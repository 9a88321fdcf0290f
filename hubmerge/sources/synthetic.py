"""Generated models of published shapes, which take no disk: to measure memory, speed and the plan at any size.

    synthetic:llama-70b                         a base
    synthetic:llama-70b?agent=2&density=0.1     the agent number 2 on it
    …&seed=1&layers=1                           other weights; only the first layer of all

An agent changes the share `density` of its elements by an update of log-normal magnitude (median 5e-4, σ = 1) and
random sign; a fifth of them is changed by every agent, the others lie apart from those of up to eight agents as long as
their densities leave room. Weights are normal (σ = 0.02), bf16 throughout.

Values repeat in a tile of TILE elements, a prime, so that no chunk size falls in step with it; a tensor enters the
tile at an offset of its own. A read is then a copy out of memory, as it is out of the page cache, and measures the
merge, not a generator; a tile costs 2 MB per model. An element is a function of (seed, agent, tensor, index) alone.

A shape's tensors stand in the order of the layers; a mixture of experts has one tensor per expert and projection, as
transformers stores them. Parameter counts of published shapes are those that the model cards state; `short` is none,
and has many short tensors.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from hubmerge.errors import RecipeError
from hubmerge.hub.names import FileInfo
from hubmerge.numerics.counter_rng import draws, make_key, uniform
from hubmerge.numerics.dtypes import decode, encode
from hubmerge.recipe.model_name import SYNTHETIC, ModelRef
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.header import TensorEntry, serialize_header

TILE = 1_048_573  # elements
SHARD = "model.safetensors"
_WEIGHT_SIGMA = 0.02
_UPDATE_MEDIAN, _UPDATE_SIGMA = 5e-4, 1.0
_SMALLEST_UPDATE = 2e-5  # twice what counts as one
_OVERLAP = 0.2  # of what an agent changes, the share that all do
_QUANTILES = 4096
_PIECE = 64 * 1024  # elements
_GOLDEN = 0.6180339887498949  # its multiples spread the agents' own places over the tile

Family = Literal["qwen2", "llama", "mixtral", "qwen3_moe"]

_CLASSES: Mapping[str, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True)
class DecoderShape:
    """A decoder with grouped-query attention and gated MLPs."""

    family: Family
    layers: int
    hidden: int
    intermediate: int  # of the MLP, or of one expert
    heads: int
    key_value_heads: int
    vocabulary: int
    head_width: int = 128
    tied: bool = False
    experts: int = 0  # per layer; 0: one MLP

    def tensors(self, layers: int | None = None) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, with the first `layers` layers only if given."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for number in range(self.layers if layers is None else min(layers, self.layers)):
            for name, shape in self._layer():
                yield f"model.layers.{number}.{name}", shape
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, self.hidden)

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, query = self.hidden, self.heads * self.head_width
        key_value = self.key_value_heads * self.head_width
        yield "input_layernorm.weight", (hidden,)
        for name, width in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
            yield f"self_attn.{name}.weight", (width, hidden)
            if self.family == "qwen2":
                yield f"self_attn.{name}.bias", (width,)
        yield "self_attn.o_proj.weight", (hidden, query)
        if self.family == "qwen3_moe":
            yield "self_attn.q_norm.weight", (self.head_width,)
            yield "self_attn.k_norm.weight", (self.head_width,)
        yield "post_attention_layernorm.weight", (hidden,)
        yield from self._mlp()

    def _mlp(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        up, down = (self.intermediate, self.hidden), (self.hidden, self.intermediate)
        if not self.experts:
            for name, shape in (("gate_proj", up), ("up_proj", up), ("down_proj", down)):
                yield f"mlp.{name}.weight", shape
            return
        block = "block_sparse_moe" if self.family == "mixtral" else "mlp"
        names = ("w1", "w3", "w2") if self.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        yield f"{block}.gate.weight", (self.experts, self.hidden)
        for expert in range(self.experts):
            for name, shape in zip(names, (up, up, down), strict=True):
                yield f"{block}.experts.{expert}.{name}.weight", shape

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.tensors())

    def config(self, layers: int | None = None) -> dict[str, Any]:
        """The config.json of the shape."""
        experts = {"qwen3_moe": "num_experts", "mixtral": "num_local_experts"}.get(self.family)
        return {
            "architectures": [_CLASSES[self.family]],
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers if layers is None else min(layers, self.layers),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_width,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            **({experts: self.experts} if experts else {}),
        }


SHAPES: Mapping[str, DecoderShape] = MappingProxyType(
    {
        "qwen2.5-0.5b": DecoderShape("qwen2", 24, 896, 4864, 14, 2, 151_936, head_width=64, tied=True),
        "qwen2.5-1.5b": DecoderShape("qwen2", 28, 1536, 8960, 12, 2, 151_936, tied=True),
        "qwen2.5-7b": DecoderShape("qwen2", 28, 3584, 18_944, 28, 4, 152_064),
        "llama-70b": DecoderShape("llama", 80, 8192, 28_672, 64, 8, 128_256),
        "llama-405b": DecoderShape("llama", 126, 16_384, 53_248, 128, 8, 128_256),
        "mixtral-8x7b": DecoderShape("mixtral", 32, 4096, 14_336, 32, 8, 32_000, experts=8),
        "qwen3-30b-a3b": DecoderShape("qwen3_moe", 48, 2048, 768, 32, 4, 151_936, experts=128),
        "short": DecoderShape("llama", 60, 64, 256, 1, 1, 512, head_width=64),
    }
)


@dataclass(frozen=True)
class Spec:
    """The parts of a synthetic model's name."""

    shape: str
    agent: int = 0  # 0: the base
    density: float = 0.0
    seed: int = 0
    layers: int = 0  # 0: all


@dataclass(frozen=True)
class SyntheticTensor(StoredTensor):
    """A tensor that is made when it is read."""

    spec: Spec

    def fill(self, start: int, out: NDArray[np.generic]) -> None:
        """Elements from `start` into `out` [n], BF16 as uint16."""
        tile = _tile(self.spec)
        place = (_offset(self.spec.seed, self.entry.name) + start) % TILE
        done = 0
        while done < out.size:
            count = min(out.size - done, TILE - place)
            out[done : done + count] = tile[place : place + count]
            done, place = done + count, 0


def parse_spec(name: str) -> Spec:
    """RecipeError names what is wrong."""
    shape, _, query = name.removeprefix(SYNTHETIC).partition("?")
    if shape not in SHAPES:
        raise _wrong(name, "no such shape", ", ".join(SHAPES), shape)
    known = {"agent": int, "density": float, "seed": int, "layers": int}
    values: dict[str, int | float] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        kind = known.get(key)
        if kind is None:
            raise _wrong(name, "an unknown option", ", ".join(known), key)
        try:
            values[key] = kind(text)
        except ValueError:
            raise _wrong(name, f"{key} is no number", kind.__name__, text) from None
    if ("agent" in values) != ("density" in values):
        raise _wrong(name, "an agent needs its number and its density", "agent=1&density=0.1", query)
    spec = Spec(shape, **values)  # type: ignore[arg-type]
    if not (spec.agent >= 0 and 0 <= spec.density <= 1 and spec.layers >= 0):
        raise _wrong(name, "an option out of its range", "density from 0 to 1, the others ≥ 0", query)
    return spec


def open_synthetic(name: str) -> Model:
    """The model of a name such as `synthetic:qwen2.5-7b?agent=1&density=0.1`."""
    spec = parse_spec(name)
    shape, layers = SHAPES[spec.shape], spec.layers or None
    shapes = dict(shape.tensors(layers))
    _, ranges = serialize_header([(n, "BF16", shape) for n, shape in shapes.items()], {})
    entries = [TensorEntry(n, "BF16", shape, *ranges[n]) for n, shape in shapes.items()]
    return Model(
        ModelRef("synthetic", name, hashlib.sha256(repr(spec).encode()).hexdigest()[:40]),
        MappingProxyType(shape.config(layers)),
        {SHARD: FileInfo(SHARD, entries[-1].end)},
        MappingProxyType({e.name: SyntheticTensor(SHARD, e, spec) for e in entries}),
        "apache-2.0",
    )


@lru_cache(maxsize=1024)
def _offset(seed: int, name: str) -> int:
    return make_key(seed, "place", name).first % TILE


@lru_cache(maxsize=33)  # the base and as many agents as a recipe has
def _tile(spec: Spec) -> NDArray[np.uint16]:
    """[TILE] BF16 bits; made in pieces, so that making it takes no more memory than it has."""
    return np.concatenate([_piece(spec, start, min(_PIECE, TILE - start)) for start in range(0, TILE, _PIECE)])


@lru_cache(maxsize=1)
def _quantiles() -> NDArray[np.float64]:
    """Of a standard normal, equally likely."""
    return np.array([NormalDist().inv_cdf((i + 0.5) / _QUANTILES) for i in range(_QUANTILES)])


def _piece(spec: Spec, start: int, count: int) -> NDArray[np.uint16]:
    index = np.uint64(_QUANTILES - 1)
    normal = _quantiles()[draws(make_key(spec.seed, "weight"), start, count) & index] * _WEIGHT_SIGMA
    base = _bf16(normal)
    if not spec.density:
        return base
    random = draws(make_key(spec.seed, "update", str(spec.agent)), start, count)
    magnitudes = np.maximum(_UPDATE_MEDIAN * np.exp(_UPDATE_SIGMA * _quantiles()), _SMALLEST_UPDATE)
    update = magnitudes[random & index] * np.where(random >> np.uint64(63), 1.0, -1.0)
    moved = _bf16(decode(base, "BF16") + update)
    moved = np.where(moved == base, base + np.uint16(1), moved)  # too small for this weight: its next neighbour
    return np.where(_active(spec, start, count), moved, base)


def _active(spec: Spec, start: int, count: int) -> NDArray[np.bool_]:
    """[count] where the agent changes the base: the places of all agents first, then an arc of its own of the rest."""
    place = uniform(make_key(spec.seed, "active"), start, count).astype(np.float64)
    common = _OVERLAP * spec.density
    around = (place - common) / (1 - common) - (spec.agent - 1) * _GOLDEN
    own = around - np.floor(around) < (spec.density - common) / (1 - common)
    return np.where(place < common, True, own)


def _bf16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    patterns: NDArray[np.uint16] = encode(values.astype(np.float32), "BF16", "nearest", None)
    return patterns


def _wrong(name: str, what: str, expected: str, got: str) -> RecipeError:
    return RecipeError(f"a synthetic model with {what}", where=name[:200], expected=expected, got=got[:80])
