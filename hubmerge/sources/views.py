"""Makes comparable views of base and agents from their stored tensors, before anything is compared.

The steps in order: fp8 elements get their scales, ignored tensors are left out, adapters become models on their base,
names that differ by a known prefix become the base's, all models get the base's tensors of ignored names, and all get
the rows that vocabularies add. Each step is a pure function of headers and small files, so the rest of the plan need
not know how a model's tensors come about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hubmerge.errors import Problem
from hubmerge.recipe.ignore import Ignored, ignored_by
from hubmerge.sources.base import Model
from hubmerge.sources.fp8 import Seen, with_scales
from hubmerge.sources.ignore import told_of, unmatched, with_kept, without
from hubmerge.sources.lora import attached
from hubmerge.sources.prefixes import aligned
from hubmerge.sources.vocabulary import Grown, Vocabulary, with_added_rows
from hubmerge.wording import incompatible


@dataclass(frozen=True)
class Views:
    """Base and agents as the merge sees them, with problems and notes."""

    base: Model
    agents: tuple[Model, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    vocabulary: Vocabulary | None = None
    kept: frozenset[str] = frozenset()  # names of the base that the recipe ignores


def views_of(
    base: Model,
    agents: Sequence[Model],
    ignore: Sequence[str] = (),
    rows: Callable[[Model, Sequence[Model]], Grown] = with_added_rows,
) -> Views:
    """The views of all models, without the tensors that the recipe ignores; problems stand in the recipe's order.

    `rows`: the treatment of a vocabulary that has grown."""
    if base.adapter is not None:
        problem = incompatible(
            "the base is an adapter",
            where=str(base.ref),
            expected="a model with weights of its own",
            got="LoRA adapter",
            next_step="Choose the adapter's base, and the adapter as an agent.",
        )
        return Views(base, tuple(agents), (problem,), ())
    ignored = ignored_by(ignore)
    steps = [with_scales(base)]
    seen_base = steps[0].model
    kept = tuple(name for name in seen_base.tensors if ignored(name))
    seen_agents, dropped = [], []
    for agent in agents:
        step, early = _seen(seen_base, agent, ignored)
        steps.append(step)
        model, late = with_kept(seen_base, step.model, kept, ignored)
        seen_agents.append(model)
        dropped.append((*early, *late))
    grown = rows(seen_base, seen_agents)
    problems = (*(p for s in steps for p in s.problems), *grown.problems)
    told = [f"`ignore`: {p!r} matches no tensor of the base or an agent" for p in unmatched(ignore, (base, *agents))]
    told += told_of(base, agents, kept, dropped)
    warnings = (*told, *(w for s in steps for w in s.warnings), *grown.warnings)
    return Views(grown.base, grown.agents, problems, warnings, grown.vocabulary, frozenset(kept))


def _seen(base: Model, agent: Model, ignored: Ignored) -> tuple[Seen, tuple[str, ...]]:
    """The agent's view, and the names of its stored tensors that are left out."""
    if agent.adapter is not None:
        left, dropped = without(agent, ignored)
        return attached(base, left), dropped
    scaled = with_scales(agent)
    left, dropped = without(scaled.model, ignored)
    named = aligned(base, left, ignored)
    notes = []
    if agent.kind != base.kind and "fp8" in agent.kind:
        notes.append(
            f"{agent.ref.id}: its weights are fp8, so its update includes the error of rounding them to 8 bits"
        )
    return Seen(named.model, scaled.problems, (*scaled.warnings, *named.warnings, *notes)), dropped
