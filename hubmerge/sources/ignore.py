"""Tensors that a recipe's `ignore` names are not merged.

An agent's tensors of such a name are left out, as if its files did not hold them. The base's are kept bit for bit, and
no agent is read there. So value heads that PPO leaves in an agent (`v_head.*`) and buffers that old checkpoints store
(`*.rotary_emb.inv_freq`) forbid no merge, and parts of the base can be kept by name.

A pattern (recipe/ignore.py) is held against a tensor's name as the file stores it, also without PEFT's wrapper, and as
the base calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hubmerge.recipe.ignore import MAX_PATTERNS, Ignored, ignored_by
from hubmerge.sources.base import Model, StoredTensor
from hubmerge.sources.derived import BASE, BorrowedTensor
from hubmerge.wording import named


def unmatched(patterns: Iterable[str], models: Iterable[Model]) -> list[str]:
    """The patterns that match no stored tensor."""
    names = {name for model in models for name in model.tensors}
    return [pattern for pattern in patterns if not any(map(ignored_by([pattern]), names))]


def without(model: Model, ignored: Ignored) -> tuple[Model, tuple[str, ...]]:
    """The model without the tensors whose names are ignored, and these names."""
    dropped = tuple(name for name in model.tensors if ignored(name))
    if not dropped:
        return model, ()
    left = {name: tensor for name, tensor in model.tensors.items() if not ignored(name)}
    return replace(model, tensors=MappingProxyType(left)), dropped


def with_kept(base: Model, agent: Model, kept: Collection[str], ignored: Ignored) -> tuple[Model, tuple[str, ...]]:
    """The agent with the base's tensors wherever a name of the base is ignored, and the names of what that replaced."""
    own = tuple(n for n, t in agent.tensors.items() if ignored(n) and not isinstance(t, BorrowedTensor))
    if not kept and not own:
        return agent, ()
    tensors: dict[str, StoredTensor] = {n: t for n, t in agent.tensors.items() if not ignored(n)}
    tensors |= {name: BorrowedTensor.of(base.tensors[name], BASE) for name in kept}
    return replace(agent, tensors=MappingProxyType(tensors)), own


def told_of(base: Model, agents: Sequence[Model], kept: Sequence[str], dropped: Sequence[Sequence[str]]) -> list[str]:
    """A line for each model that says what `ignore` did to it; `dropped`: the names left out of each agent."""
    beyond = [[name for name in names if name not in base.tensors] for names in dropped]
    told = [f"{base.ref.id}: {_tensors(kept)} kept unchanged by `ignore`: {named(kept)}"] if kept else []
    return told + [
        f"{agent.ref.id}: {_tensors(names)} left out by `ignore`: {named(names)}"
        for agent, names in zip(agents, beyond, strict=True)
        if names
    ]


def _tensors(names: Sequence[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def ignoring_line(
    patterns: Sequence[str], base: Mapping[str, StoredTensor], agents: Sequence[Mapping[str, StoredTensor]]
) -> str | None:
    """The line of a recipe that leaves out every tensor that only some models have.

    None where there is no such tensor, or where the models differ too much for anybody to want this."""
    strangers = list(dict.fromkeys(n for agent in agents for n in agent if n not in base))
    missing = list(dict.fromkeys(n for n in base if any(n not in agent for agent in agents)))
    unwanted = [*strangers, *missing]
    if not unwanted or 2 * len(missing) > len(base):
        return None
    common = [n for n in base if n not in missing]
    found: list[str] = []
    left = unwanted
    while left:
        candidates = [p for p in _patterns_for(left[0]) if not any(map(ignored_by([p]), common))]
        covering = {p: sum(map(ignored_by([p]), left)) for p in candidates}
        best = max(candidates, key=lambda p: covering[p])
        # a pattern for a single name would only hide which one it is
        found.append(best if covering[best] > 1 else left[0])
        left = [n for n in left if not ignored_by(found[-1:])(n)]
    wanted = list(dict.fromkeys((*patterns, *found)))
    if len(found) > 4 or len(wanted) > MAX_PATTERNS:
        return None
    return f"ignore: [{', '.join(f'{p!r}'.replace(chr(39), chr(34)) for p in wanted)}]"


def _patterns_for(name: str) -> list[str]:
    """The name itself, then patterns that match it, the narrowest first."""
    parts = name.split(".")
    ends = [f"*.{'.'.join(parts[-n:])}" for n in (2, 1) if len(parts) > n]
    return [name, *ends, *([f"{parts[0]}.*"] if len(parts) > 1 else [])]
