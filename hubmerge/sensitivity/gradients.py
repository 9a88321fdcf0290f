"""Squared gradients of one pair at a time, taken and dropped while the backward pass goes from the loss to the input.

    log p(y|x) = Σ_t log p(y_t | x, y_<t)      over the answer's tokens and the EOS, a sum and not a mean
    sums += (∂ log p(y|x) / ∂θ)²               for every parameter, as soon as its gradient is complete

A hook on each parameter squares its gradient into the sums and sets it to None, so one gradient is alive at a time.
A parameter that is used more than once, such as an embedding tied to the head, gets one gradient, which autograd sums
over all uses before the hook sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from hubmerge.errors import NonFiniteError

if TYPE_CHECKING:
    import torch

AddSquares = Callable[[str, "torch.Tensor"], None]  # a parameter's first name, its whole gradient


class PairGradients:
    """Sends each parameter's gradient of each pair to `add`, once."""

    def __init__(self, network: Any, owner: Mapping[str, str], add: AddSquares) -> None:
        """`owner`: every name of a floating parameter → its first name. Attaches hooks for good."""
        self._network = network
        self._add = add
        for name, parameter in network.named_parameters():
            if parameter.is_floating_point():
                parameter.register_post_accumulate_grad_hook(partial(self._take, owner[name]))

    def add_pair(self, tokens: tuple[int, ...], answer_tokens: int, where: str) -> float:
        """Add the squared gradients of the log-likelihood of the last `answer_tokens` of `tokens`; returns it.

        `where` names the pair in errors. NonFiniteError before anything is added.
        """
        import torch

        with torch.enable_grad():  # some libraries turn gradients off for the whole process when imported
            value = log_likelihood(self._network, tokens, answer_tokens)
            result = float(value.detach())
            if not isfinite(result):
                raise NonFiniteError(
                    "the log-likelihood of an answer is not finite",
                    where=where,
                    got=str(result),
                    next_step="Check the model; with bfloat16, try --dtype float32.",
                )
            value.backward()  # type: ignore[no-untyped-call]
        return result

    def _take(self, name: str, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        parameter.grad = None
        assert gradient is not None
        self._add(name, gradient)


def log_likelihood(network: Any, tokens: tuple[int, ...], answer_tokens: int) -> torch.Tensor:
    """Scalar float32: the log-probability of the last `answer_tokens` of `tokens` given those before them."""
    import torch

    ids = torch.tensor([tokens], device=network.get_input_embeddings().weight.device)
    logits = network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    # the logits at one position are about the token at the next
    about_answer = logits[0, -answer_tokens - 1 : -1].float()
    return -torch.nn.functional.cross_entropy(about_answer, ids[0, -answer_tokens:], reduction="sum")
