"""From parameters in memory back to the names under which the checkpoint stores them.

transformers renames tensors when it loads them and, for some architectures, fuses several into one parameter (the
experts of a mixture) or takes one apart. All of these move elements and change none, so squared gradients go back the
same way. The way is transformers' own reversal, the one that `save_pretrained` uses. It is not taken on trust: the
loaded weights are sent through it first and must come out as the file has them, element for element.

Parameters that share one tensor (a head tied to the embedding) are one parameter; each name that the checkpoint
stores for it gets the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hubmerge.dtypes import FLOAT_DTYPES
from hubmerge.errors import SensitivityError
from hubmerge.sensitivity.file import named
from hubmerge.sources.base import Model

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Group:
    """Parameters that are stored together: `stored` maps a checkpoint's name to the name after the reversal."""

    parameters: tuple[str, ...]
    stored: Mapping[str, str]


@dataclass(frozen=True)
class NameMap:
    """How the parameters of one loaded model are stored."""

    owner: Mapping[str, str]  # every name of a parameter → the first name of the same parameter
    shapes: Mapping[str, tuple[int, ...]]  # by first name
    groups: tuple[Group, ...]

    def stored(self, network: Any, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """(stored name, tensor) group by group, from tensors by the parameters' first names."""
        for group in self.groups:
            yield from self.stored_of(network, group, {n: tensors[self.owner[n]] for n in group.parameters})

    @staticmethod
    def stored_of(
        network: Any, group: Group, tensors: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """(stored name, tensor) of one group, from tensors by parameter name."""
        from transformers.core_model_loading import revert_weight_conversion

        reverted = revert_weight_conversion(network, dict(tensors))
        for stored, name in group.stored.items():
            yield stored, reverted[name]


def map_names(network: Any, model: Model) -> NameMap:
    """The map of a loaded network; SensitivityError lists every stored tensor that no parameter stands for."""
    import torch
    from transformers.core_model_loading import WeightConverter, apply_converters, revert_weight_conversion

    first: dict[int, str] = {}
    owner: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point():
            owner[name] = first.setdefault(id(parameter), name)
            shapes.setdefault(owner[name], tuple(parameter.shape))
    reverse = [c.reverse_transform() for c in reversed(getattr(network, "_weight_conversions", None) or [])]
    converters = [c for c in reverse if isinstance(c, WeightConverter)]
    members: dict[str, list[str]] = {}
    for name in owner:
        members.setdefault(apply_converters(name, converters)[0], []).append(name)

    wanted = {n: t.entry.shape for n, t in model.tensors.items() if t.entry.dtype in FLOAT_DTYPES}
    others = [
        f"{n} ({t.entry.dtype})" for n, t in model.tensors.items() if t.entry.dtype.startswith("F") and n not in wanted
    ]
    found: dict[str, tuple[int, ...]] = {}
    groups = []
    for parameters in members.values():
        # tensors without data: what comes out of the reversal is known before anything is computed
        empty = {n: torch.empty(shapes[owner[n]], device="meta") for n in parameters}
        stored = {}
        for name, tensor in revert_weight_conversion(network, empty).items():
            for candidate in _candidates(name, network.base_model_prefix):
                if candidate in wanted and candidate not in found:
                    found[candidate] = tuple(tensor.shape)
                    stored[candidate] = name
                    break
        if stored:
            groups.append(Group(tuple(parameters), stored))
    unmapped = others + [n for n in wanted if n not in found]
    unmapped += [f"{n} {list(wanted[n])} → {list(s)}" for n, s in found.items() if s != wanted[n]]
    if unmapped:
        raise SensitivityError(
            "stored tensors that stand for no parameter",
            where=str(model.ref),
            expected=f"a floating parameter of {type(network).__name__} for each",
            got=named(unmapped),
            next_step="This architecture's sensitivity cannot be computed from this checkpoint.",
        )
    return NameMap(owner, shapes, tuple(groups))


def verify(names: NameMap, network: Any, model: Model, folder: Any) -> None:
    """Compare the loaded weights, sent back through the map, with the shards in `folder`."""
    import torch
    from safetensors import safe_open

    parameters = dict(network.named_parameters(remove_duplicate=False))
    wrong = []
    for group in names.groups:
        loaded = {n: parameters[n].detach() for n in group.parameters}
        for stored, tensor in names.stored_of(network, group, loaded):
            with safe_open(folder / model.tensors[stored].shard, framework="pt") as shard:
                expected = shard.get_tensor(stored).to(tensor.dtype)
            # NaN in a checkpoint shows as a difference here, which is as good a reason to stop
            if not torch.equal(expected, tensor.to("cpu")):
                wrong.append(stored)
    if wrong:
        raise SensitivityError(
            "loaded weights are not the stored ones",
            where=str(model.ref),
            got=named(wrong),
            next_step="The checkpoint holds NaN, or transformers transforms it on loading; it cannot be used.",
        )


def _candidates(name: str, prefix: str) -> tuple[str, ...]:
    """A checkpoint of the bare model lacks the prefix of the model with a head, or has it where we do not."""
    if name.startswith(f"{prefix}."):
        return name, name.removeprefix(f"{prefix}.")
    return name, f"{prefix}.{name}"
