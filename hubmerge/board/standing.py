"""Whose a result is: signed by a trusted key, or the community's.

Community results, which no trusted key signed, are listed beside signed ones on a board where they can displace nothing
(`admit`), and decide nothing. Without a signed result of the split nothing changes. Only a signature proves
who ran something (hubmerge/evaluation/signing.py): with `git push` whoever may write to a repo can write any author.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hubmerge.board.lineage import Node
from hubmerge.board.values import Refusal
from hubmerge.evaluation.result import EvaluationResult, result_path


class Run(NamedTuple):
    """An accepted result, and whether a trusted key signed it."""

    result: EvaluationResult
    signed: bool


def signed_first(runs: Iterable[Run]) -> list[Run]:
    """The signed runs, or all where none is signed."""
    runs = list(runs)
    return [run for run in runs if run.signed] or runs


def ancestry(runs: Sequence[Run]) -> Mapping[bool, list[EvaluationResult]]:
    """The results that say what a model descends from: a signed one (True), by signed results alone; another one,
    by those of a commit that has some, else by all of that commit."""
    by_node: dict[Node, list[Run]] = defaultdict(list)
    for run in runs:
        by_node[run.result.model, run.result.sha].append(run)
    others = [run.result for group in by_node.values() for run in signed_first(group)]
    return {True: [run.result for run in runs if run.signed], False: others}


def admit(runs: Sequence[Run], out: set[Refusal]) -> list[Run]:
    """The runs, all of one split, that a board is built of."""
    versions: dict[str, set[str]] = defaultdict(set)
    commits: dict[str, set[str]] = defaultdict(set)
    models: set[tuple[str, str]] = set()
    most: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)  # prompts by task, of a suite's version
    for r in (run.result for run in runs if run.signed):
        models.add((r.suite, r.model))
        versions[r.suite].add(r.suite_version)
        commits[r.model].add(r.sha)
        for t in r.tasks:
            limits = most[r.suite, r.suite_version]
            limits[t.task] = max(limits.get(t.task, 0), t.samples)

    def doubt(r: EvaluationResult) -> str | None:
        if r.suite in versions and r.suite_version not in versions[r.suite]:
            return "a community result of a version of the suite that no signed result has"
        if (r.suite, r.model) in models:
            return "a community result of a model that has a signed one"
        if r.model in commits and r.sha not in commits[r.model]:
            return "a community result of another commit than the signed ones of this model"
        limits = most.get((r.suite, r.suite_version))
        if limits is None:
            return None
        for t in r.tasks:
            if t.task not in limits:
                return "its tasks are others than the signed results'"
            if t.samples > limits[t.task]:
                return f"{t.samples} prompts of {t.task[:80]}, of which the suite has {limits[t.task]}"
        return None

    kept = []
    for run in runs:
        if not run.signed and (reason := doubt(run.result)):
            out.add(Refusal(result_path(run.result)[:300], reason))
        else:
            kept.append(run)
    return kept
