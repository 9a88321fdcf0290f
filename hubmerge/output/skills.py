"""Skills kept: how much of what its parents had learned a merge still has.

A task is a *skill* where the best parent is above the base beyond chance: the interval of their difference leaves out
0. There, gain kept = (merge − base) ÷ (best parent − base); 1 keeps all of it, 0 is the base's score, less than 0 below
it. A skill counts as kept where at least half of its gain is, and the merge itself is above the base beyond chance.
Nothing is said until every parent has a score of every task, since the best one may be missing.

The interval of a gain kept holds the r at which that of (merge − base) − r·(best parent − base) holds 0, with the
method of variance estimates recovery (intervals.py) for the three scores. It is finite, since the divisor is beyond
chance. The best of several parents is chosen by the scores that it is judged by, which makes it look better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hubmerge.output.domains import DomainLine, ParentLine, domain_order
from hubmerge.output.intervals import Estimate, difference, mean

HALF_OF_THE_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class Skill:
    """A task at which a parent is above the base, and what the merge kept of that."""

    task: str
    domain: str
    best_parent: str  # id
    gain_kept: Estimate  # 1: all of it

    @property
    def kept(self) -> bool:
        return self.gain_kept.low > 0 and self.gain_kept.value >= HALF_OF_THE_GAIN

    @property
    def text(self) -> str:
        """88% (70 to 107)."""
        return f"{_percent(self.gain_kept.value)}% ({_percent(self.gain_kept.low)} to {_percent(self.gain_kept.high)})"


@dataclass(frozen=True, slots=True)
class SkillsKept:
    """Every skill of a merge's parents; empty where no parent is above the base beyond chance."""

    skills: tuple[Skill, ...]

    @property
    def kept(self) -> int:
        return sum(skill.kept for skill in self.skills)

    @property
    def mean(self) -> Estimate | None:
        """The mean gain kept."""
        gains = [skill.gain_kept for skill in self.skills]
        return mean(gains, -math.inf, math.inf) if gains else None

    @property
    def order(self) -> tuple[bool, int, float] | None:
        """The key by which merges are ranked, most first: the number of skills kept, then the mean gain kept.

        Merges that keep skills of one parent alone come after all others: they combine nothing, and one trained agent
        beside an untrained one would win. None: there is no skill, hence no rank.
        """
        if (gain := self.mean) is None:
            return None
        return len({s.best_parent for s in self.skills if s.kept}) > 1, self.kept, gain.value

    @property
    def text(self) -> str:
        """3 of 3 skills: 88 · 99 · 95%."""
        if not self.skills:
            return "no parent above the base"
        gains = " · ".join(_percent(skill.gain_kept.value) for skill in self.skills)
        return f"{self.kept} of {len(self.skills)} skill{'s' * (len(self.skills) > 1)}: {gains}%"


def verdict(skills: SkillsKept | None, domains: Sequence[DomainLine]) -> str | None:
    """Keeps 3 of 3 skills; math drops 12 points.

    A domain drops where it is below the best parent beyond chance. None: too little is scored.
    """
    if skills is None:
        return None
    count = len(skills.skills)
    kept = f"Keeps {skills.kept} of {count} skill{'s' * (count != 1)}" if count else "No parent is above the base"
    drops = [
        f"{line.domain} drops {max(round(-100 * line.change.value), 1)} point{'s' * (line.change.value <= -0.015)}"
        for line in domains
        if line.change is not None and line.change.high < 0
    ]
    return "; ".join((kept, *drops)) + "."


def _percent(share: float) -> str:
    return f"{100 * share:.0f}".replace("-", "−")


def skills_kept(own: Mapping[tuple[str, str], Estimate], parents: Sequence[ParentLine]) -> SkillsKept | None:
    """The skills that a merge with these scores, by (domain, task), kept; None until all parents have scores, too."""
    bases = [p for p in parents if p.role == "base"]
    if not own or len(bases) != 1 or any(not own.keys() <= p.tasks.keys() for p in parents):
        return None
    skills = []
    for domain, task in sorted(own, key=lambda key: (domain_order(key[0]), key[1])):
        base = bases[0].tasks[domain, task]
        best = max(parents, key=lambda p: p.tasks[domain, task].value)
        if difference(best.tasks[domain, task], base).low > 0:
            kept = gain_kept(own[domain, task], best.tasks[domain, task], base)
            skills.append(Skill(task, domain, best.id, kept))
    return SkillsKept(tuple(skills))


def gain_kept(own: Estimate, best: Estimate, base: Estimate) -> Estimate:
    """(own − base) ÷ (best − base), where best is above base beyond chance."""
    value = (own.value - base.value) / (best.value - base.value)
    low, high = (_limit(own, best, base, value, lower=lower) for lower in (True, False))
    return Estimate(value, min(low, value), max(high, value))


def _limit(own: Estimate, best: Estimate, base: Estimate, value: float, *, lower: bool) -> float:
    """The r at which a limit of (own − base) − r·(best − base) is 0, by Newton's method.

    That limit falls with r and bends one way (a straight line and a norm), so that the steps from `value` never pass
    the root.
    """
    gain = best.value - base.value
    a = own.value - own.low if lower else own.high - own.value
    r = value
    for _ in range(50):
        # each score counts with the side of its interval that its sign in the sum asks for
        b = best.high - best.value if lower == (r >= 0) else best.value - best.low
        c = base.value - base.low if lower == (r >= 1) else base.high - base.value
        spread = math.hypot(a, r * b, (1 - r) * c)
        if spread == 0:
            return r
        sign = -1 if lower else 1
        step = (gain * (value - r) + sign * spread) / (gain - sign * (r * b * b - (1 - r) * c * c) / spread)
        r += step
        if abs(step) < 1e-12 * max(1.0, abs(r)):
            break
    return r
