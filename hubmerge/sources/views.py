"""What the stored tensors of base and agents stand for, before anything is compared.

In this order: fp8 elements get their scales, adapters become models on their base, names that differ by a known
prefix are brought to the base's, and all get the rows that one agent's vocabulary adds. Each step is a pure
function of headers and small files, and hands on models of which the rest of the plan need not know how their
tensors come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hubmerge.errors import Problem
from hubmerge.sources.base import Model
from hubmerge.sources.fp8 import Seen, with_scales
from hubmerge.sources.lora import attached
from hubmerge.sources.prefixes import aligned
from hubmerge.sources.vocabulary import Vocabulary, with_added_rows, without_added_rows
from hubmerge.wording import incompatible


@dataclass(frozen=True)
class Views:
    """Base and agents as the merge sees them, and what was found on the way."""

    base: Model
    agents: tuple[Model, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    vocabulary: Vocabulary | None = None


def views_of(base: Model, agents: Sequence[Model]) -> Views:
    """Every model by the tensors that it stands for; problems in the recipe's order."""
    if base.adapter is not None:
        problem = incompatible(
            "the base is an adapter",
            where=str(base.ref),
            expected="a model with weights of its own",
            got="LoRA adapter",
            next_step="Choose the adapter's base, and the adapter as an agent.",
        )
        return Views(base, tuple(agents), (problem,), ())
    seen = _by_names(base, agents)
    grown = with_added_rows(seen.base, seen.agents)
    problems, warnings = (*seen.problems, *grown.problems), (*seen.warnings, *grown.warnings)
    return Views(grown.base, grown.agents, problems, warnings, grown.vocabulary)


def compared_views(base: Model, agent: Model) -> Views:
    """As `views_of`, but that rows which one agent adds are left out: there is nothing that they differ from."""
    if base.adapter is not None:
        return views_of(base, [agent])
    seen = _by_names(base, [agent])
    common = without_added_rows(seen.base, *seen.agents)
    problems, warnings = (*seen.problems, *common.problems), (*seen.warnings, *common.warnings)
    return Views(common.base, common.agents, problems, warnings, common.vocabulary)


def _by_names(base: Model, agents: Sequence[Model]) -> Views:
    """Every model's tensors as floats under the base's names."""
    steps = [with_scales(base)]
    for agent in agents:
        steps.append(_seen(steps[0].model, agent))
    return Views(
        steps[0].model,
        tuple(s.model for s in steps[1:]),
        tuple(p for s in steps for p in s.problems),
        tuple(w for s in steps for w in s.warnings),
    )


def _seen(base: Model, agent: Model) -> Seen:
    if agent.adapter is not None:
        return attached(base, agent)
    scaled = with_scales(agent)
    named = aligned(base, scaled.model)
    notes = []
    if agent.kind != base.kind and "fp8" in agent.kind:
        notes.append(
            f"{agent.ref.id}: its weights are fp8, so its update includes the error of rounding them to 8 bits"
        )
    return Seen(named.model, scaled.problems, (*scaled.warnings, *named.warnings, *notes))
