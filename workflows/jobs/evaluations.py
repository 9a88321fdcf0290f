"""Evaluations as jobs: their identity, their priority, and requests for them that never repeat a run.

A job's id is over the model, its commit, the suite, its version and the split. So every request for the same score,
from whichever scheduler, finds the same job, and a new version of the suite makes a new one. Every finding about a
model is recorded, failures too, and is not measured again. If a job failed without a record, the machine or the Hub was
in trouble; the job is due again hours later, and its owner may start it earlier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Engine, and_, select

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.result import Split
from workflows.jobs.account import Account
from workflows.jobs.jobs import EVALUATION, Clock, Job, NewJob, State, iso
from workflows.jobs.schema import reading, writing
from workflows.jobs.transitions import JOBS, Transitions

AGAIN_AFTER = timedelta(hours=6)
ASKED_EACH = 3  # evaluations that one visitor asked for, waiting or running
# merges that people start have priority 0; jobs that a person waits for come first
WATCHED_MERGE = -10
OF_MERGE = -20
ASKED = -20  # by a visitor; who asks first is served first
OF_CANDIDATE = -30  # a rule's choice waits for it
OF_PARENT = -40


class ScoreKey(NamedTuple):
    """The identity of a score."""

    model: str
    sha: str
    suite: str
    suite_version: str
    split: str


KnownScores = Callable[[], Collection[ScoreKey]]
SuiteVersion = Callable[[str], str]  # ValueError or HubmergeError where there is no such suite


def is_the_bot_s(job: Job) -> bool:
    """Whether the bot started the job, which then acts with the token in the environment."""
    return job.kind == EVALUATION or bool(job.payload.get("watcher"))


def evaluation_id(key: ScoreKey) -> str:
    identity = json.dumps(["evaluate", key.model, key.sha, key.suite, key.split, key.suite_version])
    return hashlib.sha256(identity.encode()).hexdigest()


def evaluation_job(
    model: str,
    sha: str,
    suite: str,
    split: Split,
    user: str,
    *,
    suite_version: str = "",
    priority: int = OF_MERGE,
    private: bool = False,
    asked_by: str = "",
) -> NewJob:
    """The job that evaluates `model` at `sha`; every request gets the same one.

    `private`: only `user` may see the job. `asked_by`: the visitor whose quota it uses.
    """
    known: dict[str, object] = {"private": True} if private else {}
    if asked_by:
        known["asked_by"] = asked_by
    return NewJob(
        id=evaluation_id(ScoreKey(model, sha, suite, suite_version, split)),
        kind=EVALUATION,
        user=user,
        payload={"model": model, "sha": sha, "suite": suite, "suite_version": suite_version, "split": split, **known},
        priority=priority,
    )


class EvaluationRequests:
    """Takes requests for scores: known ones and those under way cost nothing, the others become jobs."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        account: Account,
        *,
        suite_version: SuiteVersion,
        known_scores: KnownScores,
        jobs_per_user: int = 5,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._account = account
        self._limit = jobs_per_user
        self._suite_version = suite_version
        self.known_scores = known_scores
        self._scored: set[ScoreKey] = set()  # a score that was there stays

    def version(self, suite: str) -> str:
        """The suite's present version; EvaluationError where there is no such suite."""
        try:
            return self._suite_version(suite)
        except ValueError as error:
            raise EvaluationError("no such suite", where=suite, got=str(error)[:300]) from None

    def key(self, model: str, sha: str, suite: str, split: Split = "test") -> ScoreKey:
        """The key of the score under the suite's present version."""
        return ScoreKey(model, sha, suite, self.version(suite), split)

    def unknown(self, keys: Sequence[ScoreKey]) -> list[ScoreKey]:
        """The keys that have neither a job nor a score; the leaderboard is asked only where there is no job."""
        failed_long_ago = and_(JOBS.c.state == State.FAILED, JOBS.c.finished < iso(self._clock.now() - AGAIN_AFTER))
        query = select(JOBS.c.id).where(JOBS.c.kind == EVALUATION, ~failed_long_ago)
        with reading(self._engine) as connection:
            asked = set(connection.execute(query).scalars())
        left = [key for key in keys if key not in self._scored and evaluation_id(key) not in asked]
        if left:
            self._scored |= set(self.known_scores())
        return [key for key in left if key not in self._scored]

    def request(self, key: ScoreKey, priority: int, *, private: bool = False, asked_by: str = "") -> Job:
        """The job of this evaluation, queued unless it is there already, in whatever state but failed long ago.

        `private`: it is wanted for something that only the account's owner may see. `asked_by`: a visitor wants it, who
        has a quota of ASKED_EACH beside the account's, and for whom a cancelled job starts again. QuotaError when there
        are enough under way; ask again later.
        """
        model, sha, suite, version, split = key
        user = self._account.name
        new = evaluation_job(
            model,
            sha,
            suite,
            "dev" if split == "dev" else "test",
            user,
            suite_version=version,
            priority=priority,
            private=private,
            asked_by=asked_by,
        )
        token = self._account.seal(new.id)
        with writing(self._engine) as connection:
            change = Transitions(connection, self._clock)
            job = change.find(new.id)
            ended = iso(self._clock.now() - AGAIN_AFTER)
            failed_long_ago = job is not None and job.state is State.FAILED and (job.finished or "") < ended
            stopped = job is not None and job.state is State.CANCELLED and bool(asked_by)
            if job is None or failed_long_ago or stopped:
                if asked_by:
                    change.check_asked(asked_by, ASKED_EACH)
                else:
                    change.check_quota(user, EVALUATION, self._limit)
                job = change.enqueue(new, again=job is not None)
                change.keep_token(new.id, token)
            return job
