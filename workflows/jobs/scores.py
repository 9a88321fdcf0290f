"""The bot's knowledge of scores: versions of suites, recorded runs, and the leaderboard's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hubmerge.board.export import flag_text
from hubmerge.board.lineage import Lineage
from hubmerge.board.results_dataset import LoadedResults, ResultsDataset
from hubmerge.errors import SourceNotFoundError
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from workflows.kept import KeptAnswers

Pin = tuple[str, str]  # a model's id and commit
VERSION_S = 300.0  # for so long a suite's version is believed; then its datasets' heads are asked for again


class ScoreKey(NamedTuple):
    """The identity of a score."""

    model: str
    sha: str
    suite: str
    suite_version: str
    split: str


class RecordedScores:
    """Answers the questions of the schedule and the watchers from the results dataset.

    `default_suite`: for public merges that no watcher started; None: they are not evaluated.
    """

    def __init__(self, hub: Hub, dataset: ResultsDataset, default_suite: str | None = None) -> None:
        self._hub = hub
        self.dataset = dataset
        self.default_suite = default_suite
        self._versions = KeptAnswers[str](VERSION_S)

    def suite_version(self, suite: str) -> str:
        """EvaluationError where there is no such suite."""
        return self._versions.get(suite, lambda: pin(suite, self._hub).version)

    def known_scores(self) -> frozenset[ScoreKey]:
        """Every run that is recorded, those that failed included: a tick does not try them again."""
        loaded = self._loaded()
        if loaded is None:
            return frozenset()
        known = frozenset(ScoreKey(r.model, r.sha, r.suite, r.suite_version, r.split) for r in loaded.believed)
        equal = (  # whichever of two equal versions is the present one
            key._replace(suite_version=version)
            for (suite, version), same_as in loaded.versions.items()
            for key in known
            if (key.suite, key.suite_version) == (suite, same_as)
        )
        return known.union(equal)

    def ranking(self, suite: str, models: Sequence[Pin]) -> Mapping[Pin, float]:
        """The mean over the domains of those among `models` (id, sha) that the current version has scored."""
        loaded, version, wanted = self._loaded(), self.suite_version(suite), set(models)
        if loaded is None:
            return {}
        version = loaded.versions.get((suite, version), version)
        return {
            (r.model, r.sha): sum(r.domains.values()) / len(r.domains)
            for r in loaded.believed
            if (r.model, r.sha) in wanted
            and (r.suite, r.suite_version, r.split, r.status) == (suite, version, "test", "done")
        }

    def flagged(self, models: Sequence[Pin]) -> Mapping[Pin, str]:
        """Those among `models` (id, sha) that are contaminated or withdrawn, or descend from one that is, and why."""
        loaded = self._loaded()
        flags = [flag for flag in loaded.flags if not flag.community] if loaded is not None else []
        if loaded is None or not flags:
            return {}
        marks = Lineage(loaded.believed, models).flagged(flags)
        return {model: "; ".join(map(flag_text, marks[model])) for model in models if model in marks}

    def _loaded(self) -> LoadedResults | None:
        try:
            return self.dataset.load()
        except SourceNotFoundError:
            return None  # nothing was ever recorded
