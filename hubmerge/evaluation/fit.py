"""Which dtype a model runs in here: the stored one, bfloat16 where that is wider and does not fit, or none.

A run holds the weights, the keys and values of its batches, and itself. Whether that fits is told from headers alone:
on the CPU before anything is fetched, on a GPU by the process that sees its memory. A machine that is too small says
nothing of the model, so nothing is recorded of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hubmerge.errors import DeviceError
from hubmerge.plan.disk import shown_bytes
from hubmerge.sources.base import Model

SHARE_OF_CACHE = 0.25  # of the memory, for the keys and values of a batch
PROCESS_BYTES = 1_500_000_000  # for libraries, activations and logits; a quarter of a small machine's memory
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_STORED = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_NARROWER = "bfloat16"  # has the range of float32


@dataclass(frozen=True)
class Weights:
    """A model's weights as far as their memory goes."""

    stored: str  # the dtype that transformers loads them in by itself
    elements: int

    def bytes_as(self, dtype: str) -> int:
        return self.elements * ITEM_BYTES[dtype]


def weights_of(model: Model) -> Weights:
    """From its headers, and its config where that names a dtype, which is then the one that transformers takes."""
    elements: Counter[str] = Counter()
    for tensor in model.tensors.values():
        elements[tensor.entry.dtype] += tensor.entry.elements
    usual = max((d for d in elements if d in _STORED), key=lambda d: elements[d], default="F32")
    named = model.config.get("dtype") or model.config.get("torch_dtype")
    named = str(named).removeprefix("torch.")
    return Weights(named if named in ITEM_BYTES else _STORED[usual], elements.total())


def bytes_for_weights(memory_bytes: int) -> int:
    """What is left beside the process itself and the keys and values of a batch."""
    return int((1 - SHARE_OF_CACHE) * memory_bytes - min(PROCESS_BYTES, SHARE_OF_CACHE * memory_bytes))


def fitting_dtype(weights: Weights, asked: str, memory_bytes: int, where: str) -> str:
    """The dtype to run in within `memory_bytes`; `asked` is `auto` or the only one. DeviceError where none fits."""
    usable = bytes_for_weights(memory_bytes)
    choices = [weights.stored, _NARROWER] if asked == "auto" else [asked]
    for dtype in choices:
        if weights.bytes_as(dtype) <= usable:
            return dtype
    least = min(choices, key=weights.bytes_as)
    held = weights.bytes_as(least)
    needed = int(min((held + PROCESS_BYTES) / (1 - SHARE_OF_CACHE), held / (1 - 2 * SHARE_OF_CACHE))) + 1
    wanted, found = shown_bytes(needed, memory_bytes)
    narrower = ITEM_BYTES[least] > ITEM_BYTES[_NARROWER]
    raise DeviceError(
        "the model does not fit in this machine's memory",
        where=where,
        expected=f"{wanted} for it in {least}",
        got=found,
        next_step=f"Evaluate it on a machine with more memory{', or in bfloat16' if narrower else ''}.",
    )
