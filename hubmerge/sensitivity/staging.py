"""What transformers makes of a staged folder (sources/staged.py): a network for gradients, a tokenizer, a config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hubmerge.errors import FormatError, MemoryLimitError, SensitivityError
from hubmerge.hub.client import Hub
from hubmerge.plan.disk import shown_bytes
from hubmerge.plan.files import folder_files
from hubmerge.plan.plan import Plan
from hubmerge.sources.base import Model
from hubmerge.sources.companions import is_of_tokenizer, makes_tokenizer, reader
from hubmerge.sources.folder import CONFIG
from hubmerge.sources.staged import stage_files, stage_settings

_WEIGHTS_SHARE = 0.7  # of the free memory; the rest is for a gradient and the activations
_SMALLER = "Take --dtype bfloat16 or a machine with more memory, and name the file in the recipe."


def stage_small_files(model: Model, hub: Hub, folder: Path) -> None:
    """config.json and the tokenizer; SensitivityError for what cannot be differentiated or has no tokenizer."""
    if model.config.get("quantization_config"):
        raise SensitivityError(
            "quantized weights, which have no gradients",
            where=str(model.ref),
            expected="no quantization_config",
            next_step="Use the model before quantization.",
        )
    if not any(map(makes_tokenizer, model.files)):
        raise SensitivityError("no tokenizer", where=str(model.ref), expected="tokenizer.json, tokenizer.model, …")
    stage_settings(model, hub, folder)


def stage_merged_files(plan: Plan, hub: Hub, folder: Path) -> None:
    """config.json and the tokenizer that the merge will have: an agent without files of its own is read by these."""
    files, _ = folder_files(plan, reader(hub))
    stage_files({name: data for name, data in files.items() if name == CONFIG or is_of_tokenizer(name)}, folder)


def load_tokenizer(folder: Path, where: str) -> Any:
    """The staged tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise FormatError("a tokenizer that transformers cannot read", where=where, got=_first_line(error)) from None


def load_config(folder: Path, where: str) -> Any:
    """The staged config."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError("a model that transformers does not know", where=where, got=_first_line(error)) from None


def load_model(folder: Path, where: str, *, dtype: str, device: str) -> Any:
    """The staged model for gradients: eval mode, floating parameters only, eager attention.

    Eager attention, because the backward passes of the fused kernels add in no fixed order on some devices.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with _quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                attn_implementation="eager",
                output_loading_info=True,
            )
            model.to(device)
    except torch.OutOfMemoryError:
        raise MemoryLimitError("the model does not fit", where=where, next_step=_SMALLER) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise FormatError("a model that transformers cannot load", where=where, got=_first_line(error)) from None
    wrong = {kind: report[kind] for kind in ("missing_keys", "mismatched_keys", "error_msgs") if report.get(kind)}
    if wrong:
        listed = "; ".join(f"{kind}: {', '.join(sorted(map(str, keys))[:5])}" for kind, keys in wrong.items())
        raise SensitivityError(
            "the checkpoint does not fit its own config.json",
            where=where,
            expected="a tensor for every parameter of the architecture",
            got=ascii(listed)[1:-1][:400],
        )
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            # a padding row gets no gradient, though the token may stand in a pair (where it is also the EOS, say)
            module.padding_idx = None
    return model


def require_memory(weight_bytes: int, where: str, device: str = "cpu") -> None:
    """MemoryLimitError where `device` cannot hold these weights beside one gradient and the activations."""
    if device == "cpu":
        import psutil

        free = psutil.virtual_memory().available
    else:
        import torch

        free, _ = torch.cuda.mem_get_info(torch.device(device))
    if weight_bytes > _WEIGHTS_SHARE * free:
        wanted, found = shown_bytes(int(weight_bytes / _WEIGHTS_SHARE), free)
        raise MemoryLimitError(
            "the model is too large for its sensitivity to be computed here",
            where=where,
            expected=f"{wanted} of free memory",
            got=found,
            next_step=_SMALLER,
        )


def _first_line(error: Exception) -> str:
    return ascii((str(error).strip() or type(error).__name__).split("\n")[0])[1:-1][:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bars off, and back to what they were."""
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()
