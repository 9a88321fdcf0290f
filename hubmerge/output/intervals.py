"""95% confidence intervals of scores, of their means and of their differences.

A task's score is a mean over n prompts of values between 0 and 1. Its interval is Wilson's score interval (E. B.
Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22, 1927; recommended by Brown,
Cai and DasGupta, "Interval Estimation for a Binomial Proportion", Statistical Science 16, 2001): unlike score ±
1.96 standard errors it never leaves [0, 1] and does not shrink to a point at 0 and 1. For a metric that also takes
values between 0 and 1 it is too wide rather than too narrow, since no distribution on [0, 1] with mean p varies more
than p(1−p). A stated standard error above the binomial one (prompts in clusters) lowers n to the effective sample
size p(1−p)/stderr²; a smaller one is not believed.

Sums follow the method of variance estimates recovery (Zou and Donner, "Construction of confidence limits about
effect measures", Statistics in Medicine 27, 2008): the distances of the limits from the estimate add in squares. For
the difference of two proportions this is method 10 of Newcombe, "Interval estimation for the difference between
independent proportions", Statistics in Medicine 17, 1998. Two models are treated as independent though they answer
the same prompts; agreement between them makes the true interval narrower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Z = 1.959963984540054  # the 97.5% quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the limits of its 95% interval."""

    value: float
    low: float
    high: float


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
