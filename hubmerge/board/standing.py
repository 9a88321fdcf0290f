"""Whose a result is: signed by a trusted key, or the community's.

Community results, which no trusted key signed, are listed beside signed ones on a board where they can displace nothing
(`Standing.admit`), and decide nothing. Without a signed result of the split nothing changes. Only a signature proves
who ran something (hubmerge/evaluation/signing.py): with `git push` whoever may write to a repo can write any author.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from hubmerge.board.lineage import Node
from hubmerge.board.values import Refusal
from hubmerge.evaluation.result import EvaluationResult, Split, result_path


class Standing:
    """Which of the accepted results a trusted key signed: those of the runs `signed`."""

    def __init__(self, signed: Collection[tuple[str, ...]]) -> None:
        self._signed = signed

    def is_signed(self, result: EvaluationResult) -> bool:
        return result.run_key in self._signed

    def signed_first(self, results: Iterable[EvaluationResult]) -> list[EvaluationResult]:
        """The signed results, or all where none is signed."""
        results = list(results)
        return [r for r in results if self.is_signed(r)] or results

    def ancestry(self, results: Collection[EvaluationResult]) -> Mapping[bool, list[EvaluationResult]]:
        """The results that say what a model descends from: a signed one (True), by signed results alone; another one,
        by those of a commit that has some, else by all of that commit."""
        by_node: dict[Node, list[EvaluationResult]] = defaultdict(list)
        for result in results:
            by_node[result.model, result.sha].append(result)
        others = [r for group in by_node.values() for r in self.signed_first(group)]
        return {True: [r for r in results if self.is_signed(r)], False: others}

    def admit(self, results: Sequence[EvaluationResult], split: Split, out: set[Refusal]) -> list[EvaluationResult]:
        """The results of `split` that a board is built of."""
        results = [r for r in results if r.split == split]
        signed = [r for r in results if self.is_signed(r)]
        versions: dict[str, set[str]] = defaultdict(set)
        commits: dict[str, set[str]] = defaultdict(set)
        models = {(r.suite, r.model) for r in signed}
        most: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)  # prompts by task, of a suite's version
        for r in signed:
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
        for r in results:
            if not self.is_signed(r) and (reason := doubt(r)):
                out.add(Refusal(result_path(r)[:300], reason))
            else:
                kept.append(r)
        return kept
