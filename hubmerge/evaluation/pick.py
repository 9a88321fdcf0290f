"""Auto-pick: the best of a sweep's variants by a development split, and how sure that choice is.

A variant's figure is the mean of its domains' scores, and a domain's score the mean of its tasks. All variants answered
the same prompts, so two of them are compared prompt by prompt: the standard error of a difference is that of the
per-prompt differences (paired), which is far below that of two separate means. Variants within 1.96 such errors of the
best are named with it, since the split cannot tell them apart. Of equal variants the first in the sweep is chosen.

Choosing the largest of several noisy figures makes the chosen one look too good (the winner's curse). So none of these
figures is a score: the chosen variant is measured again on rows that had no part in choosing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.output.scores import DECIMALS

CONFIDENCE_95 = 1.96


@dataclass(frozen=True)
class DevScore:
    """One variant on the development split."""

    variant: str
    domains: Mapping[str, float]
    mean: float
    behind: float  # the best's mean − this one's
    behind_stderr: float | None  # paired standard error of that difference; None for the best itself

    @property
    def tied(self) -> bool:
        """Whether the split cannot tell this variant from the best."""
        return self.behind_stderr is None or self.behind <= CONFIDENCE_95 * self.behind_stderr


@dataclass(frozen=True)
class Pick:
    chosen: str
    suite: str
    suite_version: str
    scores: tuple[DevScore, ...]  # in the sweep's order
    failed: Mapping[str, str]  # variant → why it has no score

    @property
    def tied(self) -> tuple[str, ...]:
        """The variants that might as well have been chosen."""
        return tuple(s.variant for s in self.scores if s.tied and s.variant != self.chosen)


def pick(results: Mapping[str, EvaluationResult], samples: Mapping[str, Mapping[str, Sequence[float]]]) -> Pick:
    """The best of `results` (variant → run on the development split, in the sweep's order).

    `samples`: variant → task → the score of every prompt, the same prompts in the same order for each variant.
    EvaluationError when no variant has scores, or the runs are not of one suite, version and split.
    """
    done = {name: r for name, r in results.items() if r.status == "done"}
    failed = {name: r.error.message for name, r in results.items() if r.error is not None}
    kinds = {(r.suite, r.suite_version, r.split) for r in done.values()}
    if not done:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise EvaluationError("no variant could be evaluated, so none is chosen", got=reasons[:500])
    if len(kinds) != 1 or {split for _, _, split in kinds} != {"dev"}:
        raise EvaluationError(
            "variants are chosen by one suite on its development split",
            expected="one suite, one version, split dev",
            got=", ".join(sorted(" ".join(k) for k in kinds)),
        )
    means = {name: round(fmean(r.domains.values()), DECIMALS) for name, r in done.items()}
    chosen = max(means, key=lambda name: means[name])  # the first among equals
    scores = tuple(
        DevScore(
            variant=name,
            domains=dict(result.domains),
            mean=means[name],
            behind=means[chosen] - means[name],
            behind_stderr=None if name == chosen else _paired(done[chosen], samples[chosen], samples[name]),
        )
        for name, result in done.items()
    )
    suite, version, _ = next(iter(kinds))
    return Pick(chosen, suite, version, scores, failed)


def _paired(
    result: EvaluationResult, mine: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]
) -> float:
    """The standard error of the difference of two means over domains, from the differences prompt by prompt."""
    per_domain = Counter(task.domain for task in result.tasks)
    total = 0.0
    for task in result.tasks:
        differences = [a - b for a, b in zip(mine[task.task], theirs[task.task], strict=True)]
        weight = 1.0 / (per_domain[task.domain] * len(per_domain))
        # 0.25: the most that a mean of values between 0 and 1 can vary, since one prompt tells nothing
        total += weight * weight * (variance(differences) / len(differences) if len(differences) > 1 else 0.25)
    return math.sqrt(total)


def pick_table(found: Pick) -> str:
    """A Markdown table of the variants on the development split, with the choice."""
    domains = list(found.scores[0].domains)
    head = ["variant", *domains, "mean", "behind the best"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for score in found.scores:
        behind = (
            "chosen"
            if score.variant == found.chosen
            else f"{100 * score.behind:.1f} ± {100 * CONFIDENCE_95 * (score.behind_stderr or 0.0):.1f}"
        )
        figures = [f"{100 * score.domains[d]:.1f}" for d in domains]
        lines.append("| " + " | ".join([f"`{score.variant}`", *figures, f"{100 * score.mean:.1f}", behind]) + " |")
    lines += [f"| `{name}` |" + " |" * (len(head) - 2) + " failed |" for name in found.failed]
    tied = ", ".join(f"`{name}`" for name in found.tied)
    verdict = f"Not told apart from it: {tied}. " if tied else "Every other variant is worse beyond chance. "
    verdict = verdict if len(found.scores) > 1 else ""
    return (
        f"Chosen on the development split of suite `{found.suite}` (version `{found.suite_version}`): "
        f"`{found.chosen}`. {verdict}Percent; ± is 1.96 paired standard errors.\n\n" + "\n".join(lines) + "\n"
    )
