"""A domain's score beside the same domain of the parents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hubmerge.output.intervals import Estimate, difference

INSTRUCTION = "instruction"  # the domain whose change against the base is told
DOMAINS = ("math", INSTRUCTION, "code", "tool", "memory", "search")  # their order; others follow by name


@dataclass(frozen=True, slots=True)
class DomainLine:
    """One domain's score, and how it stands to the same domain of the parents."""

    domain: str
    score: Estimate  # the mean over its tasks
    rank: int | None  # None: not ranked
    best_parent: str | None = None  # id of the best scored parent
    change: Estimate | None = None  # score − best parent's
    synergy: bool = False  # above every parent; False while one has no score
    synergy_certain: bool = False  # and every difference is beyond chance

    @property
    def verdict(self) -> str:
        """The comparison with the parents, in words; empty where none was scored."""
        if self.synergy:
            return "above every parent" + ("" if self.synergy_certain else ", within chance")
        if self.change is None:
            return ""
        if self.change.high < 0:
            return "below the best parent"
        return "no difference beyond chance" if self.change.low <= 0 else "above the best scored parent"


@dataclass(frozen=True, slots=True)
class ParentLine:
    """A parent under the same suite, version and split."""

    role: Literal["base", "agent"]
    id: str
    sha: str
    weight: float
    status: Literal["scored", "failed", "not scored"]
    domains: Mapping[str, Estimate] = field(default_factory=dict)
    tasks: Mapping[tuple[str, str], Estimate] = field(default_factory=dict)  # by domain and task
    overall: Estimate | None = None


def domain_line(domain: str, score: Estimate, parents: Sequence[ParentLine], rank: int | None = None) -> DomainLine:
    """A score against the same domain of the parents."""
    known = [(p, p.domains[domain]) for p in parents if domain in p.domains]
    if not known:
        return DomainLine(domain, score, rank)
    parent, best = max(known, key=lambda pair: pair[1].value)
    changes = [difference(score, theirs) for _, theirs in known]
    synergy = len(known) == len(parents) and all(c.value > 0 for c in changes)
    return DomainLine(
        domain,
        score,
        rank,
        best_parent=parent.id,
        change=difference(score, best),
        synergy=synergy,
        synergy_certain=synergy and all(c.low > 0 for c in changes),
    )


def domain_order(domain: str) -> tuple[int, str]:
    return (DOMAINS.index(domain) if domain in DOMAINS else len(DOMAINS), domain)
