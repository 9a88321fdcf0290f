"""Which accounts committed the result files that no trusted key signed, as the Hub's history says.

That is told and decides nothing: with `git push` whoever may write to a repo can write any author. Only a signature
proves who ran something (hubmerge/evaluation/signing.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hubmerge.errors import HubmergeError
from hubmerge.evaluation.result import EvaluationResult, result_path

if TYPE_CHECKING:
    from hubmerge.hub.client import Hub

MAX_FILES_A_LOOK = 200  # of which the committers are asked for at once; the next look goes on

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Committed:
    """The accounts by the result's path; `owner` is the account that the dataset belongs to."""

    accounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owner: str = ""

    def by(self, result: EvaluationResult) -> tuple[str, ...]:
        """Empty where it is not known."""
        return self.accounts.get(result_path(result), ())

    def is_owners(self, result: EvaluationResult) -> bool:
        return self.by(result) == (self.owner,)


UNKNOWN = Committed()


class Committers:
    """The Hub's answers for the files of one dataset, each asked for once."""

    def __init__(self, hub: Hub, repo: str) -> None:
        self._hub = hub
        self._repo = repo
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}  # path, blob id → accounts

    def look(self, sha: str, files: Mapping[str, str]) -> tuple[Mapping[str, tuple[str, ...]], bool]:
        """Path → accounts for those of `files` (path → blob id) that are known now, and whether these are all.

        A Hub that does not answer costs the names, and the next look asks again.
        """
        missing = [path for path, oid in files.items() if (path, oid) not in self._known]
        asked = missing[:MAX_FILES_A_LOOK]
        if asked:
            try:
                found = self._hub.committers(self._repo, sha, asked)
            except HubmergeError as error:
                log.info("who committed %d results of %s is not known: %s", len(missing), self._repo, error)
            else:
                self._known |= {(path, files[path]): found.get(path, ()) for path in asked}
        known = {path: self._known[path, oid] for path, oid in files.items() if (path, oid) in self._known}
        return known, len(known) == len(files)
