"""Decoder shapes: every tensor of a checkpoint by name and shape, from the numbers in its config.json.

There are published shapes, and any Llama or Mixtral of given numbers. Tensors stand in the order of the layers; a
mixture of experts has one tensor per expert and projection, as transformers stores them. Parameter counts are those
that the model cards state (tests/scale_synthetic).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Literal

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
        "qwen2.5-14b": DecoderShape("qwen2", 48, 5120, 13_824, 40, 8, 152_064),
        "qwen2.5-32b": DecoderShape("qwen2", 64, 5120, 27_648, 40, 8, 152_064),
        "llama-70b": DecoderShape("llama", 80, 8192, 28_672, 64, 8, 128_256),
        "llama-405b": DecoderShape("llama", 126, 16_384, 53_248, 128, 8, 128_256),
        "mixtral-8x7b": DecoderShape("mixtral", 32, 4096, 14_336, 32, 8, 32_000, experts=8),
        "qwen3-30b-a3b": DecoderShape("qwen3_moe", 48, 2048, 768, 32, 4, 151_936, experts=128),
    }
)

OWN_SHAPE = ("layers", "hidden", "vocabulary", "intermediate", "heads", "key_value_heads", "experts", "tied")
_MOST_TENSORS, _MOST_PARAMETERS = 200_000, 10**13  # more than any published model has; a header must hold the names


def own_shape(
    layers: int,
    hidden: int,
    vocabulary: int,
    intermediate: int = 0,
    heads: int = 0,
    key_value_heads: int = 0,
    experts: int = 0,
    tied: int = 0,
) -> DecoderShape:
    """A Llama, or with `experts` a Mixtral, of these numbers; a number of 0 follows from the others.

    ValueError says what would be possible.
    """
    heads = heads or max(1, hidden // 128)
    key_value_heads = key_value_heads or heads
    intermediate = intermediate or 4 * hidden
    sizes = {"layers": layers, "hidden": hidden, "vocabulary": vocabulary, "intermediate": intermediate}
    sizes |= {"heads": heads, "key_value_heads": key_value_heads}
    if wrong := [name for name, value in sizes.items() if value < 1]:
        raise ValueError(f"{', '.join(wrong)} of at least 1")
    if experts < 0 or tied not in (0, 1):
        raise ValueError("experts of at least 0 and tied of 0 or 1")
    if hidden % heads or heads % key_value_heads:
        raise ValueError("heads that divide hidden, and key_value_heads that divide heads")
    if layers * (9 + 3 * experts) > _MOST_TENSORS:
        raise ValueError(f"at most {_MOST_TENSORS} tensors")
    shape = DecoderShape(
        "mixtral" if experts else "llama",
        layers,
        hidden,
        intermediate,
        heads,
        key_value_heads,
        vocabulary,
        head_width=hidden // heads,
        tied=bool(tied),
        experts=experts,
    )
    if shape.parameters > _MOST_PARAMETERS:
        raise ValueError(f"at most {_MOST_PARAMETERS} parameters")
    return shape
