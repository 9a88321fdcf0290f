"""Makes comparable views of base and agents from their stored tensors, before anything is compared.

The steps in order: fp8 elements get their scales, ignored tensors are left out, adapters become models on their base,
names that differ by a known prefix become the base's, a tied head stands or is missing in all models alike, all get the
base's tensors of ignored names, and all get the rows that vocabularies add, of which a tied head has its own. Each step
is a pure function of headers and small files, so the rest of the plan need not know how a model's tensors come about.

Tensors that a recipe's `ignore` names are not merged. An agent's are left out, as if its files did not hold them. The
base's are kept bit for bit, and no agent is read there. So value heads that PPO leaves in an agent (`v_head.*`) and
buffers that old checkpoints store (`*.rotary_emb.inv_freq`) forbid no merge, and parts of the base can be kept by name.
A pattern (recipe/ignore.py) is held against a tensor's name as the file stores it, also without PEFT's wrapper, and as
the base calls it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from hubmerge.numerics.dtypes import TORCH_NAMES
from hubmerge.recipe.ignore import MAX_PATTERNS, Ignored, ignored_by
from hubmerge.sources.base import Model, Views
from hubmerge.sources.derived import BASE, BorrowedTensor, DerivedTensor, ScaledTensor
from hubmerge.sources.fp8 import with_scales
from hubmerge.sources.lora import adapter_parts, attached
from hubmerge.sources.same_tensors import aligned, language_tables, untie
from hubmerge.sources.vocabulary import add_rows
from hubmerge.text.wording import named

_BITS = {"F32": 24, "F16": 11, "BF16": 8}  # of a significand


def views_of(
    base: Model,
    agents: Sequence[Model],
    ignore: Sequence[str] = (),
    rows: Callable[[Views], None] = add_rows,
) -> Views:
    """The views of all models, without the tensors that the recipe ignores; problems stand in the recipe's order.

    `rows`: the treatment of a vocabulary that has grown."""
    views = Views(base, list(agents))
    if base.adapter is not None:
        views.refuse(
            "the base is an adapter",
            where=str(base.ref),
            expected="a model with weights of its own",
            got="LoRA adapter",
            next_step="Choose the adapter's base, and the adapter as an agent.",
        )
        return views
    ignored = ignored_by(ignore)
    views.base = with_scales(base, views)
    dropped = []
    for k, agent in enumerate(agents):
        views.agents[k], names = _seen(views.base, agent, ignored, views)
        dropped.append(names)
    untie(views, ignored)
    kept = [name for name in views.base.tensors if ignored(name)]
    borrowed = {name: BorrowedTensor.of(views.base.tensors[name], BASE) for name in kept}
    told = [f"`ignore`: {p!r} matches no tensor of the base or an agent" for p in unmatched(ignore, (base, *agents))]
    if kept:
        views.agents = [replace(a, tensors=MappingProxyType({**a.tensors, **borrowed})) for a in views.agents]
        told.append(f"{base.ref.id}: {_tensors(kept)} kept unchanged by `ignore`: {named(kept)}")
    for agent, names in zip(agents, dropped, strict=True):
        if beyond := [name for name in names if name not in base.tensors]:
            told.append(f"{agent.ref.id}: {_tensors(beyond)} left out by `ignore`: {named(beyond)}")
    rows(views)
    views.kept = frozenset(kept)
    views.warnings[:0] = told
    return views


def _seen(base: Model, agent: Model, ignored: Ignored, told: Views) -> tuple[Model, tuple[str, ...]]:
    """The agent under the base's names without tensors of ignored names, and the names that are left out: its own and
    the base's."""
    if agent.adapter is not None:
        left, dropped = without(agent, ignored)
        seen = attached(base, left, told)
    else:
        left, dropped = without(with_scales(agent, told), ignored)
        seen = aligned(base, left, ignored, told, whole=not dropped)
        told.warnings += [f"{agent.ref.id}: {note}" for note in _rounded(base, agent, seen)]
    seen, more = without(seen, ignored)
    return seen, (*dropped, *more)


def _rounded(base: Model, agent: Model, seen: Model) -> Iterator[str]:
    """Notes on tensors of which one of the two, as they are stored, has fewer bits than the other."""
    if "fp8" in agent.kind:
        yield "its weights are fp8, so its update includes the error of rounding them to 8 bits"
    elif any(isinstance(t, ScaledTensor) for t in base.tensors.values()):
        yield (
            "the base's weights are fp8 and its own are not, so its update includes the error of rounding the base to "
            "8 bits, unless it was trained from these"
        )
    dtypes = [
        (own.entry.dtype, seen.tensors[name].entry.dtype)
        for name, own in base.tensors.items()
        if name in seen.tensors and not isinstance(own, DerivedTensor)
    ]
    found = Counter((fine, coarse) for fine, coarse in dtypes if _BITS.get(coarse, 24) < _BITS.get(fine, 0))
    for (fine, coarse), count in found.most_common(1):
        yield (
            f"{count} of {len(dtypes)} tensors are {TORCH_NAMES[coarse]} and the base's {TORCH_NAMES[fine]}, so its "
            "update includes the error of rounding them, nearly everywhere; from a base saved as "
            f"{TORCH_NAMES[coarse]} it is what was learned alone"
        )


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


def _tensors(names: Sequence[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def ignoring_line(patterns: Sequence[str], base: Model, agents: Sequence[Model]) -> str | None:
    """The line of a recipe that leaves out every tensor that only some models have.

    None where there is no such tensor, or where the models differ too much for anybody to want this."""
    agents = [agent for agent in agents if not adapter_parts(base, agent)]  # which are all that it has learned
    strangers = dict.fromkeys(n for agent in agents for n in agent.tensors if n not in base.tensors)
    missing = dict.fromkeys(n for n in base.tensors if any(n not in agent.tensors for agent in agents))
    unwanted = [*strangers, *missing]
    if not unwanted or 2 * len(missing) > len(base.tensors):
        return None
    common = [n for n in base.tensors if n not in missing]
    # the same number of layers, by its name in most configs or in GPT-2's
    base_depth, *depths = (
        [[t.get(key) for key in ("num_hidden_layers", "n_layer")] for t in language_tables(m)] for m in (base, *agents)
    )
    found: list[str] = []
    left = unwanted
    while left:
        if len(found) == 4:
            return None
        parts = left[0].split(".")  # the name itself, then patterns that match it
        ends = [f"*.{'.'.join(parts[-n:])}" for n in (2, 1) if len(parts) > n]
        # a base's layer that predicts further tokens is none of those that a config counts; others are another model
        deepest = min(6 if left[0] in missing and all(d == base_depth for d in depths) else 2, len(parts))
        patterns_of = [left[0], *ends, *(f"{'.'.join(parts[:n])}.*" for n in range(1, deepest))]
        candidates = [p for p in patterns_of if not any(map(ignored_by([p]), common))]
        if not candidates:  # even the name stands for another tensor too, which has PEFT's wrapper in front
            return None
        covering = {p: sum(map(ignored_by([p]), left)) for p in candidates}
        best = max(candidates, key=lambda p: covering[p])
        # a pattern for a single name would only hide which one it is
        found.append(best if covering[best] > 1 else left[0])
        covered = ignored_by(found[-1:])
        left = [n for n in left if not covered(n)]
    wanted = list(dict.fromkeys((*patterns, *found)))
    return f"ignore: {json.dumps(wanted)}" if len(wanted) <= MAX_PATTERNS else None
