"""The network that gradients are taken of: a staged folder in transformers, its names in the checkpoint, its gradients.

    log p(y|x) = Σ_t log p(y_t | x, y_<t)      over the answer's tokens and the EOS, a sum and not a mean
    sums += (∂ log p(y|x) / ∂θ)²               for every parameter, as soon as its gradient is complete

A hook on each parameter gives its gradient away and sets it to None, so one gradient is alive at a time. A parameter
that is used more than once, such as an embedding tied to the head, gets one gradient, which autograd sums over all uses
before the hook sees it. A buffer that the checkpoint stores, such as the bias by which a router chooses experts, is not
learned by gradients: its sensitivity is 0.

transformers renames tensors when it loads them and, for some architectures, fuses several into one parameter (the
experts of a mixture) or takes one apart. All of these move elements and change none, so squared gradients go back the
same way. The way is transformers' own reversal, the one that `save_pretrained` uses. It is not taken on trust: the
loaded weights are sent through it first and must come out as the file has them, element for element. Each name that the
checkpoint stores for a parameter (a head tied to the embedding has two) gets the same values.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import WeightConverter, apply_converters, revert_weight_conversion
from transformers.utils.logging import disable_progress_bar

from hubmerge.errors import FormatError, MemoryLimitError, NonFiniteError, SensitivityError
from hubmerge.isolation.in_child import first_line, ran_out_of_memory
from hubmerge.numerics.dtypes import FLOAT_DTYPES
from hubmerge.plan.disk import shown_bytes
from hubmerge.recipe.ignore import Ignored, nothing
from hubmerge.sources.base import Model
from hubmerge.text.wording import named

_WEIGHTS_SHARE = 0.7  # of the free memory; the rest is for a gradient and the activations
_SMALLER = "Take --dtype bfloat16 or a machine with more memory, and name the file in the recipe."


def require_memory(weight_bytes: int, where: str, device: str = "cpu") -> None:
    """MemoryLimitError where `device` cannot hold these weights beside one gradient and the activations."""
    if device == "cpu":
        free = psutil.virtual_memory().available
    else:
        free, _ = torch.cuda.mem_get_info()
    if weight_bytes > _WEIGHTS_SHARE * free:
        wanted, found = shown_bytes(int(weight_bytes / _WEIGHTS_SHARE), free)
        raise MemoryLimitError(
            "the model is too large for its sensitivity to be computed here",
            where=where,
            expected=f"{wanted} of free memory",
            got=found,
            next_step=_SMALLER,
        )


class Network:
    """A loaded model whose parameters know the names under which the checkpoint stores them."""

    def __init__(self, module: Any, model: Model, ignored: Ignored = nothing) -> None:
        """`module` in memory is `model` in files; SensitivityError lists every stored tensor that no parameter stands
        for, unless it is `ignored`."""
        self._module = module
        self._model = model
        self._ignored = ignored
        self.shapes: dict[str, tuple[int, ...]] = {}  # by the first name of each floating parameter and stored buffer
        self._owner: dict[str, str] = {}  # every name of one → its first name
        first: dict[int, str] = {}
        self._tensors = module.state_dict(keep_vars=True)
        for name, tensor in self._tensors.items():
            if tensor.is_floating_point():
                self._owner[name] = first.setdefault(id(tensor), name)
                self.shapes.setdefault(self._owner[name], tuple(tensor.shape))
        # parameters that are stored together, each group with: a checkpoint's name → the name after the reversal
        self._groups: list[tuple[list[str], dict[str, str]]] = []
        self._map_names()

    @classmethod
    def load(cls, folder: Path, model: Model, *, dtype: str, device: str, ignored: Ignored) -> Self:
        """The staged model on a device; raises FormatError, MemoryLimitError, SensitivityError."""
        network = cls(_loaded(folder, str(model.ref), dtype=dtype, device=device), model, ignored)
        network.verify(folder)
        return network

    @property
    def stored(self) -> dict[str, tuple[int, ...]]:
        """The checkpoint's names and shapes, in the order of `reverted`."""
        return {name: self._model.tensors[name].entry.shape for _, stored in self._groups for name in stored}

    def reverted(self, value: Callable[[str], torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """(stored name, tensor) from tensors by the parameters' first names; one group is in memory at a time."""
        for members, stored in self._groups:
            tensors = revert_weight_conversion(self._module, {n: value(self._owner[n]) for n in members})
            yield from ((name, tensors[reverted]) for name, reverted in stored.items())

    def verify(self, folder: Path) -> None:
        """Compare the loaded weights, sent back, with the shards in `folder`; SensitivityError where they differ."""
        wrong = []
        for stored, tensor in self.reverted(lambda name: self._tensors[name].detach()):
            with safe_open(folder / self._model.tensors[stored].shard, framework="pt") as shard:
                expected = shard.get_tensor(stored).to(tensor.dtype)
            # NaN in a checkpoint shows as a difference here, which is as good a reason to stop
            if not torch.equal(expected, tensor.to("cpu")):
                wrong.append(stored)
        if wrong:
            raise SensitivityError(
                "loaded weights are not the stored ones",
                where=str(self._model.ref),
                got=named(wrong),
                next_step="The checkpoint holds NaN, or transformers transforms it on loading; it cannot be used.",
            )

    def give_gradients(self, to: Callable[[str, torch.Tensor], None]) -> None:
        """Attach hooks for good: each parameter's whole gradient goes, by its first name, to `to`, and is dropped."""

        def give(name: str, parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            to(name, gradient)

        for name, parameter in self._module.named_parameters():
            if parameter.is_floating_point():
                parameter.register_post_accumulate_grad_hook(partial(give, name))

    def differentiate(self, tokens: tuple[int, ...], answer_tokens: int, where: str) -> None:
        """Take the gradients of the log-probability of the last `answer_tokens` of `tokens` given those before them.

        `where` names the pair; NonFiniteError before any gradient is given away.
        """
        with torch.enable_grad():  # some libraries turn gradients off for the whole process when imported
            ids = torch.tensor([tokens], device=self._module.get_input_embeddings().weight.device)
            logits = self._module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            # the logits at one position are about the token at the next
            about_answer = logits[0, -answer_tokens - 1 : -1].float()
            value = -torch.nn.functional.cross_entropy(about_answer, ids[0, -answer_tokens:], reduction="sum")
            if not value.isfinite():
                raise NonFiniteError(
                    "the log-likelihood of an answer is not finite",
                    where=where,
                    got=str(value.item()),
                    next_step="Check the model; with bfloat16, try --dtype float32.",
                )
            value.backward()  # type: ignore[no-untyped-call]

    def _map_names(self) -> None:
        reverse = [c.reverse_transform() for c in reversed(getattr(self._module, "_weight_conversions", None) or [])]
        converters = [c for c in reverse if isinstance(c, WeightConverter)]
        together: dict[str, list[str]] = {}
        for name in self._owner:
            together.setdefault(apply_converters(name, converters)[0], []).append(name)
        floats = {n: t.entry for n, t in self._model.tensors.items() if t.entry.dtype.startswith(("F", "BF"))}
        wanted = {n: entry.shape for n, entry in floats.items() if entry.dtype in FLOAT_DTYPES}
        found: dict[str, tuple[int, ...]] = {}
        prefix = f"{self._module.base_model_prefix}."
        for members in together.values():
            # tensors without data: what comes out of the reversal is known before anything is computed
            empty = {n: torch.empty(self.shapes[self._owner[n]], device="meta") for n in members}
            stored = {}
            for name, tensor in revert_weight_conversion(self._module, empty).items():
                # a checkpoint of the bare model lacks the prefix of the model with a head, or has it where we do not
                other = name.removeprefix(prefix) if name.startswith(prefix) else f"{prefix}{name}"
                known = next((n for n in (name, other) if n in wanted and n not in found), None)
                if known is not None:
                    found[known] = tuple(tensor.shape)
                    stored[known] = name
            if stored:
                self._groups.append((members, stored))
        absent = [n for n in floats if n not in found and not self._ignored(n)]
        unmapped = [n if n in wanted else f"{n} ({floats[n].dtype})" for n in absent]
        unmapped += [f"{n} {list(wanted[n])} → {list(s)}" for n, s in found.items() if s != wanted[n]]
        if unmapped:
            raise SensitivityError(
                "stored tensors that stand for no parameter",
                where=str(self._model.ref),
                expected=f"a floating parameter of {type(self._module).__name__} for each",
                got=named(unmapped),
                next_step="If the merge needs none of them, let `ignore` of a recipe with calibration data name them.",
            )


def _loaded(folder: Path, where: str, *, dtype: str, device: str) -> Any:
    """The module for gradients: eval mode, floating parameters only."""
    disable_progress_bar()
    try:
        network, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="eager",  # the backward passes of fused kernels add in no fixed order on some devices
            output_loading_info=True,
        )
        network.to(device)
    except Exception as error:  # a stranger's files: any error of the libraries means the same, but for the memory's
        if ran_out_of_memory(error):
            raise MemoryLimitError("the model does not fit", where=where, next_step=_SMALLER) from error
        raise FormatError("a model that transformers cannot load", where=where, got=first_line(error)) from error
    wrong = {kind: report[kind] for kind in ("missing_keys", "mismatched_keys", "error_msgs") if report.get(kind)}
    if wrong:
        listed = "; ".join(f"{kind}: {', '.join(sorted(map(str, keys))[:5])}" for kind, keys in wrong.items())
        raise SensitivityError(
            "the checkpoint does not fit its own config.json",
            where=where,
            expected="a tensor for every parameter of the architecture",
            got=ascii(listed)[1:-1][:400],
        )
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    for module in network.modules():
        if isinstance(module, torch.nn.Embedding):
            # a padding row gets no gradient, though the token may stand in a pair (where it is also the EOS, say)
            module.padding_idx = None
    return network
