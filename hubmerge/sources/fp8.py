"""fp8 checkpoints: finds the scale of each tensor, and refuses what it cannot pair.

Every writer stores q and s with W ≈ q·s, although the name of s may speak of an inverse:

    weight_scale_inv    [⌈r/128⌉, ⌈c/128⌉], one per block (config.json may say another block), or one for all
    weight_scale        one for all, or [r, 1], one per row

Scales are no tensors of the model: they are multiplied into the tensors that they scale. Scales of activations serve a
kernel that the merge's output does not need, and are left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.sources.base import Model, StoredTensor, Views
from hubmerge.sources.derived import ScaledTensor
from hubmerge.text.wording import dims, named

FP8 = ("F8_E4M3", "F8_E5M2")
_BLOCK = (128, 128)
_SCALES = ("_scale_inv", "_scale")
_ACTIVATIONS = ("input_scale", "activation_scale")  # in place of a weight's last name
_CONFIGS = ("quantization_config", "compression_config")
_METHODS = ("fp8", "fbgemm_fp8")  # of quantization_config, with nothing but fp8 in it


def with_scales(model: Model, told: Views) -> Model:
    """The model with every fp8 tensor times its scale. A tensor without a fitting scale is left as it is."""
    tensors = dict(model.tensors)
    strange: list[str] = []
    unused: list[str] = []
    for name, tensor in model.tensors.items():
        if tensor.entry.dtype not in FP8:
            continue
        scales = [name + end for end in _SCALES if name + end in model.tensors]
        if not scales:
            continue  # its dtype is refused later, by name
        scale = model.tensors[scales[0]]
        whole = scale.entry.elements == 1
        block = None if whole else _block(tensor, scale, model.config)
        if len(scales) > 1 or not (whole or block) or scale.entry.dtype not in FLOAT_DTYPES:
            found = " and ".join(f"{model.tensors[s].entry.dtype} {dims(model.tensors[s].entry.shape)}" for s in scales)
            strange.append(f"{name} {dims(tensor.entry.shape)} with {found}")
            continue
        tensors[name] = ScaledTensor.of(tensor, scale, block)
        del tensors[scales[0]]
        for end in _ACTIVATIONS:
            other = name.removesuffix("weight") + end
            if other in tensors:
                del tensors[other]
                unused.append(other)
    if strange:
        told.refuse(
            "fp8 tensors whose scales are of an unknown form",
            where=str(model.ref),
            expected="one scale, one per row, or one per block of 128×128",
            got=named(strange),
            next_step="Convert the model to bfloat16.",
        )
    if not any(isinstance(t, ScaledTensor) for t in tensors.values()):
        return model
    config = dict(model.config)
    for key in _CONFIGS:
        if _is_plain_fp8(config.get(key)):
            del config[key]
    if unused:
        told.warnings.append(f"{model.ref.id}: scales of activations are left out: {named(unused)}")
    return replace(model, tensors=MappingProxyType(tensors), config=MappingProxyType(config))


def _block(tensor: StoredTensor, scale: StoredTensor, config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None if the shapes fit nothing."""
    shape, scales = tensor.entry.shape, scale.entry.shape
    if len(shape) != 2:
        return None
    if scales in ((shape[0], 1), (shape[0],)):
        return (1, shape[1])
    table = config.get("quantization_config")
    stated = table.get("weight_block_size") if isinstance(table, dict) else None
    block = _BLOCK
    if isinstance(stated, list) and len(stated) == 2 and all(type(n) is int and 0 < n < 2**31 for n in stated):
        block = (stated[0], stated[1])
    blocks = tuple(-(-size // part) for size, part in zip(shape, block, strict=True))
    return block if scales == blocks else None


def _is_plain_fp8(table: Any) -> bool:
    if not isinstance(table, dict):
        return False
    if table.get("transform_config"):  # W is rotated, and activations are where it is applied
        return False
    method = table.get("quant_method")
    return method in _METHODS or (method == "compressed-tensors" and table.get("format") == "float-quantized")
