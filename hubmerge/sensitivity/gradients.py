"""Squared gradients of one pair at a time, taken and dropped while the backward pass goes from the loss to the input.

    log p(y|x) = Σ_t log p(y_t | x, y_<t)      over the answer's tokens and the EOS, a sum and not a mean
    sums += (∂ log p(y|x) / ∂θ)²               for every parameter, as soon as its gradient is complete

A hook on each parameter squares its gradient into the sums and sets it to None, so one gradient is alive at a time.
The exception is a parameter that is used more than once, as an embedding tied to the head is: its gradient is the
sum over its uses and may be squared only when all have arrived, at the end of the pair. (Autograd itself would hold
it as long.)

Offloaded weights. Accelerate makes a new Parameter of an offloaded weight whenever its module runs, so the hook is
attached there, each time. A graph over all layers would keep all these copies alive; therefore the layers of an
offloaded model are recomputed in the backward pass, one after the other, and each takes its weights with it when it
is done. Recomputation is reentrant on purpose: the other kind builds its graph, and with it references to the
weights, in the first pass already. A model that fits into memory is not recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from hubmerge.errors import NonFiniteError, SensitivityError

if TYPE_CHECKING:
    import torch

AddSquares = Callable[[str, "torch.Tensor"], None]  # a parameter's first name, its whole gradient


class PairGradients:
    """Sends each parameter's gradient of each pair to `add`, once."""

    def __init__(self, network: Any, owner: Mapping[str, str], add: AddSquares) -> None:
        """`owner`: every name of a floating parameter → its first name. Attaches hooks for good."""
        self._network = network
        self._add = add
        self._uses: Counter[str] = Counter()
        self._counting = False
        self._held: dict[str, torch.Tensor] = {}
        self._added: set[str] = set()
        offloaded = False
        hooked: set[int] = set()
        for prefix, module in network.named_modules():
            own = {
                local: owner[f"{prefix}.{local}" if prefix else local]
                for local, parameter in module.named_parameters(recurse=False)
                if parameter.is_floating_point()
            }
            if not own:
                continue
            if any(parameter.device.type == "meta" for parameter in module.parameters(recurse=False)):
                offloaded = True
                self._watch_offloaded(module, own)
                continue
            module.register_forward_pre_hook(partial(self._used, tuple(own.values())))
            for local, name in own.items():
                parameter = getattr(module, local)
                if id(parameter) not in hooked:
                    hooked.add(id(parameter))
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, name))
        if offloaded:
            _recompute_layers(network)

    def add_pair(self, tokens: tuple[int, ...], answer_tokens: int, where: str) -> float:
        """Add the squared gradients of the log-likelihood of the last `answer_tokens` of `tokens`; returns it.

        `where` names the pair in errors. NonFiniteError before anything is added.
        """
        import torch

        self._uses.clear()
        self._added.clear()
        with torch.enable_grad():  # some libraries turn gradients off for the whole process when imported
            self._counting = True
            try:
                value = log_likelihood(self._network, tokens, answer_tokens)
            finally:
                self._counting = False
            result = float(value.detach())
            if not isfinite(result):
                raise NonFiniteError(
                    "the log-likelihood of an answer is not finite",
                    where=where,
                    got=str(result),
                    next_step="Check the model; with bfloat16, try --dtype float32.",
                )
            value.backward()  # type: ignore[no-untyped-call]
        for name in list(self._held):
            self._add(name, self._held.pop(name))
        return result

    def _used(self, names: tuple[str, ...], *_: Any) -> None:
        if self._counting:
            self._uses.update(names)

    def _arrived(self, name: str, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        parameter.grad = None
        assert gradient is not None
        if self._uses[name] > 1:
            if name in self._held:
                self._held[name] += gradient.to(self._held[name].device)
            else:
                self._held[name] = gradient
            return
        if name in self._added:
            raise SensitivityError(
                "a parameter is used by several layers in a way that its gradients cannot be told apart",
                where=name,
                next_step="Use a machine with enough memory to hold the whole model.",
            )
        self._added.add(name)
        self._add(name, gradient)

    def _watch_offloaded(self, module: Any, own: Mapping[str, str]) -> None:
        """Run after Accelerate has put the module's weights in place, before its forward uses them."""
        from accelerate.hooks import ModelHook, SequentialHook

        gradients = self

        class Watch(ModelHook):  # type: ignore[misc]
            def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
                gradients._used(tuple(own.values()))
                for local, name in own.items():
                    parameter = getattr(module, local)
                    parameter.register_post_accumulate_grad_hook(partial(gradients._arrived, name))
                return args, kwargs

        module._hf_hook = SequentialHook(module._hf_hook, Watch())


def log_likelihood(network: Any, tokens: tuple[int, ...], answer_tokens: int) -> torch.Tensor:
    """Scalar float32: the log-probability of the last `answer_tokens` of `tokens` given those before them."""
    import torch

    device = network.get_input_embeddings().weight.device
    if device.type == "meta":
        device = torch.device(network.get_input_embeddings()._hf_hook.hooks[0].execution_device)
    ids = torch.tensor([tokens], device=device)
    logits = network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    # the logits at one position are about the token at the next
    about_answer = logits[0, -answer_tokens - 1 : -1].float()
    answer = ids[0, -answer_tokens:].to(about_answer.device)
    return -torch.nn.functional.cross_entropy(about_answer, answer, reduction="sum")


def _recompute_layers(network: Any) -> None:
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            # gradients flow through tensors that stand alone among `args`; a layer that gets them, or anything that
            # it could write to, in another way keeps its graph
            if not torch.is_grad_enabled() or not all(_is_constant(v) for v in kwargs.values()):
                return forward(*args, **kwargs)
            if not all(isinstance(v, torch.Tensor) or _is_constant(v) for v in args):
                return forward(*args, **kwargs)
            return checkpoint(partial(forward, **kwargs), *args, use_reentrant=True, preserve_rng_state=False)

        return run

    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = recomputed(layer.forward)


def _is_constant(value: Any) -> bool:
    """True for what neither carries a gradient nor can be written to."""
    import torch

    if isinstance(value, torch.Tensor):
        return not value.requires_grad
    if isinstance(value, tuple):
        return all(_is_constant(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
