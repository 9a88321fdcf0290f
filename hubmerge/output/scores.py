"""Scores with their intervals, and a merge's scores beside its parents': by domain, and by the skills that it kept.

**Intervals** are of 95%. A task's score is a mean over n prompts of values between 0 and 1. Its interval is Wilson's
score interval (E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22, 1927;
recommended by Brown, Cai and DasGupta, "Interval Estimation for a Binomial Proportion", Statistical Science 16, 2001):
unlike score ± 1.96 standard errors it never leaves [0, 1] and does not shrink to a point at 0 and 1. For a metric that
also takes values between 0 and 1 it is too wide rather than too narrow, since no distribution on [0, 1] with mean p
varies more than p(1−p). A stated standard error above the binomial one (prompts in clusters) lowers n to the effective
sample size p(1−p)/stderr²; a smaller one is not believed.

Sums follow the method of variance estimates recovery (Zou and Donner, "Construction of confidence limits about effect
measures", Statistics in Medicine 27, 2008): the distances of the limits from the estimate add in squares. For the
difference of two proportions this is method 10 of Newcombe, "Interval estimation for the difference between
independent proportions", Statistics in Medicine 17, 1998. Two models are treated as independent though they answer the
same prompts; agreement between them makes the true interval narrower.

**Skills**: docs/leaderboard.md says what they are. The interval of a gain kept is finite, since its divisor is beyond
chance. Nothing is said until every parent has a score of every task, since the best one may be missing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

Z = 1.959963984540054  # the 97.5% quantile of the normal distribution
INSTRUCTION = "instruction"  # the domain whose change against the base is told
DOMAINS = ("math", INSTRUCTION, "code", "tool", "memory", "search")  # their order; others follow by name
_DOMAIN_WORDS = {"tool": "tool use", "mem": "memory", INSTRUCTION: "instructions"}
HALF_OF_THE_GAIN = 0.5
DECIMALS = 9  # that count where two figures are compared: floats of equal ones may differ in the last bits
NO_DIFFERENCE = "no difference beyond chance"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the limits of its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """71.2 (68.0 to 74.1), in percent."""
        value, low, high = (f"{100 * share:.1f}" for share in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


@lru_cache(maxsize=65536)  # of n prompts there are n + 1 scores, and many models share them
def score_interval(value: float, samples: int, stderr: float | None = None) -> Estimate:
    """Wilson's interval of the mean `value` of `samples` values between 0 and 1."""
    n = float(samples)
    variance = value * (1 - value)
    if stderr is not None and stderr * stderr * n > variance > 0:
        n = variance / (stderr * stderr)
    z2 = Z * Z / n
    center = (value + z2 / 2) / (1 + z2)
    half = Z / (1 + z2) * math.sqrt(variance / n + z2 / (4 * n))
    return Estimate(value, max(0.0, min(center - half, value)), min(1.0, max(center + half, value)))


def mean(parts: Sequence[Estimate], least: float = 0.0, most: float = 1.0) -> Estimate:
    """The mean of independent estimates between `least` and `most`, each with the same weight."""
    if len(parts) == 1:
        return parts[0]
    k = len(parts)
    value = math.fsum(p.value for p in parts) / k
    down = math.sqrt(math.fsum((p.value - p.low) ** 2 for p in parts)) / k
    up = math.sqrt(math.fsum((p.high - p.value) ** 2 for p in parts)) / k
    return Estimate(value, max(least, value - down), min(most, value + up))


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a − b; it is beyond chance where the interval leaves out 0."""
    value = a.value - b.value
    down = math.hypot(a.value - a.low, b.high - b.value)
    up = math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(value, max(-1.0, value - down), min(1.0, value + up))


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
        return NO_DIFFERENCE if self.change.low <= 0 else "above the best scored parent"


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
    synergy = len(known) == len(parents) and all(round(c.value, DECIMALS) > 0 for c in changes)
    certain = synergy and all(c.low > 0 for c in changes)
    return DomainLine(domain, score, rank, parent.id, difference(score, best), synergy, certain)


def domain_words(domain: str) -> str:
    """A domain within a sentence."""
    return _DOMAIN_WORDS.get(domain, domain)


def domain_order(domain: str) -> tuple[int, str]:
    return (DOMAINS.index(domain) if domain in DOMAINS else len(DOMAINS), domain)


@dataclass(frozen=True, slots=True)
class Skill:
    """A task at which a parent is above the base, and what the merge kept of that."""

    task: str
    domain: str
    best_parent: str  # id
    gain_kept: Estimate  # 1: all of it
    best_sha: str  # of that parent, since two may be commits of one repo

    @property
    def kept(self) -> bool:
        return self.gain_kept.low > 0 and round(self.gain_kept.value, DECIMALS) >= HALF_OF_THE_GAIN

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
        several = len({(s.best_parent, s.best_sha) for s in self.skills if s.kept}) > 1
        return several, self.kept, round(gain.value, DECIMALS)

    @property
    def text(self) -> str:
        """2 of 3 skills: 88% of the gain in math, 99% and 41% in code."""
        if not self.skills:
            return "no parent above the base"
        gains: dict[str, list[str]] = {}
        for skill in self.skills:
            gains.setdefault(domain_words(skill.domain), []).append(f"{_percent(skill.gain_kept.value)}%")
        told = ", ".join(
            f"{' and '.join(shares)}{' of the gain' * (k == 0)} in {domain}"
            for k, (domain, shares) in enumerate(gains.items())
        )
        return f"{self.kept} of {len(self.skills)} skill{'s' * (len(self.skills) > 1)}: {told}"


def verdict(skills: SkillsKept | None, domains: Sequence[DomainLine]) -> str | None:
    """Keeps 1 of 2 skills: math, not code. Below the best parent: math by 12 points, code by 40 points.

    What is kept may still be below the best parent, beyond chance. A domain that may be by chance is named as such,
    since it may seem further below than one that is not. None: too little is scored.
    """
    if skills is None:
        return None
    count = len(skills.skills)
    kept = f"Keeps {skills.kept} of {count} skill{'s' * (count != 1)}" if count else "No parent is above the base"
    below = [
        f"{domain_words(line.domain)} by {max(round(-100 * line.change.value), 1)} "
        f"point{'s' * (line.change.value <= -0.015)}"
        for line in domains
        if line.change is not None and line.change.high < 0
    ]
    told = f" Below the best parent: {', '.join(below)}." if below else ""
    alike = [domain_words(line.domain) for line in domains if line.verdict == NO_DIFFERENCE]
    told += f" No difference from the best parent beyond chance: {', '.join(alike)}." if alike else ""
    return f"{kept}{_which(skills) if 0 < skills.kept < count else ''}.{told}"


def _which(skills: SkillsKept) -> str:
    """: math and tool use (1 of 2), not code."""
    every, kept = (
        Counter(domain_words(s.domain) for s in skills.skills if s.kept or not only) for only in (False, True)
    )
    names = [d if kept[d] == every[d] else f"{d} ({kept[d]} of {every[d]})" for d in every if kept[d]]
    lost = [d for d in every if not kept[d]]
    return f": {' and '.join(names)}" + (f", not {' or '.join(lost)}" if lost else "")


def _percent(share: float) -> str:
    return f"{round(100 * share)}".replace("-", "−")


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
            skills.append(Skill(task, domain, best.id, kept, best.sha))
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
